//! `PJRT_Client` and what a framework asks before it has one.

use std::sync::{Arc, Mutex, OnceLock};

use super::buffer::{BufferHandle, host_array};
use super::device::{DeviceHandle, MemoryHandle, Places};
use super::entry::{bytes, entries, list, refusals, text};
use super::error::from_parts;
use super::event::EventHandle;
use super::executable::{ExecutableHandle, LoadedHandle};
use super::handle::Handle;
use super::snapshot::supplied;
use super::topology::TopologyHandle;
use super::values::{NamedValues, from_c, layout_from_c, program_from_c};
use crate::abi::{Status, sys};
use crate::runtime;
use crate::runtime::buffer::{DeviceLayout, Place, Shape};
use crate::runtime::client::Client;
use crate::runtime::transfer::Promise;
use crate::sync::lock;

/// A client in a caller's hands.
pub struct ClientHandle {
    /// The client's devices and memories, and the client itself.
    pub places: Arc<Places>,
    topology: OnceLock<TopologyHandle>,
}

impl Handle for ClientHandle {
    type Raw = sys::PJRT_Client;
    const WHAT: &'static str = "client";
}

impl ClientHandle {
    /// The client itself.
    pub fn client(&self) -> &Arc<Client> {
        &self.places.client
    }

    /// Where a buffer goes: the memory if one is given, else the device's default memory.
    ///
    /// # Safety
    /// Both are null or live handles of this client.
    pub unsafe fn place(&self, device: *mut sys::PJRT_Device, memory: *mut sys::PJRT_Memory) -> Result<Place, Status> {
        let client = self.client();
        if !memory.is_null() {
            // SAFETY: the caller's promise.
            let memory = unsafe { MemoryHandle::borrow(memory)? }.index;
            // SAFETY: the caller's promise.
            let device = if device.is_null() { None } else { Some(unsafe { DeviceHandle::borrow(device)? }.index) };
            return client.place_in_memory(memory, device);
        }
        // SAFETY: the caller's promise.
        client.place_on_device(unsafe { DeviceHandle::borrow(device)? }.index)
    }
}

/// The shape that a caller describes.
///
/// # Safety
/// `count` dimensions at `dims`; `layout` null or as the interface has it.
pub unsafe fn shape(
    element_type: u32,
    dims: *const i64,
    count: usize,
    layout: *const sys::PJRT_Buffer_MemoryLayout,
) -> Result<Shape, Status> {
    // SAFETY: the caller's promise.
    let (dims, layout) = unsafe { (list(dims, count), layout_from_c(layout)?) };
    let mut shape = Shape::new(element_type, dims);
    shape.layout = layout.map(|layout| DeviceLayout::Given(Box::new(layout)));
    shape.host_bytes()?;
    Ok(shape)
}

/// The plugin's attributes, asked of the inner plugin once.
static ATTRIBUTES: Mutex<Option<Arc<NamedValues>>> = Mutex::new(None);

/// The right to fulfil an alias buffer, in a caller's hands.
struct AliasHandle(Promise);

impl Handle for AliasHandle {
    type Raw = sys::PJRT_FulfillAliasBufferCallback;
    const WHAT: &'static str = "right to fulfil an alias buffer";
}

