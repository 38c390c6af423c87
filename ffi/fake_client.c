// The fake plugin's clients, devices, memories and topologies.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_faults.h"
#include "fake_objects.h"

const char* const FAKE_KIND_NAMES[FAKE_KINDS] = {"device", "pinned_host", "unpinned_host"};

#define TEXT(out, size, words) \
  do { \
    (out) = (words); \
    (size) = strlen(out); \
  } while (0)

static PJRT_NamedValue number(const char* name, int64_t value) {
  return (PJRT_NamedValue){
      .struct_size = PJRT_NamedValue_STRUCT_SIZE,
      .name = name,
      .name_size = strlen(name),
      .type = PJRT_NamedValue_kInt64,
      .int64_value = value,
      .value_size = 1,
  };
}

PJRT_Error* fake_PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args* args) {
  (void)args;
  return NULL;
}

PJRT_Error* fake_PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args* args) {
  static PJRT_NamedValue attributes[1];
  attributes[0] = number("fake", 1);
  args->attributes = attributes;
  args->num_attributes = 1;
  return NULL;
}

// ---- Topologies -----------------------------------------------------------------------------------------------------

static PJRT_TopologyDescription* new_topology(size_t num_devices) {
  PJRT_TopologyDescription* topology = calloc(1, sizeof(*topology));
  topology->num_devices = num_devices;
  for (size_t i = 0; i < num_devices; ++i) {
    PJRT_DeviceDescription* device = &topology->devices[i];
    device->id = (int)i;
    device->attributes[0] = number("fake_index", (int64_t)i);
    snprintf(device->text, sizeof(device->text), "FakeDevice(id=%zu)", i);
    topology->list[i] = device;
  }
  return topology;
}

static PJRT_Error* too_many_devices(int64_t count) {
  return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "the fake plugin has 1 to %d devices, not %lld", FAKE_MOST_DEVICES,
                    (long long)count);
}

PJRT_Error* fake_PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args* args) {
  args->topology = new_topology(fake_looks()->devices);
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args* args) {
  free(args->topology);
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args* args) {
  TEXT(args->platform_name, args->platform_name_size, fake_looks()->platform);
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args* args) {
  TEXT(args->platform_version, args->platform_version_size, "fake 1");
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args* args) {
  args->descriptions = args->topology->list;
  args->num_descriptions = args->topology->num_devices;
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args* args) {
  args->attributes = NULL;
  args->num_attributes = 0;
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args* args) {
  args->fingerprint = 0xfa4e0000u + args->topology->num_devices;
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args* args) {
  static const int ids[FAKE_KINDS] = {0, 1, 2};
  args->memory_space_kind_ids = ids;
  args->num_memory_space_kind_ids = FAKE_KINDS;
  return NULL;
}

static void delete_topology_bytes(PJRT_SerializedTopology* bytes) { free(bytes); }

PJRT_Error* fake_PJRT_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args* args) {
  char* bytes = malloc(32);
  args->serialized_bytes_size = (size_t)snprintf(bytes, 32, "fake topology %zu", args->topology->num_devices);
  args->serialized_bytes = bytes;
  args->serialized_topology = (PJRT_SerializedTopology*)bytes;
  args->serialized_topology_deleter = delete_topology_bytes;
  return NULL;
}

PJRT_Error* fake_PJRT_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args* args) {
  char text[32];
  size_t devices = 0;
  snprintf(text, sizeof(text), "%.*s", (int)args->serialized_topology_size, args->serialized_topology);
  if (sscanf(text, "fake topology %zu", &devices) != 1 || devices < 1 || devices > FAKE_MOST_DEVICES) {
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "these bytes are no topology of the fake plugin");
  }
  args->topology = new_topology(devices);
  return NULL;
}

// ---- Clients --------------------------------------------------------------------------------------------------------

static void* get_user_data(PJRT_Memory* memory, const void* key) {
  void* found = NULL;
  pthread_mutex_lock(&fake_lock);
  for (FakeUserData* data = fake_memory(memory)->user_data; data; data = data->next) {
    if (data->key == key) found = data->data;
  }
  pthread_mutex_unlock(&fake_lock);
  return found;
}

