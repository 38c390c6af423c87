//! Launches: one execution of a program. Dispatch never waits for a worker and never fails because a slice is down.

use std::sync::Arc;

use smallvec::SmallVec;

use super::buffer::{Buffer, Donated, Holder, Place};
use super::event::Event;
use super::program::{Placement, Program};
use super::session::{Inputs, Session};
use super::spanning::Joint;
use super::transfer::Promise;
use super::view::{Held, Places};
use crate::abi::Status;
use crate::wire::message::{BufferId, Command, Execute, Ids, LaunchId};

/// What the framework asks for with a launch.
pub struct LaunchOptions {
    /// The framework's own number for the launch.
    pub launch_id: i32,
    /// Arguments that must keep their value though the program would donate them.
    pub non_donatable: SmallVec<[i64; 4]>,
    /// For portable programs: the device to run on, by index among the client's.
    pub device: Option<u32>,
}

/// What a launch gives for one device.
pub struct DeviceResults {
    /// The outputs; ready, or poisoned, with `done`, those in host memory a little later.
    pub outputs: Vec<Arc<Buffer>>,
    /// Set once the device's part is over.
    pub done: Arc<Event>,
    /// Who runs it.
    pub session: Arc<Session>,
}

/// The devices of a launch that lie in one slice.
struct Part {
    session: Arc<Session>,
    /// Positions among the launch's devices.
    positions: SmallVec<[usize; 8]>,
}

/// What the arguments of a part still wait for, each once.
fn inputs(part: &Part, arguments: &[Vec<&Arc<Buffer>>]) -> Inputs {
    let mut inputs = Inputs::new();
    for argument in part.positions.iter().flat_map(|&position| &arguments[position]) {
        // Values that one launch gave to a device share their event, and stand together as a rule.
        if !inputs.last().is_some_and(|last| Arc::ptr_eq(last, &argument.ready)) && !argument.ready.is_done() {
            inputs.push(argument.ready.clone());
        }
    }
    inputs
}

/// A device's results as the worker is told of them.
struct Outputs {
    results: DeviceResults,
    places: Arc<Places>,
    /// Id of the first; the others follow.
    first: BufferId,
    /// Outputs in host memory: what the worker makes, to be brought to the buffer that the framework gets.
    to_host: Vec<(Arc<Buffer>, Arc<Buffer>)>,
}

impl Program {
    /// Dispatches one execution: `arguments[device][parameter]`, in the order of the placement's devices.
    ///
    /// # Errors
    /// What the caller did wrong: deleted programs or arguments, wrong counts. A lost slice is no error here: the results are poisoned.
    pub fn launch(
        self: &Arc<Self>,
        arguments: &[Vec<&Arc<Buffer>>],
        options: &LaunchOptions,
    ) -> Result<Vec<DeviceResults>, Status> {
        self.check_held()?;
        let devices = self.devices_of(options, arguments.len())?;
        self.check_arguments(arguments)?;
        let parts = self.parts(&devices);
        let poison = self.poison_of(&parts, arguments)?;
        let outputs = self.outputs_on(&parts, &devices, poison.as_ref())?;
        let consumed = self.consume(arguments, options);
        if poison.is_none() {
            let kept = options.non_donatable.iter().copied().chain(consumed.viewed()).collect();
            self.dispatch(&parts, arguments, &outputs, options, &kept);
        }
        consumed.forget(poison.is_some());
        Ok(outputs.into_iter().map(|outputs| outputs.results).collect())
    }

    /// The devices of a launch, by index among the client's.
    fn devices_of(&self, options: &LaunchOptions, given: usize) -> Result<SmallVec<[u32; 8]>, Status> {
        match (&self.placement, options.device) {
            (Placement::Devices(devices), None) if devices.len() == given => Ok(SmallVec::from_slice(devices)),
            (Placement::Devices(devices), Some(device)) if given == 1 && devices.as_slice() == [device] => {
                Ok(SmallVec::from_slice(devices))
            }
            (Placement::Portable, Some(device)) if given == 1 => Ok(SmallVec::from_slice(&[device])),
            (Placement::Portable, None) => Err(Status::invalid(format!(
                "the program {} has no devices of its own; the launch must name one",
                self.info().name
            ))),
            (placement, device) => Err(Status::invalid(format!(
                "the program {} runs on {} devices; the launch has arguments for {given}{}",
                self.info().name,
                placement.devices().len(),
                if device.is_some() { " and names a device" } else { "" },
            ))),
        }
    }

