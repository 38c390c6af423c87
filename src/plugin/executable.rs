//! `PJRT_Executable` and `PJRT_LoadedExecutable`.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::buffer::BufferHandle;
use super::device::{DeviceHandle, Places};
use super::entry::{bytes, entries, list};
use super::event::EventHandle;
use super::extensions::LayoutList;
use super::handle::Handle;
use super::snapshot::capture_arguments;
use super::topology::TopologyHandle;
use super::values::{NamedValues, OwnedBytes, Strings, owned_bytes, program_from_c};
use crate::abi::{Code, Status, sys, with_struct};
use crate::program::artifact::Artifact;
use crate::program::options::CompileOptions;
use crate::runtime;
use crate::runtime::buffer::Buffer;
use crate::runtime::event::Event;
use crate::runtime::launch::{DeviceResults, LaunchOptions};
use crate::runtime::program::Program;
use crate::wire::message::{CompiledSpanning, ExecutableInfo};

/// A compiled program in a caller's hands, not tied to devices.
pub struct ExecutableHandle {
    artifact: Arc<Artifact>,
    output_types: Vec<sys::PJRT_Buffer_Type>,
    output_dims: Vec<i64>,
    output_ranks: Vec<usize>,
    output_memory_kinds: Lazy<Strings>,
    parameter_memory_kinds: Lazy<Strings>,
    output_shardings: Lazy<Option<Strings>>,
    parameter_shardings: Lazy<Option<Strings>>,
    output_layouts: Lazy<LayoutList>,
    parameter_layouts: Lazy<LayoutList>,
    cost_analysis: Lazy<NamedValues>,
    global: Lazy<Arc<CompiledSpanning>>,
}

/// What is made when first asked for.
type Lazy<T> = OnceLock<Result<T, Status>>;

/// A program on devices in a caller's hands.
pub struct LoadedHandle {
    program: Arc<Program>,
    places: Arc<Places>,
    devices: Vec<*mut sys::PJRT_Device>,
    logical_ids: Vec<sys::PJRT_LogicalDeviceIds>,
}

impl Handle for ExecutableHandle {
    type Raw = sys::PJRT_Executable;
    const WHAT: &'static str = "executable";
}

impl Handle for LoadedHandle {
    type Raw = sys::PJRT_LoadedExecutable;
    const WHAT: &'static str = "loaded executable";
}

owned_bytes! {
    delete_serialized PJRT_SerializedExecutable
    delete_options PJRT_SerializedCompileOptions
    delete_assignment PJRT_DeviceAssignmentSerialized
}

fn look<T>(lazy: &Lazy<T>, make: impl FnOnce() -> Result<T, Status>) -> Result<&T, Status> {
    lazy.get_or_init(make).as_ref().map_err(Clone::clone)
}

impl ExecutableHandle {
    /// A handle of a compiled program.
    pub fn new(artifact: Arc<Artifact>) -> Self {
        let info = &artifact.info;
        Self {
            output_types: info.output_types.clone(),
            output_dims: info.output_dims.iter().flatten().copied().collect(),
            output_ranks: info.output_dims.iter().map(SmallVec::len).collect(),
            output_memory_kinds: OnceLock::new(),
            parameter_memory_kinds: OnceLock::new(),
            output_shardings: OnceLock::new(),
            parameter_shardings: OnceLock::new(),
            output_layouts: OnceLock::new(),
            parameter_layouts: OnceLock::new(),
            cost_analysis: OnceLock::new(),
            global: OnceLock::new(),
            artifact,
        }
    }

