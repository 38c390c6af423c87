//! What a framework asks of a spanning program that its slices' executables don't know: shardings and donations.

use protobuf::Message;

use crate::abi::Status;
use crate::program::proto::compile_options::CompileOptionsProto;
use crate::program::proto::hlo::{HloModuleProto, OpShardingProto};
use crate::wire::message::{CompileJob, ExecutableInfo};

use super::groups::Extents;
use super::types::TUPLE;

/// `OpSharding.Type` of a tuple.
const SHARDING_TUPLE: i32 = 2;

/// What the partitioned module says about its parameters and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Serialized `OpSharding` of each parameter; absent where the program was not partitioned.
    pub parameter_shardings: Option<Vec<Vec<u8>>>,
    /// Serialized `OpSharding` of each result; absent where the program was not partitioned.
    pub output_shardings: Option<Vec<Vec<u8>>>,
    /// Parameters that an execution donates, in order.
    pub donated: Vec<u32>,
}

/// Reads the metadata of a partitioned module; to be called before it is rewritten.
pub fn metadata(module: &HloModuleProto) -> Result<Metadata, Status> {
    let parameters = &module.spmd_parameters_shardings;
    let tuple_parameter = module.host_program_shape.parameters.first().is_some_and(|p| p.element_type == TUPLE);
    let parameter_shardings = match &parameters[..] {
        [] => None,
        [one] if tuple_parameter => Some(parts(one)?),
        many => Some(many.to_vec()),
    };
    let output_shardings = module.spmd_output_sharding.as_deref().map(parts).transpose()?;
    Ok(Metadata { parameter_shardings, output_shardings, donated: donated(module) })
}

impl Metadata {
    /// What is known of the whole program, given what is known of a slice's part of it.
    ///
    /// A device's parameters and results are the same in both; what differs is replicas, partitions, shardings, options
    /// and fingerprint.
    pub fn describe(&self, part: &ExecutableInfo, program: &CompileJob, extents: Extents) -> ExecutableInfo {
        let assignment = CompileOptionsProto::parse_from_bytes(&program.options)
            .ok()
            .and_then(|options| options.executable_build_options.device_assignment.write_to_bytes().ok())
            .filter(|bytes| !bytes.is_empty());
        ExecutableInfo {
            num_replicas: extents.replicas,
            num_partitions: extents.partitions,
            output_shardings: Ok(self.output_shardings.clone()),
            parameter_shardings: Ok(self.parameter_shardings.clone()),
            compile_options: Ok(program.options.to_vec()),
            device_assignment: assignment
                .ok_or_else(|| Status::failed_precondition("the program was compiled without a device assignment")),
            fingerprint: Ok(fingerprint(program)),
            ..part.clone()
        }
    }
}

/// Equal for equal programs and options, whichever process compiles them.
fn fingerprint(program: &CompileJob) -> Vec<u8> {
    let mut hash = twox_hash::XxHash3_128::new();
    for bytes in [program.format.as_bytes(), &program.code, &program.options] {
        hash.write(&(bytes.len() as u64).to_le_bytes());
        hash.write(bytes);
    }
    format!("{:032x}", hash.finish_128()).into_bytes()
}

/// The shardings of a tuple's parts, or the sharding itself.
fn parts(sharding: &[u8]) -> Result<Vec<Vec<u8>>, Status> {
    let parsed = OpShardingProto::parse_from_bytes(sharding)
        .map_err(|error| Status::invalid(format!("a sharding of the partitioned module can't be read: {error}")))?;
    Ok(if parsed.type_ == SHARDING_TUPLE { parsed.tuple_shardings } else { vec![sharding.to_vec()] })
}

/// Parameters that an execution donates. Where all are packed in one tuple, its parts count.
fn donated(module: &HloModuleProto) -> Vec<u32> {
    let packed = module.host_program_shape.parameters.first().is_some_and(|p| p.element_type == TUPLE);
    let number = |parameter: i64, index: &[i64]| if packed { index.first().copied() } else { Some(parameter) };
    let aliased = module.input_output_alias.entries.iter();
    let donors = module.buffer_donor.entries.iter();
    let mut donated: Vec<u32> = aliased
        .map(|entry| number(entry.parameter_number, &entry.parameter_shape_index))
        .chain(donors.map(|entry| number(entry.parameter_number, &entry.parameter_shape_index)))
        .filter_map(|parameter| u32::try_from(parameter?).ok())
        .collect();
    donated.sort_unstable();
    donated.dedup();
    donated
}
