// The PJRT C interface, version 0.114, as Mainstay declares it: through it a framework finds a plugin,
// and Mainstay the plugin that it wraps. Layouts are facts of the interface, held against an independent
// source by tests/python/test_abi.py; the words are Mainstay's own.
//
// Rules that hold everywhere:
// - `struct_size` is set by whoever makes a struct, to the `_STRUCT_SIZE` of the header it was built
//   with. The other side neither reads nor writes past it: fields beyond are absent. Structs only ever
//   grow at their end.
// - `extension_start` is null, or the first of a chain of extensions.
// - A function returns null, or an error that its caller frees. Fields marked `out` count only on
//   success.
// - Strings are a pointer and a size in bytes, without a terminating zero.
// - Events and buffers that a function gives belong to the caller.
#ifndef MAINSTAY_PJRT_C_API_H_
#define MAINSTAY_PJRT_C_API_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Defines X_STRUCT_SIZE: what a caller built with this header puts into `struct_size`. It ends with the
// last field, so it may be less than `sizeof`.
#define PJRT_STRUCT_ENDS_AT(type, last) \
  enum { type##_STRUCT_SIZE = offsetof(type, last) + sizeof(((type*)0)->last) }

// Defines X_FIRST_SIZE, for a struct that has grown since 0.57: what its `struct_size` was at first.
#define PJRT_STRUCT_BEGAN_AT(type, last) \
  enum { type##_FIRST_SIZE = offsetof(type, last) + sizeof(((type*)0)->last) }

// ---- Versions and extensions --------------------------------------------------------------------

/// Differs between plugins that can't talk to each other at all.
#define PJRT_API_MAJOR 0
/// Grows with every addition; what is absent shows in `struct_size`.
#define PJRT_API_MINOR 114

/// What an extension is; says which struct the base is the head of.
typedef enum {
  PJRT_Extension_Type_Gpu_Custom_Call = 0,
  PJRT_Extension_Type_Profiler = 1,
  PJRT_Extension_Type_Custom_Partitioner = 2,
  PJRT_Extension_Type_Stream = 3,
  PJRT_Extension_Type_Layouts = 4,
  PJRT_Extension_Type_FFI = 5,
  PJRT_Extension_Type_MemoryDescriptions = 6,
  PJRT_Extension_Type_Triton = 7,
  PJRT_Extension_Type_RawBuffer = 8,
  PJRT_Extension_Type_PhaseCompile = 9,
  PJRT_Extension_Type_Example = 10,
  PJRT_Extension_Type_Unknown = 11,
  PJRT_Extension_Type_CrossHostTransfers = 12,
  PJRT_Extension_Type_ExecutableMetadata = 13,
  PJRT_Extension_Type_Callback = 14,
  PJRT_Extension_Type_HostAllocator = 15,
  PJRT_Extension_Type_TpuTopology = 16,
  PJRT_Extension_Type_TpuExecutable = 17,
  PJRT_Extension_Type_Megascale = 18,
  PJRT_Extension_Type_Shardings = 19,
  PJRT_Extension_Type_AbiVersion = 20,
  PJRT_Extension_Type_Collectives = 21,
  PJRT_Extension_Type_MultiSlice = 22,
  PJRT_Extension_Type_HostMemoryAllocator = 23,
  PJRT_Extension_Type_XlaTransform = 24,
} PJRT_Extension_Type;

/// Head of every extension: the chain hangs at `extension_start` of PJRT_Api, of an Args struct
/// or of a topology.
typedef struct PJRT_Extension_Base {
  size_t struct_size;
  PJRT_Extension_Type type;
  struct PJRT_Extension_Base* next;
} PJRT_Extension_Base;
PJRT_STRUCT_ENDS_AT(PJRT_Extension_Base, next);

/// The version a plugin was built with.
typedef struct PJRT_Api_Version {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  int major_version;  // out
  int minor_version;  // out
} PJRT_Api_Version;
PJRT_STRUCT_ENDS_AT(PJRT_Api_Version, minor_version);

// ---- Handles ------------------------------------------------------------------------------------
// What a plugin hands out and only it looks into. Errors and memories begin with a table of
// functions, which a caller built with 0.112 or newer may call instead of PJRT_Api's.

typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_Buffer PJRT_Buffer;
typedef struct PJRT_Event PJRT_Event;
typedef struct PJRT_Executable PJRT_Executable;
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;
typedef struct PJRT_ExecuteContext PJRT_ExecuteContext;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;
typedef struct PJRT_AsyncHostToDeviceTransferManager PJRT_AsyncHostToDeviceTransferManager;
typedef struct PJRT_AsyncTrackingEvent PJRT_AsyncTrackingEvent;
typedef struct PJRT_CopyToDeviceStream PJRT_CopyToDeviceStream;
typedef struct PJRT_FulfillAliasBufferCallback PJRT_FulfillAliasBufferCallback;
typedef struct PJRT_MultiSlice_Config PJRT_MultiSlice_Config;

// Owners of memory that a function lends out; freed by the deleter that comes with them.

typedef struct PJRT_Device_Attributes PJRT_Device_Attributes;
typedef struct PJRT_DeviceAssignmentSerialized PJRT_DeviceAssignmentSerialized;
typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
typedef struct PJRT_SerializedCompileOptions PJRT_SerializedCompileOptions;
typedef struct PJRT_SerializedTopology PJRT_SerializedTopology;

// ---- Errors -------------------------------------------------------------------------------------

/// The canonical status codes.
typedef enum {
  PJRT_Error_Code_OK = 0,
  PJRT_Error_Code_CANCELLED = 1,
  PJRT_Error_Code_UNKNOWN = 2,
  PJRT_Error_Code_INVALID_ARGUMENT = 3,
  PJRT_Error_Code_DEADLINE_EXCEEDED = 4,
  PJRT_Error_Code_NOT_FOUND = 5,
  PJRT_Error_Code_ALREADY_EXISTS = 6,
  PJRT_Error_Code_PERMISSION_DENIED = 7,
  PJRT_Error_Code_RESOURCE_EXHAUSTED = 8,
  PJRT_Error_Code_FAILED_PRECONDITION = 9,
  PJRT_Error_Code_ABORTED = 10,
  PJRT_Error_Code_OUT_OF_RANGE = 11,
  PJRT_Error_Code_UNIMPLEMENTED = 12,
  PJRT_Error_Code_INTERNAL = 13,
  PJRT_Error_Code_UNAVAILABLE = 14,
  PJRT_Error_Code_DATA_LOSS = 15,
  PJRT_Error_Code_UNAUTHENTICATED = 16,
} PJRT_Error_Code;

typedef struct PJRT_Error PJRT_Error;

/// Sees one payload of an error.
typedef void (*PJRT_Error_PayloadVisitor)(const char* key, size_t key_size, const char* value,
                                          size_t value_size, void* user_arg);

/// What can be asked of an error without PJRT_Api. `instance_size` is that of the plugin's own
/// error.
typedef struct PJRT_Error_FunctionTable {
  size_t struct_size;
  size_t instance_size;
  PJRT_Extension_Base* extension_start;
  void (*destroy)(PJRT_Error* error);
  void (*message)(const PJRT_Error* error, const char** message, size_t* message_size);
  PJRT_Error_Code (*get_code)(const PJRT_Error* error);
  void (*for_each_payload)(
      const PJRT_Error* error, PJRT_Error_PayloadVisitor visitor, void* user_arg);
} PJRT_Error_FunctionTable;
PJRT_STRUCT_ENDS_AT(PJRT_Error_FunctionTable, for_each_payload);

/// An error begins with its table; what follows is the plugin's.
struct PJRT_Error {
  const PJRT_Error_FunctionTable* vtable;
};
PJRT_STRUCT_ENDS_AT(PJRT_Error, vtable);

typedef struct PJRT_Error_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Error* error;
} PJRT_Error_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Error_Destroy_Args, error);

/// Frees an error. Every error that a function returns belongs to its caller. Null is fine.
typedef void PJRT_Error_Destroy(PJRT_Error_Destroy_Args* args);

typedef struct PJRT_Error_Message_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_Error* error;
  const char* message;  // out
  size_t message_size;  // out
} PJRT_Error_Message_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Error_Message_Args, message_size);

/// The error's words, which live as long as the error.
typedef void PJRT_Error_Message(PJRT_Error_Message_Args* args);

typedef struct PJRT_Error_GetCode_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_Error* error;
  PJRT_Error_Code code;  // out
} PJRT_Error_GetCode_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Error_GetCode_Args, code);

/// The error's code.
typedef PJRT_Error* PJRT_Error_GetCode(PJRT_Error_GetCode_Args* args);

typedef struct PJRT_Error_ForEachPayload_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_Error* error;
  PJRT_Error_PayloadVisitor visitor;
  void* user_arg;
} PJRT_Error_ForEachPayload_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Error_ForEachPayload_Args, user_arg);

/// Calls the visitor once for every payload of the error; keys and values live only during that
/// call. Since 0.99.
typedef PJRT_Error* PJRT_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args* args);

/// Makes the error that a callback returns; copies the message.
typedef PJRT_Error* (*PJRT_CallbackError)(PJRT_Error_Code code, const char* message,
                                          size_t message_size);

// ---- Named values -------------------------------------------------------------------------------

/// Which member of the union counts.
typedef enum {
  PJRT_NamedValue_kString = 0,
  PJRT_NamedValue_kInt64 = 1,
  PJRT_NamedValue_kInt64List = 2,
  PJRT_NamedValue_kFloat = 3,
  PJRT_NamedValue_kBool = 4,
} PJRT_NamedValue_Type;

/// A named option or attribute. `value_size` counts characters or elements, and is 1 for
/// scalars.
typedef struct PJRT_NamedValue {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* name;
  size_t name_size;
  PJRT_NamedValue_Type type;
  union {
    const char* string_value;
    int64_t int64_value;
    const int64_t* int64_array_value;
    float float_value;
    bool bool_value;
  };
  size_t value_size;
} PJRT_NamedValue;
PJRT_STRUCT_ENDS_AT(PJRT_NamedValue, value_size);

// ---- Plugin -------------------------------------------------------------------------------------

typedef struct PJRT_Plugin_Initialize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
} PJRT_Plugin_Initialize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Plugin_Initialize_Args, extension_start);

/// Prepares the plugin; called once, before anything else.
typedef PJRT_Error* PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args* args);

typedef struct PJRT_Plugin_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_NamedValue* attributes;  // out
  size_t num_attributes;  // out
} PJRT_Plugin_Attributes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Plugin_Attributes_Args, num_attributes);
// The count was there, but not counted, before 0.71.
PJRT_STRUCT_BEGAN_AT(PJRT_Plugin_Attributes_Args, attributes);

