// The fake plugin's executables: compiled, serialized, loaded, executed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_objects.h"

struct PJRT_LoadedExecutable {
  PJRT_Executable* executable;
  PJRT_Client* client;
  bool deleted;
  size_t num_devices;
  PJRT_Device* devices[FAKE_MOST_DEVICES];
  PJRT_LogicalDeviceIds logical_ids[FAKE_MOST_DEVICES];
};

// A serialized executable: this word, the size of the options, the options, the text.
static const char MAGIC[8] = "FAKEEXE1";

// ---- Compiling ------------------------------------------------------------------------------------------------------

void fake_layout_text(size_t rank, struct PJRT_Layouts_MemoryLayout* layout) {
  char* at = layout->text;
  *at++ = '{';
  for (size_t i = rank; i-- > 0;) at += sprintf(at, i ? "%zu," : "%zu", i);
  *at++ = '}';
  *at = 0;
}

static void lend_metadata(PJRT_Executable* executable) {
  const FakeProgram* program = &executable->program;
  int64_t* dims = executable->dims;
  for (size_t i = 0; i < FAKE_MOST_VALUES; ++i) {
    executable->kinds[i] = FAKE_KIND_NAMES[0];
    executable->kind_sizes[i] = strlen(FAKE_KIND_NAMES[0]);
    fake_layout_text(program->parameters[i].rank, &executable->layouts[0][i]);
    fake_layout_text(program->outputs[i].shape.rank, &executable->layouts[1][i]);
    for (int which = 0; which < 2; ++which) executable->layout_lists[which][i] = &executable->layouts[which][i];
  }
  for (size_t i = 0; i < program->num_outputs; ++i) {
    const FakeShape* shape = &program->outputs[i].shape;
    executable->types[i] = shape->type;
    executable->ranks[i] = shape->rank;
    memcpy(dims, shape->dims, shape->rank * sizeof(*dims));
    dims += shape->rank;
  }
  executable->cost[0] = (PJRT_NamedValue){
      .struct_size = PJRT_NamedValue_STRUCT_SIZE,
      .name = "flops",
      .name_size = 5,
      .type = PJRT_NamedValue_kFloat,
      .float_value = 1,
      .value_size = 1,
  };
}

static PJRT_Error* new_executable(const char* text, size_t text_size, const char* options, size_t options_size, PJRT_Executable** out) {
  PJRT_Executable* executable = calloc(1, sizeof(*executable));
  const char* wrong = fake_read_program(text, text_size, options, options_size, &executable->program);
  if (wrong) {
    free(executable);
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "%s", wrong);
  }
  executable->references = 1;
  size_t head = sizeof(MAGIC) + sizeof(options_size);
  executable->serialized_size = head + options_size + text_size;
  executable->serialized = malloc(executable->serialized_size);
  memcpy(executable->serialized, MAGIC, sizeof(MAGIC));
  memcpy(executable->serialized + sizeof(MAGIC), &options_size, sizeof(options_size));
  if (options_size) memcpy(executable->serialized + head, options, options_size);
  memcpy(executable->serialized + head + options_size, text, text_size);
  executable->options = executable->serialized + head;
  executable->options_size = options_size;
  executable->text = executable->options + options_size;
  executable->text_size = text_size;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < executable->serialized_size; ++i) {
    hash = (hash ^ (unsigned char)executable->serialized[i]) * UINT64_C(0x100000001b3);
  }
  snprintf(executable->fingerprint, sizeof(executable->fingerprint), "%016llx", (unsigned long long)hash);
  lend_metadata(executable);
  *out = executable;
  return NULL;
}

static void release(PJRT_Executable* executable) {
  pthread_mutex_lock(&fake_lock);
  bool last = --executable->references == 0;
  pthread_mutex_unlock(&fake_lock);
  if (!last) return;
  free(executable->serialized);
  free(executable);
}

static PJRT_Executable* share(PJRT_Executable* executable) {
  pthread_mutex_lock(&fake_lock);
  ++executable->references;
  pthread_mutex_unlock(&fake_lock);
  return executable;
}