entries! {
    PJRT_Plugin_Initialize(_args: PJRT_Plugin_Initialize_Args) {
        Ok(())
    }

    PJRT_Plugin_Attributes(args: PJRT_Plugin_Attributes_Args) {
        let mut attributes = lock(&ATTRIBUTES);
        if attributes.is_none() {
            *attributes = Some(Arc::new(NamedValues::new(runtime::compiler::plugin_attributes()?)));
        }
        // The pointers live as long as the process: what was asked once is kept.
        let array = attributes.as_ref().map_or(&[][..], |values| values.array());
        (args.attributes, args.num_attributes) = (array.as_ptr(), array.len());
        Ok(())
    }

    PJRT_Client_Create(args: PJRT_Client_Create_Args) {
        // SAFETY: the caller's options.
        let options = unsafe { from_c(args.create_options, args.num_options)? };
        let client = Client::create(&options)?;
        args.client = ClientHandle { places: Places::new(&client), topology: OnceLock::new() }.into_raw();
        Ok(())
    }

    /// Ends the workers; what the caller still holds of the client stays safe to destroy.
    PJRT_Client_Destroy(args: PJRT_Client_Destroy_Args) {
        // SAFETY: the caller gives up a client of ours, or null.
        if let Some(client) = unsafe { ClientHandle::take(args.client) } {
            client.client().shut_down();
        }
        Ok(())
    }

    PJRT_Client_PlatformName(args: PJRT_Client_PlatformName_Args) {
        // SAFETY: a live client of ours.
        let name = &unsafe { ClientHandle::borrow(args.client)? }.client().platform_name;
        (args.platform_name, args.platform_name_size) = (name.as_ptr().cast(), name.len());
        Ok(())
    }

    PJRT_Client_PlatformVersion(args: PJRT_Client_PlatformVersion_Args) {
        // SAFETY: a live client of ours.
        let version = &unsafe { ClientHandle::borrow(args.client)? }.client().platform_version;
        (args.platform_version, args.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }

    PJRT_Client_ProcessIndex(args: PJRT_Client_ProcessIndex_Args) {
        // SAFETY: a live client of ours.
        unsafe { ClientHandle::borrow(args.client)? };
        args.process_index = 0;
        Ok(())
    }

    PJRT_Client_TopologyDescription(args: PJRT_Client_TopologyDescription_Args) {
        // SAFETY: a live client of ours.
        let client = unsafe { ClientHandle::borrow(args.client)? };
        args.topology = client.topology.get_or_init(|| TopologyHandle::of_client(&client.places)).as_raw();
        Ok(())
    }

    PJRT_Client_Devices(args: PJRT_Client_Devices_Args) {
        // SAFETY: a live client of ours.
        let devices = unsafe { ClientHandle::borrow(args.client)? }.places.devices();
        (args.devices, args.num_devices) = (devices.as_ptr(), devices.len());
        Ok(())
    }

    PJRT_Client_AddressableDevices(args: PJRT_Client_AddressableDevices_Args) {
        // SAFETY: a live client of ours.
        let devices = unsafe { ClientHandle::borrow(args.client)? }.places.devices();
        (args.addressable_devices, args.num_addressable_devices) = (devices.as_ptr(), devices.len());
        Ok(())
    }

    PJRT_Client_LookupDevice(args: PJRT_Client_LookupDevice_Args) {
        // SAFETY: a live client of ours.
        let client = unsafe { ClientHandle::borrow(args.client)? };
        args.device = client.places.device(client.client().device_by_id(args.id)?);
        Ok(())
    }

    PJRT_Client_LookupAddressableDevice(args: PJRT_Client_LookupAddressableDevice_Args) {
        // SAFETY: a live client of ours.
        let client = unsafe { ClientHandle::borrow(args.client)? };
        let wanted = args.local_hardware_id;
        let found = client.client().devices.iter().find(|device| device.info.local_hardware_id == wanted);
        let device = found.ok_or_else(|| Status::invalid(format!("no device has the local hardware id {wanted}")))?;
        args.addressable_device = client.places.device(device.index);
        Ok(())
    }

    PJRT_Client_AddressableMemories(args: PJRT_Client_AddressableMemories_Args) {
        // SAFETY: a live client of ours.
        let memories = unsafe { ClientHandle::borrow(args.client)? }.places.memories();
        (args.addressable_memories, args.num_addressable_memories) = (memories.as_ptr(), memories.len());
        Ok(())
    }

    PJRT_Client_DefaultDeviceAssignment(args: PJRT_Client_DefaultDeviceAssignment_Args) {
        // SAFETY: a live client of ours.
        let client = unsafe { ClientHandle::borrow(args.client)? };
        let (replicas, partitions) = (args.num_replicas.max(0) as usize, args.num_partitions.max(0) as usize);
        let assignment = client.client().default_assignment(replicas, partitions)?;
        if assignment.len() > args.default_assignment_size || args.default_assignment.is_null() {
            return Err(Status::invalid(format!(
                "a device assignment of {} devices does not fit into {} numbers",
                assignment.len(),
                args.default_assignment_size
            )));
        }
        // SAFETY: the caller's array has that many numbers, as just checked.
        unsafe { std::ptr::copy_nonoverlapping(assignment.as_ptr(), args.default_assignment, assignment.len()) };
        Ok(())
    }

    PJRT_Client_Compile(args: PJRT_Client_Compile_Args) {
        // SAFETY: a live client of ours, and the caller's program and options.
        let (client, (format, code), options) = unsafe {
            (ClientHandle::borrow(args.client)?, program_from_c(args.program)?, bytes(args.compile_options, args.compile_options_size))
        };
        let program = client.client().compile(format, code, options)?;
        args.executable = LoadedHandle::new(program, &client.places).into_raw();
        Ok(())
    }

    PJRT_Executable_DeserializeAndLoad(args: PJRT_Executable_DeserializeAndLoad_Args) {
        // SAFETY: a live client of ours, and the caller's bytes.
        let (client, serialized, options) = unsafe {
            (
                ClientHandle::borrow(args.client)?,
                bytes(args.serialized_executable, args.serialized_executable_size),
                bytes(args.overridden_serialized_compile_options, args.overridden_serialized_compile_options_size),
            )
        };
        let program = client.client().deserialize(serialized, options)?;
        args.loaded_executable = LoadedHandle::new(program, &client.places).into_raw();
        Ok(())
    }

    PJRT_Client_Load(args: PJRT_Client_Load_Args) {
        // SAFETY: a live client and executable of ours, and the caller's options.
        let (client, executable, options) = unsafe {
            (
                ClientHandle::borrow(args.client)?,
                ExecutableHandle::borrow(args.executable)?,
                bytes(args.compile_options, args.compile_options_size),
            )
        };
        let program = client.client().load(executable.artifact().clone(), options)?;
        args.loaded_executable = LoadedHandle::new(program, &client.places).into_raw();
        Ok(())
    }

    PJRT_Client_BufferFromHostBuffer(args: PJRT_Client_BufferFromHostBuffer_Args) {
        // SAFETY: a live client of ours and its handles; the caller's array, dense or with its strides.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            let place = client.place(args.device, args.memory)?;
            let shape = shape(args.type_, args.dims, args.num_dims, args.device_layout)?;
            let buffer = match supplied(client.client(), place, &shape) {
                Some(buffer) => buffer?,
                None => {
                    let array = host_array(args.data, &shape, args.byte_strides, args.num_byte_strides)?;
                    client.client().upload(place, shape.clone(), |into| array.copy_to(into))?
                }
            };
            args.buffer = BufferHandle::new(buffer, &client.places).into_raw();
        }
        // The bytes were copied: whatever the semantics, the caller may change or free them now.
        args.done_with_host_buffer = EventHandle::done(Ok(()));
        Ok(())
    }

    /// Host memory that a framework shares is copied once: a worker cannot see it.
    PJRT_Client_CreateViewOfDeviceBuffer(args: PJRT_Client_CreateViewOfDeviceBuffer_Args) {
        // SAFETY: a live client of ours and its handles; the caller's memory holds the array.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            if !client.client().is_cpu() {
                return Err(Status::unimplemented(
                    "a view of device memory cannot be made: the device belongs to a worker process; copy through the host",
                ));
            }
            let place = client.place(args.device, args.memory)?;
            let shape = shape(args.element_type, args.dims, args.num_dims, std::ptr::null())?;
            let array = super::buffer::foreign_array(args.device_buffer_ptr, &shape, args.layout)?;
            let buffer = client.client().upload(place, shape.clone(), |into| array.copy_to(into))?;
            args.buffer = BufferHandle::new(buffer, &client.places).into_raw();
            if let Some(done) = args.on_delete_callback {
                done(args.device_buffer_ptr, args.on_delete_callback_arg);
            }
        }
        Ok(())
    }

    PJRT_Client_CreateUninitializedBuffer(args: PJRT_Client_CreateUninitializedBuffer_Args) {
        // SAFETY: a live client of ours and its handles, and the caller's shape.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            let place = client.place(args.device, args.memory)?;
            let shape = shape(args.shape_element_type, args.shape_dims, args.shape_num_dims, args.shape_layout)?;
            let buffer = client.client().uninitialized(place, shape)?;
            args.buffer = BufferHandle::new(buffer, &client.places).into_raw();
        }
        Ok(())
    }

    PJRT_Client_CreateErrorBuffer(args: PJRT_Client_CreateErrorBuffer_Args) {
        // SAFETY: a live client of ours and its handles, and the caller's shape, words and payloads.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            let place = client.place(std::ptr::null_mut(), args.memory)?;
            let shape = shape(args.shape_element_type, args.shape_dims, args.shape_num_dims, args.shape_layout)?;
            let mut status = from_parts(args.error_code, text(args.error_message, args.error_message_size));
            status.payloads = payloads(args.payload, args.num_payload)?;
            let buffer = crate::runtime::buffer::Buffer::poisoned(client.client(), place, shape, status);
            args.buffer = BufferHandle::new(buffer, &client.places).into_raw();
        }
        Ok(())
    }

    PJRT_Client_CreateAliasBuffer(args: PJRT_Client_CreateAliasBuffer_Args) {
        // SAFETY: a live client of ours and its handles, and the caller's shape.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            let place = client.place(std::ptr::null_mut(), args.memory)?;
            let shape = shape(args.shape_element_type, args.shape_dims, args.shape_num_dims, args.shape_layout)?;
            let (buffer, promise) = client.client().declare(place, shape);
            args.fulfill_alias_buffer_cb = AliasHandle(promise).into_raw();
            args.alias_buffer = BufferHandle::new(buffer, &client.places).into_raw();
        }
        Ok(())
    }

    PJRT_Client_FulfillAliasBuffer(args: PJRT_Client_FulfillAliasBuffer_Args) {
        // SAFETY: a live client of ours; the caller gives up the right it got with the alias.
        let (client, right) = unsafe { (ClientHandle::borrow(args.client)?, AliasHandle::take(args.fulfill_alias_buffer_cb)) };
        let AliasHandle(promise) = *right.ok_or_else(|| Status::invalid("a null pointer was given for the right to fulfil an alias buffer"))?;
        if args.status_code != sys::PJRT_Error_Code_OK {
            // SAFETY: the caller's words.
            let words = unsafe { text(args.error_message, args.error_message_size) };
            client.client().fail(&promise, from_parts(args.status_code, words));
            return Ok(());
        }
        // SAFETY: a live buffer of ours.
        let buffer = unsafe { BufferHandle::borrow(args.buffer)? };
        client.client().fulfil_alias(&promise, buffer.buffer())
    }

    /// Incarnations are Mainstay's own business; what the framework knows of processes changes nothing.
    PJRT_Client_UpdateGlobalProcessInfo(args: PJRT_Client_UpdateGlobalProcessInfo_Args) {
        // SAFETY: a live client of ours.
        unsafe { ClientHandle::borrow(args.client) }.map(drop)
    }

    PJRT_ExecuteContext_Create(args: PJRT_ExecuteContext_Create_Args) {
        args.context = ContextHandle.into_raw();
        Ok(())
    }

    PJRT_ExecuteContext_Destroy(args: PJRT_ExecuteContext_Destroy_Args) {
        // SAFETY: the caller gives up a context of ours, or null.
        drop(unsafe { ContextHandle::take(args.context) });
        Ok(())
    }
}

