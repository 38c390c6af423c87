//! `PJRT_Device`, `PJRT_DeviceDescription` and `PJRT_Memory`: lent out, the same pointers for the life of the client and of
//! everything that came from it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use super::entry::{entries, quietly, refusals};
use super::extensions::MemoryKind;
use super::handle::Handle;
use super::values::NamedValues;
use crate::abi::{Status, sys};
use crate::runtime::client::Client;
use crate::runtime::device::{Device, Memory};
use crate::sync::lock;
use crate::wire::message::{DeviceInfo, Query, Reply, Value};

/// All devices and memories of a client as C sees them. Shared by everything that hands out pointers to them.
pub struct Places {
    /// The client.
    pub client: Arc<Client>,
    devices: Box<[DeviceHandle]>,
    // What `memory_pointers` point to.
    _memories: Box<[MemoryHandle]>,
    device_pointers: Vec<*mut sys::PJRT_Device>,
    memory_pointers: Vec<*mut sys::PJRT_Memory>,
}

// SAFETY: the pointers go into the boxes beside them, whose contents are made for many threads.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

/// A device in a caller's hands.
pub struct DeviceHandle {
    client: Arc<Client>,
    /// Index among the client's devices.
    pub index: u32,
    description: DescriptionHandle,
    memories: Vec<*mut sys::PJRT_Memory>,
    default_memory: Option<*mut sys::PJRT_Memory>,
}

/// A device description in a caller's hands; of a client's device or of a topology's.
pub struct DescriptionHandle {
    info: DeviceInfo,
    attributes: NamedValues,
    memory_descriptions: Vec<*const sys::PJRT_MemoryDescription>,
    // What `memory_descriptions` points into.
    _memory_kinds: Box<[MemoryKind]>,
}

// SAFETY: the pointers go into the box beside them, which nobody changes.
unsafe impl Send for DescriptionHandle {}
// SAFETY: as above.
unsafe impl Sync for DescriptionHandle {}

/// A memory in a caller's hands. Begins with its table, as callers of 0.112 and newer expect.
#[repr(C)]
pub struct MemoryHandle {
    #[allow(dead_code, reason = "read by the framework")]
    base: sys::PJRT_Memory,
    client: Arc<Client>,
    /// Index among the client's memories.
    pub index: u32,
    devices: Vec<*mut sys::PJRT_Device>,
    user_data: Mutex<HashMap<usize, UserData>>,
}

impl Handle for DeviceHandle {
    type Raw = sys::PJRT_Device;
    const WHAT: &'static str = "device";
}

impl Handle for DescriptionHandle {
    type Raw = sys::PJRT_DeviceDescription;
    const WHAT: &'static str = "device description";
}

impl Handle for MemoryHandle {
    type Raw = sys::PJRT_Memory;
    const WHAT: &'static str = "memory";
}

impl Places {
    /// The handles of a client's devices and memories.
    pub fn new(client: &Arc<Client>) -> Arc<Self> {
        let mut devices: Box<[_]> = client.devices.iter().map(|device| DeviceHandle::new(client, device)).collect();
        let mut memories: Box<[_]> = client.memories.iter().map(|memory| MemoryHandle::new(client, memory)).collect();
        let device_pointers: Vec<_> = devices.iter().map(Handle::as_raw).collect();
        let memory_pointers: Vec<_> = memories.iter().map(Handle::as_raw).collect();
        for (handle, device) in devices.iter_mut().zip(&client.devices) {
            handle.memories = device.info.memories.iter().map(|&memory| memory_pointers[memory as usize]).collect();
            handle.default_memory = device.info.default_memory.map(|memory| memory_pointers[memory as usize]);
        }
        for (handle, memory) in memories.iter_mut().zip(&client.memories) {
            handle.devices = memory.info.devices.iter().map(|&device| device_pointers[device as usize]).collect();
        }
        Arc::new(Self { client: client.clone(), devices, _memories: memories, device_pointers, memory_pointers })
    }

    /// The C array of all devices.
    pub fn devices(&self) -> &[*mut sys::PJRT_Device] {
        &self.device_pointers
    }

    /// The C array of all memories.
    pub fn memories(&self) -> &[*mut sys::PJRT_Memory] {
        &self.memory_pointers
    }

    /// The device at an index, as C sees it.
    pub fn device(&self, index: u32) -> *mut sys::PJRT_Device {
        self.device_pointers[index as usize]
    }

    /// The memory at an index, as C sees it.
    pub fn memory(&self, index: u32) -> *mut sys::PJRT_Memory {
        self.memory_pointers[index as usize]
    }

