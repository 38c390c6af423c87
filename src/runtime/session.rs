//! A session: the life of one worker as the client sees it, from its start to its loss.
//!
//! Buffers, launches and requests belong to a session. When its worker is lost the session is closed once, with
//! the first cause; everything pending fails with it, and whatever is asked of the session later gets it too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use smallvec::SmallVec;

use super::event::{Event, Outcome};
use super::gate::Gate;
use super::view::{Heap, Places};
use crate::abi::Status;
use crate::sync::lock;
use crate::wire::arena::Block;
use crate::wire::connection::{ClientEnd, ConnectionError, Wake};
use crate::wire::ids::IdMap;
use crate::wire::message::{
    BufferId, ClientDescription, Command, Extent, FEW_BYTES, Ids, LaunchId, LoanId, Query, Reply, Report, RequestId,
    Urgent,
};

/// Characters of a cause that a worker is told.
const MOST_WORDS: usize = 4096;

/// What to do with the answer to a request. Runs on the session's listener thread; must not block.
pub type Answer = Box<dyn FnOnce(Result<Reply, Status>) + Send>;

/// One worker's life. Shared by the slice (while it is the current one) and by every buffer it holds.
pub struct Session {
    /// The slice it serves; meaningless for a compiler.
    pub slice: u32,
    /// Counts the workers that the slice has had, from 1.
    pub incarnation: u64,
    /// The worker's process.
    pub pid: u32,
    /// What the worker said of its inner client; absent for a compiler.
    description: OnceLock<ClientDescription>,
    /// Gone once the session is closed, so that poisoned buffers do not keep rings mapped.
    sender: RwLock<Option<Arc<ClientEnd>>>,
    gate: Gate,
    pending: Mutex<Pending>,
    lost: OnceLock<Status>,
    /// Blocks that a lost worker may still write to; `None` once it is reaped.
    graveyard: Mutex<Option<Vec<Block>>>,
    requests: AtomicU64,
    /// Gone once the worker is reaped.
    heap: Mutex<Option<Arc<Heap>>>,
}

/// What the worker still owes. Lock order: taken alone, or before nothing; callbacks run outside it.
#[derive(Default)]
struct Pending {
    ready: IdMap<DeviceDone>,
    launches: IdMap<Launch>,
    requests: IdMap<Answer>,
    loans: IdMap<Block>,
    /// Of the blocks that were lent to be device memory: the loan, by where the block begins.
    lent_for_good: IdMap<LoanId>,
    closed: bool,
}

/// What is set when values are there, or a device's part of a launch is over: the places first.
pub type DeviceDone = (Arc<Event>, Arc<Places>);

/// A launch that the worker has not reported.
struct Launch {
    /// The completion of each device.
    devices: SmallVec<[Option<DeviceDone>; 4]>,
    /// The inputs that were not ready when it was sent: where one fails, that is why the launch does.
    inputs: Inputs,
}

/// What a launch waits for.
pub type Inputs = SmallVec<[Arc<Event>; 4]>;

