//! Devices, their descriptions, and memories: borrowed from their client or topology.

use std::marker::PhantomData;

use super::call::{call, list, text};
use super::{Client, Plugin, named_values};
use crate::abi::{Status, sys};
use crate::wire::message::{NamedValue, Value};

/// A device of a client.
#[derive(Clone, Copy)]
pub struct Device<'c> {
    client: &'c Client,
    raw: *mut sys::PJRT_Device,
}

/// What a device is, of a client or of a topology.
#[derive(Clone, Copy)]
pub struct DeviceDescription<'c> {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_DeviceDescription,
    owner: PhantomData<&'c ()>,
}

/// What memories the devices of a kind have.
#[derive(Clone, Debug, Default)]
pub struct MemoryDescriptions {
    /// Number and name of the kind of each.
    pub kinds: Vec<(i32, String)>,
    /// Which of them is the default.
    pub default: Option<usize>,
}

/// A memory of a client.
#[derive(Clone, Copy)]
pub struct Memory<'c> {
    client: &'c Client,
    raw: *mut sys::PJRT_Memory,
}

impl<'c> Device<'c> {
    pub(super) fn new(client: &'c Client, raw: *mut sys::PJRT_Device) -> Self {
        Self { client, raw }
    }

    /// The handle, for functions of extensions.
    pub fn raw(&self) -> *mut sys::PJRT_Device {
        self.raw
    }

    fn plugin(&self) -> &'static Plugin {
        self.client.plugin()
    }

    /// What the device is.
    pub fn description(&self) -> Result<DeviceDescription<'c>, Status> {
        let args = call!(self.plugin(), PJRT_Device_GetDescription_Args { device: self.raw })?;
        Ok(DeviceDescription { plugin: self.plugin(), raw: args.device_description, owner: PhantomData })
    }

    /// The number of the hardware that the device stands for, or -1.
    pub fn local_hardware_id(&self) -> Result<i32, Status> {
        call!(self.plugin(), PJRT_Device_LocalHardwareId_Args { device: self.raw }).map(|args| args.local_hardware_id)
    }

    /// Memories that the device reaches.
    pub fn memories(&self) -> Result<Vec<Memory<'c>>, Status> {
        let args = call!(self.plugin(), PJRT_Device_AddressableMemories_Args { device: self.raw })?;
        // SAFETY: the list lives as long as the client.
        let memories = unsafe { list(args.memories, args.num_memories) };
        Ok(memories.iter().map(|raw| Memory::new(self.client, *raw)).collect())
    }

    /// The memory that the device uses unless told otherwise.
    pub fn default_memory(&self) -> Result<Memory<'c>, Status> {
        let args = call!(self.plugin(), PJRT_Device_DefaultMemory_Args { device: self.raw })?;
        Ok(Memory::new(self.client, args.memory))
    }

    /// The attributes that the device itself has, beside those of its description (since 0.92).
    pub fn attributes(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self.plugin(), PJRT_Device_GetAttributes_Args { device: self.raw })?;
        // SAFETY: the attributes live until their deleter is called.
        let attributes = unsafe { named_values::read(args.attributes, args.num_attributes) };
        if let Some(delete) = args.attributes_deleter {
            // SAFETY: once, with what the plugin gave along with it.
            unsafe { delete(args.device_attributes) };
        }
        Ok(attributes)
    }

    /// Memory statistics, by the interface's names of them; those that the plugin does not set are left out.
    pub fn memory_stats(&self) -> Result<Vec<NamedValue>, Status> {
        let stats = call!(self.plugin(), PJRT_Device_MemoryStats_Args { device: self.raw })?;
        let numbers = [
            ("bytes_in_use", stats.bytes_in_use, true),
            ("peak_bytes_in_use", stats.peak_bytes_in_use, stats.peak_bytes_in_use_is_set),
            ("num_allocs", stats.num_allocs, stats.num_allocs_is_set),
            ("largest_alloc_size", stats.largest_alloc_size, stats.largest_alloc_size_is_set),
            ("bytes_limit", stats.bytes_limit, stats.bytes_limit_is_set),
            ("bytes_reserved", stats.bytes_reserved, stats.bytes_reserved_is_set),
            ("peak_bytes_reserved", stats.peak_bytes_reserved, stats.peak_bytes_reserved_is_set),
            ("bytes_reservable_limit", stats.bytes_reservable_limit, stats.bytes_reservable_limit_is_set),
            ("largest_free_block_bytes", stats.largest_free_block_bytes, stats.largest_free_block_bytes_is_set),
            ("pool_bytes", stats.pool_bytes, stats.pool_bytes_is_set),
            ("peak_pool_bytes", stats.peak_pool_bytes, stats.peak_pool_bytes_is_set),
            ("peak_allocated_bytes", stats.peak_allocated_bytes, stats.peak_allocated_bytes_is_set),
        ];
        let set = numbers.into_iter().filter(|(_, _, is_set)| *is_set);
        Ok(set.map(|(name, number, _)| NamedValue { name: name.into(), value: Value::Int64(number) }).collect())
    }

    /// Starts the peaks of the memory statistics anew.
    pub fn clear_memory_stats(&self) -> Result<(), Status> {
        call!(self.plugin(), PJRT_Device_ClearMemoryStats_Args { device: self.raw }).map(|_| ())
    }
}

