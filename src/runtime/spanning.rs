//! Programs that span slices, as the client sees them: how they are compiled, and the one fate of a launch's parts.
//!
//! [`Engine`] is what differs between plugins; the CPU plugin's way is [`Exchange`]: planned and rewritten in the compiler
//! process, joined at run time by the workers' exchange in shared memory. What the TPU's and the GPU's own engines need is
//! in `docs/architecture.md`.

use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;

use super::client::Client;
use super::compiler::Job;
use super::event::{Event, Outcome};
use super::session::Session;
use crate::abi::Status;
use crate::program::artifact::{Artifact, Part};
use crate::program::spanning::{Place, Placement, options};
use crate::sync::lock;
use crate::wire::message::{
    Command, CompileJob, ExecutableId, LaunchId, NamedValue, SpanningJob, SpanningPart, Urgent, Value,
};

/// How programs that span slices are compiled, loaded and launched.
pub trait Engine: Send + Sync {
    /// Compiles a program for these places. Needs no slice to be alive.
    ///
    /// # Errors
    /// The compiler's, or why this engine does not serve the program.
    fn compile(&self, client: &Client, request: Request<'_>) -> Result<Artifact, Status>;

    /// Tells a worker, before it loads its part, that the program spans slices.
    fn announce(&self, session: &Session, program: ExecutableId, placement: &Placement);

    /// Tells a participant, before it executes its part, that a launch begins, and who takes part.
    fn begin(&self, session: &Session, launch: LaunchId, program: ExecutableId, participants: &[Arc<Session>]);
}

/// A program to compile.
pub struct Request<'a> {
    /// `mlir`, `hlo`, ….
    pub format: String,
    /// The program.
    pub code: Arc<[u8]>,
    /// The framework's compile options.
    pub options: &'a [u8],
    /// Where each replica and partition is to run.
    pub placement: &'a Placement,
    /// The same, as device ids of the client.
    pub assignment: Vec<i32>,
}

/// The CPU plugin's way.
pub struct Exchange;

impl Engine for Exchange {
    fn compile(&self, client: &Client, request: Request<'_>) -> Result<Artifact, Status> {
        let parts = request.placement.shares()?.into_iter().map(|(slice, share)| {
            let ids = share.ordinals().into_iter().map(|ordinal| client.inner_id(slice, ordinal).map(i64::from));
            Ok(SpanningPart {
                client_options: client.config().inner_options(),
                devices: ids.collect::<Result<_, _>>()?,
            })
        });
        let mut distinct: Vec<SpanningPart> = Vec::new();
        for part in parts.collect::<Result<Vec<_>, Status>>()? {
            if !distinct.contains(&part) {
                distinct.push(part);
            }
        }
        let program = CompileJob {
            format: request.format,
            code: request.code,
            options: request.options.into(),
            client_options: world_options(client, request.placement.places.len()),
        };
        let global = CompileJob { options: options::global(&program.options)?.into(), ..program.clone() };
        let compiled = client.compiler().compile(&Job::Spanning(SpanningJob { program, parts: distinct.clone() }))?;
        let parts = distinct.into_iter().zip(&compiled.parts).map(|(part, compiled)| {
            // Loaded as it was compiled: the part's own options say all.
            Ok(Part { devices: part.devices, serialized: compiled.serialized.clone()?, options: Arc::from([]) })
        });
        Ok(Artifact {
            parts: parts.collect::<Result<_, Status>>()?,
            original_options: request.options.into(),
            assignment: request.assignment,
            info: compiled.info.clone(),
            global: Some(global),
        })
    }

    fn announce(&self, session: &Session, program: ExecutableId, placement: &Placement) {
        session.send(&Command::Spans {
            executable: program,
            partitions: placement.partitions,
            places: placement.places.iter().map(|place| (place.slice, place.device)).collect(),
        });
    }

    fn begin(&self, session: &Session, launch: LaunchId, program: ExecutableId, participants: &[Arc<Session>]) {
        let participants = participants.iter().map(|session| (session.slice, session.incarnation as u32)).collect();
        session.send(&Command::Begin { launch, executable: program, participants });
    }
}

/// Create options of an inner client that has as many devices as the whole program.
fn world_options(client: &Client, devices: usize) -> Vec<NamedValue> {
    let mut options = client.config().inner_options();
    options.retain(|option| option.name != "cpu_device_count");
    options.push(NamedValue { name: "cpu_device_count".to_owned(), value: Value::Int64(devices as i64) });
    options
}

/// Where devices are, given as indices among the client's, replica-major.
pub fn placement(client: &Client, devices: &[u32], partitions: usize) -> Placement {
    let places = devices.iter().map(|&device| {
        let device = &client.devices[device as usize];
        Place { slice: device.slice, device: device.ordinal }
    });
    let partitions = partitions.max(1);
    Placement { replicas: (devices.len() / partitions) as u32, partitions: partitions as u32, places: places.collect() }
}

/// A launch whose parts run on several slices: all of its results are there, or all are poisoned with the first cause.
pub struct Joint {
    launch: LaunchId,
    participants: SmallVec<[Arc<Session>; 4]>,
    /// What the framework waits for, device by device.
    results: Vec<Arc<Event>>,
    state: Mutex<Progress>,
}

struct Progress {
    /// Devices that a worker has not reported, nor was lost with.
    left: usize,
    failed: bool,
}

impl Joint {
    /// A launch that is about to be sent to these participants.
    pub fn new(launch: LaunchId, participants: SmallVec<[Arc<Session>; 4]>, results: Vec<Arc<Event>>) -> Arc<Self> {
        let state = Mutex::new(Progress { left: results.len(), failed: false });
        Arc::new(Self { launch, participants, results, state })
    }

    /// The event for a session to set once one more device is over.
    pub fn one_device(self: &Arc<Self>) -> Arc<Event> {
        let (event, joint) = (Event::pending(), self.clone());
        event.on_done(move |outcome| joint.device_is_over(outcome));
        event
    }

    /// The sessions that take part.
    pub fn participants(&self) -> &[Arc<Session>] {
        &self.participants
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        lock(&self.state)
    }

    fn device_is_over(&self, outcome: &Outcome) {
        if let Err(cause) = outcome {
            self.fail(cause);
        }
        let failed = {
            let mut state = self.state();
            state.left -= 1;
            if state.left > 0 {
                return;
            }
            state.failed
        };
        if failed {
            self.tell(&Urgent::Over { launch: self.launch });
        } else {
            self.settle(&Ok(()));
        }
    }

    /// The first cause poisons all results at once, and frees the survivors that wait for the others.
    fn fail(&self, cause: &Status) {
        if std::mem::replace(&mut self.state().failed, true) {
            return;
        }
        // What a survivor says of a launch that a lost slice took part in follows from the loss.
        let cause = self.participants.iter().find_map(|session| session.lost()).unwrap_or(cause);
        self.tell(&Urgent::FailLaunch { launch: self.launch, status: cause.clone() });
        self.settle(&Err(cause.clone()));
    }

    fn settle(&self, outcome: &Outcome) {
        for result in &self.results {
            result.set(outcome.clone());
        }
    }

    fn tell(&self, urgent: &Urgent) {
        self.participants.iter().for_each(|session| session.send_urgent(urgent));
    }
}
