//! The worker's part in programs that span slices: which of its programs do, and their launches.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::collectives::{Exchange, Program, Shared, ffi};
use super::fates::Fates;
use super::inner::Plugin;
use super::session::Host;
use super::table::Ticket;
use crate::abi::Status;
use crate::wire::message::{ExecutableId, Execute, LaunchId};

/// What the worker knows of spanning programs.
pub(super) struct Spanning {
    /// The memory to meet the other workers in, until the worker has joined.
    memory: Option<OwnedFd>,
    /// Where the exchange gets to know what has failed elsewhere.
    fates: Arc<Fates>,
    /// Whether the plugin has the handlers that spanning programs call: a spare is given programs before it joins.
    handlers: Result<(), Status>,
    exchange: Result<Joined, Status>,
    programs: HashMap<ExecutableId, Arc<Program>>,
    /// Run ids of launches that have begun and not been executed.
    begun: HashMap<LaunchId, Result<i32, Status>>,
    /// The launch that was parked last, which later ones must come after for as long as it is.
    pub(super) waiting: Option<Ticket>,
}

/// The exchange, and this worker's slice.
#[derive(Clone)]
struct Joined {
    exchange: Arc<Exchange>,
    slice: u32,
}

/// A launch of a spanning program that is being executed; ends in the exchange when its last device is done.
#[derive(Clone)]
pub(super) struct Running {
    exchange: Arc<Exchange>,
    launch: LaunchId,
    devices: Arc<AtomicU32>,
}

impl Running {
    /// The launch was refused: the exchange forgets it but for its having failed.
    pub(super) fn fail(&self, status: &Status) {
        self.exchange.fail(self.launch, status.clone());
        self.exchange.end(self.launch);
    }

    /// One device is done with the launch, well or not.
    pub(super) fn device_is_done(&self) {
        if self.devices.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.exchange.end(self.launch);
        }
    }
}

impl Spanning {
    /// Nothing but the memory to meet in, where the client has passed one on.
    pub(super) fn new(memory: Option<OwnedFd>, fates: Arc<Fates>) -> Self {
        let exchange = Err(Status::failed_precondition("this worker has not joined the exchange between slices"));
        let handlers = exchange.clone().map(drop);
        Self { memory, fates, handlers, exchange, programs: HashMap::new(), begun: HashMap::new(), waiting: None }
    }

    /// Gives the plugin the handlers that spanning programs call, where there may be such programs.
    pub(super) fn register(&mut self, plugin: &Plugin) {
        if self.memory.is_some() {
            self.handlers = ffi::register(plugin);
        }
    }

    fn join(&mut self, slice: u32, incarnation: u32, devices: usize) -> Result<Joined, Status> {
        let memory = self.memory.take();
        let memory =
            memory.ok_or_else(|| Status::failed_precondition("this worker has no memory to exchange data in"))?;
        self.handlers.clone()?;
        let shared = Shared::attach(memory, slice, incarnation)?;
        let exchange = Arc::new(Exchange::start(Box::new(shared), devices)?);
        ffi::install(Some(exchange.clone()));
        self.fates.tell(&exchange);
        Ok(Joined { exchange, slice })
    }

    /// A program that is to be loaded spans slices.
    pub(super) fn program(&mut self, executable: ExecutableId, partitions: u32, places: &[(u32, u32)]) {
        if let Ok(joined) = &self.exchange {
            self.programs.insert(executable, Arc::new(Program::new(partitions, places, joined.slice)));
        }
    }

    /// A program is unloaded.
    pub(super) fn forget(&mut self, executable: ExecutableId) {
        self.programs.remove(&executable);
    }

    /// A launch begins.
    pub(super) fn begin(&mut self, launch: LaunchId, executable: ExecutableId, participants: &[(u32, u32)]) {
        let run = self.exchange.clone().and_then(|joined| {
            let program = self.programs.get(&executable);
            let program = program.ok_or_else(|| {
                Status::failed_precondition(format!("program {executable} is none that spans slices"))
            })?;
            Ok(joined.exchange.begin(launch, program, participants))
        });
        self.begun.insert(launch, run);
    }

    /// Whether a launch spans slices, and is still to be executed.
    pub(super) fn has_begun(&self, launch: LaunchId) -> bool {
        self.begun.contains_key(&launch)
    }

    /// What to execute a launch with: the launch id, and where the launch spans slices, who is to hear of its end.
    pub(super) fn start(&mut self, execute: &Execute) -> Result<(i32, Option<Running>), Status> {
        let Some(run) = self.begun.remove(&execute.launch) else { return Ok((execute.launch_id, None)) };
        let (run, joined) = (run?, self.exchange.clone()?);
        let devices = Arc::new(AtomicU32::new(execute.num_devices.max(1)));
        Ok((run, Some(Running { exchange: joined.exchange, launch: execute.launch, devices })))
    }
}

impl Host {
    /// Takes a slice's place in the exchange. An error is told by every launch that spans slices.
    pub(super) fn join(&mut self, slice: u32, incarnation: u32) {
        let devices = self.client.as_ref().map_or(1, |client| client.devices().count());
        self.spanning.exchange = self.spanning.join(slice, incarnation, devices);
        if let Err(status) = &self.spanning.exchange {
            tracing::warn!(%status, slice, incarnation, "the worker can't take part in programs that span slices");
        }
    }
}