/// What the plugin says about itself, such as the StableHLO versions it takes. Lives as long as
/// the process.
typedef PJRT_Error* PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args* args);

// ---- Events -------------------------------------------------------------------------------------

/// Called once with the event's error, which it owns (null if all went well).
typedef void (*PJRT_Event_OnReadyCallback)(PJRT_Error* error, void* user_arg);

typedef struct PJRT_Event_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
} PJRT_Event_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_Destroy_Args, event);

/// Frees an event; whatever it stands for goes on. Null is fine.
typedef PJRT_Error* PJRT_Event_Destroy(PJRT_Event_Destroy_Args* args);

typedef struct PJRT_Event_IsReady_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
  bool is_ready;  // out
} PJRT_Event_IsReady_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_IsReady_Args, is_ready);

/// Whether the event has been decided, for good or for ill. Never blocks.
typedef PJRT_Error* PJRT_Event_IsReady(PJRT_Event_IsReady_Args* args);

typedef struct PJRT_Event_Error_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
} PJRT_Event_Error_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_Error_Args, event);

/// The error of a decided event, null if it went well. Each call gives a new error to free.
typedef PJRT_Error* PJRT_Event_Error(PJRT_Event_Error_Args* args);

typedef struct PJRT_Event_Await_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
} PJRT_Event_Await_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_Await_Args, event);

/// Blocks until the event is decided, then gives its error as PJRT_Event_Error does.
typedef PJRT_Error* PJRT_Event_Await(PJRT_Event_Await_Args* args);

typedef struct PJRT_Event_OnReady_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
  PJRT_Event_OnReadyCallback callback;
  void* user_arg;
} PJRT_Event_OnReady_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_OnReady_Args, user_arg);

/// Calls back once the event is decided, at once if it is. The callback owns the error it is
/// given (null if all went well) and may run on any thread.
typedef PJRT_Error* PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args);

typedef struct PJRT_Event_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;  // out
} PJRT_Event_Create_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_Create_Args, event);

/// A new event that its owner decides with PJRT_Event_Set. Since 0.89.
typedef PJRT_Error* PJRT_Event_Create(PJRT_Event_Create_Args* args);

typedef struct PJRT_Event_Set_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Event* event;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
} PJRT_Event_Set_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Event_Set_Args, error_message_size);

/// Decides an event made by PJRT_Event_Create, once; code OK means success. Since 0.89.
typedef PJRT_Error* PJRT_Event_Set(PJRT_Event_Set_Args* args);

// ---- Element types and layouts ------------------------------------------------------------------

/// The type of an element. Types below 8 bits take a byte each in host memory.
typedef enum {
  PJRT_Buffer_Type_INVALID = 0,
  PJRT_Buffer_Type_PRED = 1,
  PJRT_Buffer_Type_S8 = 2,
  PJRT_Buffer_Type_S16 = 3,
  PJRT_Buffer_Type_S32 = 4,
  PJRT_Buffer_Type_S64 = 5,
  PJRT_Buffer_Type_U8 = 6,
  PJRT_Buffer_Type_U16 = 7,
  PJRT_Buffer_Type_U32 = 8,
  PJRT_Buffer_Type_U64 = 9,
  PJRT_Buffer_Type_F16 = 10,
  PJRT_Buffer_Type_F32 = 11,
  PJRT_Buffer_Type_F64 = 12,
  PJRT_Buffer_Type_BF16 = 13,
  PJRT_Buffer_Type_C64 = 14,
  PJRT_Buffer_Type_C128 = 15,
  PJRT_Buffer_Type_F8E5M2 = 16,
  PJRT_Buffer_Type_F8E4M3FN = 17,
  PJRT_Buffer_Type_F8E4M3B11FNUZ = 18,
  PJRT_Buffer_Type_F8E5M2FNUZ = 19,
  PJRT_Buffer_Type_F8E4M3FNUZ = 20,
  PJRT_Buffer_Type_S4 = 21,
  PJRT_Buffer_Type_U4 = 22,
  PJRT_Buffer_Type_TOKEN = 23,
  PJRT_Buffer_Type_S2 = 24,
  PJRT_Buffer_Type_U2 = 25,
  PJRT_Buffer_Type_F8E4M3 = 26,
  PJRT_Buffer_Type_F8E3M4 = 27,
  PJRT_Buffer_Type_F8E8M0FNU = 28,
  PJRT_Buffer_Type_F4E2M1FN = 29,
  PJRT_Buffer_Type_S1 = 30,
  PJRT_Buffer_Type_U1 = 31,
  PJRT_Buffer_Type_F6E2M3FN = 32,
  PJRT_Buffer_Type_F6E3M2FN = 33,
} PJRT_Buffer_Type;

/// Which member of a layout's union counts.
typedef enum {
  PJRT_Buffer_MemoryLayout_Type_Tiled = 0,
  PJRT_Buffer_MemoryLayout_Type_Strides = 1,
} PJRT_Buffer_MemoryLayout_Type;

/// Dimensions from the one that varies fastest on; the tiles (if any), their sizes one after
/// the other.
typedef struct PJRT_Buffer_MemoryLayout_Tiled {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const int64_t* minor_to_major;
  size_t minor_to_major_size;
  const int64_t* tile_dims;
  const size_t* tile_dim_sizes;
  size_t num_tiles;
} PJRT_Buffer_MemoryLayout_Tiled;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_MemoryLayout_Tiled, num_tiles);

/// The distance in bytes from one element to the next, for each dimension.
typedef struct PJRT_Buffer_MemoryLayout_Strides {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const int64_t* byte_strides;
  size_t num_byte_strides;
} PJRT_Buffer_MemoryLayout_Strides;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_MemoryLayout_Strides, num_byte_strides);

/// How the elements of an array lie in memory.
typedef struct PJRT_Buffer_MemoryLayout {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  union {
    PJRT_Buffer_MemoryLayout_Tiled tiled;
    PJRT_Buffer_MemoryLayout_Strides strides;
  };
  PJRT_Buffer_MemoryLayout_Type type;
} PJRT_Buffer_MemoryLayout;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_MemoryLayout, type);

/// The dimensions and type of an array.
typedef struct PJRT_ShapeSpec {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
} PJRT_ShapeSpec;
PJRT_STRUCT_ENDS_AT(PJRT_ShapeSpec, element_type);

/// How long host memory that a buffer is made from must stay as it is: during the call; until
/// `done_with_host_buffer`; or as long as the buffer, which may use it as its own.
typedef enum {
  PJRT_HostBufferSemantics_kImmutableOnlyDuringCall = 0,
  PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes = 1,
  PJRT_HostBufferSemantics_kImmutableZeroCopy = 2,
  PJRT_HostBufferSemantics_kMutableZeroCopy = 3,
} PJRT_HostBufferSemantics;

// ---- Client -------------------------------------------------------------------------------------

/// Frees the value that the callback of the same name gave.
typedef void (*PJRT_KeyValueGetCallback_ValueDeleter)(char* value);

typedef struct PJRT_KeyValueGetCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* key;
  size_t key_size;
  int timeout_in_ms;
  PJRT_CallbackError* callback_error;
  void* user_arg;
  char* value;  // out
  size_t value_size;  // out
  PJRT_KeyValueGetCallback_ValueDeleter value_deleter_callback;  // out
} PJRT_KeyValueGetCallback_Args;
PJRT_STRUCT_ENDS_AT(PJRT_KeyValueGetCallback_Args, value_deleter_callback);

/// Waits for a key of the store that processes share, for so many milliseconds.
typedef PJRT_Error* (*PJRT_KeyValueGetCallback)(PJRT_KeyValueGetCallback_Args* args);

/// Frees the value that the callback of the same name gave.
typedef void (*PJRT_KeyValueTryGetCallback_ValueDeleter)(char* value);

typedef struct PJRT_KeyValueTryGetCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* key;
  size_t key_size;
  PJRT_CallbackError* callback_error;
  void* user_arg;
  char* value;  // out
  size_t value_size;  // out
  PJRT_KeyValueTryGetCallback_ValueDeleter value_deleter_callback;  // out
} PJRT_KeyValueTryGetCallback_Args;
PJRT_STRUCT_ENDS_AT(PJRT_KeyValueTryGetCallback_Args, value_deleter_callback);

/// Looks for a key without waiting; NOT_FOUND if it is not there.
typedef PJRT_Error* (*PJRT_KeyValueTryGetCallback)(PJRT_KeyValueTryGetCallback_Args* args);

typedef struct PJRT_KeyValuePutCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* key;
  size_t key_size;
  const char* value;
  size_t value_size;
  PJRT_CallbackError* callback_error;
  void* user_arg;
} PJRT_KeyValuePutCallback_Args;
PJRT_STRUCT_ENDS_AT(PJRT_KeyValuePutCallback_Args, user_arg);

/// Puts a key into the store that processes share.
typedef PJRT_Error* (*PJRT_KeyValuePutCallback)(PJRT_KeyValuePutCallback_Args* args);

typedef struct PJRT_Client_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_NamedValue* create_options;
  size_t num_options;
  PJRT_KeyValueGetCallback kv_get_callback;
  void* kv_get_user_arg;
  PJRT_KeyValuePutCallback kv_put_callback;
  void* kv_put_user_arg;
  PJRT_Client* client;  // out
  PJRT_KeyValueTryGetCallback kv_try_get_callback;
  void* kv_try_get_user_arg;
} PJRT_Client_Create_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_Create_Args, kv_try_get_user_arg);
PJRT_STRUCT_BEGAN_AT(PJRT_Client_Create_Args, client);  // kv_try_get_callback: 0.61

/// Makes a client. The key-value callbacks (all may be null) join the clients of several
/// processes and must outlive the client.
typedef PJRT_Error* PJRT_Client_Create(PJRT_Client_Create_Args* args);

typedef struct PJRT_Client_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
} PJRT_Client_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_Destroy_Args, client);

/// Shuts a client down and frees it. Null is fine.
typedef PJRT_Error* PJRT_Client_Destroy(PJRT_Client_Destroy_Args* args);

typedef struct PJRT_Client_PlatformName_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const char* platform_name;  // out
  size_t platform_name_size;  // out
} PJRT_Client_PlatformName_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_PlatformName_Args, platform_name_size);

/// The platform's name ("cpu", "cuda", "tpu"); lives as long as the client.
typedef PJRT_Error* PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args* args);

typedef struct PJRT_Client_ProcessIndex_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  int process_index;  // out
} PJRT_Client_ProcessIndex_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_ProcessIndex_Args, process_index);

