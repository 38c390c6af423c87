// The extensions of PJRT that Mainstay offers or uses: layouts, shardings, memory descriptions, FFI,
// phases of compilation, transformations of programs, raw buffers. The rules of pjrt_c_api.h hold.
#ifndef MAINSTAY_PJRT_EXTENSIONS_H_
#define MAINSTAY_PJRT_EXTENSIONS_H_

#include "pjrt_c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Layouts ------------------------------------------------------------------------------------
// JAX relies on it: without it, arrays come back transposed and nobody says so.

typedef struct PJRT_Layouts_MemoryLayout PJRT_Layouts_MemoryLayout;
typedef struct PJRT_Layouts_SerializedLayout PJRT_Layouts_SerializedLayout;

typedef struct PJRT_Layouts_MemoryLayout_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Layouts_MemoryLayout* layout;
} PJRT_Layouts_MemoryLayout_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_MemoryLayout_Destroy_Args, layout);

/// Frees a layout.
typedef PJRT_Error* PJRT_Layouts_MemoryLayout_Destroy(PJRT_Layouts_MemoryLayout_Destroy_Args* args);

typedef struct PJRT_Layouts_MemoryLayout_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Layouts_MemoryLayout* layout;
  const char* serialized_bytes;  // out
  size_t serialized_bytes_size;  // out
  PJRT_Layouts_SerializedLayout* serialized_layout;  // out
  void (*serialized_layout_deleter)(PJRT_Layouts_SerializedLayout* s_layout);  // out
} PJRT_Layouts_MemoryLayout_Serialize_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_MemoryLayout_Serialize_Args, serialized_layout_deleter);

/// The layout in XLA's text form; freed with the deleter.
typedef PJRT_Error* PJRT_Layouts_MemoryLayout_Serialize(
    PJRT_Layouts_MemoryLayout_Serialize_Args* args);

typedef struct PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Client* client;
  PJRT_Buffer_Type type;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Layouts_MemoryLayout* layout;  // out
} PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, layout);

/// The layout that a client gives arrays of that type and size; the caller frees it.
typedef PJRT_Error* PJRT_Layouts_PJRT_Client_GetDefaultLayout(
    PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args* args);

typedef struct PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_Layouts_MemoryLayout* layout;  // out
} PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, layout);

/// The layout of a buffer; the caller frees it.
typedef PJRT_Error* PJRT_Layouts_PJRT_Buffer_MemoryLayout(
    PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args* args);

typedef struct PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_TopologyDescription* topology_description;
  PJRT_Buffer_Type type;
  const int64_t* dims;
  size_t num_dims;
  PJRT_Layouts_MemoryLayout* layout;  // out
} PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args, layout);

/// The layout that devices of a topology give such arrays; the caller frees it.
typedef PJRT_Error* PJRT_Layouts_PJRT_Topology_GetDefaultLayout(
    PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args* args);

typedef struct PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_outputs;  // out
  PJRT_Layouts_MemoryLayout** layouts;  // out
} PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, layouts);

/// The layouts of the outputs; live as long as the executable.
typedef PJRT_Error* PJRT_Layouts_PJRT_Executable_GetOutputLayouts(
    PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args* args);

typedef struct PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_parameters;  // out
  PJRT_Layouts_MemoryLayout** layouts;  // out
} PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args, layouts);

/// The layouts of the parameters; live as long as the executable.
typedef PJRT_Error* PJRT_Layouts_PJRT_Executable_GetParameterLayouts(
    PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args* args);

/// Type PJRT_Extension_Type_Layouts.
typedef struct PJRT_Layouts_Extension {
  PJRT_Extension_Base base;
  PJRT_Layouts_MemoryLayout_Destroy* PJRT_Layouts_MemoryLayout_Destroy;
  PJRT_Layouts_MemoryLayout_Serialize* PJRT_Layouts_MemoryLayout_Serialize;
  PJRT_Layouts_PJRT_Client_GetDefaultLayout* PJRT_Layouts_PJRT_Client_GetDefaultLayout;
  PJRT_Layouts_PJRT_Buffer_MemoryLayout* PJRT_Layouts_PJRT_Buffer_MemoryLayout;
  PJRT_Layouts_PJRT_Topology_GetDefaultLayout* PJRT_Layouts_PJRT_Topology_GetDefaultLayout;
  PJRT_Layouts_PJRT_Executable_GetOutputLayouts* PJRT_Layouts_PJRT_Executable_GetOutputLayouts;
  PJRT_Layouts_PJRT_Executable_GetParameterLayouts* PJRT_Layouts_PJRT_Executable_GetParameterLayouts;
} PJRT_Layouts_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Executable_GetParameterLayouts);
// Layouts of outputs: 0.81, of parameters: 0.93.
PJRT_STRUCT_BEGAN_AT(PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Topology_GetDefaultLayout);