    /// What was compiled.
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }

    /// What is known of the program as it was compiled for all its devices: for one that spans slices it is compiled so
    /// when this is first asked.
    fn global_info(&self) -> Result<&ExecutableInfo, Status> {
        match &self.artifact.global {
            Some(job) => Ok(&look(&self.global, || runtime::compiler::global(job))?.info),
            None => Ok(&self.artifact.info),
        }
    }

    fn shardings(given: &Result<Option<Vec<Vec<u8>>>, Status>) -> Result<Option<Strings>, Status> {
        Ok(given.as_ref().map_err(Clone::clone)?.as_ref().map(|shardings| Strings::new(shardings.iter().cloned())))
    }

    /// Serialized shardings of the outputs; none where the program has none.
    pub fn output_shardings(&self) -> Result<Option<&Strings>, Status> {
        look(&self.output_shardings, || Self::shardings(&self.artifact.info.output_shardings)).map(Option::as_ref)
    }

    /// Layouts of the outputs.
    pub fn output_layouts(&self) -> Result<&LayoutList, Status> {
        look(&self.output_layouts, || LayoutList::new(&self.artifact.info.output_layouts))
    }

    /// Layouts of the parameters.
    pub fn parameter_layouts(&self) -> Result<&LayoutList, Status> {
        look(&self.parameter_layouts, || LayoutList::new(&self.artifact.info.parameter_layouts))
    }

    /// Serialized shardings of the parameters; none where the program has none.
    pub fn parameter_shardings(&self) -> Result<Option<&Strings>, Status> {
        look(&self.parameter_shardings, || Self::shardings(&self.artifact.info.parameter_shardings)).map(Option::as_ref)
    }
}

impl LoadedHandle {
    /// A handle of a program.
    pub fn new(program: Arc<Program>, places: &Arc<Places>) -> Self {
        let devices = program.placement.devices().iter().map(|&device| places.device(device)).collect();
        let partitions = program.info().num_partitions.max(1) as i32;
        let logical = |position: usize| {
            let position = position as i32;
            sys::PJRT_LogicalDeviceIds { replica: position / partitions, partition: position % partitions }
        };
        let logical_ids = (0..program.placement.devices().len()).map(logical).collect();
        Self { devices, logical_ids, program, places: places.clone() }
    }

    fn launch_options(
        &self,
        options: *const sys::PJRT_ExecuteOptions,
        device: *mut sys::PJRT_Device,
    ) -> Result<LaunchOptions, Status> {
        let mut launch = LaunchOptions { launch_id: 0, non_donatable: SmallVec::new(), device: None };
        if !device.is_null() {
            // SAFETY: a live device of ours, says the interface.
            launch.device = Some(unsafe { DeviceHandle::borrow(device)? }.index);
        }
        if options.is_null() {
            return Ok(launch);
        }
        // SAFETY: options as the interface has them.
        unsafe {
            with_struct(options, |options| {
                if options.num_send_ops > 0 || options.num_recv_ops > 0 || options.num_hlo_output_callbacks > 0 {
                    return Err(Status::unimplemented(
                        "programs that call back into the framework's process are not served: the program runs in a worker process",
                    ));
                }
                if !options.multi_slice_config.is_null() {
                    return Err(Status::unimplemented(
                        "Mainstay joins slices itself; a multi-slice configuration cannot be given",
                    ));
                }
                launch.launch_id = options.launch_id;
                launch.non_donatable =
                    list(options.non_donatable_input_indices, options.num_non_donatable_input_indices)
                        .iter()
                        .copied()
                        .collect();
                Ok(launch)
            })
        }
    }

    fn hand_out(&self, results: Vec<DeviceResults>, args: &sys::PJRT_LoadedExecutable_Execute_Args) {
        for (device, result) in results.into_iter().enumerate() {
            // SAFETY: the caller's lists have a row for each device and a place for each output.
            unsafe {
                complete(args, device, || EventHandle::of_value(result.done, Some(result.session)));
                let row = args.output_lists.add(device).read();
                for (output, buffer) in result.outputs.into_iter().enumerate() {
                    row.add(output).write(BufferHandle::new(buffer, &self.places).into_raw());
                }
            }
        }
    }
}

/// Tells the caller, if it wants to know, when a device's part of a launch is over.
///
/// # Safety
/// `device` is one of those that the call is for.
unsafe fn complete(
    args: &sys::PJRT_LoadedExecutable_Execute_Args,
    device: usize,
    event: impl FnOnce() -> *mut sys::PJRT_Event,
) {
    if !args.device_complete_events.is_null() {
        // SAFETY: the caller's list has a place for each device.
        unsafe { args.device_complete_events.add(device).write(event()) };
    }
}

