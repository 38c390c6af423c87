//! What the inner plugin, its clients, topologies and programs are, in the words of the wire.

use smallvec::SmallVec;

use super::inner::{
    Client, Device, DeviceDescription, Executable, LayoutText, LoadedExecutable, Memory, Plugin, Topology,
    major_to_minor,
};
use crate::abi::Status;
use crate::program::signature::{Parameter, Signature};
use crate::wire::message::{
    ClientDescription, Compiled, DeviceInfo, Dims, ExecutableInfo, Layout, MemoryInfo, TopologyInfo,
};

/// Describes a client and all that is addressable from it.
pub fn client(plugin: &Plugin, client: &Client) -> Result<ClientDescription, Status> {
    let devices: Vec<_> = client.devices().collect();
    let memories: Vec<_> = client.memories().collect();
    Ok(ClientDescription {
        api_version: plugin.version(),
        extensions: plugin.extension_types().to_vec(),
        platform_name: client.platform_name()?,
        platform_version: client.platform_version()?,
        process_index: client.process_index()?,
        devices: devices.iter().map(|device| device_info(*device, &memories)).collect::<Result<_, _>>()?,
        memories: memories.iter().map(|memory| memory_info(*memory, &devices)).collect::<Result<_, _>>()?,
    })
}

fn device_info(device: Device<'_>, memories: &[Memory<'_>]) -> Result<DeviceInfo, Status> {
    let mut info = description_info(device.description()?)?;
    // An attribute of the device itself stands above one of the same name in its description.
    let own = device.attributes().unwrap_or_default();
    info.attributes.retain(|described| own.iter().all(|attribute| attribute.name != described.name));
    info.attributes.extend(own);
    info.local_hardware_id = device.local_hardware_id().unwrap_or(-1);
    let place = |memory: Memory<'_>| memories.iter().position(|other| *other == memory).map(|index| index as u32);
    info.memories = device.memories()?.into_iter().filter_map(place).collect();
    info.default_memory = device.default_memory().ok().and_then(place);
    Ok(info)
}

/// All that is known without a client: in particular, `default_memory` counts among `memory_descriptions`.
fn description_info(description: DeviceDescription<'_>) -> Result<DeviceInfo, Status> {
    let memories = description.memory_descriptions().unwrap_or_default();
    Ok(DeviceInfo {
        id: description.id()?,
        process_index: description.process_index()?,
        local_hardware_id: -1,
        kind: description.kind()?,
        debug_string: description.debug_string()?,
        to_string: description.to_text()?,
        attributes: description.attributes()?,
        memories: Vec::new(),
        default_memory: memories.default.map(|index| index as u32),
        memory_descriptions: memories.kinds,
    })
}

fn memory_info(memory: Memory<'_>, devices: &[Device<'_>]) -> Result<MemoryInfo, Status> {
    let place = |device: Device<'_>| devices.iter().position(|other| *other == device).map(|index| index as u32);
    Ok(MemoryInfo {
        id: memory.id()?,
        kind: memory.kind()?,
        kind_id: memory.kind_id()?,
        debug_string: memory.debug_string()?,
        to_string: memory.to_text()?,
        devices: memory.devices()?.into_iter().filter_map(place).collect(),
    })
}

/// Describes a topology.
pub fn topology(topology: &Topology<'_>) -> Result<TopologyInfo, Status> {
    Ok(TopologyInfo {
        platform_name: topology.platform_name()?,
        platform_version: topology.platform_version()?,
        attributes: topology.attributes()?,
        devices: topology.devices()?.into_iter().map(description_info).collect::<Result<_, _>>()?,
        serialized: topology.serialize(),
        fingerprint: topology.fingerprint(),
    })
}

/// Gives the default layout of a type and shape: a client's or a topology's.
pub type DefaultLayout<'a> = &'a dyn Fn(u32, &[i64]) -> Result<LayoutText, Status>;