static void set_user_data(PJRT_Memory* memory, const void* key, void* value, void (*deleter)(void* data)) {
  FakeUserData old = {0};
  pthread_mutex_lock(&fake_lock);
  FakeUserData* data = fake_memory(memory)->user_data;
  while (data && data->key != key) data = data->next;
  if (!data) {
    data = calloc(1, sizeof(*data));
    data->next = fake_memory(memory)->user_data;
    fake_memory(memory)->user_data = data;
  }
  old = *data;
  data->key = key;
  data->data = value;
  data->deleter = deleter;
  pthread_mutex_unlock(&fake_lock);
  if (old.deleter) old.deleter(old.data);
}

static const PJRT_Memory_FunctionTable MEMORY_TABLE = {
    .struct_size = PJRT_Memory_FunctionTable_STRUCT_SIZE,
    .instance_struct_size = sizeof(FakeMemory),
    .get_user_data = get_user_data,
    .set_user_data = set_user_data,
};

static void init_device(PJRT_Client* client, size_t index) {
  PJRT_Device* device = &client->devices[index];
  device->client = client;
  device->description = client->topology->list[index];
  for (int kind = 0; kind < FAKE_KINDS; ++kind) {
    FakeMemory* memory = &device->memories[kind];
    memory->base.vtable = &MEMORY_TABLE;
    memory->id = (int)index * FAKE_KINDS + kind;
    memory->kind = kind;
    memory->device = device;
    snprintf(memory->text, sizeof(memory->text), "FakeMemory(id=%d, %s)", memory->id, FAKE_KIND_NAMES[kind]);
    device->memory_list[kind] = &memory->base;
    client->memory_list[memory->id] = &memory->base;
  }
  client->device_list[index] = device;
}

PJRT_Error* fake_PJRT_Client_Create(PJRT_Client_Create_Args* args) {
  int64_t devices = (int64_t)fake_looks()->devices;
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue* option = &args->create_options[i];
    char name[32];
    snprintf(name, sizeof(name), "%.*s", (int)option->name_size, option->name);
    bool counts = strcmp(name, "cpu_device_count") == 0 || strcmp(name, "device_count") == 0;
    if (counts && option->type == PJRT_NamedValue_kInt64) devices = option->int64_value;
  }
  if (devices < 1 || devices > FAKE_MOST_DEVICES) return too_many_devices(devices);
  PJRT_Client* client = calloc(1, sizeof(*client));
  client->num_devices = (size_t)devices;
  client->topology = new_topology(client->num_devices);
  for (size_t i = 0; i < client->num_devices; ++i) init_device(client, i);
  args->client = client;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_Destroy(PJRT_Client_Destroy_Args* args) {
  PJRT_Client* client = args->client;
  if (!client) return NULL;
  for (size_t i = 0; i < client->num_devices * FAKE_KINDS; ++i) {
    for (FakeUserData *data = fake_memory(client->memory_list[i])->user_data, *next; data; data = next) {
      next = data->next;
      if (data->deleter) data->deleter(data->data);
      free(data);
    }
  }
  free(client->topology);
  free(client);
  return NULL;
}

PJRT_Error* fake_PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args* args) {
  TEXT(args->platform_name, args->platform_name_size, fake_looks()->platform);
  return NULL;
}

PJRT_Error* fake_PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = 0;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args* args) {
  TEXT(args->platform_version, args->platform_version_size, "fake 1");
  return NULL;
}

PJRT_Error* fake_PJRT_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args* args) {
  args->topology = args->client->topology;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_Devices(PJRT_Client_Devices_Args* args) {
  args->devices = args->client->device_list;
  args->num_devices = args->client->num_devices;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args* args) {
  args->addressable_devices = args->client->device_list;
  args->num_addressable_devices = args->client->num_devices;
  return NULL;
}

static PJRT_Error* find_device(PJRT_Client* client, int id, PJRT_Device** device) {
  if (id < 0 || (size_t)id >= client->num_devices) return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "there is no device %d", id);
  *device = client->device_list[id];
  return NULL;
}

PJRT_Error* fake_PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args* args) {
  return find_device(args->client, args->id, &args->device);
}

PJRT_Error* fake_PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args* args) {
  return find_device(args->client, args->local_hardware_id, &args->addressable_device);
}

