//! Programs: loaded, unloaded, run.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use smallvec::SmallVec;

use super::background::Background;
use super::heap;
use super::inner::{Buffer, Event, Launched, LoadedExecutable, RunArguments};
use super::lane::Returned;
use super::outbox::{Flight, Outbox};
use super::session::{Host, output_ids};
use super::spanning::Running;
use super::table::Ticket;
use crate::abi::Status;
use crate::wire::message::{BufferId, ExecutableId, Execute, Ids, LaunchId, Report};

/// A loaded program. Launches in flight keep it; it is destroyed by the background thread, as the last launch may end
/// on a thread of the plugin.
pub(super) struct Program {
    loaded: ManuallyDrop<LoadedExecutable>,
    donated: Arc<[u32]>,
    background: Background,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: taken once, and not used afterwards.
        let loaded = unsafe { ManuallyDrop::take(&mut self.loaded) };
        self.background.run(move || drop(loaded));
    }
}

impl Host {
    /// Loads a program and says so.
    pub(super) fn load(&mut self, id: ExecutableId, serialized: &[u8], options: &[u8], donated: Arc<[u32]>) {
        let loaded = self.client().and_then(|client| client.load(serialized, options));
        let result = loaded.as_ref().map(|_| ()).map_err(Status::clone);
        let background = self.background.clone();
        let program = loaded.map(|loaded| Arc::new(Program { loaded: ManuallyDrop::new(loaded), donated, background }));
        self.programs.insert(id, program);
        self.outbox.send(Report::Loaded { executable: id, result });
    }

    /// The program of a launch, if it is there and has as many outputs as the client thinks.
    pub(super) fn program(&self, execute: &Execute) -> Result<Arc<Program>, Status> {
        let id = execute.executable;
        let program = match self.programs.get(&id) {
            Some(program) => program.clone()?,
            None => return Err(Status::failed_precondition(format!("program {id} is not loaded in this worker"))),
        };
        let num_outputs = program.loaded.num_outputs();
        if num_outputs != execute.num_outputs as usize {
            return Err(Status::failed_precondition(format!(
                "program {id} has {num_outputs} outputs, not {}: the plugin loads it as another than was compiled",
                execute.num_outputs
            )));
        }
        Ok(program)
    }

    /// Runs a program. An argument that is poisoned, or a launch that the plugin refuses, poisons all outputs.
    pub(super) fn execute(&mut self, execute: &Execute, program: Result<Arc<Program>, Status>) {
        let (launch_id, running) = match self.spanning.start(execute) {
            Ok(started) => started,
            Err(status) => return self.fail_launch(execute, &status),
        };
        let program = self.misdeeds.before_launch().and(program);
        let launched = program.and_then(|program| Ok((self.run(execute, launch_id, &program)?, program)));
        match launched {
            Ok((launched, program)) => self.take_launched(execute, launched, &program, running),
            Err(status) => self.refuse(execute, running.as_ref(), &status),
        }
    }

    /// The same, by the lane; to be taken back by [`Self::take_back`].
    pub(super) fn execute_aside(&mut self, ticket: Ticket, execute: Execute, program: Result<Arc<Program>, Status>) {
        let (launch_id, running) = match self.spanning.start(&execute) {
            Ok(started) => started,
            Err(status) => return self.take_back(Returned { ticket, execute, outputs: Err(status) }),
        };
        let argument = |id: &BufferId| self.table.get(*id).cloned();
        let arguments = execute.arguments.iter().map(argument).collect::<Result<Vec<_>, _>>();
        let program = self.misdeeds.before_launch().and(program);
        match program.and_then(|program| Ok((program, arguments?))) {
            Ok((program, arguments)) => {
                let outbox = self.outbox.clone();
                let flight = outbox.take_off();
                self.lane.run(Aside { ticket, execute, launch_id, program, arguments, running, outbox, flight });
            }
            Err(status) => {
                running.iter().for_each(|running| running.fail(&status));
                self.take_back(Returned { ticket, execute, outputs: Err(status) });
            }
        }
    }

    /// Takes in what the lane has done, in the place where the launch was parked.
    pub(super) fn take_back(&mut self, returned: Returned) {
        match returned.outputs {
            Ok(outputs) => {
                output_ids(&returned.execute).zip(outputs).for_each(|(id, output)| self.table.settle(id, Ok(output)));
            }
            Err(status) => self.fail_launch(&returned.execute, &status),
        }
        self.table.finish(returned.ticket);
    }

    fn refuse(&mut self, execute: &Execute, running: Option<&Running>, status: &Status) {
        if let Some(running) = running {
            running.fail(status);
        }
        self.fail_launch(execute, status);
    }

