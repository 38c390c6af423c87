//! The exchange: launches, meetings, and the thread that listens to the other workers.
//!
//! Lock order: [`State`] before a meeting's own lock; neither is held while a completion is called, since that may go
//! on with the program and arrive at the next collective.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::abi::Status;
use crate::program::spanning::spec::{Coordinate, Logical, Spec};
use crate::sync::lock;
use crate::wire::message::LaunchId;

use super::meeting::{Arrival, Completion, Meeting, Parcel, Post, Progress};
use super::plan::{Array, Plan};
use super::pool::Pool;
use super::transport::{Meeting as MeetingId, Message, Slot, Transport};

/// A sleep ends after this long even if nothing happens, so that no lost wake-up can stop the exchange for good.
const NAP: Duration = Duration::from_millis(100);

/// A program that spans slices, as one worker sees it: where each logical device is, and what has been planned.
pub struct Program {
    partitions: u32,
    /// Worker of each logical device.
    slots: Vec<Slot>,
    /// Logical device of each local one, by ordinal.
    here: HashMap<u32, Logical>,
    collectives: Mutex<HashMap<u32, Arc<Collective>>>,
}

/// A collective of a program.
struct Collective {
    spec: Spec,
    /// Group and rank of each logical device.
    places: Vec<Option<(u32, usize)>>,
    plans: Mutex<HashMap<u32, Arc<Plan>>>,
}

impl Program {
    /// A program of as many devices as `places` names, by logical device: slot of the worker, and ordinal there. `me`
    /// is this worker's slot.
    pub fn new(partitions: u32, places: &[(Slot, u32)], me: Slot) -> Self {
        let numbered = (0..).zip(places);
        Self {
            partitions: partitions.max(1),
            slots: places.iter().map(|(slot, _)| *slot).collect(),
            here: numbered
                .filter(|(_, (slot, _))| *slot == me)
                .map(|(logical, (_, device))| (*device, logical))
                .collect(),
            collectives: Mutex::default(),
        }
    }

    fn collective(&self, key: u32, spec: &str) -> Result<Arc<Collective>, Status> {
        let mut known = lock(&self.collectives);
        if let Some(collective) = known.get(&key) {
            return Ok(collective.clone());
        }
        let spec: Spec = serde_json::from_str(spec)
            .map_err(|error| Status::invalid(format!("collective {key} of the program can't be read: {error}")))?;
        let mut places = vec![None; self.slots.len()];
        for (number, group) in (0..).zip(&spec.groups) {
            for (rank, logical) in group.iter().enumerate() {
                let place = places.get_mut(*logical as usize);
                *place.ok_or_else(|| Status::invalid(format!("collective {key} names device {logical}")))? =
                    Some((number, rank));
            }
        }
        let collective = Arc::new(Collective { spec, places, plans: Mutex::default() });
        known.insert(key, collective.clone());
        Ok(collective)
    }
}

impl Collective {
    fn plan(
        &self,
        group: u32,
        program: &Program,
        me: Slot,
        operands: &[Array],
        results: &[Array],
    ) -> Result<Arc<Plan>, Status> {
        let mut plans = lock(&self.plans);
        if let Some(plan) = plans.get(&group) {
            if plan.operands == operands && plan.results == results {
                return Ok(plan.clone());
            }
            return Err(Status::invalid("a collective has operands of different sizes on different devices"));
        }
        let plan = Arc::new(Plan::new(&self.spec, group as usize, &program.slots, me, operands, results)?);
        plans.insert(group, plan.clone());
        Ok(plan)
    }
}

/// An operand or a result of a call.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Type and size.
    pub array: Array,
    /// Its start; dangling, but aligned, where the size is 0.
    pub start: NonNull<u8>,
}

/// A device's call of a collective.
pub struct Call<'a> {
    /// The run id that [`Exchange::begin`] gave.
    pub run: i64,
    /// The device's ordinal.
    pub ordinal: u32,
    /// The collective's key.
    pub key: u32,
    /// Its [`Spec`], as JSON.
    pub spec: &'a str,
    /// Its operands, valid for reading until the completion is called.
    pub operands: &'a [Buffer],
    /// Its results, valid for writing until the completion is called.
    pub results: &'a [Buffer],
}

