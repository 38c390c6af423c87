//! `PJRT_Buffer`.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock};

use super::client::shape;
use super::device::{DeviceHandle, MemoryHandle, Places};
use super::entry::{entries, list, quietly, refusals, text};
use super::error::from_parts;
use super::event::EventHandle;
use super::handle::Handle;
use super::snapshot::capture;
use super::values::layout_from_c;
use crate::abi::{Code, Status, element, sys};
use crate::runtime::buffer::{Buffer, DeviceLayout, Shape};
use crate::runtime::event::Event;
use crate::runtime::host_array::HostArray;
use crate::runtime::transfer::Promise;
use crate::runtime::view::View;
use crate::sync::lock;
use crate::wire::arena::Block;
use crate::wire::message::Layout;

/// A buffer in a caller's hands.
pub struct BufferHandle {
    buffer: Arc<Buffer>,
    places: Arc<Places>,
    layout: OnceLock<LayoutStorage>,
    /// What external references point to: kept though the value is deleted meanwhile.
    lent: Mutex<Option<View>>,
}

impl Handle for BufferHandle {
    type Raw = sys::PJRT_Buffer;
    const WHAT: &'static str = "buffer";
}

impl BufferHandle {
    /// A handle of a buffer.
    pub fn new(buffer: Arc<Buffer>, places: &Arc<Places>) -> Self {
        Self { buffer, places: places.clone(), layout: OnceLock::new(), lent: Mutex::new(None) }
    }

    /// The buffer itself.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    fn give(&self, buffer: Arc<Buffer>) -> *mut sys::PJRT_Buffer {
        Self::new(buffer, &self.places).into_raw()
    }

    /// Whether this process can have the value, or a copy of it, at an address: on the host's processors and in host memory.
    fn is_readable(&self) -> bool {
        self.buffer.client.is_cpu() || self.buffer.client.is_host(self.buffer.memory)
    }

    /// The address of the value, or of a copy of it, in this process.
    fn address(&self) -> Result<*mut c_void, Status> {
        if !self.is_readable() {
            return Err(Status::unimplemented("the buffer's memory belongs to a worker process; copy it to the host"));
        }
        let view = self.buffer.view()?;
        let address = view.as_ptr().cast();
        *lock(&self.lent) = Some(view);
        Ok(address)
    }
}

/// A layout as C sees it.
struct LayoutStorage {
    minor_to_major: Vec<i64>,
    tile_dims: Vec<i64>,
    tile_dim_sizes: Vec<usize>,
}

impl LayoutStorage {
    fn of(buffer: &Buffer) -> Result<Self, Status> {
        let layout = match &buffer.shape.layout {
            Some(DeviceLayout::Given(layout)) => layout.as_ref().clone(),
            Some(DeviceLayout::Text(text, _)) => {
                return Ok(Self {
                    minor_to_major: order_of_text(text, buffer.shape.dims.len()),
                    tile_dims: vec![],
                    tile_dim_sizes: vec![],
                });
            }
            None => buffer.client.default_layout(&buffer.shape)?.0,
        };
        match layout {
            Layout::Tiled { minor_to_major, tile_dims, tile_dim_sizes } => Ok(Self {
                minor_to_major: minor_to_major.to_vec(),
                tile_dims: tile_dims.to_vec(),
                tile_dim_sizes: tile_dim_sizes.iter().map(|&size| size as usize).collect(),
            }),
            Layout::Strides(strides) => {
                Ok(Self { minor_to_major: order_of_strides(&strides), tile_dims: vec![], tile_dim_sizes: vec![] })
            }
        }
    }

    fn to_c(&self) -> sys::PJRT_Buffer_MemoryLayout {
        let tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout_Tiled>(),
            extension_start: std::ptr::null_mut(),
            minor_to_major: self.minor_to_major.as_ptr(),
            minor_to_major_size: self.minor_to_major.len(),
            tile_dims: self.tile_dims.as_ptr(),
            tile_dim_sizes: self.tile_dim_sizes.as_ptr(),
            num_tiles: self.tile_dim_sizes.len(),
        };
        sys::PJRT_Buffer_MemoryLayout {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout>(),
            extension_start: std::ptr::null_mut(),
            __bindgen_anon_1: sys::PJRT_Buffer_MemoryLayout__bindgen_ty_1 { tiled },
            type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
        }
    }
}