    fn check_arguments(&self, arguments: &[Vec<&Arc<Buffer>>]) -> Result<(), Status> {
        let expected = &self.info().parameters;
        for list in arguments {
            if !expected.is_empty() && list.len() != expected.len() {
                return Err(Status::invalid(format!(
                    "the program {} takes {} arguments; the launch has {}",
                    self.info().name,
                    expected.len(),
                    list.len()
                )));
            }
            for argument in list {
                argument.check_held()?;
            }
        }
        Ok(())
    }

    /// The launch's devices by slice, each with the session that serves it now.
    fn parts(&self, devices: &[u32]) -> SmallVec<[Part; 2]> {
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for (position, &device) in devices.iter().enumerate() {
            let slice = self.client.devices[device as usize].slice;
            match parts.iter_mut().find(|part| part.session.slice == slice) {
                Some(part) => part.positions.push(position),
                None => parts
                    .push(Part { session: self.client.session(slice), positions: SmallVec::from_slice(&[position]) }),
            }
        }
        parts
    }

    /// Why the launch has no results, where that is known: a lost slice, a poisoned argument.
    ///
    /// # Errors
    /// An argument that lies on a slice where the launch does not run is the caller's mistake.
    fn poison_of(&self, parts: &[Part], arguments: &[Vec<&Arc<Buffer>>]) -> Result<Option<Status>, Status> {
        let poisoned = || arguments.iter().flatten().find_map(|argument| argument.poison());
        let lost = || parts.iter().find_map(|part| part.session.lost().cloned());
        if let Some(cause) = poisoned().or_else(lost) {
            return Ok(Some(cause));
        }
        for part in parts {
            for (index, argument) in part.positions.iter().flat_map(|&position| arguments[position].iter().enumerate())
            {
                let Some(session) = argument.holder.session() else { continue };
                if Arc::ptr_eq(session, &part.session) {
                    continue;
                }
                if session.slice != part.session.slice {
                    return Err(Status::invalid(format!(
                        "argument {index} of the program {} is on slice {}; the launch wants it on slice {}",
                        self.info().name,
                        session.slice,
                        part.session.slice
                    )));
                }
                // Same slice, another incarnation: one of the two was lost at this moment.
                return Ok(Some(poisoned().or_else(lost).unwrap_or_else(|| self.client.loss_of(session.slice))));
            }
        }
        Ok(None)
    }

