//! Copying values that this process can read where the devices have them: in pieces, side by side, each piece's checksum
//! computed while it is in the processor's cache.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use smallvec::SmallVec;
use twox_hash::XxHash3_64;

use super::helpers;
use super::room::Room;
use super::snapshot::{CHUNK, Checksums, Snapshot, Value};
use crate::abi::Status;
use crate::runtime::event::Event;
use crate::runtime::fetch::{Receiver, fetch};
use crate::runtime::view::{Held, View};
use crate::sync::lock;
use crate::wire::arena::Block;
use crate::wire::stream;

/// A thread takes on about so many bytes at once, or fewer where that would leave others without.
const PIECE: u64 = 1 << 20;
/// So much is copied before its checksum is taken: little enough to be in the cache still.
const STRIP: usize = 64 << 10;

/// A value to copy: the shard, where it will be, and its number in the room that is for it.
pub struct Item {
    pub shard: usize,
    pub held: Held,
    pub number: usize,
}

/// Copies values for a snapshot as they get ready. Returns at once: what can be done for each value later is.
pub fn begin(snapshot: &Arc<Snapshot>, items: Vec<Item>, room: Room) {
    let room = Arc::new(room);
    let copying: Vec<_> =
        by_moment(items).into_iter().map(|(ready, items)| Copying::new(ready, items, room.clone())).collect();
    snapshot.keep_copying(&copying);
    for copying in copying {
        let (snapshot, weak) = (snapshot.clone(), Arc::downgrade(&copying));
        copying.ready.on_done(move |_| Copying::lead(weak, snapshot));
    }
}

/// Items whose values come at the same moment, one after the other in the list, with the event of that.
fn by_moment(items: Vec<Item>) -> Vec<(Arc<Event>, Vec<Item>)> {
    let Some(first) = items.first().map(|item| item.held.ready().clone()) else { return Vec::new() };
    // As a rule all are there, and a list as long as this one is not copied.
    if items.iter().all(|item| Arc::ptr_eq(item.held.ready(), &first) || item.held.ready().is_done()) && first.is_done()
    {
        return vec![(first, items)];
    }
    let mut groups: Vec<(Arc<Event>, bool, Vec<Item>)> = Vec::new();
    for item in items {
        let ready = item.held.ready();
        // Values that come together share their event, and stand together; those that are there need none.
        if let Some((_, _, group)) = groups.last_mut().filter(|(last, ..)| Arc::ptr_eq(last, ready)) {
            group.push(item);
            continue;
        }
        let is_done = ready.is_done();
        match groups.last_mut().filter(|(_, last_is_done, _)| is_done && *last_is_done) {
            Some((_, _, group)) => group.push(item),
            None => groups.push((ready.clone(), is_done, vec![item])),
        }
    }
    groups.into_iter().map(|(ready, _, items)| (ready, items)).collect()
}

/// Values that come together and are copied by whoever has the time: helpers, and threads that wait for the snapshot. They
/// stay as they are until the snapshot lets go of this.
pub struct Copying {
    /// Set once the values are there, or an error for good.
    ready: Arc<Event>,
    /// Taken by whoever comes first.
    items: Mutex<Option<(Vec<Item>, Arc<Room>)>>,
    group: OnceLock<Group>,
}

impl Copying {
    fn new(ready: Arc<Event>, items: Vec<Item>, room: Arc<Room>) -> Arc<Self> {
        Arc::new(Self { ready, items: Mutex::new(Some((items, room))), group: OnceLock::new() })
    }

    /// Has helpers copy the values, which are there, while the snapshot wants them: the first one sees how many it is worth
    /// having.
    fn lead(copying: Weak<Self>, snapshot: Arc<Snapshot>) {
        let mut is_first = true;
        helpers::run_stepwise(move || {
            let Some(this) = copying.upgrade() else { return false };
            let group = this.group(&snapshot);
            if std::mem::take(&mut is_first) {
                for _ in 1..group.helpers {
                    let (copying, snapshot) = (copying.clone(), snapshot.clone());
                    let step = move |this: Arc<Self>| this.group(&snapshot).step(&snapshot);
                    helpers::run_stepwise(move || copying.upgrade().is_some_and(&step));
                }
            }
            group.step(&snapshot)
        });
    }

    /// Copies what is there and left to copy, until then or a little later.
    pub fn help(&self, snapshot: &Arc<Snapshot>, until: Option<Instant>) {
        if self.ready.is_done() {
            let group = self.group(snapshot);
            while until.is_none_or(|until| Instant::now() < until) && group.step(snapshot) {}
        }
    }

    /// The values as they are read. Their event is done.
    fn group(&self, snapshot: &Arc<Snapshot>) -> &Group {
        self.group.get_or_init(|| {
            let items = lock(&self.items).take();
            Group::new(items.map_or_else(Vec::new, |(items, room)| sources(snapshot, items, &room)))
        })
    }
}

/// The values that can be read in place. The others are asked for; where one has failed, the snapshot has.
fn sources(snapshot: &Arc<Snapshot>, items: Vec<Item>, room: &Room) -> Vec<Source> {
    let mut sources = Vec::with_capacity(items.len());
    for Item { shard, held, number } in items {
        if let Some(cause) = held.ready().error() {
            snapshot.fail(cause);
            return Vec::new();
        }
        match held.view() {
            Ok(view) => sources.push(Source { shard, view, block: room.of(number) }),
            Err(held) => {
                let (receiver, block): (Arc<dyn Receiver>, _) = (snapshot.clone(), room.of(number));
                let is_lost = held.buffer().poison().map_or(Ok(()), Err);
                if let Err(cause) = is_lost.and_then(|()| block.commit(0, block.len() as u64)) {
                    snapshot.fail(cause);
                    return Vec::new();
                }
                fetch(vec![(shard, held.buffer().clone(), Some(block))], &receiver);
            }
        }
    }
    sources
}

