//! The arena: host memory that client and workers share and that a worker's death does not free.
//!
//! One memfd of a fixed length, the budget, is mapped whole by the client ([`Arena`]) and by every worker
//! ([`ArenaView`]). It is sparse: stretches are *committed* (given memory) before anyone may touch them, in large steps
//! and ahead of use, so that running out of memory is an error of an allocation and never a SIGBUS. Large blocks may be
//! allocated without, for whoever commits what it writes to ([`Commit::Later`]); then it is an error of that. Pages are locked
//! where the process may. A thread of the arena's commits ahead (fresh memory is slow to come by), and gives free memory back
//! to the machine when there is much of it.
//!
//! The allocator's state lies in the client's private memory: a worker can't damage it. A [`Block`] frees its
//! stretch when dropped; who lends a block to a worker keeps it until the worker returned the loan or is reaped.

mod idle;
mod keeper;
mod ranges;
mod view;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Resource;

use super::machine;
use super::message::Extent;
use super::numa::{self, Numbers, Placement};
use super::shm::{self, HUGE_PAGE, Mapping, PAGE};
use crate::abi::Status;
use crate::sync::lock;

pub use idle::{Idle, Next};
pub use ranges::{FreeSpace, RangeSet};
pub use view::ArenaView;

/// Every block starts at a multiple of this: XLA's CPU plugin wants it for zero-copy use.
pub const ALIGNMENT: u64 = 64;
/// Blocks of at least this many bytes start on a page, and go where there is memory already.
pub const PAGE_ALIGNED_FROM: u64 = 64 << 10;
/// Blocks that were allocated for later are committed in multiples of this.
const COMMITTED_AT_ONCE: u64 = HUGE_PAGE;
/// Of the machine's memory, so much is left to others when the arena grows.
const LEFT_TO_OTHERS: u64 = 64 << 20;
/// No more than this part of the machine's memory is kept for good where it is free.
const KEPT_OF_MACHINE: u64 = 8;
/// While memory that was promised is committed, what is left is looked up after so many bytes of it: all threads together get
/// less than what is left to others before the next look.
const LOOK_AGAIN: u64 = 32 << 20;
/// And after this long, for what others take.
const LOOK_LATER: Duration = Duration::from_millis(10);

/// What an arena is to be. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct ArenaOptions {
    /// The budget. Rounded down to whole pages.
    pub capacity: u64,
    /// Memory is committed in multiples of this, where there is room.
    pub step: u64,
    /// So much committed free memory is kept ready. Zero: none, and nothing is committed ahead.
    pub ahead: u64,
    /// Committed free memory above this is given back to the machine.
    pub slack: u64,
    /// Once it has been free for so long; sooner, where the machine is short of memory.
    pub rest: Duration,
    /// Where it is to lie.
    pub placement: Placement,
}

impl ArenaOptions {
    /// Usual for a budget.
    pub fn new(capacity: u64) -> Self {
        let step = (capacity / 16).clamp(PAGE, 64 << 20);
        let step = step.next_multiple_of(if step > HUGE_PAGE { HUGE_PAGE } else { PAGE });
        let most = machine::memory().map_or(u64::MAX, |memory| memory.total / KEPT_OF_MACHINE);
        let (slack, rest) = ((capacity / 4).max(1 << 30).min(most), Duration::from_secs(5));
        Self { capacity, step, ahead: step, slack, rest, placement: Placement::Auto }
    }
}

/// How an arena is used, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaStats {
    /// The budget.
    pub capacity: u64,
    /// Held by blocks, with their rounding.
    pub used: u64,
    /// Has memory: used or ready for use.
    pub committed: u64,
    /// The longest stretch that is not used.
    pub largest_free: u64,
    /// Blocks that live.
    pub blocks: u64,
}

