//! The client: all slices as one set of devices, with what they share.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::buffer::{Place, Shape, unexpected};
use super::compiler::Compiler;
use super::copier::Copier;
use super::device::{Device, Memory, combine};
use super::listen::Worker;
use super::process;
use super::program::Program;
use super::session::Session;
use super::slice::Slice;
use super::spares::Spares;
use crate::abi::Status;
use crate::config::{Config, MOST_SLICES};
use crate::sync::lock;
use crate::wire::arena::{Arena, ArenaOptions, Block, Commit};
use crate::wire::machine;
use crate::wire::message::{ExecutableId, Layout, NamedValue, Query, Reply, Start, TopologySource, Value};
use crate::worker::collectives::{MAX_SLOTS, create_region};

/// Room that each slice has for what it sends to others in programs that span slices. Taken from the machine when used.
const EXCHANGE_BYTES: usize = 256 << 20;
/// This part of the machine's memory may lie free in the heaps of all workers together.
const HEAP_SLACK_PART: u64 = 16;

/// For so long the client waits for workers to give memory back.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);

const _: () = assert!(MOST_SLICES as usize <= MAX_SLOTS);

/// The client that a framework sees.
pub struct Client {
    /// The inner plugin's platform name.
    pub platform_name: String,
    /// The inner plugin's platform version.
    pub platform_version: String,
    /// All devices, slice by slice.
    pub devices: Vec<Device>,
    /// All memories, slice by slice.
    pub memories: Vec<Memory>,
    slices: Vec<Arc<Slice>>,
    shared: Arc<Shared>,
    compiler: Arc<Compiler>,
    is_down: AtomicBool,
    spanning_order: Mutex<()>,
    copier: Copier,
    layouts: Mutex<HashMap<Shape, KnownLayout>>,
}

/// A default layout: the interface's structure and the plugin's text.
pub type KnownLayout = (Layout, Arc<str>);

/// What the slices of a client share.
pub struct Shared {
    /// The client's configuration.
    pub config: Config,
    /// Host memory that all workers map.
    pub arena: Arc<Arena>,
    /// Memory in which the slices' workers exchange data; absent where there is one slice only.
    pub exchange: Option<OwnedFd>,
    /// All slices, for each to tell the others of its loss.
    pub peers: OnceLock<Vec<Weak<Slice>>>,
    /// Workers for slices that lose theirs.
    pub spares: Spares,
    ids: AtomicU64,
    programs: Mutex<HashMap<ExecutableId, Weak<Program>>>,
}

impl Shared {
    /// Starts a worker with the memory that all share. On a thread that outlives it, see [`Worker::start`].
    pub fn start_worker(&self, label: &str, place: (u32, u64)) -> Result<Worker, Status> {
        let exchange = self.exchange.as_ref().map(|exchange| exchange.as_fd());
        let memory = process::Memory { arena: Some(self.arena.fd()), exchange, heap: None };
        let start = Start {
            plugin: self.config.plugin.clone(),
            options: self.config.inner_options(),
            create_client: true,
            heap_slack: self.heap_slack(),
        };
        Worker::start(&self.config, label, place, memory, start)
    }

    /// Bytes of freed device memory that each worker may keep, where that is host memory.
    fn heap_slack(&self) -> u64 {
        let workers = u64::from(self.config.slices + self.config.spares);
        machine::memory().map_or(0, |memory| memory.total / HEAP_SLACK_PART / workers.max(1))
    }

    /// A number that was not given out before: buffers, programs, launches and loans are numbered alike.
    pub fn fresh_ids(&self, count: u64) -> u64 {
        self.ids.fetch_add(count, Ordering::Relaxed)
    }

    /// The other slices' sessions, as far as they are up.
    pub fn others(&self, index: u32) -> Vec<Arc<Session>> {
        let peers = self.peers.get().into_iter().flatten().filter_map(Weak::upgrade);
        peers.filter(|slice| slice.index != index).filter_map(|slice| slice.current_if_any()).collect()
    }

    /// The programs that are alive.
    pub fn programs(&self) -> Vec<Arc<Program>> {
        lock(&self.programs).values().filter_map(Weak::upgrade).collect()
    }
}

