//! The connection of a client and one worker: a command ring, a report ring, wake-ups, and a socket whose closing
//! tells of the other's death.
//!
//! [`connect`] makes all of it in the client: a [`ClientEnd`] that any thread may send on, a [`Listener`] for the one
//! thread that receives, and [`WorkerFds`] to start the worker with. The worker makes its [`WorkerEnd`] from what it
//! inherited. One memfd carries both rings:
//!
//! | bytes | what |
//! |---|---|
//! | 0 … 7 | [`MAGIC`] |
//! | 8 … 15 | [`protocol`]: both sides must be of the same version |
//! | 16 … 23 | capacity of the command ring, C |
//! | 24 … 31 | capacity of the report ring, R |
//! | 32 … 39 | the worker's pulse: counts up for as long as the worker's threads can run |
//! | 40 … 47 | whether, at its last beat, the worker had nothing to do but to wait for others: 0 or 1 |
//! | 4096 … | command ring, 4096 + C bytes, then report ring, 4096 + R bytes |
//!
//! Who wakes whom, by eventfd: `client` is written by the worker (a report, or room for commands), `worker` by the
//! client (a command), `room` by the client (room for reports). Each is written only when the other asked for it.
//!
//! What must not wait behind a command travels through the socket, message by message ([`Urgent`](super::message::Urgent)).

mod client;
mod codec;
mod inherit;
mod spin;
mod worker;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ring::{RingError, RingPlace};
use super::shm::{self, Mapping};

pub use super::ring::Wake;
pub use client::{ClientEnd, Listener, Wait, Woken};
pub use inherit::{FDS_ARGUMENT, WorkerFds};
pub use worker::WorkerEnd;

/// At the start of the memfd: `MAINSTAY`.
const MAGIC: u64 = u64::from_le_bytes(*b"MAINSTAY");
const COMMANDS_AT: usize = 4096;
const PULSE_AT: usize = 32;
const WAITS_AT: usize = 40;
/// The most that an urgent message takes: there is always room for it in an empty socket.
const MOST_URGENT_BYTES: usize = 32 << 10;

/// What client and worker must agree on: the version of this crate, hashed.
fn protocol() -> u64 {
    twox_hash::XxHash3_64::oneshot(env!("CARGO_PKG_VERSION").as_bytes())
}

/// Why a connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The other process closed its end or died, and all that it had said was read.
    #[error("the connection is closed: the other process is gone")]
    Closed,
    /// The other process wrote what makes no sense; treat it as dead.
    #[error("the connection carries what can't be read: {0}")]
    Corrupt(String),
    /// The message can't be sent; the connection is as good as before.
    #[error("the message can't be sent: {0}")]
    Unsendable(String),
    /// A system call failed that can't fail while all is well.
    #[error("the connection failed: {0}")]
    System(#[from] rustix::io::Errno),
}

impl ConnectionError {
    /// Whether the other process must be given up.
    pub fn is_slice_loss(&self) -> bool {
        !matches!(self, Self::Unsendable(_))
    }
}

impl From<RingError> for ConnectionError {
    fn from(error: RingError) -> Self {
        match error {
            RingError::Corrupt(_) => Self::Corrupt(error.to_string()),
            RingError::TooLong(_) => Self::Unsendable(error.to_string()),
        }
    }
}

/// Sizes and times of a connection.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the command ring; a power of two.
    pub command_capacity: usize,
    /// Bytes of the report ring; a power of two.
    pub report_capacity: usize,
    /// How long the listener looks for a report, before it sleeps, while something is in flight.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { command_capacity: 1 << 20, report_capacity: 1 << 20, spin: spin::DEFAULT }
    }
}

/// What both ends have: the descriptors and the rings' places. The `socket` is each end's own.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    client: OwnedFd,
    worker: OwnedFd,
    room: OwnedFd,
    commands: RingPlace,
    reports: RingPlace,
}

impl Link {
    /// The worker's sign of life.
    fn pulse(&self) -> &std::sync::atomic::AtomicU64 {
        self.commands.mapping().word(PULSE_AT)
    }

    /// Whether the worker waits for others.
    fn waits(&self) -> &std::sync::atomic::AtomicU64 {
        self.commands.mapping().word(WAITS_AT)
    }
}