/// The client's side: owns the allocator. Any thread may use it.
#[derive(Debug)]
pub struct Arena {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

/// What allocating threads and the keeper share.
#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    mapping: Mapping,
    /// Where it lies; none: where the kernel puts it.
    nodes: Option<Numbers>,
    options: ArenaOptions,
    /// The only lock of the arena; no system call is made under it.
    state: Mutex<State>,
    /// Told when the keeper has something to do.
    work: Condvar,
    /// Told when less is in work, or in commit.
    settled: Condvar,
    /// Whether memory was seen on other nodes than it was to lie on.
    has_strayed: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// What no block and no work in progress holds.
    space: FreeSpace,
    /// What has no memory. Only whoever holds a stretch (has taken it from `space`) commits or releases it.
    uncommitted: RangeSet,
    blocks: u64,
    /// Taken from `space` by the keeper or for the rounding of a step: not used by any block.
    in_work: u64,
    /// Bytes that somebody will ask for, and that are to be ready.
    expected: u64,
    /// Bytes that stores may come to hold, whether or not they do.
    claimed: u64,
    /// Bytes of what is [claimed](Arena::claim) that are held.
    claimed_used: u64,
    /// Bytes beyond the usual slack that are not given back, for whoever asks for as much again and again.
    lenience: u64,
    /// Of what blocks hold, so many bytes have no memory yet.
    pending: u64,
    /// Of these a thread is at getting memory for.
    in_commit: RangeSet,
    /// When it was looked up last whether the machine has memory for them, and how much was committed since.
    looked: Option<Instant>,
    unlooked: u64,
    /// Committed since [`Arena::take_newly_committed`].
    announce: RangeSet,
    /// Watches what is ready.
    idle: Idle,
    /// So many bytes have lain idle for long and are to be given back.
    surplus: u64,
    stop: bool,
}

impl State {
    fn used(&self, capacity: u64) -> u64 {
        capacity - self.space.free() - self.in_work
    }

    /// Takes so many bytes that have memory already, from a page's start on, at one end of a free stretch: what is left
    /// of it stays in one piece.
    fn take_ready(&mut self, size: u64) -> Option<u64> {
        const TRIES: usize = 64;
        let start = self.space.fitting(size).take(TRIES).find_map(|(first, len)| {
            let last = first + len;
            let gaps = self.uncommitted.within(first, last);
            let begin = first.next_multiple_of(PAGE);
            let until = gaps.first().map_or(last, |(gap, _)| *gap);
            let since = gaps.last().map_or(first, |(_, after)| *after);
            let end = last.checked_sub(size).map(|end| end - end % PAGE);
            let at_begin = (until >= begin + size).then_some(begin);
            at_begin.or_else(|| end.filter(|end| *end >= since))
        })?;
        self.space.take_at(start, size);
        Some(start)
    }

    /// How many bytes lie free behind `end` up to the next step.
    fn behind(&self, end: u64, step: u64) -> u64 {
        self.space.free_from(end).min(end.next_multiple_of(step) - end)
    }

    /// Which pages lack memory, of those that a stretch lies in. The first and the last may be another's as well.
    fn lacking(&self, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        self.uncommitted.within(start - start % PAGE, end.next_multiple_of(PAGE))
    }

    /// Whether no memory is to come any more for a stretch that is taken.
    fn has_all(&self, stretch: &Stretch) -> bool {
        self.lacking((stretch.offset, stretch.offset + stretch.len)).is_empty()
    }

    /// Committed bytes that no block holds.
    fn ready(&self, capacity: u64) -> u64 {
        (capacity - self.uncommitted.total() + self.pending).saturating_sub(self.used(capacity))
    }
}

impl Arena {
    /// An empty arena; memory is committed as it is needed, and a first step soon.
    ///
    /// # Errors
    /// A budget below a page, or the kernel's refusal of memory, address space, a descriptor, a thread or the nodes that are
    /// asked for.
    pub fn new(options: ArenaOptions) -> io::Result<Arc<Self>> {
        let options = ArenaOptions {
            capacity: options.capacity - options.capacity % PAGE,
            step: options.step.max(PAGE).next_multiple_of(PAGE),
            rest: options.rest.max(Duration::from_millis(1)),
            ..options
        };
        if options.capacity == 0 {
            return Err(io::Error::other("host memory of less than a page"));
        }
        let fd = shm::create("mainstay-arena", options.capacity)?;
        let mapping = Mapping::new(fd.as_fd())?;
        mapping.prefer_huge_pages();
        lock_pages(&mapping);
        let nodes = numa::place(&mapping, &options.placement)?;
        let mut uncommitted = RangeSet::default();
        uncommitted.insert(0, options.capacity);
        let state = State {
            space: FreeSpace::new(options.capacity),
            uncommitted,
            blocks: 0,
            in_work: 0,
            expected: 0,
            claimed: 0,
            claimed_used: 0,
            lenience: 0,
            pending: 0,
            in_commit: RangeSet::default(),
            looked: None,
            unlooked: 0,
            announce: RangeSet::default(),
            idle: Idle::new(options.rest),
            surplus: 0,
            stop: false,
        };
        let shared = Arc::new(Shared {
            fd,
            mapping,
            nodes,
            options,
            state: Mutex::new(state),
            work: Condvar::new(),
            settled: Condvar::new(),
            has_strayed: AtomicBool::new(false),
        });
        let keeper = keeper::start(shared.clone())?;
        Ok(Arc::new(Self { shared, keeper: Some(keeper) }))
    }