// ---- Shardings ----------------------------------------------------------------------------------

typedef struct PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_parameters;  // out
  const char* const* shardings;  // out
  const size_t* sharding_sizes;  // out
} PJRT_Shardings_PJRT_Executable_ParameterShardings_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args, sharding_sizes);

/// The serialized sharding of each parameter; null if the program has none. Live as long as the
/// executable.
typedef PJRT_Error* PJRT_Shardings_PJRT_Executable_ParameterShardings(
    PJRT_Shardings_PJRT_Executable_ParameterShardings_Args* args);

typedef struct PJRT_Shardings_PJRT_Executable_OutputShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Executable* executable;
  size_t num_outputs;  // out
  const char* const* shardings;  // out
  const size_t* sharding_sizes;  // out
} PJRT_Shardings_PJRT_Executable_OutputShardings_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Shardings_PJRT_Executable_OutputShardings_Args, sharding_sizes);

/// The serialized sharding of each output; null if the program has none. Live as long as the
/// executable.
typedef PJRT_Error* PJRT_Shardings_PJRT_Executable_OutputShardings(
    PJRT_Shardings_PJRT_Executable_OutputShardings_Args* args);

/// Type PJRT_Extension_Type_Shardings.
typedef struct PJRT_Shardings_Extension {
  PJRT_Extension_Base base;
  PJRT_Shardings_PJRT_Executable_ParameterShardings* PJRT_Shardings_PJRT_Executable_ParameterShardings;
  PJRT_Shardings_PJRT_Executable_OutputShardings* PJRT_Shardings_PJRT_Executable_OutputShardings;
} PJRT_Shardings_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_Shardings_Extension, PJRT_Shardings_PJRT_Executable_OutputShardings);

// ---- Memory descriptions ------------------------------------------------------------------------

typedef struct PJRT_MemoryDescription PJRT_MemoryDescription;

typedef struct PJRT_DeviceDescription_MemoryDescriptions_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_DeviceDescription* device_description;
  const PJRT_MemoryDescription* const* memory_descriptions;  // out
  size_t num_memory_descriptions;  // out
  size_t default_memory_index;  // out
} PJRT_DeviceDescription_MemoryDescriptions_Args;
PJRT_STRUCT_ENDS_AT(PJRT_DeviceDescription_MemoryDescriptions_Args, default_memory_index);

/// The memories such a device has, and which is the default; live as long as the description.
typedef PJRT_Error* PJRT_DeviceDescription_MemoryDescriptions(
    PJRT_DeviceDescription_MemoryDescriptions_Args* args);

typedef struct PJRT_MemoryDescription_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_MemoryDescription* memory_description;
  const char* kind;  // out
  size_t kind_size;  // out
  int kind_id;  // out
} PJRT_MemoryDescription_Kind_Args;
PJRT_STRUCT_ENDS_AT(PJRT_MemoryDescription_Kind_Args, kind_id);

/// The kind of a memory by name and number; lives as long as the memory description.
typedef PJRT_Error* PJRT_MemoryDescription_Kind(PJRT_MemoryDescription_Kind_Args* args);

/// Type PJRT_Extension_Type_MemoryDescriptions.
typedef struct PJRT_MemoryDescriptions_Extension {
  PJRT_Extension_Base base;
  PJRT_DeviceDescription_MemoryDescriptions* PJRT_DeviceDescription_MemoryDescriptions;
  PJRT_MemoryDescription_Kind* PJRT_MemoryDescription_Kind;
} PJRT_MemoryDescriptions_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_MemoryDescriptions_Extension, PJRT_MemoryDescription_Kind);

