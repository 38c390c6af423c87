// The fake plugin's programs: text of our own, which may hide in the comments of an MLIR module.
//
// A line counts if it holds `fake.` (what stands before that is skipped):
//   fake.program NAME                   its name (default fake)
//   fake.devices REPLICAS PARTITIONS    for as many devices (default: what the compile options say, else 1 1)
//   fake.parameter f32[2,3]             one more parameter
//   fake.output f32[2,3] = OPERATION    one more output:
//       identity I    the I-th parameter's bytes, cut or filled up with zeros
//       add I J       the sum of two parameters: integers wrap around
//       fill V        the number everywhere
//   fake.sleep MS                       runs so much longer
//   fake.fail CODE WORDS                its outputs and its launch fail so
//   fake.hang, fake.abort, fake.exit N  never ends; ends the process while it runs
#ifndef MAINSTAY_FAKE_PROGRAM_H_
#define MAINSTAY_FAKE_PROGRAM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pjrt_c_api.h"

enum { FAKE_MOST_RANK = 16, FAKE_MOST_VALUES = 64, FAKE_MOST_DEVICES = 64 };

// Type and dimensions of an array.
typedef struct {
  PJRT_Buffer_Type type;
  size_t rank;
  int64_t dims[FAKE_MOST_RANK];
} FakeShape;

typedef enum { FAKE_IDENTITY, FAKE_ADD, FAKE_FILL } FakeOperation;

typedef struct {
  FakeShape shape;
  FakeOperation operation;
  size_t inputs[2];
  double value;
} FakeOutput;

typedef enum { FAKE_RETURNS, FAKE_FAILS, FAKE_HANGS, FAKE_ABORTS, FAKE_EXITS } FakeEnding;

typedef struct {
  char name[64];
  int replicas;
  int partitions;
  int assignment[FAKE_MOST_DEVICES];  // device ids, replica by replica
  size_t num_parameters;
  FakeShape parameters[FAKE_MOST_VALUES];
  size_t num_outputs;
  FakeOutput outputs[FAKE_MOST_VALUES];
  int sleep_ms;
  FakeEnding ending;
  int ending_code;
  char ending_message[128];
} FakeProgram;

// Bytes of one element in host memory, 0 for a type that is not known.
size_t fake_element_size(PJRT_Buffer_Type type);

// Bytes of the dense array in host memory.
size_t fake_size(const FakeShape* shape);

// Strides in bytes of the dense array, whose dimensions vary in this order (fastest first); null: major to minor.
void fake_dense_strides(const FakeShape* shape, const int64_t* minor_to_major, int64_t* strides);

// Copies an array, element by element, between two orders in memory.
void fake_copy(const FakeShape* shape, char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides);

// Reads a program and the (serialized) options it is compiled with. Null if that went well, else what is wrong with it.
const char* fake_read_program(const char* text, size_t size, const char* options, size_t options_size, FakeProgram* program);

// Whether running it may take long or never end.
bool fake_is_slow(const FakeProgram* program);

// Computes one output from dense inputs of the shapes of the program's parameters.
void fake_compute(const FakeProgram* program, size_t output, char* const* inputs, char* result);

#endif  // MAINSTAY_FAKE_PROGRAM_H_