/// This process's index among those that share the platform; 0 for one process.
typedef PJRT_Error* PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args* args);

typedef struct PJRT_Client_PlatformVersion_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const char* platform_version;  // out
  size_t platform_version_size;  // out
} PJRT_Client_PlatformVersion_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_PlatformVersion_Args, platform_version_size);

/// Version of the runtime, for people; lives as long as the client.
typedef PJRT_Error* PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args* args);

typedef struct PJRT_Client_TopologyDescription_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_TopologyDescription* topology;  // out
} PJRT_Client_TopologyDescription_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_TopologyDescription_Args, topology);

/// The topology the client runs on. Belongs to the client: don't destroy it.
typedef PJRT_Error* PJRT_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args* args);

typedef struct PJRT_Client_Devices_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Device* const* devices;  // out
  size_t num_devices;  // out
} PJRT_Client_Devices_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_Devices_Args, num_devices);

/// All devices, addressable or not. Array and devices live as long as the client.
typedef PJRT_Error* PJRT_Client_Devices(PJRT_Client_Devices_Args* args);

typedef struct PJRT_Client_AddressableDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Device* const* addressable_devices;  // out
  size_t num_addressable_devices;  // out
} PJRT_Client_AddressableDevices_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_AddressableDevices_Args, num_addressable_devices);

/// The devices this process can use. Array and devices live as long as the client.
typedef PJRT_Error* PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args* args);

typedef struct PJRT_Client_LookupDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  int id;
  PJRT_Device* device;  // out
} PJRT_Client_LookupDevice_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_LookupDevice_Args, device);

/// The device with this global id.
typedef PJRT_Error* PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args* args);

typedef struct PJRT_Client_LookupAddressableDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  int local_hardware_id;
  PJRT_Device* addressable_device;  // out
} PJRT_Client_LookupAddressableDevice_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_LookupAddressableDevice_Args, addressable_device);

/// The addressable device with this local hardware id.
typedef PJRT_Error* PJRT_Client_LookupAddressableDevice(
    PJRT_Client_LookupAddressableDevice_Args* args);

typedef struct PJRT_Client_AddressableMemories_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Memory* const* addressable_memories;  // out
  size_t num_addressable_memories;  // out
} PJRT_Client_AddressableMemories_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_AddressableMemories_Args, num_addressable_memories);

/// The memories this process can use. Array and memories live as long as the client.
typedef PJRT_Error* PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args* args);

/// What has become of a process of the job.
typedef enum {
  PJRT_ProcessState_kUnspecified = 0,
  PJRT_ProcessState_kUninitialized = 1,
  PJRT_ProcessState_kDisconnected = 2,
  PJRT_ProcessState_kConnected = 3,
  PJRT_ProcessState_kError = 4,
} PJRT_ProcessState;

/// One process of the job; `incarnation_id` changes when it is restarted.
typedef struct PJRT_ProcessInfo {
  size_t struct_size;
  int task_id;
  uint64_t incarnation_id;
  PJRT_ProcessState state;
  int error_code;
  const char* error_message;
  size_t error_message_size;
} PJRT_ProcessInfo;
PJRT_STRUCT_ENDS_AT(PJRT_ProcessInfo, error_message_size);

typedef struct PJRT_Client_UpdateGlobalProcessInfo_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_ProcessInfo* process_infos;
  size_t num_process_infos;
} PJRT_Client_UpdateGlobalProcessInfo_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_UpdateGlobalProcessInfo_Args, num_process_infos);

/// Tells the client what has become of the processes of its job. Since 0.73.
typedef PJRT_Error* PJRT_Client_UpdateGlobalProcessInfo(
    PJRT_Client_UpdateGlobalProcessInfo_Args* args);

/// A program and its format: "mlir" (StableHLO, text or bytecode), "hlo" or "hlo_with_config"
/// (serialized HloModuleProto, and with its configuration).
typedef struct PJRT_Program {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  char* code;  // out
  size_t code_size;
  const char* format;
  size_t format_size;
} PJRT_Program;
PJRT_STRUCT_ENDS_AT(PJRT_Program, format_size);

typedef struct PJRT_Client_Compile_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const PJRT_Program* program;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_LoadedExecutable* executable;  // out
} PJRT_Client_Compile_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_Compile_Args, executable);

/// Compiles a program and loads it. Program and options are only read during the call.
typedef PJRT_Error* PJRT_Client_Compile(PJRT_Client_Compile_Args* args);

/// Where a program is loaded to.
typedef struct PJRT_LoadOptions {
  size_t struct_size;
  const int* computation_origin;
  size_t computation_origin_size;
  PJRT_MultiSlice_Config* multi_slice_config;
} PJRT_LoadOptions;
PJRT_STRUCT_ENDS_AT(PJRT_LoadOptions, multi_slice_config);

typedef struct PJRT_Client_Load_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Executable* executable;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_LoadedExecutable* loaded_executable;  // out
} PJRT_Client_Load_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_Load_Args, loaded_executable);

/// Loads a compiled executable, which is taken over and must not be used or freed afterwards.
/// Since 0.95.
typedef PJRT_Error* PJRT_Client_Load(PJRT_Client_Load_Args* args);

typedef struct PJRT_Client_DefaultDeviceAssignment_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  int num_replicas;
  int num_partitions;
  size_t default_assignment_size;
  int* default_assignment;  // out
} PJRT_Client_DefaultDeviceAssignment_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_DefaultDeviceAssignment_Args, default_assignment);

/// Fills the caller's array, row by row by replica, with device ids for that many replicas and
/// partitions.
typedef PJRT_Error* PJRT_Client_DefaultDeviceAssignment(
    PJRT_Client_DefaultDeviceAssignment_Args* args);

typedef struct PJRT_Client_BufferFromHostBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const void* data;
  PJRT_Buffer_Type type;
  const int64_t* dims;
  size_t num_dims;
  const int64_t* byte_strides;
  size_t num_byte_strides;
  PJRT_HostBufferSemantics host_buffer_semantics;
  PJRT_Device* device;
  PJRT_Memory* memory;
  PJRT_Buffer_MemoryLayout* device_layout;
  PJRT_Event* done_with_host_buffer;  // out
  PJRT_Buffer* buffer;  // out
} PJRT_Client_BufferFromHostBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_BufferFromHostBuffer_Args, buffer);

/// Makes a device buffer from host memory. The caller keeps `data` unchanged for as long as the
/// semantics ask for; both results are the caller's to free.
typedef PJRT_Error* PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args);

typedef struct PJRT_Client_CreateViewOfDeviceBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  void* device_buffer_ptr;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
  PJRT_Buffer_MemoryLayout* layout;
  PJRT_Device* device;
  void (*on_delete_callback)(void* device_buffer_ptr, void* user_arg);
  void* on_delete_callback_arg;
  intptr_t stream;
  PJRT_Buffer* buffer;  // out
  PJRT_Memory* memory;
} PJRT_Client_CreateViewOfDeviceBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_CreateViewOfDeviceBuffer_Args, memory);
PJRT_STRUCT_BEGAN_AT(PJRT_Client_CreateViewOfDeviceBuffer_Args, buffer);  // memory: 0.66

/// Makes a buffer over device memory that someone else owns; `on_delete_callback` says when it
/// is no longer used.
typedef PJRT_Error* PJRT_Client_CreateViewOfDeviceBuffer(
    PJRT_Client_CreateViewOfDeviceBuffer_Args* args);

typedef struct PJRT_Client_CreateUninitializedBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const int64_t* shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout* shape_layout;
  PJRT_Device* device;
  PJRT_Memory* memory;  // out
  PJRT_Buffer* buffer;  // out
} PJRT_Client_CreateUninitializedBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_CreateUninitializedBuffer_Args, buffer);

/// Makes a buffer whose contents are undefined.
typedef PJRT_Error* PJRT_Client_CreateUninitializedBuffer(
    PJRT_Client_CreateUninitializedBuffer_Args* args);

typedef struct PJRT_Client_CreateErrorBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
  const int64_t* shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout* shape_layout;
  PJRT_Memory* memory;
  PJRT_Buffer* buffer;  // out
  const PJRT_NamedValue* payload;
  size_t num_payload;
} PJRT_Client_CreateErrorBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_CreateErrorBuffer_Args, num_payload);
PJRT_STRUCT_BEGAN_AT(PJRT_Client_CreateErrorBuffer_Args, buffer);  // payload: 0.103

/// Makes a buffer that is an error: whoever waits for it gets that error. Since 0.82.
typedef PJRT_Error* PJRT_Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args* args);

typedef struct PJRT_Client_CreateAliasBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Memory* memory;
  const int64_t* shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout* shape_layout;
  PJRT_Buffer* alias_buffer;  // out
  PJRT_FulfillAliasBufferCallback* fulfill_alias_buffer_cb;  // out
} PJRT_Client_CreateAliasBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_CreateAliasBuffer_Args, fulfill_alias_buffer_cb);

/// Makes a promise of a buffer, and the handle that keeps it through
/// PJRT_Client_FulfillAliasBuffer.
typedef PJRT_Error* PJRT_Client_CreateAliasBuffer(PJRT_Client_CreateAliasBuffer_Args* args);

typedef struct PJRT_Client_FulfillAliasBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Buffer* buffer;
  PJRT_Error_Code status_code;
  const char* error_message;
  size_t error_message_size;
  PJRT_FulfillAliasBufferCallback* fulfill_alias_buffer_cb;
} PJRT_Client_FulfillAliasBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_FulfillAliasBuffer_Args, fulfill_alias_buffer_cb);

/// Gives an alias buffer its value, or its error if the code is not OK. Uses the handle up.
typedef PJRT_Error* PJRT_Client_FulfillAliasBuffer(PJRT_Client_FulfillAliasBuffer_Args* args);

typedef struct PJRT_Client_CreateBuffersForAsyncHostToDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_ShapeSpec* shape_specs;
  size_t num_shape_specs;
  PJRT_Buffer_MemoryLayout** device_layouts;
  size_t num_device_layouts;
  PJRT_Memory* memory;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;  // out
} PJRT_Client_CreateBuffersForAsyncHostToDevice_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args, transfer_manager);

/// Makes a manager for buffers that are filled piece by piece. `device_layouts` may be null.
typedef PJRT_Error* PJRT_Client_CreateBuffersForAsyncHostToDevice(
    PJRT_Client_CreateBuffersForAsyncHostToDevice_Args* args);

typedef struct PJRT_Client_DmaMap_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  void* data;
  size_t size;
} PJRT_Client_DmaMap_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_DmaMap_Args, size);

/// Registers host memory for direct access by devices. Since 0.67.
typedef PJRT_Error* PJRT_Client_DmaMap(PJRT_Client_DmaMap_Args* args);

