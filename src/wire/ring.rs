//! A ring of bytes in shared memory that carries messages from one process to another, one producer, one consumer.
//!
//! Layout of a ring, from its start (a multiple of the page size) in the mapping:
//!
//! | bytes | what | written by |
//! |---|---|---|
//! | 0 … 7 | `tail`: bytes ever written | producer |
//! | 64 … 71 | `head`: bytes ever read | consumer |
//! | 128 … 131 | `asleep`: the consumer is about to block, or has | both |
//! | 192 … 195 | `waiting`: the producer was refused and wants to know of room | both |
//! | 4096 … 4096 + capacity | frames, wrapping around; capacity is a power of two | producer |
//!
//! A frame starts at a multiple of 8 with a header of 8 bytes (little-endian) and is padded to a multiple of 8:
//!
//! | bytes | what |
//! |---|---|
//! | 0 … 3 | length of what follows the header |
//! | 4 … 5 | 1: first fragment of a message; 2: last fragment |
//! | 6 … 7 | [`MARK`] |
//!
//! A message up to a quarter of the capacity is one frame; a longer one is cut. A frame exists once `tail` has passed
//! it (release, acquire), so a producer that dies in the middle of writing has written nothing. Either side may find
//! anything in the shared words: each keeps its own position in private memory, checks what it reads and calls what
//! can't be [`RingError::Corrupt`]. No value there leads to a panic or to an access outside.
//!
//! Sleeping and waking follow Dekker: the sleeper sets its flag, then looks once more; the other side moves its
//! position, then looks at the flag; a sequentially consistent fence lies between the two on each side. So a busy
//! ring costs no system call. How to wake the other is the business of [`super::connection`].

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::shm::Mapping;

/// The longest message.
pub const MAX_MESSAGE: usize = 2 << 30;
/// The smallest capacity of a ring.
pub const MIN_CAPACITY: usize = 4096;
/// The largest capacity of a ring.
pub const MAX_CAPACITY: usize = 1 << 30;

const TAIL: usize = 0;
const HEAD: usize = 64;
const ASLEEP: usize = 128;
const WAITING: usize = 192;
const DATA: usize = 4096;

const HEADER: usize = 8;
const FIRST: u16 = 1;
const LAST: u16 = 2;
/// In every header, so that scribbled memory seldom passes for a frame.
const MARK: u16 = 0x4d52;

/// What ends a ring's use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The shared memory holds what the other side can't have meant.
    #[error("the shared ring is damaged: {0}")]
    Corrupt(String),
    /// Longer than [`MAX_MESSAGE`].
    #[error("a message of {0} bytes is over the limit of {MAX_MESSAGE}")]
    TooLong(usize),
}

/// How much of a message [`Producer::try_send`] has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All of it.
    Whole,
    /// The bytes before this one; there was no room for more.
    UpTo(usize),
}

/// Whether a sleeping consumer is to be woken for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At once.
    Now,
    /// It may sleep on until there is something else to wake it for, or until [`PATIENCE`] messages wait for it: for
    /// what nobody waits for, where waking costs more than the message.
    Later,
}

/// So many messages of [`Wake::Later`] may wait for a consumer that sleeps.
pub const PATIENCE: u32 = 32;

/// Where a ring lies. Both sides make it from the same numbers.
#[derive(Clone, Debug)]
pub struct RingPlace {
    mapping: Arc<Mapping>,
    start: usize,
    capacity: usize,
}

impl RingPlace {
    /// Bytes of shared memory that a ring of this capacity takes.
    pub const fn size(capacity: usize) -> usize {
        DATA + capacity
    }

    /// A ring at `start` (a multiple of 4096) of a zeroed or already used mapping; `None` where the capacity isn't
    /// a power of two within bounds, or the ring isn't inside.
    pub fn new(mapping: Arc<Mapping>, start: usize, capacity: usize) -> Option<Self> {
        let fine = capacity.is_power_of_two()
            && (MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity)
            && start.is_multiple_of(DATA)
            && mapping.at(start as u64, Self::size(capacity) as u64).is_some();
        fine.then_some(Self { mapping, start, capacity })
    }

    /// The mapping that the ring lies in.
    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn tail(&self) -> &AtomicU64 {
        self.mapping.word(self.start + TAIL)
    }