/// Makes a connection; see the module. `arena` is passed on to the worker with it.
///
/// # Errors
/// The kernel's, when descriptors or memory run out. Capacities out of bounds are refused as `EINVAL`.
pub fn connect(
    options: &Options,
    arena: Option<BorrowedFd<'_>>,
) -> std::io::Result<(Arc<ClientEnd>, Listener, WorkerFds)> {
    let rings = inherit::above_stdio(create_rings(options)?)?;
    let (commands, reports) = open_rings(rings.as_fd()).map_err(std::io::Error::other)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let eventfd = || inherit::above_stdio(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let link =
        Arc::new(Link { socket: ours, client: eventfd()?, worker: eventfd()?, room: eventfd()?, commands, reports });
    let fds = WorkerFds::new(rings, inherit::above_stdio(theirs)?, link.clone(), arena)?;
    let client = Arc::new(ClientEnd::new(link.clone()));
    let listener = Listener::new(link, client.clone(), options.spin);
    Ok((client, listener, fds))
}

/// Creates the memfd of both rings and writes its first page.
fn create_rings(options: &Options) -> std::io::Result<OwnedFd> {
    let (command, report) = (options.command_capacity, options.report_capacity);
    let len = COMMANDS_AT
        .checked_add(RingPlace::size(command))
        .and_then(|len| len.checked_add(RingPlace::size(report)))
        .ok_or(rustix::io::Errno::INVAL)? as u64;
    let fd = shm::create("mainstay-rings", len)?;
    shm::commit(&fd, 0, len.next_multiple_of(shm::PAGE))?;
    let mapping = Mapping::new(fd.as_fd())?;
    for (at, value) in [(0, MAGIC), (8, protocol()), (16, command as u64), (24, report as u64)] {
        mapping.word(at).store(value.to_le(), Relaxed);
    }
    Ok(fd)
}

/// Maps the memfd and finds the rings (commands, reports); the error says what is wrong with it.
fn open_rings(fd: BorrowedFd<'_>) -> Result<(RingPlace, RingPlace), String> {
    let mapping = Arc::new(Mapping::new(fd).map_err(|error| format!("the rings can't be mapped: {error}"))?);
    if mapping.len() < COMMANDS_AT {
        return Err(format!("the rings' memory has {} bytes", mapping.len()));
    }
    let word = |at| u64::from_le(mapping.word(at).load(Relaxed));
    if word(0) != MAGIC {
        return Err("the rings' memory does not begin with MAINSTAY".to_owned());
    }
    if word(8) != protocol() {
        let version = env!("CARGO_PKG_VERSION");
        return Err(format!(
            "this executable is mainstay {version}, the library that started it is of another version"
        ));
    }
    let capacity = |at| usize::try_from(word(at)).ok().filter(|capacity| *capacity <= super::ring::MAX_CAPACITY);
    let rings = capacity(16).zip(capacity(24)).and_then(|(command, report)| {
        let reports_at = COMMANDS_AT + RingPlace::size(command);
        let commands = RingPlace::new(mapping.clone(), COMMANDS_AT, command)?;
        Some((commands, RingPlace::new(mapping.clone(), reports_at, report)?))
    });
    rings.ok_or_else(|| format!("ring capacities of {} and {} bytes are out of bounds", word(16), word(24)))
}

/// Wakes whoever polls the eventfd.
fn notify(eventfd: &OwnedFd) {
    // The only refusal is a full counter: then the other side has its wake-up already.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// Resets an eventfd that was ready.
fn acknowledge(eventfd: &OwnedFd) {
    // Nothing to read means that someone else took the wake-up; the caller looks at the rings anyway.
    let _ = rustix::io::read(eventfd, &mut [0u8; 8]);
}

/// Polls until something is ready or the time is over; interrupted calls count as nothing ready.
fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<(), ConnectionError> {
    let timeout = timeout.map(|time| rustix::event::Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Readable.
fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

/// Closed by the other side. Bytes on the socket are for the thread that waits for them, and must not wake others.
fn hung_up(socket: &OwnedFd) -> PollFd<'_> {
    PollFd::new(socket, PollFlags::RDHUP)
}

/// Whether a polled descriptor has anything to say.
fn is_ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

#[cfg(test)]
mod tests;