typedef struct PJRT_Client_DmaUnmap_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  void* data;
} PJRT_Client_DmaUnmap_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Client_DmaUnmap_Args, data);

/// Takes back a registration by PJRT_Client_DmaMap. Since 0.67.
typedef PJRT_Error* PJRT_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args* args);

// ---- Device descriptions ------------------------------------------------------------------------

typedef struct PJRT_DeviceDescription_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  int id;  // out
} PJRT_DeviceDescription_Id_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_Id_Args, id);

/// The device's global id, unique over all processes.
typedef PJRT_Error* PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args* args);

typedef struct PJRT_DeviceDescription_ProcessIndex_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  int process_index;  // out
} PJRT_DeviceDescription_ProcessIndex_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_ProcessIndex_Args, process_index);

/// The process that can address the device.
typedef PJRT_Error* PJRT_DeviceDescription_ProcessIndex(
    PJRT_DeviceDescription_ProcessIndex_Args* args);

typedef struct PJRT_DeviceDescription_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  size_t num_attributes;  // out
  const PJRT_NamedValue* attributes;  // out
} PJRT_DeviceDescription_Attributes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_Attributes_Args, attributes);

/// The vendor's attributes of the device; live as long as the description.
typedef PJRT_Error* PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args* args);

typedef struct PJRT_DeviceDescription_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  const char* device_kind;  // out
  size_t device_kind_size;  // out
} PJRT_DeviceDescription_Kind_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_Kind_Args, device_kind_size);

/// What hardware it is, for people; lives as long as the description.
typedef PJRT_Error* PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args* args);

typedef struct PJRT_DeviceDescription_DebugString_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  const char* debug_string;  // out
  size_t debug_string_size;  // out
} PJRT_DeviceDescription_DebugString_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_DebugString_Args, debug_string_size);

/// A long string for logs; lives as long as the description.
typedef PJRT_Error* PJRT_DeviceDescription_DebugString(
    PJRT_DeviceDescription_DebugString_Args* args);

typedef struct PJRT_DeviceDescription_ToString_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  const char* to_string;  // out
  size_t to_string_size;  // out
} PJRT_DeviceDescription_ToString_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_ToString_Args, to_string_size);

/// A short string for people; lives as long as the description.
typedef PJRT_Error* PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args* args);

// ---- Devices ------------------------------------------------------------------------------------

typedef struct PJRT_Device_GetDescription_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  PJRT_DeviceDescription* device_description;  // out
} PJRT_Device_GetDescription_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_GetDescription_Args, device_description);

/// The device's description, owned by the device.
typedef PJRT_Error* PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args* args);

typedef struct PJRT_Device_GetAttributes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  const PJRT_NamedValue* attributes;  // out
  size_t num_attributes;  // out
  PJRT_Device_Attributes* device_attributes;  // out
  void (*attributes_deleter)(PJRT_Device_Attributes* attributes);  // out
} PJRT_Device_GetAttributes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_GetAttributes_Args, attributes_deleter);

/// Attributes that only a live device has. The caller frees them with the deleter, which must
/// not be null. Since 0.92.
typedef PJRT_Error* PJRT_Device_GetAttributes(PJRT_Device_GetAttributes_Args* args);

typedef struct PJRT_Device_IsAddressable_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  bool is_addressable;  // out
} PJRT_Device_IsAddressable_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_IsAddressable_Args, is_addressable);

/// Whether this process can use the device.
typedef PJRT_Error* PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args* args);

typedef struct PJRT_Device_LocalHardwareId_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  int local_hardware_id;  // out
} PJRT_Device_LocalHardwareId_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_LocalHardwareId_Args, local_hardware_id);

/// The index of the device on its host, -1 if unknown.
typedef PJRT_Error* PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args* args);

typedef struct PJRT_Device_AddressableMemories_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  PJRT_Memory* const* memories;  // out
  size_t num_memories;  // out
} PJRT_Device_AddressableMemories_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_AddressableMemories_Args, num_memories);

/// The memories the device can use, owned by the client.
typedef PJRT_Error* PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args* args);

typedef struct PJRT_Device_DefaultMemory_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  PJRT_Memory* memory;  // out
} PJRT_Device_DefaultMemory_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_DefaultMemory_Args, memory);

/// The memory that buffers of the device are in unless told otherwise.
typedef PJRT_Error* PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args* args);

typedef struct PJRT_Device_MemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  int64_t bytes_in_use;  // out
  int64_t peak_bytes_in_use;  // out
  bool peak_bytes_in_use_is_set;  // out
  int64_t num_allocs;  // out
  bool num_allocs_is_set;  // out
  int64_t largest_alloc_size;  // out
  bool largest_alloc_size_is_set;  // out
  int64_t bytes_limit;  // out
  bool bytes_limit_is_set;  // out
  int64_t bytes_reserved;  // out
  bool bytes_reserved_is_set;  // out
  int64_t peak_bytes_reserved;  // out
  bool peak_bytes_reserved_is_set;  // out
  int64_t bytes_reservable_limit;  // out
  bool bytes_reservable_limit_is_set;  // out
  int64_t largest_free_block_bytes;  // out
  bool largest_free_block_bytes_is_set;  // out
  int64_t pool_bytes;  // out
  bool pool_bytes_is_set;  // out
  int64_t peak_pool_bytes;  // out
  bool peak_pool_bytes_is_set;  // out
  int64_t peak_allocated_bytes;  // out
  bool peak_allocated_bytes_is_set;  // out
} PJRT_Device_MemoryStats_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_MemoryStats_Args, peak_allocated_bytes_is_set);
// peak_allocated_bytes: after 0.81.
PJRT_STRUCT_BEGAN_AT(PJRT_Device_MemoryStats_Args, peak_pool_bytes_is_set);

/// What the allocator says, in bytes. Every field but the first counts only if its `_is_set` is
/// true.
typedef PJRT_Error* PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args* args);

typedef struct PJRT_Device_ClearMemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
} PJRT_Device_ClearMemoryStats_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_ClearMemoryStats_Args, device);

/// Sets the peaks of the memory statistics back to what is in use now.
typedef PJRT_Error* PJRT_Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args* args);

typedef struct PJRT_Device_PoisonExecution_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  int launch_id;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
  bool poisoned;  // out
  const PJRT_NamedValue* payload;
  size_t num_payload;
} PJRT_Device_PoisonExecution_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_PoisonExecution_Args, num_payload);
PJRT_STRUCT_BEGAN_AT(PJRT_Device_PoisonExecution_Args, poisoned);  // payload: 0.100

/// Makes a launch that has not run yet fail with this error on the device. Since 0.85.
typedef PJRT_Error* PJRT_Device_PoisonExecution(PJRT_Device_PoisonExecution_Args* args);

typedef struct PJRT_Device_CreateAsyncTrackingEvent_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Device* device;
  const char* description;
  size_t description_size;
  PJRT_AsyncTrackingEvent* event;  // out
} PJRT_Device_CreateAsyncTrackingEvent_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Device_CreateAsyncTrackingEvent_Args, event);

/// Tells the profiler that work for the device has begun on the host; ends when the event is
/// destroyed.
typedef PJRT_Error* PJRT_Device_CreateAsyncTrackingEvent(
    PJRT_Device_CreateAsyncTrackingEvent_Args* args);

typedef struct PJRT_AsyncTrackingEvent_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncTrackingEvent* event;
} PJRT_AsyncTrackingEvent_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncTrackingEvent_Destroy_Args, event);

/// Ends and frees a tracking event.
typedef PJRT_Error* PJRT_AsyncTrackingEvent_Destroy(PJRT_AsyncTrackingEvent_Destroy_Args* args);

// ---- Memories -----------------------------------------------------------------------------------

/// What can be asked of a memory without PJRT_Api: a place for the framework's own data by key,
/// which the memory frees with the deleter when it is replaced or the client goes.
typedef struct PJRT_Memory_FunctionTable {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  size_t instance_struct_size;
  void* (*get_user_data)(PJRT_Memory* memory, const void* key);
  void (*set_user_data)(
      PJRT_Memory* memory, const void* key, void* data, void (*deleter)(void* data));
} PJRT_Memory_FunctionTable;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_FunctionTable, set_user_data);

/// A memory begins with its table; what follows is the plugin's.
struct PJRT_Memory {
  const PJRT_Memory_FunctionTable* vtable;
};
PJRT_STRUCT_ENDS_AT(PJRT_Memory, vtable);

typedef struct PJRT_Memory_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  int id;  // out
} PJRT_Memory_Id_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_Id_Args, id);

/// The memory's id, unique in its client.
typedef PJRT_Error* PJRT_Memory_Id(PJRT_Memory_Id_Args* args);

typedef struct PJRT_Memory_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  const char* kind;  // out
  size_t kind_size;  // out
} PJRT_Memory_Kind_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_Kind_Args, kind_size);

/// Its kind ("device", "pinned_host", "unpinned_host"); lives as long as the client.
typedef PJRT_Error* PJRT_Memory_Kind(PJRT_Memory_Kind_Args* args);

typedef struct PJRT_Memory_Kind_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  int kind_id;  // out
} PJRT_Memory_Kind_Id_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_Kind_Id_Args, kind_id);

/// The kind's number, unique for a platform.
typedef PJRT_Error* PJRT_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args* args);

typedef struct PJRT_Memory_DebugString_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  const char* debug_string;  // out
  size_t debug_string_size;  // out
} PJRT_Memory_DebugString_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_DebugString_Args, debug_string_size);

/// A long string for logs; lives as long as the client.
typedef PJRT_Error* PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args* args);

typedef struct PJRT_Memory_ToString_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  const char* to_string;  // out
  size_t to_string_size;  // out
} PJRT_Memory_ToString_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_ToString_Args, to_string_size);

/// A short string for people; lives as long as the client.
typedef PJRT_Error* PJRT_Memory_ToString(PJRT_Memory_ToString_Args* args);

typedef struct PJRT_Memory_AddressableByDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Memory* memory;
  PJRT_Device* const* devices;  // out
  size_t num_devices;  // out
} PJRT_Memory_AddressableByDevices_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Memory_AddressableByDevices_Args, num_devices);

/// The devices that can use the memory; array and devices live as long as the client.
typedef PJRT_Error* PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args* args);

// ---- Executables --------------------------------------------------------------------------------

typedef struct PJRT_Executable_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
} PJRT_Executable_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_Destroy_Args, executable);

/// Frees an executable. Null is fine.
typedef PJRT_Error* PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args* args);

typedef struct PJRT_Executable_Name_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  const char* executable_name;  // out
  size_t executable_name_size;  // out
} PJRT_Executable_Name_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_Name_Args, executable_name_size);

