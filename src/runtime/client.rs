//! The client: all slices as one set of devices, with what they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::buffer::{Place, Shape, unexpected};
use super::compiler::Compiler;
use super::copier::Copier;
use super::device::{Device, Memory, combine};
use super::program::{Placement, Program};
use super::session::Session;
use super::slice::Slice;
use crate::abi::Status;
use crate::config::Config;
use crate::program::artifact::Artifact;
use crate::program::options::{Assignment, CompileOptions};
use crate::wire::arena::{Arena, ArenaOptions, Block};
use crate::wire::message::{CompileJob, ExecutableId, Layout, NamedValue, Query, Reply, TopologySource, Value};

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
    ids: AtomicU64,
    programs: Mutex<HashMap<ExecutableId, Weak<Program>>>,
}

impl Shared {
    /// A number that was not given out before: buffers, programs, launches and loans are numbered alike.
    pub fn fresh_ids(&self, count: u64) -> u64 {
        self.ids.fetch_add(count, Ordering::Relaxed)
    }

    /// The programs that are alive.
    pub fn programs(&self) -> Vec<Arc<Program>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).values().filter_map(Weak::upgrade).collect()
    }
}

impl Client {
    /// Starts the slices' workers and waits until all are there.
    ///
    /// # Errors
    /// What is wrong with the configuration, the inner plugin or the machine; nothing is left behind then.
    pub fn create(options: &[NamedValue]) -> Result<Arc<Self>, Status> {
        let config = Config::load(options)?;
        let arena = Arena::new(ArenaOptions::new(config.host_memory)).map_err(|error| {
            Status::exhausted(format!(
                "host memory of {} bytes (MAINSTAY_HOST_MEMORY) cannot be had: {error}",
                config.host_memory
            ))
        })?;
        let shared = Arc::new(Shared { arena, ids: AtomicU64::new(1), programs: Mutex::default(), config });
        let slices: Vec<_> =
            (0..shared.config.slices).map(|index| Slice::start(index, &shared)).collect::<Result<_, _>>()?;
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
            copier: Copier::default(),
            layouts: Mutex::default(),
        });
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

    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.shared.arena
    }

    /// Whether the inner plugin computes on the host's processors: device memory is host memory there.
    pub fn is_cpu(&self) -> bool {
        self.platform_name.eq_ignore_ascii_case("cpu")
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

    /// A block of the arena, announced to the workers if it is new memory.
    pub fn allocate(&self, bytes: u64) -> Result<Block, Status> {
        let block = self.shared.arena.allocate(bytes)?;
        for extent in self.shared.arena.take_newly_committed() {
            for slice in &self.slices {
                slice.current().populate(extent);
            }
        }
        Ok(block)
    }

    /// Runs a copy of so many bytes, soon.
    pub fn copy_later(&self, bytes: u64, job: impl FnOnce() + Send + 'static) {
        self.copier.run(bytes, job);
    }

    /// The inner plugin's default layout of a type and shape. Asked once for each.
    pub fn default_layout(&self, shape: &Shape) -> Result<KnownLayout, Status> {
        let key = Shape::new(shape.element_type, shape.dims.clone());
        if let Some(known) = self.layouts.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        let query = Query::DefaultLayout {
            element_type: key.element_type,
            dims: key.dims.clone(),
            client_options: self.shared.config.inner_options(),
        };
        let known = match self.compiler.query(query)? {
            Reply::DefaultLayout(layout, text) => (layout, Arc::from(text)),
            other => return Err(unexpected(&other)),
        };
        self.layouts.lock().unwrap_or_else(PoisonError::into_inner).insert(key, known.clone());
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

    /// Which devices a program of so many replicas and partitions runs on if nobody says: the first ones.
    pub fn default_assignment(&self, replicas: usize, partitions: usize) -> Result<Vec<i32>, Status> {
        let wanted = replicas.saturating_mul(partitions);
        if wanted == 0 || wanted > self.devices.len() {
            return Err(Status::invalid(format!(
                "{replicas} replicas of {partitions} partitions were asked for; there are {} devices",
                self.devices.len()
            )));
        }
        Ok(self.devices[..wanted].iter().map(|device| device.info.id).collect())
    }

    /// Compiles a program and places it. Needs no slice to be alive.
    pub fn compile(self: &Arc<Self>, format: String, code: Vec<u8>, options: &[u8]) -> Result<Arc<Program>, Status> {
        let parsed = CompileOptions::parse(options)?;
        let (placement, assignment, local) = self.place(&parsed)?;
        let job = CompileJob {
            format,
            code: code.into(),
            options: local.into(),
            client_options: self.shared.config.inner_options(),
        };
        let compiled = self.compiler.compile(job.clone())?;
        let artifact = Artifact {
            serialized: compiled.serialized.clone()?,
            options: job.options,
            original_options: options.into(),
            assignment,
            info: compiled.info.clone(),
        };
        Ok(Program::new(self, Arc::new(artifact), placement).loaded())
    }

    /// Loads what [`Artifact::to_bytes`] gave; other options than those it was compiled with may be given.
    pub fn deserialize(self: &Arc<Self>, serialized: &[u8], options: &[u8]) -> Result<Arc<Program>, Status> {
        self.load(Arc::new(Artifact::from_bytes(serialized)?), options)
    }

    /// Places a compiled program; other options than those it was compiled with may be given.
    pub fn load(self: &Arc<Self>, artifact: Arc<Artifact>, options: &[u8]) -> Result<Arc<Program>, Status> {
        let options = if options.is_empty() { &artifact.original_options } else { options };
        let (placement, assignment, local) = self.place(&CompileOptions::parse(options)?)?;
        let artifact =
            Artifact { options: local.into(), original_options: options.into(), assignment, ..(*artifact).clone() };
        Ok(Program::new(self, Arc::new(artifact), placement).loaded())
    }

    /// Where a program runs: placement, device ids as the framework knows them, and options as a slice's worker does.
    fn place(&self, options: &CompileOptions) -> Result<(Placement, Vec<i32>, Vec<u8>), Status> {
        let assignment = match options.assignment()? {
            Some(assignment) => assignment,
            None if options.is_portable() => return Ok((Placement::Portable, Vec::new(), options.to_bytes()?)),
            None => {
                let (replicas, partitions) = options.counts()?;
                let ids = match options.device_ordinal() {
                    Some(ordinal) if replicas * partitions == 1 => vec![self.device_at(ordinal)?],
                    _ => self.default_assignment(replicas, partitions)?,
                };
                Assignment { replicas, partitions, ids }
            }
        };
        let devices = assignment.ids.iter().map(|&id| self.device_by_id(id)).collect::<Result<Vec<_>, _>>()?;
        self.check_one_slice(&devices)?;
        let local_id = |&device: &u32| self.local_id(device);
        let local = Assignment { ids: devices.iter().map(local_id).collect::<Result<_, _>>()?, ..assignment.clone() };
        Ok((Placement::Devices(devices), assignment.ids, options.with_assignment(&local)?))
    }

    fn device_at(&self, ordinal: i64) -> Result<i32, Status> {
        let device = usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal));
        let device = device.ok_or_else(|| {
            Status::invalid(format!("there is no device {ordinal}; there are {}", self.devices.len()))
        })?;
        Ok(device.info.id)
    }

    fn check_one_slice(&self, devices: &[u32]) -> Result<(), Status> {
        let mut slices: Vec<u32> = devices.iter().map(|&device| self.devices[device as usize].slice).collect();
        slices.sort_unstable();
        slices.dedup();
        if slices.len() == 1 {
            return Ok(());
        }
        Err(Status::unimplemented(format!(
            "the program's devices lie in slices {slices:?}; programs that span slices are not served yet: use the devices of one slice"
        )))
    }

    /// The id that a device has on its slice's worker.
    fn local_id(&self, device: u32) -> Result<i32, Status> {
        let device = &self.devices[device as usize];
        let id = self.slices[device.slice as usize].local_device_id(device.ordinal);
        id.ok_or_else(|| {
            Status::failed_precondition(format!("device {} is unknown to its worker", device.info.to_string))
        })
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
        self.shared.programs.lock().unwrap_or_else(PoisonError::into_inner).insert(program.id, Arc::downgrade(program));
    }

    pub(super) fn forget_program(&self, id: ExecutableId) {
        self.shared.programs.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// Stops slices side by side.
fn stop(slices: &[Arc<Slice>]) {
    slices.iter().for_each(|slice| slice.begin_stop());
    slices.iter().for_each(|slice| slice.stop());
}