// ---- FFI: custom calls and their user data ------------------------------------------------------
// The handlers themselves are declared in xla_ffi_c_api.h.

/// How a type of user data is freed; the others belong to its serialization and may be null.
typedef struct PJRT_FFI_Type_Info {
  void (*deleter)(void* object);
  void (*serialize)(void);
  void (*deserialize)(void);
} PJRT_FFI_Type_Info;

typedef struct PJRT_FFI_Type_Register_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char* type_name;
  size_t type_name_size;
  int64_t type_id;
  PJRT_FFI_Type_Info* type_info;
} PJRT_FFI_Type_Register_Args;
PJRT_STRUCT_ENDS_AT(PJRT_FFI_Type_Register_Args, type_info);

/// Registers a type of user data, or finds its id if `type_id` is 0.
typedef PJRT_Error* PJRT_FFI_Type_Register(PJRT_FFI_Type_Register_Args* args);

/// User data and its type.
typedef struct PJRT_FFI_UserData {
  int64_t type_id;
  void* data;
} PJRT_FFI_UserData;

typedef struct PJRT_FFI_UserData_Add_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_ExecuteContext* context;
  PJRT_FFI_UserData user_data;
} PJRT_FFI_UserData_Add_Args;
PJRT_STRUCT_ENDS_AT(PJRT_FFI_UserData_Add_Args, user_data);

/// Puts user data of a registered type into an execute context. The type's deleter frees it.
typedef PJRT_Error* PJRT_FFI_UserData_Add(PJRT_FFI_UserData_Add_Args* args);

/// What a handler can do.
typedef enum {
  PJRT_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE = 1,
} PJRT_FFI_Handler_TraitsBits;

typedef struct PJRT_FFI_Register_Handler_Args {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  PJRT_FFI_Handler_TraitsBits traits;
} PJRT_FFI_Register_Handler_Args;
PJRT_STRUCT_ENDS_AT(PJRT_FFI_Register_Handler_Args, traits);

/// Registers a handler for a custom call: an XLA_FFI_Handler or an XLA_FFI_Handler_Bundle.
typedef PJRT_Error* PJRT_FFI_Register_Handler(PJRT_FFI_Register_Handler_Args* args);

/// Type PJRT_Extension_Type_FFI.
typedef struct PJRT_FFI_Extension {
  PJRT_Extension_Base base;
  PJRT_FFI_Type_Register* type_register;
  PJRT_FFI_UserData_Add* user_data_add;
  PJRT_FFI_Register_Handler* register_handler;
} PJRT_FFI_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_FFI_Extension, register_handler);

// ---- Phases of compilation ----------------------------------------------------------------------

typedef struct PJRT_PhaseCompiler PJRT_PhaseCompiler;

typedef struct PJRT_PhaseCompile_Get_Compiler_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_PhaseCompiler* phase_compiler;  // out
} PJRT_PhaseCompile_Get_Compiler_Args;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_Get_Compiler_Args, phase_compiler);

/// The compiler of phases; null if the plugin offers the extension without one.
typedef PJRT_Error* PJRT_PhaseCompile_Get_Compiler(PJRT_PhaseCompile_Get_Compiler_Args* args);

typedef struct PJRT_PhaseCompile_Destroy_Compiler_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_PhaseCompiler* phase_compiler;
} PJRT_PhaseCompile_Destroy_Compiler_Args;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_Destroy_Compiler_Args, phase_compiler);

/// Frees the compiler of phases.
typedef void PJRT_PhaseCompile_Destroy_Compiler(PJRT_PhaseCompile_Destroy_Compiler_Args* args);

typedef struct PJRT_PhaseCompile_Run_Phase_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_PhaseCompiler* phase_compiler;
  const char** input_programs;
  const size_t* input_programs_sizes;
  size_t num_input_programs;
  const char** phases_to_run;
  const size_t* phases_to_run_sizes;
  size_t num_phases_to_run;
  const char* compile_options;
  size_t compile_options_size;
  PJRT_TopologyDescription* topology;
  const char** output_programs;  // out
  const size_t* output_programs_sizes;  // out
  size_t num_output_programs;  // out
} PJRT_PhaseCompile_Run_Phase_Args;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_Run_Phase_Args, num_output_programs);

