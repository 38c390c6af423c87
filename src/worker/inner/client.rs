//! The inner client: its devices and memories, and what it makes.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::call::{call, destroy, list, text};
use super::executable::Program;
use super::{Buffer, Device, Event, LoadedExecutable, Memory, Plugin, Topology, layout, named_values};
use crate::abi::{Status, sys};
use crate::wire::message::{BufferSpec, NamedValue};

/// A client of the plugin. Clones are the same client, which goes with the last of them and of all that it made.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

struct Handle {
    plugin: &'static Plugin,
    raw: NonNull<sys::PJRT_Client>,
    devices: Vec<*mut sys::PJRT_Device>,
    memories: Vec<*mut sys::PJRT_Memory>,
}

// SAFETY: the interface lets any thread use a client, its devices and its memories.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Where the bytes of a new buffer are.
#[derive(Clone, Copy, Debug)]
pub struct HostData {
    /// The first byte.
    pub data: *const c_void,
    /// For how long they stay.
    pub semantics: HostSemantics,
}

/// What the plugin may do with host data (`PJRT_HostBufferSemantics`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSemantics {
    /// Read it during the call only.
    OnlyDuringCall,
    /// Read it until it says that it is done.
    UntilTransferCompletes,
    /// Keep it as the buffer's memory and write to it, until it says that it is done.
    MutableZeroCopy,
}

impl HostSemantics {
    fn raw(self) -> sys::PJRT_HostBufferSemantics {
        match self {
            Self::OnlyDuringCall => sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            Self::UntilTransferCompletes => sys::PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
            Self::MutableZeroCopy => sys::PJRT_HostBufferSemantics_kMutableZeroCopy,
        }
    }
}

impl Client {
    /// Creates a client. It has no key-value store: it is the only process of its kind.
    pub fn new(plugin: &'static Plugin, options: &[NamedValue]) -> Result<Self, Status> {
        let options = named_values::to_c(options);
        let args =
            call!(plugin, PJRT_Client_Create_Args { create_options: options.as_ptr(), num_options: options.len() })?;
        let raw = NonNull::new(args.client)
            .ok_or_else(|| Status::failed_precondition("the plugin gave neither a client nor an error"))?;
        let mut handle = Handle { plugin, raw, devices: Vec::new(), memories: Vec::new() };
        handle.devices = handle.list_devices()?;
        handle.memories = handle.list_memories()?;
        Ok(Self(Arc::new(handle)))
    }

