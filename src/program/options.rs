//! Compile options: where a program is to run, as the framework says it and as a slice's worker must hear it.

use protobuf::{Message, MessageField};

use super::proto::compile_options::CompileOptionsProto;
use super::proto::shape::{DeviceAssignmentProto, device_assignment_proto::ComputationDevice};
use crate::abi::Status;

/// The framework's compile options, parsed. What Mainstay does not know of passes through.
#[derive(Clone, Debug)]
pub struct CompileOptions(CompileOptionsProto);

/// Device ids by replica and partition, replica-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Number of replicas.
    pub replicas: usize,
    /// Number of partitions.
    pub partitions: usize,
    /// `replicas` rows of `partitions` ids.
    pub ids: Vec<i32>,
}

/// The options that set where and how XLA dumps modules.
pub(super) const DUMP_PREFIX: &str = "xla_dump_";

/// The most devices that a program may name: far beyond any machine, low enough to refuse nonsense.
const MOST_DEVICES: usize = 1 << 20;

impl CompileOptions {
    /// Parses serialized `CompileOptionsProto`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Status> {
        CompileOptionsProto::parse_from_bytes(bytes)
            .map(Self)
            .map_err(|error| Status::invalid(format!("the compile options are no CompileOptionsProto: {error}")))
    }

    /// Whether the program is to run on whichever device a launch names.
    pub fn is_portable(&self) -> bool {
        self.0.compile_portable_executable
    }

    /// Numbers of replicas and partitions; 1 where they are not given.
    pub fn counts(&self) -> Result<(usize, usize), Status> {
        let build = &self.0.executable_build_options;
        let count = |what: &str, given: i64| match usize::try_from(given) {
            Ok(0) => Ok(1),
            Ok(count) if count <= MOST_DEVICES => Ok(count),
            _ => Err(Status::invalid(format!(
                "the compile options ask for {given} {what}; 1 to {MOST_DEVICES} make sense"
            ))),
        };
        Ok((count("replicas", build.num_replicas)?, count("partitions", build.num_partitions)?))
    }

    /// The device assignment, where one is given.
    pub fn assignment(&self) -> Result<Option<Assignment>, Status> {
        let Some(proto) = self.0.executable_build_options.device_assignment.as_ref() else { return Ok(None) };
        Assignment::from_proto(proto).map(Some)
    }

    /// The one device asked for, where there is no assignment.
    pub fn device_ordinal(&self) -> Option<i64> {
        let ordinal = self.0.executable_build_options.device_ordinal;
        (self.0.executable_build_options.is_some() && ordinal >= 0).then_some(ordinal)
    }

    /// The options as they are.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Status> {
        serialize(&self.0)
    }

    /// Whether whoever compiles or loads with these is to dump what the compiler does.
    pub fn wants_dumps(&self) -> bool {
        self.0.env_option_overrides.keys().any(|name| name.starts_with(DUMP_PREFIX))
    }

    /// The same options without the wish to dump what the compiler does: for loading what it dumped already.
    pub fn without_dumps(bytes: &[u8]) -> Result<Vec<u8>, Status> {
        let mut options = Self::parse(bytes)?;
        options.0.env_option_overrides.retain(|name, _| !name.starts_with(DUMP_PREFIX));
        options.to_bytes()
    }

    /// The same options with another device assignment.
    pub fn with_assignment(&self, assignment: &Assignment) -> Result<Vec<u8>, Status> {
        let mut proto = self.0.clone();
        let build = proto.executable_build_options.mut_or_insert_default();
        build.device_assignment = MessageField::some(assignment.to_proto());
        serialize(&proto)
    }
}

impl Assignment {
    fn from_proto(proto: &DeviceAssignmentProto) -> Result<Self, Status> {
        let (replicas, partitions) = (proto.replica_count as usize, proto.computation_count as usize);
        let rows: Vec<&[i64]> = proto.computation_devices.iter().map(|row| row.replica_device_ids.as_slice()).collect();
        let fits = rows.len() == partitions && rows.iter().all(|row| row.len() == replicas);
        if !fits || replicas == 0 || partitions == 0 || replicas.saturating_mul(partitions) > MOST_DEVICES {
            return Err(Status::invalid(format!(
                "the device assignment says {replicas} replicas of {partitions} partitions and names devices for {} partitions",
                rows.len()
            )));
        }
        let ids = (0..replicas).flat_map(|replica| rows.iter().map(move |row| row[replica]));
        let ids = ids.map(|id| {
            i32::try_from(id).map_err(|_| Status::invalid(format!("the device assignment names device {id}")))
        });
        Ok(Self { replicas, partitions, ids: ids.collect::<Result<_, _>>()? })
    }

    fn to_proto(&self) -> DeviceAssignmentProto {
        let row = |partition: usize| {
            let ids = self.ids.iter().skip(partition).step_by(self.partitions);
            ComputationDevice { replica_device_ids: ids.map(|&id| id.into()).collect(), ..Default::default() }
        };
        DeviceAssignmentProto {
            replica_count: self.replicas as i32,
            computation_count: self.partitions as i32,
            computation_devices: (0..self.partitions).map(row).collect(),
            ..Default::default()
        }
    }

    /// Serialized `DeviceAssignmentProto`.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Status> {
        serialize(&self.to_proto())
    }

    /// Replica and partition of the device at a position of `ids`.
    pub fn logical_id(&self, position: usize) -> (usize, usize) {
        (position / self.partitions, position % self.partitions)
    }
}

fn serialize(message: &impl Message) -> Result<Vec<u8>, Status> {
    message.write_to_bytes().map_err(|error| Status::invalid(format!("a message cannot be written: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_survives_the_way_out_and_in() {
        let assignment = Assignment { replicas: 2, partitions: 3, ids: vec![0, 1, 2, 10, 11, 12] };
        let proto = assignment.to_proto();
        assert_eq!(proto.computation_devices[1].replica_device_ids, [1, 11]);
        assert_eq!(Assignment::from_proto(&proto).unwrap(), assignment);
        assert_eq!(assignment.logical_id(4), (1, 1));
    }

    #[test]
    fn unknown_fields_and_counts_pass() {
        // Field 99, varint 5, which no declaration knows.
        let unknown = [0x98, 0x06, 0x05];
        let options = CompileOptions::parse(&unknown).unwrap();
        assert_eq!(options.counts().unwrap(), (1, 1));
        assert_eq!(options.assignment().unwrap(), None);
        let with = options.with_assignment(&Assignment { replicas: 1, partitions: 1, ids: vec![3] }).unwrap();
        assert!(with.windows(3).any(|window| window == unknown));
        assert_eq!(CompileOptions::parse(&with).unwrap().assignment().unwrap().unwrap().ids, [3]);
    }

    #[test]
    fn a_torn_assignment_is_refused() {
        let mut proto = Assignment { replicas: 2, partitions: 2, ids: vec![0, 1, 2, 3] }.to_proto();
        proto.computation_devices[0].replica_device_ids.pop();
        assert!(Assignment::from_proto(&proto).is_err());
    }
}
