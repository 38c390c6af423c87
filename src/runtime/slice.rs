//! A slice: the thread that does what the slice's state machine says, and tells it what happens.
//!
//! The machine ([`crate::slice`]) decides; this thread starts processes, listens, kills and reaps. Nobody else does.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::Shared;
use super::listen::Worker;
use super::notice;
use super::pulse::{Pulse, Sign};
use super::session::Session;
use crate::abi::{Code, Status};
use crate::slice::{Action, Event, Incarnation, Loss, LossCause, Order, Rest, Slice as Machine, State};
use crate::sync::lock;
use crate::wire::connection::ConnectionError;
use crate::wire::message::{Command, ExecutableId, Report, Urgent};

/// How often it is looked whether an idle worker has got work, where lack of progress is bounded.
const GLANCE: Duration = Duration::from_millis(500);

/// A worker may wait for others for so many times the bound on progress: by then who keeps it is lost, and it goes on.
const PATIENCE_WITH_OTHERS: u32 = 3;

/// A slice of a client. The same object through all its incarnations.
pub struct Slice {
    /// Position among the client's slices.
    pub index: u32,
    shared: Arc<Shared>,
    state: Mutex<Known>,
    changed: Condvar,
    current: RwLock<Option<Arc<Session>>>,
    /// The session that the thread listens to: the current one, or one that is starting.
    listened_to: Mutex<Option<Arc<Session>>>,
    /// The inner ids of the slice's devices, the same for every incarnation.
    device_ids: OnceLock<Vec<i32>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What is known of a slice; shared by its thread and whoever asks.
struct Known {
    machine: Machine,
    orders: Vec<Order>,
    /// How the start of the first worker went.
    first: Option<Result<Arc<Session>, Status>>,
}

/// State, incarnation, and the worker's process while there is one.
pub type Standing = (State, Incarnation, Option<u32>);

impl Slice {
    /// Starts the slice's thread, and with it its first worker. [`Slice::await_first`] tells how that went.
    pub fn start(index: u32, shared: &Arc<Shared>) -> Result<Arc<Self>, Status> {
        let machine = Machine::new(index, shared.config.policy(), Instant::now());
        let slice = Arc::new(Self {
            index,
            shared: shared.clone(),
            state: Mutex::new(Known { machine, orders: vec![Order::Resume], first: None }),
            changed: Condvar::new(),
            current: RwLock::new(None),
            listened_to: Mutex::default(),
            device_ids: OnceLock::new(),
            thread: Mutex::new(None),
        });
        let keeper = Keeper {
            slice: slice.clone(),
            worker: None,
            warm: HashSet::new(),
            pulse: None,
            waiting_since: None,
            to_do: VecDeque::new(),
            told: None,
        };
        let thread = std::thread::Builder::new().name(format!("mainstay-{index}")).spawn(move || keeper.keep());
        let thread =
            thread.map_err(|error| Status::exhausted(format!("no thread for slice {index} can be had: {error}")))?;
        *lock(&slice.thread) = Some(thread);
        Ok(slice)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.state)
    }

