//! Values that this process can read at an address: in place, in the worker's own memory, or as a copy.
//!
//! On a plugin that computes in host memory a worker takes its device memory from a heap that this process has mapped
//! (see [`crate::worker::heap`]), and says with each launch where the outputs lie. Such a value is read where it is.
//! What keeps it a value for as long as somebody looks:
//!
//! 1. While somebody looks, the worker is not told to destroy the buffer: a buffer that is deleted leaves that to the
//!    last who looks ([`Lease`]).
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::event::Event;
use super::session::Session;
use crate::abi::Status;
use crate::sync::lock;
use crate::wire::arena::Block;
use crate::wire::machine;
use crate::wire::message::place::{self, Place};
use crate::wire::message::{BufferId, Ids};
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
    Lent(Block, #[allow(dead_code, reason = "kept for its drop")] Arc<Lease>),
    /// A copy in the arena.
    Copy(Block),
}

impl View {
    /// The value that lies at a place that the worker has reported; `None` where this process can't see it.
    pub(super) fn at(lease: &Arc<Lease>, place: u64) -> Option<Self> {
        match place::decode(place)? {
            Place::Heap(offset) => InPlace::new(lease, offset).map(Self::InPlace),
            Place::Arena(offset) => {
                let block = lease.session.lent_at(offset)?;
                (block.len() as u64 >= lease.bytes).then(|| Self::Lent(block, lease.clone()))
            }
        }
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::InPlace(view) => view.start.as_ptr(),
            Self::Lent(block, _) | Self::Copy(block) => block.as_ptr(),
        }
    }
}

/// Who looks at a buffer's value in place. Each has a part in the buffer's one lease, and while there are any, the worker
/// neither destroys nor donates the buffer.
pub struct Lease {
    session: Arc<Session>,
    buffer: BufferId,
    bytes: u64,
    /// Whether the buffer's end is this lease's to tell.
    must_destroy: AtomicBool,
}

impl Lease {
    pub(super) fn new(session: &Arc<Session>, buffer: BufferId, bytes: u64) -> Arc<Self> {
        Arc::new(Self { session: session.clone(), buffer, bytes, must_destroy: AtomicBool::new(false) })
    }

    /// The buffer is gone: its memory goes with the lease.
    pub(super) fn take_over(&self) {
        self.must_destroy.store(true, Ordering::Release);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.must_destroy.get_mut() {
            self.session.destroy(self.buffer, self.bytes);
        }
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
    _lease: Arc<Lease>,
}

// SAFETY: points to memory that the mapping keeps and that nobody writes to while the view lives.
unsafe impl Send for InPlace {}
// SAFETY: as above.
unsafe impl Sync for InPlace {}

impl InPlace {
    fn new(lease: &Arc<Lease>, offset: u64) -> Option<Self> {
        let heap = lease.session.heap()?;
        let start = heap.mapping.at(offset, lease.bytes)?;
        if !heap.views().add(offset, lease.bytes) {
            return None;
        }
        Some(Self { start, heap, offset, _lease: lease.clone() })
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        self.heap.views().remove(self.offset);
    }
}

/// A value that is to be read in place once it is there, and that stays as it is until then and for as long as this lives.
pub struct Held {
    /// Set once the value is there, or an error for good.
    pub ready: Arc<Event>,
    source: Source,
    lease: Arc<Lease>,
}

/// Where a held value will be.
pub(super) enum Source {
    /// At a place that is known once it is there.
    Reported(Arc<Places>, usize),
    /// In a block of the arena that is the device's memory.
    Arena(Block),
}

impl Held {
    pub(super) fn new(ready: Arc<Event>, source: Source, lease: Arc<Lease>) -> Self {
        Self { ready, source, lease }
    }

    /// The value, which is ready; `None` where it lies elsewhere than this process can see.
    ///
    /// # Errors
    /// The loss of the slice, where its memory went with it.
    pub fn view(&self) -> Result<Option<View>, Status> {
        let reported = |places: &Places, number: usize| View::at(&self.lease, *places.get()?.get(number)?);
        match &self.source {
            Source::Arena(block) => Ok(Some(View::Lent(block.clone(), self.lease.clone()))),
            Source::Reported(places, number) => match reported(places, *number) {
                Some(view) => Ok(Some(view)),
                None => self.lease.session.lost().cloned().map_or(Ok(None), Err),
            },
        }
    }

    /// Who has the value, and as what.
    pub(super) fn on_worker(&self) -> (&Arc<Session>, BufferId) {
        (&self.lease.session, self.lease.buffer)
    }
}
