//! Buffers as the framework sees them: a type, a shape, a place, and a value.
//!
//! The value of a buffer in device memory is with the worker: a session of the slice holds it, and it is lost with the
//! session. The value of a buffer in host memory is in the arena: it outlives every worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use super::client::Client;
use super::device::{Device, Memory};
use super::event::{Event, Outcome};
use super::host_slot::HostSlot;
use super::life::{End, Life};
use super::session::{DeviceDone, Session};
use super::view::{Held, Places, View};
use crate::abi::{Status, element};
use crate::sync::lock;
use crate::wire::arena::{Block, WeakBlock};
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
    Given(Box<Layout>),
    /// The plugin's serialized text, known from compilation, and whether it says that elements lie dense and major-to-minor.
    Text(Arc<str>, bool),
}

impl DeviceLayout {
    /// The layout of an array of this rank that has a text.
    pub fn from_text(text: &str, rank: usize) -> Self {
        Self::Text(Arc::from(text), is_major_to_minor(text, rank))
    }
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
        let dense = match &self.layout {
            None => true,
            Some(DeviceLayout::Text(_, is_major_to_minor)) => *is_major_to_minor,
            Some(DeviceLayout::Given(_)) => false,
        };
        dense && element::is_plain(self.element_type)
    }

    fn given_layout(&self) -> Option<Layout> {
        match &self.layout {
            Some(DeviceLayout::Given(layout)) => Some(layout.as_ref().clone()),
            _ => None,
        }
    }
}

/// Whether a layout's text is that of the host's order, `{2,1,0}`, without tiles.
fn is_major_to_minor(text: &str, rank: usize) -> bool {
    let Some(order) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else { return false };
    if rank == 0 {
        return order.is_empty();
    }
    order.split(',').map(|dim| dim.parse().ok()).eq((0..rank).rev().map(Some))
}

/// A value that a launch consumes.
pub enum Donated {
    /// The worker may have the memory.
    Free,
    /// Somebody looks at it in place: it is to stay as it is, and whoever looks last frees it. So this is to be kept until the
    /// worker was told of all uses.
    Seen(Held),
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
    life: Life,
    bytes: u64,
    external_references: AtomicU64,
    /// The value in the arena, where that was asked for and can't be had in place.
    copy: Mutex<Option<Block>>,
    /// Where the value lies on the device, if this process can read it there.
    pub(super) origin: Origin,
}

