//! The compiler: a process of its own that every client of this process with the same inner plugin shares.
//!
//! A compilation that kills it (a failed check in XLA aborts the process) fails alone: it is told so, others that were under
//! way are compiled again, and the next compilation finds a fresh process.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::buffer::unexpected;
use super::listen;
use super::session::Session;
use crate::abi::{Code, Status};
use crate::config::Config;
use crate::program::artifact::{Artifact, Part};
use crate::sync::lock;
use crate::wire::message::{
    Command, CompileJob, CompiledSpanning, NamedValue, Query, Reply, SpanningJob, TopologyInfo, TopologySource,
};
use crate::worker::planner::clear_up_after;

/// What compiled programs may take up in memory before the oldest are forgotten.
const KEPT_BYTES: usize = 256 << 20;
/// How long the process may take to leave when it is told to.
const LEAVE: Duration = Duration::from_secs(5);

/// All compilers of this process, by what they are started with.
static COMPILERS: Mutex<Vec<Arc<Compiler>>> = Mutex::new(Vec::new());

/// A compiler process, started when needed.
pub struct Compiler {
    config: Config,
    state: Mutex<State>,
    /// Held to read by every compilation, to write by one that is to be alone.
    alone: RwLock<()>,
    in_flight: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct State {
    users: usize,
    session: Option<Arc<Session>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// By when the process has to have left; set as it is told to.
    leave_by: Arc<OnceLock<Instant>>,
}

/// Programs that were compiled, by what they were compiled from.
#[derive(Default)]
struct Kept {
    programs: HashMap<u128, Arc<CompiledSpanning>>,
    order: VecDeque<(u128, usize)>,
    bytes: usize,
}

/// The inner plugin's attributes, also before there is a client.
pub fn plugin_attributes() -> Result<Vec<NamedValue>, Status> {
    match Compiler::of_environment()?.query(Query::PluginAttributes)? {
        Reply::Attributes(attributes) => Ok(attributes),
        other => Err(unexpected(&other)),
    }
}

/// What the inner plugin says of a topology.
pub fn topology(source: &TopologySource) -> Result<TopologyInfo, Status> {
    match Compiler::of_environment()?.query(Query::Topology(source.clone()))? {
        Reply::Topology(info) => Ok(*info),
        other => Err(unexpected(&other)),
    }
}

/// Compiles ahead of time for a topology.
pub fn compile_for_topology(
    topology: &TopologySource,
    format: String,
    code: Vec<u8>,
    options: &[u8],
) -> Result<Artifact, Status> {
    let job = CompileJob { format, code: code.into(), options: options.into(), client_options: Vec::new() };
    let query = Query::CompileForTopology { topology: topology.clone(), job };
    match Compiler::of_environment()?.query(query)? {
        Reply::Compiled(compiled) => Ok(Artifact {
            parts: vec![Part { devices: Vec::new(), serialized: compiled.serialized?, options: options.into() }],
            original_options: options.into(),
            assignment: Vec::new(),
            info: compiled.info,
            global: None,
        }),
        other => Err(unexpected(&other)),
    }
}

/// What is known of a program that spans slices once it is compiled for all its devices at once. Takes as long as that does;
/// the answer is kept as other compilations are.
pub fn global(job: &CompileJob) -> Result<Arc<CompiledSpanning>, Status> {
    Compiler::of_environment()?.compile(&Job::Whole(job.clone()))
}

impl Compiler {
    /// The compiler for what the environment configures.
    fn of_environment() -> Result<Arc<Self>, Status> {
        // A client that exists says best what is configured: its options win over the environment.
        if let Some(used) = Self::all().iter().find(|compiler| compiler.state().users > 0) {
            return Ok(used.clone());
        }
        Ok(Self::get(&Config::load(&[])?))
    }

    fn all() -> std::sync::MutexGuard<'static, Vec<Arc<Self>>> {
        lock(&COMPILERS)
    }

    fn get(config: &Config) -> Arc<Self> {
        let mut all = Self::all();
        let same = |compiler: &&Arc<Self>| compiler.key() == (&config.plugin, &config.worker);
        if let Some(known) = all.iter().find(same) {
            return known.clone();
        }
        let compiler = Arc::new(Self {
            config: config.clone(),
            state: Mutex::default(),
            alone: RwLock::new(()),
            in_flight: AtomicUsize::new(0),
            kept: Mutex::default(),
        });
        all.push(compiler.clone());
        compiler
    }

