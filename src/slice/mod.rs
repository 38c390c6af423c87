//! The state machine of a slice: health, incarnations, losses, fencing, replacement. No input or output and no clock:
//! events and the time come in as arguments, actions go out.
//!
//! ```text
//!            Spawned, Started            late                    bound passed, closed, killed …
//!  starting ─────────────────▶ healthy ◀──────▶ suspect ──────────────────────────────┐
//!     ▲  └─────────────────────────┴────────────── Stop ──▶ stopping ──▶ suspended    │
//!     │                                                         └──────▶ closed       ▼
//!     └────────────── replacing (back-off) ◀──────────── reaped ─────────────────── lost ──▶ failed (limit)
//! ```
//!
//! Invariants, each held by a test that names it:
//! 1. **Fencing.** A worker is started only when that of the incarnation before is reaped, or never was a process.
//! 2. **Order.** [`Action::Reclaim`] comes once for each incarnation that ended: after it was lost and reaped, before
//!    the next start. Nothing is killed after that.
//! 3. **Counting.** Incarnations go up by one with each start, from 1, and are never used again.
//! 4. **Loss.** Each incarnation that ends is told as lost exactly once; from then on [`Slice::poison`] of it is the
//!    same for good. Before, there is none.
//! 5. **Strangers.** An event of another incarnation than the current one changes nothing.
//! 6. **Bounds.** Waiting for the worker ends by a deadline: at it, [`Event::Tick`] moves the state on. Only the
//!    kernel is waited for without one (to report a killed process), and by then the loss has been told.
//! 7. **Limit.** After more than `replace_limit` incarnations in a row that were lost before they settled, nothing is
//!    started any more; between two starts lies the back-off.
//! 8. **First.** A slice whose first worker never came up has failed at once: what was configured is at fault.
//! 9. **Stop.** After [`Event::Stop`] nothing is started (but by [`Event::Resume`], if it was to suspend), and a
//!    worker that is there is told to stop, or killed.

mod loss;
mod policy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::abi::{Code, Status};

pub use loss::{Exit, Loss, LossCause, Sequel};
pub use policy::Policy;

/// The count of workers that a slice has had; the first is 1.
pub type Incarnation = u64;
/// What is to be done after an event, in this order.
pub type Actions = SmallVec<[Action; 4]>;

/// So many losses, the newest, are kept with their details. Whoever asks how a slice is gets them all, at each step maybe.
const LOSSES_KEPT: usize = 100;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The worker's process exists. The answer to [`Action::Start`], or else `StartFailed`.
    Spawned(u32),
    /// The worker says that it is up.
    Started,
    /// The worker says that it can't, or there is no process to begin with: then only before `Spawned`.
    StartFailed(Status),
    /// The worker is dead and reaped. Comes after everything it said was read.
    Reaped(Exit),
    /// The worker's end of the connection closed.
    ConnectionClosed,
    /// The worker said what makes no sense.
    Corrupt(String),
    /// The machine under the slice is going or gone.
    Preempted,
    /// The worker gave a sign of life.
    Heartbeat,
    /// Work is under way. Starts the time without progress, unless it runs already.
    Busy,
    /// Some work ended.
    Progress {
        /// Whether more is under way.
        outstanding: bool,
    },
    /// What the worker last wrote to stderr, for the loss that may follow.
    Output(Arc<str>),
}

/// What the client wants, or nothing but time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Time passed: [`Slice::deadline`] is reached.
    Tick,
    /// End the worker and start none.
    Stop(Rest),
    /// Start again: a suspended slice, or one that failed.
    Resume,
}

/// What a stopped slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Ready to be resumed.
    Suspended,
    /// Done for good.
    Closed,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Start a worker under this incarnation; answer with [`Event::Spawned`] or [`Event::StartFailed`].
    Start(Incarnation),
    /// The slice works: it is up under this incarnation.
    Up(Incarnation),
    /// Tell the worker to finish and leave.
    Shutdown(Incarnation),
    /// Kill the worker and reap it; answer with [`Event::Reaped`].
    Kill(Incarnation),
    /// Fail everything that is pending on this incarnation.
    Lose(Arc<Loss>),
    /// The worker is gone for good: take back what it had on loan.
    Reclaim(Incarnation),
}