    /// The first worker's session, once it is ready. Bounded by the configured time to start.
    pub fn await_first(&self) -> Result<Arc<Session>, Status> {
        let mut known = self.known();
        loop {
            match &known.first {
                Some(first) => return first.clone(),
                None => known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The session that serves the slice now, or served it last; none before the first.
    pub fn current_if_any(&self) -> Option<Arc<Session>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session that serves the slice now; a closed one while there is none.
    pub fn current(&self) -> Arc<Session> {
        // Set before the client exists, and never unset.
        self.current_if_any().expect("a slice is asked for its session only once its first worker is ready")
    }

    /// Where the slice stands, its incarnation, and its worker's process.
    pub fn standing(&self) -> Standing {
        let known = self.known();
        (known.machine.state(), known.machine.incarnation(), known.machine.pid())
    }

    /// How many losses there were so far, and those that are kept: the newest, oldest first.
    pub fn losses(&self) -> (u64, Vec<Arc<Loss>>) {
        let known = self.known();
        (known.machine.loss_count(), known.machine.losses().cloned().collect())
    }

    /// Why values that no living worker has are lost.
    pub fn last_loss(&self) -> Status {
        let loss = self.known().machine.losses().next_back().map(|loss| loss.status());
        loss.unwrap_or_else(|| Status::failed_precondition(format!("slice {} has no worker", self.index)))
    }

    /// The id that a device has on this slice's worker.
    pub fn local_device_id(&self, ordinal: u32) -> Option<i32> {
        self.device_ids.get()?.get(ordinal as usize).copied()
    }

    /// Tells the worker to leave, and no other to come.
    pub fn begin_stop(&self) {
        self.known().orders.push(Order::Stop(Rest::Closed));
        self.changed.notify_all();
        let listened_to = lock(&self.listened_to).clone();
        if let Some(session) = listened_to {
            session.wake_listener();
        }
    }

    /// Waits until the worker is gone and the thread has ended. Bounded: a worker that does not leave is killed.
    pub fn stop(&self) {
        self.begin_stop();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported by it already.
            let _ = thread.join();
        }
    }
}

/// What the slice's thread has: the worker, while there is one.
struct Keeper {
    slice: Arc<Slice>,
    worker: Option<Worker>,
    /// Programs that the worker got while it was a spare.
    warm: HashSet<ExecutableId>,
    /// The worker's pulse, where silence is bounded.
    pulse: Option<Pulse>,
    /// Since when the worker, with work to do, waits for others.
    waiting_since: Option<Instant>,
    /// What the machine said and was not done yet: what follows from an action is done after what it came with.
    to_do: VecDeque<Action>,
    /// What of the slice was last announced.
    told: Option<Standing>,
}

impl Keeper {
    /// Keeps the slice until it is closed.
    fn keep(mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            self.give_up();
        }
    }

    /// After a panic of this thread: nobody waits for what it would have brought.
    fn give_up(&mut self) {
        let why = format!(
            "slice {} lost its worker: its thread in Mainstay panicked, which is a bug (stderr says where). The slice stays down",
            self.slice.index
        );
        let loss = Status::new(Code::DataLoss, why);
        let sessions = self.worker.iter().map(|worker| worker.session().clone()).chain(self.slice.current_if_any());
        sessions.for_each(|session| session.close(loss.clone()));
        {
            let mut known = self.slice.known();
            known.machine.order(Order::Stop(Rest::Closed), Instant::now());
            known.first.get_or_insert(Err(loss));
        }
        self.kill();
        self.reclaim();
        self.slice.changed.notify_all();
    }

    fn run(&mut self) {
        loop {
            let orders = std::mem::take(&mut self.slice.known().orders);
            for order in orders {
                self.to_do.extend(self.slice.known().machine.order(order, Instant::now()));
                self.act();
            }
            if self.slice.known().machine.state() == State::Closed {
                return;
            }
            match self.worker {
                Some(_) => self.listen(),
                None => self.idle(),
            }
            self.to_do.extend(self.slice.known().machine.order(Order::Tick, Instant::now()));
            self.act();
        }
    }

    /// Waits for an order, or for the time when the machine wants to be asked again.
    fn idle(&self) {
        let known = self.slice.known();
        if !known.orders.is_empty() {
            return;
        }
        let waited = match known.machine.deadline() {
            Some(at) => self
                .slice
                .changed
                .wait_timeout(known, at.saturating_duration_since(Instant::now()))
                .map(|(guard, _)| drop(guard))
                .is_ok(),
            None => self.slice.changed.wait(known).map(drop).is_ok(),
        };
        // A poisoned lock is taken as it is by whoever takes it next.
        let _ = waited;
    }

    /// Waits for reports once, and tells the machine what came of it.
    fn listen(&mut self) {
        let timeout = self.patience();
        let Some(worker) = &mut self.worker else { return };
        let (session, mut events) = (worker.session().clone(), Vec::new());
        let mut heard = false;
        let waited = worker.wait(timeout, |session, report| match report {
            Report::Started(Ok(description)) => {
                if let Some(description) = description {
                    session.describe(*description);
                }
                events.push(Event::Started);
            }
            Report::Started(Err(status)) => events.push(Event::StartFailed(status)),
            report => {
                heard = true;
                session.take_in(report);
            }
        });
        // Before it is told: whoever sees the slice healthy must find its new worker.
        if events.iter().any(|event| matches!(event, Event::Started))
            && let Err(status) = self.publish(&session)
        {
            events.push(Event::Corrupt(status.message.to_string()));
        }
        self.watch(&session, heard, &mut events);
        match waited {
            Ok(()) => {}
            Err(ConnectionError::Closed) => self.hung_up(&mut events),
            Err(error) => events.push(Event::Corrupt(error.to_string())),
        }
        self.tell(events);
    }

    /// How long to wait for reports at most.
    fn patience(&self) -> Option<Duration> {
        let deadline = self.slice.known().machine.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let glance = self.slice.shared.config.progress_timeout.map(|_| GLANCE);
        let look = self.pulse.as_ref().map(Pulse::interval);
        deadline.into_iter().chain(glance).chain(look).min()
    }

    /// Looks for signs of life and of work: work that began or went on, or a pulse.
    fn watch(&mut self, session: &Session, heard: bool, events: &mut Vec<Event>) {
        let count = self.worker.as_ref().map_or(0, Worker::pulse);
        let sign = self.pulse.as_mut().map_or(Sign::None, |pulse| pulse.look(count, Instant::now()));
        if sign != Sign::None {
            events.push(Event::Heartbeat);
        }
        if heard || sign == Sign::Paused {
            self.waiting_since = None;
            events.push(Event::Progress { outstanding: session.is_working() });
        } else if session.is_working() {
            // Its turn comes after others': it is they who are stuck, if anybody is.
            let is_excused = sign == Sign::Life && self.waits_for_others(Instant::now());
            events.push(if is_excused { Event::Progress { outstanding: false } } else { Event::Busy });
        }
    }

    /// Whether the worker waits for others, and has not for so long that it can't be they who keep it.
    fn waits_for_others(&mut self, now: Instant) -> bool {
        if !self.worker.as_ref().is_some_and(Worker::waits_for_others) {
            self.waiting_since = None;
            return false;
        }
        let since = *self.waiting_since.get_or_insert(now);
        self.slice.shared.config.progress_timeout.is_some_and(|bound| now - since < PATIENCE_WITH_OTHERS * bound)
    }

    /// The connection is closed: the process is waited for as long as the machine has patience.
    fn hung_up(&mut self, events: &mut Vec<Event>) {
        let Some(worker) = &mut self.worker else { return };
        events.push(Event::ConnectionClosed);
        let exit = worker.exit(self.slice.shared.config.policy().exit_grace);
        events.push(Event::Output(worker.last_words().into()));
        events.extend(exit.map(Event::Reaped));
    }

    /// Tells the machine, and notes what it wants done.
    fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        let mut known = self.slice.known();
        for event in events {
            let incarnation = known.machine.incarnation();
            self.to_do.extend(known.machine.handle(incarnation, event, Instant::now()));
        }
    }

