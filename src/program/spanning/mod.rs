//! Programs whose devices lie in several slices: planned once, rewritten for the slices, compiled for each.
//!
//! The way of XLA's CPU plugin, which has no collectives between processes that its C interface could reach:
//! 1. the compiler process partitions the program for all its devices and keeps the partitioned module
//!    ([`options::planning`], `worker::planner`);
//! 2. [`rewrite`] turns it into a program for the replicas of one slice, whose collectives are custom calls;
//! 3. it is compiled with [`options::slice`], once for each [`Share`] that differs, and loaded where it runs;
//! 4. at run time the custom calls meet in the workers' exchange (`worker::collectives`), launch by launch.
//!
//! Everything here is a pure function of its arguments.

pub mod groups;
pub mod metadata;
pub mod options;
pub mod spec;

mod flatten;
mod rewrite;
pub(crate) mod types;

pub use groups::Extents;
pub use rewrite::rewrite;

use serde::{Deserialize, Serialize};

use crate::abi::Status;
use spec::Logical;

/// A device, by its slice and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The slice.
    pub slice: u32,
    /// The device's local ordinal in the slice's inner client.
    pub device: u32,
}

/// Where the devices of a program are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Replicas of the program.
    pub replicas: u32,
    /// Partitions of the program.
    pub partitions: u32,
    /// The place of each logical device: all partitions of replica 0, then those of replica 1, ….
    pub places: Vec<Place>,
}

/// The devices of a program that one slice runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// Local ordinals and logical devices, in the order of the logical devices: also the order of the devices in the
    /// slice's executable, so of its arguments and results.
    pub devices: Vec<(u32, Logical)>,
}

impl Share {
    /// The local ordinals. Slices with equal ones run the same compiled program.
    pub fn ordinals(&self) -> Vec<u32> {
        self.devices.iter().map(|(ordinal, _)| *ordinal).collect()
    }
}

impl Placement {
    /// How many replicas and partitions there are.
    pub fn extents(&self) -> Extents {
        Extents { replicas: self.replicas, partitions: self.partitions }
    }

    /// The participating slices, in order, each with its share.
    ///
    /// Fails where the number of places is not that of the devices, or a device has two places in the program.
    pub fn shares(&self) -> Result<Vec<(u32, Share)>, Status> {
        let devices = u64::from(self.replicas) * u64::from(self.partitions);
        if devices != self.places.len() as u64 || devices == 0 {
            return Err(Status::invalid(format!(
                "a program of {} replicas and {} partitions can't run on {} devices",
                self.replicas,
                self.partitions,
                self.places.len()
            )));
        }
        let mut shares = std::collections::BTreeMap::<u32, Share>::new();
        for (logical, place) in self.places.iter().enumerate() {
            let share = shares.entry(place.slice).or_insert_with(|| Share { devices: Vec::new() });
            if share.devices.iter().any(|(ordinal, _)| *ordinal == place.device) {
                return Err(Status::invalid(format!(
                    "device {} of slice {} is twice in the device assignment",
                    place.device, place.slice
                )));
            }
            share.devices.push((place.device, logical as Logical));
        }
        Ok(shares.into_iter().collect())
    }
}
