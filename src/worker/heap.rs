//! Device memory that the client can read: on a plugin that computes in host memory, buffers come from shared memory.
//!
//! XLA's CPU plugin gets the memory of buffers from the C library, as aligned blocks. The `mainstay` executable defines
//! those functions itself (see `main.rs`), so that in a worker they end up here: aligned blocks are cut from a memfd
//! that the client has mapped as well, and a value is read there in place, without a copy and without asking.
//!
//! Memory that nobody has touched costs the kernel ten times as long as copying to it. So freed blocks keep theirs for some
//! seconds, after which a thread gives it back (a little is kept for good), and large blocks get new memory when they are
//! allocated: huge pages, where there are any, which take a sixth of the time, and by several threads.
//!
//! The client only reads; the allocator's state is private to this process. Without room, and in every process but a
//! worker, memory comes from the C library as ever.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::inner::Buffer;
use crate::sync::lock;
use crate::wire::arena::{ArenaView, FreeSpace, Idle, Next, RangeSet};
use crate::wire::ids::IdMap;
use crate::wire::machine;
use crate::wire::message::place::{self, Place};
use crate::wire::shm::{self, HUGE_PAGE, Mapping, PAGE};

/// Aligned blocks are those that the plugin's buffers are made of: XLA's CPU plugin aligns them so.
pub const ALIGNMENT: usize = 64;
/// Free blocks of at least this many bytes are given back to the machine after a while.
const WORTHWHILE: u64 = 1 << 20;
/// What of them was not needed for so long is.
const REST: Duration = Duration::from_secs(5);
/// So much at once, for which it can't be had.
const GIVEN_BACK: u64 = 64 << 20;
/// What the machine has left is looked up again after this long where memory is freed.
const LOOK_UP: Duration = Duration::from_millis(100);
/// Blocks that lack so many bytes of memory get them when they are allocated.
const COMMITTED_AHEAD: u64 = 2 * HUGE_PAGE;
/// A thread for each so many bytes of it.
const FOR_EACH_THREAD: u64 = 8 << 20;
/// More threads than this gain nothing.
const MOST_THREADS: usize = 4;
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
    /// Of large blocks that are freed, so many bytes keep their memory.
    slack: u64,
    state: Mutex<State>,
    /// More rests than may stay, or others need it.
    plenty: Condvar,
}

struct State {
    space: FreeSpace,
    /// Bytes of each block, by offset.
    blocks: IdMap<u64>,
    /// Free memory of large blocks that were freed.
    resting: RangeSet,
    idle: Idle,
    /// Whether others would find enough memory, and when that was looked up.
    has_plenty: bool,
    looked_up: Option<Instant>,
    /// Somebody gives back what has rested.
    is_kept: bool,
    /// All that rests is to be given back now.
    is_needed: bool,
    /// No more blocks are given.
    left: bool,
}

/// From now on aligned blocks come from this memfd. Call once, at the start of a worker. Of large blocks that are freed,
/// `slack` bytes keep their memory.
///
/// # Errors
/// The kernel's refusal to map it; then nothing changes.
pub fn start(fd: OwnedFd, slack: u64, arena: Option<&'static ArenaView>) -> std::io::Result<()> {
    let heap = Heap::new(fd, slack, arena)?;
    heap.mapping.prefer_huge_pages();
    let (len, address) = (heap.mapping.len(), heap.mapping.address());
    if HEAP.set(heap).is_err() {
        return Ok(());
    }
    START.store(address, Ordering::Release);
    LEN.store(len, Ordering::Release);
    // Without a thread freed memory is given back at once.
    let _ = std::thread::Builder::new().name("mainstay-heap".into()).spawn(|| HEAP.get().map(Heap::keep));
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
    HEAP.get()?.allocate(align, len)
}

/// From now on blocks come from the C library again, so that a limit of the process's memory is felt.
pub fn leave() {
    if let Some(heap) = HEAP.get() {
        lock(&heap.state).left = true;
    }
}

/// Gives back, soon, what was freed and rests.
pub fn give_back() {
    if let Some(heap) = HEAP.get() {
        heap.need();
    }
}

