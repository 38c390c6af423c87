//! The worker's end: commands received by one thread, reports sent from any.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::RecvFlags;
use smallvec::SmallVec;

use super::spin::{self, Spin};
use super::{ConnectionError, Link, MOST_URGENT_BYTES, acknowledge, codec, hung_up, is_ready, notify, poll, readable};
use crate::sync::lock;
use crate::wire::message::{Command, Report, Urgent};
use crate::wire::ring::{Consumer, Producer, Sent, Wake};

/// The worker's end of its connection to the client. Made by [`WorkerEnd::from_inherited`].
///
/// Locks: `commands` and `reports` are never held together.
#[derive(Debug)]
pub struct WorkerEnd {
    pub(super) link: Link,
    /// Becomes readable when the client exits.
    pub(super) parent: Option<OwnedFd>,
    /// What device memory is to be taken from, until [`Self::take_heap`].
    pub(super) heap: Option<OwnedFd>,
    commands: Mutex<Incoming>,
    pub(super) reports: Mutex<Producer>,
    /// The client is gone: nothing can be sent any more.
    closed: AtomicBool,
}

#[derive(Debug)]
struct Incoming {
    consumer: Consumer,
    spin: Spin,
}

impl WorkerEnd {
    pub(super) fn new(link: Link, parent: Option<OwnedFd>) -> Self {
        let incoming = Incoming { consumer: Consumer::new(link.commands.clone()), spin: Spin::new(spin::DEFAULT) };
        let reports = Mutex::new(Producer::new(link.reports.clone()));
        Self { link, parent, heap: None, commands: Mutex::new(incoming), reports, closed: AtomicBool::new(false) }
    }

    /// The memory that device memory is to be taken from, where it came along and was not taken yet.
    pub fn take_heap(&mut self) -> Option<OwnedFd> {
        self.heap.take()
    }

    /// The next command, waiting for it until `timeout` (`None`: without limit) or the client's death.
    ///
    /// `None` when the time is over, after [`Self::wake`], or on a signal. For one thread: others would wait for it.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the client is gone and all it said was handed out.
    pub fn recv(&self, timeout: Option<Duration>) -> Result<Option<Command>, ConnectionError> {
        let incoming = &mut *lock(&self.commands);
        if let Some(command) = self.take(&mut incoming.consumer)? {
            return Ok(Some(command));
        }
        if incoming.spin.until(|| incoming.consumer.has_data())
            && let Some(command) = self.take(&mut incoming.consumer)?
        {
            return Ok(Some(command));
        }
        incoming.consumer.prepare_sleep();
        let closed = if incoming.consumer.has_data() { Ok(false) } else { self.wait(&self.link.worker, timeout) };
        incoming.consumer.end_sleep();
        let closed = closed?;
        match self.take(&mut incoming.consumer)? {
            None if closed => Err(ConnectionError::Closed),
            command => Ok(command),
        }
    }

    /// The next command if it is there.
    ///
    /// # Errors
    /// Only [`ConnectionError::Corrupt`].
    pub fn try_recv(&self) -> Result<Option<Command>, ConnectionError> {
        self.take(&mut lock(&self.commands).consumer)
    }

    /// Makes [`Self::recv`] return soon, with or without a command: something else is to be done by its thread.
    pub fn wake(&self) {
        notify(&self.link.worker);
    }

    /// Sends a report, after all that were sent before. Any thread may; while the ring is full it blocks, for as
    /// long as the client lives.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the client is gone; [`ConnectionError::Unsendable`] for this message only.
    pub fn send(&self, report: &Report) -> Result<(), ConnectionError> {
        self.send_and(report, Wake::Now)
    }

    /// As [`Self::send`], and wakes a sleeping client or not.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_and(&self, report: &Report, wake: Wake) -> Result<(), ConnectionError> {
        codec::encoded(report, |bytes| {
            let mut producer = lock(&self.reports);
            if self.closed.load(Relaxed) {
                return Err(ConnectionError::Closed);
            }
            let result = self.send_bytes(&mut producer, bytes, wake);
            if result.as_ref().is_err_and(ConnectionError::is_slice_loss) {
                // A message may be sent in part: nothing may follow it.
                self.closed.store(true, Relaxed);
            }
            result
        })
    }

    /// Waits for the next urgent message; `None` once the client is dead or has closed the connection. For a thread that
    /// does nothing else.
    pub fn recv_urgent(&self) -> Option<Urgent> {
        let mut bytes = vec![0; MOST_URGENT_BYTES];
        let mut fds: SmallVec<[PollFd<'_>; 2]> = SmallVec::new();
        fds.push(PollFd::new(&self.link.socket, PollFlags::IN | PollFlags::RDHUP));
        fds.extend(self.parent.as_ref().map(readable));
        while poll(&mut fds, None).is_ok() {
            // What was said before the end is heard before the end.
            if fds[0].revents().contains(PollFlags::IN) {
                match rustix::net::recv(&self.link.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Ok((len, _)) => return codec::decode(bytes.get(..len).filter(|bytes| !bytes.is_empty())?).ok(),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(_) => return None,
                }
            } else if fds.iter().any(is_ready) {
                return None;
            }
        }
        None
    }

    /// Gives a sign of life, and says whether all there is to do waits for others; see [`super::Listener::pulse`].
    pub fn beat(&self, waits_for_others: bool) {
        self.link.waits().store(waits_for_others.into(), Relaxed);
        self.link.pulse().fetch_add(1, Relaxed);
    }

    fn send_bytes(&self, producer: &mut Producer, bytes: &[u8], wake: Wake) -> Result<(), ConnectionError> {
        let mut sent = 0;
        let mut asked = false;
        loop {
            let progress = producer.try_send(bytes, sent)?;
            // The end of a message that had no room must not lie there unseen.
            let wake = if sent == 0 && progress == Sent::Whole { wake } else { Wake::Now };
            if producer.must_wake_consumer(wake) {
                notify(&self.link.client);
            }
            match progress {
                Sent::Whole => return Ok(()),
                Sent::UpTo(now) => sent = now,
            }
            if asked && self.wait(&self.link.room, None)? {
                return Err(ConnectionError::Closed);
            }
            producer.await_room();
            asked = true;
        }
    }

    fn take(&self, consumer: &mut Consumer) -> Result<Option<Command>, ConnectionError> {
        let command = consumer.try_recv()?.map(codec::decode).transpose()?;
        if consumer.must_wake_producer() {
            notify(&self.link.client);
        }
        Ok(command)
    }

    /// Waits for the eventfd or the client's death; whether it was the latter.
    fn wait(&self, eventfd: &OwnedFd, timeout: Option<Duration>) -> Result<bool, ConnectionError> {
        let mut fds: SmallVec<[PollFd<'_>; 3]> = SmallVec::new();
        fds.push(readable(eventfd));
        fds.push(hung_up(&self.link.socket));
        fds.extend(self.parent.as_ref().map(readable));
        poll(&mut fds, timeout)?;
        if is_ready(&fds[0]) {
            acknowledge(eventfd);
        }
        Ok(fds[1..].iter().any(is_ready))
    }
}
