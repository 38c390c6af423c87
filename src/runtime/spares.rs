//! Spares: workers that are started and warm, and belong to no slice until one loses its own.
//!
//! One thread of the client starts them and keeps them: the kernel ends a worker with the thread that started it, so
//! that thread lives until the slices are done with the workers they took. It also loads the programs in use.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::Shared;
use super::listen::Worker;
use super::program::Program;
use crate::abi::Status;
use crate::slice::Incarnation;
use crate::sync::lock;
use crate::wire::message::{ClientDescription, Command, ExecutableId, Report};

/// How often spares are looked at, while one is on its way up and otherwise.
const GLANCE_STARTING: Duration = Duration::from_millis(20);
const GLANCE: Duration = Duration::from_millis(200);
/// A spare whose pulse did not change for so long is not given to a slice.
const SILENCE: Duration = Duration::from_secs(2);
/// At the end, spares get so long to leave by themselves.
const LEAVE: Duration = Duration::from_secs(1);

/// The spares of a client.
#[derive(Default)]
pub struct Spares {
    /// Lock order: before a session's locks, and no others.
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    spares: Vec<Spare>,
    is_stopping: bool,
    /// Spares in a row that ended before a slice took them.
    failures: u32,
    /// No new spare before this time.
    not_before: Option<Instant>,
}

/// A worker that no slice has.
pub struct Spare {
    worker: Worker,
    /// What it said of its inner client, once it is up.
    description: Option<Box<ClientDescription>>,
    loaded: HashSet<ExecutableId>,
    since: Instant,
    pulse: (u64, Instant),
}

/// A spare as it is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareState {
    /// Its process.
    pub pid: u32,
    /// Whether it is up.
    pub is_ready: bool,
}

impl Spares {
    /// Starts the thread that keeps as many spares as are configured; none for none.
    pub fn start(shared: &Arc<Shared>) -> Result<(), Status> {
        if shared.config.spares == 0 {
            return Ok(());
        }
        let keeper = shared.clone();
        let thread = std::thread::Builder::new().name("mainstay-spares".into()).spawn(move || keep(&keeper));
        let thread =
            thread.map_err(|error| Status::exhausted(format!("no thread for spare workers can be had: {error}")))?;
        *lock(&shared.spares.thread) = Some(thread);
        Ok(())
    }

    /// The best spare there is: one that is up, else the one that will be up first. It is the caller's from now on.
    pub fn take(&self) -> Option<Spare> {
        let mut state = self.lock();
        state.look_after();
        let now = Instant::now();
        let fit = |spare: &Spare| now.saturating_duration_since(spare.pulse.1) < SILENCE;
        let ready = state.spares.iter().position(|spare| spare.description.is_some() && fit(spare));
        let index = ready.or_else(|| state.spares.iter().position(|spare| spare.description.is_none()))?;
        self.changed.notify_all();
        Some(state.spares.remove(index))
    }

    /// How the spares are.
    pub fn states(&self) -> Vec<SpareState> {
        let state = self.lock();
        let state_of =
            |spare: &Spare| SpareState { pid: spare.worker.session().pid, is_ready: spare.description.is_some() };
        state.spares.iter().map(state_of).collect()
    }

    /// Ends the spares and the thread. Only once no slice has a worker that was a spare.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported by it already.
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Spare {
    fn start(shared: &Shared) -> Result<Self, Status> {
        let worker = shared.start_worker("spare", (0, 0))?;
        let now = Instant::now();
        Ok(Self { worker, description: None, loaded: HashSet::new(), since: now, pulse: (0, now) })
    }

    /// Takes in what the worker says. `false`: it is of no more use.
    fn look(&mut self) -> bool {
        let (mut answer, now) = (None, Instant::now());
        let waited = self.worker.wait(Some(Duration::ZERO), |_, report| {
            if let Report::Started(result) = report {
                answer = Some(result);
            }
        });
        let pulse = self.worker.pulse();
        if pulse != self.pulse.0 {
            self.pulse = (pulse, now);
        }
        match answer {
            Some(Ok(description)) => self.description = description,
            Some(Err(status)) => {
                tracing::warn!(%status, "a spare worker can't start");
                return false;
            }
            None => {}
        }
        waited.is_ok()
    }

    /// Gives the worker the programs in use that it lacks, and takes those away that are not any more.
    fn keep_warm(&mut self, programs: &[Arc<Program>]) {
        for program in programs {
            if !self.loaded.contains(&program.id) && program.warm(self.worker.session()) {
                self.loaded.insert(program.id);
            }
        }
        let session = self.worker.session();
        self.loaded.retain(|id| {
            let in_use = programs.iter().any(|program| program.id == *id);
            if !in_use {
                session.send(&Command::Unload { executable: *id });
            }
            in_use
        });
    }

    /// Makes it the worker of a slice's incarnation; says whether it is up already, and which programs it has.
    pub fn adopt(self, slice: u32, incarnation: Incarnation) -> (Worker, bool, HashSet<ExecutableId>) {
        let is_up = self.description.is_some();
        let worker = self.worker.adopt(slice, incarnation);
        if let Some(description) = self.description {
            worker.session().describe(*description);
        }
        (worker, is_up, self.loaded)
    }
}

impl State {
    /// Looks at each spare, and lets go of those that ended.
    fn look_after(&mut self) {
        let before = self.spares.len();
        self.spares.retain_mut(Spare::look);
        self.failures = self.failures.saturating_add((before - self.spares.len()) as u32);
    }
}

/// Keeps the spares until told to stop.
fn keep(shared: &Shared) {
    let policy = shared.config.policy();
    loop {
        // Collected, and let go of, outside the lock: the last holder of a program has work to do.
        let programs = shared.programs();
        let is_missing = {
            let mut state = shared.spares.lock();
            if state.is_stopping {
                break;
            }
            let failures = state.failures;
            state.look_after();
            state.spares.retain(|spare| spare.description.is_some() || spare.since.elapsed() < policy.start_timeout);
            if state.failures > failures {
                state.not_before = Some(Instant::now() + policy.backoff(state.failures));
            }
            for spare in state.spares.iter_mut().filter(|spare| spare.description.is_some()) {
                spare.keep_warm(&programs);
            }
            let may_start = state.not_before.is_none_or(|at| Instant::now() >= at);
            may_start && state.failures <= policy.replace_limit && state.spares.len() < shared.config.spares as usize
        };
        drop(programs);
        if is_missing {
            match Spare::start(shared) {
                Ok(spare) => shared.spares.lock().spares.push(spare),
                Err(status) => {
                    tracing::warn!(%status, "a spare worker can't be started");
                    shared.spares.lock().failures += 1;
                }
            }
        }
        let state = shared.spares.lock();
        if state.is_stopping {
            break;
        }
        let is_starting = state.spares.iter().any(|spare| spare.description.is_none());
        let glance = if is_missing || is_starting { GLANCE_STARTING } else { GLANCE };
        drop(shared.spares.changed.wait_timeout(state, glance));
    }
    let spares = std::mem::take(&mut shared.spares.lock().spares);
    spares.iter().for_each(|spare| spare.worker.session().send(&Command::Shutdown));
    let until = Instant::now() + LEAVE;
    for mut spare in spares {
        // Killed with the drop of its process, where it does not leave.
        spare.worker.exit(until.saturating_duration_since(Instant::now()));
    }
}
