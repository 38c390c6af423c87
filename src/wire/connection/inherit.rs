//! How a worker gets its end: descriptors it inherits, and an argument that names them.
//!
//! The argument is `<pid of the client>:<rings>,<socket>,<client>,<worker>,<room>[,<arena>[,<exchange>]]`, all numbers. The
//! descriptors are closed on exec in the client, except in the one child that [`WorkerFds::inherit`] prepared.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags};

use super::{Link, WorkerEnd, open_rings};

/// The option of `mainstay worker` that takes the description.
pub const FDS_ARGUMENT: &str = "--fds";

const REQUIRED: usize = 5;

/// The worker's share of a connection, held by the client from [`super::connect`] until the worker is started.
/// Drop it then: as long as this process holds the worker's socket, the worker's death does not show on ours.
#[derive(Debug)]
pub struct WorkerFds {
    /// In the order of the description.
    pub(super) fds: Vec<OwnedFd>,
}

impl WorkerFds {
    pub(super) fn new(rings: OwnedFd, socket: OwnedFd, link: &Link, arena: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let mut fds = vec![rings, socket];
        for fd in [link.client.as_fd(), link.worker.as_fd(), link.room.as_fd()].into_iter().chain(arena) {
            fds.push(rustix::io::fcntl_dupfd_cloexec(fd, 3)?);
        }
        Ok(Self { fds })
    }

    /// Passes on the memory of the exchange between slices, too.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out; `EINVAL` where there is no arena, after which it is described.
    pub fn with_exchange(mut self, exchange: BorrowedFd<'_>) -> io::Result<Self> {
        if self.fds.len() != REQUIRED + 1 {
            return Err(rustix::io::Errno::INVAL.into());
        }
        self.fds.push(rustix::io::fcntl_dupfd_cloexec(exchange, 3)?);
        Ok(self)
    }

    /// Adds [`FDS_ARGUMENT`] and the description to `command`, and lets its process inherit the descriptors.
    /// `self` must live until the process is spawned.
    pub fn inherit(&self, command: &mut Command) {
        command.arg(FDS_ARGUMENT).arg(self.describe());
        let numbers: Vec<RawFd> = self.fds.iter().map(AsRawFd::as_raw_fd).collect();
        let clear = move || {
            for number in &numbers {
                // SAFETY: open in the child, as the caller keeps `WorkerFds` until the process is spawned.
                let fd = unsafe { BorrowedFd::borrow_raw(*number) };
                rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes bare system calls only: no allocation, no lock.
        unsafe { command.pre_exec(clear) };
    }

    fn describe(&self) -> String {
        let numbers: Vec<_> = self.fds.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        format!("{}:{}", std::process::id(), numbers.join(","))
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
    /// Says what is wrong with the description or with what it names.
    ///
    /// # Safety
    /// Call once, at the start of the process, with the argument that [`WorkerFds::inherit`] put on its command
    /// line: the descriptors named there become the property of the result.
    pub unsafe fn from_inherited(description: &str) -> Result<(Self, Option<OwnedFd>, Option<OwnedFd>), String> {
        let (client, numbers) = parse(description)
            .ok_or_else(|| format!("{FDS_ARGUMENT} {description}: not of the form pid:fd,fd,fd,fd,fd[,fd[,fd]]"))?;
        for number in &numbers {
            // SAFETY: borrowed for one system call, which reports a number that isn't open as an error.
            let fd = unsafe { BorrowedFd::borrow_raw(*number) };
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)
                .map_err(|error| format!("inherited descriptor {number}: {error}"))?;
        }
        // SAFETY: all open, as just seen, all distinct, and ours by the caller's promise.
        let mut fds = numbers.iter().map(|number| unsafe { OwnedFd::from_raw_fd(*number) });
        let mut next = || fds.next().ok_or_else(|| format!("{FDS_ARGUMENT} {description}: too few descriptors"));
        let (rings, socket, client_wake, worker, room) = (next()?, next()?, next()?, next()?, next()?);
        let (commands, reports) = open_rings(rings.as_fd())?;
        let link = Link { socket, client: client_wake, worker, room, commands, reports };
        Ok((Self::new(link, watch_parent(client)), fds.next(), fds.next()))
    }
}

fn parse(description: &str) -> Option<(Pid, Vec<RawFd>)> {
    let (pid, numbers) = description.split_once(':')?;
    let numbers: Vec<RawFd> = numbers.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    let distinct: HashSet<_> = numbers.iter().collect();
    let fine = numbers.iter().all(|number| *number > 2)
        && distinct.len() == numbers.len()
        && (REQUIRED..=REQUIRED + 2).contains(&numbers.len());
    Some((Pid::from_raw(pid.parse().ok()?)?, numbers)).filter(|_| fine)
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
        assert!(parse("7:3,4,5,6,7").is_some());
        assert!(parse("7:3,4,5,6,7,8").is_some());
        assert!(parse("7:3,4,5,6,7,8,9").is_some());
        for bad in
            ["", "7", "x:3,4,5,6,7", "7:3,4,5,6", "7:3,4,5,6,6", "7:2,3,4,5,6", "7:3,4,5,6,7,8,9,10", "0:3,4,5,6,7"]
        {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
