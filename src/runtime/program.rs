//! Programs as the framework holds them: compiled once, placed on devices, loaded onto each incarnation that runs them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use super::buffer::{DeviceLayout, Shape};
use super::client::Client;
use super::session::Session;
use crate::abi::Status;
use crate::program::artifact::{Artifact, Part};
use crate::program::spanning;
use crate::sync::lock;
use crate::wire::message::{Command, Dims, ExecutableId, ExecutableInfo, Query};

/// A program that can run on the client's devices.
pub struct Program {
    /// Its id on every worker.
    pub id: ExecutableId,
    /// The client it belongs to.
    pub client: Arc<Client>,
    /// What was compiled.
    pub artifact: Arc<Artifact>,
    /// Where it runs.
    pub placement: Placement,
    /// The outputs of each device.
    pub outputs: Vec<Shape>,
    spans: Option<spanning::Placement>,
    deleted: AtomicBool,
    /// Slices and the incarnations of theirs that have it.
    loaded: Mutex<SmallVec<[(u32, u64); 2]>>,
}

/// Where a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On these devices, by index among the client's: replica-major, the order of the argument lists.
    Devices(Vec<u32>),
    /// On whichever single device the launch names.
    Portable,
}

impl Placement {
    /// The devices, by index among the client's; none for a portable program.
    pub fn devices(&self) -> &[u32] {
        match self {
            Self::Devices(devices) => devices,
            Self::Portable => &[],
        }
    }
}

impl Program {
    /// A program that is not on any worker yet.
    pub fn new(client: &Arc<Client>, artifact: Arc<Artifact>, placement: Placement) -> Arc<Self> {
        let slices = placement.devices().iter().map(|&device| client.devices[device as usize].slice);
        let spans = slices.clone().max() != slices.min();
        let partitions = artifact.info.num_partitions as usize;
        let spans = spans.then(|| super::spanning::placement(client, placement.devices(), partitions));
        let program = Arc::new(Self {
            id: client.fresh_id(),
            spans,
            client: client.clone(),
            outputs: outputs(&artifact.info),
            artifact,
            placement,
            deleted: AtomicBool::new(false),
            loaded: Mutex::default(),
        });
        client.keep_program(&program);
        program
    }

    /// Sends the program ahead to the workers that will run it, where they are alive.
    pub fn loaded(self: Arc<Self>) -> Arc<Self> {
        for slice in self.slices() {
            let session = self.client.session(slice);
            if session.lost().is_none() {
                self.ensure_loaded(&session);
            }
        }
        self
    }

    /// Waits until the workers that were told have loaded it, or tried to, or died.
    pub fn await_loaded(&self) {
        for slice in self.slices() {
            // Answered in its turn; what the answer is doesn't matter.
            let _ = self.client.session(slice).query(Query::Ping);
        }
    }

    /// What a slice loads of the program: the part that was compiled for the devices that run it there.
    fn part_for(&self, slice: u32) -> Result<&Part, Status> {
        let parts = &self.artifact.parts;
        if let ([part], None) = (parts.as_slice(), &self.spans) {
            return Ok(part);
        }
        let on_slice = |device: &&u32| self.client.devices[**device as usize].slice == slice;
        let devices: Vec<u32> = self.placement.devices().iter().filter(on_slice).copied().collect();
        let ids = self.client.local_ids(&devices)?;
        parts.iter().find(|part| part.devices == ids).ok_or_else(|| {
            Status::invalid(format!(
                "the program {} was not compiled for the devices {ids:?} of slice {slice}; compile it for these devices",
                self.info().name
            ))
        })
    }

    /// An error unless there is a part for every slice that the program is to run on.
    pub fn check_parts(&self) -> Result<(), Status> {
        self.slices().iter().try_for_each(|&slice| self.part_for(slice).map(drop))
    }

    /// Where a program that spans slices runs; absent for one that does not.
    pub fn spans(&self) -> Option<&spanning::Placement> {
        self.spans.as_ref()
    }

    /// What is known of it.
    pub fn info(&self) -> &ExecutableInfo {
        &self.artifact.info
    }