/// A worker's end of the exchange. See [`super`] for what it does and why it never comes to a stop.
pub struct Exchange {
    core: Arc<Core>,
    listener: Option<JoinHandle<()>>,
}

struct Core {
    transport: Box<dyn Transport>,
    state: Mutex<State>,
    /// Meetings that found no room in the arena.
    stalled: Mutex<Vec<Weak<Mutex<Meeting>>>>,
    pool: Pool,
    stop: AtomicBool,
}

#[derive(Default)]
struct State {
    launches: HashMap<LaunchId, Launch>,
    runs: HashMap<i64, LaunchId>,
    last_run: i32,
    /// Launches that have failed, until they are over everywhere.
    failed: HashMap<LaunchId, Status>,
    /// What came for launches that have not begun here.
    early: HashMap<LaunchId, Vec<Parcel>>,
    /// Dead incarnations: the newest of each slot, and what became of it.
    dead: HashMap<Slot, (u32, Status)>,
    /// Launches to forget once what is in the rings now has been taken.
    over: Vec<LaunchId>,
}

struct Launch {
    run: i64,
    program: Arc<Program>,
    /// By slot; 0 for who takes no part.
    incarnations: Arc<[u32]>,
    /// How often each local device has come to each collective.
    occurrences: HashMap<(u32, u32), u32>,
    meetings: HashMap<MeetingId, Arc<Mutex<Meeting>>>,
}

impl Launch {
    fn meeting(&mut self, id: MeetingId) -> Arc<Mutex<Meeting>> {
        self.meetings.entry(id).or_insert_with(|| Arc::new(Mutex::new(Meeting::new(id)))).clone()
    }
}

impl Exchange {
    /// Starts a worker's end. `threads` go on with programs after collectives: one for each local device is right.
    pub fn start(transport: Box<dyn Transport>, threads: usize) -> Result<Self, Status> {
        let none = |error| Status::exhausted(format!("no thread for exchange between slices: {error}"));
        let core = Arc::new(Core {
            transport,
            state: Mutex::default(),
            stalled: Mutex::default(),
            pool: Pool::new("mainstay-go-on", threads.max(2)).map_err(none)?,
            stop: AtomicBool::new(false),
        });
        let listening = core.clone();
        let listener = std::thread::Builder::new().name("mainstay-listen".into()).spawn(move || listening.listen());
        Ok(Self { core, listener: Some(listener.map_err(none)?) })
    }

    /// A launch begins: to be called before it is executed. Returns the run id to execute it with (as `launch_id`).
    ///
    /// `participants` are the slots that take part, with the incarnations of their workers that do. Where one of them
    /// is known to be dead, or the launch to have failed, every collective of it fails.
    pub fn begin(&self, launch: LaunchId, program: &Arc<Program>, participants: &[(Slot, u32)]) -> i32 {
        let size = participants.iter().map(|(slot, _)| *slot as usize + 1).max().unwrap_or(0);
        let mut incarnations = vec![0; size];
        for (slot, incarnation) in participants {
            incarnations[*slot as usize] = *incarnation;
        }
        let mut state = lock(&self.core.state);
        let run = state.free_run();
        state.runs.insert(run.into(), launch);
        let dead = participants.iter().find_map(|(slot, incarnation)| {
            state.dead.get(slot).filter(|(dead, _)| incarnation <= dead).map(|(_, status)| status.clone())
        });
        if let Some(status) = dead {
            state.failed.entry(launch).or_insert(status);
        }
        let mut begun = Launch {
            run: run.into(),
            program: program.clone(),
            incarnations: incarnations.into(),
            occurrences: HashMap::new(),
            meetings: HashMap::new(),
        };
        for parcel in state.early.remove(&launch).unwrap_or_default() {
            lock(&begun.meeting(parcel.message.meeting)).receive_parcel(parcel);
        }
        state.launches.insert(launch, begun);
        run
    }

