//! The transport in shared memory: one memfd per client, mapped by the workers of all its slices.
//!
//! | part of the memfd | bytes | written by |
//! |---|---|---|
//! | magic, slots, arena bytes | 4096 | the client, once |
//! | slot 0, slot 1, … | each: | |
//! | · incarnation (u32 at 0), doorbell (u32 at 64), sleeping (u32 at 128), starved (u32 at 192) | 4096 | its worker; doorbell: anyone |
//! | · heads: for each slot, incarnation and count of messages sent to it | 64 × 32 | its worker |
//! | · tails: for each slot, incarnation and count of messages taken from it | 64 × 32 | its worker |
//! | · rings: for each slot, 256 messages to it of 64 bytes | 16384 × slots | its worker |
//! | · users: for each granule of the arena, the tag and the users of the block that begins there | 8 × granules | its worker, and users of its blocks |
//! | · arena: blocks of whole granules of 1024 bytes | arena bytes | its worker, and users of its blocks |
//!
//! Rings have one writer and one reader. No lock is in shared memory, so a worker that dies leaves none behind; what
//! it may leave is a block whose users never release it, which its owner takes back when the launch is over.
//!
//! A worker that takes a dead one's place bumps the incarnation and starts its rings from zero. Heads and tails carry
//! the writer's incarnation, messages the receiver's, and blocks a tag: what concerned the dead one is recognised.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use crate::abi::Status;
use crate::sync::lock;
use crate::wire::message::LaunchId;
use crate::wire::shm::{self, Mapping};

use super::transport::{Block, MAX_SLOTS, Meeting, Message, Slot, Slots, Transport, What};

const MAGIC: u64 = 0x4d53_5841_0001_0001;
const PAGE: usize = shm::PAGE as usize;
const LINE: usize = 64;
const RING: usize = 256;
const GRANULE: usize = 1024;
/// The arena gets memory in steps of this size, when it is first needed.
const COMMIT: usize = 1 << 20;

/// Offsets within the region, in bytes.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    slots: usize,
    arena: usize,
}

impl Geometry {
    fn heads(self) -> usize {
        PAGE
    }

    fn tails(self) -> usize {
        self.heads() + LINE * MAX_SLOTS
    }

    fn rings(self) -> usize {
        self.tails() + LINE * MAX_SLOTS
    }

    fn users(self) -> usize {
        self.rings() + RING * LINE * self.slots
    }

    fn arena(self) -> usize {
        (self.users() + self.arena / GRANULE * 8).next_multiple_of(PAGE)
    }

    fn slot_bytes(self) -> usize {
        self.arena() + self.arena
    }

    fn slot(self, slot: Slot) -> usize {
        PAGE + slot as usize * self.slot_bytes()
    }

    fn total(self) -> usize {
        PAGE + self.slots * self.slot_bytes()
    }
}

/// Creates the memfd of an exchange between `slots` slices with `arena` bytes for each one's blocks.
///
/// The memory is sparse: what is never used costs nothing.
pub fn create_region(slots: usize, arena: usize) -> Result<OwnedFd, Status> {
    if slots == 0 || slots > MAX_SLOTS {
        return Err(Status::invalid(format!("{slots} slices can't exchange data: 1 to {MAX_SLOTS} can")));
    }
    let geometry = Geometry { slots, arena: arena.next_multiple_of(COMMIT) };
    let make = || -> io::Result<OwnedFd> {
        let fd = shm::create("mainstay-exchange", geometry.total() as u64)?;
        shm::commit(&fd, 0, shm::PAGE)?;
        let mapping = Mapping::new(fd.as_fd())?;
        for (at, value) in [(0, MAGIC), (8, slots as u64), (16, geometry.arena as u64)] {
            mapping.word(at).store(value, Ordering::Relaxed);
        }
        Ok(fd)
    };
    make().map_err(|error| Status::exhausted(format!("no shared memory for exchange between slices: {error}")))
}

/// A message as it lies in a ring.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Record {
    launch: u64,
    offset: u64,
    len: u64,
    key: u32,
    group: u32,
    occurrence: u32,
    index: u32,
    stage: u32,
    what: u32,
    /// Slot of the block's owner, all ones where there is no block.
    owner: u32,
    tag: u32,
    /// Incarnation of the receiver that the message is for.
    receiver: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Record>() == LINE);
