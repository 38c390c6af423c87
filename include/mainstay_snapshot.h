// Mainstay's snapshots as a PJRT extension: consistent copies of device buffers in host memory that outlives the
// worker processes, and new buffers made from them. The rules of pjrt_c_api.h hold; every function may be called
// from any thread and none throws.
//
// The extension hangs in the chain of PJRT_Api. Its type is a number far outside XLA's own, and its first field
// after the base is a name, so that it is found for certain:
//
//   for (e = api->extension_start; e != NULL; e = e->next)
//     if (e->type == MAINSTAY_EXTENSION_TYPE_SNAPSHOT && !strcmp(((Mainstay_Snapshot_Extension*)e)->name,
//                                                                MAINSTAY_SNAPSHOT_EXTENSION_NAME)) ...
//
// The library also exports `const Mainstay_Snapshot_Extension* MainstaySnapshotExtension(void)`.
#ifndef MAINSTAY_SNAPSHOT_H_
#define MAINSTAY_SNAPSHOT_H_

#include "pjrt_c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/// "MSS" and a number.
#define MAINSTAY_EXTENSION_TYPE_SNAPSHOT 0x4d535301
#define MAINSTAY_SNAPSHOT_EXTENSION_NAME "mainstay.snapshot"
/// Grows with every addition at the end of the table or of a struct, and with every change of what a function does.
#define MAINSTAY_SNAPSHOT_EXTENSION_VERSION 3

/// Keeps the newest whole snapshots. Belongs to the caller.
typedef struct Mainstay_SnapshotStore Mainstay_SnapshotStore;
/// A snapshot. Each handle belongs to the caller; the values belong to the store.
typedef struct Mainstay_Snapshot Mainstay_Snapshot;

/// How far a snapshot is.
typedef enum {
  Mainstay_Snapshot_Phase_Copying = 0,
  /// All values are there; it can be restored from.
  Mainstay_Snapshot_Phase_Whole = 1,
  /// Something was lost before it was whole: it never will be.
  Mainstay_Snapshot_Phase_Failed = 2,
  /// It was dropped, or newer ones took its place.
  Mainstay_Snapshot_Phase_Dropped = 3,
} Mainstay_Snapshot_Phase;

// ---- Stores -------------------------------------------------------------------------------------

typedef struct Mainstay_SnapshotStore_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  /// Whole snapshots to keep, at least 1. One that is being taken needs memory beside them.
  size_t size;
  /// Whether to compute XXH3 checksums of all values.
  bool checksums;
  Mainstay_SnapshotStore* store;  // out
} Mainstay_SnapshotStore_Create_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_SnapshotStore_Create_Args, store);

/// Makes an empty store.
typedef PJRT_Error* Mainstay_SnapshotStore_Create(Mainstay_SnapshotStore_Create_Args* args);

typedef struct Mainstay_SnapshotStore_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_SnapshotStore* store;
} Mainstay_SnapshotStore_Destroy_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_SnapshotStore_Destroy_Args, store);

/// Drops the store's snapshots. Handles of them stay safe to use and to destroy.
typedef PJRT_Error* Mainstay_SnapshotStore_Destroy(Mainstay_SnapshotStore_Destroy_Args* args);

typedef struct Mainstay_SnapshotStore_List_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_SnapshotStore* store;
  /// Room for handles; may be null where `capacity` is 0.
  Mainstay_Snapshot** snapshots;
  size_t capacity;
  size_t num_snapshots;  // out: how many were written, at most `capacity`
} Mainstay_SnapshotStore_List_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_SnapshotStore_List_Args, num_snapshots);

/// The whole snapshots, newest first. The caller destroys each handle.
typedef PJRT_Error* Mainstay_SnapshotStore_List(Mainstay_SnapshotStore_List_Args* args);

// ---- Taking -------------------------------------------------------------------------------------

typedef struct Mainstay_Snapshot_Take_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_SnapshotStore* store;
  /// The caller's number, name and bytes for it. They are copied.
  int64_t step;
  const char* label;
  size_t label_size;
  const char* metadata;
  size_t metadata_size;
  /// One buffer for each distinct part of each array, array by array. Replicas are left out.
  PJRT_Buffer* const* buffers;
  size_t num_buffers;
  /// What the buffers are parts of, array by array: the number of dimensions, the dimensions, the number of parts,
  /// then for each part where it begins in each dimension. An array's parts must cover it exactly.
  const int64_t* layout;
  size_t layout_size;
  /// Instead of a list of buffers: those noted since the last Mainstay_Capture_Begin on this thread, which ends that. They
  /// must be `num_buffers`.
  bool captured;
  Mainstay_Snapshot* snapshot;  // out
} Mainstay_Snapshot_Take_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Take_Args, snapshot);

/// Begins a snapshot of the values that the buffers have at this call, and returns at once. The buffers may be donated or
/// deleted right after. What is lost later makes the snapshot fail, not this call. RESOURCE_EXHAUSTED where host
/// memory has no room: older snapshots stay. Where the machine has no memory for it when it is copied, the snapshot fails.
typedef PJRT_Error* Mainstay_Snapshot_Take(Mainstay_Snapshot_Take_Args* args);