/// The program's name; lives as long as the executable.
typedef PJRT_Error* PJRT_Executable_Name(PJRT_Executable_Name_Args* args);

typedef struct PJRT_Executable_NumReplicas_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_replicas;  // out
} PJRT_Executable_NumReplicas_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_NumReplicas_Args, num_replicas);

/// How many replicas the program was compiled for.
typedef PJRT_Error* PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args* args);

typedef struct PJRT_Executable_NumPartitions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_partitions;  // out
} PJRT_Executable_NumPartitions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_NumPartitions_Args, num_partitions);

/// How many partitions the program was compiled for.
typedef PJRT_Error* PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args* args);

typedef struct PJRT_Executable_NumOutputs_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_outputs;  // out
} PJRT_Executable_NumOutputs_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_NumOutputs_Args, num_outputs);

/// How many outputs the program has on each device.
typedef PJRT_Error* PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args* args);

typedef struct PJRT_Executable_SizeOfGeneratedCodeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  int64_t size_in_bytes;  // out
} PJRT_Executable_SizeOfGeneratedCodeInBytes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args, size_in_bytes);

/// Size of the machine code in bytes, -1 if unknown.
typedef PJRT_Error* PJRT_Executable_SizeOfGeneratedCodeInBytes(
    PJRT_Executable_SizeOfGeneratedCodeInBytes_Args* args);

typedef struct PJRT_Executable_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  const char* executable_fingerprint;  // out
  size_t executable_fingerprint_size;  // out
} PJRT_Executable_Fingerprint_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_Fingerprint_Args, executable_fingerprint_size);

/// Bytes that are the same for the same program, compiled alike; live as long as the
/// executable.
typedef PJRT_Error* PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args* args);

typedef struct PJRT_Executable_GetCostAnalysis_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_properties;  // out
  const PJRT_NamedValue* properties;  // out
} PJRT_Executable_GetCostAnalysis_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_GetCostAnalysis_Args, properties);

/// The compiler's estimates by name; live as long as the executable.
typedef PJRT_Error* PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args* args);

typedef struct PJRT_Executable_GetCompiledMemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  int64_t generated_code_size_in_bytes;  // out
  int64_t argument_size_in_bytes;  // out
  int64_t output_size_in_bytes;  // out
  int64_t alias_size_in_bytes;  // out
  int64_t temp_size_in_bytes;  // out
  int64_t host_generated_code_size_in_bytes;  // out
  int64_t host_argument_size_in_bytes;  // out
  int64_t host_output_size_in_bytes;  // out
  int64_t host_alias_size_in_bytes;  // out
  int64_t host_temp_size_in_bytes;  // out
  int64_t peak_memory_in_bytes;  // out
  int64_t total_size_in_bytes;  // out
  int64_t total_allocation_bytes;  // out
  int64_t indefinite_allocations;  // out
  int64_t peak_unpadded_heap_bytes;  // out
} PJRT_Executable_GetCompiledMemoryStats_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_GetCompiledMemoryStats_Args, peak_unpadded_heap_bytes);
// peak: 0.72, total: 0.90, the rest: 0.104.
PJRT_STRUCT_BEGAN_AT(PJRT_Executable_GetCompiledMemoryStats_Args, host_temp_size_in_bytes);

/// The memory the program needs on a device and on the host, in bytes.
typedef PJRT_Error* PJRT_Executable_GetCompiledMemoryStats(
    PJRT_Executable_GetCompiledMemoryStats_Args* args);

typedef struct PJRT_Executable_OutputElementTypes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  PJRT_Buffer_Type* output_types;  // out
  size_t num_output_types;  // out
} PJRT_Executable_OutputElementTypes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_OutputElementTypes_Args, num_output_types);

/// The element type of each output; lives as long as the executable.
typedef PJRT_Error* PJRT_Executable_OutputElementTypes(
    PJRT_Executable_OutputElementTypes_Args* args);

typedef struct PJRT_Executable_OutputDimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_outputs;  // out
  const int64_t* dims;  // out
  const size_t* dim_sizes;  // out
} PJRT_Executable_OutputDimensions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_OutputDimensions_Args, dim_sizes);

/// The dimensions of all outputs one after the other, and the rank of each; live as long as the
/// executable.
typedef PJRT_Error* PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args* args);

typedef struct PJRT_Executable_OutputMemoryKinds_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_outputs;  // out
  const char* const* memory_kinds;  // out
  const size_t* memory_kind_sizes;  // out
} PJRT_Executable_OutputMemoryKinds_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_OutputMemoryKinds_Args, memory_kind_sizes);

/// The memory kind of each output; lives as long as the executable.
typedef PJRT_Error* PJRT_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args* args);

typedef struct PJRT_Executable_ParameterMemoryKinds_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_parameters;  // out
  const char* const* memory_kinds;  // out
  const size_t* memory_kind_sizes;  // out
} PJRT_Executable_ParameterMemoryKinds_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_ParameterMemoryKinds_Args, memory_kind_sizes);

/// The memory kind of each parameter; lives as long as the executable.
typedef PJRT_Error* PJRT_Executable_ParameterMemoryKinds(
    PJRT_Executable_ParameterMemoryKinds_Args* args);

typedef struct PJRT_Executable_OptimizedProgram_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  PJRT_Program* program;  // out
} PJRT_Executable_OptimizedProgram_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_OptimizedProgram_Args, program);

/// The optimized program. Called twice: with a null `code` it gives the size, then it fills the
/// `code` of the caller.
typedef PJRT_Error* PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args* args);

typedef struct PJRT_Executable_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_Executable* executable;
  const char* serialized_bytes;  // out
  size_t serialized_bytes_size;  // out
  PJRT_SerializedExecutable* serialized_executable;  // out
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable* exec);  // out
} PJRT_Executable_Serialize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_Serialize_Args, serialized_executable_deleter);

/// The executable as bytes, which live until the caller calls the deleter on their holder.
typedef PJRT_Error* PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args* args);

typedef struct PJRT_Executable_GetCompileOptions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  const char* serialized_bytes;  // out
  size_t serialized_bytes_size;  // out
  PJRT_SerializedCompileOptions* serialized_compile_options;  // out
  void (*serialized_compile_options_deleter)(PJRT_SerializedCompileOptions* options);  // out
} PJRT_Executable_GetCompileOptions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_GetCompileOptions_Args, serialized_compile_options_deleter);

/// The compile options the plugin used, serialized; freed with the deleter. Since 0.87.
typedef PJRT_Error* PJRT_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args* args);

typedef struct PJRT_Executable_DeserializeAndLoad_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  const char* serialized_executable;
  size_t serialized_executable_size;
  PJRT_LoadedExecutable* loaded_executable;  // out
  const char* overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  PJRT_LoadOptions* load_options;
} PJRT_Executable_DeserializeAndLoad_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Executable_DeserializeAndLoad_Args, load_options);
// overriding options: 0.71, load_options: after 0.81.
PJRT_STRUCT_BEGAN_AT(PJRT_Executable_DeserializeAndLoad_Args, loaded_executable);

/// Loads an executable from its bytes. Options that override those of its compilation may be
/// null.
typedef PJRT_Error* PJRT_Executable_DeserializeAndLoad(
    PJRT_Executable_DeserializeAndLoad_Args* args);

// ---- Loaded executables -------------------------------------------------------------------------

typedef struct PJRT_LoadedExecutable_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
} PJRT_LoadedExecutable_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_Destroy_Args, executable);

/// Frees a loaded executable; what runs goes on. Null is fine.
typedef PJRT_Error* PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args* args);

typedef struct PJRT_LoadedExecutable_GetExecutable_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* loaded_executable;
  PJRT_Executable* executable;  // out
} PJRT_LoadedExecutable_GetExecutable_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_GetExecutable_Args, executable);

/// The executable that was loaded: a new handle for the caller to free.
typedef PJRT_Error* PJRT_LoadedExecutable_GetExecutable(
    PJRT_LoadedExecutable_GetExecutable_Args* args);

typedef struct PJRT_LoadedExecutable_AddressableDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  PJRT_Device* const* addressable_devices;  // out
  size_t num_addressable_devices;  // out
} PJRT_LoadedExecutable_AddressableDevices_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_AddressableDevices_Args, num_addressable_devices);

/// The devices it runs on in this process, in the order of `argument_lists`; live as long as
/// the loaded executable.
typedef PJRT_Error* PJRT_LoadedExecutable_AddressableDevices(
    PJRT_LoadedExecutable_AddressableDevices_Args* args);

/// What a device is to a program.
typedef struct PJRT_LogicalDeviceIds {
  int replica;
  int partition;
} PJRT_LogicalDeviceIds;

typedef struct PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  PJRT_LogicalDeviceIds* addressable_device_logical_ids;  // out
  size_t num_addressable_device_logical_ids;  // out
} PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args,
                    num_addressable_device_logical_ids);

/// Replica and partition of each of those devices; live as long as the loaded executable.
typedef PJRT_Error* PJRT_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args* args);

typedef struct PJRT_LoadedExecutable_GetDeviceAssignment_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  const char* serialized_bytes;  // out
  size_t serialized_bytes_size;  // out
  PJRT_DeviceAssignmentSerialized* serialized_device_assignment;  // out
  void (*serialized_device_assignment_deleter)(PJRT_DeviceAssignmentSerialized* da);  // out
} PJRT_LoadedExecutable_GetDeviceAssignment_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_GetDeviceAssignment_Args,
                    serialized_device_assignment_deleter);

/// The device assignment, serialized; freed with the deleter.
typedef PJRT_Error* PJRT_LoadedExecutable_GetDeviceAssignment(
    PJRT_LoadedExecutable_GetDeviceAssignment_Args* args);

typedef struct PJRT_LoadedExecutable_Delete_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
} PJRT_LoadedExecutable_Delete_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_Delete_Args, executable);

/// Gives up what the plugin holds for it, whatever handles there are; it can no longer run.
typedef PJRT_Error* PJRT_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args* args);

typedef struct PJRT_LoadedExecutable_IsDeleted_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  bool is_deleted;  // out
} PJRT_LoadedExecutable_IsDeleted_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_IsDeleted_Args, is_deleted);

/// Whether PJRT_LoadedExecutable_Delete was called.
typedef PJRT_Error* PJRT_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args* args);

typedef struct PJRT_LoadedExecutable_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  const char* executable_fingerprint;  // out
  size_t executable_fingerprint_size;  // out
} PJRT_LoadedExecutable_Fingerprint_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_Fingerprint_Args, executable_fingerprint_size);

