//! Values that this process can read at an address: in place, in the worker's own memory, or as a copy.
//!
//! On a plugin that computes in host memory a worker takes its device memory from a heap that this process has mapped
//! (see [`crate::worker::heap`]), and says with each launch where the outputs lie. Such a value is read where it is.
//! What keeps it a value for as long as somebody looks:
//!
//! 1. While a view in place exists, the worker is not told to destroy the buffer: a buffer that is deleted leaves that
//!    to its view ([`InPlace::take_over`]).
//! 2. It is not donated: a launch that would use the buffer up is told not to (`Program::launch`).
//! 3. It has one name on the worker: a buffer that was aliased or bitcast is viewed as a copy, and one that is viewed
//!    is copied instead ([`super::buffer::Buffer::give_away`]).
//! 4. When the worker dies, what is viewed stays readable, and the rest of its memory goes ([`Heap::close`]).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::session::Session;
use crate::wire::arena::Block;
use crate::wire::machine;
use crate::wire::message::{BufferId, Ids};
use crate::wire::shm::{self, Mapping};

/// Where a launch's outputs of one device lie in the worker's heap, once the launch is over: see
/// [`crate::wire::message::Report::Executed`].
pub type HeapPlaces = OnceLock<Ids>;

/// A worker's heap as this process sees it. Only to be read.
pub struct Heap {
    fd: OwnedFd,
    mapping: Mapping,
    views: Mutex<Views>,
}

/// Lock order: taken last.
#[derive(Default)]
struct Views {
    /// Bytes of each, by where it begins. A buffer has one at most, so they don't overlap.
    by_start: BTreeMap<u64, u64>,
    /// The worker is dead: there is nothing new to see.
    closed: bool,
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
        for (at, len) in views.by_start.iter().map(|(at, len)| (*at, *len)).chain([(end, 0)]) {
            let first = at - at % shm::PAGE;
            if first > start {
                // A refusal keeps the memory until the last view goes.
                let _ = shm::release(&self.fd, start, first - start);
            }
            start = start.max((at + len).next_multiple_of(shm::PAGE));
        }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value at an address.
pub enum View {
    /// Where the worker has it.
    InPlace(InPlace),
    /// A copy in the arena.
    Copy(Arc<Block>),
}

impl View {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::InPlace(view) => view.start.as_ptr(),
            Self::Copy(block) => block.as_ptr(),
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
    session: Arc<Session>,
    buffer: BufferId,
    bytes: u64,
    /// Whether the buffer's end is this view's to tell.
    must_destroy: AtomicBool,
}

// SAFETY: points to memory that the mapping keeps and that nobody writes to while the view lives.
unsafe impl Send for InPlace {}
// SAFETY: as above.
unsafe impl Sync for InPlace {}

impl InPlace {
    /// The output of a launch, of so many bytes, that lies at `place` (as the report has it); `None` where that is not in
    /// the heap.
    pub fn new(session: &Arc<Session>, buffer: BufferId, place: u64, bytes: u64) -> Option<Self> {
        let (heap, offset) = (session.heap()?, place.checked_sub(1)?);
        let start = heap.mapping.at(offset, bytes)?;
        {
            let mut views = heap.views();
            if views.closed {
                return None;
            }
            views.by_start.insert(offset, bytes);
        }
        let (session, must_destroy) = (session.clone(), AtomicBool::new(false));
        Some(Self { start, heap, offset, session, buffer, bytes, must_destroy })
    }

    /// The buffer is gone: its memory goes with the view.
    pub fn take_over(&self) {
        self.must_destroy.store(true, Ordering::Release);
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        self.heap.views().by_start.remove(&self.offset);
        if *self.must_destroy.get_mut() {
            self.session.destroy(self.buffer, self.bytes);
        }
    }
}