    /// The memfd, to be passed on to workers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// Allocates `len` bytes, with unspecified contents, at a multiple of [`ALIGNMENT`] (of a page, if large).
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, saying how much is asked for, used and allowed.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Result<Block, Status> {
        self.allocate_when(len, Commit::Now)
    }

    /// The same, with its memory there when that is wanted.
    ///
    /// # Errors
    /// As [`Arena::allocate`]. That the machine has no more memory may show later, too.
    pub fn allocate_when(self: &Arc<Self>, len: u64, commit: Commit) -> Result<Block, Status> {
        let none = Extent { offset: 0, len: 0 };
        let (extent, is_fresh) = if len == 0 { (none, false) } else { self.shared.allocate(len, 1, commit)? };
        Ok(self.block(extent, Use::Other, is_fresh))
    }

    /// The stretch as a block.
    fn block(self: &Arc<Self>, Extent { offset, len }: Extent, purpose: Use, is_fresh: bool) -> Block {
        let start = self.shared.mapping.at(offset, len).expect("what the arena allocates lies in its mapping");
        let stretch = Stretch { arena: self.clone(), offset, len, purpose, is_fresh: AtomicBool::new(is_fresh) };
        Block { stretch: Arc::new(stretch), offset, len, start }
    }

    /// Allocates blocks of so many bytes each of what the caller has [claimed](Arena::claim), one behind the other, so that
    /// what is allocated and freed together leaves no small holes. Each is freed by itself. All are large enough to begin
    /// on a page.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, also where there is room but not in one stretch.
    pub fn allocate_row(self: &Arc<Self>, lens: &[u64], commit: Commit) -> Result<Vec<Block>, Status> {
        assert!(lens.iter().all(|len| *len >= PAGE_ALIGNED_FROM), "blocks in a row begin on a page each");
        let total = lens.iter().try_fold(0, |total: u64, len| total.checked_add(len.checked_next_multiple_of(PAGE)?));
        let total = total.ok_or_else(|| self.shared.too_little(u64::MAX))?;
        if lens.is_empty() {
            return Ok(Vec::new());
        }
        let (Extent { mut offset, .. }, is_fresh) = self.shared.allocate(total, lens.len() as u64, commit)?;
        self.shared.lock().claimed_used += lens.iter().sum::<u64>();
        let mut blocks = Vec::with_capacity(lens.len());
        for &len in lens {
            blocks.push(self.block(Extent { offset, len }, Use::Claimed, is_fresh));
            offset += reserved(len);
        }
        Ok(blocks)
    }

    /// Allocates `len` bytes, its memory for later ([`Commit::Later`]), that are to become a device's memory and may stay that
    /// for long; `None` where that would leave others short: what is [claimed](Arena::claim), and a fourth of the budget.
    pub fn allocate_for_device(self: &Arc<Self>, len: u64) -> Option<Block> {
        let capacity = self.shared.options.capacity;
        let then = {
            let state = self.shared.lock();
            let others = state.used(capacity).saturating_sub(state.claimed_used);
            others.saturating_add(state.claimed.max(state.claimed_used)).saturating_add(len)
        };
        if then > capacity - capacity / 4 { None } else { self.allocate_when(len, Commit::Later).ok() }
    }

    /// Says that so many bytes may come to be held at a time, by whoever has the result.
    pub fn claim(self: &Arc<Self>, bytes: u64) -> Claim {
        let bytes = bytes.min(self.shared.options.capacity);
        self.shared.lock().claimed += bytes;
        Claim { arena: self.clone(), bytes }
    }

    /// Keeps so many bytes ready for use for as long as the result lives and the budget has them:
    /// for whoever knows what will be asked for next.
    pub fn expect(self: &Arc<Self>, bytes: u64) -> Expectation {
        let expectation = Expectation { arena: self.clone(), bytes, is_suspended: AtomicBool::new(false) };
        self.shared.change(|state| {
            state.expected += bytes;
            state.lenience += bytes;
        });
        expectation
    }