    fn key(&self) -> (&PathBuf, &PathBuf) {
        (&self.config.plugin, &self.config.worker)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The compiler for a client, which gives it back with [`Compiler::leave`].
    pub fn join(config: &Config) -> Arc<Self> {
        let compiler = Self::get(config);
        compiler.state().users += 1;
        compiler
    }

    /// A client needs it no more. The process ends with the last one.
    pub fn leave(&self) {
        let mut state = self.state();
        state.users = state.users.saturating_sub(1);
        if state.users > 0 {
            return;
        }
        let (session, thread) = (state.session.take(), state.thread.take());
        let _ = state.leave_by.set(Instant::now() + LEAVE);
        drop(state);
        Self::all().retain(|compiler| !std::ptr::eq(&**compiler, self));
        if let Some(session) = session {
            session.send(&Command::Shutdown);
            session.wake_listener();
        }
        if let Some(thread) = thread {
            // A panic of the thread was reported by it already.
            let _ = thread.join();
        }
    }

    /// Starts the process if it is not there.
    fn session(&self) -> Result<Arc<Session>, Status> {
        let mut state = self.state();
        if let Some(session) = &state.session
            && session.lost().is_none()
        {
            return Ok(session.clone());
        }
        if let Some(finished) = state.thread.take() {
            // It ends on its own once its process has; a panic of it was reported already.
            let _ = finished.join();
        }
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (config, leave_by) = (self.config.clone(), Arc::new(OnceLock::new()));
        state.leave_by = leave_by.clone();
        let run = move || run(&config, &leave_by, &tell);
        let thread = std::thread::Builder::new().name("mainstay-compiler".into()).spawn(run);
        state.thread =
            Some(thread.map_err(|error| Status::exhausted(format!("no thread for the compiler can be had: {error}")))?);
        let session =
            told.recv().unwrap_or_else(|_| Err(Status::new(Code::Aborted, "the compiler's thread ended early")))?;
        state.session = Some(session.clone());
        Ok(session)
    }

    /// Asks a question. One that finds the process dying is asked once more.
    pub fn query(&self, query: Query) -> Result<Reply, Status> {
        let session = self.session()?;
        let reply = session.query(query.clone());
        if reply.is_err() && session.lost().is_some() {
            return self.session()?.query(query);
        }
        reply
    }

    /// Compiles a program, or finds what was compiled from the same before.
    pub fn compile(&self, job: &Job) -> Result<Arc<CompiledSpanning>, Status> {
        let key = job.key();
        if let Some(kept) = lock(&self.kept).programs.get(&key) {
            return Ok(kept.clone());
        }
        let compiled = Arc::new(self.compile_anew(job)?);
        if compiled.parts.iter().all(|part| part.serialized.is_ok()) {
            lock(&self.kept).keep(key, &compiled);
        }
        Ok(compiled)
    }

    fn compile_anew(&self, job: &Job) -> Result<CompiledSpanning, Status> {
        let shared = self.alone.read().unwrap_or_else(PoisonError::into_inner);
        let others_before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let session = self.session();
        let result = session.clone().and_then(|session| job.compile_in(&session));
        let others_after = self.in_flight.fetch_sub(1, Ordering::AcqRel) - 1;
        drop(shared);
        let crashed = result.is_err() && session.is_ok_and(|session| session.lost().is_some());
        if !crashed || others_before + others_after == 0 {
            return result;
        }
        // Somebody's program killed the process, maybe this one: it is tried alone, and the blame is certain then.
        let _alone = self.alone.write().unwrap_or_else(PoisonError::into_inner);
        let session = self.session()?;
        job.compile_in(&session)
    }
}

/// What is to be compiled.
#[derive(Clone, Debug)]
pub enum Job {
    /// A program for one slice's devices.
    Whole(CompileJob),
    /// A program for devices of several slices.
    Spanning(SpanningJob),
}

impl Job {
    /// Compiles in a process that is there. A program for one slice has one part.
    pub fn compile_in(&self, session: &Session) -> Result<CompiledSpanning, Status> {
        match self {
            Self::Whole(job) => match session.ask(|request| Command::Compile { request, job: job.clone() })? {
                Reply::Compiled(compiled) => {
                    Ok(CompiledSpanning { info: compiled.info.clone(), parts: vec![*compiled] })
                }
                other => Err(unexpected(&other)),
            },
            Self::Spanning(job) => {
                match session.ask(|request| Command::CompileSpanning { request, job: job.clone() })? {
                    Reply::Spanning(compiled) => Ok(*compiled),
                    other => Err(unexpected(&other)),
                }
            }
        }
    }

    /// The same for the same work.
    fn key(&self) -> u128 {
        let (program, parts) = match self {
            Self::Whole(job) => (job, None),
            Self::Spanning(job) => (&job.program, Some(&job.parts)),
        };
        let mut hasher = twox_hash::XxHash3_128::new();
        let rest = format!("{}\0{:?}\0{parts:?}\0{}\0", program.format, program.client_options, program.options.len());
        for part in [rest.as_bytes(), &program.options, &program.code] {
            hasher.write(part);
        }
        hasher.finish_128()
    }
}

/// The life of one compiler process, on a thread of its own.
fn run(
    config: &Config,
    leave_by: &OnceLock<Instant>,
    tell: &std::sync::mpsc::SyncSender<Result<Arc<Session>, Status>>,
) {
    let mut running = match listen::Compiler::start(config) {
        Ok(running) => running,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    let session = running.session().clone();
    let _ = tell.send(Ok(session.clone()));
    let words = running.listen(config.heartbeat_timeout, leave_by);
    session.close(Status::new(
        Code::Aborted,
        format!("the compiler process (pid {}) {words}; the next compilation starts a fresh one", session.pid),
    ));
    let pid = session.pid;
    running.reap();
    clear_up_after(pid);
}

impl Kept {
    fn keep(&mut self, key: u128, compiled: &Arc<CompiledSpanning>) {
        let serialized: usize = compiled.parts.iter().flat_map(|part| &part.serialized).map(|bytes| bytes.len()).sum();
        let optimized = compiled.info.optimized_program.as_ref().map_or(0, |(_, code)| code.len());
        let bytes = serialized + optimized;
        if self.programs.insert(key, compiled.clone()).is_none() {
            self.order.push_back((key, bytes));
            self.bytes += bytes;
        }
        while self.bytes > KEPT_BYTES {
            let Some((oldest, freed)) = self.order.pop_front() else { return };
            self.programs.remove(&oldest);
            self.bytes -= freed;
        }
    }
}
