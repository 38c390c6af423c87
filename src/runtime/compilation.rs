//! How a client compiles programs, places them on devices, and whom it asks about the inner plugin.

use std::sync::Arc;

use super::client::Client;
use super::compiler::Job;
use super::program::{Placement, Program};
use super::session::Session;
use super::spanning;
use crate::abi::{Code, Status, harmless};
use crate::config::CompilerPlace;
use crate::program::artifact::{Artifact, Part};
use crate::program::options::{Assignment, CompileOptions};
use crate::wire::message::{CompileJob, CompiledSpanning, Query, Reply};

impl Client {
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
        let Some((devices, assignment)) = self.place(&parsed)? else {
            let artifact = self.compile_whole(format, code, options, options.into(), None)?;
            return Ok(Program::new(self, Arc::new(artifact), Placement::Portable).loaded());
        };
        let artifact = match self.one_slice(&devices) {
            Some(_) => {
                let local = parsed.with_assignment(&self.local(&assignment, &devices)?)?;
                self.compile_whole(format, code, options, local, Some((&devices, assignment)))?
            }
            None => {
                let placement = &spanning::placement(self, &devices, assignment.partitions);
                let request =
                    spanning::Request { format, code: code.into(), options, placement, assignment: assignment.ids };
                self.engine()?.compile(self, request)?
            }
        };
        Ok(Program::new(self, Arc::new(artifact), Placement::Devices(devices)).loaded())
    }

    /// Compiles a program for one slice's devices, or for whichever device a launch names.
    fn compile_whole(
        &self,
        format: String,
        code: Vec<u8>,
        original: &[u8],
        local: Vec<u8>,
        placed: Option<(&[u32], Assignment)>,
    ) -> Result<Artifact, Status> {
        let job = CompileJob {
            format,
            code: code.into(),
            options: local.into(),
            client_options: self.config().inner_options(),
        };
        let devices = placed.as_ref().map_or(&[][..], |(devices, _)| devices);
        let compiled = self.compile_job(&Job::Whole(job.clone()), devices)?;
        let whole =
            compiled.parts.first().ok_or_else(|| Status::failed_precondition("the compiler gave no program"))?;
        let part = Part {
            devices: self.local_ids(devices)?,
            serialized: whole.serialized.clone()?,
            options: CompileOptions::without_dumps(&job.options)?.into(),
        };
        Ok(Artifact {
            parts: vec![part],
            original_options: original.into(),
            assignment: placed.map_or_else(Vec::new, |(_, assignment)| assignment.ids),
            info: compiled.info.clone(),
            global: None,
        })
    }

    /// What compiles and launches programs that span slices on this platform.
    pub fn engine(&self) -> Result<&dyn spanning::Engine, Status> {
        if self.is_cpu() && self.has_compiler_process() {
            return Ok(&spanning::Exchange);
        }
        Err(Status::unimplemented(format!(
            "programs that span slices are not served on {} yet: use the devices of one slice",
            self.platform_name
        )))
    }

    /// Whether programs are compiled, and questions about the plugin answered, in the compiler process.
    ///
    /// Left to itself, only the CPU plugin has one: other plugins' devices can't be had by a second process.
    fn has_compiler_process(&self) -> bool {
        match self.config().compiler {
            CompilerPlace::Process => true,
            CompilerPlace::Worker => false,
            CompilerPlace::Auto => self.is_cpu(),
        }
    }

    fn compile_job(&self, job: &Job, devices: &[u32]) -> Result<Arc<CompiledSpanning>, Status> {
        if self.has_compiler_process() {
            return self.compiler().compile(job).map_err(explained);
        }
        let first = devices.first().map_or(0, |&device| self.devices[device as usize].slice);
        self.on_a_worker(first, |session| job.compile_in(session)).map(Arc::new).map_err(explained)
    }

    pub(super) fn ask(&self, query: Query) -> Result<Reply, Status> {
        if self.has_compiler_process() {
            return self.compiler().query(query);
        }
        self.on_a_worker(0, |session| session.query(query.clone()))
    }

    /// Does something on a worker that is alive, that of slice `first` if it is. Lost on the way, it is tried on the next.
    fn on_a_worker<T>(&self, first: u32, task: impl Fn(&Session) -> Result<T, Status>) -> Result<T, Status> {
        let count = self.slices().len() as u32;
        let mut last = None;
        for slice in (0..count).map(|step| (first + step) % count) {
            let session = self.session(slice);
            if session.lost().is_none() {
                match task(&session) {
                    Err(status) if session.lost().is_some() => last = Some(status),
                    result => return result,
                }
            }
        }
        let why = last.map_or_else(String::new, |status| format!(": {}", harmless(&status.message)));
        Err(Status::new(Code::Unavailable, format!("no slice is up to do this on; try again once one is{why}")))
    }

    /// Loads what [`Artifact::to_bytes`] gave; other options than those it was compiled with may be given.
    pub fn deserialize(self: &Arc<Self>, serialized: &[u8], options: &[u8]) -> Result<Arc<Program>, Status> {
        self.load(Arc::new(Artifact::from_bytes(serialized)?), options)
    }

    /// Places a compiled program; other options than those it was compiled with may be given.
    pub fn load(self: &Arc<Self>, artifact: Arc<Artifact>, options: &[u8]) -> Result<Arc<Program>, Status> {
        let options = if options.is_empty() { &artifact.original_options } else { options };
        let parsed = CompileOptions::parse(options)?;
        let mut placed = Artifact { original_options: options.into(), ..(*artifact).clone() };
        let Some((devices, assignment)) = self.place(&parsed)? else {
            return Ok(Program::new(self, Arc::new(placed), Placement::Portable).loaded());
        };
        if let (Some(_), [part]) = (self.one_slice(&devices), placed.parts.as_mut_slice()) {
            part.devices = self.local_ids(&devices)?;
            part.options = parsed.with_assignment(&self.local(&assignment, &devices)?)?.into();
        }
        placed.assignment = assignment.ids;
        let program = Program::new(self, Arc::new(placed), Placement::Devices(devices));
        program.check_parts()?;
        let program = program.loaded();
        if parsed.wants_dumps() {
            // The files are looked for as soon as this returns.
            program.await_loaded();
        }
        Ok(program)
    }

    /// Where a program runs: devices by index among the client's, and by id; nowhere for sure if it is portable.
    fn place(&self, options: &CompileOptions) -> Result<Option<(Vec<u32>, Assignment)>, Status> {
        let assignment = match options.assignment()? {
            Some(assignment) => assignment,
            None if options.is_portable() => return Ok(None),
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
        Ok(Some((devices, assignment)))
    }

    /// An assignment of one slice's devices as its worker knows them.
    fn local(&self, assignment: &Assignment, devices: &[u32]) -> Result<Assignment, Status> {
        let ids = devices.iter().map(|&device| self.local_id(device)).collect::<Result<_, _>>()?;
        Ok(Assignment { ids, ..assignment.clone() })
    }

    /// Devices by the ids that they have on their slices' workers.
    pub(super) fn local_ids(&self, devices: &[u32]) -> Result<Vec<i64>, Status> {
        devices.iter().map(|&device| self.local_id(device).map(i64::from)).collect()
    }

    fn device_at(&self, ordinal: i64) -> Result<i32, Status> {
        let device = usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal));
        let device = device.ok_or_else(|| {
            Status::invalid(format!("there is no device {ordinal}; there are {}", self.devices.len()))
        })?;
        Ok(device.info.id)
    }

    /// The one slice that has all these devices, if there is one.
    fn one_slice(&self, devices: &[u32]) -> Option<u32> {
        let mut slices = devices.iter().map(|&device| self.devices[device as usize].slice);
        let first = slices.next()?;
        slices.all(|slice| slice == first).then_some(first)
    }

    /// The id that a device has on its slice's worker.
    fn local_id(&self, device: u32) -> Result<i32, Status> {
        let device = &self.devices[device as usize];
        self.inner_id(device.slice, device.ordinal)
    }

    /// The id that a slice's device has on its worker.
    pub fn inner_id(&self, slice: u32, ordinal: u32) -> Result<i32, Status> {
        let id = self.slices()[slice as usize].local_device_id(ordinal);
        id.ok_or_else(|| {
            Status::failed_precondition(format!("device {ordinal} of slice {slice} is unknown to its worker"))
        })
    }
}

/// Says of a program that calls back into the framework's process that this is what can't be; the plugin only misses a name.
fn explained(status: Status) -> Status {
    let missing =
        status.message.split_once("No FFI handler registered for ").and_then(|(_, rest)| rest.split(' ').next());
    let Some(name) = missing else { return status };
    Status::unimplemented(format!(
        "the program calls {name}, which is in the framework's process (as jax.pure_callback, jax.debug.print and handlers \
         registered there are) and not in the plugin: Mainstay runs programs in another process and does not serve that"
    ))
}
