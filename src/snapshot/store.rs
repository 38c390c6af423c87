//! A store: the newest whole snapshots, as many as its size says.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::contents::Contents;
use super::local::{self, Item};
use super::room::Room;
use super::snapshot::{Description, Phase, Snapshot};
use crate::abi::Status;
use crate::runtime::buffer::Buffer;
use crate::runtime::fetch::{Receiver, fetch};
use crate::sync::lock;
use crate::wire::arena::{Arena, Block, Claim, Commit, Expectation};

/// Keeps the last whole snapshots. A snapshot that is being taken needs its memory beside them.
pub struct Store {
    size: usize,
    checksums: bool,
    /// Held from a snapshot's becoming whole until the memory of those that it takes the place of is free.
    committing: Mutex<()>,
    /// Whole ones, in the order in which they were asked for.
    ring: Mutex<Vec<Arc<Snapshot>>>,
    /// Where the last snapshot was taken to.
    arena: OnceLock<Arc<Arena>>,
    /// What the last snapshot was of.
    contents: Mutex<Arc<Contents>>,
    /// The memory that all of its snapshots may come to hold.
    claim: Mutex<Option<Claim>>,
    /// Memory for the next snapshot.
    expected: Mutex<Option<Expectation>>,
}

/// What to take a snapshot of.
#[derive(Default)]
pub struct Request<'a> {
    /// The caller's number for the moment.
    pub step: i64,
    /// The caller's name for it.
    pub label: String,
    /// What the caller wants to find with it.
    pub metadata: Vec<u8>,
    /// How the buffers make up arrays: see [`Contents::of`].
    pub layout: &'a [i64],
    /// One buffer for each distinct part of an array.
    pub buffers: Vec<&'a Arc<Buffer>>,
}

impl Store {
    /// An empty store that keeps `size` snapshots, at least one, and computes checksums or doesn't.
    pub fn new(size: usize, checksums: bool) -> Arc<Self> {
        Arc::new(Self {
            size: size.max(1),
            checksums,
            committing: Mutex::default(),
            ring: Mutex::default(),
            arena: OnceLock::new(),
            contents: Mutex::default(),
            claim: Mutex::default(),
            expected: Mutex::default(),
        })
    }