    /// The plugin whose client this is.
    pub fn plugin(&self) -> &'static Plugin {
        self.0.plugin
    }

    /// Lets devices copy to and from so many bytes of host memory directly, until the client goes.
    ///
    /// # Errors
    /// A plugin that has no such devices, or no room for it.
    ///
    /// # Safety
    /// The memory stays mapped, and has the same pages, for as long as the client lives.
    pub unsafe fn dma_map(&self, start: NonNull<u8>, len: usize) -> Result<(), Status> {
        let data = start.as_ptr().cast();
        call!(self.plugin(), PJRT_Client_DmaMap_Args { client: self.raw(), data: data, size: len }).map(|_| ())
    }

    /// The handle, for functions of extensions.
    pub fn raw(&self) -> *mut sys::PJRT_Client {
        self.0.raw.as_ptr()
    }

    /// The platform's name: `cpu`, `tpu`, ….
    pub fn platform_name(&self) -> Result<String, Status> {
        let args = call!(self.plugin(), PJRT_Client_PlatformName_Args { client: self.raw() })?;
        // SAFETY: the text lives as long as the client.
        Ok(unsafe { text(args.platform_name, args.platform_name_size) })
    }

    /// The platform's version, for people.
    pub fn platform_version(&self) -> Result<String, Status> {
        let args = call!(self.plugin(), PJRT_Client_PlatformVersion_Args { client: self.raw() })?;
        // SAFETY: the text lives as long as the client.
        Ok(unsafe { text(args.platform_version, args.platform_version_size) })
    }

    /// The number of this process among those that share the client's devices.
    pub fn process_index(&self) -> Result<i32, Status> {
        call!(self.plugin(), PJRT_Client_ProcessIndex_Args { client: self.raw() }).map(|args| args.process_index)
    }

    /// Addressable devices, in the plugin's order.
    pub fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        self.0.devices.iter().map(|raw| Device::new(self, *raw))
    }

    /// Addressable memories, in the plugin's order.
    pub fn memories(&self) -> impl Iterator<Item = Memory<'_>> {
        self.0.memories.iter().map(|raw| Memory::new(self, *raw))
    }

    /// The addressable device with this index.
    pub fn device(&self, index: u32) -> Result<Device<'_>, Status> {
        self.devices().nth(index as usize).ok_or_else(|| {
            Status::invalid(format!("device index {index}: the slice has {} devices", self.0.devices.len()))
        })
    }

    /// The addressable memory with this index.
    pub fn memory(&self, index: u32) -> Result<Memory<'_>, Status> {
        self.memories().nth(index as usize).ok_or_else(|| {
            Status::invalid(format!("memory index {index}: the slice has {} memories", self.0.memories.len()))
        })
    }

    /// The topology of the client's devices.
    pub fn topology(&self) -> Result<Topology<'_>, Status> {
        let args = call!(self.plugin(), PJRT_Client_TopologyDescription_Args { client: self.raw() })?;
        Topology::borrowed(self, args.topology)
    }

    /// Device ids, `replicas` rows of `partitions`.
    pub fn default_device_assignment(&self, replicas: u32, partitions: u32) -> Result<Vec<i32>, Status> {
        let bounds = || Status::invalid(format!("{replicas} replicas of {partitions} partitions are too many"));
        let size = replicas.checked_mul(partitions).filter(|size| *size <= 1 << 24).ok_or_else(bounds)? as usize;
        let mut assignment = vec![0; size];
        call!(
            self.plugin(),
            PJRT_Client_DefaultDeviceAssignment_Args {
                client: self.raw(),
                num_replicas: replicas as i32,
                num_partitions: partitions as i32,
                default_assignment_size: size,
                default_assignment: assignment.as_mut_ptr(),
            }
        )?;
        Ok(assignment)
    }

    /// Compiles and loads a program. `options`: `CompileOptionsProto`.
    pub fn compile(&self, program: Program<'_>, options: &[u8]) -> Result<LoadedExecutable, Status> {
        let program = program.to_c();
        let args = call!(
            self.plugin(),
            PJRT_Client_Compile_Args {
                client: self.raw(),
                program: &program,
                compile_options: options.as_ptr().cast(),
                compile_options_size: options.len(),
            }
        )?;
        LoadedExecutable::new(self, args.executable)
    }

    /// Loads what [`super::Executable::serialize`] gave. `options` may be empty: those it was compiled with.
    pub fn load(&self, serialized: &[u8], options: &[u8]) -> Result<LoadedExecutable, Status> {
        let options = (!options.is_empty()).then_some(options);
        let args = call!(
            self.plugin(),
            PJRT_Executable_DeserializeAndLoad_Args {
                client: self.raw(),
                serialized_executable: serialized.as_ptr().cast(),
                serialized_executable_size: serialized.len(),
                overridden_serialized_compile_options: options
                    .map_or(std::ptr::null(), |options| options.as_ptr().cast()),
                overridden_serialized_compile_options_size: options.map_or(0, <[u8]>::len),
            }
        )?;
        LoadedExecutable::new(self, args.loaded_executable)
    }

    /// Makes a buffer from dense, major-to-minor host data. The event tells when the plugin no longer needs them.
    ///
    /// # Safety
    /// The data must be as long as the spec says (elements smaller than a byte take a byte each), and stay as its
    /// semantics promise.
    pub unsafe fn buffer_from_host(&self, data: HostData, spec: &BufferSpec) -> Result<(Buffer, Event), Status> {
        let mut device_layout = spec.layout.as_ref().map(layout::to_c);
        let args = call!(
            self.plugin(),
            PJRT_Client_BufferFromHostBuffer_Args {
                client: self.raw(),
                data: data.data,
                type_: spec.element_type,
                dims: spec.dims.as_ptr(),
                num_dims: spec.dims.len(),
                host_buffer_semantics: data.semantics.raw(),
                memory: self.memory(spec.memory)?.raw(),
                device_layout: device_layout.as_mut().map_or(std::ptr::null_mut(), |layout| layout),
            }
        )?;
        let done = Event::new(self.plugin(), args.done_with_host_buffer);
        Ok((Buffer::new(self, args.buffer)?, done))
    }

    /// Makes a buffer of unspecified contents.
    pub fn uninitialized_buffer(&self, spec: &BufferSpec) -> Result<Buffer, Status> {
        let mut layout = spec.layout.as_ref().map(layout::to_c);
        let args = call!(
            self.plugin(),
            PJRT_Client_CreateUninitializedBuffer_Args {
                client: self.raw(),
                shape_dims: spec.dims.as_ptr(),
                shape_num_dims: spec.dims.len(),
                shape_element_type: spec.element_type,
                shape_layout: layout.as_mut().map_or(std::ptr::null_mut(), |layout| layout),
                memory: self.memory(spec.memory)?.raw(),
            }
        )?;
        Buffer::new(self, args.buffer)
    }
}

impl Handle {
    fn list_devices(&self) -> Result<Vec<*mut sys::PJRT_Device>, Status> {
        let args = call!(self.plugin, PJRT_Client_AddressableDevices_Args { client: self.raw.as_ptr() })?;
        // SAFETY: the list lives as long as the client, and its devices too.
        Ok(unsafe { list(args.addressable_devices, args.num_addressable_devices) }.to_vec())
    }

    fn list_memories(&self) -> Result<Vec<*mut sys::PJRT_Memory>, Status> {
        let args = call!(self.plugin, PJRT_Client_AddressableMemories_Args { client: self.raw.as_ptr() })?;
        // SAFETY: as above.
        Ok(unsafe { list(args.addressable_memories, args.num_addressable_memories) }.to_vec())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        destroy!(self.plugin, PJRT_Client_Destroy_Args { client: self.raw.as_ptr() });
    }
}
