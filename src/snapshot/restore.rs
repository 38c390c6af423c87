//! Making buffers from a snapshot: from the stored value itself where it is what is wanted, else put together from the
//! parts of stored ones that lie in it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::helpers;
use super::region::{Region, copy};
use super::snapshot::{Snapshot, Value};
use crate::abi::{Code, Status};
use crate::runtime::buffer::{Buffer, Place, Shape};
use crate::runtime::client::Client;
use crate::runtime::transfer::{Lending, Promise};
use crate::wire::arena::Block;
use crate::wire::message::Dims;

/// A job puts together about so many bytes, or fewer where that would leave other helpers without.
const SLAB: u64 = 4 << 20;
const SMALLEST_SLAB: u64 = 256 << 10;
/// Values of fewer bytes are left to the worker: helpers bring them there no sooner.
const LARGE: u64 = 64 << 10;

/// Where a part of an array begins that is to be restored, and the values that the array is made of: they stay, though the
/// snapshot is dropped meanwhile.
pub struct Part {
    snapshot: Arc<Snapshot>,
    array: usize,
    start: Dims,
    values: Vec<Value>,
}

impl Part {
    /// A part of an array of a snapshot.
    ///
    /// # Errors
    /// A snapshot that is not whole, or has no such array.
    pub fn of(snapshot: &Arc<Snapshot>, array: usize, start: &[i64]) -> Result<Self, Status> {
        let values = snapshot.values(snapshot.array(array)?.shards.clone())?;
        Ok(Self { snapshot: snapshot.clone(), array, start: start.into(), values })
    }
}

/// A new buffer at `place` with the part of an array that has the shape's dimensions. Returns at once; the value comes when
/// it is put together.
///
/// # Errors
/// A part or type that the array does not have, an arena without room.
pub fn supply(client: &Arc<Client>, place: Place, shape: Shape, part: &Part) -> Result<Arc<Buffer>, Status> {
    let Part { snapshot, array, start, values } = part;
    let info = snapshot.array(*array)?;
    if info.element_type != shape.element_type {
        return Err(Status::invalid(format!(
            "array {array} of {} has element type {}; a buffer of type {} was asked for",
            snapshot.name(),
            info.element_type,
            shape.element_type
        )));
    }
    let wanted = Region::within(&info.dims, start, &shape.dims)?;
    let stored = || snapshot.contents.shards[info.shards.clone()].iter().map(|shard| &shard.region).zip(values);
    if let Some((_, value)) = stored().find(|(region, _)| **region == wanted) {
        // Helpers copy it to where it stays, sooner than the worker would.
        if value.block.len() as u64 >= LARGE
            && let Some(target) = Target::in_arena(client, place, &shape)
        {
            let piece = Piece { part: wanted.clone(), region: wanted.clone(), block: value.block.clone() };
            return Ok(Assembly::begin(client, wanted, info.element_bytes()?, vec![piece], target));
        }
        return client.from_value(place, shape, value.block.clone());
    }
    let mut missing = wanted.count();
    let mut pieces = Vec::new();
    for (region, value) in stored() {
        if let Some(part) = region.overlap(&wanted) {
            missing = missing.saturating_sub(part.count());
            pieces.push(Piece { part, region: region.clone(), block: value.block.clone() });
        }
    }
    if missing > 0 {
        return Err(Status::failed_precondition(format!(
            "{} lacks {missing} elements of array {array} that are wanted",
            snapshot.name()
        )));
    }
    let element = info.element_bytes()?;
    let target = match Target::in_arena(client, place, &shape) {
        Some(target) => target,
        None => {
            // Given back as soon as the worker has copied the value.
            let block = client.allocate_for_later(shape.host_bytes()?)?;
            let (buffer, promise) = client.declare(place, shape);
            Target { buffer, promise, block, lending: Lending::ReadOnly }
        }
    };
    Ok(Assembly::begin(client, wanted, element, pieces, target))
}

/// A buffer that is declared, and where its value is put together.
struct Target {
    buffer: Arc<Buffer>,
    promise: Promise,
    block: Block,
    lending: Lending,
}

impl Target {
    /// One whose memory the block stays.
    fn in_arena(client: &Arc<Client>, place: Place, shape: &Shape) -> Option<Self> {
        let (buffer, promise, block) = client.declare_in_arena(place, shape)?;
        Some(Self { buffer, promise, block, lending: Lending::Mutable })
    }
}

/// What a stored shard has of a region that is wanted.
struct Piece {
    part: Region,
    region: Region,
    block: Block,
}

/// A region that is put together by several jobs, each writing stretches of its own. Whoever drops it last, having
/// finished or not, gives the buffer its value or an error.
struct Assembly {
    client: Arc<Client>,
    wanted: Region,
    element: usize,
    pieces: Vec<Piece>,
    block: Block,
    lending: Lending,
    slabs: Vec<Region>,
    next: AtomicUsize,
    filled: AtomicUsize,
    /// Why it can't be.
    failed: OnceLock<Status>,
    promise: Promise,
}

impl Assembly {
    fn begin(client: &Arc<Client>, wanted: Region, element: usize, pieces: Vec<Piece>, target: Target) -> Arc<Buffer> {
        let Target { buffer, promise, block, lending } = target;
        let even = block.len() as u64 / (2 * helpers::count() as u64);
        let slabs = wanted.slabs(even.clamp(SMALLEST_SLAB, SLAB) / element.max(1) as u64);
        let jobs = slabs.len().min(helpers::count());
        let assembly = Arc::new(Self {
            client: client.clone(),
            wanted,
            element,
            pieces,
            block,
            lending,
            slabs,
            next: AtomicUsize::new(0),
            filled: AtomicUsize::new(0),
            failed: OnceLock::new(),
            promise,
        });
        for _ in 0..jobs {
            let assembly = assembly.clone();
            helpers::run(move || assembly.work());
        }
        buffer
    }

    /// Copies slabs until there are none left.
    fn work(&self) {
        while let Some(slab) = self.slabs.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(cause) = self.fill(slab) {
                // The first counts.
                let _ = self.failed.set(cause);
                return;
            }
            self.filled.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fill(&self, slab: &Region) -> Result<(), Status> {
        let offset = self.wanted.position(&slab.start) * self.element;
        let len = slab.count() as usize * self.element;
        self.block.commit(offset as u64, len as u64)?;
        // SAFETY: fresh from the arena and committed: no worker knows of it, and its buffer's value is not there yet. The
        // slab is dense in the wanted region, for which the block has room, and no other job has it.
        let to = unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr().add(offset), len) };
        for piece in &self.pieces {
            if let Some(part) = piece.part.overlap(slab) {
                // SAFETY: the block is a value, which nobody writes to.
                copy(&part, &piece.region, unsafe { piece.block.as_slice() }, slab, to, self.element);
            }
        }
        Ok(())
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        if *self.filled.get_mut() == self.slabs.len() {
            // Of what was committed for it.
            self.client.announce();
            self.client.fulfil(&self.promise, self.block.clone(), self.lending);
        } else {
            let bug = || Status::new(Code::Unknown, "a bug in Mainstay: a copy was not finished");
            self.client.fail(&self.promise, self.failed.take().unwrap_or_else(bug));
        }
    }
}