entries! {
    PJRT_Compile(args: PJRT_Compile_Args) {
        // SAFETY: a live topology of ours, and the caller's program and options.
        let (topology, (format, code), options) = unsafe {
            (
                TopologyHandle::borrow(args.topology)?,
                program_from_c(args.program)?,
                bytes(args.compile_options, args.compile_options_size),
            )
        };
        CompileOptions::parse(options)?;
        let artifact = runtime::compiler::compile_for_topology(topology.source(), format, code, options)?;
        args.executable = ExecutableHandle::new(Arc::new(artifact)).into_raw();
        Ok(())
    }

    PJRT_Executable_Destroy(args: PJRT_Executable_Destroy_Args) {
        // SAFETY: the caller gives up an executable of ours, or null.
        drop(unsafe { ExecutableHandle::take(args.executable) });
        Ok(())
    }

    PJRT_Executable_Name(args: PJRT_Executable_Name_Args) {
        // SAFETY: a live executable of ours.
        let name = &unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.info.name;
        (args.executable_name, args.executable_name_size) = (name.as_ptr().cast(), name.len());
        Ok(())
    }

    PJRT_Executable_NumReplicas(args: PJRT_Executable_NumReplicas_Args) {
        // SAFETY: a live executable of ours.
        args.num_replicas = unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.info.num_replicas as usize;
        Ok(())
    }

    PJRT_Executable_NumPartitions(args: PJRT_Executable_NumPartitions_Args) {
        // SAFETY: a live executable of ours.
        args.num_partitions = unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.info.num_partitions as usize;
        Ok(())
    }

    PJRT_Executable_NumOutputs(args: PJRT_Executable_NumOutputs_Args) {
        // SAFETY: a live executable of ours.
        args.num_outputs = unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.info.num_outputs as usize;
        Ok(())
    }

    PJRT_Executable_SizeOfGeneratedCodeInBytes(args: PJRT_Executable_SizeOfGeneratedCodeInBytes_Args) {
        // SAFETY: a live executable of ours.
        args.size_in_bytes = unsafe { ExecutableHandle::borrow(args.executable)? }.global_info()?.generated_code_size.clone()?;
        Ok(())
    }

    PJRT_Executable_Fingerprint(args: PJRT_Executable_Fingerprint_Args) {
        // SAFETY: a live executable of ours.
        let print = unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.info.fingerprint.as_ref().map_err(Clone::clone)?;
        (args.executable_fingerprint, args.executable_fingerprint_size) = (print.as_ptr().cast(), print.len());
        Ok(())
    }

    PJRT_Executable_GetCostAnalysis(args: PJRT_Executable_GetCostAnalysis_Args) {
        // SAFETY: a live executable of ours.
        let handle = unsafe { ExecutableHandle::borrow(args.executable)? };
        let costs = look(&handle.cost_analysis, || handle.global_info()?.cost_analysis.clone().map(NamedValues::new))?.array();
        (args.properties, args.num_properties) = (costs.as_ptr(), costs.len());
        Ok(())
    }

    PJRT_Executable_GetCompiledMemoryStats(args: PJRT_Executable_GetCompiledMemoryStats_Args) {
        // SAFETY: a live executable of ours.
        let stats = unsafe { ExecutableHandle::borrow(args.executable)? }.global_info()?.memory_stats.as_ref().map_err(Clone::clone)?;
        let mut stats = stats.iter().copied().chain(std::iter::repeat(0));
        let mut next = || stats.next().unwrap_or(0);
        args.generated_code_size_in_bytes = next();
        args.argument_size_in_bytes = next();
        args.output_size_in_bytes = next();
        args.alias_size_in_bytes = next();
        args.temp_size_in_bytes = next();
        args.host_generated_code_size_in_bytes = next();
        args.host_argument_size_in_bytes = next();
        args.host_output_size_in_bytes = next();
        args.host_alias_size_in_bytes = next();
        args.host_temp_size_in_bytes = next();
        args.peak_memory_in_bytes = next();
        args.total_size_in_bytes = next();
        args.total_allocation_bytes = next();
        args.indefinite_allocations = next();
        args.peak_unpadded_heap_bytes = next();
        Ok(())
    }

    PJRT_Executable_OutputElementTypes(args: PJRT_Executable_OutputElementTypes_Args) {
        // SAFETY: a live executable of ours.
        let types = &unsafe { ExecutableHandle::borrow(args.executable)? }.output_types;
        (args.output_types, args.num_output_types) = (types.as_ptr().cast_mut(), types.len());
        Ok(())
    }

    PJRT_Executable_OutputDimensions(args: PJRT_Executable_OutputDimensions_Args) {
        // SAFETY: a live executable of ours.
        let handle = unsafe { ExecutableHandle::borrow(args.executable)? };
        args.num_outputs = handle.output_ranks.len();
        (args.dims, args.dim_sizes) = (handle.output_dims.as_ptr(), handle.output_ranks.as_ptr());
        Ok(())
    }

    PJRT_Executable_OutputMemoryKinds(args: PJRT_Executable_OutputMemoryKinds_Args) {
        // SAFETY: a live executable of ours.
        let handle = unsafe { ExecutableHandle::borrow(args.executable)? };
        let kinds = look(&handle.output_memory_kinds, || handle.artifact.info.output_memory_kinds.clone().map(Strings::new))?;
        args.num_outputs = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.pointers(), kinds.sizes());
        Ok(())
    }

    PJRT_Executable_ParameterMemoryKinds(args: PJRT_Executable_ParameterMemoryKinds_Args) {
        // SAFETY: a live executable of ours.
        let handle = unsafe { ExecutableHandle::borrow(args.executable)? };
        let kinds = look(&handle.parameter_memory_kinds, || handle.artifact.info.parameter_memory_kinds.clone().map(Strings::new))?;
        args.num_parameters = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.pointers(), kinds.sizes());
        Ok(())
    }

    /// First without room, for the size; then with room, for the code.
    PJRT_Executable_OptimizedProgram(args: PJRT_Executable_OptimizedProgram_Args) {
        // SAFETY: a live executable of ours.
        let info = unsafe { ExecutableHandle::borrow(args.executable)? }.global_info()?;
        let (format, code) = info.optimized_program.as_ref().map_err(Clone::clone)?;
        // SAFETY: the caller's program, to be filled; its code has as many bytes as its size says.
        let program = unsafe { args.program.as_mut() }.ok_or_else(|| Status::invalid("a null pointer was given for a program"))?;
        (program.format, program.format_size) = (format.as_ptr().cast(), format.len());
        if program.code.is_null() {
            program.code_size = code.len();
            return Ok(());
        }
        if program.code_size < code.len() {
            return Err(Status::invalid(format!("the program has {} bytes; there is room for {}", code.len(), program.code_size)));
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), program.code.cast(), code.len()) };
        Ok(())
    }

    PJRT_Executable_Serialize(args: PJRT_Executable_Serialize_Args) {
        // SAFETY: a live executable of ours.
        let bytes = OwnedBytes(unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.to_bytes()?);
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.0.as_ptr().cast(), bytes.0.len());
        args.serialized_executable = Box::into_raw(Box::new(bytes)).cast();
        args.serialized_executable_deleter = Some(delete_serialized);
        Ok(())
    }

    PJRT_Executable_GetCompileOptions(args: PJRT_Executable_GetCompileOptions_Args) {
        // SAFETY: a live executable of ours.
        let bytes = OwnedBytes(unsafe { ExecutableHandle::borrow(args.executable)? }.artifact.original_options.to_vec());
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.0.as_ptr().cast(), bytes.0.len());
        args.serialized_compile_options = Box::into_raw(Box::new(bytes)).cast();
        args.serialized_compile_options_deleter = Some(delete_options);
        Ok(())
    }

    PJRT_LoadedExecutable_Destroy(args: PJRT_LoadedExecutable_Destroy_Args) {
        // SAFETY: the caller gives up a loaded executable of ours, or null.
        drop(unsafe { LoadedHandle::take(args.executable) });
        Ok(())
    }

    PJRT_LoadedExecutable_GetExecutable(args: PJRT_LoadedExecutable_GetExecutable_Args) {
        // SAFETY: a live loaded executable of ours.
        let artifact = unsafe { LoadedHandle::borrow(args.loaded_executable)? }.program.artifact.clone();
        args.executable = ExecutableHandle::new(artifact).into_raw();
        Ok(())
    }

    PJRT_LoadedExecutable_AddressableDevices(args: PJRT_LoadedExecutable_AddressableDevices_Args) {
        // SAFETY: a live loaded executable of ours.
        let devices = &unsafe { LoadedHandle::borrow(args.executable)? }.devices;
        (args.addressable_devices, args.num_addressable_devices) = (devices.as_ptr(), devices.len());
        Ok(())
    }

    PJRT_LoadedExecutable_AddressableDeviceLogicalIds(args: PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args) {
        // SAFETY: a live loaded executable of ours.
        let ids = &unsafe { LoadedHandle::borrow(args.executable)? }.logical_ids;
        args.addressable_device_logical_ids = ids.as_ptr().cast_mut();
        args.num_addressable_device_logical_ids = ids.len();
        Ok(())
    }

    PJRT_LoadedExecutable_GetDeviceAssignment(args: PJRT_LoadedExecutable_GetDeviceAssignment_Args) {
        // SAFETY: a live loaded executable of ours.
        let program = &unsafe { LoadedHandle::borrow(args.executable)? }.program;
        let bytes = OwnedBytes(program.artifact.assignment()?.to_bytes()?);
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.0.as_ptr().cast(), bytes.0.len());
        args.serialized_device_assignment = Box::into_raw(Box::new(bytes)).cast();
        args.serialized_device_assignment_deleter = Some(delete_assignment);
        Ok(())
    }

    PJRT_LoadedExecutable_Delete(args: PJRT_LoadedExecutable_Delete_Args) {
        // SAFETY: a live loaded executable of ours.
        unsafe { LoadedHandle::borrow(args.executable)? }.program.delete();
        Ok(())
    }

    PJRT_LoadedExecutable_IsDeleted(args: PJRT_LoadedExecutable_IsDeleted_Args) {
        // SAFETY: a live loaded executable of ours.
        args.is_deleted = unsafe { LoadedHandle::borrow(args.executable)? }.program.is_deleted();
        Ok(())
    }

    PJRT_LoadedExecutable_Fingerprint(args: PJRT_LoadedExecutable_Fingerprint_Args) {
        // SAFETY: a live loaded executable of ours.
        let handle = unsafe { LoadedHandle::borrow(args.executable)? };
        let print = handle.program.artifact.info.fingerprint.as_ref().map_err(Clone::clone)?;
        (args.executable_fingerprint, args.executable_fingerprint_size) = (print.as_ptr().cast(), print.len());
        Ok(())
    }

    /// Dispatches and returns. That a slice is down shows in the events, never here.
    PJRT_LoadedExecutable_Execute(args: PJRT_LoadedExecutable_Execute_Args) {
        // SAFETY: a live loaded executable of ours.
        let handle = unsafe { LoadedHandle::borrow(args.executable)? };
        let options = handle.launch_options(args.options, args.execute_device)?;
        if args.output_lists.is_null() {
            return Err(Status::new(Code::InvalidArgument, "a null pointer was given for the output lists"));
        }
        // SAFETY: a row of buffers for each device, says the interface.
        let rows = unsafe { list(args.argument_lists, args.num_devices) };
        // SAFETY: as many buffers as the call says there are arguments.
        let rows: Vec<&[*mut sys::PJRT_Buffer]> = rows.iter().map(|&row| unsafe { list(row, args.num_args) }).collect();
        if handle.program.info().num_outputs == 0 && capture_arguments(&handle.program.info().name, &rows) {
            let nothing = || EventHandle::plain(Event::completed(Ok(())));
            // SAFETY: the devices of the call.
            (0..args.num_devices).for_each(|device| unsafe { complete(args, device, nothing) });
            return Ok(());
        }
        let arguments = rows.iter().map(|row| {
            // SAFETY: live buffers of ours, says the interface.
            row.iter().map(|&buffer| Ok(unsafe { BufferHandle::borrow(buffer)? }.buffer())).collect()
        });
        let arguments = arguments.collect::<Result<Vec<Vec<&Arc<Buffer>>>, Status>>()?;
        let results = handle.program.launch(&arguments, &options)?;
        handle.hand_out(results, args);
        Ok(())
    }
}
