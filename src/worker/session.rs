//! The worker's side of the conversation: takes commands one by one, parks what must wait, performs the rest.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use smallvec::SmallVec;

use super::background::Background;
use super::compile::Compiler;
use super::describe;
use super::fates::Fates;
use super::heap;
use super::inner::{Buffer, Client, Plugin};
use super::lane::Lane;
use super::launch::Program;
use super::misdeeds::Misdeeds;
use super::outbox::Outbox;
use super::spanning::Spanning;
use super::table::Table;
use crate::abi::Status;
use crate::wire::arena::ArenaView;
use crate::wire::ids::IdMap;
use crate::wire::message::{BufferId, ClientDescription, Command, Execute, Extent, Query, Report, Start, Wanted};

/// What is to be done after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Take the next one.
    GoOn,
    /// Leave: all is finished.
    Leave,
}

/// The conversation with the client: at first only [`Command::Start`] makes sense.
pub struct Session {
    outbox: Outbox,
    arena: Option<&'static ArenaView>,
    exchange: Option<OwnedFd>,
    heap: Option<OwnedFd>,
    fates: Arc<Fates>,
    host: Option<Host>,
}

impl Session {
    /// A conversation that has not begun.
    pub fn new(
        outbox: Outbox,
        arena: Option<&'static ArenaView>,
        exchange: Option<OwnedFd>,
        heap: Option<OwnedFd>,
        fates: Arc<Fates>,
    ) -> Self {
        Self { outbox, arena, exchange, heap, fates, host: None }
    }

    /// Does what a command says, or has it done.
    pub fn handle(&mut self, command: Command) -> After {
        match (command, &mut self.host) {
            (Command::Start(start), None) => self.start(&start),
            (Command::Shutdown, _) => {
                self.outbox.wait_until_idle();
                if let Some(host) = self.host.take() {
                    host.shut_down();
                }
                return After::Leave;
            }
            (command, Some(host)) => host.dispatch(command),
            // After a failed start; the client knows, and has nothing to hope for.
            (command, None) => tracing::debug!(?command, "nothing to do this with"),
        }
        After::GoOn
    }

    /// Takes what other threads have left for this one.
    pub fn go_on(&mut self) {
        if let Some(host) = &mut self.host {
            host.go_on();
        }
    }

    /// From now on buffers come from the heap: the plugin computes in host memory.
    fn start_heap(&mut self, slack: u64) {
        if let Some(Err(error)) = self.heap.take().map(|fd| heap::start(fd, slack, self.arena)) {
            tracing::warn!(%error, "the client can't read device memory in place");
        }
    }

    fn start(&mut self, start: &Start) {
        let spanning = Spanning::new(self.exchange.take(), self.fates.clone());
        let result = Host::new(start, self.outbox.clone(), self.arena, spanning);
        let result = result.and_then(|mut host| {
            let description = host.describe()?;
            host.computes_in_host_memory =
                description.as_ref().is_some_and(|client| client.platform_name.eq_ignore_ascii_case("cpu"));
            if host.computes_in_host_memory {
                self.start_heap(start.heap_slack);
            }
            self.host = Some(host);
            Ok(description)
        });
        if let Err(status) = &result {
            tracing::warn!(%status, plugin = %start.plugin.display(), "the worker can't start");
        }
        self.outbox.send(Report::Started(result));
    }
}

/// The inner plugin, the slice's client of it, and all that the client's process has made there.
pub(super) struct Host {
    pub(super) plugin: &'static Plugin,
    /// Absent in the compiler process.
    pub(super) client: Option<Client>,
    pub(super) compiler: Arc<Compiler>,
    pub(super) table: Table<Arc<Buffer>, Task>,
    pub(super) programs: IdMap<Result<Arc<Program>, Status>>,
    pub(super) outbox: Outbox,
    pub(super) background: Background,
    pub(super) spanning: Spanning,
    pub(super) lane: Lane,
    pub(super) misdeeds: Misdeeds,
    /// Whether device memory is host memory.
    computes_in_host_memory: bool,
    arena: Option<&'static ArenaView>,
}

/// A command, and what must be kept for it while it is parked.
pub(super) struct Task {
    command: Command,
    /// The program of a launch, which may be unloaded meanwhile.
    program: Option<Result<Arc<Program>, Status>>,
    /// Whether it is a launch that spans slices.
    spans: bool,
}