    /// Does what the machine wants, and what that leads to, in order.
    fn act(&mut self) {
        while let Some(action) = self.to_do.pop_front() {
            match action {
                Action::Start(incarnation) => self.start(incarnation),
                Action::Up(_) => self.up(),
                Action::Shutdown(_) => self.send(&Command::Shutdown),
                Action::Kill(_) => self.kill(),
                Action::Lose(loss) => self.lose(&loss),
                Action::Reclaim(_) => self.reclaim(),
            }
            self.announce();
        }
        self.announce();
        self.slice.changed.notify_all();
    }

    /// Tells whoever waits for a change, if there is one.
    fn announce(&mut self) {
        let standing = self.slice.standing();
        if self.told != Some(standing) {
            self.told = Some(standing);
            notice::announce();
        }
    }

    fn send(&self, command: &Command) {
        if let Some(worker) = &self.worker {
            worker.session().send(command);
        }
    }

    fn start(&mut self, incarnation: Incarnation) {
        let events = match self.find_worker(incarnation) {
            Ok((worker, is_up)) => {
                let session = worker.session().clone();
                let bound = self.slice.shared.config.heartbeat_timeout;
                self.pulse = bound.map(|bound| Pulse::new(bound, worker.pulse(), Instant::now()));
                self.worker = Some(worker);
                *lock(&self.slice.listened_to) = Some(session.clone());
                let mut events = vec![Event::Spawned(session.pid)];
                if is_up {
                    let published = self.publish(&session);
                    events.push(
                        published.map_or_else(|status| Event::Corrupt(status.message.to_string()), |()| Event::Started),
                    );
                }
                events
            }
            Err(status) => vec![Event::StartFailed(status)],
        };
        self.tell(events);
    }