    /// From now on no memory is given back to the machine: devices know its pages.
    pub fn keep_all(&self) {
        self.shared.change(|state| state.lenience = u64::MAX / 2);
    }

    /// Stretches committed since the last call: what workers should be told to [populate](ArenaView::populate).
    pub fn take_newly_committed(&self) -> Vec<Extent> {
        extents(&std::mem::take(&mut self.shared.lock().announce))
    }

    /// All stretches that are committed now: what a new worker should populate.
    pub fn committed(&self) -> Vec<Extent> {
        let state = self.shared.lock();
        let mut committed = RangeSet::default();
        committed.insert(0, self.shared.options.capacity);
        state.uncommitted.iter().for_each(|(start, end)| committed.remove(start, end));
        extents(&committed)
    }

    /// The NUMA nodes that it is spread over; none: where the kernel puts it.
    pub fn nodes(&self) -> Option<&Numbers> {
        self.shared.nodes.as_ref()
    }

    /// How the arena is used now.
    pub fn stats(&self) -> ArenaStats {
        let (state, capacity) = (self.shared.lock(), self.shared.options.capacity);
        ArenaStats {
            capacity,
            used: state.used(capacity),
            committed: capacity - state.uncommitted.total(),
            largest_free: state.space.largest(),
            blocks: state.blocks,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // Soon over: it looks at `stop` between stretches of bounded length. A panic there was logged.
            let _ = keeper.join();
        }
    }
}

/// Bytes of some stretches.
fn total(stretches: &[(u64, u64)]) -> u64 {
    stretches.iter().map(|(start, end)| end - start).sum()
}

fn extents(ranges: &RangeSet) -> Vec<Extent> {
    ranges.iter().map(|(start, end)| Extent { offset: start, len: end - start }).collect()
}

