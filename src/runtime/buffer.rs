//! Buffers as the framework sees them: a type, a shape, a place, and a value.
//!
//! The value of a buffer in device memory is with the worker: a session of the slice holds it, and it is lost with the
//! session. The value of a buffer in host memory is in the arena: it outlives every worker.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::client::Client;
use super::device::{Device, Memory};
use super::event::{Event, Outcome};
use super::host_slot::HostSlot;
use super::session::{DeviceDone, Session};
use super::view::{HeapPlaces, InPlace, View};
use crate::abi::{Status, element};
use crate::wire::arena::Block;
use crate::wire::message::{BufferId, BufferSpec, Command, Dims, Extent, Layout, Query, Reply, RequestId};

/// What a buffer is, apart from its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// `PJRT_Buffer_Type`.
    pub element_type: u32,
    /// Dimensions, major first.
    pub dims: Dims,
    /// The device layout, where it is not the plugin's default for the type and dimensions.
    pub layout: Option<DeviceLayout>,
}

/// A device layout, as whoever made the buffer gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceLayout {
    /// The interface's structure.
    Given(Layout),
    /// The plugin's serialized text, known from compilation.
    Text(Arc<str>),
}

impl Shape {
    /// A shape in the default layout.
    pub fn new(element_type: u32, dims: impl Into<Dims>) -> Self {
        Self { element_type, dims: dims.into(), layout: None }
    }

    /// Bytes of the elements, dense, as the host sees them (types below a byte take a byte each).
    pub fn host_bytes(&self) -> Result<u64, Status> {
        element::dense_bytes(self.element_type, &self.dims)
    }

    /// Whether a device of the host's processors has the elements as the host does: dense, major-to-minor, unpacked.
    fn is_as_on_host(&self) -> bool {
        let default = || (0..self.dims.len()).rev().map(|dim| dim.to_string()).collect::<Vec<_>>().join(",");
        let dense = match &self.layout {
            None => true,
            Some(DeviceLayout::Text(text)) => **text == *format!("{{{}}}", default()),
            Some(DeviceLayout::Given(_)) => false,
        };
        dense && element::is_plain(self.element_type)
    }

    fn given_layout(&self) -> Option<Layout> {
        match &self.layout {
            Some(DeviceLayout::Given(layout)) => Some(layout.clone()),
            _ => None,
        }
    }
}

/// What became of a buffer's value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Life {
    Held,
    Deleted,
    Donated,
}

/// How a buffer's value ended.
pub enum End {
    /// The worker may have the memory back.
    Free,
    /// Somebody still looks at it in place: it is to stay as it is, and whoever drops the view last frees it. So this is to
    /// be kept until the worker was told of all uses.
    Viewed(Arc<View>),
}

/// A buffer. Its place never changes.
pub struct Buffer {
    /// The client it belongs to.
    pub client: Arc<Client>,
    /// Who has the value, or will have it.
    pub holder: Holder,
    /// Index of its memory among the client's.
    pub memory: u32,
    /// Index of its device among the client's.
    pub device: u32,
    /// What it is.
    pub shape: Shape,
    /// Set once the value is there, or an error for good.
    pub ready: Arc<Event>,
    life: AtomicU8,
    bytes: u64,
    external_references: AtomicU64,
    /// The value where this process can read it, once that was asked for.
    view: Mutex<Option<Arc<View>>>,
    /// Of a launch's output: where all outputs of its device lie, and which of them it is.
    places: Option<(Arc<HeapPlaces>, usize)>,
    /// Whether the worker knows the value by another name too. Changed with `view` locked.
    shared: AtomicBool,
}

/// Who has a buffer's value.
#[derive(Clone)]
pub enum Holder {
    /// The worker of a session, under an id.
    Worker(Arc<Session>, BufferId),
    /// The arena: set no later than the buffer is ready, gone when the framework lets go of the value.
    Arena(Arc<HostSlot>),
    /// Nobody: the buffer was poisoned when it was made.
    Nobody,
}

