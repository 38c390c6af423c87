//! The snapshot extension (`include/mainstay_snapshot.h`), and the two modes of a thread in which a framework's calls
//! lead to snapshots.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::buffer::BufferHandle;
use super::client::ClientHandle;
use super::entry::{bytes, entries, list, text};
use super::handle::Handle;
use crate::abi::{Status, sys};
use crate::runtime::buffer::{Buffer, Place, Shape};
use crate::runtime::client::Client;
use crate::runtime::status::clients;
use crate::snapshot::{Imported, Numbers, Part, Phase, Request, Snapshot, Store, supply};
use crate::wire::stream;

struct StoreHandle(Arc<Store>);

impl Handle for StoreHandle {
    type Raw = sys::Mainstay_SnapshotStore;
    const WHAT: &'static str = "snapshot store";
}

struct SnapshotHandle {
    snapshot: Arc<Snapshot>,
    /// The names of its arrays, each ended by a zero byte, where it came from a file.
    names: Vec<u8>,
}

impl SnapshotHandle {
    fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, names: Vec::new() }
    }
}

impl Handle for SnapshotHandle {
    type Raw = sys::Mainstay_Snapshot;
    const WHAT: &'static str = "snapshot";
}

/// A buffer that a thread is to be supplied with: what it is a part of, and the id of the device that it is for.
struct Order {
    part: Part,
    device: i64,
}

/// The end of the name of programs that are not run while buffers are captured.
const PROGRAM: &[u8] = match CStr::from_bytes_with_nul(sys::MAINSTAY_CAPTURE_PROGRAM) {
    Ok(name) => name.to_bytes(),
    Err(_) => panic!("a string of the header ends with its only zero byte"),
};

thread_local! {
    /// What is noted between a begin and its end, the innermost last: a signal's handler may begin within another.
    static CAPTURES: RefCell<Vec<Vec<*mut sys::PJRT_Buffer>>> = const { RefCell::new(Vec::new()) };
    /// What is still to be supplied, likewise.
    static ORDERS: RefCell<Vec<VecDeque<Order>>> = const { RefCell::new(Vec::new()) };
}

/// Notes a buffer that this thread asks the address of, if it captures buffers; whether it does.
pub fn capture(buffer: *mut sys::PJRT_Buffer) -> bool {
    CAPTURES.with_borrow_mut(|captures| captures.last_mut().map(|captured| captured.push(buffer))).is_some()
}

/// Notes the arguments of a launch, a row of them for each device, if this thread captures buffers and the program is for
/// that; whether it does.
pub fn capture_arguments(name: &str, rows: &[&[*mut sys::PJRT_Buffer]]) -> bool {
    if !name.as_bytes().ends_with(PROGRAM) {
        return false;
    }
    let count = rows.first().map_or(0, |row| row.len());
    let by_argument = (0..count).flat_map(|argument| rows.iter().map(move |row| row[argument]));
    CAPTURES.with_borrow_mut(|captures| captures.last_mut().map(|captured| captured.extend(by_argument))).is_some()
}

/// What this thread has noted since it last began to.
fn end_capture() -> Result<Vec<*mut sys::PJRT_Buffer>, Status> {
    let captured = CAPTURES.with_borrow_mut(Vec::pop);
    captured.ok_or_else(|| Status::failed_precondition("no capture was begun on this thread"))
}

/// The buffer for this thread's next order, if it is being supplied.
pub fn supplied(client: &Arc<Client>, place: Place, shape: &Shape) -> Option<Result<Arc<Buffer>, Status>> {
    let order = ORDERS.with_borrow_mut(|all| all.last_mut().map(VecDeque::pop_front))?;
    let missing = || Status::invalid("more buffers are asked for than were ordered of the snapshot");
    Some(order.ok_or_else(missing).and_then(|order| order.fill(client, place, shape.clone())))
}

impl Order {
    /// Makes the buffer.
    fn fill(&self, client: &Arc<Client>, place: Place, shape: Shape) -> Result<Arc<Buffer>, Status> {
        let device = i64::from(client.devices[place.device as usize].info.id);
        if device != self.device {
            return Err(Status::invalid(format!(
                "a buffer of the snapshot was ordered for device {}; the framework asks for it on device {device}",
                self.device
            )));
        }
        supply(client, place, shape, &self.part)
    }
}