/// Where a slice stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started yet.
    New,
    /// A worker is on its way up. Commands can be sent to it.
    Starting,
    /// It works.
    Healthy,
    /// It may be dead: its connection closed, or it is late.
    Suspect,
    /// It was told to stop.
    Stopping,
    /// It is given up, and not reaped yet.
    Lost,
    /// It is gone; the next one starts when the back-off is over.
    Replacing,
    /// No further worker is started: too many were lost in a row.
    Failed,
    /// Stopped, to be resumed.
    Suspended,
    /// Stopped for good.
    Closed,
}

/// The process of the current incarnation, as far as this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Absent,
    /// `Start` was returned and not answered yet.
    Requested,
    Running(u32),
    Killed(u32),
}

/// A slice. See the module.
#[derive(Debug)]
pub struct Slice {
    index: u32,
    policy: Policy,
    state: State,
    incarnation: Incarnation,
    process: Process,
    /// When the state was entered, or for [`State::Replacing`] when it ends.
    since: Instant,
    /// When the current incarnation came up.
    up_since: Option<Instant>,
    /// When its connection closed.
    closed_at: Option<Instant>,
    last_heartbeat: Instant,
    /// Since when it has had work without finishing any.
    working_since: Option<Instant>,
    output: Arc<str>,
    /// Incarnations in a row that were lost before they settled.
    failures: u32,
    /// What the client wants instead of a working slice.
    rest: Option<Rest>,
    losses: BTreeMap<Incarnation, Arc<Loss>>,
    /// The highest incarnation that is lost.
    last_lost: Incarnation,
}

/// A bound on the worker's silence or idleness.
struct Watch {
    since: Instant,
    bound: Duration,
    /// What it means to pass the bound, by so much time since `since`.
    cause: fn(Duration) -> LossCause,
}

impl Watch {
    fn late(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

impl Slice {
    /// A slice that was never started; the first [`Order::Resume`] starts it.
    pub fn new(index: u32, policy: Policy, now: Instant) -> Self {
        Self {
            index,
            policy,
            state: State::New,
            incarnation: 0,
            process: Process::Absent,
            since: now,
            up_since: None,
            closed_at: None,
            last_heartbeat: now,
            working_since: None,
            output: Arc::from(""),
            failures: 0,
            rest: None,
            losses: BTreeMap::new(),
            last_lost: 0,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The current or last incarnation; 0 before the first.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The worker's process, if there is one.
    pub fn pid(&self) -> Option<u32> {
        match self.process {
            Process::Running(pid) | Process::Killed(pid) => Some(pid),
            Process::Absent | Process::Requested => None,
        }
    }

    /// Incarnations in a row that were lost before they settled.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How many incarnations were lost so far.
    pub fn loss_count(&self) -> u64 {
        // Invariants 3 and 4: they count from 1, and each is lost before the next one starts.
        self.last_lost
    }

    /// The losses that are kept, the newest, oldest first.
    pub fn losses(&self) -> impl DoubleEndedIterator<Item = &Arc<Loss>> {
        self.losses.values()
    }

    /// The status of what belongs to an incarnation, if that is lost.
    pub fn poison(&self, incarnation: Incarnation) -> Option<Status> {
        if incarnation > self.last_lost {
            return None;
        }
        Some(self.losses.get(&incarnation).map_or_else(
            || {
                let slice = self.index;
                let words = format!("slice {slice} lost incarnation {incarnation} long ago; the reason is not kept");
                Status::new(Code::DataLoss, words)
            },
            |loss| loss.status(),
        ))
    }

    /// The incarnation that new work goes to.
    ///
    /// # Errors
    /// While there is none: the poison for that work's results.
    pub fn target(&self) -> Result<Incarnation, Status> {
        match self.state {
            State::Starting | State::Healthy | State::Suspect => Ok(self.incarnation),
            _ => Err(self.poison(self.incarnation).unwrap_or_else(|| {
                let slice = self.index;
                Status::failed_precondition(format!("slice {slice} is not running: it is stopped or was never started"))
            })),
        }
    }

    /// When [`Order::Tick`] is due; `None`: nothing depends on time now.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Starting => Some(self.since + self.policy.start_timeout),
            State::Stopping => Some(self.since + self.policy.stop_timeout),
            State::Replacing => Some(self.since),
            State::Healthy | State::Suspect => self.next_assessment(),
            State::New | State::Lost | State::Failed | State::Suspended | State::Closed => None,
        }
    }

    /// Takes an event of a worker, that of `incarnation`.
    pub fn handle(&mut self, incarnation: Incarnation, event: Event, now: Instant) -> Actions {
        let mut actions = Actions::new();
        if incarnation != self.incarnation || self.process == Process::Absent {
            return actions;
        }
        match event {
            Event::Spawned(pid) => self.spawned(pid, &mut actions),
            Event::Reaped(exit) => self.reaped(exit, now, &mut actions),
            Event::StartFailed(status) if self.process == Process::Requested => {
                self.process = Process::Absent;
                self.lose(LossCause::StartFailed(status), now, &mut actions);
                self.fenced(now, &mut actions);
            }
            Event::Output(tail) => self.output = tail,
            _ if !self.is_alive() => {}
            Event::Started => self.started(now, &mut actions),
            Event::StartFailed(status) => self.lose(LossCause::StartFailed(status), now, &mut actions),
            Event::ConnectionClosed => {
                self.closed_at.get_or_insert(now);
                self.state = State::Suspect;
            }
            Event::Corrupt(what) => self.lose(LossCause::Corrupt(what), now, &mut actions),
            Event::Preempted => self.lose(LossCause::Preempted, now, &mut actions),
            Event::Heartbeat => self.last_heartbeat = now,
            Event::Busy => _ = self.working_since.get_or_insert(now),
            Event::Progress { outstanding } => {
                self.working_since = outstanding.then_some(now);
                self.last_heartbeat = now;
            }
        }
        self.assess(now, &mut actions);
        actions
    }

    /// Takes an order of the client's, or the passing of time.
    pub fn order(&mut self, order: Order, now: Instant) -> Actions {
        let mut actions = Actions::new();
        match order {
            Order::Tick => self.tick(now, &mut actions),
            Order::Stop(rest) => self.stop(rest, now, &mut actions),
            Order::Resume => self.resume(now, &mut actions),
        }
        actions
    }

    /// Whether the current worker is not lost or told to stop.
    fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Healthy | State::Suspect)
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.since = now;
    }

