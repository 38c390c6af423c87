//! How a worker gets its end: its standard input is the socket, and in the socket wait the other descriptors.
//!
//! Nothing but the standard streams is inherited, so that nothing has to be done between fork and exec, and the client's
//! fork handlers don't run: those of OpenBLAS, which comes with NumPy, end threads, and hang when two workers start at
//! once.
//!
//! The argument is `<pid of the client>:<socket>`. The message in the socket is one byte, the count of its descriptors:
//! rings, client, worker, room[, arena[, exchange]][, heap]. Where the heap is among them, [`HEAP_CAME`] is added to the count.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, PidfdFlags};

use super::{Link, WorkerEnd, open_rings};

/// The option of `mainstay worker` that takes the description.
pub const FDS_ARGUMENT: &str = "--fds";

/// Descriptors that every worker gets, and the most that one gets.
const REQUIRED: usize = 4;
const MOST: usize = REQUIRED + 3;

/// Added to the count of descriptors where the last one is the heap's.
const HEAP_CAME: u8 = 0x80;

/// The worker's share of a connection, held by the client from [`super::connect`] until the worker is started.
#[derive(Debug)]
pub struct WorkerFds {
    socket: OwnedFd,
    /// In the order of the message.
    others: Vec<OwnedFd>,
    heap: Option<OwnedFd>,
    link: Arc<Link>,
}

impl WorkerFds {
    pub(super) fn new(
        rings: OwnedFd,
        socket: OwnedFd,
        link: Arc<Link>,
        arena: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let mut others = vec![rings];
        for fd in [link.client.as_fd(), link.worker.as_fd(), link.room.as_fd()].into_iter().chain(arena) {
            others.push(rustix::io::fcntl_dupfd_cloexec(fd, 3)?);
        }
        Ok(Self { socket, others, heap: None, link })
    }

    /// Passes on the memory of the exchange between slices, too.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out; `EINVAL` where there is no arena, after which it comes.
    pub fn with_exchange(mut self, exchange: BorrowedFd<'_>) -> io::Result<Self> {
        if self.others.len() != REQUIRED + 1 {
            return Err(rustix::io::Errno::INVAL.into());
        }
        self.others.push(rustix::io::fcntl_dupfd_cloexec(exchange, 3)?);
        Ok(self)
    }

    /// Passes on the memory for the worker's device memory, too.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn with_heap(mut self, heap: BorrowedFd<'_>) -> io::Result<Self> {
        self.heap = Some(rustix::io::fcntl_dupfd_cloexec(heap, 3)?);
        Ok(self)
    }

    /// Gives `command` the socket as its standard input, and [`FDS_ARGUMENT`] with the description.
    ///
    /// Drop `command` once it is spawned: as long as this process holds the worker's socket, the worker's death does
    /// not show on ours.
    ///
    /// # Errors
    /// The kernel's, when too many descriptors are on their way between processes.
    pub fn inherit(self, command: &mut Command) -> io::Result<()> {
        self.put_into_socket()?;
        command.arg(FDS_ARGUMENT).arg(format!("{}:0", std::process::id()));
        command.stdin(Stdio::from(self.socket));
        Ok(())
    }

    /// The same for a worker's end in this process.
    #[cfg(test)]
    pub(super) fn into_description(self) -> io::Result<String> {
        self.put_into_socket()?;
        Ok(format!("{}:{}", std::process::id(), std::os::fd::IntoRawFd::into_raw_fd(self.socket)))
    }

    fn put_into_socket(&self) -> io::Result<()> {
        let fds: Vec<_> = self.others.iter().chain(&self.heap).map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        if !message.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let count = [fds.len() as u8 + if self.heap.is_some() { HEAP_CAME } else { 0 }];
        rustix::net::sendmsg(&self.link.socket, &[IoSlice::new(&count)], &mut message, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The descriptor under a number above those of standard input, output and error, which a child replaces.
pub(super) fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(rustix::io::fcntl_dupfd_cloexec(&fd, 3)?) }
}

impl WorkerEnd {
    /// The worker's end, and the descriptors of the arena and of the exchange between slices where they came along.
    ///
    /// # Errors
    /// Says what is wrong with the description or with what came through the socket.
    ///
    /// # Safety
    /// Call once, at the start of the process, with the argument that [`WorkerFds::inherit`] put on its command
    /// line: the socket named there becomes the property of the result.
    pub unsafe fn from_inherited(description: &str) -> Result<(Self, Option<OwnedFd>, Option<OwnedFd>), String> {
        let (client, number) =
            parse(description).ok_or_else(|| format!("{FDS_ARGUMENT} {description}: not of the form pid:fd"))?;
        // SAFETY: ours by the caller's promise.
        let socket =
            unsafe { take_socket(number) }.map_err(|error| format!("inherited descriptor {number}: {error}"))?;
        let (fds, heap) =
            take_from_socket(&socket).map_err(|error| format!("nothing came with the socket: {error}"))?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| "too few descriptors came with the socket".to_owned());
        let (rings, client_wake, worker, room) = (next()?, next()?, next()?, next()?);
        let (commands, reports) = open_rings(rings.as_fd())?;
        let link = Link { socket, client: client_wake, worker, room, commands, reports };
        let mut end = Self::new(link, watch_parent(client));
        end.heap = heap;
        Ok((end, fds.next(), fds.next()))
    }
}

fn parse(description: &str) -> Option<(Pid, RawFd)> {
    let (pid, number) = description.split_once(':')?;
    Some((Pid::from_raw(pid.parse().ok()?)?, number.parse().ok().filter(|number: &RawFd| *number >= 0)?))
}

/// Moves the socket above the standard streams; nothing else is standard input from then on.
///
/// # Safety
/// Nothing else of this process may own the descriptor `number`, if it is open.
unsafe fn take_socket(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for one system call, which reports a number that isn't open as an error.
    let socket = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 3)?;
    let null = std::fs::File::open("/dev/null")?;
    // SAFETY: open, as just seen, and nobody else's by the caller's promise.
    let mut inherited = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup2(&null, &mut inherited)?;
    if number > 2 {
        drop(ManuallyDrop::into_inner(inherited));
    }
    Ok(socket)
}

/// The descriptors that wait in the socket, and the heap's. Ends with the client's death at the latest.
fn take_from_socket(socket: &OwnedFd) -> io::Result<(Vec<OwnedFd>, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let (mut message, mut count) = (RecvAncillaryBuffer::new(&mut space), [0u8]);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut count)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for part in message.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    let (count, with_heap) = (usize::from(count[0] & !HEAP_CAME), count[0] & HEAP_CAME != 0);
    if fds.len() != count {
        return Err(io::Error::other(format!("{} descriptors came instead of {count}", fds.len())));
    }
    let heap = if with_heap { fds.pop() } else { None };
    Ok((fds, heap))
}

/// A descriptor that becomes readable when the client exits.
///
/// The socket alone isn't enough: a child that the client forked without exec (Python's `multiprocessing` does)
/// holds a copy of the client's end and keeps it open after the client's death. Where the client isn't our parent
/// or the kernel has no such descriptors, the socket has to do.
fn watch_parent(client: Pid) -> Option<OwnedFd> {
    let fd = rustix::process::pidfd_open(client, PidfdFlags::empty()).ok()?;
    // Asked after opening: were the client gone by then, its number might be another process's by now.
    (rustix::process::getppid() == Some(client)).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_checked() {
        assert!(parse("7:0").is_some());
        for bad in ["", "7", "7:", "x:3", "7:x", "7:-1", "0:3", "7:3,4"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
