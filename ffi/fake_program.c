// Reading and computing the fake plugin's programs. See fake_program.h.
#include "fake_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const char* name;
  PJRT_Buffer_Type type;
  size_t size;
} Element;

static const Element ELEMENTS[] = {
    {"pred", PJRT_Buffer_Type_PRED, 1},
    {"s1", PJRT_Buffer_Type_S1, 1},
    {"s2", PJRT_Buffer_Type_S2, 1},
    {"s4", PJRT_Buffer_Type_S4, 1},
    {"s8", PJRT_Buffer_Type_S8, 1},
    {"s16", PJRT_Buffer_Type_S16, 2},
    {"s32", PJRT_Buffer_Type_S32, 4},
    {"s64", PJRT_Buffer_Type_S64, 8},
    {"u1", PJRT_Buffer_Type_U1, 1},
    {"u2", PJRT_Buffer_Type_U2, 1},
    {"u4", PJRT_Buffer_Type_U4, 1},
    {"u8", PJRT_Buffer_Type_U8, 1},
    {"u16", PJRT_Buffer_Type_U16, 2},
    {"u32", PJRT_Buffer_Type_U32, 4},
    {"u64", PJRT_Buffer_Type_U64, 8},
    {"f16", PJRT_Buffer_Type_F16, 2},
    {"bf16", PJRT_Buffer_Type_BF16, 2},
    {"f32", PJRT_Buffer_Type_F32, 4},
    {"f64", PJRT_Buffer_Type_F64, 8},
    {"c64", PJRT_Buffer_Type_C64, 8},
    {"c128", PJRT_Buffer_Type_C128, 16},
    {"f8e5m2", PJRT_Buffer_Type_F8E5M2, 1},
    {"f8e4m3fn", PJRT_Buffer_Type_F8E4M3FN, 1},
    {"f8e4m3b11fnuz", PJRT_Buffer_Type_F8E4M3B11FNUZ, 1},
    {"f8e5m2fnuz", PJRT_Buffer_Type_F8E5M2FNUZ, 1},
    {"f8e4m3fnuz", PJRT_Buffer_Type_F8E4M3FNUZ, 1},
    {"f8e4m3", PJRT_Buffer_Type_F8E4M3, 1},
    {"f8e3m4", PJRT_Buffer_Type_F8E3M4, 1},
    {"f8e8m0fnu", PJRT_Buffer_Type_F8E8M0FNU, 1},
    {"f4e2m1fn", PJRT_Buffer_Type_F4E2M1FN, 1},
    {"f6e2m3fn", PJRT_Buffer_Type_F6E2M3FN, 1},
    {"f6e3m2fn", PJRT_Buffer_Type_F6E3M2FN, 1},
};

// ---- Arrays ---------------------------------------------------------------------------------------------------------

size_t fake_element_size(PJRT_Buffer_Type type) {
  for (size_t i = 0; i < sizeof(ELEMENTS) / sizeof(*ELEMENTS); ++i) {
    if (ELEMENTS[i].type == type) return ELEMENTS[i].size;
  }
  return 0;
}

static size_t count(const FakeShape* shape) {
  size_t product = 1;
  for (size_t i = 0; i < shape->rank; ++i) product *= (size_t)(shape->dims[i] > 0 ? shape->dims[i] : 0);
  return product;
}

size_t fake_size(const FakeShape* shape) { return count(shape) * fake_element_size(shape->type); }

void fake_dense_strides(const FakeShape* shape, const int64_t* minor_to_major, int64_t* strides) {
  int64_t stride = (int64_t)fake_element_size(shape->type);
  for (size_t i = 0; i < shape->rank; ++i) {
    size_t dim = minor_to_major ? (size_t)minor_to_major[i] : shape->rank - 1 - i;
    strides[dim] = stride;
    stride *= shape->dims[dim];
  }
}

void fake_copy(const FakeShape* shape, char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides) {
  size_t element = fake_element_size(shape->type);
  int64_t at[FAKE_MOST_RANK] = {0};
  for (size_t left = count(shape); left > 0; --left) {
    memcpy(to, from, element);
    // The next element: the last dimension first, with a carry.
    for (size_t dim = shape->rank; dim-- > 0;) {
      to += to_strides[dim];
      from += from_strides[dim];
      if (++at[dim] < shape->dims[dim]) break;
      to -= to_strides[dim] * at[dim];
      from -= from_strides[dim] * at[dim];
      at[dim] = 0;
    }
  }
}

// ---- Compile options ------------------------------------------------------------------------------------------------

// A stretch of a serialized message.
typedef struct {
  const unsigned char* at;
  const unsigned char* end;
} Bytes;