impl Client {
    /// Starts the slices' workers and waits until all are there.
    ///
    /// # Errors
    /// What is wrong with the configuration, the inner plugin or the machine; nothing is left behind then.
    pub fn create(options: &[NamedValue]) -> Result<Arc<Self>, Status> {
        let config = Config::load(options)?;
        crate::logging::start(&config.log);
        let placement = config.host_memory_nodes.clone();
        let arena = ArenaOptions { placement, ..ArenaOptions::new(config.host_memory) };
        let arena = Arena::new(arena).map_err(|error| {
            Status::exhausted(format!(
                "host memory of {} bytes (MAINSTAY_HOST_MEMORY) cannot be had: {error}",
                config.host_memory
            ))
        })?;
        let exchange =
            (config.slices > 1).then(|| create_region(config.slices as usize, EXCHANGE_BYTES)).transpose()?;
        let shared = Arc::new(Shared {
            arena,
            exchange,
            peers: OnceLock::new(),
            spares: Spares::default(),
            ids: AtomicU64::new(1),
            programs: Mutex::default(),
            config,
        });
        let mut slices = Vec::new();
        for index in 0..shared.config.slices {
            slices.push(Slice::start(index, &shared).inspect_err(|_| stop(&slices))?);
        }
        // Set once: this is the only place that knows the slices first.
        let _ = shared.peers.set(slices.iter().map(Arc::downgrade).collect());
        let sessions: Result<Vec<_>, _> = slices.iter().map(|slice| slice.await_first()).collect();
        let sessions = sessions.inspect_err(|_| stop(&slices))?;
        let descriptions: Vec<_> = sessions.iter().filter_map(|session| session.description()).collect();
        let Some(first) = descriptions.first().filter(|_| descriptions.len() == slices.len()) else {
            stop(&slices);
            return Err(Status::failed_precondition("a worker did not describe its devices"));
        };
        let (devices, memories) = combine(&descriptions);
        let client = Arc::new(Self {
            platform_name: first.platform_name.clone(),
            platform_version: first.platform_version.clone(),
            devices,
            memories,
            slices,
            compiler: Compiler::join(&shared.config),
            shared,
            is_down: AtomicBool::new(false),
            spanning_order: Mutex::new(()),
            copier: Copier::default(),
            layouts: Mutex::default(),
        });
        if !client.is_cpu() {
            client.arena().keep_all();
        }
        Spares::start(&client.shared).inspect_err(|_| client.shut_down())?;
        super::status::register(&client);
        Ok(client)
    }

    /// Ends the workers and everything that waits for them. What was handed out stays safe to use and to destroy.
    pub fn shut_down(&self) {
        if self.is_down.swap(true, Ordering::AcqRel) {
            return;
        }
        super::status::unregister(self);
        stop(&self.slices);
        self.shared.spares.stop();
        self.compiler.leave();
        self.copier.stop();
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The slices.
    pub fn slices(&self) -> &[Arc<Slice>] {
        &self.slices
    }

    /// Workers for slices that lose theirs.
    pub fn spares(&self) -> &Spares {
        &self.shared.spares
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.arena
    }

    /// Whether the inner plugin computes on the host's processors: device memory is host memory there.
    pub fn is_cpu(&self) -> bool {
        self.platform_name.eq_ignore_ascii_case("cpu")
    }

    /// Whether arrays in the default layout lie in device memory as they do in host memory: on processors and GPUs, not on
    /// TPUs, which tile them.
    pub fn has_flat_memory(&self) -> bool {
        ["cpu", "cuda", "rocm"].iter().any(|name| self.platform_name.eq_ignore_ascii_case(name))
    }

    /// Whether a memory is the host's: values in it are kept in the arena and outlive the workers.
    pub fn is_host(&self, memory: u32) -> bool {
        matches!(self.memories[memory as usize].info.kind.as_str(), "pinned_host" | "unpinned_host")
    }

    /// A number that was not given out before.
    pub fn fresh_id(&self) -> u64 {
        self.shared.fresh_ids(1)
    }

    /// The first of `count` numbers that were not given out before.
    pub fn fresh_ids(&self, count: u64) -> u64 {
        self.shared.fresh_ids(count)
    }

    /// The session that serves a slice now; a closed one while there is none.
    pub fn session(&self, slice: u32) -> Arc<Session> {
        self.slices[slice as usize].current()
    }

    /// The session that serves the slice of a memory now.
    pub fn session_of_memory(&self, memory: u32) -> Arc<Session> {
        self.session(self.memories[memory as usize].slice)
    }

    /// Why values on a slice are lost that no living worker has.
    pub fn loss_of(&self, slice: u32) -> Status {
        self.slices[slice as usize].last_loss()
    }

    /// The default memory of a device.
    pub fn place_on_device(&self, device: u32) -> Result<Place, Status> {
        let info = &self.devices[device as usize].info;
        let memory = info.default_memory.or(info.memories.first().copied());
        let memory = memory.ok_or_else(|| Status::unimplemented(format!("device {} has no memory", info.to_string)))?;
        Ok(Place { device, memory })
    }

    /// A memory, on the device that is named or on the first one that can reach it.
    pub fn place_in_memory(&self, memory: u32, device: Option<u32>) -> Result<Place, Status> {
        let info = &self.memories[memory as usize].info;
        match device.or(info.devices.first().copied()) {
            Some(device) if info.devices.contains(&device) => Ok(Place { device, memory }),
            Some(device) => Err(Status::invalid(format!(
                "device {} does not reach memory {}",
                self.devices[device as usize].info.to_string, info.to_string
            ))),
            None => Err(Status::invalid(format!("no device reaches memory {}", info.to_string))),
        }
    }

    /// The index of the device with an id.
    pub fn device_by_id(&self, id: i32) -> Result<u32, Status> {
        let found = self.devices.iter().find(|device| device.info.id == id);
        found.map(|device| device.index).ok_or_else(|| Status::invalid(format!("there is no device with id {id}")))
    }

    /// Blocks of the arena, one behind the other where there is such room; announced as the next.
    pub fn allocate_row(&self, bytes: &[u64], commit: Commit) -> Result<Vec<Block>, Status> {
        let row = self.shared.arena.allocate_row(bytes, commit);
        self.announce();
        row.or_else(|_| bytes.iter().map(|&bytes| self.allocate_when(bytes, commit)).collect())
    }

    /// A block of the arena, announced to the workers if it is new memory.
    pub fn allocate(&self, bytes: u64) -> Result<Block, Status> {
        self.allocate_when(bytes, Commit::Now)
    }

    /// The same for whoever commits what it writes to: see [`Commit::Later`].
    pub fn allocate_for_later(&self, bytes: u64) -> Result<Block, Status> {
        self.allocate_when(bytes, Commit::Later)
    }

    fn allocate_when(&self, bytes: u64, commit: Commit) -> Result<Block, Status> {
        let arena = &self.shared.arena;
        let block = arena.allocate_when(bytes, commit).or_else(|refusal| {
            // What workers let rest is the machine's again soon.
            let is_the_machines = arena.stats().largest_free >= bytes;
            if is_the_machines { self.allocate_patiently(bytes, commit, refusal) } else { Err(refusal) }
        })?;
        self.announce();
        Ok(block)
    }

    /// The same once the workers have given back what they can, or the last refusal.
    fn allocate_patiently(&self, bytes: u64, commit: Commit, mut refusal: Status) -> Result<Block, Status> {
        let until = Instant::now() + GIVEN_BACK_WITHIN;
        self.slices.iter().for_each(|slice| slice.current().give_back());
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            match self.shared.arena.allocate_when(bytes, commit) {
                Ok(block) => return Ok(block),
                Err(again) => refusal = again,
            }
        }
        Err(refusal)
    }