/// Bytes that a block of `len` takes from the arena.
fn reserved(len: u64) -> u64 {
    len.next_multiple_of(if len >= PAGE_ALIGNED_FROM { PAGE } else { ALIGNMENT })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A stretch of so many bytes, for a number of blocks, and whether memory is still to come for some of it.
    fn allocate(&self, len: u64, blocks: u64, commit: Commit) -> Result<(Extent, bool), Status> {
        let align = if len >= PAGE_ALIGNED_FROM { PAGE } else { ALIGNMENT };
        let Some(size) = len.checked_next_multiple_of(align) else { return Err(self.too_little(len)) };
        let mut state = self.lock();
        let offset = loop {
            // Fresh memory takes longer than all that is done with it: what there is goes first.
            let ready = if size >= PAGE_ALIGNED_FROM { state.take_ready(size) } else { None };
            match ready.or_else(|| state.space.take(size, align)) {
                Some(offset) => break offset,
                // Room that is being worked on is soon free again: as soon as some megabytes are committed or given back.
                None if state.in_work > 0 => state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner),
                None => return Err(self.exhausted(&state, len)),
            }
        };
        let missing = state.lacking((offset, offset + size));
        // A page of a smaller one may be another's as well.
        let is_fresh = commit == Commit::Later && len >= PAGE_ALIGNED_FROM && !missing.is_empty();
        if !missing.is_empty() {
            let grown = if is_fresh {
                self.promise(state, &missing)
            } else {
                self.grow(state, missing, (offset, offset + size))
            };
            state = grown.map_err(|(mut state, error)| {
                state.space.give(offset, size);
                self.refused(&state, len, &error)
            })?;
        }
        state.blocks += blocks;
        let ready = state.ready(self.options.capacity);
        state.idle.fell_to(ready);
        if self.keeper_is_needed(&state) {
            self.work.notify_one();
        }
        Ok((Extent { offset, len }, is_fresh))
    }

    /// Leaves the `missing` parts of a stretch that the caller has taken without memory for now, unless there is too little.
    fn promise<'a>(&'a self, mut state: MutexGuard<'a, State>, missing: &[(u64, u64)]) -> Grown<'a> {
        let wanted = total(missing);
        state.pending += wanted;
        let promised = state.pending;
        drop(state);
        let found = look_for(promised);
        let mut state = self.lock();
        match found {
            Ok(()) => Ok(state),
            Err(error) => {
                state.pending -= wanted;
                Err((state, error))
            }
        }
    }

    /// Gives a part of a stretch that its holder was promised memory for; whether all of the stretch has its memory now.
    fn keep_promise(&self, stretch: &Stretch, start: u64, end: u64) -> Result<bool, Status> {
        let mut state = self.lock();
        // What another thread is at is soon there.
        while !state.in_commit.within(start, end).is_empty() {
            state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let missing = state.lacking((start, end));
        if missing.is_empty() {
            return Ok(state.has_all(stretch));
        }
        state.in_commit.insert(start, end);
        // Others may have taken meanwhile what was found for the promise.
        state.unlooked += total(&missing);
        let must_look = state.unlooked > LOOK_AGAIN || state.looked.is_none_or(|then| then.elapsed() >= LOOK_LATER);
        if must_look {
            (state.looked, state.unlooked) = (Some(Instant::now()), 0);
        }
        drop(state);
        let found = if must_look { look_for(total(&missing)) } else { Ok(()) };
        let commit = |(start, end): &(u64, u64)| self.mapping.commit(&self.fd, *start, end - start);
        let committed = found.and_then(|()| missing.iter().try_for_each(commit));
        let mut state = self.lock();
        state.in_commit.remove(start, end);
        self.settled.notify_all();
        committed.map_err(|error| self.refused(&state, stretch.len, &error))?;
        let before = state.uncommitted.total();
        self.record(&mut state, &missing);
        state.pending -= before - state.uncommitted.total();
        let has_all = state.has_all(stretch);
        drop(state);
        self.look_for_strays(end);
        Ok(has_all)
    }

    /// Commits the `missing` parts of a stretch that the caller has taken, and what lies free behind it up to the next step.
    fn grow<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        missing: Vec<(u64, u64)>,
        (start, end): (u64, u64),
    ) -> Grown<'a> {
        let beyond = state.behind(end, self.options.step);
        let holds = (start, end + beyond);
        if beyond > 0 {
            state.space.take_at(end, beyond);
            state.in_work += beyond;
        }
        let mut stretches = state.lacking(holds);
        drop(state);
        let mut committed = self.commit(&stretches, holds);
        if committed.is_err() && beyond > 0 {
            // The rest of the step was a wish only.
            stretches = missing;
            committed = self.commit(&stretches, (start, end));
        }
        let mut state = self.lock();
        if beyond > 0 {
            state.in_work -= beyond;
            state.space.give(end, beyond);
            self.settled.notify_all();
        }
        match committed {
            Ok(()) => {
                self.record(&mut state, &stretches);
                Ok(state)
            }
            Err(error) => Err((state, error)),
        }
    }

    /// Gives stretches memory, all pages of what the caller `holds`: has taken from the free space. Not under the lock: it
    /// takes long.
    fn commit(&self, stretches: &[(u64, u64)], holds: (u64, u64)) -> io::Result<()> {
        let promised = self.lock().pending;
        look_for(promised.saturating_add(total(stretches)))?;
        let committed =
            stretches.iter().try_for_each(|(start, end)| self.mapping.commit(&self.fd, *start, end - start));
        if committed.is_err() {
            // But for pages that are another's as well, who may have committed them meanwhile.
            let (first, last) = (holds.0.next_multiple_of(PAGE), holds.1 - holds.1 % PAGE);
            let own = stretches.iter().map(|(start, end)| ((*start).max(first), (*end).min(last)));
            self.release(&own.filter(|(start, end)| start < end).collect::<Vec<_>>());
        }
        committed?;
        stretches.iter().for_each(|(_, end)| self.look_for_strays(*end));
        Ok(())
    }

    /// Takes back what memory uncommitted stretches may have, which the caller has taken from the free space: of what could
    /// not be had, some may be there.
    fn release(&self, stretches: &[(u64, u64)]) {
        for (start, end) in stretches {
            // A refusal keeps it until the stretch is committed and released again.
            let _ = shm::release(&self.fd, *start, end - start);
        }
    }

    /// Notes that stretches have memory now.
    fn record(&self, state: &mut State, stretches: &[(u64, u64)]) {
        for &(start, end) in stretches {
            for (start, end) in state.uncommitted.within(start, end) {
                state.announce.insert(start, end);
            }
            state.uncommitted.remove(start, end);
        }
    }

    /// Says so, once, where the nodes were full when the page before `end` was touched and the kernel took memory of another
    /// one.
    fn look_for_strays(&self, end: u64) {
        let Some(nodes) = self.nodes.as_ref().filter(|_| !self.has_strayed.load(Ordering::Relaxed)) else { return };
        let last = self.mapping.address() as u64 + end - 1;
        if let Some(node) = numa::elsewhere(last as usize, nodes) {
            self.has_strayed.store(true, Ordering::Relaxed);
            tracing::warn!(%nodes, node, "host memory's NUMA nodes are full: some of it lies on another node");
        }
    }

    fn free(&self, stretch: &Stretch) {
        let (start, len) = (stretch.offset, reserved(stretch.len));
        let mut missing = Vec::new();
        if stretch.is_fresh.load(Ordering::Acquire) {
            missing = self.lock().lacking((start, start + len));
            self.release(&missing);
        }
        self.change(|state| {
            state.pending -= total(&missing);
            state.space.give(start, len);
            state.blocks -= 1;
            state.claimed_used -= if stretch.purpose == Use::Claimed { stretch.len } else { 0 };
        });
    }

    /// Changes something that may give the keeper something to do.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if self.keeper_is_needed(&state) {
            self.work.notify_one();
        }
    }

    fn exhausted(&self, state: &State, len: u64) -> Status {
        let capacity = self.options.capacity;
        let (used, largest) = (state.used(capacity), state.space.largest());
        Status::exhausted(format!(
            "host memory is exhausted: {} asked for, {} of {} in use, the largest free stretch has {}; free buffers in \
             host memory, or raise host_memory (MAINSTAY_HOST_MEMORY)",
            Bytes(len),
            Bytes(used),
            Bytes(capacity),
            Bytes(largest)
        ))
    }

    fn refused(&self, state: &State, len: u64, error: &io::Error) -> Status {
        let left = machine::memory().map_or_else(String::new, |memory| {
            format!(" ({} of {} are available to this process)", Bytes(memory.available), Bytes(memory.total))
        });
        let used = state.used(self.options.capacity);
        Status::exhausted(format!(
            "the machine has no more memory to share: {} asked for, {} of host_memory's {} in use{left}: {error}",
            Bytes(len),
            Bytes(used),
            Bytes(self.options.capacity)
        ))
    }

    fn too_little(&self, len: u64) -> Status {
        self.exhausted(&self.lock(), len)
    }
}