// Takes the executable over.
static PJRT_Error* load(PJRT_Client* client, PJRT_Executable* executable, PJRT_LoadedExecutable** out) {
  const FakeProgram* program = &executable->program;
  PJRT_LoadedExecutable* loaded = calloc(1, sizeof(*loaded));
  loaded->executable = executable;
  loaded->client = client;
  loaded->num_devices = (size_t)(program->replicas * program->partitions);
  for (size_t i = 0; i < loaded->num_devices; ++i) {
    int id = program->assignment[i];
    if (id < 0 || (size_t)id >= client->num_devices) {
      release(executable);
      free(loaded);
      return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "the program wants device %d, which the client does not have", id);
    }
    loaded->devices[i] = client->device_list[id];
    loaded->logical_ids[i] = (PJRT_LogicalDeviceIds){(int)i / program->partitions, (int)i % program->partitions};
  }
  *out = loaded;
  return NULL;
}

static PJRT_Error* compile(const PJRT_Program* program, const char* options, size_t options_size, PJRT_Executable** out) {
  return new_executable(program->code, program->code_size, options, options_size, out);
}

PJRT_Error* fake_PJRT_Client_Compile(PJRT_Client_Compile_Args* args) {
  PJRT_Executable* executable;
  PJRT_Error* error = compile(args->program, args->compile_options, args->compile_options_size, &executable);
  return error ? error : load(args->client, executable, &args->executable);
}

PJRT_Error* fake_PJRT_Compile(PJRT_Compile_Args* args) {
  return compile(args->program, args->compile_options, args->compile_options_size, &args->executable);
}

PJRT_Error* fake_PJRT_Client_Load(PJRT_Client_Load_Args* args) {
  return load(args->client, args->executable, &args->loaded_executable);
}

PJRT_Error* fake_PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  const char* bytes = args->serialized_executable;
  size_t options_size = 0, head = sizeof(MAGIC) + sizeof(options_size);
  if (args->serialized_executable_size >= head) memcpy(&options_size, bytes + sizeof(MAGIC), sizeof(options_size));
  bool good = args->serialized_executable_size >= head && memcmp(bytes, MAGIC, sizeof(MAGIC)) == 0 &&
              options_size <= args->serialized_executable_size - head;
  if (!good) return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "these bytes are no executable of the fake plugin");
  const char* options = bytes + head;
  const char* text = options + options_size;
  size_t text_size = args->serialized_executable_size - head - options_size;
  if (args->overridden_serialized_compile_options_size) {
    options = args->overridden_serialized_compile_options;
    options_size = args->overridden_serialized_compile_options_size;
  }
  PJRT_Executable* executable;
  PJRT_Error* error = new_executable(text, text_size, options, options_size, &executable);
  return error ? error : load(args->client, executable, &args->loaded_executable);
}

// ---- Metadata -------------------------------------------------------------------------------------------------------

PJRT_Error* fake_PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args* args) {
  if (args->executable) release(args->executable);
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_Name(PJRT_Executable_Name_Args* args) {
  args->executable_name = args->executable->program.name;
  args->executable_name_size = strlen(args->executable_name);
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args* args) {
  args->num_replicas = (size_t)args->executable->program.replicas;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args* args) {
  args->num_partitions = (size_t)args->executable->program.partitions;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = args->executable->program.num_outputs;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args* args) {
  args->size_in_bytes = (int64_t)args->executable->text_size;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args* args) {
  args->executable_fingerprint = args->executable->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable->fingerprint);
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args* args) {
  args->num_properties = 1;
  args->properties = args->executable->cost;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args* args) {
  int64_t outputs = 0, arguments = 0;
  const FakeProgram* program = &args->executable->program;
  for (size_t i = 0; i < program->num_outputs; ++i) outputs += (int64_t)fake_size(&program->outputs[i].shape);
  for (size_t i = 0; i < program->num_parameters; ++i) arguments += (int64_t)fake_size(&program->parameters[i]);
  *args = (PJRT_Executable_GetCompiledMemoryStats_Args){
      .struct_size = args->struct_size,
      .extension_start = args->extension_start,
      .executable = args->executable,
      .argument_size_in_bytes = arguments,
      .output_size_in_bytes = outputs,
      .total_size_in_bytes = arguments + outputs,
  };
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args* args) {
  args->output_types = args->executable->types;
  args->num_output_types = args->executable->program.num_outputs;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args* args) {
  args->num_outputs = args->executable->program.num_outputs;
  args->dims = args->executable->dims;
  args->dim_sizes = args->executable->ranks;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args* args) {
  args->num_outputs = args->executable->program.num_outputs;
  args->memory_kinds = args->executable->kinds;
  args->memory_kind_sizes = args->executable->kind_sizes;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args* args) {
  args->num_parameters = args->executable->program.num_parameters;
  args->memory_kinds = args->executable->kinds;
  args->memory_kind_sizes = args->executable->kind_sizes;
  return NULL;
}

