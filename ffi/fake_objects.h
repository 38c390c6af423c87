// What is behind the fake plugin's handles, and what its files share.
//
// One lock guards everything that changes after it was made: events, counts of references, deletion of buffers. Functions
// whose names end in `_locked` want it held. Callbacks are called without it.
#ifndef MAINSTAY_FAKE_OBJECTS_H_
#define MAINSTAY_FAKE_OBJECTS_H_

#include <pthread.h>

#include "fake_program.h"
#include "pjrt_c_api.h"
#include "pjrt_extensions.h"

extern pthread_mutex_t fake_lock;

// ---- Errors and events (fake_events.c) ------------------------------------------------------------------------------

// A new error; `function` is the one that was told to fail, null for an honest error.
PJRT_Error* fake_error(PJRT_Error_Code code, const char* function, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

typedef struct FakeCallback {
  PJRT_Event_OnReadyCallback call;
  void* user_arg;
  struct FakeCallback* next;
} FakeCallback;

// Counted: by its handles and by whoever is to decide it.
struct PJRT_Event {
  int references;
  bool decided;
  PJRT_Error_Code code;
  char message[256];
  FakeCallback* callbacks;
};

PJRT_Event* fake_event(void);
PJRT_Event* fake_ready_event(void);
PJRT_Event* fake_event_share(PJRT_Event* event);
void fake_event_release(PJRT_Event* event);
// Decides the event, once; code OK is success.
void fake_event_set(PJRT_Event* event, PJRT_Error_Code code, const char* message);
bool fake_event_is_decided(PJRT_Event* event);
// Waits for the event; its code, and its words if it failed.
PJRT_Error_Code fake_event_wait(PJRT_Event* event, char* message, size_t room);

// Runs a job: here and now, or on a thread of its own.
void fake_run(void (*job)(void* arg), void* arg, bool at_once);

// ---- Clients and what they own (fake_client.c) ----------------------------------------------------------------------

enum { FAKE_KINDS = 3 };
extern const char* const FAKE_KIND_NAMES[FAKE_KINDS];

struct PJRT_DeviceDescription {
  int id;
  PJRT_NamedValue attributes[1];
  char text[48];
};

struct PJRT_TopologyDescription {
  size_t num_devices;
  PJRT_DeviceDescription devices[FAKE_MOST_DEVICES];
  PJRT_DeviceDescription* list[FAKE_MOST_DEVICES];
};

typedef struct FakeUserData {
  const void* key;
  void* data;
  void (*deleter)(void* data);
  struct FakeUserData* next;
} FakeUserData;

typedef struct {
  PJRT_Memory base;  // first: frameworks look for the table there
  int id;
  int kind;
  PJRT_Device* device;
  FakeUserData* user_data;
  char text[48];
} FakeMemory;

struct PJRT_Device {
  PJRT_Client* client;
  PJRT_DeviceDescription* description;
  FakeMemory memories[FAKE_KINDS];
  PJRT_Memory* memory_list[FAKE_KINDS];
};

struct PJRT_Client {
  PJRT_TopologyDescription* topology;
  size_t num_devices;
  PJRT_Device devices[FAKE_MOST_DEVICES];
  PJRT_Device* device_list[FAKE_MOST_DEVICES];
  PJRT_Memory* memory_list[FAKE_MOST_DEVICES * FAKE_KINDS];
};

static inline FakeMemory* fake_memory(PJRT_Memory* memory) { return (FakeMemory*)memory; }

// ---- Buffers (fake_buffer.c) ----------------------------------------------------------------------------------------

// Bytes on a device. Counted: by buffers and by what is under way.
typedef struct {
  int references;
  char* data;
  size_t size;
  PJRT_Event* ready;
  void (*on_delete)(void* data, void* arg);  // for memory of someone else
  void* on_delete_arg;
} FakeStorage;

struct PJRT_Buffer {
  FakeStorage* storage;  // null once deleted
  FakeShape shape;
  int64_t minor_to_major[FAKE_MOST_RANK];
  PJRT_Memory* memory;
};

// New bytes, whose event the caller decides.
FakeStorage* fake_storage(size_t size);
FakeStorage* fake_storage_share(FakeStorage* storage);
void fake_storage_release(FakeStorage* storage);
// A new buffer, which takes the storage over.
PJRT_Buffer* fake_buffer(FakeStorage* storage, const FakeShape* shape, PJRT_Memory* memory);
// The buffer's bytes, shared, or null if it was deleted.
FakeStorage* fake_buffer_storage(PJRT_Buffer* buffer);

// ---- Executables (fake_executable.c) --------------------------------------------------------------------------------

struct PJRT_Layouts_MemoryLayout {
  char text[64];
};

// Writes the layout of such arrays as XLA writes it.
void fake_layout_text(size_t rank, struct PJRT_Layouts_MemoryLayout* layout);

// Counted: by its handles and its loaded executables.
struct PJRT_Executable {
  int references;
  FakeProgram program;
  char* serialized;  // options and text
  size_t serialized_size;
  const char* options;  // in `serialized`
  size_t options_size;
  const char* text;  // in `serialized`
  size_t text_size;
  char fingerprint[17];
  // What the functions for metadata lend out.
  PJRT_Buffer_Type types[FAKE_MOST_VALUES];
  int64_t dims[FAKE_MOST_VALUES * FAKE_MOST_RANK];
  size_t ranks[FAKE_MOST_VALUES];
  const char* kinds[FAKE_MOST_VALUES];
  size_t kind_sizes[FAKE_MOST_VALUES];
  PJRT_NamedValue cost[1];
  struct PJRT_Layouts_MemoryLayout layouts[2][FAKE_MOST_VALUES];  // of parameters, of outputs
  PJRT_Layouts_MemoryLayout* layout_lists[2][FAKE_MOST_VALUES];
};

#endif  // MAINSTAY_FAKE_OBJECTS_H_
