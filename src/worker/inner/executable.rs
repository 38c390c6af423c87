//! Programs: compiled ([`Executable`]: what is known of it) and loaded ([`LoadedExecutable`]: what can be run).

use std::ffi::c_char;
use std::ptr::NonNull;

use smallvec::{SmallVec, smallvec};

use super::call::{bytes, call, destroy, list, text};
use super::{Buffer, Client, Device, Event, Plugin, named_values};
use crate::abi::{Status, new_args, sys};
use crate::wire::message::{Dims, NamedValue};

/// Source of a program.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// `mlir`, `hlo`, `hlo_with_config`, ….
    pub format: &'a str,
    /// Its bytes.
    pub code: &'a [u8],
}

impl Program<'_> {
    /// The C form, which points into the program.
    pub(super) fn to_c(self) -> sys::PJRT_Program {
        let mut program = new_args::<sys::PJRT_Program>();
        program.code = self.code.as_ptr().cast::<c_char>().cast_mut();
        program.code_size = self.code.len();
        program.format = self.format.as_ptr().cast();
        program.format_size = self.format.len();
        program
    }
}

/// A compiled program, destroyed when dropped.
pub struct Executable {
    plugin: &'static Plugin,
    raw: NonNull<sys::PJRT_Executable>,
}

// SAFETY: the interface lets any thread use an executable.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Takes over an executable that the plugin gave.
    pub(super) fn new(plugin: &'static Plugin, raw: *mut sys::PJRT_Executable) -> Result<Self, Status> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Status::failed_precondition("the plugin gave neither an executable nor an error"))?;
        Ok(Self { plugin, raw })
    }

    pub(super) fn plugin(&self) -> &'static Plugin {
        self.plugin
    }

    pub(super) fn raw(&self) -> *mut sys::PJRT_Executable {
        self.raw.as_ptr()
    }

    /// The program's name.
    pub fn name(&self) -> Result<String, Status> {
        let args = call!(self.plugin, PJRT_Executable_Name_Args { executable: self.raw() })?;
        // SAFETY: the text lives as long as the executable.
        Ok(unsafe { text(args.executable_name, args.executable_name_size) })
    }

    /// Replicas.
    pub fn num_replicas(&self) -> Result<usize, Status> {
        call!(self.plugin, PJRT_Executable_NumReplicas_Args { executable: self.raw() }).map(|args| args.num_replicas)
    }

    /// Partitions.
    pub fn num_partitions(&self) -> Result<usize, Status> {
        call!(self.plugin, PJRT_Executable_NumPartitions_Args { executable: self.raw() })
            .map(|args| args.num_partitions)
    }

    /// Outputs of one device.
    pub fn num_outputs(&self) -> Result<usize, Status> {
        call!(self.plugin, PJRT_Executable_NumOutputs_Args { executable: self.raw() }).map(|args| args.num_outputs)
    }

    /// `PJRT_Buffer_Type` of each output.
    pub fn output_types(&self) -> Result<Vec<u32>, Status> {
        let args = call!(self.plugin, PJRT_Executable_OutputElementTypes_Args { executable: self.raw() })?;
        // SAFETY: the list lives as long as the executable.
        Ok(unsafe { list(args.output_types, args.num_output_types) }.to_vec())
    }

    /// Dimensions of each output.
    pub fn output_dims(&self) -> Result<Vec<Dims>, Status> {
        let args = call!(self.plugin, PJRT_Executable_OutputDimensions_Args { executable: self.raw() })?;
        // SAFETY: both lists live as long as the executable; the second says how the first is divided.
        unsafe {
            let sizes = list(args.dim_sizes, args.num_outputs);
            let mut dims = list(args.dims, sizes.iter().sum());
            Ok(sizes.iter().filter_map(|size| dims.split_off(..*size)).map(Dims::from_slice).collect())
        }
    }

    /// The kind of memory of each output.
    pub fn output_memory_kinds(&self) -> Result<Vec<String>, Status> {
        let args = call!(self.plugin, PJRT_Executable_OutputMemoryKinds_Args { executable: self.raw() })?;
        // SAFETY: the lists live as long as the executable.
        Ok(unsafe { texts(args.memory_kinds, args.memory_kind_sizes, args.num_outputs) })
    }

    /// The kind of memory of each parameter (since 0.11x).
    pub fn parameter_memory_kinds(&self) -> Result<Vec<String>, Status> {
        let args = call!(self.plugin, PJRT_Executable_ParameterMemoryKinds_Args { executable: self.raw() })?;
        // SAFETY: the lists live as long as the executable.
        Ok(unsafe { texts(args.memory_kinds, args.memory_kind_sizes, args.num_parameters) })
    }

    /// `OpSharding` of each output (Shardings extension); `None` where the program has none.
    pub fn output_shardings(&self) -> Result<Option<Vec<Vec<u8>>>, Status> {
        let args = call!(
            self.plugin,
            shardings.PJRT_Shardings_PJRT_Executable_OutputShardings,
            PJRT_Shardings_PJRT_Executable_OutputShardings_Args { executable: self.raw() }
        )?;
        // SAFETY: the lists live as long as the executable.
        Ok(unsafe { protos(args.shardings, args.sharding_sizes, args.num_outputs) })
    }

    /// `OpSharding` of each parameter (Shardings extension); `None` where the program has none.
    pub fn parameter_shardings(&self) -> Result<Option<Vec<Vec<u8>>>, Status> {
        let args = call!(
            self.plugin,
            shardings.PJRT_Shardings_PJRT_Executable_ParameterShardings,
            PJRT_Shardings_PJRT_Executable_ParameterShardings_Args { executable: self.raw() }
        )?;
        // SAFETY: the lists live as long as the executable.
        Ok(unsafe { protos(args.shardings, args.sharding_sizes, args.num_parameters) })
    }

    /// Bytes of code, or -1 where unknown.
    pub fn generated_code_size(&self) -> Result<i64, Status> {
        call!(self.plugin, PJRT_Executable_SizeOfGeneratedCodeInBytes_Args { executable: self.raw() })
            .map(|args| args.size_in_bytes)
    }

    /// Bytes that differ between programs that differ.
    pub fn fingerprint(&self) -> Result<Vec<u8>, Status> {
        let args = call!(self.plugin, PJRT_Executable_Fingerprint_Args { executable: self.raw() })?;
        // SAFETY: the bytes live as long as the executable.
        Ok(unsafe { bytes(args.executable_fingerprint, args.executable_fingerprint_size) })
    }

    /// What the program will cost, by the plugin's own names.
    pub fn cost_analysis(&self) -> Result<Vec<NamedValue>, Status> {
        let args = call!(self.plugin, PJRT_Executable_GetCostAnalysis_Args { executable: self.raw() })?;
        // SAFETY: the list lives as long as the executable.
        Ok(unsafe { named_values::read(args.properties, args.num_properties) })
    }

    /// Memory that the program needs, in the order of the fields of the interface's structure; those that the
    /// plugin does not know are 0.
    pub fn memory_stats(&self) -> Result<Vec<i64>, Status> {
        let stats = call!(self.plugin, PJRT_Executable_GetCompiledMemoryStats_Args { executable: self.raw() })?;
        Ok(vec![
            stats.generated_code_size_in_bytes,
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.host_generated_code_size_in_bytes,
            stats.host_argument_size_in_bytes,
            stats.host_output_size_in_bytes,
            stats.host_alias_size_in_bytes,
            stats.host_temp_size_in_bytes,
            stats.peak_memory_in_bytes,
            stats.total_size_in_bytes,
            stats.total_allocation_bytes,
            stats.indefinite_allocations,
            stats.peak_unpadded_heap_bytes,
        ])
    }

    /// The program after optimization: format and bytes.
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>), Status> {
        // Asked twice: for the size, and with room of that size.
        let mut program = Program { format: "", code: &[] }.to_c();
        program.code = std::ptr::null_mut();
        self.ask_optimized_program(&mut program)?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.ask_optimized_program(&mut program)?;
        code.truncate(program.code_size);
        // SAFETY: the format is a constant of the plugin, or lives as long as the executable.
        Ok((unsafe { text(program.format, program.format_size) }, code))
    }

    fn ask_optimized_program(&self, program: &mut sys::PJRT_Program) -> Result<(), Status> {
        call!(self.plugin, PJRT_Executable_OptimizedProgram_Args { executable: self.raw(), program: program })
            .map(|_| ())
    }

    /// The compiled program in bytes, for [`Client::load`].
    pub fn serialize(&self) -> Result<Vec<u8>, Status> {
        let args = call!(self.plugin, PJRT_Executable_Serialize_Args { executable: self.raw() })?;
        // SAFETY: the bytes live until their deleter is called.
        let serialized = unsafe { bytes(args.serialized_bytes, args.serialized_bytes_size) };
        if let Some(delete) = args.serialized_executable_deleter {
            // SAFETY: once, with what the plugin gave along with it.
            unsafe { delete(args.serialized_executable) };
        }
        Ok(serialized)
    }

    /// `CompileOptionsProto` that the program was compiled with (since 0.8x).
    pub fn compile_options(&self) -> Result<Vec<u8>, Status> {
        let args = call!(self.plugin, PJRT_Executable_GetCompileOptions_Args { executable: self.raw() })?;
        // SAFETY: the bytes live until their deleter is called.
        let options = unsafe { bytes(args.serialized_bytes, args.serialized_bytes_size) };
        if let Some(delete) = args.serialized_compile_options_deleter {
            // SAFETY: once, with what the plugin gave along with it.
            unsafe { delete(args.serialized_compile_options) };
        }
        Ok(options)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        destroy!(self.plugin, PJRT_Executable_Destroy_Args { executable: self.raw() });
    }
}