PJRT_Error* fake_PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args* args) {
  static const char format[] = "fake";
  args->program->format = format;
  args->program->format_size = sizeof(format) - 1;
  args->program->code_size = args->executable->text_size;
  if (args->program->code) memcpy(args->program->code, args->executable->text, args->executable->text_size);
  return NULL;
}

static void free_executable_bytes(PJRT_SerializedExecutable* holder) { release((PJRT_Executable*)holder); }

PJRT_Error* fake_PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args* args) {
  PJRT_Executable* executable = (PJRT_Executable*)args->executable;
  args->serialized_bytes = executable->serialized;
  args->serialized_bytes_size = executable->serialized_size;
  args->serialized_executable = (PJRT_SerializedExecutable*)share(executable);
  args->serialized_executable_deleter = free_executable_bytes;
  return NULL;
}

static void free_options(PJRT_SerializedCompileOptions* holder) { release((PJRT_Executable*)holder); }

PJRT_Error* fake_PJRT_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args* args) {
  args->serialized_bytes = args->executable->options;
  args->serialized_bytes_size = args->executable->options_size;
  args->serialized_compile_options = (PJRT_SerializedCompileOptions*)share(args->executable);
  args->serialized_compile_options_deleter = free_options;
  return NULL;
}

// ---- Loaded executables ---------------------------------------------------------------------------------------------

PJRT_Error* fake_PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  if (!args->executable) return NULL;
  release(args->executable->executable);
  free(args->executable);
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = share(args->loaded_executable->executable);
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = args->executable->devices;
  args->num_addressable_devices = args->executable->num_devices;
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args* args) {
  args->addressable_device_logical_ids = args->executable->logical_ids;
  args->num_addressable_device_logical_ids = args->executable->num_devices;
  return NULL;
}

static void free_assignment(PJRT_DeviceAssignmentSerialized* holder) { free(holder); }

// A DeviceAssignmentProto: two counts, then one message of replica devices for each partition. All numbers fit a byte.
PJRT_Error* fake_PJRT_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args* args) {
  const FakeProgram* program = &args->executable->executable->program;
  char* bytes = malloc(4 + (size_t)program->partitions * 4 + (size_t)(program->partitions * program->replicas));
  char* at = bytes;
  *at++ = 1 << 3;
  *at++ = (char)program->replicas;
  *at++ = 2 << 3;
  *at++ = (char)program->partitions;
  for (int partition = 0; partition < program->partitions; ++partition) {
    *at++ = 3 << 3 | 2;
    *at++ = (char)(program->replicas + 2);
    *at++ = 1 << 3 | 2;
    *at++ = (char)program->replicas;
    for (int replica = 0; replica < program->replicas; ++replica) {
      *at++ = (char)program->assignment[replica * program->partitions + partition];
    }
  }
  args->serialized_bytes = bytes;
  args->serialized_bytes_size = (size_t)(at - bytes);
  args->serialized_device_assignment = (PJRT_DeviceAssignmentSerialized*)bytes;
  args->serialized_device_assignment_deleter = free_assignment;
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args* args) {
  args->executable_fingerprint = args->executable->executable->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable_fingerprint);
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args* args) {
  args->executable->deleted = true;
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args* args) {
  args->is_deleted = args->executable->deleted;
  return NULL;
}

PJRT_Error* fake_PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args* args) {
  args->context = calloc(1, 1);
  return NULL;
}

PJRT_Error* fake_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args) {
  free(args->context);
  return NULL;
}

// ---- Executing ------------------------------------------------------------------------------------------------------

// What one device has to do.
typedef struct {
  PJRT_Executable* executable;
  FakeStorage* inputs[FAKE_MOST_VALUES];
  FakeStorage* outputs[FAKE_MOST_VALUES];
  PJRT_Event* done;
} Launch;

// Sleeps, fails or ends the process as the program says.
static PJRT_Error_Code end_as_told(const FakeProgram* program, char* words, size_t room) {
  struct timespec time = {program->sleep_ms / 1000, (long)(program->sleep_ms % 1000) * 1000000};
  if (program->sleep_ms) nanosleep(&time, NULL);
  switch (program->ending) {
    case FAKE_RETURNS:
      return PJRT_Error_Code_OK;
    case FAKE_FAILS:
      snprintf(words, room, "%s", program->ending_message);
      return (PJRT_Error_Code)program->ending_code;
    case FAKE_HANGS:
      for (;;) pause();
    case FAKE_ABORTS:
      abort();
    case FAKE_EXITS:
      _exit(program->ending_code);
  }
  return PJRT_Error_Code_OK;
}