/// The dimension order in a layout's text (`{1,0:T(8,128)}`); the default order where it says none.
fn order_of_text(text: &str, rank: usize) -> Vec<i64> {
    let order: Option<Vec<i64>> = text
        .strip_prefix('{')
        .and_then(|rest| rest.split([':', '}']).next())
        .and_then(|order| order.split(',').map(|dim| dim.trim().parse().ok()).collect());
    order.filter(|order| order.len() == rank).unwrap_or_else(|| (0..rank as i64).rev().collect())
}

/// Dimensions by growing stride: fastest varying first.
fn order_of_strides(strides: &[i64]) -> Vec<i64> {
    let mut order: Vec<i64> = (0..strides.len() as i64).rev().collect();
    order.sort_by_key(|&dim| strides[dim as usize].unsigned_abs());
    order
}

/// The caller's array: dense, or with strides in bytes.
///
/// # Safety
/// `data` holds the array of this shape; `count` strides at `strides`. Good for the time of the call.
pub unsafe fn host_array<'a>(
    data: *const c_void,
    shape: &'a Shape,
    strides: *const i64,
    count: usize,
) -> Result<HostArray<'a>, Status> {
    let size = element::host_bytes(shape.element_type)?;
    // SAFETY: the caller's promise.
    unsafe { HostArray::new(data.cast(), size, &shape.dims, (count > 0).then(|| list(strides, count))) }
}

/// Foreign memory in some layout of dimensions.
///
/// # Safety
/// `data` holds the dense array of this shape in the order of the layout.
pub unsafe fn foreign_array<'a>(
    data: *const c_void,
    shape: &'a Shape,
    layout: *const sys::PJRT_Buffer_MemoryLayout,
) -> Result<HostArray<'a>, Status> {
    let size = element::host_bytes(shape.element_type)?;
    // SAFETY: the caller's promise.
    let strides = match unsafe { layout_from_c(layout)? } {
        None => None,
        Some(Layout::Strides(strides)) => Some(strides.to_vec()),
        Some(Layout::Tiled { minor_to_major, .. }) => Some(dense_strides(&shape.dims, &minor_to_major, size)?),
    };
    let strides = strides.as_deref().unwrap_or(&[]);
    // SAFETY: the caller's promise.
    unsafe { HostArray::new(data.cast(), size, &shape.dims, (!strides.is_empty()).then_some(strides)) }
}

/// Strides in bytes of a dense array whose dimensions vary in this order, fastest first.
fn dense_strides(dims: &[i64], minor_to_major: &[i64], element: usize) -> Result<Vec<i64>, Status> {
    let mut strides = vec![0; dims.len()];
    let mut stride = element as i64;
    let mut seen = vec![false; dims.len()];
    for &dim in minor_to_major {
        let at = usize::try_from(dim).ok().filter(|&at| at < dims.len() && !seen[at]);
        let at = at.ok_or_else(|| {
            Status::invalid(format!("the layout {minor_to_major:?} is no order of {} dimensions", dims.len()))
        })?;
        seen[at] = true;
        strides[at] = stride;
        stride = stride.saturating_mul(dims[at]);
    }
    if minor_to_major.len() != dims.len() {
        return Err(Status::invalid(format!("the layout {minor_to_major:?} is no order of {} dimensions", dims.len())));
    }
    Ok(strides)
}

/// The dimension order of a host layout for the worker; empty for the default.
///
/// # Safety
/// `layout` is null or as the interface has it.
unsafe fn host_order(layout: *const sys::PJRT_Buffer_MemoryLayout, shape: &Shape) -> Result<Vec<i64>, Status> {
    let rank = shape.dims.len();
    // SAFETY: the caller's promise.
    let order = match unsafe { layout_from_c(layout)? } {
        None => {
            // Without a wish the elements come in the order of the buffer's own layout, as XLA's plugins have it.
            match &shape.layout {
                Some(DeviceLayout::Text(text, _)) => order_of_text(text, rank),
                Some(DeviceLayout::Given(layout)) => match &**layout {
                    Layout::Tiled { minor_to_major, .. } => minor_to_major.to_vec(),
                    Layout::Strides(_) => return Ok(Vec::new()),
                },
                None => return Ok(Vec::new()),
            }
        }
        Some(Layout::Strides(strides)) => {
            let order = order_of_strides(&strides);
            let size = element::host_bytes(shape.element_type)?;
            if strides.len() != rank
                || dense_strides(&shape.dims, &order, size)? != strides.to_vec() && shape.host_bytes()? > 0
            {
                return Err(Status::unimplemented(format!(
                    "host strides {strides:?} with gaps are not served; ask for a dense array"
                )));
            }
            order
        }
        Some(Layout::Tiled { tile_dims, .. }) if !tile_dims.is_empty() => {
            return Err(Status::unimplemented("tiled host layouts are not served; ask for a dense array"));
        }
        Some(Layout::Tiled { minor_to_major, .. }) => minor_to_major.to_vec(),
    };
    if !order.is_empty() {
        dense_strides(&shape.dims, &order, 1)?;
    }
    let default = order.iter().copied().eq((0..rank as i64).rev());
    Ok(if default { Vec::new() } else { order })
}

