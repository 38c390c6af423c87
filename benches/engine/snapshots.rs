//! Mainstay's snapshots as a C program uses them: through the functions of `include/mainstay_snapshot.h`.

use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use mainstay::abi::{StructSize, new_args, sys};
use mainstay::worker::inner::{Buffer, Client};

use super::arrays::{Arrays, Subject};
use super::measure::{OrEnd, end};
use super::plugins::library;

type Function<A> = Option<unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error>;

/// More than any snapshot takes, and less than the watchdog allows.
const PATIENCE: Duration = Duration::from_secs(240);

/// Arrays of a client of Mainstay's in the words of [`sys::Mainstay_Snapshot_Take_Args`].
pub struct Tree<'c> {
    arrays: Arrays<'c>,
    buffers: Vec<*mut sys::PJRT_Buffer>,
    layout: Vec<i64>,
}

impl<'c> Tree<'c> {
    /// Arrays of one dimension, cut into equal parts.
    pub fn new(arrays: Arrays<'c>) -> Self {
        let buffers: Vec<_> = arrays.parts.iter().map(Buffer::raw).collect();
        let parts = (buffers.len() / arrays.subject.count) as i64;
        let elements = arrays.subject.elements();
        let of_one = [1, elements, parts].into_iter().chain((0..parts).map(|part| part * elements / parts));
        let layout = of_one.collect::<Vec<i64>>().repeat(arrays.subject.count);
        Self { arrays, buffers, layout }
    }
}

/// A store of one snapshot, with checksums.
pub struct Store<'c> {
    engine: Engine<'c>,
    raw: *mut sys::Mainstay_SnapshotStore,
}

impl<'c> Store<'c> {
    /// An empty one, for arrays of this client of Mainstay's.
    pub fn new(client: &'c Client) -> Self {
        let engine = Engine { client, functions: extension() };
        let create = engine.functions.Mainstay_SnapshotStore_Create;
        let fill = |args: &mut sys::Mainstay_SnapshotStore_Create_Args| (args.size, args.checksums) = (1, true);
        // SAFETY: function and arguments belong together.
        let raw = unsafe { engine.call(create, fill) }.store;
        Self { engine, raw }
    }

    /// Begins a snapshot.
    pub fn take(&self, tree: &Tree<'c>) -> Snapshot<'c> {
        let fill = |args: &mut sys::Mainstay_Snapshot_Take_Args| {
            args.store = self.raw;
            (args.buffers, args.num_buffers) = (tree.buffers.as_ptr(), tree.buffers.len());
            (args.layout, args.layout_size) = (tree.layout.as_ptr(), tree.layout.len());
        };
        // SAFETY: function and arguments belong together; the store lives, and the tree keeps its buffers.
        let raw = unsafe { self.engine.call(self.engine.functions.Mainstay_Snapshot_Take, fill) }.snapshot;
        Snapshot { engine: self.engine, raw, subject: tree.arrays.subject.clone() }
    }
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        let destroy = self.engine.functions.Mainstay_SnapshotStore_Destroy;
        // SAFETY: function and arguments belong together; nobody uses the store again.
        unsafe {
            self.engine.call(destroy, |args: &mut sys::Mainstay_SnapshotStore_Destroy_Args| args.store = self.raw)
        };
    }
}

/// A handle of a snapshot.
pub struct Snapshot<'c> {
    engine: Engine<'c>,
    raw: *mut sys::Mainstay_Snapshot,
    subject: Subject,
}

impl<'c> Snapshot<'c> {
    /// Waits until it is whole.
    pub fn wait(&self) {
        let fill = |args: &mut sys::Mainstay_Snapshot_Wait_Args| {
            (args.snapshot, args.timeout) = (self.raw, PATIENCE.as_nanos() as u64);
        };
        // SAFETY: function and arguments belong together; the handle lives.
        let phase = unsafe { self.engine.call(self.engine.functions.Mainstay_Snapshot_Wait, fill) }.phase;
        if phase != sys::Mainstay_Snapshot_Phase_Whole {
            end(format!("a snapshot of {} was in phase {phase} after {PATIENCE:?}", self.subject.name));
        }
    }

    /// Its arrays on the client's devices, cut as they were taken, when they are there.
    pub fn restore(&self) -> Arrays<'c> {
        let client = self.engine.client;
        let length = self.subject.elements() / client.devices().count() as i64;
        let parts = (0..self.subject.count).flat_map(|array| {
            client.devices().enumerate().map(move |(at, device)| {
                let (start, dims) = (at as i64 * length, length);
                let fill = |args: &mut sys::Mainstay_Snapshot_Restore_Args| {
                    (args.snapshot, args.array) = (self.raw, array);
                    (args.client, args.device) = (client.raw(), device.raw());
                    (args.start, args.dims, args.num_dims) = (&raw const start, &raw const dims, 1);
                };
                // SAFETY: function and arguments belong together; the handles live, and arrays have one dimension. The
                // buffer is new, and of this client.
                unsafe {
                    let restored = self.engine.call(self.engine.functions.Mainstay_Snapshot_Restore, fill);
                    Buffer::from_raw(client, restored.buffer).or_end()
                }
            })
        });
        Arrays::from_parts(client, &self.subject, parts.collect())
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        let destroy = self.engine.functions.Mainstay_Snapshot_Destroy;
        // SAFETY: function and arguments belong together; nobody uses the handle again.
        unsafe { self.engine.call(destroy, |args: &mut sys::Mainstay_Snapshot_Destroy_Args| args.snapshot = self.raw) };
    }
}

/// The extension's functions, for a client.
#[derive(Clone, Copy)]
struct Engine<'c> {
    client: &'c Client,
    functions: &'static sys::Mainstay_Snapshot_Extension,
}

impl Engine<'_> {
    /// Calls a function of the extension; its arguments, with what it wrote into them. An error ends the bench.
    ///
    /// # Safety
    /// With what `fill` puts into them, the arguments are what the function asks for.
    unsafe fn call<A: StructSize>(&self, function: Function<A>, fill: impl FnOnce(&mut A)) -> A {
        let Some(function) = function else { end(format!("libmainstay.so has no function that takes {}", A::NAME)) };
        let mut args = new_args::<A>();
        fill(&mut args);
        // SAFETY: as promised to this function; the error is the library's, and nobody else has it.
        unsafe { self.client.plugin().api().check(function(&mut args)) }.or_end();
        args
    }
}

/// The extension of the library that is loaded already.
fn extension() -> &'static sys::Mainstay_Snapshot_Extension {
    type Get = unsafe extern "C" fn() -> *const sys::Mainstay_Snapshot_Extension;
    let path = library();
    // SAFETY: the library was loaded as a plugin, which stays: this gives another handle of it.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.unwrap_or_else(|error| end(format!("cannot load {}: {error}", path.display())));
    // SAFETY: the header gives this symbol this type.
    let get: Result<Symbol<Get>, _> = unsafe { library.get("MainstaySnapshotExtension") };
    let get = get.unwrap_or_else(|error| end(format!("{} has no snapshots: {error}", path.display())));
    // SAFETY: the table is constant and stays with the library.
    unsafe { &*get() }
}