    /// All of this worker's devices are done with a launch, well or not. Nothing of it is kept but that it has failed,
    /// if it has.
    pub fn end(&self, launch: LaunchId) {
        let meetings = {
            let mut state = lock(&self.core.state);
            let Some(ended) = state.launches.remove(&launch) else { return };
            state.runs.remove(&ended.run);
            ended.meetings
        };
        let status = Status::failed_precondition(format!("launch {launch} ended while a collective was waiting"));
        self.core.fail_meetings(meetings.into_values().collect(), &status);
    }

    /// A launch has failed somewhere: everything of it that waits here, and will come, fails with this status. To be
    /// followed by [`Self::over`], also where the launch never began here.
    pub fn fail(&self, launch: LaunchId, status: Status) {
        let (meetings, status) = lock(&self.core.state).fail(launch, status);
        self.core.fail_meetings(meetings, &status);
    }

    /// A slice's worker is dead and reaped: every launch it takes part in fails with this status.
    pub fn fail_slice(&self, slot: Slot, incarnation: u32, status: &Status) {
        let mut failed = Vec::new();
        {
            let mut state = lock(&self.core.state);
            let known = state.dead.get(&slot).is_some_and(|(dead, _)| *dead >= incarnation);
            if !known {
                state.dead.insert(slot, (incarnation, status.clone()));
            }
            let takes_part = |launch: &Launch| {
                launch.incarnations.get(slot as usize).is_some_and(|of| (1..=incarnation).contains(of))
            };
            let launches: Vec<LaunchId> =
                state.launches.iter().filter(|(_, launch)| takes_part(launch)).map(|(id, _)| *id).collect();
            for launch in launches {
                failed.push(state.fail(launch, status.clone()));
            }
        }
        for (meetings, status) in failed {
            self.core.fail_meetings(meetings, &status);
        }
    }

    /// A failed launch is over on all slices: each has ended it, never begun it, or is dead. What is left of it goes.
    pub fn over(&self, launch: LaunchId) {
        lock(&self.core.state).over.push(launch);
        self.core.transport.wake();
    }

    /// A device comes to a collective. Never blocks. The completion is called once: before this returns, or later on
    /// another thread.
    pub fn arrive(&self, call: &Call<'_>, completion: Completion) {
        if let Err((status, completion)) = self.core.arrive(call, completion) {
            completion(Err(status));
        }
    }

    /// Where a local device is in the program that it runs.
    pub fn coordinate(&self, run: i64, ordinal: u32, coordinate: Coordinate) -> Result<u32, Status> {
        let state = lock(&self.core.state);
        let (_, launch) = state.launch_of(run)?;
        let logical = launch.program.logical(ordinal)?;
        Ok(match coordinate {
            Coordinate::Partition => logical % launch.program.partitions,
            Coordinate::Replica => logical / launch.program.partitions,
        })
    }

    /// Whether a meeting to which all of this worker's ranks have come waits for other workers. Never waits itself: what
    /// is being worked on waits for nobody.
    pub fn waits_for_others(&self) -> bool {
        let Ok(state) = self.core.state.try_lock() else { return false };
        let mut meetings = state.launches.values().flat_map(|launch| launch.meetings.values());
        meetings.any(|meeting| meeting.try_lock().is_ok_and(|meeting| meeting.waits_for_others()))
    }

    /// How many launches, meetings and kept parcels there are: all 0 when nothing is going on.
    pub fn census(&self) -> (usize, usize, usize) {
        let state = lock(&self.core.state);
        let meetings = state.launches.values().map(|launch| launch.meetings.len()).sum();
        (state.launches.len() + state.failed.len(), meetings, state.early.values().map(Vec::len).sum())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::SeqCst);
        self.core.transport.wake();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let meetings: Vec<_> =
            lock(&self.core.state).launches.drain().flat_map(|(_, launch)| launch.meetings.into_values()).collect();
        self.core.fail_meetings(meetings, &Status::failed_precondition("the worker is shutting down"));
    }
}

impl Program {
    fn logical(&self, ordinal: u32) -> Result<Logical, Status> {
        let here = self.here.get(&ordinal).copied();
        here.ok_or_else(|| Status::failed_precondition(format!("device {ordinal} is not one of the program's")))
    }
}