    /// The slices it runs on for sure.
    pub fn slices(&self) -> SmallVec<[u32; 4]> {
        let slices = self.placement.devices().iter().map(|&device| self.client.devices[device as usize].slice);
        let mut slices: SmallVec<[u32; 4]> = slices.collect();
        slices.sort_unstable();
        slices.dedup();
        slices
    }

    /// Sends the program to a worker that does not have it yet.
    pub fn ensure_loaded(&self, session: &Session) {
        let mut loaded = lock(&self.loaded);
        // A program that is deleted is loaded no more: nobody would unload it.
        if !self.is_deleted() && note(&mut loaded, session.slice, session.incarnation) {
            // Sent under the lock: whoever finds the program loaded must come after this in the worker's queue.
            self.announce(session);
            self.load(session, session.slice);
        }
    }

    /// As [`Self::ensure_loaded`], for a worker that has the code already: it was a spare that was kept warm.
    pub fn adopt(&self, session: &Session) {
        let mut loaded = lock(&self.loaded);
        if note(&mut loaded, session.slice, session.incarnation) {
            self.announce(session);
        }
    }

    /// Sends the code to a spare, if it would be the same for every slice; whether it was sent.
    pub fn warm(&self, spare: &Session) -> bool {
        let slices = self.slices();
        let Some((&first, others)) = slices.split_first() else { return false };
        let Ok(part) = self.part_for(first) else { return false };
        let is_same = |other: &u32| self.part_for(*other).is_ok_and(|other| std::ptr::eq(other, part));
        let is_fit = others.iter().all(is_same);
        if is_fit {
            self.load(spare, first);
        }
        is_fit
    }

    /// Tells a worker of a program that spans slices.
    fn announce(&self, session: &Session) {
        if let Some(spans) = &self.spans
            && let Ok(engine) = self.client.engine()
        {
            engine.announce(session, self.id, spans);
        }
    }

    /// Sends a worker what a slice loads.
    fn load(&self, session: &Session, slice: u32) {
        if let Ok(part) = self.part_for(slice) {
            session.send(&Command::Load {
                executable: self.id,
                serialized: part.serialized.clone(),
                options: part.options.clone(),
                donated: self.artifact.info.donated.as_slice().into(),
            });
        }
    }

    /// Frees what the workers hold of it. Launches under way go on.
    pub fn delete(&self) {
        if self.deleted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.client.forget_program(self.id);
        let loaded = std::mem::take(&mut *lock(&self.loaded));
        for (slice, incarnation) in loaded {
            let session = self.client.session(slice);
            if session.incarnation == incarnation {
                session.send(&Command::Unload { executable: self.id });
            }
        }
    }

    /// Whether it was deleted.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// An error once it was deleted.
    pub fn check_held(&self) -> Result<(), Status> {
        if self.is_deleted() {
            return Err(Status::failed_precondition(format!("the program {} was deleted", self.info().name)));
        }
        Ok(())
    }
}

/// Takes down who has a program; whether that is new.
fn note(loaded: &mut SmallVec<[(u32, u64); 2]>, slice: u32, incarnation: u64) -> bool {
    match loaded.iter_mut().find(|(known, _)| *known == slice) {
        // One that is older than what is known is of a session that is lost.
        Some((_, known)) => incarnation > std::mem::replace(known, incarnation.max(*known)),
        None => {
            loaded.push((slice, incarnation));
            true
        }
    }
}

/// The shapes of a program's outputs, with their layouts as the plugin writes them.
fn outputs(info: &ExecutableInfo) -> Vec<Shape> {
    let layouts = info.output_layouts.as_deref().unwrap_or_default();
    let shape = |(index, (&element_type, dims)): (usize, (&u32, &Dims))| Shape {
        element_type,
        dims: dims.clone(),
        layout: layouts.get(index).map(|text| DeviceLayout::from_text(text, dims.len())),
    };
    info.output_types.iter().zip(&info.output_dims).enumerate().map(shape).collect()
}

impl Drop for Program {
    fn drop(&mut self) {
        self.delete();
    }
}