/// # Safety
/// As for [`list`], for both arrays; the second has the sizes of what the first points to.
unsafe fn texts(data: *const *const c_char, sizes: *const usize, len: usize) -> Vec<String> {
    // SAFETY: as the caller promises.
    unsafe { list(data, len).iter().zip(list(sizes, len)).map(|(data, size)| text(*data, *size)).collect() }
}

/// # Safety
/// As for [`texts`]. No array at all means that there is nothing to be told, though `len` may be a number.
unsafe fn protos(data: *const *const c_char, sizes: *const usize, len: usize) -> Option<Vec<Vec<u8>>> {
    if data.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    Some(unsafe { list(data, len).iter().zip(list(sizes, len)).map(|(data, size)| bytes(*data, *size)).collect() })
}

/// A program that is loaded onto devices of a client, destroyed when dropped.
pub struct LoadedExecutable {
    client: Client,
    raw: NonNull<sys::PJRT_LoadedExecutable>,
    num_outputs: usize,
}

// SAFETY: the interface lets any thread use a loaded executable.
unsafe impl Send for LoadedExecutable {}
// SAFETY: as above.
unsafe impl Sync for LoadedExecutable {}

/// What a program is run with.
pub struct RunArguments<'a> {
    /// All of device 0, then all of device 1, ….
    pub arguments: &'a [&'a Buffer],
    /// How many devices run.
    pub num_devices: usize,
    /// The device to run on, where only one is asked for.
    pub execute_device: Option<Device<'a>>,
    /// `launch_id` of the execute options.
    pub launch_id: i32,
    /// Indices of arguments that must not be donated.
    pub non_donatable: &'a [i64],
}

