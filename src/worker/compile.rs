//! Compilation, and the clients to compile with: in the compiler process made at first need, one per distinct list of
//! create options; in a worker the slice's own.

use std::sync::{Arc, Mutex};

use super::describe;
use super::inner::{Client, Plugin, Program, Topology};
use super::jobs::Jobs;
use super::session::Host;
use crate::abi::Status;
use crate::sync::lock;
use crate::wire::message::{CompileJob, Compiled, NamedValue, Reply, RequestId, SpanningJob, TopologySource};

/// Compiles on threads of its own.
pub(super) struct Compiler {
    pub(super) plugin: &'static Plugin,
    own: Option<Client>,
    clients: Mutex<Vec<Slot>>,
    pub(super) jobs: Jobs,
}

/// The client of one list of options; the lock is held while it is made.
type Slot = (Vec<NamedValue>, Arc<Mutex<Option<Client>>>);

impl Compiler {
    /// A compiler that uses `own` for everything where there is one.
    pub(super) fn new(plugin: &'static Plugin, own: Option<Client>) -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        Self { plugin, own, clients: Mutex::new(Vec::new()), jobs: Jobs::new(most) }
    }

    /// The client to compile with. The first caller with new options waits for its creation, and so do those with the
    /// same ones; a failed creation is tried again by the next.
    pub(super) fn client(&self, options: &[NamedValue]) -> Result<Client, Status> {
        if let Some(own) = &self.own {
            return Ok(own.clone());
        }
        let slot = self.slot(options);
        let mut client = lock(&slot);
        if client.is_none() {
            *client = Some(Client::new(self.plugin, options)?);
        }
        client.clone().ok_or_else(|| Status::failed_precondition("there is no client to compile with"))
    }

    fn slot(&self, options: &[NamedValue]) -> Arc<Mutex<Option<Client>>> {
        let mut clients = lock(&self.clients);
        if let Some((_, slot)) = clients.iter().find(|(known, _)| known == options) {
            return slot.clone();
        }
        let slot = Arc::new(Mutex::new(None));
        clients.push((options.to_vec(), slot.clone()));
        slot
    }

    /// Compiles for devices of a client.
    fn compile(&self, job: &CompileJob) -> Result<Compiled, Status> {
        let client = self.client(&job.client_options)?;
        let loaded = client.compile(program(job), &job.options)?;
        describe::loaded(&loaded, &|kind, dims| client.default_layout(kind, dims))
    }

    /// Compiles for a topology, of which no device need be here.
    pub(super) fn compile_for_topology(&self, source: &TopologySource, job: &CompileJob) -> Result<Compiled, Status> {
        self.with_topology(source, |topology| {
            let executable = topology.compile(program(job), &job.options)?;
            describe::executable(&executable, &|kind, dims| topology.default_layout(kind, dims))
        })
    }

    /// Does something with a topology.
    pub(super) fn with_topology<T>(
        &self,
        source: &TopologySource,
        act: impl FnOnce(&Topology<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        match source {
            TopologySource::Name { name, options } => act(&Topology::by_name(self.plugin, name, options)?),
            TopologySource::Serialized(serialized) => act(&Topology::deserialize(self.plugin, serialized)?),
            TopologySource::Client(options) => act(&self.client(options)?.topology()?),
        }
    }

    /// Describes a program that was compiled earlier.
    pub(super) fn inspect(
        &self,
        serialized: &[u8],
        options: &[u8],
        client_options: &[NamedValue],
    ) -> Result<Compiled, Status> {
        let client = self.client(client_options)?;
        let loaded = client.load(serialized, options)?;
        describe::loaded(&loaded, &|kind, dims| client.default_layout(kind, dims))
    }

    /// Destroys the clients that were made here. No job runs any more.
    pub(super) fn shut_down(&self) {
        lock(&self.clients).clear();
    }
}

fn program(job: &CompileJob) -> Program<'_> {
    Program { format: &job.format, code: &job.code }
}

impl Host {
    /// Compiles on a thread of its own, and answers when done.
    pub(super) fn compile(&self, request: RequestId, job: CompileJob) {
        self.answer_later(request, move |compiler| compiler.compile(&job).map(compiled));
    }

    /// Plans and compiles a program that spans slices on a thread of its own, and answers when done.
    pub(super) fn compile_spanning(&self, request: RequestId, job: SpanningJob) {
        self.answer_later(request, move |compiler| {
            compiler.compile_spanning(&job).map(|compiled| Reply::Spanning(Box::new(compiled)))
        });
    }

    /// Has a question answered on a thread of its own.
    pub(super) fn answer_later(
        &self,
        request: RequestId,
        answer: impl FnOnce(&Compiler) -> Result<Reply, Status> + Send + 'static,
    ) {
        let (compiler, outbox, flight) = (self.compiler.clone(), self.outbox.clone(), self.outbox.take_off());
        self.compiler.jobs.run(move || {
            let result = answer(&compiler);
            drop(compiler);
            outbox.reply(request, result);
            drop(flight);
        });
    }
}

/// The reply that a compiled program is.
pub(super) fn compiled(compiled: Compiled) -> Reply {
    Reply::Compiled(Box::new(compiled))
}