fn orders(snapshot: &Arc<Snapshot>, mut numbers: Numbers<'_>) -> Result<VecDeque<Order>, Status> {
    let mut orders = VecDeque::new();
    while !numbers.is_empty() {
        let (array, device) = (numbers.count()?, numbers.take(1)?[0]);
        orders.push_back(Order { part: Part::of(snapshot, array, numbers.list()?)?, device });
    }
    Ok(orders)
}

/// A caller's function that watches progress.
///
/// # Safety
/// `user` is what the function wants.
unsafe fn watching(
    watch: Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> bool>,
    user: *mut c_void,
) -> impl FnMut(u64, u64) -> bool {
    // SAFETY: the caller's promise.
    move |done, total| watch.is_none_or(|watch| unsafe { watch(user, done, total) })
}

fn phase_number(phase: &Phase) -> sys::Mainstay_Snapshot_Phase {
    match phase {
        Phase::Copying => sys::Mainstay_Snapshot_Phase_Copying,
        Phase::Whole => sys::Mainstay_Snapshot_Phase_Whole,
        Phase::Failed(_) => sys::Mainstay_Snapshot_Phase_Failed,
        Phase::Dropped => sys::Mainstay_Snapshot_Phase_Dropped,
    }
}

entries! {
    Mainstay_SnapshotStore_Create(args: Mainstay_SnapshotStore_Create_Args) {
        args.store = StoreHandle(Store::new(args.size, args.checksums)).into_raw();
        Ok(())
    }

    Mainstay_SnapshotStore_Destroy(args: Mainstay_SnapshotStore_Destroy_Args) {
        // SAFETY: the caller gives up a store of ours, or null.
        drop(unsafe { StoreHandle::take(args.store) });
        Ok(())
    }

    Mainstay_SnapshotStore_List(args: Mainstay_SnapshotStore_List_Args) {
        // SAFETY: a live store of ours.
        let snapshots = unsafe { StoreHandle::borrow(args.store)? }.0.list();
        if args.capacity > 0 && args.snapshots.is_null() {
            return Err(Status::invalid("a null pointer was given for the list of snapshots"));
        }
        args.num_snapshots = 0;
        for snapshot in snapshots.into_iter().rev().take(args.capacity) {
            // SAFETY: the caller's room for `capacity` handles.
            unsafe { args.snapshots.add(args.num_snapshots).write(SnapshotHandle::new(snapshot).into_raw()) };
            args.num_snapshots += 1;
        }
        Ok(())
    }

    Mainstay_Snapshot_Take(args: Mainstay_Snapshot_Take_Args) {
        let captured = if args.captured { Some(end_capture()?) } else { None };
        if let Some(captured) = captured.as_ref().filter(|captured| captured.len() != args.num_buffers) {
            return Err(Status::invalid(format!("{} buffers were noted, not {}", captured.len(), args.num_buffers)));
        }
        // SAFETY: a live store of ours; the caller's words, buffers and layout.
        let (store, request) = unsafe {
            (
                StoreHandle::borrow(args.store)?,
                Request {
                    step: args.step,
                    label: text(args.label, args.label_size),
                    metadata: bytes(args.metadata, args.metadata_size).to_vec(),
                    layout: list(args.layout, args.layout_size),
                    buffers: captured
                        .as_deref()
                        .unwrap_or_else(|| list(args.buffers, args.num_buffers))
                        .iter()
                        .map(|buffer| BufferHandle::borrow(*buffer).map(BufferHandle::buffer))
                        .inspect(|buffer| buffer.iter().for_each(|buffer| stream::prefetch(buffer)))
                        .collect::<Result<_, _>>()?,
                },
            )
        };
        args.snapshot = SnapshotHandle::new(store.0.take(request)?).into_raw();
        Ok(())
    }

    Mainstay_Snapshot_Destroy(args: Mainstay_Snapshot_Destroy_Args) {
        // SAFETY: the caller gives up a snapshot of ours, or null.
        drop(unsafe { SnapshotHandle::take(args.snapshot) });
        Ok(())
    }

    Mainstay_Snapshot_Info(args: Mainstay_Snapshot_Info_Args) {
        // SAFETY: a live snapshot of ours.
        let snapshot = &unsafe { SnapshotHandle::borrow(args.snapshot)? }.snapshot;
        let taken_at = snapshot.taken_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let progress = snapshot.progress();
        (args.id, args.step, args.taken_at) = (snapshot.id, snapshot.step, taken_at.as_nanos() as i64);
        (args.done, args.total, args.num_arrays) = (progress.done, progress.total, snapshot.contents.arrays.len());
        (args.label, args.label_size) = (snapshot.label.as_ptr().cast(), snapshot.label.len());
        (args.metadata, args.metadata_size) = (snapshot.metadata.as_ptr().cast(), snapshot.metadata.len());
        args.phase = phase_number(&snapshot.phase());
        Ok(())
    }

    Mainstay_Snapshot_Array(args: Mainstay_Snapshot_Array_Args) {
        // SAFETY: a live snapshot of ours.
        let array = unsafe { SnapshotHandle::borrow(args.snapshot)? }.snapshot.array(args.array)?;
        (args.dims, args.num_dims) = (array.dims.as_ptr(), array.dims.len());
        (args.num_parts, args.type_) = (array.shards.len(), array.element_type);
        Ok(())
    }

    Mainstay_Snapshot_Wait(args: Mainstay_Snapshot_Wait_Args) {
        // SAFETY: a live snapshot of ours.
        let phase = unsafe { SnapshotHandle::borrow(args.snapshot)? }.snapshot.wait(Duration::from_nanos(args.timeout));
        args.phase = phase_number(&phase);
        match phase {
            Phase::Failed(cause) => Err(cause),
            _ => Ok(()),
        }
    }

    Mainstay_Snapshot_Verify(args: Mainstay_Snapshot_Verify_Args) {
        // SAFETY: a live snapshot of ours.
        unsafe { SnapshotHandle::borrow(args.snapshot)? }.snapshot.verify()
    }

    Mainstay_Snapshot_Drop(args: Mainstay_Snapshot_Drop_Args) {
        // SAFETY: a live snapshot of ours.
        unsafe { SnapshotHandle::borrow(args.snapshot)? }.snapshot.discard();
        Ok(())
    }

    Mainstay_Snapshot_Restore(args: Mainstay_Snapshot_Restore_Args) {
        // SAFETY: live handles of ours; the caller's numbers.
        unsafe {
            let (handle, client) = (SnapshotHandle::borrow(args.snapshot)?, ClientHandle::borrow(args.client)?);
            let place = client.place(args.device, args.memory)?;
            let (start, dims) = (list(args.start, args.num_dims), list(args.dims, args.num_dims));
            let shape = Shape::new(handle.snapshot.array(args.array)?.element_type, dims);
            let part = Part::of(&handle.snapshot, args.array, start)?;
            let buffer = supply(client.client(), place, shape, &part)?;
            args.buffer = BufferHandle::new(buffer, &client.places).into_raw();
        }
        Ok(())
    }

    Mainstay_Snapshot_Export(args: Mainstay_Snapshot_Export_Args) {
        // SAFETY: a live snapshot of ours; the caller's words and function.
        let (handle, path, names, metadata, mut watch) = unsafe {
            (
                SnapshotHandle::borrow(args.snapshot)?,
                text(args.path, args.path_size),
                text(args.names, args.names_size),
                text(args.metadata, args.metadata_size),
                watching(args.watch, args.user),
            )
        };
        let names: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
        handle.snapshot.export(Path::new(&path), &names, &metadata, &mut watch)
    }

    Mainstay_Snapshot_Import(args: Mainstay_Snapshot_Import_Args) {
        // SAFETY: live handles of ours, the client's may be null; the caller's words and function.
        let (store, client, path, mut watch) = unsafe {
            let client = if args.client.is_null() { None } else { Some(ClientHandle::borrow(args.client)?.client().clone()) };
            (StoreHandle::borrow(args.store)?, client, text(args.path, args.path_size), watching(args.watch, args.user))
        };
        let client = client.or_else(|| clients().into_iter().next());
        let client = client.ok_or_else(|| Status::failed_precondition("there is no client whose host memory could be used"))?;
        let Imported { snapshot, names } = store.0.import(&client, Path::new(&path), &mut watch)?;
        let names = names.iter().flat_map(|name| name.bytes().chain([0])).collect();
        let handle = SnapshotHandle { snapshot, names };
        // The bytes stay where they are when the handle is moved.
        (args.names, args.names_size) = (handle.names.as_ptr().cast(), handle.names.len());
        args.snapshot = handle.into_raw();
        Ok(())
    }

    Mainstay_Capture_Begin(_args: Mainstay_Capture_Begin_Args) {
        CAPTURES.with_borrow_mut(|captures| captures.push(Vec::new()));
        Ok(())
    }

    Mainstay_Capture_End(args: Mainstay_Capture_End_Args) {
        let captured = end_capture()?;
        args.num_buffers = captured.len();
        if args.buffers.is_null() && args.capacity > 0 {
            return Err(Status::invalid("a null pointer was given for the buffers"));
        }
        let fitting = captured.len().min(args.capacity);
        if fitting > 0 {
            // SAFETY: the caller's room for `capacity` handles.
            unsafe { std::ptr::copy_nonoverlapping(captured.as_ptr(), args.buffers, fitting) };
        }
        Ok(())
    }

    Mainstay_Supply_Begin(args: Mainstay_Supply_Begin_Args) {
        // SAFETY: a live snapshot of ours; the caller's numbers.
        let ordered = unsafe {
            orders(&SnapshotHandle::borrow(args.snapshot)?.snapshot, Numbers::new(list(args.orders, args.orders_size)))?
        };
        ORDERS.with_borrow_mut(|orders| orders.push(ordered));
        Ok(())
    }

    Mainstay_Supply_End(args: Mainstay_Supply_End_Args) {
        args.num_left = ORDERS.with_borrow_mut(Vec::pop).map_or(0, |orders| orders.len());
        Ok(())
    }
}