const NO_BLOCK: u32 = u32::MAX;

impl Record {
    fn new(message: &Message, receiver: u32) -> Self {
        let block = message.block.unwrap_or(Block { owner: NO_BLOCK, tag: 0, offset: 0, len: 0 });
        Self {
            launch: message.meeting.launch,
            offset: block.offset,
            len: block.len,
            key: message.meeting.key,
            group: message.meeting.group,
            occurrence: message.meeting.occurrence,
            index: message.index,
            stage: message.stage,
            what: message.what as u32,
            owner: block.owner,
            tag: block.tag,
            receiver,
            padding: 0,
        }
    }

    fn message(&self, from: Slot) -> Option<Message> {
        let block = Block { owner: self.owner, tag: self.tag, offset: self.offset, len: self.len };
        Some(Message {
            meeting: Meeting { launch: self.launch, key: self.key, group: self.group, occurrence: self.occurrence },
            what: What::from_raw(self.what)?,
            index: self.index,
            stage: self.stage,
            from,
            block: (self.owner != NO_BLOCK).then_some(block),
        })
    }
}

/// One end of the region: a worker's own view of it.
pub struct Shared {
    fd: OwnedFd,
    mapping: Mapping,
    geometry: Geometry,
    me: Slot,
    incarnation: u32,
    /// Messages that have not found room in the ring to their receiver, by receiver. The lock makes one writer of
    /// this process's threads. None of the three locks here is taken while another is held.
    out: Vec<Mutex<VecDeque<Record>>>,
    /// How far this worker has read each ring: the writer's incarnation and the count.
    taken: Mutex<Vec<(u32, u32)>>,
    blocks: Mutex<Blocks>,
    /// The doorbell's count when [`Transport::receive`] last began.
    heard: AtomicU32,
}

/// The owner's account of its arena.
struct Blocks {
    /// Free stretches in granules: start and length.
    free: BTreeMap<usize, usize>,
    /// Blocks that have been given out, oldest first.
    out: VecDeque<(Block, LaunchId)>,
    next_tag: u32,
    /// Bytes of the arena that have memory.
    committed: usize,
}

impl Shared {
    /// Maps the region as the worker of `slot`, in place of all incarnations before `incarnation`, whose worker must be
    /// dead and reaped.
    pub fn attach(fd: OwnedFd, slot: Slot, incarnation: u32) -> Result<Self, Status> {
        let bad = |what: String| Status::invalid(format!("the shared memory for exchange between slices {what}"));
        let mapping = Mapping::new(fd.as_fd()).map_err(|error| bad(format!("can't be mapped: {error}")))?;
        if mapping.len() < PAGE || mapping.word(0).load(Ordering::Relaxed) != MAGIC {
            return Err(bad("is none of this version".into()));
        }
        let number = |at: usize| mapping.word(at).load(Ordering::Relaxed) as usize;
        let geometry = Geometry { slots: number(8), arena: number(16) };
        let sane = (1..=MAX_SLOTS).contains(&geometry.slots) && geometry.arena <= mapping.len();
        if !sane || geometry.total() != mapping.len() || slot as usize >= geometry.slots {
            return Err(bad(format!("has {} slots of {} bytes and no slot {slot}", geometry.slots, geometry.arena)));
        }
        shm::commit(&fd, geometry.slot(slot) as u64, geometry.arena() as u64)
            .map_err(|error| Status::exhausted(format!("no memory for exchange between slices: {error}")))?;
        let shared = Self {
            out: (0..geometry.slots).map(|_| Mutex::new(VecDeque::new())).collect(),
            taken: Mutex::new(Vec::new()),
            blocks: Mutex::new(Blocks {
                free: BTreeMap::from([(0, geometry.arena / GRANULE)]),
                out: VecDeque::new(),
                // Tags of different incarnations must not be near each other.
                next_tag: incarnation.wrapping_mul(0x9e37_79b9),
                committed: 0,
            }),
            heard: AtomicU32::new(0),
            fd,
            mapping,
            geometry,
            me: slot,
            incarnation,
        };
        shared.take_over();
        Ok(shared)
    }