impl Task {
    /// Whether it may block whoever runs it until other slices have come: XLA's CPU plugin runs small programs of one
    /// device inside its `Execute`.
    fn may_block(&self) -> bool {
        self.spans && matches!(&self.command, Command::Execute(execute) if execute.num_devices == 1)
    }

    /// The buffers whose values the command needs.
    fn reads(&self) -> &[BufferId] {
        match &self.command {
            Command::Execute(execute) => &execute.arguments,
            Command::Alias { source: buffer, .. }
            | Command::Copy { source: buffer, .. }
            | Command::Bitcast { source: buffer, .. }
            | Command::Download { buffer, .. }
            | Command::ReadRaw { buffer, .. }
            | Command::Ask { query: Query::OnDeviceSize { buffer }, .. } => std::slice::from_ref(buffer),
            _ => &[],
        }
    }

    /// Those of them that it uses up.
    fn consumes(&self) -> SmallVec<[BufferId; 8]> {
        match (&self.command, &self.program) {
            (Command::Execute(execute), Some(Ok(program))) => program.donated_arguments(execute),
            (Command::Bitcast { source, .. }, _) => SmallVec::from_slice(&[*source]),
            _ => SmallVec::new(),
        }
    }

    /// The buffers that it gives a value to.
    fn outputs(&self) -> SmallVec<[BufferId; 8]> {
        match &self.command {
            Command::Execute(execute) => output_ids(execute).collect(),
            Command::Alias { buffer, .. } | Command::Copy { buffer, .. } | Command::Bitcast { buffer, .. } => {
                SmallVec::from_slice(&[*buffer])
            }
            _ => SmallVec::new(),
        }
    }
}

impl Host {
    fn new(
        start: &Start,
        outbox: Outbox,
        arena: Option<&'static ArenaView>,
        mut spanning: Spanning,
    ) -> Result<Self, Status> {
        let plugin = Plugin::load(&start.plugin)?;
        spanning.register(plugin);
        let client = start.create_client.then(|| Client::new(plugin, &start.options)).transpose()?;
        Ok(Self {
            plugin,
            compiler: Arc::new(Compiler::new(plugin, client.clone())),
            client,
            table: Table::new(),
            programs: IdMap::default(),
            outbox,
            background: Background::start("mainstay-background"),
            spanning,
            lane: Lane::start(),
            misdeeds: Misdeeds::default(),
            computes_in_host_memory: false,
            arena,
        })
    }

    fn describe(&self) -> Result<Option<Box<ClientDescription>>, Status> {
        let describe = |client| describe::client(self.plugin, client).map(Box::new);
        self.client.as_ref().map(describe).transpose()
    }

    /// Performs a command, or parks it; then performs what has become ready.
    fn dispatch(&mut self, command: Command) {
        let (program, spans) = match &command {
            Command::Execute(execute) => (Some(self.program(execute)), self.spanning.has_begun(execute.launch)),
            _ => (None, false),
        };
        let task = Task { command, program, spans };
        let consumes = task.consumes();
        // Launches that span slices keep their order, which is the same on all slices: see docs/architecture.md.
        let after = self.spanning.waiting.filter(|ticket| spans && self.table.is_parked(*ticket));
        if after.is_some() || task.may_block() || self.table.must_wait(task.reads(), &consumes) {
            let (reads, outputs) = (SmallVec::<[BufferId; 8]>::from_slice(task.reads()), task.outputs());
            let ticket = self.table.park(task, &reads, &consumes, &outputs, after);
            if spans {
                self.spanning.waiting = Some(ticket);
            }
        } else {
            self.perform(task);
            consumes.into_iter().for_each(|buffer| self.table.destroy(buffer));
        }
        self.go_on();
    }

    /// Performs what has become ready, and takes in what the lane has done.
    pub(super) fn go_on(&mut self) {
        loop {
            if let Some(returned) = self.lane.returned() {
                self.take_back(returned);
            } else if let Some((ticket, task)) = self.table.next_ready() {
                match task {
                    Task { command: Command::Execute(execute), program: Some(program), .. } if task.may_block() => {
                        self.execute_aside(ticket, execute, program);
                    }
                    _ => {
                        self.perform(task);
                        self.table.finish(ticket);
                    }
                }
            } else {
                return;
            }
        }
    }

