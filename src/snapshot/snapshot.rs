//! One snapshot: what it holds, how far it is, and its values once it is whole.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use smallvec::SmallVec;
use twox_hash::XxHash3_64;

use super::contents::{ArrayInfo, Contents};
use super::helpers;
use super::local::Copying;
use super::store::Store;
use crate::abi::Status;
use crate::sync::lock;
use crate::wire::arena::Block;

/// So many bytes of a value, one after the other, have a checksum of their own; the last ones may be fewer.
pub(super) const CHUNK: u64 = 256 << 10;

/// The XXH3 (64 bit) of each [chunk](CHUNK) of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksums(pub(super) SmallVec<[u64; 1]>);

/// The value of a shard.
#[derive(Clone)]
pub struct Value {
    /// The dense elements, major-to-minor. Nobody writes to them.
    pub block: Block,
    /// Where the store computes them.
    pub checksums: Option<Checksums>,
}

/// How far a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Values are still on their way.
    Copying,
    /// All values are there: the snapshot can be restored from.
    Whole,
    /// It can't become whole; why.
    Failed(Status),
    /// It was dropped, or newer ones took its place; its memory is free.
    Dropped,
}

/// How much of a snapshot is done, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Copied.
    pub done: u64,
    /// All of it.
    pub total: u64,
}

/// Copies of buffers as they were at one moment. Shared by its store and by whoever asked for it.
pub struct Snapshot {
    /// Rises with every snapshot of the process.
    pub id: u64,
    /// The caller's number for the moment.
    pub step: i64,
    /// The caller's name for it; may be empty.
    pub label: String,
    /// What the caller wants to find with it.
    pub metadata: Vec<u8>,
    /// When it was asked for.
    pub taken_at: SystemTime,
    /// The arrays, and how they are stored.
    pub contents: Arc<Contents>,
    /// Bytes that are copied for it: not shared with an array in host memory, or read from a file.
    pub(super) copied: u64,
    done: AtomicU64,
    missing: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
    store: Weak<Store>,
}

struct State {
    phase: Phase,
    /// In the order of the shards, once the first of them are there; emptied when the snapshot fails or is dropped.
    values: Vec<Option<Value>>,
    /// What is being copied by this process: let go of with the end of it, whoever was about to have a hand in.
    copying: Vec<Arc<Copying>>,
}

/// Numbers for snapshots.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What a snapshot is, before it has values.
#[derive(Default)]
pub struct Description {
    pub step: i64,
    pub label: String,
    pub metadata: Vec<u8>,
    pub contents: Arc<Contents>,
    pub copied: u64,
}

impl Snapshot {
    /// A snapshot of a store whose values are to come.
    pub(super) fn new(store: &Arc<Store>, what: Description) -> Arc<Self> {
        let Description { step, label, metadata, contents, copied } = what;
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            step,
            label,
            metadata,
            taken_at: SystemTime::now(),
            copied,
            done: AtomicU64::new(0),
            missing: AtomicUsize::new(contents.shards.len()),
            contents,
            state: Mutex::new(State { phase: Phase::Copying, values: Vec::new(), copying: Vec::new() }),
            changed: Condvar::new(),
            store: Arc::downgrade(store),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.lock().phase.clone()
    }

    /// Whether values are still on their way.
    pub(super) fn is_copying(&self) -> bool {
        self.lock().phase == Phase::Copying
    }

    /// How much is done: piece by piece, also within a large value. Values that are in the arena already count at once.
    pub fn progress(&self) -> Progress {
        Progress { done: self.done.load(Ordering::Relaxed), total: self.contents.bytes }
    }

