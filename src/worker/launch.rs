//! Programs: loaded, unloaded, run.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use smallvec::SmallVec;

use super::background::Background;
use super::heap;
use super::inner::{Buffer, Launched, LoadedExecutable, RunArguments};
use super::session::{Host, output_ids};
use super::spanning::Running;
use crate::abi::Status;
use crate::wire::message::{BufferId, ExecutableId, Execute, Ids, Report};

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
            Err(status) => {
                if let Some(running) = running {
                    running.fail(&status);
                }
                self.fail_launch(execute, &status);
            }
        }
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
            // Kept for their addresses, which are known for sure when the launch is over.
            let mut kept: SmallVec<[Arc<Buffer>; 8]> = SmallVec::new();
            for (id, output) in ids.by_ref().zip(outputs.by_ref()).take(execute.num_outputs as usize) {
                kept.extend(heap::is_on().then(|| output.clone()));
                self.table.settle(id, Ok(output));
            }
            let (outbox, launch, program) = (self.outbox.clone(), execute.launch, program.clone());
            let running = running.clone();
            self.outbox.after(Ok(completion), move |result| {
                if let Some(running) = running {
                    running.device_is_done();
                }
                let places = if result.is_ok() { places(&kept) } else { Ids::new() };
                outbox.send(Report::Executed { launch, device, result, places });
                drop(program);
            });
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

/// Where in the heap the buffers lie, as [`Report::Executed`] has it. One that a later launch has used up has no address.
fn places(buffers: &[Arc<Buffer>]) -> Ids {
    let place = |buffer: &Arc<Buffer>| buffer.address().ok().and_then(heap::offset_of).map_or(0, |offset| offset + 1);
    buffers.iter().map(place).collect()
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
