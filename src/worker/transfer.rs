//! Buffers: made from host data or from each other, and read back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::heap;
use super::inner::{Buffer, Event, HostData, HostSemantics, major_to_minor};
use super::session::Host;
use crate::abi::{Status, element};
use crate::wire::message::{BufferId, BufferSpec, Extent, Layout, LoanId, Payload, RequestId};

/// The version that brought `PJRT_HostBufferSemantics_kMutableZeroCopy`.
const MUTABLE_ZERO_COPY_SINCE: i32 = 48;

/// Whether a value's memory belongs to one buffer of the client's. Where it has several names, it may be donated by
/// another one: the client is not told where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    One,
    Several,
}

impl Host {
    /// Makes a buffer from host data, which it gives back once the plugin is done with it.
    pub(super) fn upload(&mut self, buffer: BufferId, spec: &BufferSpec, data: Payload, quiet: bool) {
        let loan = match &data {
            Payload::Arena { loan, extent, .. } => Some((*loan, extent.len)),
            Payload::Inline(_) => None,
        };
        match self.buffer_from_host(spec, &data) {
            Ok((made, done)) => {
                if let Some((loan, bytes)) = loan {
                    self.return_after(loan, bytes, done);
                }
                if quiet {
                    self.table.settle(buffer, Ok(Arc::new(made)));
                } else {
                    self.settle_made(buffer, Ok(made));
                }
            }
            Err(status) => {
                if let Some((loan, bytes)) = loan {
                    self.outbox.returned(loan, bytes);
                }
                self.fail(buffer, status);
            }
        }
    }

    fn buffer_from_host(&self, spec: &BufferSpec, data: &Payload) -> Result<(Buffer, Event), Status> {
        let (address, len, semantics) = match data {
            Payload::Inline(bytes) => (bytes.as_ptr(), bytes.len() as u64, HostSemantics::OnlyDuringCall),
            Payload::Arena { extent, mutable, .. } => {
                (self.arena_at(*extent)?.cast_const(), extent.len, self.arena_semantics(*mutable))
            }
        };
        let needed = element::dense_bytes(spec.element_type, &spec.dims)?;
        if len < needed {
            return Err(Status::invalid(format!(
                "{len} bytes of host data for an array of {:?}, which needs {needed}",
                spec.dims
            )));
        }
        let data = HostData { data: address.cast(), semantics };
        // SAFETY: the length has been checked. Inline bytes live during the call. The arena is mapped for good, and
        // the client leaves the extent alone until the loan is returned, which happens after the event.
        unsafe { self.client()?.buffer_from_host(data, spec) }
    }

    /// Memory that is ours to change becomes the buffer's own where the plugin works in host memory; others copy it.
    fn arena_semantics(&self, mutable: bool) -> HostSemantics {
        if mutable && self.plugin.version().1 >= MUTABLE_ZERO_COPY_SINCE {
            HostSemantics::MutableZeroCopy
        } else {
            HostSemantics::UntilTransferCompletes
        }
    }

    /// Gives a loan back once the plugin no longer uses it: after the copy, or when the last buffer that has the
    /// memory for its own is gone. That is not counted as in flight, because it may be never.
    fn return_after(&self, loan: LoanId, bytes: u64, done: Event) {
        let outbox = self.outbox.clone();
        done.on_ready(move |result| {
            if let Err(status) = result {
                tracing::debug!(%status, loan, "a transfer from the arena failed");
            }
            outbox.returned(loan, bytes);
        });
    }

    /// Makes a buffer of unspecified contents.
    pub(super) fn uninitialized(&mut self, buffer: BufferId, spec: &BufferSpec) {
        let made = self.client().and_then(|client| client.uninitialized_buffer(spec));
        self.settle_made(buffer, made);
    }

    /// Makes a declared buffer equal to another: both are the inner plugin's one.
    pub(super) fn alias(&mut self, buffer: BufferId, source: BufferId) {
        let made = self.table.get(source).cloned();
        self.settle_and_say(buffer, made, Names::Several);
    }

    /// Copies a buffer into another memory of the slice.
    pub(super) fn copy(&mut self, source: BufferId, buffer: BufferId, memory: u32) {
        let made = self.table.get(source).and_then(|source| source.copy_to(self.client()?.memory(memory)?));
        self.settle_made(buffer, made);
    }

    /// Makes a buffer of another's bytes, as another type and shape.
    pub(super) fn bitcast(&mut self, source: BufferId, buffer: BufferId, spec: &BufferSpec) {
        let made = self.table.get(source).and_then(|source| source.bitcast(spec));
        self.settle_and_say(buffer, made.map(Arc::new), Names::Several);
    }

    /// Writes a buffer's elements to the arena.
    pub(super) fn download(
        &self,
        request: RequestId,
        buffer: BufferId,
        minor_to_major: SmallVec<[i64; 6]>,
        to: Extent,
    ) {
        let event = self.table.get(buffer).and_then(|buffer| {
            let layout = match minor_to_major.is_empty() {
                // Said in full: the plugin's own choice is the order on the device.
                true => major_to_minor(buffer.rank()?),
                false => Layout::Tiled { minor_to_major, tile_dims: SmallVec::new(), tile_dim_sizes: SmallVec::new() },
            };
            let at = self.arena_at(to)?;
            // SAFETY: the arena is mapped for good, and the client leaves the extent to us until it has the reply,
            // which is sent after the event.
            unsafe { buffer.to_host(Some(&layout), at.cast(), to.len as usize) }
        });
        self.outbox.done_after(request, event);
    }

    /// Writes a buffer's device bytes to the arena.
    pub(super) fn read_raw(&self, request: RequestId, buffer: BufferId, offset: u64, to: Extent) {
        let event = self.table.get(buffer).and_then(|buffer| {
            let at = self.arena_at(to)?;
            let offset = i64::try_from(offset).map_err(|_| Status::invalid(format!("offset {offset} in a buffer")))?;
            // SAFETY: as in `download`.
            unsafe { buffer.raw_to_host(offset, at.cast(), to.len as usize) }
        });
        self.outbox.done_after(request, event);
    }

    /// Gives a buffer an error for its value, and says so.
    pub(super) fn fail(&mut self, buffer: BufferId, status: Status) {
        self.table.settle(buffer, Err(status.clone()));
        self.outbox.ready(buffer, Err(status));
    }

    /// Gives a buffer the one that was made, or the error, and says so once it is ready.
    fn settle_made(&mut self, buffer: BufferId, made: Result<Buffer, Status>) {
        self.settle_and_say(buffer, made.map(Arc::new), Names::One);
    }

    fn settle_and_say(&mut self, buffer: BufferId, made: Result<Arc<Buffer>, Status>, names: Names) {
        let made = match made {
            Ok(made) => made,
            Err(status) => return self.fail(buffer, status),
        };
        let event = made.ready();
        // Kept for its address, which is known for sure when it is ready.
        let kept = (names == Names::One && heap::is_on()).then(|| made.clone());
        self.table.settle(buffer, Ok(made));
        let outbox = self.outbox.clone();
        self.outbox.after(event, move |result| {
            outbox.ready(buffer, result.map(|()| kept.map_or(0, |kept| heap::place_of(&kept))));
        });
    }
}