    fn head(&self) -> &AtomicU64 {
        self.mapping.word(self.start + HEAD)
    }

    fn asleep(&self) -> &AtomicU32 {
        self.mapping.flag(self.start + ASLEEP)
    }

    fn waiting(&self) -> &AtomicU32 {
        self.mapping.flag(self.start + WAITING)
    }

    /// Whether the producer has said that it waits for room.
    #[cfg(test)]
    pub(super) fn producer_waits(&self) -> bool {
        self.waiting().load(Relaxed) != 0
    }

    fn header(&self, position: u64) -> &AtomicU64 {
        self.mapping.word(self.start + DATA + self.index(position))
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    fn write(&self, position: u64, bytes: &[u8]) {
        let index = self.index(position);
        let (before, after) = bytes.split_at(bytes.len().min(self.capacity - index));
        self.mapping.write(self.start + DATA + index, before);
        self.mapping.write(self.start + DATA, after);
    }

    fn read_onto(&self, position: u64, len: usize, out: &mut Vec<u8>) {
        let index = self.index(position);
        let before = len.min(self.capacity - index);
        self.mapping.read_onto(self.start + DATA + index, before, out);
        self.mapping.read_onto(self.start + DATA, len - before, out);
    }

    /// Bytes between the positions, if that is possible at all.
    fn used(&self, head: u64, tail: u64) -> Result<usize, RingError> {
        let used = tail.wrapping_sub(head);
        if used > self.capacity as u64 || !used.is_multiple_of(8) {
            return Err(RingError::Corrupt(format!("read up to {head}, written up to {tail}, of {}", self.capacity)));
        }
        Ok(used as usize)
    }
}

/// Bytes of a frame with this much in it.
fn frame_size(len: usize) -> usize {
    HEADER + len.next_multiple_of(8)
}

/// The writing end. One per ring.
#[derive(Debug)]
pub struct Producer {
    place: RingPlace,
    tail: u64,
    /// The last `head` seen: room known without a look at the other side's cache line.
    head: u64,
    /// Messages that a sleeping consumer was not woken for.
    unannounced: u32,
}

impl Producer {
    /// The writing end of a fresh ring.
    pub fn new(place: RingPlace) -> Self {
        Self { place, tail: 0, head: 0, unannounced: 0 }
    }

    /// Sends as much of `message`, from byte `from` on, as there is room for, and never blocks.
    ///
    /// A message that was begun must be finished (with `from` as the last [`Sent::UpTo`] said) before the next.
    ///
    /// # Errors
    /// Too long a message (nothing is sent), or a damaged ring.
    pub fn try_send(&mut self, message: &[u8], from: usize) -> Result<Sent, RingError> {
        if message.len() > MAX_MESSAGE {
            return Err(RingError::TooLong(message.len()));
        }
        let longest = self.place.capacity / 4 - HEADER;
        let mut from = from;
        loop {
            let fragment = &message[from..message.len().min(from + longest)];
            if !self.has_room(frame_size(fragment.len()))? {
                return Ok(Sent::UpTo(from));
            }
            let end = from + fragment.len();
            let last = end == message.len();
            self.push(fragment, if from == 0 { FIRST } else { 0 } | if last { LAST } else { 0 });
            if last {
                return Ok(Sent::Whole);
            }
            from = end;
        }
    }

    fn has_room(&mut self, bytes: usize) -> Result<bool, RingError> {
        if self.place.capacity - self.place.used(self.head, self.tail)? >= bytes {
            return Ok(true);
        }
        self.head = self.place.head().load(Acquire);
        Ok(self.place.capacity - self.place.used(self.head, self.tail)? >= bytes)
    }

    fn push(&mut self, fragment: &[u8], flags: u16) {
        let header = fragment.len() as u64 | u64::from(flags) << 32 | u64::from(MARK) << 48;
        self.place.header(self.tail).store(header.to_le(), Relaxed);
        self.place.write(self.tail + HEADER as u64, fragment);
        self.tail += frame_size(fragment.len()) as u64;
        self.place.tail().store(self.tail, Release);
    }