    /// Tells the workers of memory that is new in the arena.
    pub fn announce(&self) {
        for extent in self.shared.arena.take_newly_committed() {
            for slice in &self.slices {
                slice.current().populate(extent);
            }
        }
    }

    /// Runs a copy of so many bytes, soon.
    pub fn copy_later(&self, bytes: u64, job: impl FnOnce() + Send + 'static) {
        self.copier.run(bytes, job);
    }

    /// The inner plugin's default layout of a type and shape. Asked once for each.
    pub fn default_layout(&self, shape: &Shape) -> Result<KnownLayout, Status> {
        let key = Shape::new(shape.element_type, shape.dims.clone());
        if let Some(known) = lock(&self.layouts).get(&key) {
            return Ok(known.clone());
        }
        let query = Query::DefaultLayout {
            element_type: key.element_type,
            dims: key.dims.clone(),
            client_options: self.shared.config.inner_options(),
        };
        let known = match self.ask(query)? {
            Reply::DefaultLayout(layout, text) => (layout, Arc::from(text)),
            other => return Err(unexpected(&other)),
        };
        lock(&self.layouts).insert(key, known.clone());
        Ok(known)
    }

    /// The plugin's text of a layout that the framework gave: the default's text with the dimension order replaced.
    pub fn layout_text(&self, shape: &Shape, layout: &Layout) -> Result<Arc<str>, Status> {
        let (default, text) = self.default_layout(shape)?;
        if *layout == default {
            return Ok(text);
        }
        let Layout::Tiled { minor_to_major, tile_dims, tile_dim_sizes } = layout else { return Ok(text) };
        let order = minor_to_major.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        if tile_dim_sizes.is_empty() {
            let rest = text.find([':', '}']).map_or("}", |at| &text[at..]);
            return Ok(Arc::from(format!("{{{order}{rest}")));
        }
        let mut dims = tile_dims.iter();
        let tiles: String = tile_dim_sizes
            .iter()
            .map(|&size| {
                let tile: Vec<_> = dims.by_ref().take(size as usize).map(i64::to_string).collect();
                format!("({})", tile.join(","))
            })
            .collect();
        Ok(Arc::from(format!("{{{order}:T{tiles}}}")))
    }

    /// Held while the parts of a launch that spans slices are sent.
    pub fn spanning_order(&self) -> MutexGuard<'_, ()> {
        lock(&self.spanning_order)
    }

    /// The compiler.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Where the topology of this client comes from.
    pub fn topology_source(&self) -> TopologySource {
        let mut options = self.shared.config.inner_options();
        for option in &mut options {
            if let (true, Value::Int64(count)) = (option.name == "cpu_device_count", &mut option.value) {
                *count = self.devices.len() as i64;
            }
        }
        TopologySource::Client(options)
    }

    pub(super) fn keep_program(&self, program: &Arc<Program>) {
        lock(&self.shared.programs).insert(program.id, Arc::downgrade(program));
    }

    pub(super) fn forget_program(&self, id: ExecutableId) {
        lock(&self.shared.programs).remove(&id);
    }
}

/// Stops slices side by side.
fn stop(slices: &[Arc<Slice>]) {
    slices.iter().for_each(|slice| slice.begin_stop());
    slices.iter().for_each(|slice| slice.stop());
}
