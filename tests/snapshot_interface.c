// The snapshot interface as a C program uses it: no Python, no framework. With "layout" it says what its compiler makes of
// include/mainstay_snapshot.h; with the path of libmainstay.so it takes a snapshot, looks at it, and restores.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mainstay_snapshot.h"

// ---- Layout -------------------------------------------------------------------------------------

#define STRUCT(name) printf("%s %zu\n", #name, sizeof(name))
#define FIELD(name, field) printf("%s.%s %zu\n", #name, #field, offsetof(name, field))
#define SIZED(name) \
  STRUCT(name);     \
  printf("%s_STRUCT_SIZE %zu\n", #name, (size_t)name##_STRUCT_SIZE)

static int layout(void) {
#include "snapshot_layout.h"
  return 0;
}

// ---- Use ----------------------------------------------------------------------------------------

static const PJRT_Api* api;
static const Mainstay_Snapshot_Extension* snapshots;

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

// The code of an error, which it destroys; 0 where there is none. Its text goes to standard error.
static int code_of(PJRT_Error* error) {
  if (error == NULL) return 0;
  PJRT_Error_Message_Args message = {.struct_size = sizeof message, .error = error};
  api->PJRT_Error_Message(&message);
  fprintf(stderr, "%.*s\n", (int)message.message_size, message.message);
  PJRT_Error_GetCode_Args code = {.struct_size = sizeof code, .error = error};
  api->PJRT_Error_GetCode(&code);
  PJRT_Error_Destroy_Args destroy = {.struct_size = sizeof destroy, .error = error};
  api->PJRT_Error_Destroy(&destroy);
  return (int)code.code;
}

// Calls a function with a struct of its own type, whose first fields are filled in.
#define CALL(table, function, variable, ...)                                                     \
  function##_Args variable = {.struct_size = sizeof variable, __VA_ARGS__};                      \
  if (code_of((table)->function(&variable)) != 0) fail("unexpected: " #function)

// The extension by type and name, as the header says.
static const Mainstay_Snapshot_Extension* find(void) {
  for (PJRT_Extension_Base* base = api->extension_start; base != NULL; base = base->next) {
    const Mainstay_Snapshot_Extension* found = (const Mainstay_Snapshot_Extension*)base;
    if ((int)base->type == MAINSTAY_EXTENSION_TYPE_SNAPSHOT && strcmp(found->name, MAINSTAY_SNAPSHOT_EXTENSION_NAME) == 0)
      return found;
  }
  return NULL;
}

static void await_event(PJRT_Event* event) {
  CALL(api, PJRT_Event_Await, wait, .event = event);
  CALL(api, PJRT_Event_Destroy, destroy, .event = event);
}

static PJRT_Buffer* upload(PJRT_Client* client, PJRT_Device* device, const float* values, const int64_t* dims) {
  CALL(api, PJRT_Client_BufferFromHostBuffer, made, .client = client, .data = values, .type = PJRT_Buffer_Type_F32,
       .dims = dims, .num_dims = 2, .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
       .device = device);
  await_event(made.done_with_host_buffer);
  return made.buffer;
}

static void expect(PJRT_Buffer* buffer, const float* values, size_t count) {
  float* read = malloc(count * sizeof *read);
  CALL(api, PJRT_Buffer_ToHostBuffer, copy, .src = buffer, .dst = read, .dst_size = count * sizeof *read);
  await_event(copy.event);
  if (memcmp(read, values, count * sizeof *read) != 0) fail("what was restored has other values");
  free(read);
  CALL(api, PJRT_Buffer_Destroy, destroy, .buffer = buffer);
}

enum { ROWS = 600, COLUMNS = 500 };
static float whole[ROWS * COLUMNS];
// Two halves, one above the other, on the two devices.
static const int64_t half[2] = {ROWS / 2, COLUMNS}, dims[2] = {ROWS, COLUMNS}, origin[2];

// Has the library note buffers.
static void note(PJRT_Buffer* const* buffers, int count) {
  CALL(snapshots, Mainstay_Capture_Begin, begin);
  for (int i = 0; i < count; i++) {
    CALL(api, PJRT_Buffer_UnsafePointer, pointer, .buffer = buffers[i]);
    if (pointer.buffer_pointer != (uintptr_t)buffers[i]) fail("a noted buffer's address is not its handle's");
  }
}

// A snapshot of noted buffers; of listed ones where the list is wrong.
static Mainstay_Snapshot* take(PJRT_Client* client, PJRT_Device* const* devices, Mainstay_SnapshotStore* store) {
  PJRT_Buffer* parts[2];
  for (int i = 0; i < 2; i++) parts[i] = upload(client, devices[i], whole + i * ROWS * COLUMNS / 2, half);
  const int64_t array[] = {2, ROWS, COLUMNS, 2, 0, 0, ROWS / 2, 0};
  Mainstay_Snapshot_Take_Args wrong = {.struct_size = sizeof wrong, .store = store, .buffers = parts, .num_buffers = 1,
                                       .layout = array, .layout_size = 8};
  if (code_of(snapshots->Mainstay_Snapshot_Take(&wrong)) != PJRT_Error_Code_INVALID_ARGUMENT)
    fail("fewer buffers than the layout has parts were not refused");
  Mainstay_Snapshot_Take_Args noted = {.struct_size = sizeof noted, .store = store, .captured = true, .num_buffers = 2,
                                       .layout = array, .layout_size = 8};
  if (code_of(snapshots->Mainstay_Snapshot_Take(&noted)) != PJRT_Error_Code_FAILED_PRECONDITION)
    fail("a snapshot of noted buffers was taken where none were");
  note(parts, 1);
  if (code_of(snapshots->Mainstay_Snapshot_Take(&noted)) != PJRT_Error_Code_INVALID_ARGUMENT)
    fail("fewer noted buffers than were announced were not refused");
  note(parts, 2);
  CALL(snapshots, Mainstay_Snapshot_Take, taken, .store = store, .step = 7, .label = "from C", .label_size = 6,
       .metadata = "\0\1", .metadata_size = 2, .captured = true, .num_buffers = 2, .layout = array, .layout_size = 8);
  // Deleted right after: the values are those of the call.
  for (int i = 0; i < 2; i++) {
    CALL(api, PJRT_Buffer_Delete, delete, .buffer = parts[i]);
    CALL(api, PJRT_Buffer_Destroy, destroy, .buffer = parts[i]);
  }
  CALL(snapshots, Mainstay_Snapshot_Wait, wait, .snapshot = taken.snapshot, .timeout = 60000000000);
  if (wait.phase != Mainstay_Snapshot_Phase_Whole) fail("the snapshot is not whole");
  return taken.snapshot;
}

static void look(Mainstay_SnapshotStore* store, Mainstay_Snapshot* snapshot) {
  CALL(snapshots, Mainstay_Snapshot_Info, info, .snapshot = snapshot);
  if (info.step != 7 || info.label_size != 6 || memcmp(info.label, "from C", 6) != 0 || info.metadata_size != 2 ||
      memcmp(info.metadata, "\0\1", 2) != 0 || info.num_arrays != 1 || info.done != info.total ||
      info.total != sizeof whole || info.phase != Mainstay_Snapshot_Phase_Whole)
    fail("the snapshot is not what was taken");
  CALL(snapshots, Mainstay_Snapshot_Array, array, .snapshot = snapshot);
  if (array.num_dims != 2 || memcmp(array.dims, dims, sizeof dims) != 0 || array.num_parts != 2 ||
      array.type != PJRT_Buffer_Type_F32)
    fail("the array is not what was taken");
  CALL(snapshots, Mainstay_Snapshot_Verify, verify, .snapshot = snapshot);
  Mainstay_Snapshot* listed[4];
  CALL(snapshots, Mainstay_SnapshotStore_List, list, .store = store, .snapshots = listed, .capacity = 4);
  if (list.num_snapshots != 1) fail("the store does not have one snapshot");
  CALL(snapshots, Mainstay_Snapshot_Destroy, destroy, .snapshot = listed[0]);
}

// The whole array where only a half was, and a part that reaches into both halves.
static void restore(PJRT_Client* client, PJRT_Device* device, Mainstay_Snapshot* snapshot) {
  CALL(snapshots, Mainstay_Snapshot_Restore, all, .snapshot = snapshot, .client = client, .device = device,
       .start = origin, .dims = dims, .num_dims = 2);
  expect(all.buffer, whole, ROWS * COLUMNS);
  const int64_t start[2] = {ROWS / 2 - 1, 0}, size[2] = {2, COLUMNS};
  CALL(snapshots, Mainstay_Snapshot_Restore, part, .snapshot = snapshot, .client = client, .device = device,
       .start = start, .dims = size, .num_dims = 2);
  expect(part.buffer, whole + (ROWS / 2 - 1) * COLUMNS, 2 * COLUMNS);
  const int64_t beyond[2] = {ROWS, 0};
  Mainstay_Snapshot_Restore_Args wrong = {.struct_size = sizeof wrong, .snapshot = snapshot, .client = client,
                                          .device = device, .start = beyond, .dims = size, .num_dims = 2};
  if (code_of(snapshots->Mainstay_Snapshot_Restore(&wrong)) != PJRT_Error_Code_INVALID_ARGUMENT)
    fail("a part beyond the array's end was not refused");
}

static void use(const char* library) {
  void* handle = dlopen(library, RTLD_NOW);
  if (handle == NULL) fail(dlerror());
  const PJRT_Api* (*get)(void) = (const PJRT_Api* (*)(void))dlsym(handle, "GetPjrtApi");
  const Mainstay_Snapshot_Extension* (*direct)(void) =
      (const Mainstay_Snapshot_Extension* (*)(void))dlsym(handle, "MainstaySnapshotExtension");
  if (get == NULL || direct == NULL) fail("symbols are missing");
  api = get();
  snapshots = find();
  if (snapshots == NULL || snapshots != direct()) fail("the extension is not in the chain");
  if (snapshots->base.struct_size != sizeof *snapshots || snapshots->version < MAINSTAY_SNAPSHOT_EXTENSION_VERSION)
    fail("the extension has another size or version than the header");

  CALL(api, PJRT_Plugin_Initialize, initialize);
  CALL(api, PJRT_Client_Create, created);
  PJRT_Client* client = created.client;
  CALL(api, PJRT_Client_AddressableDevices, devices, .client = client);
  if (devices.num_addressable_devices != 2) fail("two devices are needed");
  CALL(snapshots, Mainstay_SnapshotStore_Create, store, .size = 2, .checksums = true);
  for (int i = 0; i < ROWS * COLUMNS; i++) whole[i] = (float)i;

  Mainstay_Snapshot* snapshot = take(client, devices.addressable_devices, store.store);
  look(store.store, snapshot);
  for (int i = 0; i < 2; i++) restore(client, devices.addressable_devices[i], snapshot);

  CALL(snapshots, Mainstay_Snapshot_Drop, drop, .snapshot = snapshot);
  Mainstay_Snapshot_Restore_Args gone = {.struct_size = sizeof gone, .snapshot = snapshot, .client = client,
                                         .device = devices.addressable_devices[0], .start = origin, .dims = dims,
                                         .num_dims = 2};
  if (code_of(snapshots->Mainstay_Snapshot_Restore(&gone)) != PJRT_Error_Code_FAILED_PRECONDITION)
    fail("a dropped snapshot was restored from");
  CALL(snapshots, Mainstay_Snapshot_Destroy, forget, .snapshot = snapshot);
  CALL(snapshots, Mainstay_SnapshotStore_Destroy, close, .store = store.store);
  CALL(api, PJRT_Client_Destroy, end, .client = client);
}

int main(int count, char** arguments) {
  if (count != 2) fail("give \"layout\" or the path of libmainstay.so");
  if (strcmp(arguments[1], "layout") == 0) return layout();
  use(arguments[1]);
  puts("done");
  return 0;
}
