// The fake plugin's buffers: bytes in host memory, dense and major to minor, an element of less than a byte in a byte.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_objects.h"

// ---- Storage --------------------------------------------------------------------------------------------------------

FakeStorage* fake_storage(size_t size) {
  FakeStorage* storage = calloc(1, sizeof(*storage));
  storage->references = 1;
  storage->data = calloc(1, size ? size : 1);
  storage->size = size;
  storage->ready = fake_event();
  return storage;
}

FakeStorage* fake_storage_share(FakeStorage* storage) {
  pthread_mutex_lock(&fake_lock);
  ++storage->references;
  pthread_mutex_unlock(&fake_lock);
  return storage;
}

void fake_storage_release(FakeStorage* storage) {
  pthread_mutex_lock(&fake_lock);
  bool last = --storage->references == 0;
  pthread_mutex_unlock(&fake_lock);
  if (!last) return;
  if (storage->on_delete) {
    storage->on_delete(storage->data, storage->on_delete_arg);
  } else {
    free(storage->data);
  }
  fake_event_release(storage->ready);
  free(storage);
}

PJRT_Buffer* fake_buffer(FakeStorage* storage, const FakeShape* shape, PJRT_Memory* memory) {
  PJRT_Buffer* buffer = calloc(1, sizeof(*buffer));
  buffer->storage = storage;
  buffer->shape = *shape;
  buffer->memory = memory;
  for (size_t i = 0; i < shape->rank; ++i) buffer->minor_to_major[i] = (int64_t)(shape->rank - 1 - i);
  return buffer;
}

FakeStorage* fake_buffer_storage(PJRT_Buffer* buffer) {
  pthread_mutex_lock(&fake_lock);
  FakeStorage* storage = buffer->storage;
  if (storage) ++storage->references;
  pthread_mutex_unlock(&fake_lock);
  return storage;
}

static PJRT_Error* deleted(void) {
  return fake_error(PJRT_Error_Code_FAILED_PRECONDITION, NULL, "the buffer was deleted or donated");
}

static PJRT_Error* read_shape(PJRT_Buffer_Type type, const int64_t* dims, size_t rank, FakeShape* shape) {
  if (!fake_element_size(type) || rank > FAKE_MOST_RANK) {
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "the fake plugin has no arrays of type %u and rank %zu", type, rank);
  }
  *shape = (FakeShape){.type = type, .rank = rank};
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "dimension %zu is %lld", i, (long long)dims[i]);
    shape->dims[i] = dims[i];
  }
  return NULL;
}

static PJRT_Memory* memory_or_default(PJRT_Memory* memory, PJRT_Device* device) {
  return memory ? memory : device ? device->memory_list[0] : NULL;
}

// ---- Copies, which wait for their source ----------------------------------------------------------------------------

typedef struct {
  FakeStorage* source;
  FakeShape shape;
  bool raw;          // bytes from `offset` on, not elements
  size_t offset;
  size_t size;
  char* to;
  int64_t strides[FAKE_MOST_RANK];  // of the destination
  FakeStorage* target;              // null for the host
  PJRT_Event* done;
} Copy;

static void run_copy(void* arg) {
  Copy* copy = arg;
  char words[256];
  PJRT_Error_Code code = fake_event_wait(copy->source->ready, words, sizeof(words));
  if (!code && copy->raw) {
    memcpy(copy->to, copy->source->data + copy->offset, copy->size);
  } else if (!code) {
    int64_t strides[FAKE_MOST_RANK];
    fake_dense_strides(&copy->shape, NULL, strides);
    fake_copy(&copy->shape, copy->to, copy->strides, copy->source->data, strides);
  }
  fake_event_set(copy->done, code, code ? words : NULL);
  fake_event_release(copy->done);
  fake_storage_release(copy->source);
  if (copy->target) fake_storage_release(copy->target);
  free(copy);
}

// Takes over the source and, if there is one, the target; shares `done`.
static void start_copy(Copy what, PJRT_Event* done) {
  Copy* copy = malloc(sizeof(*copy));
  *copy = what;
  copy->done = fake_event_share(done);
  fake_run(run_copy, copy, fake_event_is_decided(copy->source->ready));
}