/// Frees the block at an [offset](offset_of). What is no block's start is a bug of whoever frees it, and stays as it is.
pub fn free(offset: u64) {
    let Some(heap) = HEAP.get() else { return };
    // SAFETY: this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. Whoever frees counts on it staying as it is.
    let before = unsafe { *errno };
    heap.free(offset);
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Bytes of the block at an [offset](offset_of).
pub fn len_of(offset: u64) -> Option<usize> {
    let state = lock(&HEAP.get()?.state);
    state.blocks.get(&offset).map(|len| *len as usize)
}

impl Heap {
    fn new(fd: OwnedFd, slack: u64, arena: Option<&'static ArenaView>) -> std::io::Result<Self> {
        let mapping = Mapping::new(fd.as_fd())?;
        let state = State {
            space: FreeSpace::new(mapping.len() as u64),
            blocks: HashMap::default(),
            resting: RangeSet::default(),
            idle: Idle::new(REST),
            has_plenty: false,
            looked_up: None,
            is_kept: false,
            is_needed: false,
            left: false,
        };
        Ok(Self { fd, arena, mapping, slack, state: Mutex::new(state), plenty: Condvar::new() })
    }

    fn allocate(&self, align: usize, len: usize) -> Option<NonNull<u8>> {
        let align = if len as u64 >= WORTHWHILE { align.max(PAGE as usize) } else { align };
        let len = len.checked_next_multiple_of(align)? as u64;
        let mut state = lock(&self.state);
        if state.left {
            return None;
        }
        let resting = if len >= WORTHWHILE && align as u64 <= PAGE { state.take_resting(len) } else { None };
        let offset = resting.or_else(|| state.space.take(len, align as u64))?;
        state.blocks.insert(offset, len);
        let before = state.resting.total();
        state.resting.remove(offset, offset + len);
        let now = state.resting.total();
        state.idle.fell_to(now);
        drop(state);
        let had_memory = before - now;
        let missing = len - had_memory;
        if missing >= COMMITTED_AHEAD {
            // What the machine has left is looked up only where something can be given back.
            if now > self.slack && machine::memory().is_some_and(|memory| memory.spare() < missing) {
                self.give_back(u64::MAX);
            }
            self.commit(offset, len);
        }
        self.mapping.at(offset, len)
    }

    /// Has the kernel find memory for a block: what has some keeps it.
    fn commit(&self, offset: u64, len: u64) {
        let threads = (len / FOR_EACH_THREAD).clamp(1, machine::processors().min(MOST_THREADS) as u64);
        let share = len.div_ceil(threads);
        // Where one thread begins, but for the first, and the one before it ends.
        let border = |number| if number == 0 { offset } else { (offset + number * share) / HUGE_PAGE * HUGE_PAGE };
        let commit = |number: u64| {
            let (start, end) = (border(number), if number + 1 == threads { offset + len } else { border(number + 1) });
            // What is refused now may be there when it is used.
            let _ = self.mapping.commit(&self.fd, start, end - start);
        };
        std::thread::scope(|scope| {
            for number in 1..threads {
                // Without a thread for it, it gets its memory when it is used.
                let _ = std::thread::Builder::new()
                    .name("mainstay-memory".into())
                    .spawn_scoped(scope, move || commit(number));
            }
            commit(0);
        });
    }

    fn free(&self, offset: u64) {
        let mut state = lock(&self.state);
        let Some(len) = state.blocks.remove(&offset) else { return };
        if len < WORTHWHILE {
            return state.space.give(offset, len);
        }
        if state.is_kept && state.resting.total() + len > self.slack && state.must_look_up() {
            // Nobody else knows of the block now.
            drop(state);
            let has_plenty = machine::memory().is_some_and(|memory| !memory.is_short());
            state = lock(&self.state);
            (state.has_plenty, state.looked_up) = (has_plenty, Some(Instant::now()));
        }
        let before = state.resting.total();
        if before + len <= self.slack || state.is_kept && state.has_plenty {
            state.space.give(offset, len);
            state.resting.insert(offset, offset + len);
            if before <= self.slack && before + len > self.slack {
                self.plenty.notify_one();
            }
            return;
        }
        drop(state);
        // Nobody has the block now. A refusal costs memory that is used again later.
        let _ = shm::release(&self.fd, offset, len);
        lock(&self.state).space.give(offset, len);
    }

    /// Gives back, for as long as the process lives, what has rested for long, or what others need.
    fn keep(&self) {
        let mut state = lock(&self.state);
        state.is_kept = true;
        loop {
            let resting = state.resting.total();
            let next = match state.idle.next(resting, self.slack, Instant::now()) {
                _ if std::mem::take(&mut state.is_needed) => Next::GiveBack(u64::MAX),
                next => next,
            };
            state = match next {
                Next::Nothing => self.plenty.wait(state).unwrap_or_else(PoisonError::into_inner),
                Next::Wait(time) => self.plenty.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
                Next::LookUp => {
                    drop(state);
                    if machine::is_short() {
                        self.give_back(u64::MAX);
                    }
                    lock(&self.state)
                }
                Next::GiveBack(bytes) => {
                    drop(state);
                    self.give_back(bytes);
                    lock(&self.state)
                }
            };
        }
    }

    /// Has the thread give back all that rests.
    fn need(&self) {
        lock(&self.state).is_needed = true;
        self.plenty.notify_one();
    }

    /// Gives back so many bytes of what rests, but for the slack.
    fn give_back(&self, mut bytes: u64) {
        loop {
            let taken = lock(&self.state).take_excess(self.slack, bytes.min(GIVEN_BACK));
            let Some((start, len)) = taken else { break };
            // As above.
            let _ = shm::release(&self.fd, start, len);
            lock(&self.state).space.give(start, len);
            bytes = bytes.saturating_sub(len);
        }
    }
}

impl State {
    /// Takes some of what rests, no more than `most` bytes (of whole pages), unless no more than `slack` rests: where it
    /// begins, and its length.
    fn take_excess(&mut self, slack: u64, most: u64) -> Option<(u64, u64)> {
        let (start, end) = self.resting.iter().next()?;
        let excess = self.resting.total().saturating_sub(slack).min(most).next_multiple_of(PAGE);
        let len = excess.min(end - start);
        if len == 0 {
            return None;
        }
        self.resting.remove(start, start + len);
        self.space.take_at(start, len);
        Some((start, len))
    }

    /// Takes so many bytes of what rests, from a page's start on.
    fn take_resting(&mut self, len: u64) -> Option<u64> {
        // A small block may lie at the start of a page.
        let mut pages = self.resting.iter().map(|(start, end)| (start.next_multiple_of(PAGE), end));
        let (start, _) = pages.find(|(start, end)| start + len <= *end)?;
        self.space.take_at(start, len);
        Some(start)
    }

    /// Whether what the machine had left is long ago.
    fn must_look_up(&self) -> bool {
        self.looked_up.is_none_or(|then| then.elapsed() >= LOOK_UP)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Duration, Heap, Instant, Next, PAGE, REST, WORTHWHILE, lock, machine, shm};

    const MIB: usize = 1 << 20;

    fn heap(slack: usize) -> Heap {
        let heap = Heap::new(shm::create("test-heap", 256 << 20).unwrap(), slack as u64, None).unwrap();
        lock(&heap.state).is_kept = true;
        heap
    }

    /// A block that is written to, by its offset.
    fn block(heap: &Heap, len: usize, value: u8) -> u64 {
        let at = heap.allocate(64, len).unwrap();
        assert_eq!(at.addr().get() as u64 % if len as u64 >= WORTHWHILE { PAGE } else { 64 }, 0);
        // SAFETY: a block of so many bytes that nobody else has.
        unsafe { at.as_ptr().write_bytes(value, len) };
        (at.addr().get() - heap.mapping.address()) as u64
    }

    /// Whether that is still there: looked at here and there in each page.
    fn holds(heap: &Heap, offset: u64, len: usize, value: u8) -> bool {
        let at = heap.mapping.at(offset, len as u64).unwrap();
        // SAFETY: a block of so many bytes, which was written to.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
        bytes.iter().step_by(1021).chain(bytes.last()).all(|byte| *byte == value)
    }

    fn bytes(heap: &Heap) -> usize {
        rustix::fs::fstat(&heap.fd).unwrap().st_blocks as usize * 512
    }

    /// What the thread would do at this moment.
    fn next(heap: &Heap, now: Instant) -> Next {
        let mut state = lock(&heap.state);
        let resting = state.resting.total();
        state.idle.next(resting, heap.slack, now)
    }

    #[test]
    fn freed_memory_rests_before_it_is_given_back() {
        let (heap, start) = (heap(2 * MIB), Instant::now());
        let (first, second) = (block(&heap, 32 * MIB, 1), block(&heap, 3 * MIB, 2));
        heap.free(first);
        heap.free(second);
        assert_eq!((next(&heap, start), bytes(&heap)), (Next::LookUp, 35 * MIB));
        let again = block(&heap, 32 * MIB, 3);
        assert_eq!(again, first, "what has memory is taken again");
        heap.free(again);
        assert_eq!(next(&heap, start + REST), Next::GiveBack(MIB as u64), "the slack stays, and what was needed");
        heap.give_back(MIB as u64);
        assert_eq!(bytes(&heap), 34 * MIB);
        assert_eq!(next(&heap, start + 2 * REST), Next::GiveBack(32 * MIB as u64));
        heap.give_back(u64::MAX);
        assert_eq!(bytes(&heap), 2 * MIB);
    }

    #[test]
    fn what_rests_goes_first_and_goes_when_it_is_needed() {
        let heap = heap(0);
        let (first, second) = (block(&heap, 40 * MIB, 1), block(&heap, 10 * MIB, 2));
        heap.free(first);
        // Less than the rest of the heap, and more than this.
        assert_eq!(block(&heap, 20 * MIB, 3), first);
        assert_eq!(bytes(&heap), 50 * MIB);
        // Neither is what rests after a small one misaligned.
        let small = block(&heap, 100, 4);
        let third = block(&heap, 2 * MIB, 5);
        assert!(third > first && third < second);
        heap.free(third);
        heap.free(small);
        heap.give_back(u64::MAX);
        assert_eq!(bytes(&heap), 30 * MIB + PAGE as usize, "small ones keep theirs");
        assert!(holds(&heap, first, 20 * MIB, 3) && holds(&heap, second, 10 * MIB, 2));
    }

    #[test]
    fn the_thread_gives_back_what_is_needed_and_what_has_rested() {
        let heap: &'static Heap = Box::leak(Box::new(heap(0)));
        std::thread::spawn(|| heap.keep());
        for is_needed in [true, false] {
            let (block, begin) = (block(heap, 8 * MIB, 1), Instant::now());
            heap.free(block);
            if is_needed {
                heap.need();
            }
            while bytes(heap) > 0 {
                assert!(begin.elapsed() < Duration::from_secs(60), "{} bytes are still there", bytes(heap));
                std::thread::yield_now();
            }
            assert!(is_needed || begin.elapsed() >= REST || machine::is_short(), "it has not rested");
        }
    }

    #[test]
    fn nothing_rests_where_nobody_gives_it_back() {
        let heap = heap(0);
        lock(&heap.state).is_kept = false;
        heap.free(block(&heap, 4 * MIB, 1));
        assert_eq!(bytes(&heap), 0);
    }

    #[test]
    fn new_memory_of_large_blocks_is_there_before_it_is_used() {
        let heap = heap(0);
        let small = heap.allocate(64, 3 * MIB).unwrap();
        assert_eq!(bytes(&heap), 0);
        let large = heap.allocate(64, 33 * MIB + 5).unwrap();
        assert_eq!(bytes(&heap), 33 * MIB + PAGE as usize);
        let huge = heap.mapping.in_huge_pages();
        assert!(huge >= 30 << 20 || !shm::has_huge_pages(), "{huge} bytes lie in huge pages");
        heap.free((large.addr().get() - heap.mapping.address()) as u64);
        heap.free((small.addr().get() - heap.mapping.address()) as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn blocks_keep_what_is_in_them(
            steps in prop::collection::vec((0_u8..4, 0_usize..8, 1_usize..5 * WORTHWHILE as usize / 2), 1..40),
        ) {
            let heap = heap(MIB);
            let mut blocks: [Option<(u64, usize, u8)>; 8] = [None; 8];
            for (number, (what, slot, len)) in steps.into_iter().enumerate() {
                if what == 3 {
                    heap.give_back(len as u64);
                } else if let Some((offset, _, _)) = blocks[slot].take() {
                    heap.free(offset);
                } else {
                    // Small ones as well, which lie where large ones were.
                    let len = if what == 0 { len % 4096 + 1 } else { len };
                    blocks[slot] = Some((block(&heap, len, number as u8 + 1), len, number as u8 + 1));
                }
                for (offset, len, value) in blocks.iter().flatten() {
                    prop_assert!(holds(&heap, *offset, *len, *value));
                }
            }
        }
    }
}
