//! Values that this process can read at an address: in place, in the worker's own memory, or as a copy.
//!
//! On a plugin that computes in host memory a worker takes its device memory from a heap that this process has mapped
//! (see [`crate::worker::heap`]), and says with each launch where the outputs lie. Such a value is read where it is.
//! What keeps it a value for as long as somebody looks:
//!
//! 1. While somebody looks, the worker is not told to destroy the buffer: a buffer that is deleted leaves that to the
//!    last who looks ([`Held`]).
//! 2. It is not donated: a launch that would use the buffer up is told not to (`Program::launch`).
//! 3. It has one name on the worker: a buffer that was aliased or bitcast is viewed as a copy, and one that somebody
//!    looks at is copied instead ([`super::buffer::Buffer::give_away`]).
//! 4. When the worker dies, what is viewed stays readable, and the rest of its memory goes ([`Heap::close`]).
//!
//! The same holds from the call on for a value that is still to come, where somebody has said that it is to be read as it
//! will be then ([`Held`]).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::buffer::{Buffer, Origin};
use super::event::Event;
use crate::sync::lock;
use crate::wire::arena::Block;
use crate::wire::machine;
use crate::wire::message::Ids;
use crate::wire::message::place::{self, Place};
use crate::wire::shm::{self, Mapping};

/// Where values that come together lie, once they are there: see [`crate::wire::message::Report::Executed`].
pub type Places = OnceLock<Ids>;

/// A worker's heap as this process sees it. Only to be read.
pub struct Heap {
    fd: OwnedFd,
    mapping: Mapping,
    views: Mutex<Views>,
}

/// Lock order: taken last.
#[derive(Default)]
struct Views {
    /// Bytes of each, by where it begins, and how many views show it. Values don't overlap.
    by_start: BTreeMap<u64, (u64, usize)>,
    /// The worker is dead: there is nothing new to see.
    closed: bool,
}

impl Views {
    /// One view more of so many bytes; false where there is nothing to see any more.
    fn add(&mut self, offset: u64, bytes: u64) -> bool {
        if !self.closed {
            self.by_start.entry(offset).or_insert((bytes, 0)).1 += 1;
        }
        !self.closed
    }

    fn remove(&mut self, offset: u64) {
        if let Some((_, views)) = self.by_start.get_mut(&offset) {
            *views -= 1;
            if *views == 0 {
                self.by_start.remove(&offset);
            }
        }
    }
}

impl Heap {
    /// A heap for a new worker, and the descriptor that it inherits. It takes memory as it is used, up to the machine's.
    pub fn create() -> std::io::Result<(OwnedFd, Arc<Self>)> {
        let memory = machine::memory().ok_or_else(|| std::io::Error::other("the machine's memory is unknown"))?;
        let fd = shm::create("mainstay-device", memory.total - memory.total % shm::PAGE)?;
        let mapping = Mapping::new(fd.as_fd())?;
        let own = fd.try_clone()?;
        Ok((fd, Arc::new(Self { fd: own, mapping, views: Mutex::default() })))
    }

    /// The worker is dead and reaped: gives all memory back that no view shows.
    pub fn close(&self) {
        let mut views = self.views();
        views.closed = true;
        let mut start = 0;
        let end = self.mapping.len() as u64;
        for (at, len) in views.by_start.iter().map(|(at, (len, _))| (*at, *len)).chain([(end, 0)]) {
            let first = at - at % shm::PAGE;
            if first > start {
                // A refusal keeps the memory until the last view goes.
                let _ = shm::release(&self.fd, start, first - start);
            }
            start = start.max((at + len).next_multiple_of(shm::PAGE));
        }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        lock(&self.views)
    }
}

/// A value at an address.
pub enum View {
    /// Where the worker has it.
    InPlace(InPlace),
    /// In a block of the arena that was lent to be the device's memory.
    Lent(Block, #[allow(dead_code, reason = "kept for its drop")] Held),
    /// A copy in the arena.
    Copy(Block),
}

impl View {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::InPlace(view) => view.start.as_ptr(),
            Self::Lent(block, _) | Self::Copy(block) => block.as_ptr(),
        }
    }
}

/// Somebody looks at a buffer's value in place, or will once it is there: it stays as it is for as long as this lives.
pub struct Held {
    buffer: Arc<Buffer>,
    /// Where the value is in the arena: the block, which the worker's death would free.
    block: Option<Block>,
}

impl Held {
    /// For one who was counted among those who look.
    pub(super) fn new(buffer: &Arc<Buffer>, block: Option<Block>) -> Self {
        Self { buffer: buffer.clone(), block }
    }

    /// Set once the value is there, or an error for good.
    pub fn ready(&self) -> &Arc<Event> {
        &self.buffer.ready
    }

    /// Whose value it is.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// The value, which is ready.
    ///
    /// # Errors
    /// This again, where the value lies elsewhere than this process can see, or was lost with the slice.
    pub fn view(mut self) -> Result<View, Self> {
        let place = match (self.block.take(), &self.buffer.origin) {
            (Some(block), _) => return Ok(View::Lent(block, self)),
            (None, Origin::Reported(places, number)) => places.get().and_then(|places| places.get(*number).copied()),
            (None, _) => None,
        };
        match place.and_then(place::decode) {
            Some(Place::Heap(offset)) => InPlace::new(self, offset).map(View::InPlace),
            Some(Place::Arena(offset)) => {
                let lent = self.buffer.holder.session().and_then(|session| session.lent_at(offset));
                match lent.filter(|block| block.len() as u64 >= self.buffer.bytes()) {
                    Some(block) => Ok(View::Lent(block, self)),
                    None => Err(self),
                }
            }
            None => Err(self),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.buffer.look_away();
    }
}

/// A value in the worker's heap.
pub struct InPlace {
    start: NonNull<u8>,
    /// Keeps the mapping.
    heap: Arc<Heap>,
    /// From the heap's start.
    offset: u64,
    /// Kept for its drop, which comes after this one's.
    _held: Held,
}

// SAFETY: points to memory that the mapping keeps and that nobody writes to while the view lives.
unsafe impl Send for InPlace {}
// SAFETY: as above.
unsafe impl Sync for InPlace {}

impl InPlace {
    /// The value of a buffer at an offset of its worker's heap; gives back what it was given where that can't be seen.
    fn new(held: Held, offset: u64) -> Result<Self, Held> {
        let heap = held.buffer.holder.session().and_then(|session| session.heap());
        let seen = heap.and_then(|heap| Some((heap.mapping.at(offset, held.buffer.bytes())?, heap)));
        match seen.filter(|(_, heap)| heap.views().add(offset, held.buffer.bytes())) {
            Some((start, heap)) => Ok(Self { start, heap, offset, _held: held }),
            None => Err(held),
        }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        self.heap.views().remove(self.offset);
    }
}