/// A value that is read in place.
struct Source {
    shard: usize,
    view: View,
    block: Block,
}

/// Bytes of a source that have one checksum.
struct Chunk {
    source: usize,
    offset: u64,
    len: u64,
}

/// Values that several threads copy together.
struct Group {
    sources: Vec<Source>,
    /// Source by source.
    chunks: Vec<Chunk>,
    /// Of each chunk.
    checksums: Vec<AtomicU64>,
    /// Of each source, how many chunks are not copied yet, and which are its.
    left: Vec<(AtomicUsize, Range<usize>)>,
    /// What a thread takes on at once: chunks.
    pieces: Vec<Range<usize>>,
    next: AtomicUsize,
    /// How many it is worth having copy.
    helpers: usize,
}

impl Group {
    fn new(sources: Vec<Source>) -> Self {
        let (mut chunks, mut left) = (Vec::new(), Vec::with_capacity(sources.len()));
        for (number, source) in sources.iter().enumerate() {
            let (first, len) = (chunks.len(), source.block.len() as u64);
            let chunk = |offset| Chunk { source: number, offset, len: CHUNK.min(len - offset) };
            // One without bytes has a chunk as well, so that somebody finds it done.
            chunks.extend((0..len.max(1)).step_by(CHUNK as usize).map(chunk));
            left.push((AtomicUsize::new(chunks.len() - first), first..chunks.len()));
        }
        let total: u64 = sources.iter().map(|source| source.block.len() as u64).sum();
        let enough = (total / (2 * helpers::count() as u64)).min(PIECE);
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut bytes = enough;
        for (number, chunk) in chunks.iter().enumerate() {
            if bytes >= enough {
                pieces.push(number..number);
                bytes = 0;
            }
            if let Some(piece) = pieces.last_mut() {
                piece.end = number + 1;
            }
            bytes += chunk.len;
        }
        let checksums = chunks.iter().map(|_| AtomicU64::new(0)).collect();
        let helpers = helpers::count().min((total / PIECE) as usize);
        Self { sources, chunks, checksums, left, pieces, next: AtomicUsize::new(0), helpers }
    }

    /// Copies a piece; whether there is another, and somebody who wants it.
    fn step(&self, snapshot: &Arc<Snapshot>) -> bool {
        let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return false };
        if !snapshot.is_copying() {
            return false;
        }
        let checks = snapshot.computes_checksums();
        let mut whole = Vec::new();
        let mut bytes = 0;
        for number in piece.clone() {
            let chunk = &self.chunks[number];
            if let Err(cause) = self.sources[chunk.source].block.commit(chunk.offset, chunk.len) {
                snapshot.fail(cause);
                return false;
            }
            self.checksums[number].store(self.copy(chunk, checks), Ordering::Relaxed);
            bytes += chunk.len;
            if self.left[chunk.source].0.fetch_sub(1, Ordering::AcqRel) == 1 {
                whole.push((self.sources[chunk.source].shard, self.value(chunk.source, checks)));
            }
        }
        snapshot.came(bytes);
        snapshot.settle(whole);
        self.next.load(Ordering::Relaxed) < self.pieces.len()
    }

    fn value(&self, source: usize, checks: bool) -> Value {
        let of = |chunk: &AtomicU64| chunk.load(Ordering::Relaxed);
        let sums = || self.checksums[self.left[source].1.clone()].iter().map(of).collect::<SmallVec<_>>();
        Value { block: self.sources[source].block.clone(), checksums: checks.then(|| Checksums(sums())) }
    }

    /// Copies a chunk, and gives its checksum where one is wanted.
    fn copy(&self, chunk: &Chunk, checks: bool) -> u64 {
        let source = &self.sources[chunk.source];
        let (offset, len) = (chunk.offset as usize, chunk.len as usize);
        // SAFETY: source and target have the bytes of the chunk (a view has as many as its buffer's shape says, for which
        // the target was made). Nobody writes to what is held; the target is fresh from the arena, its
        // bytes are committed, and no other thread has this chunk.
        unsafe {
            let (from, to) = (source.view.as_ptr().cast_const().add(offset), source.block.as_ptr().add(offset));
            if !checks {
                stream::copy(from, to, len);
                return 0;
            }
            if len <= STRIP {
                stream::copy(from, to, len);
                return XxHash3_64::oneshot(std::slice::from_raw_parts(from, len));
            }
            let mut hasher = XxHash3_64::new();
            for at in (0..len).step_by(STRIP) {
                let strip = STRIP.min(len - at);
                stream::copy(from.add(at), to.add(at), strip);
                hasher.write(std::slice::from_raw_parts(from.add(at), strip));
            }
            hasher.finish()
        }
    }
}

impl Receiver for Snapshot {
    fn came(&self, bytes: u64) {
        self.add_done(bytes);
    }

    fn arrived(self: Arc<Self>, shard: usize, value: Result<Block, Status>) {
        self.take_in(shard, value);
    }
}