/// The extension's place in the chain: the last.
pub const fn extension() -> sys::Mainstay_Snapshot_Extension {
    sys::Mainstay_Snapshot_Extension {
        base: sys::PJRT_Extension_Base {
            struct_size: size_of::<sys::Mainstay_Snapshot_Extension>(),
            type_: sys::MAINSTAY_EXTENSION_TYPE_SNAPSHOT,
            next: std::ptr::null_mut(),
        },
        name: sys::MAINSTAY_SNAPSHOT_EXTENSION_NAME.as_ptr().cast(),
        version: sys::MAINSTAY_SNAPSHOT_EXTENSION_VERSION as usize,
        Mainstay_SnapshotStore_Create: Some(Mainstay_SnapshotStore_Create),
        Mainstay_SnapshotStore_Destroy: Some(Mainstay_SnapshotStore_Destroy),
        Mainstay_SnapshotStore_List: Some(Mainstay_SnapshotStore_List),
        Mainstay_Snapshot_Take: Some(Mainstay_Snapshot_Take),
        Mainstay_Snapshot_Destroy: Some(Mainstay_Snapshot_Destroy),
        Mainstay_Snapshot_Info: Some(Mainstay_Snapshot_Info),
        Mainstay_Snapshot_Array: Some(Mainstay_Snapshot_Array),
        Mainstay_Snapshot_Wait: Some(Mainstay_Snapshot_Wait),
        Mainstay_Snapshot_Verify: Some(Mainstay_Snapshot_Verify),
        Mainstay_Snapshot_Drop: Some(Mainstay_Snapshot_Drop),
        Mainstay_Snapshot_Restore: Some(Mainstay_Snapshot_Restore),
        Mainstay_Capture_Begin: Some(Mainstay_Capture_Begin),
        Mainstay_Capture_End: Some(Mainstay_Capture_End),
        Mainstay_Supply_Begin: Some(Mainstay_Supply_Begin),
        Mainstay_Supply_End: Some(Mainstay_Supply_End),
        Mainstay_Snapshot_Export: Some(Mainstay_Snapshot_Export),
        Mainstay_Snapshot_Import: Some(Mainstay_Snapshot_Import),
    }
}

/// The snapshot extension, for callers that do not walk the chain. It lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn MainstaySnapshotExtension() -> *const sys::Mainstay_Snapshot_Extension {
    super::extensions::snapshot()
}