PJRT_Error* fake_PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args* args) {
  args->addressable_memories = args->client->memory_list;
  args->num_addressable_memories = args->client->num_devices * FAKE_KINDS;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args* args) {
  size_t count = (size_t)args->num_replicas * (size_t)args->num_partitions;
  if (args->default_assignment_size < count) return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, NULL, "no room for %zu devices", count);
  for (size_t i = 0; i < count; ++i) args->default_assignment[i] = (int)i;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_DmaMap(PJRT_Client_DmaMap_Args* args) {
  (void)args;
  return NULL;
}

PJRT_Error* fake_PJRT_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args* args) {
  (void)args;
  return NULL;
}

// ---- Devices --------------------------------------------------------------------------------------------------------

PJRT_Error* fake_PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args* args) {
  args->id = args->device_description->id;
  return NULL;
}

PJRT_Error* fake_PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  args->process_index = 0;
  return NULL;
}

PJRT_Error* fake_PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args* args) {
  args->attributes = args->device_description->attributes;
  args->num_attributes = 1;
  return NULL;
}

PJRT_Error* fake_PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args* args) {
  TEXT(args->device_kind, args->device_kind_size, "fake");
  return NULL;
}

PJRT_Error* fake_PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args* args) {
  TEXT(args->debug_string, args->debug_string_size, args->device_description->text);
  return NULL;
}

PJRT_Error* fake_PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args* args) {
  TEXT(args->to_string, args->to_string_size, args->device_description->text);
  return NULL;
}

PJRT_Error* fake_PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args* args) {
  args->device_description = args->device->description;
  return NULL;
}

static void keep_attributes(PJRT_Device_Attributes* attributes) { (void)attributes; }

PJRT_Error* fake_PJRT_Device_GetAttributes(PJRT_Device_GetAttributes_Args* args) {
  args->attributes = args->device->description->attributes;
  args->num_attributes = 1;
  args->device_attributes = NULL;
  args->attributes_deleter = keep_attributes;
  return NULL;
}

PJRT_Error* fake_PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args* args) {
  args->is_addressable = true;
  return NULL;
}

PJRT_Error* fake_PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args* args) {
  args->local_hardware_id = args->device->description->id;
  return NULL;
}

PJRT_Error* fake_PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args* args) {
  args->memories = args->device->memory_list;
  args->num_memories = FAKE_KINDS;
  return NULL;
}

PJRT_Error* fake_PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args* args) {
  args->memory = args->device->memory_list[0];
  return NULL;
}

PJRT_Error* fake_PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  *args = (PJRT_Device_MemoryStats_Args){
      .struct_size = args->struct_size,
      .extension_start = args->extension_start,
      .device = args->device,
      .bytes_limit = INT64_C(1) << 30,
      .bytes_limit_is_set = true,
  };
  return NULL;
}

PJRT_Error* fake_PJRT_Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args* args) {
  (void)args;
  return NULL;
}

// ---- Memories -------------------------------------------------------------------------------------------------------

PJRT_Error* fake_PJRT_Memory_Id(PJRT_Memory_Id_Args* args) {
  args->id = fake_memory(args->memory)->id;
  return NULL;
}

PJRT_Error* fake_PJRT_Memory_Kind(PJRT_Memory_Kind_Args* args) {
  TEXT(args->kind, args->kind_size, FAKE_KIND_NAMES[fake_memory(args->memory)->kind]);
  return NULL;
}

PJRT_Error* fake_PJRT_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args* args) {
  args->kind_id = fake_memory(args->memory)->kind;
  return NULL;
}

PJRT_Error* fake_PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args* args) {
  TEXT(args->debug_string, args->debug_string_size, fake_memory(args->memory)->text);
  return NULL;
}

PJRT_Error* fake_PJRT_Memory_ToString(PJRT_Memory_ToString_Args* args) {
  TEXT(args->to_string, args->to_string_size, fake_memory(args->memory)->text);
  return NULL;
}

PJRT_Error* fake_PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args* args) {
  PJRT_Device* device = fake_memory(args->memory)->device;
  args->devices = &device->client->device_list[device->description->id];
  args->num_devices = 1;
  return NULL;
}