/// Memory of the caller's that a transfer writes to later.
struct Destination {
    start: *mut u8,
    len: usize,
}

// SAFETY: the interface makes the caller keep the memory alive and untouched until the transfer's event.
unsafe impl Send for Destination {}

impl Destination {
    fn fill(self, block: &Block) {
        // SAFETY: `len` bytes on both sides: the block was allocated with it, the caller's memory was checked against it.
        unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), self.start, self.len) };
    }
}

/// An event that is set once a block of the arena was copied to the caller's memory.
fn arrive(
    buffer: &Buffer,
    destination: Destination,
    fetch: impl FnOnce(Box<dyn FnOnce(Result<Block, Status>) + Send>),
) -> *mut sys::PJRT_Event {
    let event = Event::pending();
    let (arrived, client) = (event.clone(), buffer.client.clone());
    fetch(Box::new(move |block| match block {
        Ok(block) => client.copy_later(destination.len as u64, move || {
            destination.fill(&block);
            arrived.set(Ok(()));
        }),
        Err(cause) => {
            arrived.set(Err(cause));
        }
    }));
    EventHandle::of_copy(event)
}

entries! {
    PJRT_Buffer_Destroy(args: PJRT_Buffer_Destroy_Args) {
        // SAFETY: the caller gives up a buffer of ours, or null.
        drop(unsafe { BufferHandle::take(args.buffer) });
        Ok(())
    }

    PJRT_Buffer_ElementType(args: PJRT_Buffer_ElementType_Args) {
        // SAFETY: a live buffer of ours.
        args.type_ = unsafe { BufferHandle::borrow(args.buffer)? }.buffer.shape.element_type;
        Ok(())
    }

    PJRT_Buffer_Dimensions(args: PJRT_Buffer_Dimensions_Args) {
        // SAFETY: a live buffer of ours.
        let dims = &unsafe { BufferHandle::borrow(args.buffer)? }.buffer.shape.dims;
        (args.dims, args.num_dims) = (dims.as_ptr(), dims.len());
        Ok(())
    }

    PJRT_Buffer_UnpaddedDimensions(args: PJRT_Buffer_UnpaddedDimensions_Args) {
        // SAFETY: a live buffer of ours.
        let dims = &unsafe { BufferHandle::borrow(args.buffer)? }.buffer.shape.dims;
        (args.unpadded_dims, args.num_dims) = (dims.as_ptr(), dims.len());
        Ok(())
    }

    /// Shapes are static here: no dimension is dynamic.
    PJRT_Buffer_DynamicDimensionIndices(args: PJRT_Buffer_DynamicDimensionIndices_Args) {
        // SAFETY: a live buffer of ours.
        unsafe { BufferHandle::borrow(args.buffer)? };
        (args.dynamic_dim_indices, args.num_dynamic_dims) = (std::ptr::null(), 0);
        Ok(())
    }

    PJRT_Buffer_GetMemoryLayout(args: PJRT_Buffer_GetMemoryLayout_Args) {
        // SAFETY: a live buffer of ours.
        let handle = unsafe { BufferHandle::borrow(args.buffer)? };
        let layout = match handle.layout.get() {
            Some(layout) => layout,
            None => {
                let layout = LayoutStorage::of(&handle.buffer)?;
                handle.layout.get_or_init(|| layout)
            }
        };
        args.layout = layout.to_c();
        Ok(())
    }

    PJRT_Buffer_OnDeviceSizeInBytes(args: PJRT_Buffer_OnDeviceSizeInBytes_Args) {
        // SAFETY: a live buffer of ours.
        args.on_device_size_in_bytes = unsafe { BufferHandle::borrow(args.buffer)? }.buffer.on_device_bytes()? as usize;
        Ok(())
    }

    PJRT_Buffer_Device(args: PJRT_Buffer_Device_Args) {
        // SAFETY: a live buffer of ours.
        let handle = unsafe { BufferHandle::borrow(args.buffer)? };
        args.device = handle.places.device(handle.buffer.device);
        Ok(())
    }

    PJRT_Buffer_Memory(args: PJRT_Buffer_Memory_Args) {
        // SAFETY: a live buffer of ours.
        let handle = unsafe { BufferHandle::borrow(args.buffer)? };
        args.memory = handle.places.memory(handle.buffer.memory);
        Ok(())
    }

    PJRT_Buffer_Delete(args: PJRT_Buffer_Delete_Args) {
        // SAFETY: a live buffer of ours.
        unsafe { BufferHandle::borrow(args.buffer)? }.buffer.delete();
        Ok(())
    }

    PJRT_Buffer_IsDeleted(args: PJRT_Buffer_IsDeleted_Args) {
        // SAFETY: a live buffer of ours.
        args.is_deleted = unsafe { BufferHandle::borrow(args.buffer)? }.buffer.is_deleted();
        Ok(())
    }

    PJRT_Buffer_IsOnCpu(args: PJRT_Buffer_IsOnCpu_Args) {
        // SAFETY: a live buffer of ours.
        args.is_on_cpu = unsafe { BufferHandle::borrow(args.buffer)? }.is_readable();
        Ok(())
    }

    PJRT_Buffer_ReadyEvent(args: PJRT_Buffer_ReadyEvent_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = &unsafe { BufferHandle::borrow(args.buffer)? }.buffer;
        args.event = EventHandle::of_buffer(buffer);
        Ok(())
    }

    PJRT_Buffer_CopyToDevice(args: PJRT_Buffer_CopyToDevice_Args) {
        // SAFETY: a live buffer and device of ours.
        let (handle, device) = unsafe { (BufferHandle::borrow(args.buffer)?, DeviceHandle::borrow(args.dst_device)?) };
        let client = &handle.buffer.client;
        args.dst_buffer = handle.give(client.copy(&handle.buffer, client.place_on_device(device.index)?)?);
        Ok(())
    }

    PJRT_Buffer_CopyToMemory(args: PJRT_Buffer_CopyToMemory_Args) {
        // SAFETY: a live buffer and memory of ours.
        let (handle, memory) = unsafe { (BufferHandle::borrow(args.buffer)?, MemoryHandle::borrow(args.dst_memory)?) };
        let client = &handle.buffer.client;
        args.dst_buffer = handle.give(client.copy(&handle.buffer, client.place_in_memory(memory.index, None)?)?);
        Ok(())
    }

    /// Without a destination: only the size that one needs.
    PJRT_Buffer_ToHostBuffer(args: PJRT_Buffer_ToHostBuffer_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = &unsafe { BufferHandle::borrow(args.src)? }.buffer;
        buffer.check_held()?;
        let needed = buffer.shape.host_bytes()? as usize;
        if args.dst.is_null() {
            args.dst_size = needed;
            return Ok(());
        }
        if args.dst_size < needed {
            return Err(Status::invalid(format!("the destination has {} bytes; the buffer needs {needed}", args.dst_size)));
        }
        // SAFETY: the caller's layout, or null.
        let order = unsafe { host_order(args.host_layout, &buffer.shape)? };
        let destination = Destination { start: args.dst.cast(), len: needed };
        args.event = arrive(buffer, destination, |done| buffer.download(&order, done));
        Ok(())
    }

    PJRT_Buffer_CopyRawToHost(args: PJRT_Buffer_CopyRawToHost_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = &unsafe { BufferHandle::borrow(args.buffer)? }.buffer;
        let (offset, len) = raw_range(buffer, args.offset, args.transfer_size)?;
        if args.dst.is_null() && len > 0 {
            return Err(Status::invalid("a null pointer was given for the destination"));
        }
        let destination = Destination { start: args.dst.cast(), len: len as usize };
        args.event = arrive(buffer, destination, |done| buffer.read_raw(offset, len, done));
        Ok(())
    }

    /// The copy begins once the caller gives the destination, through the callback that this returns.
    PJRT_Buffer_CopyRawToHostFuture(args: PJRT_Buffer_CopyRawToHostFuture_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = unsafe { BufferHandle::borrow(args.buffer)? }.buffer.clone();
        let (offset, len) = raw_range(&buffer, args.offset, args.transfer_size)?;
        let event = Event::pending();
        args.event = EventHandle::of_copy(event.clone());
        args.callback_data = Box::into_raw(Box::new(RawFuture { buffer, offset, len, event })).cast();
        args.future_ready_callback = Some(raw_future_ready);
        Ok(())
    }

    PJRT_Buffer_Bitcast(args: PJRT_Buffer_Bitcast_Args) {
        // SAFETY: a live buffer of ours, and the caller's shape.
        unsafe {
            let handle = BufferHandle::borrow(args.buffer)?;
            let shape = shape(args.element_type, args.dims, args.num_dims, std::ptr::null())?;
            let layout = layout_from_c(args.device_layout)?;
            let buffer = handle.buffer.client.bitcast(&handle.buffer, shape.element_type, &shape.dims, layout)?;
            args.out_buffer = handle.give(buffer);
        }
        Ok(())
    }

    /// The new buffer has the value once the caller says so, through the callback that this returns.
    PJRT_Buffer_DonateWithControlDependency(args: PJRT_Buffer_DonateWithControlDependency_Args) {
        // SAFETY: a live buffer of ours.
        let handle = unsafe { BufferHandle::borrow(args.buffer)? };
        let source = &handle.buffer;
        source.check_held()?;
        let held = source.client.donate_whole(source)?;
        let (buffer, promise) = source.client.declare(source.place(), source.shape.clone());
        args.callback_data = Box::into_raw(Box::new(Dependency { source: held, promise })).cast();
        args.dependency_ready_callback = Some(dependency_ready);
        args.out_buffer = handle.give(buffer);
        Ok(())
    }

    PJRT_Buffer_UnsafePointer(args: PJRT_Buffer_UnsafePointer_Args) {
        if capture(args.buffer) {
            args.buffer_pointer = args.buffer.addr();
            return Ok(());
        }
        // SAFETY: a live buffer of ours.
        args.buffer_pointer = unsafe { BufferHandle::borrow(args.buffer)? }.address()?.addr();
        Ok(())
    }

    PJRT_Buffer_OpaqueDeviceMemoryDataPointer(args: PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args) {
        // SAFETY: a live buffer of ours.
        args.device_memory_ptr = unsafe { BufferHandle::borrow(args.buffer)? }.address()?;
        Ok(())
    }

    PJRT_Buffer_IncreaseExternalReferenceCount(args: PJRT_Buffer_IncreaseExternalReferenceCount_Args) {
        // SAFETY: a live buffer of ours.
        let buffer = &unsafe { BufferHandle::borrow(args.buffer)? }.buffer;
        buffer.check_held()?;
        buffer.add_external_reference();
        Ok(())
    }

    PJRT_Buffer_DecreaseExternalReferenceCount(args: PJRT_Buffer_DecreaseExternalReferenceCount_Args) {
        // SAFETY: a live buffer of ours.
        let handle = unsafe { BufferHandle::borrow(args.buffer)? };
        // Locked first: who comes between gets its view after this.
        let mut lent = lock(&handle.lent);
        if handle.buffer.remove_external_reference()? == 0 {
            lent.take();
        }
        Ok(())
    }
}

