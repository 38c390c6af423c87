//! Device memory that the client can read: on a plugin that computes in host memory, buffers come from shared memory.
//!
//! XLA's CPU plugin gets the memory of buffers from the C library, as aligned blocks. The `mainstay` executable defines
//! those functions itself (see `main.rs`), so that in a worker they end up here: aligned blocks are cut from a memfd
//! that the client has mapped as well, and a value is read there in place, without a copy and without asking. As freed
//! blocks stay touched and are given out again, fresh results cost no page faults either.
//!
//! The client only reads; the allocator's state is private to this process. Without room, and in every process but a
//! worker, memory comes from the C library as ever.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::inner::Buffer;
use crate::sync::lock;
use crate::wire::arena::{ArenaView, FreeSpace};
use crate::wire::ids::IdMap;
use crate::wire::message::place::{self, Place};
use crate::wire::shm::{self, Mapping, PAGE};

/// Aligned blocks are those that the plugin's buffers are made of: XLA's CPU plugin aligns them so.
pub const ALIGNMENT: usize = 64;
/// Free blocks of at least this many bytes are given back to the machine, once many bytes lie free.
const WORTHWHILE: u64 = 1 << 20;
/// The process's shared heap, once [`start`] was called.
static HEAP: OnceLock<Heap> = OnceLock::new();
/// Address and length of the heap's mapping: looked at by every `free` of the process, also before [`start`].
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);

struct Heap {
    fd: OwnedFd,
    /// Lent blocks of it are device memory as well.
    arena: Option<&'static ArenaView>,
    mapping: Mapping,
    slack: u64,
    state: Mutex<State>,
}

struct State {
    space: FreeSpace,
    /// Bytes of each block, by offset.
    blocks: IdMap<u64>,
    /// About how many free bytes have memory.
    touched: u64,
    /// No more blocks are given.
    left: bool,
}

/// From now on aligned blocks come from this memfd. Call once, at the start of a worker. Of large blocks that are freed,
/// `slack` bytes keep their memory.
///
/// # Errors
/// The kernel's refusal to map it; then nothing changes.
pub fn start(fd: OwnedFd, slack: u64, arena: Option<&'static ArenaView>) -> std::io::Result<()> {
    let mapping = Mapping::new(fd.as_fd())?;
    mapping.prefer_huge_pages();
    let (len, address) = (mapping.len(), mapping.address());
    let state = State { space: FreeSpace::new(len as u64), blocks: HashMap::default(), touched: 0, left: false };
    let heap = Heap { fd, arena, mapping, slack, state: Mutex::new(state) };
    if HEAP.set(heap).is_ok() {
        START.store(address, Ordering::Release);
        LEN.store(len, Ordering::Release);
    }
    Ok(())
}

/// Whether blocks come from a heap.
pub fn is_on() -> bool {
    HEAP.get().is_some()
}

/// Where in the heap an address is, in bytes from its start.
pub fn offset_of(address: usize) -> Option<u64> {
    let offset = address.wrapping_sub(START.load(Ordering::Acquire));
    (offset < LEN.load(Ordering::Acquire)).then_some(offset as u64)
}

/// Where a buffer's memory is that the client can see, as reports have it: nowhere, for one that was used up.
pub(super) fn place_of(buffer: &Buffer) -> u64 {
    let place = |address| {
        let in_arena = || HEAP.get()?.arena?.offset_of(address).map(Place::Arena);
        offset_of(address).map(Place::Heap).or_else(in_arena)
    };
    place::encode(buffer.address().ok().and_then(place))
}

/// A block of at least `len` bytes at a multiple of `align`; `None` where the C library should give it.
pub fn allocate(align: usize, len: usize) -> Option<NonNull<u8>> {
    if align < ALIGNMENT || len == 0 {
        return None;
    }
    let heap = HEAP.get()?;
    let align = if len as u64 >= WORTHWHILE { align.max(PAGE as usize) } else { align };
    let len = len.checked_next_multiple_of(align)? as u64;
    let mut state = lock(&heap.state);
    if state.left {
        return None;
    }
    let offset = state.space.take(len, align as u64)?;
    state.touched = state.touched.saturating_sub(len);
    state.blocks.insert(offset, len);
    heap.mapping.at(offset, len)
}

/// From now on blocks come from the C library again, so that a limit of the process's memory is felt.
pub fn leave() {
    if let Some(heap) = HEAP.get() {
        lock(&heap.state).left = true;
    }
}

/// Frees the block at an [offset](offset_of). What is no block's start is a bug of whoever frees it, and stays as it is.
pub fn free(offset: u64) {
    let Some(heap) = HEAP.get() else { return };
    let mut state = lock(&heap.state);
    let Some(len) = state.blocks.remove(&offset) else { return };
    if len < WORTHWHILE || state.touched + len <= heap.slack {
        state.touched += len;
        return state.space.give(offset, len);
    }
    drop(state);
    // Nobody has the block now. A refusal costs memory that is used again later.
    let _ = shm::release(&heap.fd, offset, len);
    lock(&heap.state).space.give(offset, len);
}

/// Bytes of the block at an [offset](offset_of).
pub fn len_of(offset: u64) -> Option<usize> {
    let state = lock(&HEAP.get()?.state);
    state.blocks.get(&offset).map(|len| *len as usize)
}