/// Runs phases over serialized programs; the results are freed with
/// PJRT_PhaseCompile_C_Buffers_Destroy.
typedef PJRT_Error* PJRT_PhaseCompile_Run_Phase(PJRT_PhaseCompile_Run_Phase_Args* args);

typedef struct PJRT_PhaseCompile_Get_PhaseNames_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const PJRT_PhaseCompiler* phase_compiler;
  const char** phase_names;  // out
  const size_t* phase_names_sizes;  // out
  size_t num_phase_names;  // out
} PJRT_PhaseCompile_Get_PhaseNames_Args;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_Get_PhaseNames_Args, num_phase_names);

/// The names of the phases; freed with PJRT_PhaseCompile_C_Buffers_Destroy.
typedef PJRT_Error* PJRT_PhaseCompile_Get_PhaseNames(PJRT_PhaseCompile_Get_PhaseNames_Args* args);

typedef struct PJRT_PhaseCompile_C_Buffers_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  const char** char_buffers;
  const size_t* char_buffer_sizes;
  size_t num_char_buffers;
} PJRT_PhaseCompile_C_Buffers_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_C_Buffers_Destroy_Args, num_char_buffers);

/// Frees arrays that the functions above gave.
typedef void PJRT_PhaseCompile_C_Buffers_Destroy(PJRT_PhaseCompile_C_Buffers_Destroy_Args* args);

/// Type PJRT_Extension_Type_PhaseCompile.
typedef struct PJRT_PhaseCompile_Extension {
  PJRT_Extension_Base base;
  PJRT_PhaseCompile_Get_Compiler* phase_compile_get_compiler;
  PJRT_PhaseCompile_Destroy_Compiler* phase_compile_destroy_compiler;
  PJRT_PhaseCompile_Run_Phase* phase_compile_run_phases;
  PJRT_PhaseCompile_Get_PhaseNames* phase_compile_get_phase_names;
  PJRT_PhaseCompile_C_Buffers_Destroy* phase_compile_c_buffers_destroy;
} PJRT_PhaseCompile_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_PhaseCompile_Extension, phase_compile_c_buffers_destroy);

// ---- Transformations of programs ----------------------------------------------------------------

/// Where in the compiler a transformation runs.
typedef enum {
  PJRT_XlaTransform_PipelineStage_kPreScheduler = 0,
  PJRT_XlaTransform_PipelineStage_kPostScheduler = 1,
} PJRT_XlaTransform_PipelineStage;

/// Bytes of the callback's owner.
typedef struct PJRT_XlaTransform_string {
  const char* data;
  size_t size;
} PJRT_XlaTransform_string;

/// How a transformation answers; `cleanup_fn` is called with `data` when the answer has been
/// read.
typedef struct PJRT_XlaTransform_version_and_error {
  int64_t api_version;
  void* data;
  void (*cleanup_fn)(void* data);
  bool has_error;
  PJRT_Error_Code code;
  PJRT_XlaTransform_string error_msg;
} PJRT_XlaTransform_version_and_error;

/// One call: a serialized module comes in, and goes out if it was changed.
typedef struct PJRT_XlaTransform_Args {
  size_t struct_size;
  PJRT_XlaTransform_version_and_error header;
  PJRT_XlaTransform_string hlo_module;
  PJRT_XlaTransform_string transformed_hlo_module;  // out
  bool changed;  // out
} PJRT_XlaTransform_Args;
PJRT_STRUCT_ENDS_AT(PJRT_XlaTransform_Args, changed);

/// A transformation; `version` is 1. Lives until `dtor` is called.
typedef struct PJRT_XlaTransform_Callbacks {
  int64_t version;
  void (*dtor)(struct PJRT_XlaTransform_Callbacks* self);
  void (*transform_hlo_module)(
      struct PJRT_XlaTransform_Callbacks* self, PJRT_XlaTransform_Args* args);
} PJRT_XlaTransform_Callbacks;

typedef struct PJRT_Register_Xla_Transform_Args {
  size_t struct_size;
  const char* name;
  size_t name_size;
  PJRT_XlaTransform_PipelineStage stage;
  PJRT_XlaTransform_Callbacks* callbacks;
} PJRT_Register_Xla_Transform_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Register_Xla_Transform_Args, callbacks);