    /// Whether the consumer sleeps and must be woken now; asks at most once per sleep. Call after sending.
    pub fn must_wake_consumer(&mut self, wake: Wake) -> bool {
        if wake == Wake::Later && self.unannounced < PATIENCE {
            self.unannounced += 1;
            return false;
        }
        self.unannounced = 0;
        fence(SeqCst);
        self.place.asleep().load(Relaxed) != 0 && self.place.asleep().swap(0, SeqCst) != 0
    }

    /// Says that this side was refused and wants to be woken once half of the ring is free. Try once more
    /// afterwards: room made before the call wakes nobody.
    pub fn await_room(&self) {
        self.place.waiting().store(1, Relaxed);
        fence(SeqCst);
    }
}

/// The reading end. One per ring.
#[derive(Debug)]
pub struct Consumer {
    place: RingPlace,
    head: u64,
    /// The message being put together, or the one handed out last.
    message: Vec<u8>,
    /// Whether `message` has its first fragment and lacks its last.
    partial: bool,
}

/// A message buffer above this size is not kept for the next message.
const KEPT: usize = 1 << 20;

impl Consumer {
    /// The reading end of a fresh ring.
    pub fn new(place: RingPlace) -> Self {
        Self { place, head: 0, message: Vec::new(), partial: false }
    }

    /// The next message, if all of it is there. Never blocks; takes in what there is of a longer one.
    ///
    /// # Errors
    /// A damaged ring: nothing more can be read from it.
    pub fn try_recv(&mut self) -> Result<Option<&[u8]>, RingError> {
        if !self.partial {
            self.message.clear();
            if self.message.capacity() > KEPT {
                self.message = Vec::new();
            }
        }
        while self.take_fragment()? {
            if !self.partial {
                return Ok(Some(&self.message));
            }
        }
        Ok(None)
    }

    /// Adds the next frame to `message`; false where there is none.
    fn take_fragment(&mut self) -> Result<bool, RingError> {
        let available = self.place.used(self.head, self.place.tail().load(Acquire))?;
        if available == 0 {
            return Ok(false);
        }
        let header = u64::from_le(self.place.header(self.head).load(Relaxed));
        let (len, flags, mark) = ((header & 0xffff_ffff) as usize, (header >> 32) as u16, (header >> 48) as u16);
        let begins = flags & FIRST != 0;
        if mark != MARK
            || flags & !(FIRST | LAST) != 0
            || frame_size(len) > available
            || begins == self.partial
            || self.message.len() + len > MAX_MESSAGE
        {
            return Err(RingError::Corrupt(format!("header {header:#018x} at {} of {available} bytes", self.head)));
        }
        self.place.read_onto(self.head + HEADER as u64, len, &mut self.message);
        self.partial = flags & LAST == 0;
        self.head += frame_size(len) as u64;
        self.place.head().store(self.head, Release);
        Ok(true)
    }

    /// Whether something is there to be read, or the ring is damaged (which reading will tell).
    pub fn has_data(&self) -> bool {
        self.place.tail().load(Acquire) != self.head
    }

    /// Whether the producer waits for room, has it now, and must be woken; asks once per wait. Call after reading.
    pub fn must_wake_producer(&self) -> bool {
        fence(SeqCst);
        if self.place.waiting().load(Relaxed) == 0 {
            return false;
        }
        let used = self.place.tail().load(Relaxed).wrapping_sub(self.head);
        used <= self.place.capacity as u64 / 2 && self.place.waiting().swap(0, SeqCst) != 0
    }

    /// Says that this side is about to sleep. Look at [`Consumer::has_data`] once more afterwards.
    pub fn prepare_sleep(&self) {
        self.place.asleep().store(1, Relaxed);
        fence(SeqCst);
    }

    /// Takes [`Consumer::prepare_sleep`] back.
    pub fn end_sleep(&self) {
        self.place.asleep().store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::shm;

    fn place(capacity: usize) -> RingPlace {
        let fd = shm::create("mainstay-test", RingPlace::size(capacity) as u64).unwrap();
        RingPlace::new(Arc::new(Mapping::new(fd.as_fd()).unwrap()), 0, capacity).unwrap()
    }

    fn message(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (number * 31 + i * 7) as u8).collect()
    }