refusals! {
    PJRT_Client_DmaMap(PJRT_Client_DmaMap_Args)
        "the devices belong to worker processes, which cannot register the framework's memory"
    PJRT_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args)
        "the devices belong to worker processes, which cannot register the framework's memory"
}

/// An execute context in a caller's hands. What it carries is for handlers in the framework's process, which a worker cannot call.
struct ContextHandle;

impl Handle for ContextHandle {
    type Raw = sys::PJRT_ExecuteContext;
    const WHAT: &'static str = "execute context";
}

/// Payloads of an error, by type URL.
type Payloads = Arc<[(String, Vec<u8>)]>;

/// # Safety
/// `count` named values at `values`.
unsafe fn payloads(values: *const sys::PJRT_NamedValue, count: usize) -> Result<Payloads, Status> {
    // SAFETY: the caller's promise.
    unsafe { list(values, count) }
        .iter()
        .map(|value| {
            if value.type_ != sys::PJRT_NamedValue_kString {
                return Err(Status::invalid("the payload of an error must be a string"));
            }
            // SAFETY: the type says that the union holds a string.
            Ok(unsafe {
                (
                    text(value.name, value.name_size),
                    bytes(value.__bindgen_anon_1.string_value, value.value_size).to_vec(),
                )
            })
        })
        .collect()
}