/// Superseded by PJRT_Executable_Fingerprint.
typedef PJRT_Error* PJRT_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args* args);

typedef struct PJRT_ExecuteContext_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_ExecuteContext* context;  // out
} PJRT_ExecuteContext_Create_Args;
PJRT_STRUCT_ENDS_AT(PJRT_ExecuteContext_Create_Args, context);

/// Makes a context that carries user data to the handlers of an execution.
typedef PJRT_Error* PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args* args);

typedef struct PJRT_ExecuteContext_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_ExecuteContext* context;
} PJRT_ExecuteContext_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_ExecuteContext_Destroy_Args, context);

/// Frees a context once nothing runs with it.
typedef PJRT_Error* PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args);

/// A piece of data and how to free it.
typedef struct PJRT_Chunk {
  void* data;
  size_t size;
  void (*deleter)(void* data, void* deleter_arg);
  void* deleter_arg;
} PJRT_Chunk;

/// Takes a piece that the program sends to the host; takes the chunk over.
typedef PJRT_Error* (*PJRT_SendCallback)(PJRT_Chunk* chunk, PJRT_CallbackError* callback_error,
                                         size_t total_size_in_bytes, bool done, void* user_arg);

/// Is asked for what the program receives from the host; owns the stream.
typedef void (*PJRT_RecvCallback)(PJRT_CopyToDeviceStream* stream, void* user_arg);

typedef struct PJRT_SendCallbackInfo {
  int64_t channel_id;
  void* user_arg;
  PJRT_SendCallback send_callback;
} PJRT_SendCallbackInfo;
PJRT_STRUCT_ENDS_AT(PJRT_SendCallbackInfo, send_callback);

typedef struct PJRT_RecvCallbackInfo {
  int64_t channel_id;
  void* user_arg;
  PJRT_RecvCallback recv_callback;
} PJRT_RecvCallbackInfo;
PJRT_STRUCT_ENDS_AT(PJRT_RecvCallbackInfo, recv_callback);

/// A callback from a program. Mainstay looks at none of it, so the signature is left out.
typedef struct PJRT_HloOutputCallbackInfo {
  void* user_arg;
  void (*callback)(void);
  int64_t callback_id;
  size_t num_operands;
} PJRT_HloOutputCallbackInfo;
PJRT_STRUCT_ENDS_AT(PJRT_HloOutputCallbackInfo, num_operands);

/// How a launch is to run. `non_donatable_input_indices` names inputs that the launch must not
/// take even if the program would.
typedef struct PJRT_ExecuteOptions {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_SendCallbackInfo** send_callbacks;
  PJRT_RecvCallbackInfo** recv_callbacks;
  size_t num_send_ops;
  size_t num_recv_ops;
  int launch_id;
  const int64_t* non_donatable_input_indices;
  size_t num_non_donatable_input_indices;
  PJRT_ExecuteContext* context;
  const char* call_location;
  size_t num_tasks;
  int* task_ids;
  int64_t* incarnation_ids;
  PJRT_MultiSlice_Config* multi_slice_config;
  bool use_major_to_minor_data_layout_for_callbacks;
  PJRT_HloOutputCallbackInfo* hlo_output_callbacks;
  size_t num_hlo_output_callbacks;
} PJRT_ExecuteOptions;
PJRT_STRUCT_ENDS_AT(PJRT_ExecuteOptions, num_hlo_output_callbacks);
// context: 0.64, call_location: 0.76, tasks: 0.78, multi_slice_config: 0.97.
PJRT_STRUCT_BEGAN_AT(PJRT_ExecuteOptions, num_non_donatable_input_indices);

typedef struct PJRT_LoadedExecutable_Execute_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_LoadedExecutable* executable;
  PJRT_ExecuteOptions* options;
  PJRT_Buffer* const* const* argument_lists;
  size_t num_devices;
  size_t num_args;
  PJRT_Buffer** const* output_lists;  // out
  PJRT_Event** device_complete_events;  // out
  PJRT_Device* execute_device;
} PJRT_LoadedExecutable_Execute_Args;
PJRT_STRUCT_ENDS_AT(PJRT_LoadedExecutable_Execute_Args, execute_device);

/// Starts the program on its devices. The caller owns the two-dimensional lists (by device,
/// then by argument or output); the output buffers and the events put into them are its to
/// free.
typedef PJRT_Error* PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args);

// ---- Buffers ------------------------------------------------------------------------------------

typedef struct PJRT_Buffer_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
} PJRT_Buffer_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Destroy_Args, buffer);

/// Deletes the buffer and frees its handle. Null is fine.
typedef PJRT_Error* PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args);

typedef struct PJRT_Buffer_ElementType_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Buffer_Type type;  // out
} PJRT_Buffer_ElementType_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_ElementType_Args, type);

/// The type of the elements.
typedef PJRT_Error* PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args* args);

typedef struct PJRT_Buffer_Dimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  const int64_t* dims;  // out
  size_t num_dims;  // out
} PJRT_Buffer_Dimensions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Dimensions_Args, num_dims);

/// The dimensions; live as long as the buffer.
typedef PJRT_Error* PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args* args);

typedef struct PJRT_Buffer_UnpaddedDimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  const int64_t* unpadded_dims;  // out
  size_t num_dims;  // out
} PJRT_Buffer_UnpaddedDimensions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_UnpaddedDimensions_Args, num_dims);

/// The dimensions without the padding of dynamic ones; live as long as the buffer.
typedef PJRT_Error* PJRT_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args* args);

typedef struct PJRT_Buffer_DynamicDimensionIndices_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  const size_t* dynamic_dim_indices;  // out
  size_t num_dynamic_dims;  // out
} PJRT_Buffer_DynamicDimensionIndices_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_DynamicDimensionIndices_Args, num_dynamic_dims);

/// Which dimensions are dynamic; lives as long as the buffer.
typedef PJRT_Error* PJRT_Buffer_DynamicDimensionIndices(
    PJRT_Buffer_DynamicDimensionIndices_Args* args);

typedef struct PJRT_Buffer_GetMemoryLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Buffer_MemoryLayout layout;  // out
} PJRT_Buffer_GetMemoryLayout_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_GetMemoryLayout_Args, layout);

/// How the elements lie in memory; what it points to lives as long as the buffer.
typedef PJRT_Error* PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args* args);

typedef struct PJRT_Buffer_ToHostBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* src;
  PJRT_Buffer_MemoryLayout* host_layout;
  void* dst;  // out
  size_t dst_size;  // out
  PJRT_Event* event;  // out
} PJRT_Buffer_ToHostBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_ToHostBuffer_Args, event);

/// Copies to host memory. With a null `dst` it only gives the size needed, in bytes.
/// `host_layout` null means the layout of the buffer.
typedef PJRT_Error* PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args);

typedef struct PJRT_Buffer_OnDeviceSizeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  size_t on_device_size_in_bytes;  // out
} PJRT_Buffer_OnDeviceSizeInBytes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_OnDeviceSizeInBytes_Args, on_device_size_in_bytes);

/// The bytes it takes on the device.
typedef PJRT_Error* PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args* args);

typedef struct PJRT_Buffer_Delete_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
} PJRT_Buffer_Delete_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Delete_Args, buffer);

/// Gives the memory up when nothing uses it any more; the handle stays.
typedef PJRT_Error* PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args);

typedef struct PJRT_Buffer_IsDeleted_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  bool is_deleted;  // out
} PJRT_Buffer_IsDeleted_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_IsDeleted_Args, is_deleted);

/// Whether the buffer was deleted or donated.
typedef PJRT_Error* PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args* args);

typedef struct PJRT_Buffer_CopyRawToHost_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  void* dst;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event* event;  // out
} PJRT_Buffer_CopyRawToHost_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_CopyRawToHost_Args, event);

/// Copies bytes as they lie on the device; `dst` must stay until the event.
typedef PJRT_Error* PJRT_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args* args);

typedef struct PJRT_Buffer_CopyRawToHostFuture_Callback_Args {
  size_t struct_size;
  void* callback_data;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
  void* dst;
} PJRT_Buffer_CopyRawToHostFuture_Callback_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_CopyRawToHostFuture_Callback_Args, dst);

typedef struct PJRT_Buffer_CopyRawToHostFuture_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event* event;  // out
  void* callback_data;  // out
  void (*future_ready_callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args* args);  // out
} PJRT_Buffer_CopyRawToHostFuture_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_CopyRawToHostFuture_Args, future_ready_callback);

/// Like PJRT_Buffer_CopyRawToHost, but the destination is said later: the caller calls the
/// callback once, with it or with an error. Since 0.84.
typedef PJRT_Error* PJRT_Buffer_CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args* args);

typedef struct PJRT_Buffer_CopyToDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Device* dst_device;
  PJRT_Buffer* dst_buffer;  // out
} PJRT_Buffer_CopyToDevice_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_CopyToDevice_Args, dst_buffer);

/// Copies to the default memory of a device of the same client.
typedef PJRT_Error* PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args* args);

typedef struct PJRT_Buffer_CopyToMemory_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Memory* dst_memory;
  PJRT_Buffer* dst_buffer;  // out
} PJRT_Buffer_CopyToMemory_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_CopyToMemory_Args, dst_buffer);

/// Copies to a memory of the same client.
typedef PJRT_Error* PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args);

typedef struct PJRT_Buffer_Bitcast_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Buffer_Type element_type;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer_MemoryLayout* device_layout;
  PJRT_Buffer* out_buffer;  // out
} PJRT_Buffer_Bitcast_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Bitcast_Args, out_buffer);

/// The same bytes under another type and other dimensions; takes the buffer over.
typedef PJRT_Error* PJRT_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args* args);

typedef struct PJRT_Buffer_DonateWithControlDependency_Callback_Args {
  size_t struct_size;
  void* callback_data;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
} PJRT_Buffer_DonateWithControlDependency_Callback_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_DonateWithControlDependency_Callback_Args, error_message_size);

typedef struct PJRT_Buffer_DonateWithControlDependency_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  void* callback_data;  // out
  void (*dependency_ready_callback)(PJRT_Buffer_DonateWithControlDependency_Callback_Args* args);  // out
  PJRT_Buffer* out_buffer;  // out
} PJRT_Buffer_DonateWithControlDependency_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_DonateWithControlDependency_Args, out_buffer);

/// Donates the buffer to a new one that is ready once the caller has called the callback. Since
/// 0.88.
typedef PJRT_Error* PJRT_Buffer_DonateWithControlDependency(
    PJRT_Buffer_DonateWithControlDependency_Args* args);

typedef struct PJRT_Buffer_IsOnCpu_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  bool is_on_cpu;  // out
} PJRT_Buffer_IsOnCpu_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_IsOnCpu_Args, is_on_cpu);

