//! `PJRT_AsyncHostToDeviceTransferManager`: buffers that exist at once and get their bytes in pieces.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::{BufferHandle, foreign_array};
use super::client::{ClientHandle, shape};
use super::device::Places;
use super::entry::{entries, list, text};
use super::error::from_parts;
use super::event::EventHandle;
use super::handle::Handle;
use crate::abi::{Status, sys};
use crate::runtime::buffer::{Buffer, Place};
use crate::runtime::transfer::{Lending, Promise};
use crate::sync::lock;
use crate::wire::arena::Block;

/// A transfer manager in a caller's hands.
struct TransferHandle {
    places: Arc<Places>,
    device: u32,
    parts: Vec<Mutex<Part>>,
}

impl Handle for TransferHandle {
    type Raw = sys::PJRT_AsyncHostToDeviceTransferManager;
    const WHAT: &'static str = "transfer manager";
}

/// One buffer of a transfer manager.
struct Part {
    buffer: Option<Arc<Buffer>>,
    bytes: u64,
    state: State,
    promise: Promise,
}

enum State {
    /// Bytes are collected here; the block comes with the first of them.
    Open(Option<Block>),
    /// The worker has the value, or the error.
    Settled,
}

impl TransferHandle {
    fn part(&self, index: i32) -> Result<MutexGuard<'_, Part>, Status> {
        let part = usize::try_from(index).ok().and_then(|index| self.parts.get(index));
        let part = part.ok_or_else(|| {
            Status::invalid(format!("the transfer manager has {} buffers, none at {index}", self.parts.len()))
        })?;
        Ok(lock(part))
    }

    /// Lets `fill` write to the bytes of an open part; sends them off with the last of them.
    fn write(&self, index: i32, last: bool, fill: impl FnOnce(&mut [u8]) -> Result<(), Status>) -> Result<(), Status> {
        let client = &self.places.client;
        let mut part = self.part(index)?;
        let bytes = part.bytes;
        let State::Open(block) = &mut part.state else {
            return Err(Status::failed_precondition(format!(
                "buffer {index} of the transfer manager has its value already"
            )));
        };
        let mut filled = match block.take() {
            Some(block) => block,
            None => client.allocate(bytes)?,
        };
        // SAFETY: fresh from the arena and not lent yet: no worker knows of it.
        let result = fill(unsafe { filled.as_mut_slice() });
        if last && result.is_ok() {
            part.state = State::Settled;
            client.fulfil(&part.promise, filled, Lending::Mutable);
        } else {
            *block = Some(filled);
        }
        result
    }
}

impl Drop for TransferHandle {
    /// What never came poisons its buffer, so that nobody waits for it for ever.
    fn drop(&mut self) {
        for part in &mut self.parts {
            let part = part.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let State::Open(_) = part.state {
                let cause = Status::failed_precondition(
                    "the transfer manager was destroyed before the buffer's last bytes came",
                );
                self.places.client.fail(&part.promise, cause);
            }
        }
    }
}