static PJRT_Error* copy_to_memory(PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out) {
  FakeStorage* source = fake_buffer_storage(buffer);
  if (!source) return deleted();
  FakeStorage* target = fake_storage(source->size);
  *out = fake_buffer(target, &buffer->shape, memory);
  Copy copy = {.source = source, .raw = true, .size = source->size, .to = target->data, .target = fake_storage_share(target)};
  start_copy(copy, target->ready);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args* args) {
  return copy_to_memory(args->buffer, args->dst_device->memory_list[0], &args->dst_buffer);
}

PJRT_Error* fake_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args) {
  return copy_to_memory(args->buffer, args->dst_memory, &args->dst_buffer);
}

PJRT_Error* fake_PJRT_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args* args) {
  FakeStorage* source = fake_buffer_storage(args->buffer);
  if (!source) return deleted();
  if (args->offset < 0 || args->transfer_size < 0 || (size_t)(args->offset + args->transfer_size) > source->size) {
    fake_storage_release(source);
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "the buffer has no such bytes");
  }
  Copy copy = {
      .source = source,
      .raw = true,
      .offset = (size_t)args->offset,
      .size = (size_t)args->transfer_size,
      .to = args->dst,
  };
  args->event = fake_event();
  start_copy(copy, args->event);
  return NULL;
}

// The strides that a host layout asks for.
static PJRT_Error* host_strides(const FakeShape* shape, const PJRT_Buffer_MemoryLayout* layout, int64_t* strides) {
  if (!layout) {
    fake_dense_strides(shape, NULL, strides);
  } else if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) {
    for (size_t i = 0; i < shape->rank && i < layout->strides.num_byte_strides; ++i) strides[i] = layout->strides.byte_strides[i];
  } else if (layout->tiled.num_tiles == 0 && layout->tiled.minor_to_major_size == shape->rank) {
    fake_dense_strides(shape, layout->tiled.minor_to_major, strides);
  } else {
    return fake_error(PJRT_Error_Code_UNIMPLEMENTED, NULL, "the fake plugin has no tiled host layouts");
  }
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  size_t size = fake_size(&args->src->shape);
  if (!args->dst) {
    args->dst_size = size;
    return NULL;
  }
  if (args->dst_size < size) {
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "%zu bytes don't fit %zu", size, args->dst_size);
  }
  Copy copy = {.shape = args->src->shape, .to = args->dst};
  PJRT_Error* error = host_strides(&copy.shape, args->host_layout, copy.strides);
  if (error) return error;
  copy.source = fake_buffer_storage(args->src);
  if (!copy.source) return deleted();
  args->event = fake_event();
  start_copy(copy, args->event);
  return NULL;
}

// ---- New buffers ----------------------------------------------------------------------------------------------------

PJRT_Error* fake_PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args* args) {
  FakeShape shape;
  PJRT_Error* error = read_shape(args->type, args->dims, args->num_dims, &shape);
  if (error) return error;
  int64_t strides[FAKE_MOST_RANK], dense[FAKE_MOST_RANK];
  fake_dense_strides(&shape, NULL, dense);
  memcpy(strides, dense, sizeof(strides));
  for (size_t i = 0; i < args->num_byte_strides && i < shape.rank; ++i) strides[i] = args->byte_strides[i];
  FakeStorage* storage = fake_storage(fake_size(&shape));
  fake_copy(&shape, storage->data, dense, args->data, strides);
  fake_event_set(storage->ready, PJRT_Error_Code_OK, NULL);
  args->buffer = fake_buffer(storage, &shape, memory_or_default(args->memory, args->device));
  args->done_with_host_buffer = fake_ready_event();
  return NULL;
}

PJRT_Error* fake_PJRT_Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args* args) {
  FakeShape shape;
  PJRT_Error* error = read_shape(args->element_type, args->dims, args->num_dims, &shape);
  if (error) return error;
  FakeStorage* storage = fake_storage(0);
  free(storage->data);
  storage->data = args->device_buffer_ptr;
  storage->size = fake_size(&shape);
  storage->on_delete = args->on_delete_callback;
  storage->on_delete_arg = args->on_delete_callback_arg;
  fake_event_set(storage->ready, PJRT_Error_Code_OK, NULL);
  args->buffer = fake_buffer(storage, &shape, memory_or_default(args->memory, args->device));
  return NULL;
}

