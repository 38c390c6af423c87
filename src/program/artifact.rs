//! A compiled program as it is kept, serialized and loaded: made once by the compiler, the same for every incarnation.
//!
//! Serialized form (what `PJRT_Executable_Serialize` gives, and a persistent compilation cache keeps):
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `MNSTYPRG` |
//! | 8 | 4 | version of this layout, little endian |
//! | 12 | 8 | xxh3 hash of what follows |
//! | 20 | … | the artifact, encoded with postcard |

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::options::Assignment;
use crate::abi::Status;
use crate::wire::message::{CompileJob, ExecutableInfo};

const MAGIC: [u8; 8] = *b"MNSTYPRG";
const VERSION: u32 = 2;
const HEADER: usize = 20;

/// A compiled program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// What is loaded on workers: one part, or, where the program spans slices, one for each list of devices that a slice
    /// of it runs on.
    pub parts: Vec<Part>,
    /// The options that the framework compiled it with: devices by their ids in the client.
    pub original_options: Arc<[u8]>,
    /// Device ids in the client, replica-major; empty for a portable program.
    pub assignment: Vec<i32>,
    /// What is known of it.
    pub info: ExecutableInfo,
    /// How to compile it for all its devices at once, where it spans slices and so was not. That says what of `info` is
    /// known of one device's part only: the optimized program, its costs, memory and size.
    pub global: Option<CompileJob>,
}

/// What the workers of one slice, or of several alike, load of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The devices it was compiled for, by their ids on the slice, in the order of their places in the program.
    pub devices: Vec<i64>,
    /// What the inner plugin serialized.
    pub serialized: Arc<[u8]>,
    /// Options to load it with; empty for those it was compiled with.
    pub options: Arc<[u8]>,
}

impl Artifact {
    /// The serialized form.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Status> {
        let mut bytes = vec![0; HEADER];
        bytes = postcard::to_extend(self, bytes)
            .map_err(|error| Status::invalid(format!("the program cannot be serialized: {error}")))?;
        let hash = twox_hash::XxHash3_64::oneshot(&bytes[HEADER..]);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..HEADER].copy_from_slice(&hash.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the serialized form. Torn, foreign or outdated bytes are an error, never a wrong program.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Status> {
        let unusable = |why: &str| {
            Status::invalid(format!(
                "these {} bytes are no program that this version of Mainstay serialized: {why}",
                bytes.len()
            ))
        };
        let (header, body) = bytes.split_at_checked(HEADER).ok_or_else(|| unusable("they are too short"))?;
        if header[..8] != MAGIC {
            return Err(unusable("they begin otherwise"));
        }
        if header[8..12] != VERSION.to_le_bytes() {
            return Err(unusable("their layout has another version"));
        }
        if header[12..] != twox_hash::XxHash3_64::oneshot(body).to_le_bytes() {
            return Err(unusable("their checksum does not fit"));
        }
        postcard::from_bytes(body).map_err(|error| unusable(&error.to_string()))
    }

    /// Which device runs which replica and partition.
    pub fn assignment(&self) -> Result<Assignment, Status> {
        let (replicas, partitions) = (self.info.num_replicas.max(1) as usize, self.info.num_partitions.max(1) as usize);
        if self.assignment.len() != replicas * partitions {
            return Err(Status::unimplemented(format!("the program {} has no devices of its own", self.info.name)));
        }
        Ok(Assignment { replicas, partitions, ids: self.assignment.clone() })
    }
}