/// The arena's lock, which was held before; with an error, where there is no memory.
type Grown<'a> = Result<MutexGuard<'a, State>, (MutexGuard<'a, State>, io::Error)>;

/// Has the pages of a new mapping locked once they have memory: all, or else from the start on as many as half of what this
/// process may lock, which leaves it the other half.
fn lock_pages(mapping: &Mapping) {
    let all = mapping.len() as u64;
    if mapping.lock(0, all) {
        return;
    }
    let half =
        (rustix::process::getrlimit(Resource::Memlock).current.unwrap_or(0) / 2).min(all) / HUGE_PAGE * HUGE_PAGE;
    let locked = if half > 0 && mapping.lock(0, half) { half } else { 0 };
    tracing::debug!(locked, all, "not all of the host memory is locked: this process may not (ulimit -l)");
}

/// The kernel would rather kill a process than refuse it memory: so the arena asks first.
fn look_for(bytes: u64) -> io::Result<()> {
    let is_too_little = |memory: machine::Memory| memory.available < bytes.saturating_add(LEFT_TO_OTHERS);
    if machine::memory().is_some_and(is_too_little) { Err(rustix::io::Errno::NOMEM.into()) } else { Ok(()) }
}

/// Bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.0.max(1).ilog2() / 10;
        match unit {
            0 => write!(f, "{} bytes", self.0),
            unit => {
                let unit = unit.min(4);
                let names = ["KiB", "MiB", "GiB", "TiB"];
                write!(f, "{:.1} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, names[unit as usize - 1])
            }
        }
    }
}

/// Memory that somebody may come to hold; see [`Arena::claim`].
#[derive(Debug)]
pub struct Claim {
    arena: Arc<Arena>,
    bytes: u64,
}

impl Claim {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.arena.shared.lock().claimed -= self.bytes;
    }
}

/// Memory that is to be kept ready; see [`Arena::expect`].
#[derive(Debug)]
pub struct Expectation {
    arena: Arc<Arena>,
    bytes: u64,
    is_suspended: AtomicBool,
}