impl Session {
    /// A session with a worker that has just been started, perhaps with a heap.
    pub fn new(
        (slice, incarnation): (u32, u64),
        pid: u32,
        sender: Arc<ClientEnd>,
        heap: Option<Arc<Heap>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            slice,
            incarnation,
            pid,
            description: OnceLock::new(),
            sender: RwLock::new(Some(sender)),
            gate: Gate::default(),
            pending: Mutex::new(Pending::default()),
            lost: OnceLock::new(),
            graveyard: Mutex::new(Some(Vec::new())),
            requests: AtomicU64::new(1),
            heap: Mutex::new(heap),
        })
    }

    /// Why the worker is lost, if it is.
    pub fn lost(&self) -> Option<&Status> {
        self.lost.get()
    }

    /// What the worker said of its inner client, once it has.
    pub fn description(&self) -> Option<&ClientDescription> {
        self.description.get()
    }

    /// The worker's heap, if it has one and lives.
    pub fn heap(&self) -> Option<Arc<Heap>> {
        lock(&self.heap).clone()
    }

    /// Keeps what the worker said of its inner client. Only the first counts.
    pub fn describe(&self, description: ClientDescription) {
        let _ = self.description.set(description);
    }

    /// Whether the worker owes anything: an answer, a completion.
    pub fn is_owed(&self) -> bool {
        let pending = self.pending();
        !(pending.ready.is_empty() && pending.launches.is_empty() && pending.requests.is_empty())
    }

    /// Whether the worker has work to do: a launch or a request that it has not answered.
    pub fn is_working(&self) -> bool {
        let pending = self.pending();
        !(pending.launches.is_empty() && pending.requests.is_empty())
    }

    /// Sends a command; what is sent to a lost worker is dropped, for its effects are lost in any case.
    pub fn send(&self, command: &Command) {
        self.pass(command, Wake::Now);
    }

    /// Sends what must not wait behind commands. A cause with many words is shortened.
    pub fn send_urgent(&self, urgent: &Urgent) {
        let sender = self.sender.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender
            && let Err(error) = sender.send_urgent(&short(urgent))
        {
            tracing::error!(slice = self.slice, %error, "a worker can't be told what has failed elsewhere");
        }
    }

    /// Lets the worker forget a buffer. A sleeping worker is not woken for a few bytes.
    pub fn destroy(&self, buffer: BufferId, bytes: u64) {
        let wake = if bytes <= FEW_BYTES { Wake::Later } else { Wake::Now };
        self.pass(&Command::Destroy { buffers: Ids::from_slice(&[buffer]) }, wake);
    }

    fn pass(&self, command: &Command, wake: Wake) {
        let mut refused = None;
        self.gate.pass(command, |command| refused = self.send_and(command, wake));
        if let Some(why) = refused {
            self.refuse(command, &why);
        }
    }

    /// Sends it now; why not, if it can never be sent.
    fn send_and(&self, command: &Command, wake: Wake) -> Option<String> {
        let sender = self.sender.read().unwrap_or_else(PoisonError::into_inner);
        match sender.as_ref()?.send_and(command, wake) {
            Err(ConnectionError::Unsendable(why)) => Some(why),
            // A closed or broken connection is noticed by the listener, which closes the session.
            Ok(()) | Err(_) => None,
        }
    }

    /// A command that can't be sent: whoever waits for its answer gets that for one. Called outside the gate's lock.
    fn refuse(&self, command: &Command, why: &str) {
        let status = Status::exhausted(format!("what a worker is to be told is too large: {why}"));
        tracing::warn!(slice = self.slice, %status, "a command can't be sent");
        let answer = command.request().and_then(|request| self.pending().requests.remove(&request));
        if let Some(answer) = answer {
            answer(Err(status));
        }
    }

    /// Makes the listener look at its deadline again.
    pub fn wake_listener(&self) {
        if let Some(sender) = &*self.sender.read().unwrap_or_else(PoisonError::into_inner) {
            sender.wake_listener();
        }
    }

    /// Runs `register` on what is pending, unless the session is closed: then the loss is returned.
    fn register(&self, register: impl FnOnce(&mut Pending)) -> Result<(), Status> {
        let mut pending = self.pending();
        if pending.closed {
            drop(pending);
            return Err(self.loss());
        }
        register(&mut pending);
        Ok(())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    fn loss(&self) -> Status {
        // `closed` is set after `lost`, under the lock that the caller held.
        self.lost.get().cloned().unwrap_or_else(|| Status::failed_precondition("the session is closed"))
    }

    /// `event` is set when the worker reports the buffer ready, or when it is lost.
    pub fn expect_ready(&self, buffer: BufferId, event: &DeviceDone) {
        if let Err(loss) = self.register(|pending| drop(pending.ready.insert(buffer, event.clone()))) {
            event.0.set(Err(loss));
        }
    }

    /// Each device's event is set when the worker reports its part of the launch over, or when it is lost.
    /// A launch that fails since one of `inputs` has failed gets that first cause.
    pub fn expect_launch(&self, launch: LaunchId, devices: &[DeviceDone], inputs: Inputs) {
        let expected = Launch { devices: devices.iter().cloned().map(Some).collect(), inputs };
        if let Err(loss) = self.register(|pending| drop(pending.launches.insert(launch, expected))) {
            for (done, _) in devices {
                done.set(Err(loss.clone()));
            }
        }
    }

    /// Lends a block to the worker until it says it no longer uses it, or is dead and reaped. It may be lent for good: to
    /// become device memory.
    pub fn lend(&self, loan: LoanId, block: Block, for_good: bool) {
        let mut block = Some(block);
        let _ = self.register(|pending| {
            let Some(block) = block.take() else { return };
            if for_good {
                pending.lent_for_good.insert(block.extent().offset, loan);
            }
            pending.loans.insert(loan, block);
        });
        // Closed: nothing is sent from now on, but the lost worker may have been told of the block by someone before.
        block.into_iter().for_each(|block| self.keep_until_reaped(block));
    }

    /// The block that begins here and has become device memory.
    pub(super) fn lent_at(&self, offset: u64) -> Option<Block> {
        let pending = self.pending();
        pending.loans.get(pending.lent_for_good.get(&offset)?).cloned()
    }

    /// Sends a request made with a fresh id; `answer` runs once, with the reply or with the loss.
    pub fn request(&self, command: impl FnOnce(RequestId) -> Command, answer: Answer) {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut answer = Some(answer);
        match self.register(|pending| drop(pending.requests.insert(request, answer.take().expect("still here")))) {
            Ok(()) => self.send(&command(request)),
            Err(loss) => {
                if let Some(answer) = answer {
                    answer(Err(loss));
                }
            }
        }
    }

    /// Sends one command that is as many requests as there are answers, their ids counted on from the one that is given.
    pub fn request_many(&self, answers: Vec<Answer>, command: impl FnOnce(RequestId) -> Command) {
        let first = self.requests.fetch_add(answers.len() as u64, Ordering::Relaxed);
        let mut answers = Some(answers);
        let requests =
            |pending: &mut Pending| pending.requests.extend((first..).zip(answers.take().into_iter().flatten()));
        match self.register(requests) {
            Ok(()) => self.send(&command(first)),
            Err(loss) => answers.into_iter().flatten().for_each(|answer| answer(Err(loss.clone()))),
        }
    }

    /// Sends a request and waits for its answer. Bounded by the worker's life.
    pub fn ask(&self, command: impl FnOnce(RequestId) -> Command) -> Result<Reply, Status> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.request(
            command,
            Box::new(move |reply| {
                let _ = tell.send(reply);
            }),
        );
        told.recv().unwrap_or_else(|_| Err(Status::failed_precondition("the request was dropped unanswered")))
    }

    /// Asks a question and waits for the answer.
    pub fn query(&self, query: Query) -> Result<Reply, Status> {
        self.ask(|request| Command::Ask { request, query })
    }

    /// Takes in one report of the worker. Callbacks run on this thread, outside every lock.
    pub fn take_in(&self, report: Report) {
        match report {
            Report::Ready { buffer, result, place } => {
                let expected = self.pending().ready.remove(&buffer);
                if let Some((ready, known)) = expected {
                    let _ = known.set(Ids::from_slice(&[place]));
                    ready.set(result);
                }
            }
            Report::Executed { launch, device, result, places } => {
                let (done, result, is_over) = self.pending().device_done(launch, device, result);
                if let Some((done, known)) = done {
                    let _ = known.set(places);
                    done.set(result);
                }
                if is_over {
                    let mut refused = Vec::new();
                    self.gate.launch_is_over(|command| {
                        let why = self.send_and(command, Wake::Now);
                        refused.extend(why.map(|why| (command.clone(), why)));
                    });
                    refused.iter().for_each(|(command, why)| self.refuse(command, why));
                }
            }
            Report::Returned { loan } => drop(self.take_loan(loan)),
            // Each launch of a program that could not be loaded says so itself.
            Report::Loaded { executable, result } => {
                if let Err(status) = result {
                    tracing::warn!(slice = self.slice, executable, %status, "a program could not be loaded");
                }
            }
            Report::Reply { request, result } => {
                let answer = self.pending().requests.remove(&request);
                if let Some(answer) = answer {
                    answer(result);
                }
            }
            // The answer to the start is taken by who started the worker; a second one says nothing.
            Report::Started(_) => {}
        }
    }

    fn take_loan(&self, loan: LoanId) -> Option<Block> {
        let mut pending = self.pending();
        let block = pending.loans.remove(&loan)?;
        let offset = block.extent().offset;
        if pending.lent_for_good.get(&offset) == Some(&loan) {
            pending.lent_for_good.remove(&offset);
        }
        Some(block)
    }

    /// Closes the session: fails everything pending with `loss`, now and from now on.
    ///
    /// The connection goes. Blocks that the worker may still touch are kept until [`Session::reaped`].
    pub fn close(&self, loss: Status) {
        let _ = self.lost.set(loss);
        // First: nothing that is registered from now on is sent.
        *self.sender.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.gate.close();
        let taken = {
            let mut pending = self.pending();
            let taken = std::mem::take(&mut *pending);
            pending.closed = true;
            taken
        };
        taken.loans.into_values().for_each(|block| self.keep_until_reaped(block));
        let loss = self.loss();
        let launches = taken.launches.into_values().flat_map(|launch| launch.devices).flatten();
        for (event, _) in taken.ready.into_values().chain(launches) {
            event.set(Err(loss.clone()));
        }
        for answer in taken.requests.into_values() {
            answer(Err(loss.clone()));
        }
    }

    /// Keeps a block from being given to anybody else for as long as the lost worker may still write to it.
    pub fn keep_until_reaped(&self, block: Block) {
        if let Some(graveyard) = &mut *lock(&self.graveyard) {
            graveyard.push(block);
        }
    }

    /// The worker did not write a value to the block that it was asked to fill: tells why. `ready` is the value's own event.
    pub fn unread(&self, block: Block, ready: &Event, error: Status, tell: impl FnOnce(Status) + Send + 'static) {
        // A lost worker may still write to the block.
        if self.lost().is_some() {
            self.keep_until_reaped(block);
        }
        // The buffer knows the first cause, which may lie in another slice; the worker its own.
        ready.on_done(move |outcome| tell(outcome.as_ref().err().cloned().unwrap_or(error)));
    }

    /// The worker is dead and reaped: nothing of it touches the arena any more.
    pub fn reaped(&self) {
        lock(&self.graveyard).take();
        let heap = lock(&self.heap).take();
        if let Some(heap) = heap {
            heap.close();
        }
    }

    /// Tells the worker which part of the arena is committed now.
    pub fn populate(&self, extent: Extent) {
        self.send(&Command::Populate { extent });
    }

    /// Has the worker give back what was freed on the device and rests.
    pub fn give_back(&self) {
        self.send(&Command::GiveBack);
    }
}

