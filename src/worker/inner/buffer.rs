//! Buffers of the inner client.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::call::{call, destroy};
use super::{Client, Event, Memory, layout};
use crate::abi::{Status, sys};
use crate::wire::message::{BufferSpec, Layout};

/// A buffer, destroyed when dropped. What the plugin does with it at that time goes on and ends well.
pub struct Buffer {
    client: Client,
    raw: NonNull<sys::PJRT_Buffer>,
}

// SAFETY: the interface lets any thread use a buffer.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes over a buffer that a function of an extension gave.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where it is null.
    ///
    /// # Safety
    /// `raw` is null or a buffer of this client that nobody else destroys.
    pub unsafe fn from_raw(client: &Client, raw: *mut sys::PJRT_Buffer) -> Result<Self, Status> {
        Self::new(client, raw)
    }

    /// Takes over a buffer that the plugin gave.
    pub(super) fn new(client: &Client, raw: *mut sys::PJRT_Buffer) -> Result<Self, Status> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Status::failed_precondition("the plugin gave neither a buffer nor an error"))?;
        Ok(Self { client: client.clone(), raw })
    }

    /// The handle, for functions of extensions.
    pub fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.raw.as_ptr()
    }

    /// Happens when the buffer has its value, or fails with why it has none.
    pub fn ready(&self) -> Result<Event, Status> {
        let args = call!(self.client.plugin(), PJRT_Buffer_ReadyEvent_Args { buffer: self.raw() })?;
        Ok(Event::new(self.client.plugin(), args.event))
    }

    /// Copies into another memory of the same client.
    pub fn copy_to(&self, memory: Memory<'_>) -> Result<Self, Status> {
        let args = call!(
            self.client.plugin(),
            PJRT_Buffer_CopyToMemory_Args { buffer: self.raw(), dst_memory: memory.raw() }
        )?;
        Self::new(&self.client, args.dst_buffer)
    }

    /// The same bytes as another type, shape and layout. This buffer is used up, as if donated.
    pub fn bitcast(&self, spec: &BufferSpec) -> Result<Self, Status> {
        let mut device_layout = spec.layout.as_ref().map(layout::to_c);
        let args = call!(
            self.client.plugin(),
            PJRT_Buffer_Bitcast_Args {
                buffer: self.raw(),
                element_type: spec.element_type,
                dims: spec.dims.as_ptr(),
                num_dims: spec.dims.len(),
                device_layout: device_layout.as_mut().map_or(std::ptr::null_mut(), |layout| layout),
            }
        )?;
        Self::new(&self.client, args.out_buffer)
    }

    /// Writes the elements to host memory, dense in this layout, or in the plugin's choice of one.
    ///
    /// # Errors
    /// The plugin's, also where `len` is too small; later ones come with the event.
    ///
    /// # Safety
    /// `to` must point to `len` bytes that nobody else uses until the event has happened.
    pub unsafe fn to_host(&self, layout: Option<&Layout>, to: *mut c_void, len: usize) -> Result<Event, Status> {
        let mut host_layout = layout.map(layout::to_c);
        let args = call!(
            self.client.plugin(),
            PJRT_Buffer_ToHostBuffer_Args {
                src: self.raw(),
                host_layout: host_layout.as_mut().map_or(std::ptr::null_mut(), |layout| layout),
                dst: to,
                dst_size: len,
            }
        )?;
        Ok(Event::new(self.client.plugin(), args.event))
    }

    /// Copies `len` device bytes, from `offset` on, to host memory.
    ///
    /// # Safety
    /// As for [`Buffer::to_host`].
    pub unsafe fn raw_to_host(&self, offset: i64, to: *mut c_void, len: usize) -> Result<Event, Status> {
        let args = call!(
            self.client.plugin(),
            PJRT_Buffer_CopyRawToHost_Args { buffer: self.raw(), dst: to, offset: offset, transfer_size: len as i64 }
        )?;
        Ok(Event::new(self.client.plugin(), args.event))
    }

    /// The address of the device memory, in this process where the device is the host's processors.
    pub fn address(&self) -> Result<usize, Status> {
        call!(self.client.plugin(), PJRT_Buffer_UnsafePointer_Args { buffer: self.raw() })
            .map(|args| args.buffer_pointer)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> Result<usize, Status> {
        call!(self.client.plugin(), PJRT_Buffer_Dimensions_Args { buffer: self.raw() }).map(|args| args.num_dims)
    }

    /// Bytes on the device.
    pub fn on_device_size(&self) -> Result<u64, Status> {
        call!(self.client.plugin(), PJRT_Buffer_OnDeviceSizeInBytes_Args { buffer: self.raw() })
            .map(|args| args.on_device_size_in_bytes as u64)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        destroy!(self.client.plugin(), PJRT_Buffer_Destroy_Args { buffer: self.raw() });
    }
}