typedef struct Mainstay_Snapshot_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
} Mainstay_Snapshot_Destroy_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Destroy_Args, snapshot);

/// Gives a handle back; the snapshot stays in its store.
typedef PJRT_Error* Mainstay_Snapshot_Destroy(Mainstay_Snapshot_Destroy_Args* args);

typedef struct Mainstay_Snapshot_Info_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  uint64_t id;                  // out: rises with every snapshot of the process
  int64_t step;                 // out
  int64_t taken_at;             // out: nanoseconds since the Unix epoch
  uint64_t done;                // out: bytes copied, and checked where the store wants that
  uint64_t total;               // out: bytes
  size_t num_arrays;            // out
  const char* label;            // out: as long as the handle lives
  size_t label_size;            // out
  const char* metadata;         // out: as long as the handle lives
  size_t metadata_size;         // out
  Mainstay_Snapshot_Phase phase;  // out
} Mainstay_Snapshot_Info_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Info_Args, phase);

/// What a snapshot is and how far. Never waits.
typedef PJRT_Error* Mainstay_Snapshot_Info(Mainstay_Snapshot_Info_Args* args);

typedef struct Mainstay_Snapshot_Array_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  /// 0 to `num_arrays` - 1.
  size_t array;
  const int64_t* dims;    // out: as long as the handle lives
  size_t num_dims;        // out
  size_t num_parts;       // out: stored parts
  PJRT_Buffer_Type type;  // out
} Mainstay_Snapshot_Array_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Array_Args, type);

/// What an array of a snapshot is.
typedef PJRT_Error* Mainstay_Snapshot_Array(Mainstay_Snapshot_Array_Args* args);

typedef struct Mainstay_Snapshot_Wait_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  /// At most so many nanoseconds.
  uint64_t timeout;
  Mainstay_Snapshot_Phase phase;  // out
} Mainstay_Snapshot_Wait_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Wait_Args, phase);

/// Waits until the snapshot is whole; returns the error that it failed with. Where time ran out, `phase` is Copying.
typedef PJRT_Error* Mainstay_Snapshot_Wait(Mainstay_Snapshot_Wait_Args* args);

typedef struct Mainstay_Snapshot_Verify_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
} Mainstay_Snapshot_Verify_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Verify_Args, snapshot);

/// Computes the checksums again, on several threads; an error where one differs or there are none.
typedef PJRT_Error* Mainstay_Snapshot_Verify(Mainstay_Snapshot_Verify_Args* args);

typedef struct Mainstay_Snapshot_Drop_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
} Mainstay_Snapshot_Drop_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Drop_Args, snapshot);

/// Takes the snapshot out of its store, whole or not, and frees its memory. Buffers made from it stay.
typedef PJRT_Error* Mainstay_Snapshot_Drop(Mainstay_Snapshot_Drop_Args* args);

// ---- Restoring ----------------------------------------------------------------------------------

typedef struct Mainstay_Snapshot_Restore_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  size_t array;
  PJRT_Client* client;
  /// Where to: the memory, else the device's default memory.
  PJRT_Device* device;
  PJRT_Memory* memory;
  /// The part of the array that is wanted: where it begins and how long it is in each of the array's dimensions.
  const int64_t* start;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer* buffer;  // out
} Mainstay_Snapshot_Restore_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Restore_Args, buffer);

/// Makes a buffer of a part of an array, on any device; returns at once, and the buffer gets ready later. Reads only what
/// the part needs, from however many stored parts.
typedef PJRT_Error* Mainstay_Snapshot_Restore(Mainstay_Snapshot_Restore_Args* args);

// ---- Files --------------------------------------------------------------------------------------

/// Told the bytes that are done and all there are, on the thread of the call; false to give up.
typedef bool Mainstay_Snapshot_Watch(void* user, uint64_t done, uint64_t total);

typedef struct Mainstay_Snapshot_Export_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  const char* path;
  size_t path_size;
  /// The names of the arrays, each ended by a zero byte.
  const char* names;
  size_t names_size;
  /// Text of the caller's, to be found when the file is read.
  const char* metadata;
  size_t metadata_size;
  /// May be null.
  Mainstay_Snapshot_Watch* watch;
  void* user;
} Mainstay_Snapshot_Export_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Export_Args, user);

/// Writes a whole snapshot to a file in the safetensors format. The file is whole or absent.
typedef PJRT_Error* Mainstay_Snapshot_Export(Mainstay_Snapshot_Export_Args* args);

typedef struct Mainstay_Snapshot_Import_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_SnapshotStore* store;
  /// Whose host memory to use; null: that of the process's first client.
  PJRT_Client* client;
  const char* path;
  size_t path_size;
  /// May be null.
  Mainstay_Snapshot_Watch* watch;
  void* user;
  Mainstay_Snapshot* snapshot;  // out
  /// The names of the arrays, each ended by a zero byte; as long as the handle lives.
  const char* names;  // out
  size_t names_size;  // out
} Mainstay_Snapshot_Import_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Import_Args, names_size);