entries! {
    PJRT_Client_CreateBuffersForAsyncHostToDevice(args: PJRT_Client_CreateBuffersForAsyncHostToDevice_Args) {
        // SAFETY: a live client of ours, its memory, and the caller's shapes and layouts.
        unsafe {
            let client = ClientHandle::borrow(args.client)?;
            let place: Place = client.place(std::ptr::null_mut(), args.memory)?;
            let layouts = list(args.device_layouts, args.num_device_layouts);
            if !layouts.is_empty() && layouts.len() != args.num_shape_specs {
                return Err(Status::invalid(format!("{} layouts were given for {} buffers", layouts.len(), args.num_shape_specs)));
            }
            let specs = list(args.shape_specs, args.num_shape_specs).iter().enumerate();
            let shapes = specs.map(|(index, spec)| {
                let layout = layouts.get(index).map_or(std::ptr::null(), |layout| layout.cast_const());
                shape(spec.element_type, spec.dims, spec.num_dims, layout)
            });
            let parts = shapes.collect::<Result<Vec<_>, _>>()?.into_iter().map(|shape| {
                let bytes = shape.host_bytes()?;
                let (buffer, promise) = client.client().declare(place, shape);
                Ok(Mutex::new(Part { buffer: Some(buffer), bytes, state: State::Open(None), promise }))
            });
            let parts = parts.collect::<Result<Vec<_>, Status>>()?;
            args.transfer_manager = TransferHandle { places: client.places.clone(), device: place.device, parts }.into_raw();
        }
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_Destroy(args: PJRT_AsyncHostToDeviceTransferManager_Destroy_Args) {
        // SAFETY: the caller gives up a transfer manager of ours, or null.
        drop(unsafe { TransferHandle::take(args.transfer_manager) });
        Ok(())
    }

    /// The bytes are copied before this returns.
    PJRT_AsyncHostToDeviceTransferManager_TransferData(args: PJRT_AsyncHostToDeviceTransferManager_TransferData_Args) {
        // SAFETY: a live transfer manager of ours.
        let manager = unsafe { TransferHandle::borrow(args.transfer_manager)? };
        let (offset, len) = (args.offset, args.transfer_size);
        let given = args.data;
        manager.write(args.buffer_index, args.is_last_transfer, |into| {
            let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
            let range = range.and_then(|(offset, len)| into.get_mut(offset..offset.checked_add(len)?));
            let target = range.ok_or_else(|| Status::invalid(format!("{len} bytes from {offset} on are not all in the buffer")))?;
            if given.is_null() && !target.is_empty() {
                return Err(Status::invalid("a null pointer was given for the data"));
            }
            if !target.is_empty() {
                // SAFETY: the caller's data has as many bytes as it says; the target is ours.
                unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), target.as_mut_ptr(), target.len()) };
            }
            Ok(())
        })?;
        args.done_with_h2d_transfer = EventHandle::done(Ok(()));
        Ok(())
    }

    /// A whole array, copied before this returns.
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral(args: PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args) {
        // SAFETY: a live transfer manager of ours, and the caller's array.
        unsafe {
            let manager = TransferHandle::borrow(args.transfer_manager)?;
            let shape = shape(args.shape_element_type, args.shape_dims, args.shape_num_dims, std::ptr::null())?;
            let needed = shape.host_bytes()?;
            let array = foreign_array(args.data, &shape, args.shape_layout)?;
            manager.write(args.buffer_index, true, |into| {
                if into.len() as u64 != needed {
                    return Err(Status::invalid(format!("the array has {needed} bytes; the buffer takes {}", into.len())));
                }
                array.copy_to(into);
                Ok(())
            })?;
        }
        args.done_with_h2d_transfer = EventHandle::done(Ok(()));
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(args: PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args) {
        // SAFETY: a live transfer manager of ours.
        let manager = unsafe { TransferHandle::borrow(args.transfer_manager)? };
        let buffer = manager.part(args.buffer_index)?.buffer.take();
        let buffer = buffer.ok_or_else(|| Status::failed_precondition(format!("buffer {} was retrieved already", args.buffer_index)))?;
        args.buffer_out = BufferHandle::new(buffer, &manager.places).into_raw();
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_Device(args: PJRT_AsyncHostToDeviceTransferManager_Device_Args) {
        // SAFETY: a live transfer manager of ours.
        let manager = unsafe { TransferHandle::borrow(args.transfer_manager)? };
        args.device_out = manager.places.device(manager.device);
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_BufferCount(args: PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args) {
        // SAFETY: a live transfer manager of ours.
        args.buffer_count = unsafe { TransferHandle::borrow(args.transfer_manager)? }.parts.len();
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_BufferSize(args: PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args) {
        // SAFETY: a live transfer manager of ours.
        args.buffer_size = unsafe { TransferHandle::borrow(args.transfer_manager)? }.part(args.buffer_index)?.bytes as usize;
        Ok(())
    }

    PJRT_AsyncHostToDeviceTransferManager_SetBufferError(args: PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args) {
        // SAFETY: a live transfer manager of ours, and the caller's words.
        let (manager, words) = unsafe {
            (TransferHandle::borrow(args.transfer_manager)?, text(args.error_message, args.error_message_size))
        };
        let mut part = manager.part(args.buffer_index)?;
        if let State::Settled = part.state {
            return Err(Status::failed_precondition(format!("buffer {} of the transfer manager has its value already", args.buffer_index)));
        }
        part.state = State::Settled;
        manager.places.client.fail(&part.promise, from_parts(args.error_code, words));
        Ok(())
    }

    /// Metadata is for tools that trace transfers; there is none here.
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata(args: PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args) {
        // SAFETY: a live transfer manager of ours.
        unsafe { TransferHandle::borrow(args.transfer_manager) }.map(drop)
    }
}