    /// Does what a command says; all buffers that it reads have their values.
    fn perform(&mut self, task: Task) {
        match task.command {
            Command::Start(_) => tracing::error!("told to start twice"),
            Command::Misbehave(misbehaviour) => self.misdeeds.take(misbehaviour),
            // Handled by the session.
            Command::Shutdown => {}
            Command::Declare { buffers } => buffers.iter().for_each(|buffer| self.table.declare(*buffer)),
            Command::Upload { buffer, spec, data, quiet } => self.upload(buffer, &spec, data, quiet),
            Command::Fail { buffer, status } => self.fail(buffer, status),
            Command::Uninitialized { buffer, spec } => self.uninitialized(buffer, &spec),
            Command::Alias { buffer, source } => self.alias(buffer, source),
            Command::Copy { source, buffer, memory } => self.copy(source, buffer, memory),
            Command::Bitcast { source, buffer, spec } => self.bitcast(source, buffer, &spec),
            Command::Download { request, buffer, minor_to_major, to } => {
                self.download(request, buffer, minor_to_major, to);
            }
            Command::Downloads { first, downloads } => {
                for (request, Wanted { buffer, from, to }) in (first..).zip(downloads) {
                    self.dispatch(match from {
                        Some(offset) => Command::ReadRaw { request, buffer, offset, to },
                        None => Command::Download { request, buffer, minor_to_major: SmallVec::new(), to },
                    });
                }
            }
            Command::ReadRaw { request, buffer, offset, to } => self.read_raw(request, buffer, offset, to),
            Command::Destroy { buffers } => buffers.iter().for_each(|buffer| self.table.destroy(*buffer)),
            Command::Load { executable, serialized, options, donated } => {
                self.load(executable, &serialized, &options, donated);
            }
            Command::Unload { executable } => {
                self.spanning.forget(executable);
                drop(self.programs.remove(&executable));
            }
            Command::Execute(execute) => {
                let program = task.program.unwrap_or_else(|| self.program(&execute));
                self.execute(&execute, program);
            }
            Command::Join { slice, incarnation } => self.join(slice, incarnation),
            Command::Spans { executable, partitions, places } => {
                self.spanning.program(executable, partitions, &places);
            }
            Command::Begin { launch, executable, participants } => {
                self.spanning.begin(launch, executable, &participants);
            }
            Command::Compile { request, job } => self.compile(request, job),
            Command::CompileSpanning { request, job } => self.compile_spanning(request, job),
            Command::Ask { request, query } => self.ask(request, query),
            Command::Populate { extent } => self.populate(extent),
            Command::GiveBack => heap::give_back(),
        }
    }

    /// The slice's client.
    pub(super) fn client(&self) -> Result<&Client, Status> {
        self.client.as_ref().ok_or_else(|| {
            Status::failed_precondition("this process was started to compile: it has no client of its own")
        })
    }

    /// The address of a stretch of the arena.
    pub(super) fn arena_at(&self, extent: Extent) -> Result<*mut u8, Status> {
        let arena =
            self.arena.ok_or_else(|| Status::failed_precondition("this worker was started without an arena"))?;
        Ok(arena.at(extent)?.as_ptr())
    }

    /// Makes a stretch of the arena present here and, where devices have memory of their own, known to them: they copy
    /// from and to it at the speed of the bus then.
    fn populate(&self, extent: Extent) {
        let Some(arena) = self.arena else { return };
        let client = self.client.clone().filter(|_| !self.computes_in_host_memory);
        self.background.run(move || {
            arena.populate(extent);
            let (Some(client), Ok(start)) = (client, arena.at(extent)) else { return };
            // SAFETY: the arena is mapped for good, and the client gives no memory of it back to the machine where devices
            // have memory of their own (`Arena::keep_all`).
            if let Err(status) = unsafe { client.dma_map(start, extent.len as usize) } {
                tracing::debug!(%status, "devices don't copy directly to and from host memory");
            }
        });
    }

    /// Gives everything back to the plugin, the client last. Nothing is in flight any more.
    fn shut_down(mut self) {
        self.table.clear();
        self.programs.clear();
        self.compiler.shut_down();
        self.background.wait();
        self.lane.stop();
        drop(self.client);
    }
}

/// The output buffers of all devices of a launch.
pub(super) fn output_ids(execute: &Execute) -> impl Iterator<Item = BufferId> + use<> {
    let count = u64::from(execute.num_devices) * u64::from(execute.num_outputs);
    execute.first_output..execute.first_output.saturating_add(count)
}