impl State {
    /// A run id that no running launch has: positive, since XLA makes up its own for 0.
    fn free_run(&mut self) -> i32 {
        loop {
            self.last_run = self.last_run.checked_add(1).unwrap_or(1);
            if !self.runs.contains_key(&self.last_run.into()) {
                return self.last_run;
            }
        }
    }

    fn launch_of(&self, run: i64) -> Result<(LaunchId, &Launch), Status> {
        let launch = self.runs.get(&run).and_then(|launch| Some((*launch, self.launches.get(launch)?)));
        launch.ok_or_else(|| {
            Status::failed_precondition(format!(
                "run {run} is not known to the exchange between slices: a program that spans slices was executed alone"
            ))
        })
    }

    /// Marks a launch as failed and takes out its meetings; with the status it failed with first.
    fn fail(&mut self, launch: LaunchId, status: Status) -> (Vec<Arc<Mutex<Meeting>>>, Status) {
        let status = self.failed.entry(launch).or_insert(status).clone();
        self.early.remove(&launch);
        let meetings = self.launches.get_mut(&launch).map(|launch| launch.meetings.drain().map(|(_, m)| m).collect());
        (meetings.unwrap_or_default(), status)
    }
}

impl Core {
    fn arrive(&self, call: &Call<'_>, completion: Completion) -> Result<(), (Status, Completion)> {
        let prepared = self.prepare(call);
        let (meeting, incarnations, plan, rank) = match prepared {
            Ok(Some(prepared)) => prepared,
            // In no group: XLA gives zeros.
            Ok(None) => {
                for result in call.results {
                    // SAFETY: the caller's result is good for writing its size.
                    unsafe { result.start.write_bytes(0, result.array.bytes) };
                }
                completion(Ok(()));
                return Ok(());
            }
            Err(status) => return Err((status, completion)),
        };
        let arrival = Arrival {
            operands: call.operands.iter().map(|buffer| buffer.start).collect(),
            results: call.results.iter().map(|buffer| buffer.start).collect(),
            completion,
        };
        let post = Post { transport: &*self.transport, incarnations: &incarnations };
        let progress = lock(&meeting).arrive(&post, &plan, rank, arrival);
        match progress {
            Ok(progress) => {
                self.after(&meeting, &incarnations, progress, Some(rank));
                Ok(())
            }
            Err(arrival) => Err((self.why_over(call.run), arrival.completion)),
        }
    }

    /// Finds the meeting that a call goes to, and the rank it comes as.
    #[allow(clippy::type_complexity, reason = "used once, taken apart at once")]
    fn prepare(&self, call: &Call<'_>) -> Result<Option<(Arc<Mutex<Meeting>>, Arc<[u32]>, Arc<Plan>, usize)>, Status> {
        let (launch, program) = {
            let state = lock(&self.state);
            let (id, launch) = state.launch_of(call.run)?;
            (id, launch.program.clone())
        };
        let logical = program.logical(call.ordinal)?;
        let collective = program.collective(call.key, call.spec)?;
        let Some((group, rank)) = collective.places[logical as usize] else { return Ok(None) };
        let arrays = |buffers: &[Buffer]| buffers.iter().map(|buffer| buffer.array).collect::<Vec<_>>();
        let (operands, results) = (arrays(call.operands), arrays(call.results));
        let plan = collective.plan(group, &program, self.transport.me(), &operands, &results)?;

        let mut state = lock(&self.state);
        if let Some(status) = state.failed.get(&launch) {
            return Err(status.clone());
        }
        let Some(begun) = state.launches.get_mut(&launch) else {
            return Err(Status::failed_precondition(format!("launch {launch} has ended")));
        };
        let count = begun.occurrences.entry((call.key, call.ordinal)).or_insert(0);
        let occurrence = *count;
        *count = count.wrapping_add(1);
        let meeting = begun.meeting(MeetingId { launch, key: call.key, group, occurrence });
        Ok(Some((meeting, begun.incarnations.clone(), plan, rank)))
    }

    fn why_over(&self, run: i64) -> Status {
        let state = lock(&self.state);
        let known = state.runs.get(&run).and_then(|launch| state.failed.get(launch)).cloned();
        known.unwrap_or_else(|| Status::failed_precondition("the collective is over"))
    }

