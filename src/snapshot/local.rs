//! Copying values that this process can read where the devices have them: in pieces, side by side, each piece's checksum
//! computed while it is in the processor's cache.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use super::helpers;
use super::snapshot::{CHUNK, Checksums, Phase, Snapshot, Value};
use crate::abi::Status;
use crate::runtime::event::Event;
use crate::runtime::fetch::Receiver;
use crate::runtime::view::{Held, View};
use crate::wire::arena::Block;
use crate::wire::stream;

/// A thread takes on about so many bytes at once.
const PIECE: u64 = 1 << 20;
/// So much is copied before its checksum is taken: little enough to be in the cache still.
const STRIP: usize = 64 << 10;

/// A value to copy: the shard, where it will be, where to.
pub struct Item {
    pub shard: usize,
    pub held: Held,
    pub block: Arc<Block>,
}

/// Copies values for a snapshot as they get ready. Returns at once.
pub fn begin(snapshot: &Arc<Snapshot>, items: Vec<Item>) {
    // Values that come together share their event, and stand together as a rule; those that are there need none.
    let mut groups: Vec<(Arc<Event>, bool, Vec<Item>)> = Vec::new();
    for item in items {
        let ready = &item.held.ready;
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
    for (ready, _, group) in groups {
        let snapshot = snapshot.clone();
        ready.on_done(move |_| helpers::run(move || copy_all(&snapshot, group)));
    }
}

/// Copies values that are all ready, or failed.
fn copy_all(snapshot: &Arc<Snapshot>, items: Vec<Item>) {
    let mut sources = Vec::with_capacity(items.len());
    for Item { shard, held, block } in items {
        match held.ready.error().map_or_else(|| held.view(), Err) {
            Ok(Some(view)) => sources.push(Source { shard, view, block, _held: held }),
            Ok(None) => {
                let receiver: Arc<dyn Receiver> = snapshot.clone();
                held.fetch(shard, block, &receiver);
            }
            Err(cause) => return snapshot.fail(cause),
        }
    }
    let group = Arc::new(Group::new(snapshot.clone(), sources));
    for _ in 1..group.pieces.len().min(helpers::count()) {
        let group = group.clone();
        helpers::run(move || group.work());
    }
    group.work();
}

/// A value that is read in place.
struct Source {
    shard: usize,
    view: View,
    block: Arc<Block>,
    /// Keeps it as it is.
    _held: Held,
}

/// Bytes of a source that have one checksum.
struct Chunk {
    source: usize,
    offset: u64,
    len: u64,
}

/// Values that several threads copy together.
struct Group {
    snapshot: Arc<Snapshot>,
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
}

impl Group {
    fn new(snapshot: Arc<Snapshot>, sources: Vec<Source>) -> Self {
        let (mut chunks, mut left) = (Vec::new(), Vec::with_capacity(sources.len()));
        for (number, source) in sources.iter().enumerate() {
            let (first, len) = (chunks.len(), source.block.len() as u64);
            let chunk = |offset| Chunk { source: number, offset, len: CHUNK.min(len - offset) };
            // One without bytes has a chunk as well, so that somebody finds it done.
            chunks.extend((0..len.max(1)).step_by(CHUNK as usize).map(chunk));
            left.push((AtomicUsize::new(chunks.len() - first), first..chunks.len()));
        }
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut bytes = PIECE;
        for (number, chunk) in chunks.iter().enumerate() {
            if bytes >= PIECE {
                pieces.push(number..number);
                bytes = 0;
            }
            if let Some(piece) = pieces.last_mut() {
                piece.end = number + 1;
            }
            bytes += chunk.len;
        }
        let checksums = chunks.iter().map(|_| AtomicU64::new(0)).collect();
        Self { snapshot, sources, chunks, checksums, left, pieces, next: AtomicUsize::new(0) }
    }

    /// Copies pieces until there are none left, or nobody wants them any more.
    fn work(&self) {
        let checks = self.snapshot.computes_checksums();
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if self.snapshot.phase() != Phase::Copying {
                return;
            }
            let mut whole = Vec::new();
            for number in piece.clone() {
                let chunk = &self.chunks[number];
                self.checksums[number].store(self.copy(chunk, checks), Ordering::Relaxed);
                self.snapshot.came(chunk.len);
                if self.left[chunk.source].0.fetch_sub(1, Ordering::AcqRel) == 1 {
                    whole.push((self.sources[chunk.source].shard, self.value(chunk.source, checks)));
                }
            }
            self.snapshot.settle(whole);
        }
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
        // SAFETY: source and block have the bytes of the chunk (a view has as many as its buffer's shape says, for which the
        // block was made). Nobody writes to what is held; the block is fresh from the arena and no other thread has
        // this chunk.
        unsafe {
            let (from, to) = (source.view.as_ptr().cast_const().add(offset), source.block.as_ptr().add(offset));
            if !checks {
                copy_strip(from, to, len);
                return 0;
            }
            if len <= STRIP {
                copy_strip(from, to, len);
                return xxhash_rust::xxh3::xxh3_64(std::slice::from_raw_parts(from, len));
            }
            let mut state = Xxh3::new();
            for at in (0..len).step_by(STRIP) {
                let strip = STRIP.min(len - at);
                copy_strip(from.add(at), to.add(at), strip);
                state.update(std::slice::from_raw_parts(from.add(at), strip));
            }
            state.digest()
        }
    }
}

/// Copies a few bytes as ever, and more of them past the caches.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
unsafe fn copy_strip(from: *const u8, to: *mut u8, len: usize) {
    const FEW: usize = 16 << 10;
    // SAFETY: as the caller promises.
    unsafe {
        if len < FEW {
            std::ptr::copy_nonoverlapping(from, to, len);
        } else {
            stream::copy(from, to, len);
        }
    }
}

impl Receiver for Snapshot {
    fn came(&self, bytes: u64) {
        self.add_done(bytes);
    }

    fn arrived(self: Arc<Self>, shard: usize, value: Result<Arc<Block>, Status>) {
        self.take_in(shard, value);
    }
}