    /// Goes on reading where the predecessor stopped, and starts the own rings from zero.
    fn take_over(&self) {
        let taken =
            (0..self.geometry.slots as Slot).map(|from| unpack(self.tail(self.me, from).load(Ordering::Acquire)));
        *lock(&self.taken) = taken.collect();
        for granule in 0..self.geometry.arena / GRANULE {
            self.users(self.me, granule).store(0, Ordering::Relaxed);
        }
        for to in 0..self.geometry.slots as Slot {
            self.head(self.me, to).store(pack(self.incarnation, 0), Ordering::Release);
        }
        self.flag(self.me, 128).store(0, Ordering::Release);
        self.flag(self.me, 192).store(0, Ordering::Release);
        self.flag(self.me, 0).store(self.incarnation, Ordering::Release);
    }

    fn flag(&self, slot: Slot, at: usize) -> &AtomicU32 {
        self.mapping.flag(self.geometry.slot(slot) + at)
    }

    fn doorbell(&self, slot: Slot) -> &AtomicU32 {
        self.flag(slot, 64)
    }

    fn sleeping(&self, slot: Slot) -> &AtomicU32 {
        self.flag(slot, 128)
    }

    fn starved(&self, slot: Slot) -> &AtomicU32 {
        self.flag(slot, 192)
    }

    /// Incarnation and count of what `from` has sent to `to`.
    fn head(&self, from: Slot, to: Slot) -> &AtomicU64 {
        self.mapping.word(self.geometry.slot(from) + self.geometry.heads() + LINE * to as usize)
    }

    /// Incarnation and count of what `reader` has taken from `from`.
    fn tail(&self, reader: Slot, from: Slot) -> &AtomicU64 {
        self.mapping.word(self.geometry.slot(reader) + self.geometry.tails() + LINE * from as usize)
    }

    fn users(&self, owner: Slot, granule: usize) -> &AtomicU64 {
        self.mapping.word(self.geometry.slot(owner) + self.geometry.users() + 8 * granule)
    }

    fn record_at(&self, from: Slot, to: Slot, count: u32) -> usize {
        self.geometry.slot(from) + self.geometry.rings() + (RING * to as usize + count as usize % RING) * LINE
    }

    /// Tag and users of a block, if it is one that can be.
    fn users_of(&self, block: &Block) -> Option<&AtomicU64> {
        let arena = self.geometry.arena as u64;
        let fits = block.offset < arena && block.offset.checked_add(block.len).is_some_and(|end| end <= arena);
        let known = (block.owner as usize) < self.geometry.slots;
        let aligned = block.offset.is_multiple_of(GRANULE as u64);
        (fits && known && aligned).then(|| self.users(block.owner, block.offset as usize / GRANULE))
    }

    fn ring_doorbell(&self, slot: Slot) {
        self.doorbell(slot).fetch_add(1, Ordering::SeqCst);
        if self.sleeping(slot).load(Ordering::SeqCst) != 0 {
            wake(self.doorbell(slot));
        }
    }

    /// Moves waiting messages into the ring to `to`, as far as there is room; whether any moved.
    fn flush(&self, to: Slot, waiting: &mut VecDeque<Record>) -> bool {
        let head = self.head(self.me, to);
        let (_, mut sent) = unpack(head.load(Ordering::Relaxed));
        let (of, count) = unpack(self.tail(to, self.me).load(Ordering::Acquire));
        // A reader that has not noticed this incarnation yet has taken nothing of it.
        let taken = if of == self.incarnation { count } else { 0 };
        let mut moved = false;
        while !waiting.is_empty() && sent.wrapping_sub(taken) < RING as u32 {
            if let Some(record) = waiting.pop_front() {
                self.mapping.write(self.record_at(self.me, to, sent), bytemuck::bytes_of(&record));
                sent = sent.wrapping_add(1);
                moved = true;
            }
        }
        if moved {
            head.store(pack(self.incarnation, sent), Ordering::Release);
        }
        moved
    }

    fn flush_and_ring(&self, to: Slot, waiting: &mut VecDeque<Record>) {
        let mut moved = self.flush(to, waiting);
        if !waiting.is_empty() {
            // The reader rings when it has taken something. It may have before it could know.
            self.await_room();
            moved |= self.flush(to, waiting);
        }
        if moved {
            self.ring_doorbell(to);
        }
    }

