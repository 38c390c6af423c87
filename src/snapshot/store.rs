//! A store: the newest whole snapshots, as many as its size says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::region::Region;
use super::snapshot::{ArrayInfo, Description, Shard, Snapshot};
use crate::abi::Status;
use crate::runtime::buffer::Buffer;
use crate::runtime::fetch::{Arrived, fetch};
use crate::wire::arena::Block;
use crate::wire::message::Dims;

/// Keeps the last whole snapshots. A snapshot that is being taken needs its memory beside them.
pub struct Store {
    size: usize,
    checksums: bool,
    /// Whole ones, in the order in which they were asked for.
    ring: Mutex<Vec<Arc<Snapshot>>>,
}

/// An array to take a snapshot of: the buffers that make it up, each with where it begins in the array.
pub struct Source {
    /// Dimensions of the whole array.
    pub dims: Dims,
    /// One buffer for each distinct part.
    pub parts: Vec<(Dims, Arc<Buffer>)>,
}

/// What to take a snapshot of.
#[derive(Default)]
pub struct Request {
    /// The caller's number for the moment.
    pub step: i64,
    /// The caller's name for it.
    pub label: String,
    /// What the caller wants to find with it.
    pub metadata: Vec<u8>,
    /// The arrays.
    pub arrays: Vec<Source>,
}

impl Store {
    /// An empty store that keeps `size` snapshots, at least one, and computes checksums or doesn't.
    pub fn new(size: usize, checksums: bool) -> Arc<Self> {
        Arc::new(Self { size: size.max(1), checksums, ring: Mutex::default() })
    }

    fn ring(&self) -> MutexGuard<'_, Vec<Arc<Snapshot>>> {
        // Nothing here panics while it holds the lock.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn computes_checksums(&self) -> bool {
        self.checksums
    }

    /// Begins a snapshot of the values that the buffers have now. Waits for nothing: the copies are made by the workers,
    /// while programs go on; what they lose makes the snapshot fail, not this call.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the arena has no room; INVALID_ARGUMENT for deleted buffers and parts that make up no
    /// array. The store's snapshots stay.
    pub fn take(self: &Arc<Self>, request: Request) -> Result<Arc<Snapshot>, Status> {
        let Request { step, label, metadata, arrays: sources } = request;
        let (mut arrays, mut shards, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for source in sources {
            arrays.push(describe(&source, arrays.len(), &mut shards)?);
            buffers.extend(source.parts.into_iter().map(|(_, buffer)| buffer));
        }
        let snapshot = Snapshot::new(self, Description { step, label, metadata, arrays, shards });
        if buffers.is_empty() {
            snapshot.complete();
        }
        let taken = snapshot.clone();
        let arrived: Arrived = Arc::new(move |shard, value| taken.arrived(shard, value));
        fetch(&buffers, &arrived)?;
        Ok(snapshot)
    }

    /// A whole snapshot of values that are in the arena already, such as from a file.
    pub(super) fn keep(self: &Arc<Self>, what: Description, blocks: Vec<Arc<Block>>) -> Arc<Snapshot> {
        let snapshot = Snapshot::new(self, what);
        if blocks.is_empty() {
            snapshot.complete();
        }
        for (shard, block) in blocks.into_iter().enumerate() {
            snapshot.arrived(shard, Ok(block));
        }
        snapshot
    }

    /// Takes a snapshot whose values are all there among the whole ones; the oldest make room.
    pub(super) fn commit(&self, snapshot: &Arc<Snapshot>) {
        let outdated: Vec<_> = {
            let mut ring = self.ring();
            if !snapshot.make_whole() {
                return;
            }
            let place = ring.partition_point(|other| other.id < snapshot.id);
            ring.insert(place, snapshot.clone());
            let excess = ring.len().saturating_sub(self.size);
            ring.drain(..excess).collect()
        };
        outdated.iter().for_each(|snapshot| snapshot.release());
    }

    /// The whole snapshots, oldest first.
    pub fn list(&self) -> Vec<Arc<Snapshot>> {
        self.ring().clone()
    }

    /// The newest whole snapshot.
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.ring().last().cloned()
    }

    /// Gives a snapshot up, whole or not, and frees its memory.
    pub fn drop_snapshot(&self, snapshot: &Arc<Snapshot>) {
        self.ring().retain(|other| !Arc::ptr_eq(other, snapshot));
        snapshot.release();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ring().drain(..).for_each(|snapshot| snapshot.release());
    }
}

/// What is stored of an array: its shards are added to `shards`.
fn describe(source: &Source, index: usize, shards: &mut Vec<Shard>) -> Result<ArrayInfo, Status> {
    let first = shards.len();
    let mut element_type = None;
    let mut covered = 0_u64;
    for (start, buffer) in &source.parts {
        buffer.check_held()?;
        let region = Region::within(&source.dims, start, &buffer.shape.dims)?;
        if *element_type.get_or_insert(buffer.shape.element_type) != buffer.shape.element_type {
            return Err(Status::invalid(format!("the parts of array {index} have different element types")));
        }
        covered = covered.saturating_add(region.count());
        shards.push(Shard { array: index, region, bytes: buffer.shape.host_bytes()? });
    }
    let element_type =
        element_type.ok_or_else(|| Status::invalid(format!("array {index} has no buffers to take a snapshot of")))?;
    let whole = crate::abi::element::count(&source.dims)?;
    if covered != whole {
        return Err(Status::invalid(format!(
            "the parts of array {index} have {covered} elements; an array of {:?} has {whole}",
            source.dims
        )));
    }
    Ok(ArrayInfo { element_type, dims: source.dims.clone(), shards: first..shards.len() })
}