impl Expectation {
    /// What was expected is about to be allocated: nothing more is committed for it. What is freed in its turn is kept.
    pub fn suspend(&self) {
        if !self.is_suspended.swap(true, Ordering::Relaxed) {
            self.arena.shared.change(|state| state.expected -= self.bytes);
        }
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.suspend();
        self.arena.shared.change(|state| state.lenience -= self.bytes);
    }
}

/// When a block's memory is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// When it is allocated.
    Now,
    /// When whoever writes to it [commits](Block::commit) it, part by part: a large block takes long to get new memory.
    Later,
}

/// What a stretch is allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// What is [claimed](Arena::claim).
    Claimed,
    Other,
}

/// A stretch of the arena, which is free again when this is dropped.
#[derive(Debug)]
struct Stretch {
    arena: Arc<Arena>,
    offset: u64,
    len: u64,
    purpose: Use,
    /// Whether some of it may have no memory yet.
    is_fresh: AtomicBool,
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if self.len > 0 {
            self.arena.shared.free(self);
        }
    }
}

/// Memory of the arena: a stretch, or a part of one. Clones and parts share it, and it is free again once the last of them
/// is dropped.
///
/// The memory is shared with the workers, too. While a worker may write to it (it holds a loan on it, or was told to
/// download to it and has not reported that it is done) nothing here may read or write it; while a worker may read
/// it, nothing here may write.
#[derive(Clone, Debug)]
pub struct Block {
    stretch: Arc<Stretch>,
    offset: u64,
    len: u64,
    start: NonNull<u8>,
}

// SAFETY: `start` points into the mapping, which the stretch's arena keeps; it isn't tied to a thread.
unsafe impl Send for Block {}
// SAFETY: shared references allow reading only through `unsafe` functions whose callers exclude writers.
unsafe impl Sync for Block {}

impl Block {
    /// Where the block is, for messages. The length is what was asked for.
    pub fn extent(&self) -> Extent {
        Extent { offset: self.offset, len: self.len }
    }

    /// `len` bytes of the block from `offset` on; `None` where they aren't all in it.
    pub fn part(&self, offset: u64, len: u64) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the block, or one past its end.
        let start = unsafe { self.start.add(offset as usize) };
        Some(Self { stretch: self.stretch.clone(), offset: self.offset + offset, len, start })
    }

    /// Gives some of the block's bytes memory, where it is for [later](Commit::Later) and they have none yet.
    /// From then on they can be written to, also by workers. Threads do this side by side.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the machine has no more.
    pub fn commit(&self, offset: u64, len: u64) -> Result<(), Status> {
        let stretch = &self.stretch;
        if len == 0 || !stretch.is_fresh.load(Ordering::Acquire) {
            return Ok(());
        }
        // Not for each small value that lies in the block.
        let until = stretch.offset + reserved(stretch.len);
        let first = (self.offset + offset) / COMMITTED_AT_ONCE * COMMITTED_AT_ONCE;
        let end = (self.offset + offset + len).next_multiple_of(COMMITTED_AT_ONCE).min(until);
        if stretch.arena.shared.keep_promise(stretch, first.max(stretch.offset), end)? {
            stretch.is_fresh.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The same block for whoever does not keep it.
    pub fn downgrade(&self) -> WeakBlock {
        WeakBlock { stretch: Arc::downgrade(&self.stretch), extent: self.extent() }
    }

    /// Bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte; good for [`Block::len`] bytes while the block lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    ///
    /// # Safety
    /// Nobody, in whichever process, writes to the block while the result lives; a block for [later](Commit::Later) is
    /// committed.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` mapped bytes; committed and without writers, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// Nobody else, in whichever process and through whatever shares the memory, reads or writes it while the result lives.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

/// A block that may be free already.
#[derive(Clone, Debug)]
pub struct WeakBlock {
    stretch: Weak<Stretch>,
    extent: Extent,
}

impl WeakBlock {
    /// The block, if somebody has kept its stretch.
    pub fn upgrade(&self) -> Option<Block> {
        let (stretch, Extent { offset, len }) = (self.stretch.upgrade()?, self.extent);
        let start = stretch.arena.shared.mapping.at(offset, len)?;
        Some(Block { stretch, offset, len, start })
    }
}

#[cfg(test)]
mod tests;
