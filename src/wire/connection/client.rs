//! The client's end: commands sent from any thread, reports received by one.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use smallvec::SmallVec;

use super::spin::Spin;
use super::{ConnectionError, Link, MOST_URGENT_BYTES, acknowledge, codec, is_ready, notify, poll, readable};
use crate::sync::lock;
use crate::wire::message::{Command, Report, Urgent};
use crate::wire::ring::{Consumer, Producer, Sent, Wake};

/// At most so many reports are taken at once, so that other descriptors get their turn.
const BATCH: usize = 256;
/// In an unbroken stream of reports, the other descriptors are looked at once in so many batches.
const BATCHES_PER_POLL: u32 = 16;

/// Sends commands; shared by all threads of the client. Dropping it does not close the connection: [`Self::close`]
/// does, or the end of the [`Listener`].
#[derive(Debug)]
pub struct ClientEnd {
    link: Arc<Link>,
    outgoing: Mutex<Outgoing>,
    /// Encoded urgent messages that the socket had no room for, oldest first.
    urgent: Mutex<VecDeque<Vec<u8>>>,
}

#[derive(Debug)]
struct Outgoing {
    producer: Producer,
    /// Encoded commands that the ring had no room for, oldest first.
    overflow: VecDeque<Vec<u8>>,
    /// Bytes of the oldest that are sent already.
    sent: usize,
    /// Set once the connection is of no more use.
    end: Option<ConnectionError>,
}

impl ClientEnd {
    pub(super) fn new(link: Arc<Link>) -> Self {
        let producer = Producer::new(link.commands.clone());
        let outgoing = Outgoing { producer, overflow: VecDeque::new(), sent: 0, end: None };
        Self { link, outgoing: Mutex::new(outgoing), urgent: Mutex::default() }
    }

    /// Sends a command, after all that were sent before. Never blocks: what the ring has no room for is kept in
    /// memory, without a limit, and sent by the [`Listener`] as the worker makes room.
    ///
    /// # Errors
    /// Why the connection is of no more use, or that this message can't be sent.
    pub fn send(&self, command: &Command) -> Result<(), ConnectionError> {
        self.send_and(command, Wake::Now)
    }

    /// As [`Self::send`], and wakes a sleeping worker or not.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_and(&self, command: &Command, wake: Wake) -> Result<(), ConnectionError> {
        let wake = codec::encoded(command, |bytes| {
            let mut outgoing = self.lock();
            outgoing.check()?;
            if let Err(error) = outgoing.send(bytes) {
                outgoing.end(error.clone());
                // The listener is to learn of it: the worker may go on living and say nothing.
                notify(&self.link.client);
                return Err(error);
            }
            Ok(outgoing.producer.must_wake_consumer(wake))
        })?;
        if wake {
            notify(&self.link.worker);
        }
        Ok(())
    }

    /// Sends what must not wait behind commands. Never blocks, and keeps what there is no room for, as [`Self::send`].
    ///
    /// # Errors
    /// That this message can't be sent. A closed connection is no error here.
    pub fn send_urgent(&self, message: &Urgent) -> Result<(), ConnectionError> {
        let bytes = codec::encoded(message, |bytes| Ok(bytes.clone()))?;
        if bytes.len() > MOST_URGENT_BYTES {
            return Err(ConnectionError::Unsendable(format!(
                "{} bytes, over the limit of {MOST_URGENT_BYTES} for urgent messages",
                bytes.len()
            )));
        }
        let mut waiting = self.waiting_urgent();
        waiting.push_back(bytes);
        self.flush_urgent(&mut waiting);
        if !waiting.is_empty() {
            // It is the listener that notices when there is room.
            self.wake_listener();
        }
        Ok(())
    }

    pub(super) fn waiting_urgent(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        lock(&self.urgent)
    }

    fn flush_urgent(&self, waiting: &mut VecDeque<Vec<u8>>) {
        while let Some(bytes) = waiting.front() {
            match rustix::net::send(&self.link.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(waiting.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                // Closed: the listener notices.
                Err(_) => return waiting.clear(),
            }
        }
    }

    /// Bytes that wait in memory for room in the ring.
    pub fn backlog(&self) -> usize {
        let outgoing = self.lock();
        outgoing.overflow.iter().map(Vec::len).sum::<usize>() - outgoing.sent
    }

    /// Ends the connection: the worker sees the client's end close, senders get [`ConnectionError::Closed`], and the
    /// listener ends once it has read what the worker said before.
    pub fn close(&self) {
        self.end(ConnectionError::Closed);
        // Fails only where the worker has closed its end already.
        let _ = rustix::net::shutdown(&self.link.socket, Shutdown::Both);
    }

    /// Makes [`Listener::wait`] return soon, with or without reports.
    pub fn wake_listener(&self) {
        notify(&self.link.client);
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        lock(&self.outgoing)
    }

    /// Sends what waits, as far as there is room.
    fn flush(&self) -> Result<(), ConnectionError> {
        let mut outgoing = self.lock();
        match &outgoing.end {
            // What was said before the end is still to be read.
            Some(ConnectionError::Closed) => return Ok(()),
            Some(error) => return Err(error.clone()),
            None if outgoing.overflow.is_empty() => return Ok(()),
            None => {}
        }
        outgoing.flush()?;
        let wake = outgoing.producer.must_wake_consumer(Wake::Now);
        drop(outgoing);
        if wake {
            notify(&self.link.worker);
        }
        Ok(())
    }

    fn end(&self, error: ConnectionError) {
        self.lock().end(error);
    }
}