static uint64_t varint(Bytes* bytes) {
  uint64_t value = 0;
  for (int shift = 0; bytes->at < bytes->end && shift < 64; shift += 7) {
    unsigned char byte = *bytes->at++;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) break;
  }
  return value;
}

// Takes the next field off a message: its number, its value if it is a number, its bytes if it has some.
static bool next_field(Bytes* message, uint64_t* number, uint64_t* value, Bytes* inner) {
  if (message->at >= message->end) return false;
  uint64_t tag = varint(message);
  *number = tag >> 3;
  *value = 0;
  *inner = (Bytes){message->at, message->at};
  uint64_t length = 0;
  switch (tag & 7) {
    case 0:
      *value = varint(message);
      return true;
    case 1:
      length = 8;
      break;
    case 2:
      length = varint(message);
      break;
    case 5:
      length = 4;
      break;
    default:
      return false;
  }
  if (length > (uint64_t)(message->end - message->at)) return false;
  *inner = (Bytes){message->at, message->at + length};
  message->at += length;
  return true;
}

// DeviceAssignmentProto: for each partition, the devices of its replicas.
static void read_assignment(Bytes message, FakeProgram* program) {
  uint64_t number, value;
  Bytes partition;
  int at_partition = 0;
  while (next_field(&message, &number, &value, &partition)) {
    if (number == 1) program->replicas = (int)value;
    if (number == 2) program->partitions = (int)value;
    if (number != 3) continue;
    Bytes ids;
    int replica = 0;
    while (next_field(&partition, &number, &value, &ids)) {
      // Lists of numbers come packed or one by one.
      do {
        if (ids.at < ids.end) value = varint(&ids);
        int place = replica++ * program->partitions + at_partition;
        if (number == 1 && place < FAKE_MOST_DEVICES) program->assignment[place] = (int)value;
      } while (ids.at < ids.end);
    }
    ++at_partition;
  }
}

// CompileOptionsProto: how many replicas and partitions, and which devices.
static void read_options(Bytes message, FakeProgram* program) {
  uint64_t number, value;
  Bytes build, inner;
  while (next_field(&message, &number, &value, &build)) {
    if (number != 3) continue;
    while (next_field(&build, &number, &value, &inner)) {
      if (number == 4 && value) program->replicas = (int)value;
      if (number == 5 && value) program->partitions = (int)value;
      if (number == 9) read_assignment(inner, program);
    }
  }
}

// ---- Programs -------------------------------------------------------------------------------------------------------

// Reads `f32[2,3]` and moves past it.
static bool read_shape(const char** text, FakeShape* shape) {
  char name[16];
  int length = 0;
  if (sscanf(*text, " %15[a-z0-9]%n", name, &length) != 1) return false;
  *text += length;
  *shape = (FakeShape){0};
  for (size_t i = 0; i < sizeof(ELEMENTS) / sizeof(*ELEMENTS); ++i) {
    if (strcmp(ELEMENTS[i].name, name) == 0) shape->type = ELEMENTS[i].type;
  }
  if (!shape->type || *(*text)++ != '[') return false;
  while (**text && **text != ']' && shape->rank < FAKE_MOST_RANK) {
    char* end;
    shape->dims[shape->rank++] = strtoll(*text, &end, 10);
    if (end == *text) return false;
    *text = *end == ',' ? end + 1 : end;
  }
  return *(*text)++ == ']';
}

static bool read_output(const char* text, FakeProgram* program) {
  FakeOutput output = {0};
  if (!read_shape(&text, &output.shape)) return false;
  size_t* inputs = output.inputs;
  if (sscanf(text, " = add %zu %zu", &inputs[0], &inputs[1]) == 2) {
    output.operation = FAKE_ADD;
  } else if (sscanf(text, " = identity %zu", &inputs[0]) == 1) {
    output.operation = FAKE_IDENTITY;
  } else if (sscanf(text, " = fill %lf", &output.value) == 1) {
    output.operation = FAKE_FILL;
  } else {
    return false;
  }
  for (int i = 0; i < 2 && output.operation != FAKE_FILL; ++i) {
    if (inputs[i] >= program->num_parameters) return false;
    if (output.operation == FAKE_ADD && program->parameters[inputs[i]].type != output.shape.type) return false;
  }
  program->outputs[program->num_outputs++] = output;
  return true;
}

