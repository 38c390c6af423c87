//! Compile options for planning a spanning program, for compiling a slice's part of it, and for compiling it as a whole.

use std::path::Path;

use protobuf::{Message, MessageField};

use crate::abi::Status;
use crate::program::options::DUMP_PREFIX;
use crate::program::proto::compile_options::{
    CompileOptionsProto, ExecutableBuildOptionsProto, OptionOverrideProto, option_override_proto,
};
use crate::program::proto::shape::DeviceAssignmentProto;
use crate::program::proto::shape::device_assignment_proto::ComputationDevice;

use super::groups::Extents;

/// What a program's compile options say about its replicas and partitions.
pub fn extents(options: &[u8]) -> Result<Extents, Status> {
    let options = parse(options)?;
    let build = options.executable_build_options.get_or_default();
    let count = |value: i64, what: &str| {
        u32::try_from(value.max(1)).map_err(|_| Status::invalid(format!("the compile options ask for {value} {what}")))
    };
    let (replicas, partitions) = (count(build.num_replicas, "replicas")?, count(build.num_partitions, "partitions")?);
    if replicas.checked_mul(partitions).is_none() {
        return Err(Status::invalid(format!(
            "the compile options ask for {replicas} replicas of {partitions} partitions"
        )));
    }
    Ok(Extents { replicas, partitions })
}

/// Options to compile a program for all its devices on one client of as many, with dumps of the modules before
/// optimization and after SPMD partitioning into `dump`.
pub fn planning(options: &[u8], dump: &Path) -> Result<Vec<u8>, Status> {
    let mut options = parse(options)?;
    place_on_one_client(&mut options);
    let dump = dump
        .to_str()
        .ok_or_else(|| Status::invalid(format!("the folder for dumps, {}, is not UTF-8", dump.display())))?;
    // A user's own would get in the planner's way.
    options.env_option_overrides.retain(|name, _| !name.starts_with(DUMP_PREFIX));
    let text = |value: &str| option_override_proto::Value::StringField(value.into());
    let yes = option_override_proto::Value::BoolField(true);
    for (name, value) in [
        ("xla_dump_to", text(dump)),
        ("xla_dump_hlo_pass_re", text("spmd-partitioning")),
        ("xla_dump_hlo_as_proto", yes),
    ] {
        options
            .env_option_overrides
            .insert(name.into(), OptionOverrideProto { value: Some(value), ..Default::default() });
    }
    write(&options)
}

/// Options to compile a program for all its devices on one client of as many, without dumps.
pub fn global(options: &[u8]) -> Result<Vec<u8>, Status> {
    let mut options = parse(options)?;
    options.env_option_overrides.retain(|name, _| !name.starts_with(DUMP_PREFIX));
    place_on_one_client(&mut options);
    write(&options)
}

/// Assigns the devices of a client that has as many as the program, in order.
fn place_on_one_client(options: &mut CompileOptionsProto) {
    let build = options.executable_build_options.mut_or_insert_default();
    let (replicas, partitions) = (build.num_replicas.max(1), build.num_partitions.max(1));
    build.device_ordinal = -1;
    build.device_assignment =
        MessageField::some(assignment(replicas, partitions, |replica, partition| replica * partitions + partition));
}

/// Options to compile the rewritten module for a slice: one replica for each device, on the devices with these ids.
pub fn slice(options: &[u8], device_ids: &[i64]) -> Result<Vec<u8>, Status> {
    let mut options = parse(options)?;
    options.argument_layouts.clear();
    let build = options.executable_build_options.mut_or_insert_default();
    detach_from_partitioning(build);
    build.num_replicas = device_ids.len() as i64;
    build.device_assignment =
        MessageField::some(assignment(device_ids.len() as i64, 1, |replica, _| device_ids[replica as usize]));
    write(&options)
}

/// The partitioned module is partitioned: nothing of that is to be done again. Its entry layout has the layouts.
fn detach_from_partitioning(build: &mut ExecutableBuildOptionsProto) {
    build.device_ordinal = -1;
    build.num_partitions = 1;
    build.use_spmd_partitioning = false;
    build.use_auto_spmd_partitioning = false;
    build.use_shardy_partitioner = false;
    build.allow_spmd_sharding_propagation_to_output.clear();
    build.allow_spmd_sharding_propagation_to_parameters.clear();
    build.result_layout = MessageField::none();
}

fn assignment(replicas: i64, partitions: i64, device: impl Fn(i64, i64) -> i64) -> DeviceAssignmentProto {
    let row = |partition| ComputationDevice {
        replica_device_ids: (0..replicas).map(|replica| device(replica, partition)).collect(),
        ..Default::default()
    };
    DeviceAssignmentProto {
        replica_count: replicas as i32,
        computation_count: partitions as i32,
        computation_devices: (0..partitions).map(row).collect(),
        ..Default::default()
    }
}

fn parse(options: &[u8]) -> Result<CompileOptionsProto, Status> {
    CompileOptionsProto::parse_from_bytes(options)
        .map_err(|error| Status::invalid(format!("the compile options can't be read: {error}")))
}

fn write(options: &CompileOptionsProto) -> Result<Vec<u8>, Status> {
    options.write_to_bytes().map_err(|error| Status::invalid(format!("the compile options can't be written: {error}")))
}