PJRT_Error* fake_PJRT_Client_CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args* args) {
  FakeShape shape;
  PJRT_Error* error = read_shape(args->shape_element_type, args->shape_dims, args->shape_num_dims, &shape);
  if (error) return error;
  FakeStorage* storage = fake_storage(fake_size(&shape));
  fake_event_set(storage->ready, PJRT_Error_Code_OK, NULL);
  args->buffer = fake_buffer(storage, &shape, memory_or_default(args->memory, args->device));
  return NULL;
}

PJRT_Error* fake_PJRT_Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args* args) {
  FakeShape shape;
  PJRT_Error* error = read_shape(args->shape_element_type, args->shape_dims, args->shape_num_dims, &shape);
  if (error) return error;
  char words[256];
  snprintf(words, sizeof(words), "%.*s", (int)args->error_message_size, args->error_message);
  FakeStorage* storage = fake_storage(fake_size(&shape));
  fake_event_set(storage->ready, args->error_code, words);
  args->buffer = fake_buffer(storage, &shape, args->memory);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args* args) {
  FakeShape shape;
  PJRT_Error* error = read_shape(args->element_type, args->dims, args->num_dims, &shape);
  if (error) return error;
  FakeStorage* storage = fake_buffer_storage(args->buffer);
  if (!storage) return deleted();
  if (fake_size(&shape) != storage->size) {
    fake_storage_release(storage);
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "the two shapes differ in size");
  }
  args->out_buffer = fake_buffer(storage, &shape, args->buffer->memory);
  return NULL;
}

// ---- Properties -----------------------------------------------------------------------------------------------------

static void delete_buffer(PJRT_Buffer* buffer) {
  pthread_mutex_lock(&fake_lock);
  FakeStorage* storage = buffer->storage;
  buffer->storage = NULL;
  pthread_mutex_unlock(&fake_lock);
  if (storage) fake_storage_release(storage);
}

PJRT_Error* fake_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (!args->buffer) return NULL;
  delete_buffer(args->buffer);
  free(args->buffer);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args) {
  delete_buffer(args->buffer);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args* args) {
  FakeStorage* storage = fake_buffer_storage(args->buffer);
  args->is_deleted = !storage;
  if (storage) fake_storage_release(storage);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args* args) {
  args->type = args->buffer->shape.type;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args* args) {
  args->dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args* args) {
  args->unpadded_dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args* args) {
  args->dynamic_dim_indices = NULL;
  args->num_dynamic_dims = 0;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args* args) {
  args->layout = (PJRT_Buffer_MemoryLayout){
      .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
      .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
      .tiled =
          {
              .struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
              .minor_to_major = args->buffer->minor_to_major,
              .minor_to_major_size = args->buffer->shape.rank,
          },
  };
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args* args) {
  args->on_device_size_in_bytes = fake_size(&args->buffer->shape);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_Device(PJRT_Buffer_Device_Args* args) {
  args->device = fake_memory(args->buffer->memory)->device;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args* args) {
  args->memory = args->buffer->memory;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args* args) {
  args->is_on_cpu = true;
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  FakeStorage* storage = fake_buffer_storage(args->buffer);
  if (!storage) return deleted();
  args->event = fake_event_share(storage->ready);
  fake_storage_release(storage);
  return NULL;
}

static PJRT_Error* pointer(PJRT_Buffer* buffer, char** data) {
  FakeStorage* storage = fake_buffer_storage(buffer);
  if (!storage) return deleted();
  *data = storage->data;
  fake_storage_release(storage);
  return NULL;
}

PJRT_Error* fake_PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args* args) {
  char* data = NULL;
  PJRT_Error* error = pointer(args->buffer, &data);
  args->buffer_pointer = (uintptr_t)data;
  return error;
}

PJRT_Error* fake_PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* args) {
  char* data = NULL;
  PJRT_Error* error = pointer(args->buffer, &data);
  args->device_memory_ptr = data;
  return error;
}

PJRT_Error* fake_PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args* args) {
  return fake_buffer_storage(args->buffer) ? NULL : deleted();
}

PJRT_Error* fake_PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args* args) {
  FakeStorage* storage = fake_buffer_storage(args->buffer);
  if (!storage) return deleted();
  fake_storage_release(storage);
  fake_storage_release(storage);
  return NULL;
}