/// What a launch gave.
pub struct Launched {
    /// Outputs: all of device 0, then all of device 1, ….
    pub outputs: Vec<Buffer>,
    /// For each device, the event of its being done.
    pub completions: SmallVec<[Event; 4]>,
}

impl LoadedExecutable {
    /// Takes over a loaded executable that the plugin gave.
    pub(super) fn new(client: &Client, raw: *mut sys::PJRT_LoadedExecutable) -> Result<Self, Status> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Status::failed_precondition("the plugin gave neither an executable nor an error"))?;
        let mut loaded = Self { client: client.clone(), raw, num_outputs: 0 };
        loaded.num_outputs = loaded.executable()?.num_outputs()?;
        Ok(loaded)
    }

    fn raw(&self) -> *mut sys::PJRT_LoadedExecutable {
        self.raw.as_ptr()
    }

    /// What is known of the program.
    pub fn executable(&self) -> Result<Executable, Status> {
        let plugin = self.client.plugin();
        let args = call!(plugin, PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: self.raw() })?;
        Executable::new(plugin, args.executable)
    }

    /// Outputs of one device.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// `DeviceAssignmentProto` (since 0.8x).
    pub fn device_assignment(&self) -> Result<Vec<u8>, Status> {
        let args =
            call!(self.client.plugin(), PJRT_LoadedExecutable_GetDeviceAssignment_Args { executable: self.raw() })?;
        // SAFETY: the bytes live until their deleter is called.
        let assignment = unsafe { bytes(args.serialized_bytes, args.serialized_bytes_size) };
        if let Some(delete) = args.serialized_device_assignment_deleter {
            // SAFETY: once, with what the plugin gave along with it.
            unsafe { delete(args.serialized_device_assignment) };
        }
        Ok(assignment)
    }

    /// Runs the program: returns as soon as the plugin has taken it.
    pub fn run(&self, run: RunArguments<'_>) -> Result<Launched, Status> {
        let num_devices = run.num_devices;
        if num_devices == 0 || !run.arguments.len().is_multiple_of(num_devices) {
            let len = run.arguments.len();
            return Err(Status::invalid(format!("{len} arguments can't be those of {num_devices} devices")));
        }
        let num_args = run.arguments.len() / num_devices;
        let arguments: SmallVec<[*mut sys::PJRT_Buffer; 16]> =
            run.arguments.iter().map(|buffer| buffer.raw()).collect();
        let argument_lists: SmallVec<[*const *mut sys::PJRT_Buffer; 4]> =
            (0..num_devices).map(|device| arguments[device * num_args..].as_ptr()).collect();
        let mut outputs: SmallVec<[*mut sys::PJRT_Buffer; 16]> =
            smallvec![std::ptr::null_mut(); num_devices * self.num_outputs];
        let first_output = outputs.as_mut_ptr();
        let output_lists: SmallVec<[*mut *mut sys::PJRT_Buffer; 4]> =
            (0..num_devices).map(|device| first_output.wrapping_add(device * self.num_outputs)).collect();
        let mut events: SmallVec<[*mut sys::PJRT_Event; 4]> = smallvec![std::ptr::null_mut(); num_devices];
        let mut options = execute_options(&run);
        call!(
            self.client.plugin(),
            PJRT_LoadedExecutable_Execute_Args {
                executable: self.raw(),
                options: &mut options,
                argument_lists: argument_lists.as_ptr(),
                num_devices: num_devices,
                num_args: num_args,
                output_lists: output_lists.as_ptr(),
                device_complete_events: events.as_mut_ptr(),
                execute_device: run.execute_device.map_or(std::ptr::null_mut(), |device| device.raw()),
            }
        )?;
        let completions = events.iter().map(|event| Event::new(self.client.plugin(), *event)).collect();
        // Every buffer is taken over, also where one is missing: none may leak.
        let outputs: Vec<Result<Buffer, Status>> =
            outputs.iter().map(|output| Buffer::new(&self.client, *output)).collect();
        Ok(Launched { outputs: outputs.into_iter().collect::<Result<_, _>>()?, completions })
    }
}

/// The C form of the options, which points into `run`.
fn execute_options(run: &RunArguments<'_>) -> sys::PJRT_ExecuteOptions {
    let mut options = new_args::<sys::PJRT_ExecuteOptions>();
    options.launch_id = run.launch_id;
    options.non_donatable_input_indices = run.non_donatable.as_ptr();
    options.num_non_donatable_input_indices = run.non_donatable.len();
    options
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        destroy!(self.client.plugin(), PJRT_LoadedExecutable_Destroy_Args { executable: self.raw() });
    }
}