    /// The descriptions of all devices, as C sees them.
    pub fn descriptions(&self) -> Vec<*mut sys::PJRT_DeviceDescription> {
        self.devices.iter().map(|device| device.description.as_raw()).collect()
    }
}

impl DeviceHandle {
    fn new(client: &Arc<Client>, device: &Device) -> Self {
        Self {
            client: client.clone(),
            index: device.index,
            description: DescriptionHandle::new(device.info.clone()),
            memories: Vec::new(),
            default_memory: None,
        }
    }

    fn device(&self) -> &Device {
        &self.client.devices[self.index as usize]
    }

    fn query(&self, query: Query) -> Result<Reply, Status> {
        self.client.session(self.device().slice).query(query)
    }
}

impl DescriptionHandle {
    /// A description of a device.
    pub fn new(info: DeviceInfo) -> Self {
        let kinds: Box<[_]> =
            info.memory_descriptions.iter().map(|(id, name)| MemoryKind { id: *id, name: name.clone() }).collect();
        Self {
            attributes: NamedValues::new(info.attributes.clone()),
            memory_descriptions: kinds.iter().map(|kind| std::ptr::from_ref(kind).cast()).collect(),
            _memory_kinds: kinds,
            info,
        }
    }

    /// The kinds of memory of the device, as C sees them.
    pub fn memory_descriptions(&self) -> &[*const sys::PJRT_MemoryDescription] {
        &self.memory_descriptions
    }

    /// Which of [`Self::memory_descriptions`] is the default: the plugin's first, as far as it tells.
    pub fn default_memory_description(&self) -> Option<usize> {
        (!self.memory_descriptions.is_empty()).then_some(0)
    }
}

impl MemoryHandle {
    fn new(client: &Arc<Client>, memory: &Memory) -> Self {
        let base = sys::PJRT_Memory { vtable: &TABLE.0 };
        Self { base, client: client.clone(), index: memory.index, devices: Vec::new(), user_data: Mutex::default() }
    }

    fn memory(&self) -> &Memory {
        &self.client.memories[self.index as usize]
    }
}

/// Data that the framework keeps with a memory.
struct UserData {
    data: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: only stored and handed back; the framework answers for what it points to.
unsafe impl Send for UserData {}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(deleter) = self.deleter {
            // SAFETY: the framework gave the deleter for this data.
            unsafe { deleter(self.data) };
        }
    }
}

struct Table(sys::PJRT_Memory_FunctionTable);

// SAFETY: constant function pointers and null.
unsafe impl Sync for Table {}

static TABLE: Table = Table(sys::PJRT_Memory_FunctionTable {
    struct_size: size_of::<sys::PJRT_Memory_FunctionTable>(),
    extension_start: std::ptr::null_mut(),
    instance_struct_size: size_of::<MemoryHandle>(),
    get_user_data: Some(get_user_data),
    set_user_data: Some(set_user_data),
});

unsafe extern "C" fn get_user_data(memory: *mut sys::PJRT_Memory, key: *const c_void) -> *mut c_void {
    quietly(std::ptr::null_mut(), || {
        // SAFETY: a live memory of ours.
        let Ok(memory) = (unsafe { MemoryHandle::borrow(memory) }) else { return std::ptr::null_mut() };
        let data = lock(&memory.user_data);
        data.get(&key.addr()).map_or(std::ptr::null_mut(), |kept| kept.data)
    })
}

unsafe extern "C" fn set_user_data(
    memory: *mut sys::PJRT_Memory,
    key: *const c_void,
    data: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
) {
    quietly((), || {
        // SAFETY: a live memory of ours.
        let Ok(memory) = (unsafe { MemoryHandle::borrow(memory) }) else { return };
        let mut data_by_key = lock(&memory.user_data);
        let replaced = data_by_key.insert(key.addr(), UserData { data, deleter });
        // The deleter is foreign code: it runs outside the lock.
        drop(data_by_key);
        drop(replaced);
    });
}

/// Names of `PJRT_Device_MemoryStats` in a worker's answer, and where they go.
macro_rules! memory_stats {
    ($args:ident, $name:expr, $value:expr, $($field:ident $set:ident)*) => {
        match $name {
            "bytes_in_use" => $args.bytes_in_use = $value,
            $(stringify!($field) => { $args.$field = $value; $args.$set = true; })*
            _ => {}
        }
    };
}