impl Pending {
    /// Takes the event of one device of a launch, with its result. The launch is over, and forgotten, with its last device.
    fn device_done(&mut self, launch: LaunchId, device: u32, result: Outcome) -> (Option<DeviceDone>, Outcome, bool) {
        let Some(known) = self.launches.get_mut(&launch) else { return (None, result, false) };
        let event = known.devices.get_mut(device as usize).and_then(Option::take);
        let first_cause = |error| known.inputs.iter().find_map(|input| input.error()).unwrap_or(error);
        let result = result.map_err(first_cause);
        let is_over = known.devices.iter().all(Option::is_none);
        if is_over {
            self.launches.remove(&launch);
        }
        (event, result, is_over)
    }
}

/// What a worker is told of a cause is for its own log and its own results, which the client gives the whole cause.
fn short(urgent: &Urgent) -> Urgent {
    let shortened = |status: &Status| {
        let words: String = status.message.chars().take(MOST_WORDS).collect();
        Status::new(status.code, words)
    };
    match urgent {
        Urgent::FailLaunch { launch, status } => Urgent::FailLaunch { launch: *launch, status: shortened(status) },
        Urgent::FailSlice { slice, incarnation, status } => {
            Urgent::FailSlice { slice: *slice, incarnation: *incarnation, status: shortened(status) }
        }
        Urgent::Over { launch } => Urgent::Over { launch: *launch },
    }
}