/// Has every compilation of the process call back with its module at that stage. The plugin
/// takes the callbacks over.
typedef PJRT_Error* PJRT_Register_Xla_Transform(PJRT_Register_Xla_Transform_Args* args);

typedef struct PJRT_Clear_Xla_Transform_Args {
  size_t struct_size;
  PJRT_XlaTransform_PipelineStage stage;
  const char* name;
  size_t name_size;
  PJRT_XlaTransform_Callbacks* callbacks;
  bool cleared;  // out
} PJRT_Clear_Xla_Transform_Args;
PJRT_STRUCT_ENDS_AT(PJRT_Clear_Xla_Transform_Args, cleared);

/// Takes a registration back and has its `dtor` called.
typedef PJRT_Error* PJRT_Clear_Xla_Transform(PJRT_Clear_Xla_Transform_Args* args);

/// Type PJRT_Extension_Type_XlaTransform.
typedef struct PJRT_Xla_Transform_Extension {
  PJRT_Extension_Base base;
  PJRT_Register_Xla_Transform* register_xla_transform;
  PJRT_Clear_Xla_Transform* clear_xla_transform;
} PJRT_Xla_Transform_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_Xla_Transform_Extension, clear_xla_transform);

// ---- Raw buffers --------------------------------------------------------------------------------

// XLA's own events, passed through.

typedef struct PJRT_RawBuffer PJRT_RawBuffer;
typedef struct PJRT_DeviceEvent PJRT_DeviceEvent;
typedef struct PJRT_DeviceEventVector PJRT_DeviceEventVector;
typedef struct PJRT_DeviceEventPromise PJRT_DeviceEventPromise;

/// What can be asked of a raw buffer without the extension.
typedef struct PJRT_RawBuffer_FunctionTable {
  size_t struct_size;
  size_t instance_size;
  PJRT_Extension_Base* extension_start;
  void (*inc_ref)(PJRT_RawBuffer* buffer);
  void (*dec_ref)(PJRT_RawBuffer* buffer);
  size_t (*get_on_device_size_in_bytes)(const PJRT_RawBuffer* buffer);
  PJRT_Memory* (*get_memory_space)(const PJRT_RawBuffer* buffer);
  void* (*get_host_pointer)(const PJRT_RawBuffer* buffer);
  PJRT_Error* (*copy_raw_host_to_device_and_return_event)(
      PJRT_RawBuffer* buffer, const void* src, int64_t offset, int64_t transfer_size,
      PJRT_DeviceEventVector* dependencies, PJRT_DeviceEvent* event);
  PJRT_Error* (*copy_raw_device_to_host_and_return_event)(
      PJRT_RawBuffer* buffer, void* dst, int64_t offset, int64_t transfer_size,
      PJRT_DeviceEventVector* dependencies, PJRT_DeviceEvent* event);
  void* (*opaque_device_memory_data_pointer)(const PJRT_RawBuffer* buffer);
  PJRT_Error* (*make_allocation_ready_event)(PJRT_RawBuffer* buffer, PJRT_DeviceEvent* event);
  PJRT_Error* (*get_raw_buffer_async_value)(PJRT_RawBuffer* buffer, PJRT_DeviceEvent* event);
  bool (*is_mutable)(const PJRT_RawBuffer* buffer);
  PJRT_Error* (*slice)(
      PJRT_RawBuffer* buffer, int64_t offset, int64_t slice_size, PJRT_RawBuffer** sliced);
  void (*schedule_copy_to)(
      PJRT_RawBuffer* src, PJRT_DeviceEventVector* dependencies, PJRT_RawBuffer* dst,
      PJRT_DeviceEventPromise* definition_event_promise,
      PJRT_DeviceEventPromise* src_usage_event_promise,
      void (*allocation_event_callback)(PJRT_Error* status, void* user_data),
      void* allocation_event_user_data);
} PJRT_RawBuffer_FunctionTable;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_FunctionTable, schedule_copy_to);

/// A raw buffer begins with its table; what follows is the plugin's.
struct PJRT_RawBuffer {
  const PJRT_RawBuffer_FunctionTable* vtable;
};
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer, vtable);