    /// Does what an event's outcome asks for. `caller`: the rank that arrives in this call, whose completion is called
    /// here; all others are the pool's, each free to go on with its device's program.
    fn after(
        &self,
        meeting: &Arc<Mutex<Meeting>>,
        incarnations: &[u32],
        mut progress: Progress,
        caller: Option<usize>,
    ) {
        if matches!(progress, Progress::NoRoom) {
            // In the list first, then awaiting, then trying: what is released meanwhile is noticed by one of them.
            {
                let mut stalled = lock(&self.stalled);
                if !stalled.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(meeting))) {
                    stalled.push(Arc::downgrade(meeting));
                }
            }
            self.transport.await_room();
            let post = Post { transport: &*self.transport, incarnations };
            progress = lock(meeting).go_on(&post);
        }
        let Progress::Over(mut completions, result) = progress else { return };
        let id = lock(meeting).id();
        {
            let mut state = lock(&self.state);
            if let Some(launch) = state.launches.get_mut(&id.launch) {
                launch.meetings.remove(&id);
            }
        }
        if let Err(status) = &result {
            // One rank's error is the launch's: the others must not wait for what won't come.
            let (meetings, _) = lock(&self.state).fail(id.launch, status.clone());
            self.fail_meetings(meetings, status);
        }
        let own = completions.iter().position(|(rank, _)| Some(*rank) == caller);
        let own = own.map(|place| completions.swap_remove(place));
        self.complete(completions, &result);
        if let Some((_, own)) = own {
            own(result);
        }
    }

    fn complete(&self, completions: Vec<(usize, Completion)>, result: &Result<(), Status>) {
        for (_, completion) in completions {
            let result = result.clone();
            self.pool.run(move || completion(result));
        }
    }

    fn fail_meetings(&self, meetings: Vec<Arc<Mutex<Meeting>>>, status: &Status) {
        for meeting in meetings {
            let progress = lock(&meeting).fail(status.clone());
            if let Progress::Over(completions, result) = progress {
                self.complete(completions, &result);
            }
        }
    }

    /// The listening thread: takes messages, retries what found no room, sleeps.
    fn listen(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            let over = std::mem::take(&mut lock(&self.state).over);
            let received = self.transport.receive(&mut |message| self.receive(&message));
            self.forget(&over);
            let stalled = std::mem::take(&mut *lock(&self.stalled));
            for meeting in stalled.iter().filter_map(Weak::upgrade) {
                self.go_on(&meeting);
            }
            if received == 0 && over.is_empty() {
                self.transport.sleep(NAP);
            }
        }
    }

    fn receive(&self, message: &Message) {
        let id = message.meeting;
        let (meeting, incarnations) = {
            let mut state = lock(&self.state);
            if state.failed.contains_key(&id.launch) {
                drop(state);
                let post = Post { transport: &*self.transport, incarnations: &[] };
                return post.drop_block(message);
            }
            match state.launches.get_mut(&id.launch) {
                Some(launch) => (launch.meeting(id), launch.incarnations.clone()),
                None => {
                    let post = Post { transport: &*self.transport, incarnations: &[] };
                    if let Some(parcel) = post.unpack(message) {
                        state.early.entry(id.launch).or_default().push(parcel);
                    }
                    return;
                }
            }
        };
        let post = Post { transport: &*self.transport, incarnations: &incarnations };
        let progress = lock(&meeting).receive(&post, message);
        self.after(&meeting, &incarnations, progress, None);
    }

    fn go_on(&self, meeting: &Arc<Mutex<Meeting>>) {
        let launch = lock(meeting).id().launch;
        let Some(incarnations) = lock(&self.state).launches.get(&launch).map(|launch| launch.incarnations.clone())
        else {
            return;
        };
        let post = Post { transport: &*self.transport, incarnations: &incarnations };
        let progress = lock(meeting).go_on(&post);
        self.after(meeting, &incarnations, progress, None);
    }

    fn forget(&self, over: &[LaunchId]) {
        for launch in over {
            let mut state = lock(&self.state);
            state.failed.remove(launch);
            state.early.remove(launch);
            drop(state);
            self.transport.reclaim(*launch);
        }
    }
}