    fn run(&self, execute: &Execute, launch_id: i32, program: &Program) -> Result<Launched, Status> {
        let argument = |id: &BufferId| self.table.get(*id).map(|buffer| &**buffer);
        let arguments: SmallVec<[&Buffer; 16]> = execute.arguments.iter().map(argument).collect::<Result<_, _>>()?;
        let execute_device = execute.execute_device.map(|index| self.client()?.device(index)).transpose()?;
        program.loaded.run(RunArguments {
            arguments: &arguments,
            num_devices: execute.num_devices as usize,
            execute_device,
            launch_id,
            non_donatable: &execute.non_donatable,
        })
    }

    fn take_launched(
        &mut self,
        execute: &Execute,
        launched: Launched,
        program: &Arc<Program>,
        running: Option<Running>,
    ) {
        let mut outputs = launched.outputs.into_iter().map(Arc::new);
        let mut ids = output_ids(execute);
        for (device, completion) in (0..).zip(launched.completions) {
            let mut kept = Kept::new();
            for (id, output) in ids.by_ref().zip(outputs.by_ref()).take(execute.num_outputs as usize) {
                kept.extend(heap::is_on().then(|| output.clone()));
                self.table.settle(id, Ok(output));
            }
            let keeps = program.clone();
            report(&self.outbox, (execute.launch, device), completion, kept, running.clone(), move || drop(keeps));
        }
    }

    fn fail_launch(&mut self, execute: &Execute, status: &Status) {
        output_ids(execute).for_each(|output| self.table.settle(output, Err(status.clone())));
        for device in 0..execute.num_devices {
            let result = Err(status.clone());
            self.outbox.send(Report::Executed { launch: execute.launch, device, result, places: Ids::new() });
        }
    }
}

/// Outputs of a device, kept for their addresses, which are known for sure when the launch is over.
type Kept = SmallVec<[Arc<Buffer>; 8]>;

/// Says that a device is done with a launch, once it is; then does `last`.
fn report(
    outbox: &Outbox,
    (launch, device): (LaunchId, u32),
    completion: Event,
    kept: Kept,
    running: Option<Running>,
    last: impl FnOnce() + Send + 'static,
) {
    let teller = outbox.clone();
    outbox.after(Ok(completion), move |result| {
        if let Some(running) = running {
            running.device_is_done();
        }
        let places = if result.is_ok() { places(&kept) } else { Ids::new() };
        teller.send(Report::Executed { launch, device, result, places });
        last();
    });
}

/// A launch of one device with all that it needs to be run on another thread than the main one.
pub(super) struct Aside {
    ticket: Ticket,
    execute: Execute,
    launch_id: i32,
    program: Arc<Program>,
    arguments: Vec<Arc<Buffer>>,
    running: Option<Running>,
    pub(super) outbox: Outbox,
    flight: Flight,
}

impl Aside {
    /// Runs it. `is_over` is dropped once the launch is over.
    pub(super) fn run(self, is_over: Sender<()>) -> Returned {
        let arguments: SmallVec<[&Buffer; 16]> = self.arguments.iter().map(|argument| &**argument).collect();
        let launched = self.program.loaded.run(RunArguments {
            arguments: &arguments,
            num_devices: 1,
            execute_device: None,
            launch_id: self.launch_id,
            non_donatable: &self.execute.non_donatable,
        });
        let outputs = launched.map(|mut launched| {
            let outputs: Vec<_> = launched.outputs.into_iter().map(Arc::new).collect();
            if let Some(completion) = launched.completions.pop() {
                let kept = if heap::is_on() { outputs.iter().cloned().collect() } else { Kept::new() };
                let keeps = (self.program, self.flight, is_over);
                let device = (self.execute.launch, 0);
                report(&self.outbox, device, completion, kept, self.running.clone(), move || drop(keeps));
            }
            outputs
        });
        if let (Err(status), Some(running)) = (&outputs, &self.running) {
            running.fail(status);
        }
        Returned { ticket: self.ticket, execute: self.execute, outputs }
    }
}

/// Where the buffers lie, as [`Report::Executed`] has it. One that a later launch has used up has no address.
fn places(buffers: &[Arc<Buffer>]) -> Ids {
    buffers.iter().map(|buffer| heap::place_of(buffer)).collect()
}

impl Program {
    /// The arguments that a launch uses up.
    pub(super) fn donated_arguments(&self, execute: &Execute) -> SmallVec<[BufferId; 8]> {
        let num_devices = execute.num_devices.max(1) as usize;
        let num_args = execute.arguments.len() / num_devices;
        let indices = self.donated.iter().map(|index| *index as usize);
        let donated = indices.filter(|index| *index < num_args && !execute.non_donatable.contains(&(*index as i64)));
        let of_device = |device: usize| execute.arguments[device * num_args..].iter();
        donated
            .flat_map(|index| (0..num_devices).filter_map(move |device| of_device(device).nth(index)).copied())
            .collect()
    }
}
