//! A running worker in the hands of the thread that listens to it: its process, its connection, its session.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::process::{Memory, Process};
use super::pulse::Pulse;
use super::session::Session;
use super::view::Heap;
use crate::abi::{Code, Status, harmless};
use crate::config::Config;
use crate::slice::Exit;
use crate::wire::connection::{ClientEnd, ConnectionError, Listener, Wait};
use crate::wire::message::{Command, Report, Start};

/// How long a worker that closed its connection gets to end by itself, so that its exit status tells why.
const EXIT_GRACE: Duration = Duration::from_millis(100);

thread_local! {
    static LISTENER: Cell<bool> = const { Cell::new(false) };
}

/// Whether workers are listened to on this thread, which must not wait for one therefore.
pub fn is_listener() -> bool {
    LISTENER.get()
}

/// A worker's process with its connection and its session.
pub struct Worker {
    process: Process,
    listener: Listener,
    end: Arc<ClientEnd>,
    session: Arc<Session>,
    reports: Vec<Report>,
}

impl Worker {
    /// Starts a worker's process and tells it what to do first.
    ///
    /// Must be called on a thread that outlives the worker, see [`Process::start`].
    pub fn start(
        config: &Config,
        label: &str,
        of: (u32, u64),
        memory: Memory<'_>,
        start: Start,
    ) -> Result<Self, Status> {
        // Only what has a slice to serve has device memory.
        let heap = memory.arena.and_then(|_| Heap::create().ok());
        let memory = Memory { heap: heap.as_ref().map(|(fd, _)| fd.as_fd()), ..memory };
        let (process, end, listener) = Process::start(config, label, memory)?;
        let session = Session::new(of, process.pid(), end.clone(), heap.map(|(_, heap)| heap));
        session.send(&Command::Start(start));
        Ok(Self { process, listener, end, session, reports: Vec::new() })
    }

    /// Makes a worker without a slice that of a slice's incarnation: its session begins anew.
    pub fn adopt(mut self, slice: u32, incarnation: u64) -> Self {
        self.session = Session::new((slice, incarnation), self.process.pid(), self.end.clone(), self.session.heap());
        self.process.relabel(format!("slice {slice}"));
        self
    }

    /// The worker's count of signs of life.
    pub fn pulse(&self) -> u64 {
        self.listener.pulse()
    }

    /// Whether what the worker has to do waits for other slices or the client, as it said with its last sign of life.
    pub fn waits_for_others(&self) -> bool {
        self.listener.waits_for_others()
    }

    /// The worker's session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits, no longer than `timeout`, for reports, and hands them over one by one. May return early without any.
    ///
    /// # Errors
    /// The connection is of no more use, and everything that came before was handed over.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        mut take: impl FnMut(&Arc<Session>, Report),
    ) -> Result<(), ConnectionError> {
        LISTENER.set(true);
        let woken = {
            let mut extra: SmallVec<[BorrowedFd<'_>; 2]> = SmallVec::new();
            extra.extend(self.process.output_fd());
            let wait = Wait { extra: &extra, timeout, in_flight: self.session.is_owed() };
            self.listener.wait(wait, &mut self.reports)
        };
        self.reports.drain(..).for_each(|report| take(&self.session, report));
        if woken?.ready.contains(&true) {
            self.process.read_output();
        }
        Ok(())
    }

    /// How the process ended, if it has; waits for that up to `bound`. It is reaped then.
    pub fn exit(&mut self, bound: Duration) -> Option<Exit> {
        self.process.wait(bound)
    }

    /// Ends the process and reaps it. `None` where the kernel did not let it go within a generous bound.
    pub fn kill(&mut self) -> Option<Exit> {
        self.process.kill()
    }

    /// The last lines that the worker wrote.
    pub fn last_words(&mut self) -> String {
        self.process.last_words()
    }
}

/// A worker that has no slice: the compiler. Listened to until it ends.
pub struct Compiler(Worker);

impl Compiler {
    /// Starts it and waits, within the configured bound, until it says that it is ready.
    ///
    /// # Errors
    /// What it says is wrong, or how it failed to say anything. Nothing is left running then.
    pub fn start(config: &Config) -> Result<Self, Status> {
        let start = Start { plugin: config.plugin.clone(), options: Vec::new(), create_client: false, heap_slack: 0 };
        let mut compiler = Self(Worker::start(config, "compiler", (0, 0), Memory::default(), start)?);
        let until = Instant::now() + config.start_timeout;
        let mut answer = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let waited = compiler.0.wait(Some(left), |_, report| {
                if let Report::Started(result) = report {
                    answer.get_or_insert(result);
                }
            });
            let failure = match (answer.take(), waited) {
                (Some(answer), _) => return answer.map(|_| compiler),
                (None, Err(error)) => compiler.ending(&error),
                (None, Ok(())) if left.is_zero() => {
                    format!("was not ready after {:?} (start_timeout)", config.start_timeout)
                }
                (None, Ok(())) => continue,
            };
            let pid = compiler.0.session.pid;
            return Err(Status::new(Code::FailedPrecondition, format!("the compiler process (pid {pid}) {failure}")));
        }
    }

    /// The compiler's session.
    pub fn session(&self) -> &Arc<Session> {
        self.0.session()
    }

    /// Takes in reports until the process is gone, or given up; returns what happened to it, in words.
    ///
    /// It is given up where it gives no sign of life for `silence`, and at the time that `leave_by` names, once it does.
    pub fn listen(&mut self, silence: Option<Duration>, leave_by: &OnceLock<Instant>) -> String {
        let mut pulse = silence.map(|bound| Pulse::new(bound, self.0.pulse(), Instant::now()));
        loop {
            let left = leave_by.get().map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.into_iter().chain(pulse.as_ref().map(Pulse::interval)).min();
            if let Err(error) = self.0.wait(timeout, |session, report| session.take_in(report)) {
                return self.ending(&error);
            }
            let now = Instant::now();
            if leave_by.get().is_some_and(|at| *at <= now) {
                return self.given_up("did not leave when told to");
            }
            if let (Some(pulse), Some(bound)) = (&mut pulse, silence) {
                pulse.look(self.0.pulse(), now);
                if pulse.silence() > bound {
                    return self.given_up(&format!("gave no sign of life for {bound:?} (heartbeat_timeout)"));
                }
            }
        }
    }

    /// In words that follow "the compiler process": how it ended. It has ended afterwards.
    fn ending(&mut self, error: &ConnectionError) -> String {
        let by_itself = matches!(error, ConnectionError::Closed).then(|| self.0.exit(EXIT_GRACE)).flatten();
        match by_itself {
            Some(Exit::Signal(signal)) => self.given_up(&format!("was killed by signal {signal}")),
            Some(Exit::Code(code)) => self.given_up(&format!("left with exit code {code}")),
            None => self.given_up(&format!("was given up: {error}")),
        }
    }

    /// Ends the process, and adds what it said last.
    fn given_up(&mut self, what: &str) -> String {
        self.0.kill();
        let words = self.0.last_words();
        if words.is_empty() { what.to_owned() } else { format!("{what}; its last words: {}", harmless(&words)) }
    }

    /// The process is gone: nothing of it touches anything any more.
    pub fn reap(mut self) {
        if self.0.kill().is_some() {
            self.0.session.reaped();
        }
    }
}