    proptest! {
        /// Whatever the sizes and the order of sending and receiving, the messages come out as they went in.
        #[test]
        fn behaves_like_a_queue(steps in prop::collection::vec((any::<bool>(), 0usize..12_000), 1..200)) {
            let place = place(4096);
            let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
            let (mut model, mut unsent) = (VecDeque::new(), VecDeque::<(Vec<u8>, usize)>::new());
            let receive = |consumer: &mut Consumer, model: &mut VecDeque<Vec<u8>>| {
                if let Some(got) = consumer.try_recv().unwrap() {
                    assert_eq!(Some(got.to_vec()), model.pop_front());
                }
            };
            for (number, (send, len)) in steps.into_iter().enumerate() {
                if send {
                    let bytes = message(number, len);
                    model.push_back(bytes.clone());
                    unsent.push_back((bytes, 0));
                } else {
                    receive(&mut consumer, &mut model);
                }
                push(&mut producer, &mut unsent);
            }
            while !model.is_empty() {
                receive(&mut consumer, &mut model);
                push(&mut producer, &mut unsent);
            }
            prop_assert!(consumer.try_recv().unwrap().is_none());
        }

        /// Whatever the shared memory holds, reading ends without a panic.
        #[test]
        fn scribbling_is_an_error_or_data(
            scribble in prop::collection::vec((0usize..(4096 + 4096) / 8, any::<u64>()), 1..40),
            tail in prop::option::of(0u64..6000),
        ) {
            let place = place(4096);
            let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place.clone()));
            for number in 0..20 {
                let _ = producer.try_send(&message(number, number * 10), 0);
            }
            for (word, value) in scribble {
                place.mapping.word(word * 8).store(value, Relaxed);
            }
            if let Some(tail) = tail {
                place.tail().store(tail, Relaxed);
            }
            for _ in 0..1000 {
                if !matches!(consumer.try_recv(), Ok(Some(_))) {
                    break;
                }
            }
            let _ = producer.try_send(b"still no panic", 0);
        }
    }

    fn push(producer: &mut Producer, unsent: &mut VecDeque<(Vec<u8>, usize)>) {
        while let Some((bytes, from)) = unsent.front_mut() {
            match producer.try_send(bytes, *from).unwrap() {
                Sent::Whole => _ = unsent.pop_front(),
                Sent::UpTo(sent) => return *from = sent,
            }
        }
    }

    #[test]
    fn two_threads_exchange_messages_in_order() {
        let place = place(4096);
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        let sizes = |number: usize| if number.is_multiple_of(100) { 50_000 } else { number * 13 % 700 };
        const COUNT: usize = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..COUNT {
                    let bytes = message(number, sizes(number));
                    let mut from = 0;
                    while let Sent::UpTo(sent) = producer.try_send(&bytes, from).unwrap() {
                        from = sent;
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..COUNT {
                loop {
                    if let Some(got) = consumer.try_recv().unwrap() {
                        assert_eq!(got, message(number, sizes(number)), "message {number}");
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let place = place(4096);
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        producer.try_send(b"one", 0).unwrap();
        assert!(!producer.must_wake_consumer(Wake::Now));
        consumer.prepare_sleep();
        assert!(consumer.has_data());
        producer.try_send(b"two", 0).unwrap();
        assert!(producer.must_wake_consumer(Wake::Now));
        assert!(!producer.must_wake_consumer(Wake::Now));
        consumer.end_sleep();
        assert_eq!(consumer.try_recv().unwrap(), Some(&b"one"[..]));
    }

    #[test]
    fn a_refused_producer_is_woken_when_half_is_free() {
        let place = place(4096);
        let (mut producer, mut consumer) = (Producer::new(place.clone()), Consumer::new(place));
        while producer.try_send(&[7; 504], 0).unwrap() == Sent::Whole {}
        producer.await_room();
        assert!(!consumer.must_wake_producer());
        for _ in 0..4 {
            assert!(!consumer.must_wake_producer());
            assert!(consumer.try_recv().unwrap().is_some());
        }
        assert!(consumer.must_wake_producer());
        assert!(!consumer.must_wake_producer());
    }

    #[test]
    fn too_long_a_message_is_refused() {
        let huge = vec![0u8; MAX_MESSAGE + 1];
        assert_eq!(Producer::new(place(4096)).try_send(&huge, 0), Err(RingError::TooLong(MAX_MESSAGE + 1)));
    }
}
