// A fake PJRT plugin that misbehaves on command: see fake_faults.h for the commands, fake_program.h for its programs.
//
// It is whole enough for a framework or a worker to live with (N devices, host memory for device memory, programs that are
// compiled, serialized, loaded and executed) and lacks what nobody asks of it: transfer managers, alias buffers, chunked
// streams. This file has its table of functions, through which every command takes effect, and its extensions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_faults.h"
#include "fake_objects.h"

// ---- The table ------------------------------------------------------------------------------------------------------

// Functions are defined in the other files, as fake_PJRT_Foo; one that is not defined anywhere is null here. All return an
// error; from the two that have none to give, the caller does not expect one.
#define FAULTY(function) \
  __attribute__((weak)) PJRT_Error* fake_##function(function##_Args* args); \
  static PJRT_Error* faulty_##function(function##_Args* args) { \
    FakeFault fault = fake_fault(#function); \
    if (fault.code) return fake_error((PJRT_Error_Code)fault.code, #function, "%s", fault.message); \
    if (args->struct_size < function##_Args_STRUCT_SIZE) { \
      return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, #function "_Args has %zu bytes, %zu are expected", \
                        args->struct_size, (size_t)function##_Args_STRUCT_SIZE); \
    } \
    if (!fake_##function) return fake_error(PJRT_Error_Code_UNIMPLEMENTED, NULL, "the fake plugin has no " #function); \
    PJRT_Error* error = fake_##function(args); \
    if (!error && fault.changes_output) fake_change_output(#function, args); \
    return error; \
  }
PJRT_FUNCTIONS(FAULTY)
#undef FAULTY

static PJRT_Error* newer_function(void* args) {
  (void)args;
  return fake_error(PJRT_Error_Code_UNIMPLEMENTED, NULL, "a function of a newer interface was called");
}

static PJRT_Extension_Base* extensions(void);

// The table as it is told to look: of exactly the size it should have, so that a reader past its end can be caught.
static PJRT_Api* new_table(void) {
  static const char* const names[] = {
#define NAME(function) #function,
      PJRT_FUNCTIONS(NAME)
#undef NAME
  };
  void* functions[] = {
#define FUNCTION(function) (void*)(uintptr_t)faulty_##function,
      PJRT_FUNCTIONS(FUNCTION)
#undef FUNCTION
  };
  const FakeLooks* looks = fake_looks();
  size_t known = sizeof(functions) / sizeof(*functions);
  size_t head = offsetof(PJRT_Api, PJRT_Error_Destroy);
  PJRT_Api* api = calloc(1, head + looks->functions * sizeof(void*));
  api->struct_size = looks->struct_size ? looks->struct_size : head + looks->functions * sizeof(void*);
  api->extension_start = extensions();
  api->pjrt_api_version = (PJRT_Api_Version){
      .struct_size = PJRT_Api_Version_STRUCT_SIZE,
      .major_version = looks->major,
      .minor_version = looks->minor,
  };
  void** slots = (void**)((char*)api + head);
  for (size_t i = 0; i < looks->functions; ++i) {
    if (i >= known) {
      slots[i] = (void*)(uintptr_t)newer_function;
    } else if (!fake_has_item("missing", names[i])) {
      slots[i] = functions[i];
    }
  }
  return api;
}

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi(void) {
  static const PJRT_Api* api;
  FakeFault fault = fake_fault("GetPjrtApi");
  if (fault.code) return NULL;
  pthread_mutex_lock(&fake_lock);
  if (!api) api = new_table();
  pthread_mutex_unlock(&fake_lock);
  return api;
}

// ---- Layouts --------------------------------------------------------------------------------------------------------

static PJRT_Layouts_MemoryLayout* new_layout(size_t rank) {
  PJRT_Layouts_MemoryLayout* layout = calloc(1, sizeof(*layout));
  fake_layout_text(rank, layout);
  return layout;
}

static PJRT_Error* layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args* args) {
  free(args->layout);
  return NULL;
}

static void free_text(PJRT_Layouts_SerializedLayout* text) { free(text); }

static PJRT_Error* layout_serialize(PJRT_Layouts_MemoryLayout_Serialize_Args* args) {
  char* text = strdup(args->layout->text);
  args->serialized_bytes = text;
  args->serialized_bytes_size = strlen(text);
  args->serialized_layout = (PJRT_Layouts_SerializedLayout*)text;
  args->serialized_layout_deleter = free_text;
  return NULL;
}

static PJRT_Error* client_default_layout(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args* args) {
  args->layout = new_layout(args->num_dims);
  return NULL;
}

static PJRT_Error* topology_default_layout(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args* args) {
  args->layout = new_layout(args->num_dims);
  return NULL;
}

static PJRT_Error* buffer_layout(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args* args) {
  args->layout = new_layout(args->buffer->shape.rank);
  return NULL;
}

static PJRT_Error* output_layouts(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args* args) {
  args->num_outputs = args->executable->program.num_outputs;
  args->layouts = args->executable->layout_lists[1];
  return NULL;
}

static PJRT_Error* parameter_layouts(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args* args) {
  args->num_parameters = args->executable->program.num_parameters;
  args->layouts = args->executable->layout_lists[0];
  return NULL;
}

static PJRT_Layouts_Extension layouts = {
    .base = {PJRT_Layouts_Extension_STRUCT_SIZE, PJRT_Extension_Type_Layouts, NULL},
    .PJRT_Layouts_MemoryLayout_Destroy = layout_destroy,
    .PJRT_Layouts_MemoryLayout_Serialize = layout_serialize,
    .PJRT_Layouts_PJRT_Client_GetDefaultLayout = client_default_layout,
    .PJRT_Layouts_PJRT_Buffer_MemoryLayout = buffer_layout,
    .PJRT_Layouts_PJRT_Topology_GetDefaultLayout = topology_default_layout,
    .PJRT_Layouts_PJRT_Executable_GetOutputLayouts = output_layouts,
    .PJRT_Layouts_PJRT_Executable_GetParameterLayouts = parameter_layouts,
};

// ---- Memory descriptions --------------------------------------------------------------------------------------------

struct PJRT_MemoryDescription {
  int kind;
};

static PJRT_Error* memory_descriptions(PJRT_DeviceDescription_MemoryDescriptions_Args* args) {
  static const PJRT_MemoryDescription descriptions[FAKE_KINDS] = {{0}, {1}, {2}};
  static const PJRT_MemoryDescription* const list[FAKE_KINDS] = {&descriptions[0], &descriptions[1], &descriptions[2]};
  args->memory_descriptions = list;
  args->num_memory_descriptions = FAKE_KINDS;
  args->default_memory_index = 0;
  return NULL;
}

static PJRT_Error* memory_description_kind(PJRT_MemoryDescription_Kind_Args* args) {
  args->kind = FAKE_KIND_NAMES[args->memory_description->kind];
  args->kind_size = strlen(args->kind);
  args->kind_id = args->memory_description->kind;
  return NULL;
}

static PJRT_MemoryDescriptions_Extension memories = {
    .base = {PJRT_MemoryDescriptions_Extension_STRUCT_SIZE, PJRT_Extension_Type_MemoryDescriptions, NULL},
    .PJRT_DeviceDescription_MemoryDescriptions = memory_descriptions,
    .PJRT_MemoryDescription_Kind = memory_description_kind,
};

// ---- Shardings ------------------------------------------------------------------------------------------------------

static PJRT_Error* parameter_shardings(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args* args) {
  args->num_parameters = args->executable->program.num_parameters;
  args->shardings = NULL;
  args->sharding_sizes = NULL;
  return NULL;
}

static PJRT_Error* output_shardings(PJRT_Shardings_PJRT_Executable_OutputShardings_Args* args) {
  args->num_outputs = args->executable->program.num_outputs;
  args->shardings = NULL;
  args->sharding_sizes = NULL;
  return NULL;
}

static PJRT_Shardings_Extension shardings = {
    .base = {PJRT_Shardings_Extension_STRUCT_SIZE, PJRT_Extension_Type_Shardings, NULL},
    .PJRT_Shardings_PJRT_Executable_ParameterShardings = parameter_shardings,
    .PJRT_Shardings_PJRT_Executable_OutputShardings = output_shardings,
};

// The chain of those extensions that the plugin is to have.
static PJRT_Extension_Base* extensions(void) {
  const struct {
    const char* name;
    PJRT_Extension_Base* base;
  } all[] = {
      {"Layouts", &layouts.base},
      {"MemoryDescriptions", &memories.base},
      {"Shardings", &shardings.base},
  };
  PJRT_Extension_Base* first = NULL;
  for (size_t i = 0; i < sizeof(all) / sizeof(*all); ++i) {
    if (fake_has_item("noext", "*") || fake_has_item("noext", all[i].name)) continue;
    all[i].base->next = first;
    first = all[i].base;
  }
  return first;
}