    fn ring(&self) -> MutexGuard<'_, Vec<Arc<Snapshot>>> {
        lock(&self.ring)
    }

    pub(super) fn computes_checksums(&self) -> bool {
        self.checksums
    }

    /// Begins a snapshot of the values that the buffers have now. Waits for nothing: values are copied while programs go
    /// on; what is lost meanwhile makes the snapshot fail, not this call.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the arena has no room, or the machine no memory for it (which the snapshot may fail with
    /// later, too); INVALID_ARGUMENT for deleted buffers and parts that make up no array. The store's snapshots stay.
    pub fn take(self: &Arc<Self>, request: Request<'_>) -> Result<Arc<Snapshot>, Status> {
        let Request { step, label, metadata, layout, buffers } = request;
        buffers.iter().try_for_each(|buffer| buffer.check_held())?;
        let contents = self.contents(layout, &buffers)?;
        // What is lost already needs no memory. Other errors come to light when the values do.
        let is_copied = |buffer: &Buffer| buffer.holder.session().is_some_and(|session| session.lost().is_none());
        let copied: Vec<bool> = buffers.iter().map(|buffer| is_copied(buffer)).collect();
        let sizes: Vec<u64> =
            contents.shards.iter().zip(&copied).filter(|(_, copied)| **copied).map(|(shard, _)| shard.bytes).collect();
        let (items, others) = hold(&buffers, &copied);
        let mut room = Room::default();
        if let Some(buffer) = buffers.first() {
            self.suspend_expectation();
            self.claim(buffer.client.arena(), sizes.iter().sum());
            // New memory takes long: who copies here can see to it meanwhile.
            let commit = if items.is_empty() { Commit::Now } else { Commit::Later };
            room = Room::new(&buffer.client, &sizes, commit)?;
            let _ = self.arena.set(buffer.client.arena().clone());
        }
        let copied_bytes = sizes.iter().sum();
        let snapshot = Snapshot::new(self, Description { step, label, metadata, contents, copied: copied_bytes });
        if buffers.is_empty() {
            snapshot.complete();
        }
        let mut fetched = Vec::with_capacity(others.len());
        for (shard, number) in others {
            let block = number.map(|number| room.of(number));
            // Workers that write to memory must find it.
            block.as_ref().map_or(Ok(()), |block| block.commit(0, block.len() as u64))?;
            fetched.push((shard, buffers[shard].clone(), block));
        }
        let receiver: Arc<dyn Receiver> = snapshot.clone();
        fetch(fetched, &receiver);
        local::begin(&snapshot, items, room);
        Ok(snapshot)
    }

    /// What the buffers make up: the last snapshot's contents, as a rule.
    fn contents(&self, layout: &[i64], buffers: &[&Arc<Buffer>]) -> Result<Arc<Contents>, Status> {
        let mut last = lock(&self.contents);
        if !last.is_of(layout, buffers) {
            *last = Arc::new(Contents::of(layout, buffers)?);
        }
        Ok(last.clone())
    }

    /// From now on others leave room for as many snapshots of so many bytes as there may be at a time.
    fn claim(&self, arena: &Arc<Arena>, bytes: u64) {
        let most = bytes.saturating_mul((self.size as u64).saturating_add(1));
        let mut claim = lock(&self.claim);
        if claim.as_ref().is_none_or(|claim| claim.bytes() < most) {
            *claim = Some(arena.claim(most));
        }
    }

    /// Nothing more is committed ahead while a snapshot is taken: that is what it was for.
    fn suspend_expectation(&self) {
        if let Some(expected) = &*self.expected() {
            expected.suspend();
        }
    }

    /// Has memory for the next snapshot, which will be like this one, made ready, once it is clear that there will be one.
    fn expect_another(&self, like: &Snapshot, is_first: bool) {
        let Some(arena) = self.arena.get().filter(|_| !is_first) else { return };
        *self.expected() = Some(arena.expect(like.copied));
    }

    fn expected(&self) -> MutexGuard<'_, Option<Expectation>> {
        lock(&self.expected)
    }

    /// A whole snapshot of values that are in the arena already, such as from a file.
    pub(super) fn keep(self: &Arc<Self>, what: Description, blocks: Vec<Block>) -> Arc<Snapshot> {
        let snapshot = Snapshot::new(self, what);
        if blocks.is_empty() {
            snapshot.complete();
        }
        for (shard, block) in blocks.into_iter().enumerate() {
            snapshot.add_done(block.len() as u64);
            snapshot.take_in(shard, Ok(block));
        }
        snapshot
    }

    /// Takes a snapshot whose values are all there among the whole ones; the oldest make room.
    pub(super) fn commit(&self, snapshot: &Arc<Snapshot>) {
        let _committing = self.committing();
        let (outdated, is_first): (Vec<_>, _) = {
            let mut ring = self.ring();
            if !snapshot.make_whole() {
                return;
            }
            let is_first = ring.is_empty();
            let place = ring.partition_point(|other| other.id < snapshot.id);
            ring.insert(place, snapshot.clone());
            let excess = ring.len().saturating_sub(self.size);
            (ring.drain(..excess).map(|outdated| outdated.end(Phase::Dropped)).collect(), is_first)
        };
        // Freed here, without the ring's lock.
        drop(outdated);
        snapshot.forget_copying();
        self.expect_another(snapshot, is_first);
    }

    /// Returns when no commit is under way.
    pub(super) fn finish_commit(&self) {
        drop(self.committing());
    }

    fn committing(&self) -> MutexGuard<'_, ()> {
        lock(&self.committing)
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
        // Else it might become whole in between, and take another's place.
        let _committing = self.committing();
        self.ring().retain(|other| !Arc::ptr_eq(other, snapshot));
        snapshot.release();
    }
}

/// Holds the values that are to be copied where this process can read them; the others, each with its number in the room
/// that is made for the copies, if it is among them.
fn hold(buffers: &[&Arc<Buffer>], copied: &[bool]) -> (Vec<Item>, Vec<(usize, Option<usize>)>) {
    let (mut numbers, mut items, mut others) = (0.., Vec::with_capacity(buffers.len()), Vec::new());
    for (shard, (buffer, copied)) in buffers.iter().zip(copied).enumerate() {
        let number = if *copied { numbers.next() } else { None };
        match (number, buffer.hold()) {
            (Some(number), Some(held)) => items.push(Item { shard, held, number }),
            (number, _) => others.push((shard, number)),
        }
    }
    (items, others)
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ring().drain(..).for_each(|snapshot| snapshot.release());
    }
}