refusals! {
    PJRT_CopyToDeviceStream_Destroy(PJRT_CopyToDeviceStream_Destroy_Args)
        "streams belong to receive callbacks, which worker processes cannot make"
    PJRT_CopyToDeviceStream_AddChunk(PJRT_CopyToDeviceStream_AddChunk_Args)
        "streams belong to receive callbacks, which worker processes cannot make"
    PJRT_CopyToDeviceStream_TotalBytes(PJRT_CopyToDeviceStream_TotalBytes_Args)
        "streams belong to receive callbacks, which worker processes cannot make"
    PJRT_CopyToDeviceStream_GranuleSize(PJRT_CopyToDeviceStream_GranuleSize_Args)
        "streams belong to receive callbacks, which worker processes cannot make"
    PJRT_CopyToDeviceStream_CurrentBytes(PJRT_CopyToDeviceStream_CurrentBytes_Args)
        "streams belong to receive callbacks, which worker processes cannot make"
}

/// Offset and length of a raw copy, within the buffer. A length of -1 means the rest.
fn raw_range(buffer: &Buffer, offset: i64, len: i64) -> Result<(u64, u64), Status> {
    buffer.check_held()?;
    let size = buffer.on_device_bytes()?;
    let offset = u64::try_from(offset).ok().filter(|&offset| offset <= size);
    let range = offset.and_then(|offset| {
        let len = if len == -1 { size - offset } else { u64::try_from(len).ok()? };
        (len <= size - offset).then_some((offset, len))
    });
    range.ok_or_else(|| {
        Status::invalid(format!("{len} bytes from {offset:?} on are not all in a buffer of {size} bytes"))
    })
}