typedef struct PJRT_RawBuffer_CreateRawAliasOfBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_Buffer* buffer;
  PJRT_RawBuffer* raw_buffer;  // out
} PJRT_RawBuffer_CreateRawAliasOfBuffer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args, raw_buffer);

/// A handle to the memory of a buffer; the caller frees it.
typedef PJRT_Error* PJRT_RawBuffer_CreateRawAliasOfBuffer(
    PJRT_RawBuffer_CreateRawAliasOfBuffer_Args* args);

typedef struct PJRT_RawBuffer_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
} PJRT_RawBuffer_Destroy_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_Destroy_Args, buffer);

/// Frees a raw buffer.
typedef PJRT_Error* PJRT_RawBuffer_Destroy(PJRT_RawBuffer_Destroy_Args* args);

typedef struct PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
  size_t on_device_size_in_bytes;  // out
} PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args, on_device_size_in_bytes);

/// The bytes it takes on the device.
typedef PJRT_Error* PJRT_RawBuffer_GetOnDeviceSizeInBytes(
    PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args* args);

typedef struct PJRT_RawBuffer_GetMemorySpace_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
  PJRT_Memory* memory_space;  // out
} PJRT_RawBuffer_GetMemorySpace_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_GetMemorySpace_Args, memory_space);

/// The memory it is in, owned by the client.
typedef PJRT_Error* PJRT_RawBuffer_GetMemorySpace(PJRT_RawBuffer_GetMemorySpace_Args* args);

typedef struct PJRT_RawBuffer_CopyRawHostToDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
  const void* src;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event* event;  // out
} PJRT_RawBuffer_CopyRawHostToDevice_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_CopyRawHostToDevice_Args, event);

/// Copies bytes to the device; `src` must stay until the event.
typedef PJRT_Error* PJRT_RawBuffer_CopyRawHostToDevice(
    PJRT_RawBuffer_CopyRawHostToDevice_Args* args);

typedef struct PJRT_RawBuffer_CopyRawDeviceToHost_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
  void* dst;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event* event;  // out
} PJRT_RawBuffer_CopyRawDeviceToHost_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_CopyRawDeviceToHost_Args, event);

/// Copies bytes to the host; `dst` must stay until the event.
typedef PJRT_Error* PJRT_RawBuffer_CopyRawDeviceToHost(
    PJRT_RawBuffer_CopyRawDeviceToHost_Args* args);

typedef struct PJRT_RawBuffer_GetHostPointer_Args {
  size_t struct_size;
  PJRT_Extension_Base* extension_start;
  PJRT_RawBuffer* buffer;
  void* host_pointer;  // out
} PJRT_RawBuffer_GetHostPointer_Args;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_GetHostPointer_Args, host_pointer);

/// The address if the host can read the memory, else null.
typedef PJRT_Error* PJRT_RawBuffer_GetHostPointer(PJRT_RawBuffer_GetHostPointer_Args* args);

/// Type PJRT_Extension_Type_RawBuffer.
typedef struct PJRT_RawBuffer_Extension {
  PJRT_Extension_Base base;
  PJRT_RawBuffer_CreateRawAliasOfBuffer* PJRT_RawBuffer_CreateRawAliasOfBuffer;
  PJRT_RawBuffer_Destroy* PJRT_RawBuffer_Destroy;
  PJRT_RawBuffer_GetOnDeviceSizeInBytes* PJRT_RawBuffer_GetOnDeviceSizeInBytes;
  PJRT_RawBuffer_GetMemorySpace* PJRT_RawBuffer_GetMemorySpace;
  PJRT_RawBuffer_CopyRawHostToDevice* PJRT_RawBuffer_CopyRawHostToDevice;
  PJRT_RawBuffer_CopyRawDeviceToHost* PJRT_RawBuffer_CopyRawDeviceToHost;
  PJRT_RawBuffer_GetHostPointer* PJRT_RawBuffer_GetHostPointer;
} PJRT_RawBuffer_Extension;
PJRT_STRUCT_ENDS_AT(PJRT_RawBuffer_Extension, PJRT_RawBuffer_GetHostPointer);

#ifdef __cplusplus
}
#endif

#endif  // MAINSTAY_PJRT_EXTENSIONS_H_