/// Whether the host can read the memory of the buffer.
typedef PJRT_Error* PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args* args);

typedef struct PJRT_Buffer_Device_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Device* device;  // out
} PJRT_Buffer_Device_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Device_Args, device);

/// The device the buffer is on, owned by the client.
typedef PJRT_Error* PJRT_Buffer_Device(PJRT_Buffer_Device_Args* args);

typedef struct PJRT_Buffer_Memory_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Memory* memory;  // out
} PJRT_Buffer_Memory_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_Memory_Args, memory);

/// The memory the buffer is in, owned by the client.
typedef PJRT_Error* PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args* args);

typedef struct PJRT_Buffer_ReadyEvent_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Event* event;  // out
} PJRT_Buffer_ReadyEvent_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_ReadyEvent_Args, event);

/// A new event that is decided when the contents are there or have failed; the caller frees it.
typedef PJRT_Error* PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args);

typedef struct PJRT_Buffer_UnsafePointer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  uintptr_t buffer_pointer;  // out
} PJRT_Buffer_UnsafePointer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_UnsafePointer_Args, buffer_pointer);

/// The address on the device, without any protection.
typedef PJRT_Error* PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args* args);

typedef struct PJRT_Buffer_IncreaseExternalReferenceCount_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
} PJRT_Buffer_IncreaseExternalReferenceCount_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_IncreaseExternalReferenceCount_Args, buffer);

/// Keeps the memory from being freed or reused while someone outside uses it.
typedef PJRT_Error* PJRT_Buffer_IncreaseExternalReferenceCount(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args* args);

typedef struct PJRT_Buffer_DecreaseExternalReferenceCount_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
} PJRT_Buffer_DecreaseExternalReferenceCount_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_DecreaseExternalReferenceCount_Args, buffer);

/// Undoes one PJRT_Buffer_IncreaseExternalReferenceCount.
typedef PJRT_Error* PJRT_Buffer_DecreaseExternalReferenceCount(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args* args);

typedef struct PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  void* device_memory_ptr;  // out
} PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, device_memory_ptr);

/// The address on the device; valid while an external reference is held.
typedef PJRT_Error* PJRT_Buffer_OpaqueDeviceMemoryDataPointer(
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* args);

// ---- Streams of chunks to a device --------------------------------------------------------------

typedef struct PJRT_CopyToDeviceStream_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_CopyToDeviceStream* stream;
} PJRT_CopyToDeviceStream_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_CopyToDeviceStream_Destroy_Args, stream);

/// Frees a stream of chunks.
typedef PJRT_Error* PJRT_CopyToDeviceStream_Destroy(PJRT_CopyToDeviceStream_Destroy_Args* args);

typedef struct PJRT_CopyToDeviceStream_AddChunk_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_CopyToDeviceStream* stream;
  PJRT_Chunk* chunk;
  PJRT_Event* transfer_complete;  // out
} PJRT_CopyToDeviceStream_AddChunk_Args;
PJRT_STRUCT_ENDS_AT(PJRT_CopyToDeviceStream_AddChunk_Args, transfer_complete);

/// Sends the next chunk, which the stream takes over.
typedef PJRT_Error* PJRT_CopyToDeviceStream_AddChunk(PJRT_CopyToDeviceStream_AddChunk_Args* args);

typedef struct PJRT_CopyToDeviceStream_TotalBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_CopyToDeviceStream* stream;
  int64_t total_bytes;  // out
} PJRT_CopyToDeviceStream_TotalBytes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_CopyToDeviceStream_TotalBytes_Args, total_bytes);

/// The bytes the stream takes in all.
typedef PJRT_Error* PJRT_CopyToDeviceStream_TotalBytes(
    PJRT_CopyToDeviceStream_TotalBytes_Args* args);

typedef struct PJRT_CopyToDeviceStream_GranuleSize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_CopyToDeviceStream* stream;
  int64_t granule_size_in_bytes;  // out
} PJRT_CopyToDeviceStream_GranuleSize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_CopyToDeviceStream_GranuleSize_Args, granule_size_in_bytes);

/// Every chunk is a multiple of that many bytes.
typedef PJRT_Error* PJRT_CopyToDeviceStream_GranuleSize(
    PJRT_CopyToDeviceStream_GranuleSize_Args* args);

typedef struct PJRT_CopyToDeviceStream_CurrentBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_CopyToDeviceStream* stream;
  int64_t current_bytes;  // out
} PJRT_CopyToDeviceStream_CurrentBytes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_CopyToDeviceStream_CurrentBytes_Args, current_bytes);

/// The bytes sent so far.
typedef PJRT_Error* PJRT_CopyToDeviceStream_CurrentBytes(
    PJRT_CopyToDeviceStream_CurrentBytes_Args* args);

// ---- Asynchronous transfers from the host -------------------------------------------------------

typedef struct PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
} PJRT_AsyncHostToDeviceTransferManager_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args, transfer_manager);

/// Frees a manager. Buffers it still owes become errors.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_Destroy(
    PJRT_AsyncHostToDeviceTransferManager_Destroy_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_TransferData_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  int buffer_index;
  const void* data;
  int64_t offset;
  int64_t transfer_size;
  bool is_last_transfer;
  PJRT_Event* done_with_h2d_transfer;  // out
} PJRT_AsyncHostToDeviceTransferManager_TransferData_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_TransferData_Args,
                    done_with_h2d_transfer);

/// Sends a piece of a buffer; `data` stays unchanged until the event.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_TransferData(
    PJRT_AsyncHostToDeviceTransferManager_TransferData_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  int buffer_index;
  const void* data;
  const int64_t* shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout* shape_layout;
  PJRT_Event* done_with_h2d_transfer;  // out
} PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args,
                    done_with_h2d_transfer);

/// Sends a whole buffer, laid out as the shape says; `data` stays unchanged until the event.
/// Since 0.83.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_TransferLiteral(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  int buffer_index;
  PJRT_Buffer* buffer_out;  // out
} PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args, buffer_out);

/// Hands out one of the buffers, once, before or after it is filled; the caller frees it.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_Device_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  PJRT_Device* device_out;  // out
} PJRT_AsyncHostToDeviceTransferManager_Device_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_Device_Args, device_out);

/// The device the buffers are on.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_Device(
    PJRT_AsyncHostToDeviceTransferManager_Device_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  size_t buffer_count;  // out
} PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args, buffer_count);

/// How many buffers there are.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_BufferCount(
    PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  int buffer_index;
  size_t buffer_size;  // out
} PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args, buffer_size);

/// The size of one buffer on the device, in bytes.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_BufferSize(
    PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  int buffer_index;
  PJRT_Error_Code error_code;
  const char* error_message;
  size_t error_message_size;
} PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args, error_message_size);

/// Makes one buffer an error.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_SetBufferError(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args* args);

typedef struct PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_AsyncHostToDeviceTransferManager* transfer_manager;
  const PJRT_NamedValue* transfer_metadata;
  size_t num_metadata;
} PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args;
PJRT_STRUCT_ENDS_AT(PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args, num_metadata);

/// Adds notes for tracing.
typedef PJRT_Error* PJRT_AsyncHostToDeviceTransferManager_AddMetadata(
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args* args);

// ---- Topologies and compilation ahead of time ---------------------------------------------------

typedef struct PJRT_TopologyDescription_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* topology_name;
  size_t topology_name_size;
  const PJRT_NamedValue* create_options;
  size_t num_options;
  PJRT_TopologyDescription* topology;  // out
} PJRT_TopologyDescription_Create_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Create_Args, topology);

/// Describes a topology by name, without a client and without its hardware.
typedef PJRT_Error* PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args* args);

typedef struct PJRT_TopologyDescription_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
} PJRT_TopologyDescription_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Destroy_Args, topology);

/// Frees a topology that PJRT_TopologyDescription_Create or _Deserialize made.
typedef PJRT_Error* PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args* args);

typedef struct PJRT_TopologyDescription_PlatformName_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_TopologyDescription* topology;
  const char* platform_name;  // out
  size_t platform_name_size;  // out
} PJRT_TopologyDescription_PlatformName_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_PlatformName_Args, platform_name_size);

/// The platform's name; lives as long as the topology.
typedef PJRT_Error* PJRT_TopologyDescription_PlatformName(
    PJRT_TopologyDescription_PlatformName_Args* args);

typedef struct PJRT_TopologyDescription_PlatformVersion_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  const char* platform_version;  // out
  size_t platform_version_size;  // out
} PJRT_TopologyDescription_PlatformVersion_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_PlatformVersion_Args, platform_version_size);

/// The platform's version, for people; lives as long as the topology.
typedef PJRT_Error* PJRT_TopologyDescription_PlatformVersion(
    PJRT_TopologyDescription_PlatformVersion_Args* args);

typedef struct PJRT_TopologyDescription_GetDeviceDescriptions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_TopologyDescription* topology;
  PJRT_DeviceDescription* const* descriptions;  // out
  size_t num_descriptions;  // out
} PJRT_TopologyDescription_GetDeviceDescriptions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_GetDeviceDescriptions_Args, num_descriptions);

/// The devices of the topology; live as long as it.
typedef PJRT_Error* PJRT_TopologyDescription_GetDeviceDescriptions(
    PJRT_TopologyDescription_GetDeviceDescriptions_Args* args);

typedef struct PJRT_TopologyDescription_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  const char* serialized_bytes;  // out
  size_t serialized_bytes_size;  // out
  PJRT_SerializedTopology* serialized_topology;  // out
  void (*serialized_topology_deleter)(PJRT_SerializedTopology* serialized_topology);  // out
} PJRT_TopologyDescription_Serialize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Serialize_Args, serialized_topology_deleter);

/// The topology as bytes; freed with the deleter.
typedef PJRT_Error* PJRT_TopologyDescription_Serialize(
    PJRT_TopologyDescription_Serialize_Args* args);

typedef struct PJRT_TopologyDescription_Deserialize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* serialized_topology;
  size_t serialized_topology_size;
  PJRT_TopologyDescription* topology;  // out
} PJRT_TopologyDescription_Deserialize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Deserialize_Args, topology);

/// A topology from its bytes.
typedef PJRT_Error* PJRT_TopologyDescription_Deserialize(
    PJRT_TopologyDescription_Deserialize_Args* args);

typedef struct PJRT_TopologyDescription_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  const PJRT_NamedValue* attributes;  // out
  size_t num_attributes;  // out
} PJRT_TopologyDescription_Attributes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Attributes_Args, num_attributes);

/// What the vendor says of the topology; lives as long as it.
typedef PJRT_Error* PJRT_TopologyDescription_Attributes(
    PJRT_TopologyDescription_Attributes_Args* args);