    fn start(&mut self, now: Instant, actions: &mut Actions) {
        self.incarnation += 1;
        self.process = Process::Requested;
        self.up_since = None;
        self.closed_at = None;
        self.working_since = None;
        self.output = Arc::from("");
        self.enter(State::Starting, now);
        actions.push(Action::Start(self.incarnation));
    }

    fn spawned(&mut self, pid: u32, actions: &mut Actions) {
        if self.process != Process::Requested {
            return;
        }
        self.process = Process::Running(pid);
        if !self.is_alive() {
            self.kill(actions);
        }
    }

    fn started(&mut self, now: Instant, actions: &mut Actions) {
        if self.state == State::Starting {
            self.up_since = Some(now);
            self.last_heartbeat = now;
            self.enter(State::Healthy, now);
            actions.push(Action::Up(self.incarnation));
        }
    }

    fn kill(&mut self, actions: &mut Actions) {
        if let Process::Running(pid) = self.process {
            self.process = Process::Killed(pid);
            actions.push(Action::Kill(self.incarnation));
        }
    }

    /// Gives the current incarnation up: tells it, and kills the worker if there is one.
    fn lose(&mut self, cause: LossCause, now: Instant, actions: &mut Actions) {
        if self.last_lost == self.incarnation {
            return;
        }
        let settled = self.up_since.is_some_and(|up| now.saturating_duration_since(up) >= self.policy.settled_after);
        if !self.is_ordered() {
            self.failures = if settled { 0 } else { self.failures.saturating_add(1) };
        }
        self.kill(actions);
        let known = (self.pid(), self.output.clone());
        let loss = Arc::new(Loss::new(self.index, self.incarnation, cause, known, now, self.sequel()));
        self.last_lost = self.incarnation;
        self.losses.insert(self.incarnation, loss.clone());
        if self.losses.len() > LOSSES_KEPT {
            self.losses.pop_first();
        }
        self.enter(State::Lost, now);
        actions.push(Action::Lose(loss));
    }

    /// Whether the end of the current worker is what the client wanted.
    fn is_ordered(&self) -> bool {
        self.rest.is_some() || self.state == State::Stopping
    }

    fn sequel(&self) -> Sequel {
        let never_up = self.incarnation == 1 && self.up_since.is_none();
        match self.rest {
            Some(_) => Sequel::Rest,
            None if self.policy.replace_limit == 0 => Sequel::NotReplaced,
            None if never_up || self.failures > self.policy.replace_limit => Sequel::GivenUp(self.failures),
            None => Sequel::Replacement(self.policy.backoff(self.failures)),
        }
    }