impl PartialEq for Device<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl<'c> DeviceDescription<'c> {
    /// A description that lives as long as its owner.
    pub(super) fn new<T>(plugin: &'static Plugin, raw: *mut sys::PJRT_DeviceDescription, _owner: &'c T) -> Self {
        Self { plugin, raw, owner: PhantomData }
    }

    /// The device's id, unique among all of its kind.
    pub fn id(&self) -> Result<i32, Status> {
        call!(self.plugin, PJRT_DeviceDescription_Id_Args { device_description: self.raw }).map(|args| args.id)
    }

    /// The process that the device belongs to.
    pub fn process_index(&self) -> Result<i32, Status> {
        call!(self.plugin, PJRT_DeviceDescription_ProcessIndex_Args { device_description: self.raw })
            .map(|args| args.process_index)
    }

    /// The kind of the device, as its vendor calls it.
    pub fn kind(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_DeviceDescription_Kind_Args { device_description: self.raw })?;
        // SAFETY: the text lives as long as the description.
        Ok(unsafe { text(args.device_kind, args.device_kind_size) })
    }

    /// The device in words, in full.
    pub fn debug_string(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_DeviceDescription_DebugString_Args { device_description: self.raw })?;
        // SAFETY: as above.
        Ok(unsafe { text(args.debug_string, args.debug_string_size) })
    }

    /// The device in words, in short.
    pub fn to_text(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_DeviceDescription_ToString_Args { device_description: self.raw })?;
        // SAFETY: as above.
        Ok(unsafe { text(args.to_string, args.to_string_size) })
    }

    /// Attributes of the description.
    pub fn attributes(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self.plugin, PJRT_DeviceDescription_Attributes_Args { device_description: self.raw })?;
        // SAFETY: the attributes live as long as the description.
        Ok(unsafe { named_values::read(args.attributes, args.num_attributes) })
    }

    /// The memories that such a device has (MemoryDescriptions extension).
    pub fn memory_descriptions(&self) -> Result<MemoryDescriptions, Status> {
        let args = call!(
            self.plugin,
            memory_descriptions.PJRT_DeviceDescription_MemoryDescriptions,
            PJRT_DeviceDescription_MemoryDescriptions_Args { device_description: self.raw }
        )?;
        // SAFETY: the list lives as long as the description.
        let descriptions = unsafe { list(args.memory_descriptions, args.num_memory_descriptions) };
        let kinds: Vec<_> = descriptions.iter().map(|raw| self.memory_kind(*raw)).collect::<Result<_, _>>()?;
        let default = Some(args.default_memory_index).filter(|index| *index < kinds.len());
        Ok(MemoryDescriptions { kinds, default })
    }

    fn memory_kind(&self, raw: *const sys::PJRT_MemoryDescription) -> Result<(i32, String), Status> {
        let args = call!(
            self.plugin,
            memory_descriptions.PJRT_MemoryDescription_Kind,
            PJRT_MemoryDescription_Kind_Args { memory_description: raw }
        )?;
        // SAFETY: the text lives as long as the description.
        Ok((args.kind_id, unsafe { text(args.kind, args.kind_size) }))
    }
}

impl<'c> Memory<'c> {
    pub(super) fn new(client: &'c Client, raw: *mut sys::PJRT_Memory) -> Self {
        Self { client, raw }
    }

    pub(super) fn raw(&self) -> *mut sys::PJRT_Memory {
        self.raw
    }

    fn plugin(&self) -> &'static Plugin {
        self.client.plugin()
    }

    /// The memory's id.
    pub fn id(&self) -> Result<i32, Status> {
        call!(self.plugin(), PJRT_Memory_Id_Args { memory: self.raw }).map(|args| args.id)
    }

    /// The memory's kind: `device`, `pinned_host`, ….
    pub fn kind(&self) -> Result<String, Status> {
        let args = call!(self.plugin(), PJRT_Memory_Kind_Args { memory: self.raw })?;
        // SAFETY: the text lives as long as the client.
        Ok(unsafe { text(args.kind, args.kind_size) })
    }

    /// The number of the memory's kind.
    pub fn kind_id(&self) -> Result<i32, Status> {
        call!(self.plugin(), PJRT_Memory_Kind_Id_Args { memory: self.raw }).map(|args| args.kind_id)
    }

    /// The memory in words, in full.
    pub fn debug_string(&self) -> Result<String, Status> {
        let args = call!(self.plugin(), PJRT_Memory_DebugString_Args { memory: self.raw })?;
        // SAFETY: as above.
        Ok(unsafe { text(args.debug_string, args.debug_string_size) })
    }

    /// The memory in words, in short.
    pub fn to_text(&self) -> Result<String, Status> {
        let args = call!(self.plugin(), PJRT_Memory_ToString_Args { memory: self.raw })?;
        // SAFETY: as above.
        Ok(unsafe { text(args.to_string, args.to_string_size) })
    }

    /// Devices that reach the memory.
    pub fn devices(&self) -> Result<Vec<Device<'c>>, Status> {
        let args = call!(self.plugin(), PJRT_Memory_AddressableByDevices_Args { memory: self.raw })?;
        // SAFETY: the list lives as long as the client.
        let devices = unsafe { list(args.devices, args.num_devices) };
        Ok(devices.iter().map(|raw| Device::new(self.client, *raw)).collect())
    }
}

impl PartialEq for Memory<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}