/// A raw copy that waits for its destination.
struct RawFuture {
    buffer: Arc<Buffer>,
    offset: u64,
    len: u64,
    event: Arc<Event>,
}

unsafe extern "C" fn raw_future_ready(args: *mut sys::PJRT_Buffer_CopyRawToHostFuture_Callback_Args) {
    // SAFETY: callers pass a struct of this type with the data that came with this callback, once.
    let (args, future) = unsafe {
        let Some(args) = args.as_ref() else { return };
        if args.callback_data.is_null() {
            return;
        }
        (args, Box::from_raw(args.callback_data.cast::<RawFuture>()))
    };
    let event = future.event.clone();
    // SAFETY: as above; the destination is the caller's until the event is set.
    let begun = quietly(Err(Status::new(Code::Unknown, "a bug in Mainstay: a raw copy panicked")), || unsafe {
        future.begin(args)
    });
    if let Err(cause) = begun {
        event.set(Err(cause));
    }
}

impl RawFuture {
    /// Copies to the destination that has become known.
    ///
    /// # Safety
    /// The destination stays writable, and nobody else's, until the event is set.
    unsafe fn begin(self, args: &sys::PJRT_Buffer_CopyRawToHostFuture_Callback_Args) -> Result<(), Status> {
        if args.error_code != sys::PJRT_Error_Code_OK {
            // SAFETY: the message is the caller's, for the time of the callback.
            return Err(from_parts(args.error_code, unsafe { text(args.error_message, args.error_message_size) }));
        }
        if args.dst.is_null() && self.len > 0 {
            return Err(Status::invalid("a null pointer was given for the destination"));
        }
        let destination = Destination { start: args.dst.cast(), len: self.len as usize };
        let (client, event) = (self.buffer.client.clone(), self.event);
        self.buffer.read_raw(self.offset, self.len, move |block| match block {
            Ok(block) => client.copy_later(destination.len as u64, move || {
                destination.fill(&block);
                event.set(Ok(()));
            }),
            Err(cause) => {
                event.set(Err(cause));
            }
        });
        Ok(())
    }
}