typedef struct PJRT_TopologyDescription_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  uint64_t fingerprint;  // out
} PJRT_TopologyDescription_Fingerprint_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_Fingerprint_Args, fingerprint);

/// A number that is the same for the same topology.
typedef PJRT_Error* PJRT_TopologyDescription_Fingerprint(
    PJRT_TopologyDescription_Fingerprint_Args* args);

typedef struct PJRT_TopologyDescription_GetMemorySpaceKindIds_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  const int* memory_space_kind_ids;  // out
  size_t num_memory_space_kind_ids;  // out
} PJRT_TopologyDescription_GetMemorySpaceKindIds_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args, num_memory_space_kind_ids);

/// The numbers of the memory kinds its devices have; live as long as the topology.
typedef PJRT_Error* PJRT_TopologyDescription_GetMemorySpaceKindIds(
    PJRT_TopologyDescription_GetMemorySpaceKindIds_Args* args);

typedef struct PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology;
  int memory_space_kind_id;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
  PJRT_Buffer_MemoryLayout* layout;
  const char* serialized_shape;  // out
  size_t serialized_shape_size;  // out
  void (*serialized_shape_deleter)(const char* serialized_shape);  // out
} PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args;
PJRT_STRUCT_ENDS_AT(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args,
                    serialized_shape_deleter);

/// The shape, serialized, as it would be laid out in such a memory; freed with the deleter.
typedef PJRT_Error* PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace(
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args* args);

typedef struct PJRT_Compile_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_TopologyDescription* topology;
  const PJRT_Program* program;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_Client* client;
  PJRT_Executable* executable;  // out
} PJRT_Compile_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Compile_Args, executable);

/// Compiles a program for a topology; `client` may be null.
typedef PJRT_Error* PJRT_Compile(PJRT_Compile_Args* args);

// ---- The table of functions ---------------------------------------------------------------------
// In the order of the table; a plugin that is older ends earlier, as its `struct_size` says. X
// is applied to each.

#define PJRT_FUNCTIONS(X) \
  X(PJRT_Error_Destroy) \
  X(PJRT_Error_Message) \
  X(PJRT_Error_GetCode) \
  X(PJRT_Plugin_Initialize) \
  X(PJRT_Plugin_Attributes) \
  X(PJRT_Event_Destroy) \
  X(PJRT_Event_IsReady) \
  X(PJRT_Event_Error) \
  X(PJRT_Event_Await) \
  X(PJRT_Event_OnReady) \
  X(PJRT_Client_Create) \
  X(PJRT_Client_Destroy) \
  X(PJRT_Client_PlatformName) \
  X(PJRT_Client_ProcessIndex) \
  X(PJRT_Client_PlatformVersion) \
  X(PJRT_Client_Devices) \
  X(PJRT_Client_AddressableDevices) \
  X(PJRT_Client_LookupDevice) \
  X(PJRT_Client_LookupAddressableDevice) \
  X(PJRT_Client_AddressableMemories) \
  X(PJRT_Client_Compile) \
  X(PJRT_Client_DefaultDeviceAssignment) \
  X(PJRT_Client_BufferFromHostBuffer) \
  X(PJRT_DeviceDescription_Id) \
  X(PJRT_DeviceDescription_ProcessIndex) \
  X(PJRT_DeviceDescription_Attributes) \
  X(PJRT_DeviceDescription_Kind) \
  X(PJRT_DeviceDescription_DebugString) \
  X(PJRT_DeviceDescription_ToString) \
  X(PJRT_Device_GetDescription) \
  X(PJRT_Device_IsAddressable) \
  X(PJRT_Device_LocalHardwareId) \
  X(PJRT_Device_AddressableMemories) \
  X(PJRT_Device_DefaultMemory) \
  X(PJRT_Device_MemoryStats) \
  X(PJRT_Memory_Id) \
  X(PJRT_Memory_Kind) \
  X(PJRT_Memory_DebugString) \
  X(PJRT_Memory_ToString) \
  X(PJRT_Memory_AddressableByDevices) \
  X(PJRT_Executable_Destroy) \
  X(PJRT_Executable_Name) \
  X(PJRT_Executable_NumReplicas) \
  X(PJRT_Executable_NumPartitions) \
  X(PJRT_Executable_NumOutputs) \
  X(PJRT_Executable_SizeOfGeneratedCodeInBytes) \
  X(PJRT_Executable_GetCostAnalysis) \
  X(PJRT_Executable_OutputMemoryKinds) \
  X(PJRT_Executable_OptimizedProgram) \
  X(PJRT_Executable_Serialize) \
  X(PJRT_LoadedExecutable_Destroy) \
  X(PJRT_LoadedExecutable_GetExecutable) \
  X(PJRT_LoadedExecutable_AddressableDevices) \
  X(PJRT_LoadedExecutable_Delete) \
  X(PJRT_LoadedExecutable_IsDeleted) \
  X(PJRT_LoadedExecutable_Execute) \
  X(PJRT_Executable_DeserializeAndLoad) \
  X(PJRT_LoadedExecutable_Fingerprint) \
  X(PJRT_Buffer_Destroy) \
  X(PJRT_Buffer_ElementType) \
  X(PJRT_Buffer_Dimensions) \
  X(PJRT_Buffer_UnpaddedDimensions) \
  X(PJRT_Buffer_DynamicDimensionIndices) \
  X(PJRT_Buffer_GetMemoryLayout) \
  X(PJRT_Buffer_OnDeviceSizeInBytes) \
  X(PJRT_Buffer_Device) \
  X(PJRT_Buffer_Memory) \
  X(PJRT_Buffer_Delete) \
  X(PJRT_Buffer_IsDeleted) \
  X(PJRT_Buffer_CopyToDevice) \
  X(PJRT_Buffer_ToHostBuffer) \
  X(PJRT_Buffer_IsOnCpu) \
  X(PJRT_Buffer_ReadyEvent) \
  X(PJRT_Buffer_UnsafePointer) \
  X(PJRT_Buffer_IncreaseExternalReferenceCount) \
  X(PJRT_Buffer_DecreaseExternalReferenceCount) \
  X(PJRT_Buffer_OpaqueDeviceMemoryDataPointer) \
  X(PJRT_CopyToDeviceStream_Destroy) \
  X(PJRT_CopyToDeviceStream_AddChunk) \
  X(PJRT_CopyToDeviceStream_TotalBytes) \
  X(PJRT_CopyToDeviceStream_GranuleSize) \
  X(PJRT_CopyToDeviceStream_CurrentBytes) \
  X(PJRT_TopologyDescription_Create) \
  X(PJRT_TopologyDescription_Destroy) \
  X(PJRT_TopologyDescription_PlatformName) \
  X(PJRT_TopologyDescription_PlatformVersion) \
  X(PJRT_TopologyDescription_GetDeviceDescriptions) \
  X(PJRT_TopologyDescription_Serialize) \
  X(PJRT_TopologyDescription_Attributes) \
  X(PJRT_Compile) \
  X(PJRT_Executable_OutputElementTypes) \
  X(PJRT_Executable_OutputDimensions) \
  X(PJRT_Buffer_CopyToMemory) \
  X(PJRT_Client_CreateViewOfDeviceBuffer) \
  X(PJRT_Executable_Fingerprint) \
  X(PJRT_Client_TopologyDescription) \
  X(PJRT_Executable_GetCompiledMemoryStats) \
  X(PJRT_Memory_Kind_Id) \
  X(PJRT_ExecuteContext_Create) \
  X(PJRT_ExecuteContext_Destroy) \
  X(PJRT_Buffer_CopyRawToHost) \
  X(PJRT_AsyncHostToDeviceTransferManager_Destroy) \
  X(PJRT_AsyncHostToDeviceTransferManager_TransferData) \
  X(PJRT_Client_CreateBuffersForAsyncHostToDevice) \
  X(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer) \
  X(PJRT_AsyncHostToDeviceTransferManager_Device) \
  X(PJRT_AsyncHostToDeviceTransferManager_BufferCount) \
  X(PJRT_AsyncHostToDeviceTransferManager_BufferSize) \
  X(PJRT_AsyncHostToDeviceTransferManager_SetBufferError) \
  X(PJRT_AsyncHostToDeviceTransferManager_AddMetadata) \
  X(PJRT_Client_DmaMap) \
  X(PJRT_Client_DmaUnmap) \
  X(PJRT_Client_CreateUninitializedBuffer) \
  X(PJRT_Client_UpdateGlobalProcessInfo) \
  X(PJRT_TopologyDescription_Deserialize) \
  X(PJRT_Client_CreateAliasBuffer) \
  X(PJRT_Client_FulfillAliasBuffer) \
  X(PJRT_LoadedExecutable_GetDeviceAssignment) \
  X(PJRT_Client_CreateErrorBuffer) \
  X(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral) \
  X(PJRT_Buffer_CopyRawToHostFuture) \
  X(PJRT_Device_PoisonExecution) \
  X(PJRT_Device_CreateAsyncTrackingEvent) \
  X(PJRT_AsyncTrackingEvent_Destroy) \
  X(PJRT_Executable_GetCompileOptions) \
  X(PJRT_Buffer_DonateWithControlDependency) \
  X(PJRT_Event_Create) \
  X(PJRT_Event_Set) \
  X(PJRT_Device_GetAttributes) \
  X(PJRT_Client_Load) \
  X(PJRT_LoadedExecutable_AddressableDeviceLogicalIds) \
  X(PJRT_Buffer_Bitcast) \
  X(PJRT_Error_ForEachPayload) \
  X(PJRT_TopologyDescription_Fingerprint) \
  X(PJRT_Executable_ParameterMemoryKinds) \
  X(PJRT_Device_ClearMemoryStats) \
  X(PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace) \
  X(PJRT_TopologyDescription_GetMemorySpaceKindIds)

/// What a plugin offers. It lives as long as the process.
typedef struct PJRT_Api {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Api_Version pjrt_api_version;
#define PJRT_SLOT(function) function* function;
  PJRT_FUNCTIONS(PJRT_SLOT)
#undef PJRT_SLOT
} PJRT_Api;
PJRT_STRUCT_ENDS_AT(PJRT_Api, PJRT_TopologyDescription_GetMemorySpaceKindIds);
// When each of the later functions came: src/abi/versions.rs.
PJRT_STRUCT_BEGAN_AT(PJRT_Api, PJRT_Buffer_CopyRawToHost);

/// The one symbol that a plugin exports.
const PJRT_Api* GetPjrtApi(void);

#ifdef __cplusplus
}
#endif

#endif  // MAINSTAY_PJRT_C_API_H_
