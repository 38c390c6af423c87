//! Moving values: host to device, device to device within and across slices, values that come later, values that are errors.

use std::sync::Arc;

use super::buffer::{Buffer, DeviceLayout, Holder, Place, Shape};
use super::client::Client;
use super::event::Event;
use super::host_array::HostArray;
use super::host_slot::HostSlot;
use super::session::Session;
use super::view::Places;
use crate::abi::{Status, element};
use crate::wire::arena::Block;
use crate::wire::message::{BufferId, BufferSpec, Command, Ids, Layout, Payload};

/// Data up to this many bytes travels in the message; more goes through the arena.
const INLINE_BYTES: u64 = 2048;

/// Whether a worker may keep a block that it is lent as a buffer's own memory, and write to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// Nobody else reads the block: the worker may.
    Mutable,
    /// The block is a value of its own: the worker may only read it.
    ReadOnly,
}

impl Client {
    /// Creates a buffer from the dense host bytes that `fill` writes. They are written before this returns.
    pub fn upload(
        self: &Arc<Self>,
        place: Place,
        shape: Shape,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Arc<Buffer>, Status> {
        let bytes = shape.host_bytes()?;
        if self.is_host(place.memory) {
            let block = self.filled(bytes, fill)?;
            return Ok(self.in_arena(place, shape, block));
        }
        let session = self.session_of_memory(place.memory);
        if let Some(loss) = session.lost() {
            return Ok(Buffer::poisoned(self, place, shape, loss.clone()));
        }
        let (data, block) = if bytes <= INLINE_BYTES {
            let mut data = vec![0; bytes as usize];
            fill(&mut data);
            (Payload::Inline(data), None)
        } else {
            let block = self.filled(bytes, fill)?;
            (self.lend(&session, block.clone(), Lending::Mutable), Some(block))
        };
        let quiet = self.is_there_at_once(&shape);
        let (buffer, id) = if quiet {
            let (id, ready) = (self.fresh_id(), Event::completed(Ok(())));
            let holder = Holder::Worker(session.clone(), id);
            let buffer = match block {
                Some(block) => Buffer::in_block(self, holder, place, shape, ready, &block),
                None => Buffer::new(self, holder, place, shape, ready),
            };
            (buffer, id)
        } else {
            self.expected(&session, place, shape)
        };
        session.send(&Command::Upload { buffer: id, spec: buffer.spec(), data, quiet });
        Ok(buffer)
    }

    /// Whether uploaded bytes are a ready value before the worker has seen them. So it is where the plugin computes in
    /// host memory and keeps elements as they come: then the block in the arena is the device's memory, or the worker
    /// copies from the message what can't be refused. Waiting for its word would cost a round trip for nothing. Where
    /// it fails all the same, whatever reads the buffer gets the cause.
    fn is_there_at_once(&self, shape: &Shape) -> bool {
        self.is_cpu() && shape.layout.is_none() && element::is_plain(shape.element_type)
    }

    fn filled(&self, bytes: u64, fill: impl FnOnce(&mut [u8])) -> Result<Block, Status> {
        let mut block = self.allocate(bytes)?;
        // SAFETY: fresh from the arena: no worker knows of it.
        fill(unsafe { block.as_mut_slice() });
        Ok(block)
    }

    /// A buffer in host memory whose value is there.
    fn in_arena(self: &Arc<Self>, place: Place, shape: Shape, block: Block) -> Arc<Buffer> {
        let holder = Holder::Arena(Arc::new(HostSlot::filled(block)));
        Buffer::new(self, holder, place, shape, Event::completed(Ok(())))
    }

    /// A buffer with the value of a filled block, which others may read as well and nobody writes to.
    ///
    /// # Errors
    /// A shape that is none.
    pub fn from_value(self: &Arc<Self>, place: Place, shape: Shape, block: Block) -> Result<Arc<Buffer>, Status> {
        if self.is_host(place.memory) {
            return Ok(self.in_arena(place, shape, block));
        }
        if shape.host_bytes()? <= INLINE_BYTES {
            // SAFETY: the block is a value, which nobody writes to.
            return self.upload(place, shape, |room| room.copy_from_slice(unsafe { block.as_slice() }));
        }
        let session = self.session_of_memory(place.memory);
        if let Some(loss) = session.lost() {
            return Ok(Buffer::poisoned(self, place, shape, loss.clone()));
        }
        let data = self.lend(&session, block, Lending::ReadOnly);
        let (buffer, id) = self.expected(&session, place, shape);
        session.send(&Command::Upload { buffer: id, spec: buffer.spec(), data, quiet: false });
        Ok(buffer)
    }

    /// A new buffer that `session` will report ready.
    fn expected(self: &Arc<Self>, session: &Arc<Session>, place: Place, shape: Shape) -> (Arc<Buffer>, BufferId) {
        let (id, ready) = (self.fresh_id(), (Event::pending(), Arc::new(Places::new())));
        session.expect_ready(id, &ready);
        (Buffer::output(self, Holder::Worker(session.clone(), id), place, shape, &ready, 0), id)
    }

    /// Lends a filled block to a worker.
    fn lend(&self, session: &Session, block: Block, lending: Lending) -> Payload {
        let (extent, loan) = (block.extent(), self.fresh_id());
        session.lend(loan, block, lending == Lending::Mutable);
        Payload::Arena { extent, loan, mutable: lending == Lending::Mutable }
    }

    /// A buffer that exists now and gets its value later, through its promise.
    pub fn declare(self: &Arc<Self>, place: Place, shape: Shape) -> (Arc<Buffer>, Promise) {
        if self.is_host(place.memory) {
            let buffer = Buffer::new(self, Holder::arena(), place, shape, Event::pending());
            let promise = Promise::of(&buffer);
            return (buffer, promise);
        }
        let session = self.session_of_memory(place.memory);
        if let Some(loss) = session.lost() {
            let buffer = Buffer::poisoned(self, place, shape, loss.clone());
            let promise = Promise::of(&buffer);
            return (buffer, promise);
        }
        self.declare_on(&session, place, shape)
    }

    fn declare_on(self: &Arc<Self>, session: &Arc<Session>, place: Place, shape: Shape) -> (Arc<Buffer>, Promise) {
        let (buffer, id) = self.expected(session, place, shape);
        session.send(&Command::Declare { buffers: Ids::from_slice(&[id]) });
        let promise = Promise::of(&buffer);
        (buffer, promise)
    }

    /// A buffer that exists now, and a block of the arena that is to be its memory: the value is there once that is committed,
    /// filled and given through the promise, without a word from the worker. `None` where devices don't compute in the arena, or
    /// where the memory would be missed.
    pub fn declare_in_arena(self: &Arc<Self>, place: Place, shape: &Shape) -> Option<(Arc<Buffer>, Promise, Block)> {
        if self.is_host(place.memory) || !self.is_there_at_once(shape) {
            return None;
        }
        let session = self.session_of_memory(place.memory);
        if session.lost().is_some() {
            return None;
        }
        let block = self.arena().allocate_for_device(shape.host_bytes().ok()?)?;
        self.announce();
        let (id, ready) = (self.fresh_id(), Event::pending());
        session.send(&Command::Declare { buffers: Ids::from_slice(&[id]) });
        let buffer = Buffer::in_block(self, Holder::Worker(session, id), place, shape.clone(), ready, &block);
        let promise = Promise { quiet: true, ..Promise::of(&buffer) };
        Some((buffer, promise, block))
    }

    /// Gives a declared buffer its value: a filled block of dense host bytes.
    pub fn fulfil(&self, promise: &Promise, block: Block, lending: Lending) {
        match &promise.holder {
            Holder::Worker(session, id) => match session.lost() {
                Some(loss) => _ = promise.ready.set(Err(loss.clone())),
                None => {
                    let (data, quiet) = (self.lend(session, block, lending), promise.quiet);
                    session.send(&Command::Upload { buffer: *id, spec: promise.spec.clone(), data, quiet });
                    if quiet {
                        promise.ready.set(Ok(()));
                    }
                }
            },
            Holder::Arena(slot) => {
                slot.fill(block);
                promise.ready.set(Ok(()));
            }
            Holder::Nobody => {}
        }
    }

    /// Gives a declared buffer an error for its value.
    pub fn fail(&self, promise: &Promise, status: Status) {
        match &promise.holder {
            Holder::Worker(session, id) => {
                session.send(&Command::Fail { buffer: *id, status: status.clone() });
                if promise.quiet {
                    promise.ready.set(Err(status));
                }
            }
            Holder::Arena(_) | Holder::Nobody => {
                promise.ready.set(Err(status));
            }
        }
    }

    /// Gives a declared buffer the value of `source`, or the error, once that is known.
    pub fn fulfil_from(self: &Arc<Self>, promise: &Promise, source: &Buffer) {
        let lending = match &source.holder {
            Holder::Arena(_) => Lending::ReadOnly,
            Holder::Worker(..) | Holder::Nobody => Lending::Mutable,
        };
        let (client, promise) = (self.clone(), promise.clone());
        source.download(&[], move |block| match block {
            Ok(block) => client.fulfil(&promise, block, lending),
            Err(cause) => client.fail(&promise, cause),
        });
    }

    /// A buffer of unspecified contents.
    pub fn uninitialized(self: &Arc<Self>, place: Place, shape: Shape) -> Result<Arc<Buffer>, Status> {
        let bytes = shape.host_bytes()?;
        if self.is_host(place.memory) {
            let block = self.allocate(bytes)?;
            return Ok(self.in_arena(place, shape, block));
        }
        let session = self.session_of_memory(place.memory);
        if let Some(loss) = session.lost() {
            return Ok(Buffer::poisoned(self, place, shape, loss.clone()));
        }
        let (buffer, id) = self.expected(&session, place, shape);
        session.send(&Command::Uninitialized { buffer: id, spec: buffer.spec() });
        Ok(buffer)
    }

    /// Copies a buffer to another memory: of the same slice on its worker, else through the arena.
    pub fn copy(self: &Arc<Self>, source: &Arc<Buffer>, place: Place) -> Result<Arc<Buffer>, Status> {
        source.check_held()?;
        if let Some(cause) = source.poison() {
            return Ok(Buffer::poisoned(self, place, portable(&source.shape), cause));
        }
        let to_worker = (!self.is_host(place.memory)).then(|| self.session_of_memory(place.memory));
        if let (Some(session), Holder::Worker(same, id)) = (&to_worker, &source.holder)
            && Arc::ptr_eq(session, same)
        {
            let (buffer, new) = self.expected(session, place, source.shape.clone());
            session.send(&Command::Copy { source: *id, buffer: new, memory: buffer.memory().ordinal });
            return Ok(buffer);
        }
        let (buffer, promise) = self.declare(place, portable(&source.shape));
        if buffer.poison().is_none() {
            self.fulfil_from(&promise, source);
        }
        Ok(buffer)
    }

    /// A buffer on the worker of `session` with the value of a host buffer, for a program to read.
    pub fn stage(self: &Arc<Self>, source: &Buffer, session: &Arc<Session>) -> Arc<Buffer> {
        let (buffer, promise) = self.declare_on(session, source.place(), source.shape.clone());
        self.fulfil_from(&promise, source);
        buffer
    }

    /// The same bytes seen as another type and shape. Takes the source over, as if it were donated.
    pub fn bitcast(
        self: &Arc<Self>,
        source: &Arc<Buffer>,
        element_type: u32,
        dims: &[i64],
        layout: Option<Layout>,
    ) -> Result<Arc<Buffer>, Status> {
        source.check_held()?;
        let mut shape = Shape::new(element_type, dims);
        shape.layout = layout.map(|layout| DeviceLayout::Given(Box::new(layout)));
        let (bytes, from) = (shape.host_bytes()?, source.shape.host_bytes()?);
        if let Some(cause) = source.poison() {
            return Ok(Buffer::poisoned(self, source.place(), shape, cause));
        }
        match &source.holder {
            Holder::Worker(session, id) if source.give_away() => {
                let (buffer, new) = self.expected(session, source.place(), shape);
                session.send(&Command::Bitcast { source: *id, buffer: new, spec: buffer.spec() });
                // The worker has forgotten it with that.
                let _ = source.donate();
                Ok(buffer)
            }
            Holder::Arena(_) | Holder::Worker(..) if bytes == from => {
                let (buffer, promise) = self.declare(source.place(), shape);
                self.fulfil_from(&promise, source);
                source.delete();
                Ok(buffer)
            }
            Holder::Arena(_) | Holder::Worker(..) | Holder::Nobody => {
                Err(Status::invalid(format!("{from} bytes cannot be seen as an array of {bytes} bytes")))
            }
        }
    }

    /// Makes a declared buffer equal to `source`.
    pub fn fulfil_alias(self: &Arc<Self>, promise: &Promise, source: &Arc<Buffer>) -> Result<(), Status> {
        source.check_held()?;
        match (&promise.holder, &source.holder) {
            (_, _) if source.poison().is_some() => {
                self.fail(promise, source.poison().unwrap_or_else(|| Status::invalid("poisoned")))
            }
            (Holder::Worker(session, id), Holder::Worker(same, from))
                if Arc::ptr_eq(session, same) && source.give_away() =>
            {
                session.send(&Command::Alias { buffer: *id, source: *from });
            }
            _ => self.fulfil_from(promise, source),
        }
        Ok(())
    }

    /// Takes a buffer's value out of it, into a new one that nobody has a handle of.
    pub fn donate_whole(self: &Arc<Self>, source: &Arc<Buffer>) -> Result<Arc<Buffer>, Status> {
        let (taken, promise) = self.declare(source.place(), source.shape.clone());
        self.fulfil_alias(&promise, source)?;
        source.delete();
        Ok(taken)
    }

    /// Dense elements in another order of the dimensions; the same block for the default order.
    pub fn reorder(&self, block: Block, shape: &Shape, minor_to_major: &[i64]) -> Result<Block, Status> {
        if minor_to_major.is_empty() {
            return Ok(block);
        }
        let size = element::host_bytes(shape.element_type)?;
        let mut strides = vec![0_i64; shape.dims.len()];
        let mut stride = size as i64;
        for dim in (0..shape.dims.len()).rev() {
            strides[dim] = stride;
            stride = stride.saturating_mul(shape.dims[dim]);
        }
        // Written major-to-minor, an array whose dimensions are listed slowest first is in the order that is asked for.
        let slowest_first = minor_to_major.iter().rev().map(|&dim| dim as usize);
        let (dims, strides): (Vec<i64>, Vec<i64>) = slowest_first.map(|dim| (shape.dims[dim], strides[dim])).unzip();
        let mut ordered = self.allocate(shape.host_bytes()?)?;
        // SAFETY: the block has the dense elements of the shape and is a value, which nobody writes to.
        let array = unsafe { HostArray::new(block.as_ptr(), size, &dims, Some(&strides))? };
        // SAFETY: fresh from the arena: no worker knows of it.
        array.copy_to(unsafe { ordered.as_mut_slice() });
        Ok(ordered)
    }
}

/// A shape as another slice can be asked for it: the text of a layout cannot be asked for, so what was computed in such a
/// layout arrives in the default one.
fn portable(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    shape.layout = shape.layout.filter(|layout| matches!(layout, DeviceLayout::Given(_)));
    shape
}

/// The right to give a declared buffer its value. Independent of the buffer's own handle, which may be gone first.
#[derive(Clone)]
pub struct Promise {
    holder: Holder,
    ready: Arc<Event>,
    spec: BufferSpec,
    /// Whether the value is there once it is given; the worker does not say so.
    quiet: bool,
}

impl Promise {
    /// The promise of a buffer that is pending.
    pub(super) fn of(buffer: &Buffer) -> Self {
        Self { holder: buffer.holder.clone(), ready: buffer.ready.clone(), spec: buffer.spec(), quiet: false }
    }
}