static void run_launch(void* arg) {
  Launch* launch = arg;
  const FakeProgram* program = &launch->executable->program;
  char words[256] = "";
  char* data[FAKE_MOST_VALUES];
  PJRT_Error_Code code = PJRT_Error_Code_OK;
  for (size_t i = 0; i < program->num_parameters; ++i) {
    PJRT_Error_Code input = fake_event_wait(launch->inputs[i]->ready, words, code ? 0 : sizeof(words));
    if (!code) code = input;
    data[i] = launch->inputs[i]->data;
  }
  if (!code) code = end_as_told(program, words, sizeof(words));
  for (size_t i = 0; i < program->num_outputs; ++i) {
    if (!code) fake_compute(program, i, data, launch->outputs[i]->data);
    fake_event_set(launch->outputs[i]->ready, code, words);
    fake_storage_release(launch->outputs[i]);
  }
  for (size_t i = 0; i < program->num_parameters; ++i) fake_storage_release(launch->inputs[i]);
  fake_event_set(launch->done, code, words);
  fake_event_release(launch->done);
  release(launch->executable);
  free(launch);
}

static PJRT_Error* take_inputs(const FakeProgram* program, PJRT_Buffer* const* arguments, Launch* launch) {
  for (size_t i = 0; i < program->num_parameters; ++i) {
    PJRT_Buffer* argument = arguments[i];
    const char* wrong = fake_size(&argument->shape) != fake_size(&program->parameters[i]) ? "has another size than its parameter" : NULL;
    launch->inputs[i] = wrong ? NULL : fake_buffer_storage(argument);
    if (launch->inputs[i]) continue;
    while (i-- > 0) fake_storage_release(launch->inputs[i]);
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "an argument %s", wrong ? wrong : "was deleted or donated");
  }
  return NULL;
}

// Starts the program on one device.
static PJRT_Error* launch_on(PJRT_Executable* executable, PJRT_Device* device, PJRT_Buffer* const* arguments, PJRT_Buffer** results,
                             PJRT_Event** done) {
  const FakeProgram* program = &executable->program;
  Launch* launch = calloc(1, sizeof(*launch));
  PJRT_Error* error = take_inputs(program, arguments, launch);
  if (error) {
    free(launch);
    return error;
  }
  bool at_once = !fake_is_slow(program);
  for (size_t i = 0; i < program->num_parameters; ++i) at_once = at_once && fake_event_is_decided(launch->inputs[i]->ready);
  for (size_t i = 0; i < program->num_outputs; ++i) {
    const FakeShape* shape = &program->outputs[i].shape;
    launch->outputs[i] = fake_storage(fake_size(shape));
    results[i] = fake_buffer(fake_storage_share(launch->outputs[i]), shape, device->memory_list[0]);
  }
  launch->executable = share(executable);
  launch->done = fake_event();
  if (done) *done = fake_event_share(launch->done);
  fake_run(run_launch, launch, at_once);
  return NULL;
}

PJRT_Error* fake_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  PJRT_LoadedExecutable* loaded = args->executable;
  const FakeProgram* program = &loaded->executable->program;
  size_t devices = args->execute_device ? 1 : loaded->num_devices;
  if (loaded->deleted) return fake_error(PJRT_Error_Code_FAILED_PRECONDITION, NULL, "the executable was deleted");
  if (args->num_devices != devices || args->num_args != program->num_parameters) {
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "%zu arguments on %zu devices are expected, %zu on %zu were given",
                      program->num_parameters, devices, args->num_args, args->num_devices);
  }
  for (size_t i = 0; i < devices; ++i) {
    PJRT_Device* device = args->execute_device ? args->execute_device : loaded->devices[i];
    PJRT_Event** done = args->device_complete_events ? &args->device_complete_events[i] : NULL;
    PJRT_Buffer* const* arguments = program->num_parameters ? args->argument_lists[i] : NULL;
    PJRT_Error* error = launch_on(loaded->executable, device, arguments, args->output_lists[i], done);
    if (error) return error;
  }
  return NULL;
}