/// Describes a program that is loaded.
pub fn loaded(loaded: &LoadedExecutable, default_layout: DefaultLayout<'_>) -> Result<Compiled, Status> {
    let mut compiled = executable(&loaded.executable()?, default_layout)?;
    compiled.info.device_assignment = loaded.device_assignment();
    Ok(compiled)
}

/// Describes a program that is compiled, and perhaps not loaded anywhere.
pub fn executable(executable: &Executable, default_layout: DefaultLayout<'_>) -> Result<Compiled, Status> {
    let optimized_program = executable.optimized_program();
    let signature = optimized_program.as_ref().ok().and_then(|(format, code)| Signature::read(format, code));
    let output_types = executable.output_types()?;
    let output_dims = executable.output_dims()?;
    let output_layouts = executable.output_layouts().or_else(|status| {
        let outputs = output_types.iter().zip(&output_dims);
        outputs.map(|(kind, dims)| layout_or(default_layout, *kind, dims, &status)).collect()
    });
    let parameter_layouts = executable.parameter_layouts().or_else(|status| match &signature {
        Some(known) => known.parameters.iter().map(|one| parameter_layout(default_layout, one, &status)).collect(),
        None => Err(status),
    });
    let signature = signature.unwrap_or_default();
    Ok(Compiled {
        serialized: executable.serialize().map(Into::into),
        info: ExecutableInfo {
            name: executable.name()?,
            num_replicas: count(executable.num_replicas()?)?,
            num_partitions: count(executable.num_partitions()?)?,
            num_outputs: count(executable.num_outputs()?)?,
            output_memory_kinds: executable.output_memory_kinds(),
            parameter_memory_kinds: executable.parameter_memory_kinds(),
            output_layouts: output_layouts.map(texts),
            parameter_layouts: parameter_layouts.map(texts),
            output_shardings: executable.output_shardings(),
            parameter_shardings: executable.parameter_shardings(),
            generated_code_size: executable.generated_code_size(),
            fingerprint: executable.fingerprint(),
            cost_analysis: executable.cost_analysis(),
            memory_stats: executable.memory_stats(),
            optimized_program,
            compile_options: executable.compile_options(),
            device_assignment: Err(Status::failed_precondition("the program is not loaded onto devices")),
            parameters: signature.parameters.into_iter().map(|one| (one.element_type, one.dims)).collect(),
            donated: signature.donated,
            output_types,
            output_dims,
        },
    })
}

/// The layout that the program itself says, else the default one.
fn parameter_layout(
    default_layout: DefaultLayout<'_>,
    parameter: &Parameter,
    absent: &Status,
) -> Result<LayoutText, Status> {
    match &parameter.layout {
        Some(layout) => Ok(LayoutText::untiled(&layout.minor_to_major, layout.element_bits, layout.memory_space)),
        None => layout_or(default_layout, parameter.element_type, &parameter.dims, absent),
    }
}

/// The default layout; where the plugin can't say that either, why the better question had no answer.
fn layout_or(
    default_layout: DefaultLayout<'_>,
    element_type: u32,
    dims: &Dims,
    absent: &Status,
) -> Result<LayoutText, Status> {
    default_layout(element_type, dims).map_err(|_| absent.clone())
}

fn texts(layouts: Vec<LayoutText>) -> Vec<String> {
    layouts.into_iter().map(|layout| layout.0).collect()
}

fn count(number: usize) -> Result<u32, Status> {
    u32::try_from(number).map_err(|_| Status::failed_precondition(format!("the plugin counts {number} of a thing")))
}

/// The default layout of a type and shape, as structure and as text. A plugin without the Layouts extension has
/// the last dimension vary fastest.
pub fn default_layout(text: Result<LayoutText, Status>, dims: &[i64]) -> Result<(Layout, String), Status> {
    match text {
        Ok(text) => Ok((text.parse()?, text.0)),
        Err(status) if status.code == crate::abi::Code::Unimplemented => {
            let minor_to_major: SmallVec<[i64; 6]> = (0..dims.len() as i64).rev().collect();
            Ok((major_to_minor(dims.len()), LayoutText::untiled(&minor_to_major, 0, 0).0))
        }
        Err(status) => Err(status),
    }
}
