// What the fake plugin does wrong, when, and how it is told.
//
// The environment variable FAKE_PLUGIN holds items separated by `;`. FAKE_PLUGIN_CONTROL may name a file with more of them
// (new lines separate too), which is read again whenever it changes, so that a running plugin can be told; replace it
// with a rename, lest a half-written one be read. White space around items does not matter.
//
// How the plugin looks (only in FAKE_PLUGIN, read once):
//   version=0.81              the version it says it has
//   functions=118             its table of functions ends after so many (118 is what XLA had at 0.81)
//   struct_size=N             what its table says of its own size, whatever is there
//   missing=PJRT_Client_Load  this function is null
//   noext=Layouts             it lacks this extension (Layouts, MemoryDescriptions, Shardings; * for all)
//   devices=N                 devices of a client without the option `cpu_device_count` or `device_count` (default 2)
//   platform=NAME             platform name (default fake)
//   log=PATH                  the name of every function that is called is appended to this file, a line each
//
// What its functions do, as FUNCTION followed by actions that `:` separates, done in this order:
//   slow=MS       waits so many milliseconds first
//   hang          waits until the rule is gone from the control file
//   abort, segv, kill, exit=N    ends the process
//   error=CODE    fails with this code
//   msg=WORDS     and these words (the last action of its item, for it takes all that follows)
//   FIELD=N       succeeds, then sets this output to N; `null` is 0, `negative` is a list of -1s, `huge` is 2^62
//   @N            all that only at the Nth call since the rule was read; @N+ from the Nth call on
// FUNCTION may be GetPjrtApi, whose `error` is a null pointer; * means every function of the table but those of errors.
// Where two rules fail or end the same call, the first one wins.
//
//   FAKE_PLUGIN='version=0.81;functions=118;PJRT_Client_Compile:error=13:msg=out of luck;PJRT_Buffer_ToHostBuffer:abort@3'
#ifndef MAINSTAY_FAKE_FAULTS_H_
#define MAINSTAY_FAKE_FAULTS_H_

#include <stdbool.h>
#include <stddef.h>

// How the plugin looks.
typedef struct {
  int major;
  int minor;
  size_t functions;    // in its table
  size_t struct_size;  // of its table; 0: what `functions` makes it
  size_t devices;
  char platform[32];
} FakeLooks;

// Reads FAKE_PLUGIN, once per process.
const FakeLooks* fake_looks(void);

// Whether an item such as `missing=PJRT_Client_Load` was given.
bool fake_has_item(const char* key, const char* value);

// What a rule says of a call. Delays and ends of the process have happened when this returns.
typedef struct {
  int code;             // not 0: the call fails with it
  char message[256];    // and these words
  bool changes_output;  // fake_change_output has something to do afterwards
} FakeFault;

// To be asked at the start of every call.
FakeFault fake_fault(const char* function);

// To be told of every call that succeeded and for which `changes_output` was true.
void fake_change_output(const char* function, void* args);

#endif  // MAINSTAY_FAKE_FAULTS_H_