/// How a buffer's value came to be where this process can read it.
#[derive(Default)]
pub(super) enum Origin {
    /// Unknown, or elsewhere.
    #[default]
    Unknown,
    /// The worker says, with the report that it is there, where values lie that came together; and which of them it is.
    Reported(Arc<Places>, usize),
    /// The block that was lent to the worker to be the device's memory, for as long as it is.
    Arena(WeakBlock),
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
        Self::make(client, holder, place, shape, ready, Origin::Unknown)
    }

    /// A buffer whose memory is to be a block that the worker of `holder` is lent.
    pub fn in_block(
        client: &Arc<Client>,
        holder: Holder,
        place: Place,
        shape: Shape,
        ready: Arc<Event>,
        block: &Block,
    ) -> Arc<Self> {
        Self::make(client, holder, place, shape, ready, Origin::Arena(block.downgrade()))
    }

    /// One of the values that come together: the output with this number of a device's part of a launch, or the only one.
    pub fn output(
        client: &Arc<Client>,
        holder: Holder,
        place: Place,
        shape: Shape,
        (ready, places): &DeviceDone,
        number: usize,
    ) -> Arc<Self> {
        Self::make(client, holder, place, shape, ready.clone(), Origin::Reported(places.clone(), number))
    }

    fn make(
        client: &Arc<Client>,
        holder: Holder,
        place: Place,
        shape: Shape,
        ready: Arc<Event>,
        origin: Origin,
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
            life: Life::default(),
            bytes,
            external_references: AtomicU64::new(0),
            copy: Mutex::default(),
            origin,
        })
    }

    /// A buffer that is poisoned from the start. No worker hears of it.
    pub fn poisoned(client: &Arc<Client>, place: Place, shape: Shape, cause: Status) -> Arc<Self> {
        Self::new(client, Holder::Nobody, place, shape, Event::completed(Err(cause)))
    }

    /// Bytes of its elements, dense.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
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
        self.life.ended().is_some()
    }

    /// An error unless the buffer still has a value.
    pub fn check_held(&self) -> Result<(), Status> {
        match self.life.ended() {
            None => Ok(()),
            Some(End::Donated) => {
                Err(Status::invalid("the buffer was donated to a computation and has no value any more"))
            }
            Some(End::Deleted) => Err(Status::invalid("the buffer was deleted and has no value any more")),
        }
    }

    /// Frees the value. Never waits; what in flight uses it keeps it as long as it must.
    pub fn delete(&self) {
        match self.end(End::Deleted) {
            Some(true) => self.look_away(),
            Some(false) => self.forget(),
            None => {}
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
    pub fn donate(self: &Arc<Self>) -> Option<Donated> {
        let is_seen = self.end(End::Donated)?;
        Some(if is_seen { Donated::Seen(Held::new(self, None)) } else { Donated::Free })
    }

    /// Ends it. Whether somebody looks at it: then the caller does as well from now on.
    fn end(&self, how: End) -> Option<bool> {
        let is_seen = self.life.end(how)?;
        self.memory().usage.remove(self.bytes);
        lock(&self.copy).take();
        Some(is_seen)
    }

    /// One who looked at the value in place does so no more.
    pub(super) fn look_away(&self) {
        if self.life.look_away() {
            self.forget();
        }
    }

    /// Whether the worker may be told to know the value by a second name. It may not while somebody looks at the value in
    /// place; after it was, the value is viewed as a copy.
    pub fn give_away(&self) -> bool {
        self.life.share()
    }

    /// Whether the raw bytes of the device memory are the elements as the host has them.
    pub fn is_dense_on_device(&self) -> bool {
        self.client.has_flat_memory() && self.shape.is_as_on_host()
    }

    /// Holds the value, which may be still to come, as it is: to be read in place once it is there, whatever becomes of
    /// the buffer. `None` where this process will not be able to read it.
    pub fn hold(self: &Arc<Self>) -> Option<Held> {
        let Holder::Worker(session, _) = &self.holder else { return None };
        let block = match &self.origin {
            Origin::Reported(..) => session.heap().map(|_| None)?,
            Origin::Arena(block) => Some(block.upgrade()?),
            Origin::Unknown => return None,
        };
        (self.shape.is_as_on_host() && self.life.look()).then(|| Held::new(self, block))
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
    pub fn download(&self, minor_to_major: &[i64], done: impl FnOnce(Result<Block, Status>) + Send + 'static) {
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
    pub fn read_raw(&self, offset: u64, len: u64, done: impl FnOnce(Result<Block, Status>) + Send + 'static) {
        match &self.holder {
            Holder::Worker(session, buffer) => {
                let buffer = *buffer;
                self.read(session, len, move |request, to| Command::ReadRaw { request, buffer, offset, to }, done);
            }
            Holder::Arena(slot) => {
                let part = move |block: Block| {
                    let outside = || format!("{len} bytes from {offset} on are not all in the buffer");
                    block.part(offset, len).ok_or_else(|| Status::invalid(outside()))
                };
                self.when_in_arena(slot, move |block| done(block.and_then(part)));
            }
            Holder::Nobody => done(Err(self.no_value())),
        }
    }

    fn no_value(&self) -> Status {
        self.poison().unwrap_or_else(|| Status::failed_precondition("the buffer has no value"))
    }

    /// Runs `done` once the value is in the arena. The value is kept meanwhile, though the buffer is deleted.
    fn when_in_arena(&self, slot: &Arc<HostSlot>, done: impl FnOnce(Result<Block, Status>) + Send + 'static) {
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
        done: impl FnOnce(Result<Block, Status>) + Send + 'static,
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
                Ok(_) => done(Ok(block)),
                Err(error) => asked.unread(block, &ready, error, |cause| done(Err(cause))),
            }),
        );
    }

    /// The elements where the client can read them: the value itself if it is in the arena or in the worker's heap, else
    /// a copy that is made once and kept until the buffer goes. Waits for the value; bounded by the worker's life.
    pub fn view(self: &Arc<Self>) -> Result<View, Status> {
        self.check_held()?;
        self.outcome(self.ready.wait())?;
        if let Some(copy) = &*lock(&self.copy) {
            return Ok(View::Copy(copy.clone()));
        }
        // What can't be seen in place is copied, or lost: the copy will tell.
        if let Some(Ok(view)) = self.hold().map(Held::view) {
            return Ok(view);
        }
        // Without the lock: who deletes or donates meanwhile must not wait for a worker.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.download(&[], move |block| {
            let _ = tell.send(block);
        });
        let block =
            told.recv().unwrap_or_else(|_| Err(Status::failed_precondition("the copy to the host was dropped")))?;
        let mut copy = lock(&self.copy);
        // One that was deleted meanwhile keeps no copy.
        Ok(View::Copy(if self.check_held().is_ok() { copy.get_or_insert(block).clone() } else { block }))
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