    /// The buffers and events of the launch, in the order of its devices.
    fn outputs_on(&self, parts: &[Part], devices: &[u32], poison: Option<&Status>) -> Result<Vec<Outputs>, Status> {
        let count = self.outputs.len() as u64;
        let mut next = self.client.fresh_ids(devices.len() as u64 * count);
        let mut outputs: Vec<Option<Outputs>> = devices.iter().map(|_| None).collect();
        for part in parts {
            for &position in &part.positions {
                outputs[position] = Some(self.outputs_of(&part.session, devices[position], next, poison)?);
                next += count;
            }
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    fn outputs_of(
        &self,
        session: &Arc<Session>,
        device: u32,
        first: BufferId,
        poison: Option<&Status>,
    ) -> Result<Outputs, Status> {
        let done = poison.map_or_else(Event::pending, |cause| Event::completed(Err(cause.clone())));
        let done = (done, Arc::new(Places::new()));
        let mut to_host = Vec::new();
        let buffers = (first..).zip(self.outputs.iter().enumerate()).map(|(id, (output, shape))| {
            let place = Place { device, memory: self.output_memory(device, output)? };
            let holder = if poison.is_some() { Holder::Nobody } else { Holder::Worker(session.clone(), id) };
            let made = Buffer::output(&self.client, holder, place, shape.clone(), &done, output);
            if poison.is_some() || !self.client.is_host(place.memory) {
                return Ok(made);
            }
            let given = Buffer::new(&self.client, Holder::arena(), place, shape.clone(), Event::pending());
            to_host.push((made, given.clone()));
            Ok(given)
        });
        let outputs = buffers.collect::<Result<_, Status>>()?;
        let (done, places) = done;
        Ok(Outputs { results: DeviceResults { outputs, done, session: session.clone() }, places, first, to_host })
    }

    fn output_memory(&self, device: u32, output: usize) -> Result<u32, Status> {
        let device = &self.client.devices[device as usize];
        let kind = self.info().output_memory_kinds.as_ref().ok().and_then(|kinds| kinds.get(output));
        let named = kind.and_then(|kind| {
            device
                .info
                .memories
                .iter()
                .copied()
                .find(|&memory| self.client.memories[memory as usize].info.kind == *kind)
        });
        named.or(device.info.default_memory).or(device.info.memories.first().copied()).ok_or_else(|| {
            Status::failed_precondition(format!("device {} has no memory for output {output}", device.info.to_string))
        })
    }

    fn dispatch(
        &self,
        parts: &[Part],
        arguments: &[Vec<&Arc<Buffer>>],
        outputs: &[Outputs],
        options: &LaunchOptions,
        kept: &SmallVec<[i64; 4]>,
    ) {
        let launch = self.client.fresh_id();
        let joint = self.joint(launch, parts, outputs);
        // Held while the parts are sent: all workers get launches that span slices in the same order.
        let _order = joint.as_ref().map(|_| self.client.spanning_order());
        for part in parts {
            let session = &part.session;
            self.ensure_loaded(session);
            let event = |&position: &usize| {
                let done = match &joint {
                    Some(joint) => joint.one_device(),
                    None => outputs[position].results.done.clone(),
                };
                (done, outputs[position].places.clone())
            };
            let events: SmallVec<[_; 4]> = part.positions.iter().map(event).collect();
            session.expect_launch(launch, &events, inputs(part, arguments));
            if let (Some(joint), Ok(engine)) = (&joint, self.client.engine()) {
                engine.begin(session, launch, self.id, joint.participants());
            }
            // Kept until the command is sent: then the worker keeps what it needs.
            let mut staged = Vec::new();
            let given = part.positions.iter().flat_map(|&position| &arguments[position]);
            let ids: Ids = given.map(|argument| self.argument_id(argument, session, &mut staged)).collect();
            session.send(&Command::Execute(Execute {
                launch,
                executable: self.id,
                launch_id: options.launch_id,
                num_devices: part.positions.len() as u32,
                execute_device: options.device.map(|device| self.client.devices[device as usize].ordinal),
                arguments: ids,
                first_output: part.positions.first().map_or(0, |&position| outputs[position].first),
                num_outputs: self.outputs.len() as u32,
                non_donatable: kept.clone(),
            }));
        }
        for (made, given) in outputs.iter().flat_map(|outputs| &outputs.to_host) {
            self.client.fulfil_from(&Promise::of(given), made);
        }
    }

    /// One fate for the parts of a launch that runs on several slices.
    fn joint(&self, launch: LaunchId, parts: &[Part], outputs: &[Outputs]) -> Option<Arc<Joint>> {
        if parts.len() == 1 {
            return None;
        }
        let participants = parts.iter().map(|part| part.session.clone()).collect();
        let results = outputs.iter().map(|outputs| outputs.results.done.clone()).collect();
        Some(Joint::new(launch, participants, results))
    }

    /// The id that an argument has on the worker. A value in the arena is staged there first.
    fn argument_id(&self, argument: &Arc<Buffer>, session: &Arc<Session>, staged: &mut Vec<Arc<Buffer>>) -> BufferId {
        if let Holder::Worker(_, id) = argument.holder {
            return id;
        }
        let copy = self.client.stage(argument, session);
        // A staged buffer is always a worker's.
        let id = if let Holder::Worker(_, id) = copy.holder { id } else { 0 };
        staged.push(copy);
        id
    }

    /// Marks what the launch consumes. A poisoned launch consumes as well, though the worker never hears of it.
    fn consume<'a>(&self, arguments: &[Vec<&'a Arc<Buffer>>], options: &LaunchOptions) -> Consumed<'a> {
        let mut consumed = Consumed { viewed: SmallVec::new(), ended: SmallVec::new() };
        let donated = self.info().donated.iter().map(|&parameter| i64::from(parameter));
        for parameter in donated.filter(|parameter| !options.non_donatable.contains(parameter)) {
            for argument in arguments.iter().filter_map(|list| list.get(parameter as usize)) {
                match argument.donate() {
                    Some(Donated::Free) => consumed.ended.push((parameter, argument)),
                    Some(Donated::Seen(held)) => consumed.viewed.push((parameter, held)),
                    None => {}
                }
            }
        }
        consumed
    }
}

/// What a launch uses up.
struct Consumed<'a> {
    /// Parameters with an argument that somebody looks at: the worker must leave them as they are. They are held until the
    /// launch was sent: who looks last destroys the buffer.
    viewed: SmallVec<[(i64, Held); 4]>,
    /// Parameters and arguments that nobody looks at.
    ended: SmallVec<[(i64, &'a Arc<Buffer>); 8]>,
}

impl Consumed<'_> {
    fn viewed(&self) -> impl Iterator<Item = i64> {
        self.viewed.iter().map(|(parameter, _)| *parameter)
    }

    /// Frees what the worker does not forget by itself: that is what it holds and donates.
    fn forget(self, poisoned: bool) {
        for (parameter, argument) in &self.ended {
            if poisoned || argument.holder.session().is_none() || self.viewed().any(|viewed| viewed == *parameter) {
                argument.forget();
            }
        }
    }
}