    /// Makes sure that the arena has memory up to `end`.
    fn commit_to(&self, blocks: &mut Blocks, end: usize) -> Result<(), Status> {
        if end <= blocks.committed {
            return Ok(());
        }
        let target = end.next_multiple_of(COMMIT).min(self.geometry.arena);
        let start = self.geometry.slot(self.me) + self.geometry.arena() + blocks.committed;
        shm::commit(&self.fd, start as u64, (target - blocks.committed) as u64)
            .map_err(|error| Status::exhausted(format!("no memory for exchange between slices: {error}")))?;
        blocks.committed = target;
        Ok(())
    }
}

impl Blocks {
    /// The lowest free stretch of so many granules.
    fn take(&mut self, granules: usize) -> Option<usize> {
        let (&start, &length) = self.free.iter().find(|(_, length)| **length >= granules)?;
        self.free.remove(&start);
        if length > granules {
            self.free.insert(start + granules, length - granules);
        }
        Some(start)
    }

    fn give(&mut self, start: usize, granules: usize) {
        let (mut start, mut length) = (start, granules);
        if let Some(after) = self.free.remove(&(start + length)) {
            length += after;
        }
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            start = before;
            length += size;
        }
        self.free.insert(start, length);
    }
}

impl Shared {
    /// Takes back blocks that nobody uses any more: the first few of the list, or all there are.
    fn collect(&self, blocks: &mut Blocks, all: bool) {
        let looks = if all { blocks.out.len() } else { blocks.out.len().min(4) };
        for _ in 0..looks {
            let Some((block, launch)) = blocks.out.pop_front() else { return };
            if self.is_used(&block) {
                blocks.out.push_back((block, launch));
            } else {
                blocks.give(block.offset as usize / GRANULE, granules(block.len as usize));
            }
        }
    }

    fn is_used(&self, block: &Block) -> bool {
        self.users_of(block).is_some_and(|users| {
            let (tag, users) = unpack(users.load(Ordering::Acquire));
            tag == block.tag && users != 0
        })
    }
}

impl Transport for Shared {
    fn me(&self) -> Slot {
        self.me
    }

    fn allocate(&self, len: usize, users: Slots, launch: LaunchId) -> Result<Option<Block>, Status> {
        let mut blocks = lock(&self.blocks);
        self.collect(&mut blocks, false);
        let wanted = granules(len);
        let Some(start) = blocks.take(wanted).or_else(|| {
            self.collect(&mut blocks, true);
            blocks.take(wanted)
        }) else {
            return Ok(None);
        };
        if let Err(error) = self.commit_to(&mut blocks, (start + wanted) * GRANULE) {
            blocks.give(start, wanted);
            return Err(error);
        }
        blocks.next_tag = blocks.next_tag.wrapping_add(1).max(1);
        let tag = blocks.next_tag;
        let block = Block { owner: self.me, tag, offset: (start * GRANULE) as u64, len: len as u64 };
        self.users(self.me, start).store(pack(tag, users.0), Ordering::Release);
        blocks.out.push_back((block, launch));
        Ok(Some(block))
    }

    fn await_room(&self) {
        self.starved(self.me).store(1, Ordering::SeqCst);
    }

    fn post(&self, to: Slot, incarnation: u32, message: Message) {
        let Some(queue) = self.out.get(to as usize) else { return };
        let mut waiting = lock(queue);
        waiting.push_back(Record::new(&message, incarnation));
        self.flush_and_ring(to, &mut waiting);
    }

    fn receive(&self, each: &mut dyn FnMut(Message)) -> usize {
        self.heard.store(self.doorbell(self.me).load(Ordering::SeqCst), Ordering::SeqCst);
        self.starved(self.me).store(0, Ordering::SeqCst);
        let mut received = 0;
        for peer in 0..self.geometry.slots as Slot {
            let mut waiting = lock(&self.out[peer as usize]);
            if !waiting.is_empty() {
                self.flush_and_ring(peer, &mut waiting);
            }
            drop(waiting);
            received += self.receive_from(peer, each);
        }
        received
    }