    /// Waits until it is whole or can't become it, for about `patience` at most. The phase then. A thread that waits copies
    /// what is ready to be copied, which is sooner done than having a helper woken.
    pub fn wait(self: &Arc<Self>, patience: Duration) -> Phase {
        let until = Instant::now().checked_add(patience);
        let copying = self.lock().copying.clone();
        copying.iter().for_each(|copying| copying.help(self, until));
        drop(copying);
        let mut state = self.lock();
        while state.phase == Phase::Copying {
            let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let phase = state.phase.clone();
        drop(state);
        if let (Phase::Whole, Some(store)) = (&phase, self.store.upgrade()) {
            // Whoever has waited finds the ones that it took the place of gone, and their memory free.
            store.finish_commit();
        }
        phase
    }

    /// The values of some shards.
    ///
    /// # Errors
    /// Why there are none: still copying, failed, dropped.
    pub fn values(&self, shards: std::ops::Range<usize>) -> Result<Vec<Value>, Status> {
        let state = self.lock();
        match &state.phase {
            Phase::Whole => Ok(state.values[shards].iter().flatten().cloned().collect()),
            Phase::Failed(cause) => Err(cause.clone()),
            Phase::Copying => {
                Err(Status::failed_precondition(format!("{} is not whole yet; wait for it", self.name())))
            }
            Phase::Dropped => Err(Status::failed_precondition(format!(
                "{} is gone: it was dropped, or newer ones took its place; keep more of them in the store",
                self.name()
            ))),
        }
    }

    /// How people know it.
    pub fn name(&self) -> String {
        let label = if self.label.is_empty() { String::new() } else { format!(" ({})", self.label) };
        format!("the snapshot of step {}{label}", self.step)
    }

    pub(super) fn computes_checksums(&self) -> bool {
        self.store.upgrade().is_some_and(|store| store.computes_checksums())
    }

    /// Computes the checksums of the values again, side by side.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where one is not what it was, where there are none, or where there are no values.
    pub fn verify(&self) -> Result<(), Status> {
        let values = self.values(0..self.contents.shards.len())?;
        let next = AtomicUsize::new(0);
        let check = || {
            while let Some(value) = values.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(expected) = &value.checksums else {
                    return Err(Status::failed_precondition(format!("{} was taken without checksums", self.name())));
                };
                if checksums(&value.block) != *expected {
                    return Err(Status::failed_precondition(format!("{} is damaged: a checksum differs", self.name())));
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            // Without a thread for it, this one checks all.
            let spawn = |_| std::thread::Builder::new().name("mainstay-verify".into()).spawn_scoped(scope, check).ok();
            let others: Vec<_> = (1..helpers::count()).filter_map(spawn).collect();
            let mine = check();
            let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.fold(mine, Result::and)
        })
    }

    /// Keeps what copies values for it, unless it has ended.
    pub(super) fn keep_copying(&self, copying: &[Arc<Copying>]) {
        let mut state = self.lock();
        if state.phase == Phase::Copying {
            state.copying = copying.to_vec();
        }
    }

    /// Notes bytes that came.
    pub(super) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes in a value, or why there is none. Does not block: checksums are computed elsewhere.
    pub(super) fn take_in(self: &Arc<Self>, shard: usize, value: Result<Block, Status>) {
        let block = match value {
            Ok(block) => block,
            Err(cause) => return self.fail(cause),
        };
        if block.is_empty() || !self.computes_checksums() {
            let checksums = block.is_empty().then(|| checksums(&block));
            return self.settle(vec![(shard, Value { block, checksums })]);
        }
        let snapshot = self.clone();
        helpers::run(move || {
            if snapshot.is_copying() {
                let checksums = Some(checksums(&block));
                snapshot.settle(vec![(shard, Value { block, checksums })]);
            }
        });
    }

    /// Takes in values that are there and checked.
    pub(super) fn settle(self: &Arc<Self>, values: Vec<(usize, Value)>) {
        let count = values.len();
        {
            let mut state = self.lock();
            if state.phase != Phase::Copying {
                return;
            }
            state.values.resize_with(self.contents.shards.len(), || None);
            for (shard, value) in values {
                state.values[shard] = Some(value);
            }
        }
        if count > 0 && self.missing.fetch_sub(count, Ordering::AcqRel) == count {
            self.complete();
        }
    }

    /// All values are there: the store takes it among its snapshots, and then it is whole.
    pub(super) fn complete(self: &Arc<Self>) {
        match self.store.upgrade() {
            Some(store) => store.commit(self),
            None => self.release(),
        }
    }

    /// Makes it whole, unless it was given up meanwhile; whether it is.
    pub(super) fn make_whole(&self) -> bool {
        let mut state = self.lock();
        if state.phase == Phase::Copying {
            state.phase = Phase::Whole;
            self.changed.notify_all();
        }
        state.phase == Phase::Whole
    }

    /// Lets go of what was copied for it.
    pub(super) fn forget_copying(&self) {
        let copied = std::mem::take(&mut self.lock().copying);
        drop(copied);
    }

    /// Gives it up: the first cause counts.
    pub(super) fn fail(&self, cause: Status) {
        drop(self.end(Phase::Failed(cause)));
    }

    /// Frees its values. What is being restored from it keeps what it needs.
    pub(super) fn release(&self) {
        drop(self.end(Phase::Dropped));
    }

    /// Takes it out of its store, whole or not, and frees its memory.
    pub fn discard(self: &Arc<Self>) {
        match self.store.upgrade() {
            Some(store) => store.drop_snapshot(self),
            None => self.release(),
        }
    }

    /// Ends it and gives its values, which the caller lets go of where no lock is held.
    #[must_use]
    pub(super) fn end(&self, phase: Phase) -> Vec<Option<Value>> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Failed(_) | Phase::Dropped) {
            return Vec::new();
        }
        state.phase = phase;
        self.changed.notify_all();
        let (values, copying) = (std::mem::take(&mut state.values), std::mem::take(&mut state.copying));
        drop(state);
        drop(copying);
        values
    }

    /// An array of it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where it has no array of that number.
    pub fn array(&self, index: usize) -> Result<&ArrayInfo, Status> {
        self.contents.arrays.get(index).ok_or_else(|| {
            let count = self.contents.arrays.len();
            Status::invalid(format!("{} has no array {index}; it has {count} arrays", self.name()))
        })
    }
}

/// The checksums of a value.
fn checksums(block: &Block) -> Checksums {
    // SAFETY: the block is a value, which nobody writes to.
    let bytes = unsafe { block.as_slice() };
    if bytes.is_empty() {
        return Checksums(SmallVec::from_elem(XxHash3_64::oneshot(&[]), 1));
    }
    Checksums(bytes.chunks(CHUNK as usize).map(XxHash3_64::oneshot).collect())
}