static bool read_line(const char* line, FakeProgram* program) {
  const char* rest = strchr(line, ' ');
  rest = rest ? rest : "";
  if (sscanf(line, "fake.program %63s", program->name) == 1) return true;
  if (sscanf(line, "fake.devices %d %d", &program->replicas, &program->partitions) == 2) return true;
  if (sscanf(line, "fake.sleep %d", &program->sleep_ms) == 1) return true;
  if (strncmp(line, "fake.parameter", 14) == 0) {
    return program->num_parameters < FAKE_MOST_VALUES && read_shape(&rest, &program->parameters[program->num_parameters++]);
  }
  if (strncmp(line, "fake.output", 11) == 0) return program->num_outputs < FAKE_MOST_VALUES && read_output(rest, program);
  if (sscanf(line, "fake.fail %d %127[^\n]", &program->ending_code, program->ending_message) >= 1) {
    program->ending = FAKE_FAILS;
  } else if (sscanf(line, "fake.exit %d", &program->ending_code) == 1) {
    program->ending = FAKE_EXITS;
  } else if (strncmp(line, "fake.hang", 9) == 0) {
    program->ending = FAKE_HANGS;
  } else if (strncmp(line, "fake.abort", 10) == 0) {
    program->ending = FAKE_ABORTS;
  } else {
    return false;
  }
  return true;
}

const char* fake_read_program(const char* text, size_t size, const char* options, size_t options_size, FakeProgram* program) {
  *program = (FakeProgram){.name = "fake", .replicas = 1, .partitions = 1};
  for (int i = 0; i < FAKE_MOST_DEVICES; ++i) program->assignment[i] = i;
  const unsigned char* bytes = (const unsigned char*)options;
  if (options_size) read_options((Bytes){bytes, bytes + options_size}, program);

  bool any = false;
  for (const char *at = text, *end = text + size; at < end;) {
    const char* line_end = memchr(at, '\n', (size_t)(end - at));
    line_end = line_end ? line_end : end;
    char line[256];
    size_t length = (size_t)(line_end - at);
    if (length < sizeof(line)) {
      memcpy(line, at, length);
      line[length] = 0;
      const char* start = strstr(line, "fake.");
      if (start && !read_line(start, program)) return "a line of the program is none that the fake plugin knows";
      any = any || start;
    }
    at = line_end + 1;
  }
  if (!any) return "the fake plugin only knows programs with fake.* lines; ffi/fake_program.h says which";
  if (program->replicas < 1 || program->partitions < 1 || program->replicas * program->partitions > FAKE_MOST_DEVICES) {
    return "the program asks for a number of devices that the fake plugin can't serve";
  }
  return NULL;
}

bool fake_is_slow(const FakeProgram* program) { return program->sleep_ms > 0 || program->ending != FAKE_RETURNS; }

#define ADD(type) \
  for (size_t i = 0; i < n; ++i) ((type*)result)[i] = (type)(((const type*)a)[i] + ((const type*)b)[i])
#define FILL(type) \
  for (size_t i = 0; i < n; ++i) ((type*)result)[i] = (type)value

static void add(PJRT_Buffer_Type type, size_t n, const char* a, const char* b, char* result) {
  switch (type) {
    case PJRT_Buffer_Type_F32:
      ADD(float);
      return;
    case PJRT_Buffer_Type_F64:
      ADD(double);
      return;
    default:
      break;
  }
  switch (fake_element_size(type)) {
    case 1:
      ADD(uint8_t);
      return;
    case 2:
      ADD(uint16_t);
      return;
    case 4:
      ADD(uint32_t);
      return;
    default:
      ADD(uint64_t);
  }
}

static void fill(PJRT_Buffer_Type type, size_t n, double value, char* result) {
  switch (type) {
    case PJRT_Buffer_Type_F32:
      FILL(float);
      return;
    case PJRT_Buffer_Type_F64:
      FILL(double);
      return;
    default:
      break;
  }
  switch (fake_element_size(type)) {
    case 1:
      FILL(int8_t);
      return;
    case 2:
      FILL(int16_t);
      return;
    case 4:
      FILL(int32_t);
      return;
    default:
      FILL(int64_t);
  }
}

void fake_compute(const FakeProgram* program, size_t output, char* const* inputs, char* result) {
  const FakeOutput* what = &program->outputs[output];
  size_t size = fake_size(&what->shape);
  size_t first = what->inputs[0], second = what->inputs[1];
  memset(result, 0, size);
  switch (what->operation) {
    case FAKE_FILL:
      fill(what->shape.type, count(&what->shape), what->value, result);
      return;
    case FAKE_IDENTITY: {
      size_t from = fake_size(&program->parameters[first]);
      memcpy(result, inputs[first], from < size ? from : size);
      return;
    }
    case FAKE_ADD: {
      size_t n = count(&what->shape);
      size_t a = count(&program->parameters[first]), b = count(&program->parameters[second]);
      n = n < a ? n : a;
      n = n < b ? n : b;
      add(what->shape.type, n, inputs[first], inputs[second], result);
      return;
    }
  }
}