impl Holder {
    /// A place in the arena for a value to come.
    pub fn arena() -> Self {
        Self::Arena(Arc::default())
    }

    /// The session that has, or will have, the value.
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Worker(session, _) => Some(session),
            Self::Arena(_) | Self::Nobody => None,
        }
    }
}

impl Buffer {
    /// A buffer whose value `holder` has, or will have once `ready` is set.
    pub fn new(client: &Arc<Client>, holder: Holder, place: Place, shape: Shape, ready: Arc<Event>) -> Arc<Self> {
        Self::make(client, holder, place, shape, ready, None)
    }

    /// The output with this number of a device's part of a launch.
    pub fn output(
        client: &Arc<Client>,
        holder: Holder,
        place: Place,
        shape: Shape,
        (ready, places): &DeviceDone,
        number: usize,
    ) -> Arc<Self> {
        Self::make(client, holder, place, shape, ready.clone(), Some((places.clone(), number)))
    }

    fn make(
        client: &Arc<Client>,
        holder: Holder,
        place: Place,
        shape: Shape,
        ready: Arc<Event>,
        places: Option<(Arc<HeapPlaces>, usize)>,
    ) -> Arc<Self> {
        let bytes = shape.host_bytes().unwrap_or(0);
        client.memories[place.memory as usize].usage.add(bytes);
        Arc::new(Self {
            client: client.clone(),
            holder,
            memory: place.memory,
            device: place.device,
            shape,
            ready,
            life: AtomicU8::new(Life::Held as u8),
            bytes,
            external_references: AtomicU64::new(0),
            view: Mutex::new(None),
            places,
            shared: AtomicBool::new(false),
        })
    }

    /// A buffer that is poisoned from the start. No worker hears of it.
    pub fn poisoned(client: &Arc<Client>, place: Place, shape: Shape, cause: Status) -> Arc<Self> {
        Self::new(client, Holder::Nobody, place, shape, Event::completed(Err(cause)))
    }

    /// The device it is on.
    pub fn device(&self) -> &Device {
        &self.client.devices[self.device as usize]
    }

    /// The memory it is in.
    pub fn memory(&self) -> &Memory {
        &self.client.memories[self.memory as usize]
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place { device: self.device, memory: self.memory }
    }

    /// The error that the buffer has for its value, if it is known to have one: the first cause.
    pub fn poison(&self) -> Option<Status> {
        self.ready.error().or_else(|| self.holder.session()?.lost().cloned())
    }

    /// Whether the framework deleted or donated it.
    pub fn is_deleted(&self) -> bool {
        self.life.load(Ordering::Acquire) != Life::Held as u8
    }

    /// An error unless the buffer still has a value.
    pub fn check_held(&self) -> Result<(), Status> {
        match self.life.load(Ordering::Acquire) {
            life if life == Life::Held as u8 => Ok(()),
            life if life == Life::Donated as u8 => {
                Err(Status::invalid("the buffer was donated to a computation and has no value any more"))
            }
            _ => Err(Status::invalid("the buffer was deleted and has no value any more")),
        }
    }

    /// Frees the value. Never waits; what in flight uses it keeps it as long as it must.
    pub fn delete(&self) {
        if let Some(End::Free) = self.end(Life::Deleted) {
            self.forget();
        }
    }

    /// Lets go of a value that the framework can reach no more.
    pub fn forget(&self) {
        match &self.holder {
            Holder::Worker(session, id) => session.destroy(*id, self.bytes),
            Holder::Arena(slot) => slot.release(),
            Holder::Nobody => {}
        }
    }

    /// Marks the value as consumed by a launch that is about to be sent; `None` where it had ended before.
    pub fn donate(&self) -> Option<End> {
        self.end(Life::Donated)
    }