/// A donated value that waits for the word that it may be used.
struct Dependency {
    source: Arc<Buffer>,
    promise: Promise,
}

unsafe extern "C" fn dependency_ready(args: *mut sys::PJRT_Buffer_DonateWithControlDependency_Callback_Args) {
    // SAFETY: callers pass a struct of this type with the data that came with this callback, once.
    let (args, dependency) = unsafe {
        let Some(args) = args.as_ref() else { return };
        if args.callback_data.is_null() {
            return;
        }
        (args, Box::from_raw(args.callback_data.cast::<Dependency>()))
    };
    quietly((), || {
        let Dependency { source, promise } = *dependency;
        let client = source.client.clone();
        let failure = match args.error_code {
            sys::PJRT_Error_Code_OK => client.fulfil_alias(&promise, &source).err(),
            // SAFETY: the message is the caller's, for the time of the callback.
            code => Some(from_parts(code, unsafe { text(args.error_message, args.error_message_size) })),
        };
        if let Some(cause) = failure {
            client.fail(&promise, cause);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_from_texts_and_strides() {
        assert_eq!(order_of_text("{0,1:T(8,128)}", 2), [0, 1]);
        assert_eq!(order_of_text("{}", 0), [] as [i64; 0]);
        assert_eq!(order_of_text("nonsense", 3), [2, 1, 0]);
        assert_eq!(order_of_strides(&[4, 40]), [0, 1]);
        assert_eq!(order_of_strides(&[40, 4]), [1, 0]);
        assert_eq!(order_of_strides(&[4, 4]), [1, 0]);
    }

    #[test]
    fn dense_strides_follow_the_order() {
        assert_eq!(dense_strides(&[2, 3], &[1, 0], 4).unwrap(), [12, 4]);
        assert_eq!(dense_strides(&[2, 3], &[0, 1], 4).unwrap(), [4, 8]);
        assert!(dense_strides(&[2, 3], &[0, 0], 4).is_err());
        assert!(dense_strides(&[2, 3], &[0], 4).is_err());
    }
}