    /// A worker for the incarnation, and whether it is up: a spare, or else a new one.
    fn find_worker(&mut self, incarnation: Incarnation) -> Result<(Worker, bool), Status> {
        let (shared, slice) = (&self.slice.shared, self.slice.index);
        self.warm.clear();
        if let Some(spare) = shared.spares.take() {
            let (worker, is_up, warm) = spare.adopt(slice, incarnation);
            self.warm = warm;
            return Ok((worker, is_up));
        }
        let worker = shared.start_worker(&format!("slice {slice}"), (slice, incarnation))?;
        Ok((worker, false))
    }

    /// Lets the client use the worker, with the programs that are in use already on their way to it.
    fn publish(&mut self, session: &Arc<Session>) -> Result<(), Status> {
        self.check_devices(session)?;
        if self.slice.shared.exchange.is_some() {
            session.send(&Command::Join { slice: session.slice, incarnation: session.incarnation as u32 });
        }
        for extent in self.slice.shared.arena.committed() {
            session.populate(extent);
        }
        for program in self.slice.shared.programs() {
            let is_warm = self.warm.remove(&program.id);
            match program.slices().contains(&self.slice.index) {
                true if is_warm => program.adopt(session),
                true => program.ensure_loaded(session),
                false if is_warm => session.send(&Command::Unload { executable: program.id }),
                false => {}
            }
        }
        self.warm.drain().for_each(|executable| session.send(&Command::Unload { executable }));
        *self.slice.current.write().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        Ok(())
    }

    /// The slice works, its worker is published: so it has started.
    fn up(&self) {
        if let Some(session) = self.slice.current_if_any() {
            self.slice.known().first.get_or_insert(Ok(session));
        }
    }

    /// A replacement must have the devices that the first worker had: handles are stable.
    fn check_devices(&self, session: &Session) -> Result<(), Status> {
        let devices =
            session.description().iter().flat_map(|description| &description.devices).map(|device| device.id).collect();
        let known = self.slice.device_ids.get_or_init(|| Vec::clone(&devices));
        if *known == devices {
            return Ok(());
        }
        Err(Status::failed_precondition(format!("it has the devices {devices:?} where the slice has {known:?}")))
    }

    fn kill(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        // A process that the kernel does not let go is asked for again when its slice is next looked at.
        let exit = worker.kill();
        let words = worker.last_words();
        let mut events = vec![Event::Output(words.into())];
        events.extend(exit.map(Event::Reaped));
        self.tell(events);
    }

    fn lose(&self, loss: &Loss) {
        let stopped = loss.cause == LossCause::Stopped;
        tracing::info!(slice = loss.slice, incarnation = loss.incarnation, reason = %loss.status().message, "slice lost");
        if let Some(worker) = &self.worker {
            let status = if stopped { Status::failed_precondition("the client was destroyed") } else { loss.status() };
            worker.session().close(status);
        }
        if !stopped {
            self.tell_others(loss);
        }
        let mut known = self.slice.known();
        if known.first.is_none() {
            known.first = Some(Err(loss.at_start(&self.slice.shared.config.worker)));
        }
    }

    /// The other workers wait for nothing from this one any more.
    fn tell_others(&self, loss: &Loss) {
        let (slice, incarnation, status) = (loss.slice, loss.incarnation as u32, loss.status());
        let urgent = Urgent::FailSlice { slice, incarnation, status };
        self.slice.shared.others(self.slice.index).iter().for_each(|session| session.send_urgent(&urgent));
    }

    fn reclaim(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.session().reaped();
        }
    }
}