entries! {
    PJRT_DeviceDescription_Id(args: PJRT_DeviceDescription_Id_Args) {
        // SAFETY: a live description of ours.
        args.id = unsafe { DescriptionHandle::borrow(args.device_description)? }.info.id;
        Ok(())
    }

    PJRT_DeviceDescription_ProcessIndex(args: PJRT_DeviceDescription_ProcessIndex_Args) {
        // SAFETY: a live description of ours.
        args.process_index = unsafe { DescriptionHandle::borrow(args.device_description)? }.info.process_index;
        Ok(())
    }

    PJRT_DeviceDescription_Attributes(args: PJRT_DeviceDescription_Attributes_Args) {
        // SAFETY: a live description of ours.
        let attributes = unsafe { DescriptionHandle::borrow(args.device_description)? }.attributes.array();
        (args.attributes, args.num_attributes) = (attributes.as_ptr(), attributes.len());
        Ok(())
    }

    PJRT_DeviceDescription_Kind(args: PJRT_DeviceDescription_Kind_Args) {
        // SAFETY: a live description of ours.
        let kind = &unsafe { DescriptionHandle::borrow(args.device_description)? }.info.kind;
        (args.device_kind, args.device_kind_size) = (kind.as_ptr().cast(), kind.len());
        Ok(())
    }

    PJRT_DeviceDescription_DebugString(args: PJRT_DeviceDescription_DebugString_Args) {
        // SAFETY: a live description of ours.
        let text = &unsafe { DescriptionHandle::borrow(args.device_description)? }.info.debug_string;
        (args.debug_string, args.debug_string_size) = (text.as_ptr().cast(), text.len());
        Ok(())
    }

    PJRT_DeviceDescription_ToString(args: PJRT_DeviceDescription_ToString_Args) {
        // SAFETY: a live description of ours.
        let text = &unsafe { DescriptionHandle::borrow(args.device_description)? }.info.to_string;
        (args.to_string, args.to_string_size) = (text.as_ptr().cast(), text.len());
        Ok(())
    }

    PJRT_Device_GetDescription(args: PJRT_Device_GetDescription_Args) {
        // SAFETY: a live device of ours.
        args.device_description = unsafe { DeviceHandle::borrow(args.device)? }.description.as_raw();
        Ok(())
    }

    /// The same attributes as the description's: newer frameworks read `slice_index` here only.
    PJRT_Device_GetAttributes(args: PJRT_Device_GetAttributes_Args) {
        // SAFETY: a live device of ours.
        let attributes = unsafe { DeviceHandle::borrow(args.device)? }.description.attributes.array();
        (args.attributes, args.num_attributes) = (attributes.as_ptr(), attributes.len());
        // The array lives as long as the device; there is nothing to free.
        args.device_attributes = std::ptr::null_mut();
        args.attributes_deleter = Some(keep_attributes);
        Ok(())
    }

    PJRT_Device_IsAddressable(args: PJRT_Device_IsAddressable_Args) {
        // SAFETY: a live device of ours.
        unsafe { DeviceHandle::borrow(args.device)? };
        args.is_addressable = true;
        Ok(())
    }

    PJRT_Device_LocalHardwareId(args: PJRT_Device_LocalHardwareId_Args) {
        // SAFETY: a live device of ours.
        args.local_hardware_id = unsafe { DeviceHandle::borrow(args.device)? }.description.info.local_hardware_id;
        Ok(())
    }

    PJRT_Device_AddressableMemories(args: PJRT_Device_AddressableMemories_Args) {
        // SAFETY: a live device of ours.
        let memories = &unsafe { DeviceHandle::borrow(args.device)? }.memories;
        (args.memories, args.num_memories) = (memories.as_ptr(), memories.len());
        Ok(())
    }

    PJRT_Device_DefaultMemory(args: PJRT_Device_DefaultMemory_Args) {
        // SAFETY: a live device of ours.
        let device = unsafe { DeviceHandle::borrow(args.device)? };
        let none = || Status::unimplemented(format!("device {} has no default memory", device.description.info.to_string));
        args.memory = device.default_memory.ok_or_else(none)?;
        Ok(())
    }

    PJRT_Device_MemoryStats(args: PJRT_Device_MemoryStats_Args) {
        // SAFETY: a live device of ours.
        let device = unsafe { DeviceHandle::borrow(args.device)? };
        let Reply::Attributes(stats) = device.query(Query::MemoryStats { device: device.device().ordinal })? else {
            return Err(Status::unimplemented("the worker gave no memory statistics"));
        };
        clear_flags(args);
        for stat in &stats {
            let Value::Int64(value) = stat.value else { continue };
            memory_stats!(args, stat.name.as_str(), value,
                peak_bytes_in_use peak_bytes_in_use_is_set num_allocs num_allocs_is_set
                largest_alloc_size largest_alloc_size_is_set bytes_limit bytes_limit_is_set
                bytes_reserved bytes_reserved_is_set peak_bytes_reserved peak_bytes_reserved_is_set
                bytes_reservable_limit bytes_reservable_limit_is_set
                largest_free_block_bytes largest_free_block_bytes_is_set
                pool_bytes pool_bytes_is_set peak_pool_bytes peak_pool_bytes_is_set
                peak_allocated_bytes peak_allocated_bytes_is_set);
        }
        Ok(())
    }

    PJRT_Device_ClearMemoryStats(args: PJRT_Device_ClearMemoryStats_Args) {
        // SAFETY: a live device of ours.
        let device = unsafe { DeviceHandle::borrow(args.device)? };
        device.query(Query::ClearMemoryStats { device: device.device().ordinal }).map(drop)
    }

    /// A marker for profilers; Mainstay's own traces do not need it.
    PJRT_Device_CreateAsyncTrackingEvent(args: PJRT_Device_CreateAsyncTrackingEvent_Args) {
        // SAFETY: a live device of ours.
        unsafe { DeviceHandle::borrow(args.device)? };
        args.event = TrackingHandle.into_raw();
        Ok(())
    }

    PJRT_AsyncTrackingEvent_Destroy(args: PJRT_AsyncTrackingEvent_Destroy_Args) {
        // SAFETY: the caller gives up a marker of ours, or null.
        drop(unsafe { TrackingHandle::take(args.event) });
        Ok(())
    }

    PJRT_Memory_Id(args: PJRT_Memory_Id_Args) {
        // SAFETY: a live memory of ours.
        args.id = unsafe { MemoryHandle::borrow(args.memory)? }.memory().info.id;
        Ok(())
    }

    PJRT_Memory_Kind(args: PJRT_Memory_Kind_Args) {
        // SAFETY: a live memory of ours.
        let kind = &unsafe { MemoryHandle::borrow(args.memory)? }.memory().info.kind;
        (args.kind, args.kind_size) = (kind.as_ptr().cast(), kind.len());
        Ok(())
    }

    PJRT_Memory_Kind_Id(args: PJRT_Memory_Kind_Id_Args) {
        // SAFETY: a live memory of ours.
        args.kind_id = unsafe { MemoryHandle::borrow(args.memory)? }.memory().info.kind_id;
        Ok(())
    }

    PJRT_Memory_DebugString(args: PJRT_Memory_DebugString_Args) {
        // SAFETY: a live memory of ours.
        let text = &unsafe { MemoryHandle::borrow(args.memory)? }.memory().info.debug_string;
        (args.debug_string, args.debug_string_size) = (text.as_ptr().cast(), text.len());
        Ok(())
    }

    PJRT_Memory_ToString(args: PJRT_Memory_ToString_Args) {
        // SAFETY: a live memory of ours.
        let text = &unsafe { MemoryHandle::borrow(args.memory)? }.memory().info.to_string;
        (args.to_string, args.to_string_size) = (text.as_ptr().cast(), text.len());
        Ok(())
    }

    PJRT_Memory_AddressableByDevices(args: PJRT_Memory_AddressableByDevices_Args) {
        // SAFETY: a live memory of ours.
        let devices = &unsafe { MemoryHandle::borrow(args.memory)? }.devices;
        (args.devices, args.num_devices) = (devices.as_ptr(), devices.len());
        Ok(())
    }
}

refusals! {
    PJRT_Device_PoisonExecution(PJRT_Device_PoisonExecution_Args)
        "launches are poisoned by the loss of their slice; end a worker to lose one on purpose"
}

/// A marker in a caller's hands; there is nothing to it.
struct TrackingHandle;

impl Handle for TrackingHandle {
    type Raw = sys::PJRT_AsyncTrackingEvent;
    const WHAT: &'static str = "tracking event";
}

/// The caller's struct may hold anything where we write: the flags of what is not known must say so.
fn clear_flags(args: &mut sys::PJRT_Device_MemoryStats_Args) {
    let size = args.struct_size;
    let device = args.device;
    let extension_start = args.extension_start;
    // SAFETY: integers, pointers and flags: zero is a value of each.
    *args = unsafe { std::mem::zeroed() };
    (args.struct_size, args.device, args.extension_start) = (size, device, extension_start);
}

unsafe extern "C" fn keep_attributes(_: *mut sys::PJRT_Device_Attributes) {}