    fn end(&self, life: Life) -> Option<End> {
        self.life.compare_exchange(Life::Held as u8, life as u8, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.memory().usage.remove(self.bytes);
        // Whoever makes a view looks at `life` with the lock held: no view in place is made after this.
        let view = lock(&self.view).take();
        // Without another owner, nobody looks any more.
        let Some(view) = view.and_then(|view| Arc::try_unwrap(view).err()) else { return Some(End::Free) };
        let View::InPlace(in_place) = &*view else { return Some(End::Free) };
        in_place.take_over();
        Some(End::Viewed(view))
    }

    /// Whether the worker may be told to know the value by a second name. It may not while the value is viewed in
    /// place; after it was, the value is viewed as a copy.
    pub fn give_away(&self) -> bool {
        let view = lock(&self.view);
        if matches!(view.as_deref(), Some(View::InPlace(_))) {
            return false;
        }
        self.shared.store(true, Ordering::Release);
        true
    }

    /// Bytes on the device. Asks the worker where the plugin's layout may pad; a lost buffer has its dense size.
    pub fn on_device_bytes(&self) -> Result<u64, Status> {
        self.check_held()?;
        let Holder::Worker(session, id) = &self.holder else { return self.shape.host_bytes() };
        if self.client.is_cpu() || self.poison().is_some() {
            return self.shape.host_bytes();
        }
        match session.query(Query::OnDeviceSize { buffer: *id })? {
            Reply::Number(bytes) => Ok(bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Brings the elements, dense in the order of `minor_to_major` (empty: major-to-minor), into a block of the arena.
    /// `done` runs once, with the block or with why there is none; it must not block.
    pub fn download(&self, minor_to_major: &[i64], done: impl FnOnce(Result<Arc<Block>, Status>) + Send + 'static) {
        let bytes = match self.shape.host_bytes() {
            Ok(bytes) => bytes,
            Err(error) => return done(Err(error)),
        };
        let order: SmallVec<[i64; 6]> = minor_to_major.into();
        match &self.holder {
            Holder::Worker(session, buffer) => {
                let buffer = *buffer;
                self.read(
                    session,
                    bytes,
                    move |request, to| Command::Download { request, buffer, minor_to_major: order, to },
                    done,
                );
            }
            Holder::Arena(slot) => {
                let (client, shape) = (self.client.clone(), self.shape.clone());
                self.when_in_arena(slot, move |block| {
                    done(block.and_then(|block| client.reorder(block, &shape, &order)))
                });
            }
            Holder::Nobody => done(Err(self.no_value())),
        }
    }

    /// Brings raw device bytes, from `offset` on, into a block of the arena. As [`Buffer::download`].
    pub fn read_raw(&self, offset: u64, len: u64, done: impl FnOnce(Result<Arc<Block>, Status>) + Send + 'static) {
        match &self.holder {
            Holder::Worker(session, buffer) => {
                let buffer = *buffer;
                self.read(session, len, move |request, to| Command::ReadRaw { request, buffer, offset, to }, done);
            }
            Holder::Arena(slot) => {
                let client = self.client.clone();
                self.when_in_arena(slot, move |block| {
                    done(block.and_then(|block| client.part_of(&block, offset, len)))
                });
            }
            Holder::Nobody => done(Err(self.no_value())),
        }
    }

    fn no_value(&self) -> Status {
        self.poison().unwrap_or_else(|| Status::failed_precondition("the buffer has no value"))
    }

    /// Runs `done` once the value is in the arena. The value is kept meanwhile, though the buffer is deleted.
    fn when_in_arena(&self, slot: &Arc<HostSlot>, done: impl FnOnce(Result<Arc<Block>, Status>) + Send + 'static) {
        if let Some(block) = slot.get_or_wait() {
            return done(Ok(block));
        }
        let slot = slot.clone();
        self.ready.on_done(move |outcome| {
            let gone = || Status::invalid("the buffer was deleted before its value came");
            let block = slot.collect();
            done(outcome.clone().and_then(|()| block.ok_or_else(gone)));
        });
    }

    fn read(
        &self,
        session: &Arc<Session>,
        len: u64,
        command: impl FnOnce(RequestId, Extent) -> Command,
        done: impl FnOnce(Result<Arc<Block>, Status>) + Send + 'static,
    ) {
        if let Some(cause) = self.poison() {
            return done(Err(cause));
        }
        let block = match self.client.allocate(len) {
            Ok(block) => block,
            Err(error) => return done(Err(error)),
        };
        let (to, asked, ready) = (block.extent(), session.clone(), self.ready.clone());
        session.request(
            |request| command(request, to),
            Box::new(move |reply| match reply {
                Ok(_) => done(Ok(Arc::new(block))),
                Err(error) => {
                    // A lost worker may still write to a block that it was asked to fill.
                    if asked.lost().is_some() {
                        asked.keep_until_reaped(Arc::new(block));
                    }
                    // The buffer knows the first cause, which may lie in another slice; the worker its own.
                    ready.on_done(move |outcome| done(Err(outcome.as_ref().err().cloned().unwrap_or(error))));
                }
            }),
        );
    }

    /// The elements where the client can read them: the value itself if it is in the arena or in the worker's heap, else
    /// a copy that is made once and kept until the buffer goes. Waits for the value; bounded by the worker's life.
    pub fn view(&self) -> Result<Arc<View>, Status> {
        self.check_held()?;
        self.outcome(self.ready.wait())?;
        if let Some(view) = self.view_at_once()? {
            return Ok(view);
        }
        // Without the lock: who deletes or donates meanwhile must not wait for a worker.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.download(&[], move |block| {
            let _ = tell.send(block);
        });
        let block =
            told.recv().unwrap_or_else(|_| Err(Status::failed_precondition("the copy to the host was dropped")))?;
        let copy = Arc::new(View::Copy(block));
        let mut view = lock(&self.view);
        // One that was deleted meanwhile keeps no copy.
        Ok(if self.check_held().is_ok() { view.get_or_insert(copy).clone() } else { copy })
    }

    /// The view that there is already, or one in place.
    fn view_at_once(&self) -> Result<Option<Arc<View>>, Status> {
        let mut view = lock(&self.view);
        self.check_held()?;
        if view.is_none() {
            *view = self.in_place().map(|in_place| Arc::new(View::InPlace(in_place)));
        }
        Ok(view.clone())
    }

    /// The value in the worker's heap, where it lies there as the host would have it.
    fn in_place(&self) -> Option<InPlace> {
        let ((places, number), Holder::Worker(session, id)) = (self.places.as_ref()?, &self.holder) else {
            return None;
        };
        if self.shared.load(Ordering::Acquire) || !self.shape.is_as_on_host() {
            return None;
        }
        InPlace::new(session, *id, *places.get()?.get(*number)?, self.bytes)
    }

    /// The outcome of the buffer's readiness: lost with the session, also where it was ready once.
    fn outcome(&self, ready: Outcome) -> Outcome {
        self.holder.session().map_or(ready.clone(), |session| outcome(ready, session))
    }

    /// Counts who uses the value from outside. Returns the count.
    pub fn add_external_reference(&self) -> u64 {
        self.external_references.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// As [`Buffer::add_external_reference`]; an error where there is none to take back.
    pub fn remove_external_reference(&self) -> Result<u64, Status> {
        self.external_references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
            .map(|count| count - 1)
            .map_err(|_| Status::failed_precondition("the buffer has no external reference to take back"))
    }

    /// What the worker is to make.
    pub fn spec(&self) -> BufferSpec {
        BufferSpec {
            element_type: self.shape.element_type,
            dims: self.shape.dims.clone(),
            memory: self.memory().ordinal,
            layout: self.shape.given_layout(),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.delete();
    }
}

/// A device and one of its memories, by index among the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the device.
    pub device: u32,
    /// Index of the memory.
    pub memory: u32,
}

/// The outcome of a value that `session` holds: lost with the session, also where it was ready once.
pub fn outcome(ready: Outcome, session: &Session) -> Outcome {
    ready?;
    session.lost().cloned().map_or(Ok(()), Err)
}

/// A worker answered a question with something that is no answer to it.
pub fn unexpected(reply: &Reply) -> Status {
    Status::new(crate::abi::Code::Unknown, format!("a worker gave an answer that does not fit the question: {reply:?}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