/// Reads a safetensors file into a new snapshot of a store.
typedef PJRT_Error* Mainstay_Snapshot_Import(Mainstay_Snapshot_Import_Args* args);

// ---- Through a framework that hides its handles -------------------------------------------------
// A framework's Python objects do not show their PJRT_Buffer. Between a Begin and an End, on one thread, calls that the
// framework makes to this library mean something else; calls on other threads don't.

typedef struct Mainstay_Capture_Begin_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
} Mainstay_Capture_Begin_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Capture_Begin_Args, extension_start);

/// The end of the name of programs that are not run while buffers are noted.
#define MAINSTAY_CAPTURE_PROGRAM "mainstay_capture"

/// From now on PJRT_Buffer_UnsafePointer notes the buffer it is asked about and answers with the handle's own address,
/// without waiting or copying. PJRT_LoadedExecutable_Execute of a program without outputs whose name ends with
/// MAINSTAY_CAPTURE_PROGRAM notes its arguments, however many, and launches nothing: argument by argument, each on all
/// devices.
typedef PJRT_Error* Mainstay_Capture_Begin(Mainstay_Capture_Begin_Args* args);

typedef struct Mainstay_Capture_End_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer** buffers;  // room for `capacity` handles, which are written in the order of the calls
  size_t capacity;
  size_t num_buffers;  // out: how many were noted, also where there is no room for all
} Mainstay_Capture_End_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Capture_End_Args, num_buffers);

/// Ends that, and gives what was noted since the last Begin on this thread that has not ended: one may begin within another,
/// in a signal's handler.
typedef PJRT_Error* Mainstay_Capture_End(Mainstay_Capture_End_Args* args);

typedef struct Mainstay_Supply_Begin_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  Mainstay_Snapshot* snapshot;
  /// For each buffer to come: the array, the id of the device it must be for, the number of dimensions, and where the
  /// part begins in each. Its size is that of the buffer that the framework asks for.
  const int64_t* orders;
  size_t orders_size;
} Mainstay_Supply_Begin_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Supply_Begin_Args, orders_size);

/// From now on each PJRT_Client_BufferFromHostBuffer takes the next order and makes the buffer as Mainstay_Snapshot_Restore
/// does, without a look at the caller's data; one that fits the order in no way is an error.
typedef PJRT_Error* Mainstay_Supply_Begin(Mainstay_Supply_Begin_Args* args);

typedef struct Mainstay_Supply_End_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  size_t num_left;  // out: orders that nobody took
} Mainstay_Supply_End_Args;
PJRT_STRUCT_ENDS_AT(Mainstay_Supply_End_Args, num_left);

/// Ends that.
typedef PJRT_Error* Mainstay_Supply_End(Mainstay_Supply_End_Args* args);

// ---- The extension ------------------------------------------------------------------------------

/// Type MAINSTAY_EXTENSION_TYPE_SNAPSHOT.
typedef struct Mainstay_Snapshot_Extension {
  PJRT_Extension_Base base;
  /// MAINSTAY_SNAPSHOT_EXTENSION_NAME.
  const char* name;
  /// MAINSTAY_SNAPSHOT_EXTENSION_VERSION of the library.
  size_t version;
  Mainstay_SnapshotStore_Create* Mainstay_SnapshotStore_Create;
  Mainstay_SnapshotStore_Destroy* Mainstay_SnapshotStore_Destroy;
  Mainstay_SnapshotStore_List* Mainstay_SnapshotStore_List;
  Mainstay_Snapshot_Take* Mainstay_Snapshot_Take;
  Mainstay_Snapshot_Destroy* Mainstay_Snapshot_Destroy;
  Mainstay_Snapshot_Info* Mainstay_Snapshot_Info;
  Mainstay_Snapshot_Array* Mainstay_Snapshot_Array;
  Mainstay_Snapshot_Wait* Mainstay_Snapshot_Wait;
  Mainstay_Snapshot_Verify* Mainstay_Snapshot_Verify;
  Mainstay_Snapshot_Drop* Mainstay_Snapshot_Drop;
  Mainstay_Snapshot_Restore* Mainstay_Snapshot_Restore;
  Mainstay_Capture_Begin* Mainstay_Capture_Begin;
  Mainstay_Capture_End* Mainstay_Capture_End;
  Mainstay_Supply_Begin* Mainstay_Supply_Begin;
  Mainstay_Supply_End* Mainstay_Supply_End;
  Mainstay_Snapshot_Export* Mainstay_Snapshot_Export;
  Mainstay_Snapshot_Import* Mainstay_Snapshot_Import;
} Mainstay_Snapshot_Extension;
PJRT_STRUCT_ENDS_AT(Mainstay_Snapshot_Extension, Mainstay_Snapshot_Import);

#ifdef __cplusplus
}
#endif

#endif  // MAINSTAY_SNAPSHOT_H_