    fn address(&self, block: &Block) -> Option<NonNull<u8>> {
        if !self.is_current(block) {
            return None;
        }
        let start = self.geometry.slot(block.owner) + self.geometry.arena();
        self.mapping.at(start as u64 + block.offset, block.len)
    }

    fn is_current(&self, block: &Block) -> bool {
        // What was read before must have been read before the tag is.
        fence(Ordering::Acquire);
        self.users_of(block).is_some_and(|users| unpack(users.load(Ordering::Acquire)).0 == block.tag)
    }

    fn release(&self, block: &Block) {
        let Some(users) = self.users_of(block) else { return };
        let mut seen = users.load(Ordering::Acquire);
        loop {
            let (tag, left) = unpack(seen);
            let fewer = Slots(left).without(self.me).0;
            if tag != block.tag || fewer == left {
                return;
            }
            match users.compare_exchange_weak(seen, pack(tag, fewer), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) if fewer == 0 => break,
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        if block.owner != self.me && self.starved(block.owner).load(Ordering::SeqCst) != 0 {
            self.ring_doorbell(block.owner);
        }
    }

    fn in_use(&self, blocks: &mut Vec<Block>) -> usize {
        blocks.retain(|block| self.is_used(block));
        blocks.len()
    }

    fn reclaim(&self, launch: LaunchId) {
        let mut blocks = lock(&self.blocks);
        for (block, of) in &blocks.out {
            if *of == launch
                && let Some(users) = self.users_of(block)
            {
                users.store(pack(block.tag.wrapping_sub(1), 0), Ordering::Release);
            }
        }
        self.collect(&mut blocks, true);
    }

    fn sleep(&self, at_most: Duration) {
        // A sender rings first and looks for a sleeper then; the kernel compares the doorbell after this store. So
        // either the sender sees the sleeper, or the sleeper that the bell has rung since `receive` began.
        self.sleeping(self.me).store(1, Ordering::SeqCst);
        wait(self.doorbell(self.me), self.heard.load(Ordering::SeqCst), at_most);
        self.sleeping(self.me).store(0, Ordering::SeqCst);
    }

    fn wake(&self) {
        self.ring_doorbell(self.me);
    }
}

impl Shared {
    fn receive_from(&self, from: Slot, each: &mut dyn FnMut(Message)) -> usize {
        let (mut incarnation, mut count) = lock(&self.taken)[from as usize];
        let (of, sent) = unpack(self.head(from, self.me).load(Ordering::Acquire));
        if of == 0 {
            return 0;
        }
        if of != incarnation {
            (incarnation, count) = (of, 0);
        }
        let waiting = sent.wrapping_sub(count);
        if waiting == 0 || waiting > RING as u32 {
            // More than a ring holds: the writer is being replaced, or broken.
            return 0;
        }
        let mut bytes = Vec::with_capacity(LINE);
        for _ in 0..waiting {
            bytes.clear();
            self.mapping.read_onto(self.record_at(from, self.me, count), LINE, &mut bytes);
            count = count.wrapping_add(1);
            let record: Record = bytemuck::pod_read_unaligned(&bytes);
            fence(Ordering::Acquire);
            if unpack(self.head(from, self.me).load(Ordering::Acquire)).0 != of {
                // The writer has been replaced meanwhile, and what was read may be of its successor.
                return 0;
            }
            if record.receiver == self.incarnation
                && let Some(message) = record.message(from)
            {
                each(message);
            }
        }
        lock(&self.taken)[from as usize] = (incarnation, count);
        self.tail(self.me, from).store(pack(incarnation, count), Ordering::Release);
        if self.starved(from).load(Ordering::SeqCst) != 0 {
            self.ring_doorbell(from);
        }
        waiting as usize
    }
}

fn granules(len: usize) -> usize {
    len.div_ceil(GRANULE).max(1)
}

fn pack(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn wait(word: &AtomicU32, value: u32, at_most: Duration) {
    use rustix::thread::futex::{self, Flags, Timespec};
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    // Woken, changed before, interrupted, timed out: the caller looks again in each case.
    let _ = futex::wait(word, Flags::empty(), value, Some(&timeout));
}

fn wake(word: &AtomicU32) {
    // There is one sleeper. An error means there is none.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
}