impl Outgoing {
    fn check(&self) -> Result<(), ConnectionError> {
        self.end.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first reason and drops what can't be sent any more.
    fn end(&mut self, error: ConnectionError) {
        self.end.get_or_insert(error);
        self.overflow = VecDeque::new();
        self.sent = 0;
    }

    fn send(&mut self, bytes: &mut Vec<u8>) -> Result<(), ConnectionError> {
        if self.overflow.is_empty() {
            match self.producer.try_send(bytes, 0)? {
                Sent::Whole => return Ok(()),
                Sent::UpTo(sent) => self.sent = sent,
            }
        }
        self.overflow.push_back(std::mem::take(bytes));
        if self.overflow.len() == 1 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectionError> {
        let mut asked = false;
        while let Some(bytes) = self.overflow.front() {
            match self.producer.try_send(bytes, self.sent)? {
                Sent::Whole => {
                    self.overflow.pop_front();
                    self.sent = 0;
                }
                Sent::UpTo(sent) => {
                    self.sent = sent;
                    if asked {
                        break;
                    }
                    self.producer.await_room();
                    asked = true;
                }
            }
        }
        Ok(())
    }
}

/// What to wait for besides reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait<'a> {
    /// Other descriptors to watch for something to read, or a hang-up: the worker's pidfd, its stderr.
    pub extra: &'a [BorrowedFd<'a>],
    /// Return after this time at the latest; `None`: no limit.
    pub timeout: Option<Duration>,
    /// Whether a report is due, so that spinning before the sleep may pay off.
    pub in_flight: bool,
}

/// What woke a [`Listener`], besides reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// For each of [`Wait::extra`], whether it is ready.
    pub ready: SmallVec<[bool; 4]>,
}

/// Receives reports, and sends on what [`ClientEnd::send`] had to keep: its one thread must call [`Self::wait`] again
/// soon after each return. Dropping it closes the connection.
#[derive(Debug)]
pub struct Listener {
    link: Arc<Link>,
    client: Arc<ClientEnd>,
    consumer: Consumer,
    spin: Spin,
    /// The worker has closed its end.
    hung_up: bool,
    batches: u32,
}

impl Listener {
    pub(super) fn new(link: Arc<Link>, client: Arc<ClientEnd>, spin: Duration) -> Self {
        let consumer = Consumer::new(link.reports.clone());
        Self { link, client, consumer, spin: Spin::new(spin), hung_up: false, batches: 0 }
    }

    /// How often the worker has given a sign of life. Whatever else it is: only a change says anything.
    pub fn pulse(&self) -> u64 {
        self.link.pulse().load(Relaxed)
    }

    /// Whether the worker said, with its last sign of life, that what it has to do waits for other slices or the client.
    pub fn waits_for_others(&self) -> bool {
        self.link.waits().load(Relaxed) != 0
    }

    /// Waits for reports and appends them to `reports`, oldest first, a limited number at once.
    ///
    /// May return early without any: on a ready descriptor of `wait`, after its timeout, on
    /// [`ClientEnd::wake_listener`], on a signal.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the worker is gone and all it said was handed out; anything else when the
    /// worker must be given up. Senders get the same error from then on.
    pub fn wait(&mut self, wait: Wait<'_>, reports: &mut Vec<Report>) -> Result<Woken, ConnectionError> {
        let result = self.try_wait(wait, reports);
        if let Err(error) = &result {
            self.client.end(error.clone());
        }
        result
    }

    fn try_wait(&mut self, wait: Wait<'_>, reports: &mut Vec<Report>) -> Result<Woken, ConnectionError> {
        let none = Woken { ready: SmallVec::from_elem(false, wait.extra.len()) };
        if self.drain(reports)? {
            self.batches += 1;
            if !self.batches.is_multiple_of(BATCHES_PER_POLL) {
                return Ok(none);
            }
            return self.poll(wait.extra, Some(Duration::ZERO));
        }
        if self.hung_up {
            return Err(ConnectionError::Closed);
        }
        self.client.flush()?;
        if wait.in_flight && self.spin.until(|| self.consumer.has_data()) && self.drain(reports)? {
            return Ok(none);
        }
        self.consumer.prepare_sleep();
        let woken = if self.consumer.has_data() { Ok(none) } else { self.poll(wait.extra, wait.timeout) };
        self.consumer.end_sleep();
        let woken = woken?;
        self.client.flush()?;
        if !self.drain(reports)? && self.hung_up {
            return Err(ConnectionError::Closed);
        }
        Ok(woken)
    }

    fn poll(&mut self, extra: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<Woken, ConnectionError> {
        let mut fds: SmallVec<[PollFd<'_>; 6]> = SmallVec::new();
        fds.push(readable(&self.link.client));
        let urgent_waits = !self.client.waiting_urgent().is_empty();
        let room = if urgent_waits { PollFlags::OUT } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.link.socket, PollFlags::RDHUP | room));
        fds.extend(extra.iter().map(readable));
        poll(&mut fds, timeout)?;
        if is_ready(&fds[0]) {
            acknowledge(&self.link.client);
        }
        self.hung_up |= !fds[1].revents().difference(PollFlags::OUT).is_empty();
        if urgent_waits {
            self.client.flush_urgent(&mut self.client.waiting_urgent());
        }
        Ok(Woken { ready: fds[2..].iter().map(is_ready).collect() })
    }

    /// Takes what reports there are; whether there were any.
    fn drain(&mut self, reports: &mut Vec<Report>) -> Result<bool, ConnectionError> {
        let before = reports.len();
        while reports.len() - before < BATCH {
            let Some(bytes) = self.consumer.try_recv()? else { break };
            reports.push(codec::decode(bytes)?);
        }
        if self.consumer.must_wake_producer() {
            notify(&self.link.room);
        }
        Ok(reports.len() > before)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.client.close();
    }
}