    fn reaped(&mut self, exit: Exit, now: Instant, actions: &mut Actions) {
        let (Process::Running(pid) | Process::Killed(pid)) = self.process else { return };
        // Nothing to kill any more, but the loss shall name the process.
        self.process = Process::Killed(pid);
        let cause = if self.is_ordered() { LossCause::Stopped } else { exit.into() };
        self.lose(cause, now, actions);
        self.process = Process::Absent;
        self.fenced(now, actions);
    }

    /// The current incarnation is lost and without a process: what comes next.
    fn fenced(&mut self, now: Instant, actions: &mut Actions) {
        actions.push(Action::Reclaim(self.incarnation));
        match (self.rest, self.sequel()) {
            (Some(Rest::Suspended), _) => self.enter(State::Suspended, now),
            (Some(Rest::Closed), _) => self.enter(State::Closed, now),
            (None, Sequel::Replacement(wait)) if wait.is_zero() => self.start(now, actions),
            (None, Sequel::Replacement(wait)) => self.enter(State::Replacing, now + wait),
            (None, Sequel::GivenUp(_) | Sequel::NotReplaced | Sequel::Rest) => self.enter(State::Failed, now),
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Actions) {
        let due = self.deadline().is_some_and(|deadline| now >= deadline);
        match self.state {
            State::Starting if due => self.lose(LossCause::StartTimeout(self.policy.start_timeout), now, actions),
            State::Stopping if due => self.lose(LossCause::Stopped, now, actions),
            State::Replacing if due => self.start(now, actions),
            _ => self.assess(now, actions),
        }
    }

    /// Decides between healthy, suspect and lost.
    fn assess(&mut self, now: Instant, actions: &mut Actions) {
        if !matches!(self.state, State::Healthy | State::Suspect) {
            return;
        }
        if let Some(closed) = self.closed_at {
            if now.saturating_duration_since(closed) >= self.policy.exit_grace {
                self.lose(LossCause::ConnectionClosed, now, actions);
            }
            return;
        }
        let watches = self.watches();
        if let Some(passed) = watches.iter().find(|watch| watch.late(now) >= watch.bound) {
            self.lose((passed.cause)(passed.late(now)), now, actions);
        } else if watches.iter().any(|watch| watch.late(now) >= watch.bound / 2) {
            self.state = State::Suspect;
        } else {
            self.state = State::Healthy;
        }
    }

    /// The bounds that apply now.
    fn watches(&self) -> SmallVec<[Watch; 2]> {
        let heartbeat =
            self.policy.heartbeat.map(|bound| Watch { since: self.last_heartbeat, bound, cause: LossCause::Silent });
        let working = self.working_since.zip(self.policy.progress);
        let progress = working.map(|(since, bound)| Watch { since, bound, cause: LossCause::Stuck });
        heartbeat.into_iter().chain(progress).collect()
    }

    /// When [`Self::assess`] may next decide otherwise.
    fn next_assessment(&self) -> Option<Instant> {
        if let Some(closed) = self.closed_at {
            return Some(closed + self.policy.exit_grace);
        }
        let part = if self.state == State::Healthy { 2 } else { 1 };
        self.watches().into_iter().map(|watch| watch.since + watch.bound / part).min()
    }

    fn stop(&mut self, rest: Rest, now: Instant, actions: &mut Actions) {
        if self.rest == Some(Rest::Closed) {
            return;
        }
        self.rest = Some(rest);
        let at_rest = if rest == Rest::Closed { State::Closed } else { State::Suspended };
        match (self.state, self.process) {
            (State::Starting, Process::Requested) => self.lose(LossCause::Stopped, now, actions),
            (State::Starting | State::Healthy | State::Suspect, _) => {
                self.enter(State::Stopping, now);
                actions.push(Action::Shutdown(self.incarnation));
            }
            (State::New | State::Replacing | State::Failed | State::Suspended, _) => self.enter(at_rest, now),
            (State::Stopping | State::Lost | State::Closed, _) => {}
        }
    }

    fn resume(&mut self, now: Instant, actions: &mut Actions) {
        match self.state {
            State::New | State::Suspended | State::Failed => {
                self.rest = None;
                self.failures = 0;
                self.start(now, actions);
            }
            // Stopped in order to be suspended, and not done with it: go on when it is.
            State::Stopping | State::Lost if self.rest == Some(Rest::Suspended) => self.rest = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
