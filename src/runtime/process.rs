//! A worker's process as its parent sees it: starting it, hearing its output, knowing how it ended, ending it.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};

use crate::abi::Status;
use crate::config::Config;
use crate::slice::Exit;
use crate::wire::connection::{self, ClientEnd, Listener};

/// How long a killed process may take until it is gone. A process that hangs in the kernel can take longer than any bound.
const REAP_BOUND: Duration = Duration::from_secs(10);

/// Shared memory that a worker gets with its connection.
#[derive(Clone, Copy, Default)]
pub struct Memory<'a> {
    /// The arena.
    pub arena: Option<BorrowedFd<'a>>,
    /// Where workers exchange data with each other. Needs the arena to be there too.
    pub exchange: Option<BorrowedFd<'a>>,
    /// What the worker's device memory is taken from, where that is host memory.
    pub heap: Option<BorrowedFd<'a>>,
}

/// A child process with its connection, its output and a descriptor that tells its end.
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    output: Output,
}

impl Process {
    /// Starts `mainstay worker` with its end of a fresh connection and the shared memory.
    ///
    /// Must be called on a thread that outlives the worker: the kernel's parent-death signal follows the thread.
    pub fn start(config: &Config, label: &str, memory: Memory<'_>) -> Result<(Self, Arc<ClientEnd>, Listener), Status> {
        let no_connection =
            |error: std::io::Error| Status::exhausted(format!("no connection to a worker can be made: {error}"));
        let (end, listener, passed) =
            connection::connect(&connection::Options::default(), memory.arena).map_err(no_connection)?;
        let passed = match memory.exchange {
            Some(exchange) => passed.with_exchange(exchange).map_err(no_connection)?,
            None => passed,
        };
        let passed = match memory.heap {
            Some(heap) => passed.with_heap(heap).map_err(no_connection)?,
            None => passed,
        };
        let mut command = Command::new(&config.worker);
        command.arg("worker").args(["--label", label]);
        command.env("MAINSTAY_LOG", &config.log);
        if let Some(threads) = plugin_threads(config) {
            command.env(PLUGIN_THREADS, threads.to_string());
        }
        passed.inherit(&mut command).map_err(no_connection)?;
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| cannot_execute(&config.worker, &error))?;
        drop(command);
        let pidfd = Pid::from_raw(child.id().cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
        let (Ok(pidfd), Some(stderr)) = (pidfd, child.stderr.take()) else {
            // Both fail only where the process is gone already; reaping it is all that is left to do.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Status::exhausted("no descriptor for a worker's process can be had"));
        };
        let output = Output::new(stderr, label.to_owned(), config.worker_output_lines, config.worker_output_echo);
        Ok((Self { child, pidfd, output }, end, listener))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What its output is marked with from now on.
    pub fn relabel(&mut self, label: String) {
        self.output.label = label;
    }

    /// Readable when the process has written something; `None` once it no longer can.
    pub fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        self.output.fd()
    }

    /// Takes in what the process has written.
    pub fn read_output(&mut self) {
        self.output.read_available();
    }

    /// Waits up to `bound` for the process to end by itself.
    pub fn wait(&mut self, bound: Duration) -> Option<Exit> {
        let until = Instant::now() + bound;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status.signal().map_or_else(|| Exit::Code(status.code().unwrap_or(-1)), Exit::Signal));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            wait_readable(self.pidfd.as_fd(), left);
        }
    }

    /// Ends the process for good and reaps it. Afterwards it touches nothing any more. `None`: it did not go within the bound.
    pub fn kill(&mut self) -> Option<Exit> {
        // Fails only where the process is gone already.
        let _ = self.child.kill();
        self.wait(REAP_BOUND)
    }

    /// The last lines that the process wrote, oldest first.
    pub fn last_words(&mut self) -> String {
        self.output.read_available();
        self.output.tail()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where XLA's CPU plugin reads how many threads its clients have.
const PLUGIN_THREADS: &str = "PJRT_NPROC";

/// As many threads as one client of all slices' devices would have: results are the same bits as that client's, since the
/// number of threads shows in them. Absent where the user says, or where the number of devices is not known.
///
/// Never fewer than programs over several slices need, whatever the user says: see "Order" in `docs/architecture.md`.
fn plugin_threads(config: &Config) -> Option<usize> {
    let own = config.devices_per_slice?;
    // One device alone never waits for a thread that another one of its slice holds.
    let least = if config.slices > 1 && own > 1 { own.checked_add(2)? as usize } else { 1 };
    let given = std::env::var(PLUGIN_THREADS).ok().and_then(|given| given.parse::<usize>().ok());
    match given {
        Some(given) => (given < least).then_some(least),
        None => {
            let devices = config.slices.checked_mul(own)? as usize;
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            Some(devices.max(processors))
        }
    }
}

fn cannot_execute(worker: &Path, error: &std::io::Error) -> Status {
    Status::failed_precondition(format!(
        "the worker executable {} cannot be run: {error}; set MAINSTAY_WORKER to the `mainstay` executable that belongs to this \
         library",
        worker.display()
    ))
}

/// Waits until `fd` is readable, at most `bound`.
fn wait_readable(fd: BorrowedFd<'_>, bound: Duration) {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let bound = rustix::event::Timespec { tv_sec: bound.as_secs().cast_signed(), tv_nsec: bound.subsec_nanos().into() };
    // An interrupted wait is an early return, which callers allow for.
    let _ = rustix::event::poll(&mut fds, Some(&bound));
}

/// The end of a pipe that a process writes its messages to. Keeps the last lines.
pub struct Output {
    pipe: ChildStderr,
    label: String,
    lines: VecDeque<String>,
    partial: Vec<u8>,
    keep: usize,
    echo: bool,
    open: bool,
}

/// Longest line kept; the rest of a longer one is cut.
const LONGEST_LINE: usize = 500;

impl Output {
    fn new(pipe: ChildStderr, label: String, keep: usize, echo: bool) -> Self {
        // The reads below must not block; a pipe that cannot be set so is heard only when poll says it is readable.
        let _ = rustix::io::ioctl_fionbio(&pipe, true);
        Self { pipe, label, lines: VecDeque::new(), partial: Vec::new(), keep, echo, open: true }
    }

    /// The descriptor to poll; `None` once the other end is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.pipe.as_fd())
    }

    /// Takes in what is there, without blocking and no more than a bounded amount a call.
    pub fn read_available(&mut self) {
        let mut chunk = [0; 4096];
        for _ in 0..64 {
            match self.pipe.read(&mut chunk) {
                Ok(0) => {
                    self.open = false;
                    return;
                }
                Ok(read) => self.take(&chunk[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line();
            } else if self.partial.len() < LONGEST_LINE {
                self.partial.push(byte);
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        if self.echo {
            // Nobody may be reading: that is no reason to fail.
            let _ = writeln!(std::io::stderr(), "[{}] {line}", self.label);
        }
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        if self.keep > 0 {
            self.lines.push_back(line);
        }
    }

    fn tail(&mut self) -> String {
        if !self.partial.is_empty() {
            self.end_line();
        }
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
