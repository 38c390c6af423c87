//! What client and worker say to each other: commands one way, reports the other. Layout only, no moving.
//!
//! Commands are executed in order, except that one whose inputs are still pending (a buffer that was
//! [declared](Command::Declare) and has no value yet) waits aside while later, independent ones go on.
//! The client gives every id and never waits for a report before it dispatches.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::abi::Status;

/// A buffer, unique within a client, never reused.
pub type BufferId = u64;
/// A loaded program, unique within a client, never reused.
pub type ExecutableId = u64;
/// One execution of a program, unique within a client.
pub type LaunchId = u64;
/// A question that wants one [`Report::Reply`].
pub type RequestId = u64;
/// A block of the arena that a worker may keep using until it says [`Report::Returned`].
pub type LoanId = u64;

/// Dimensions, major first.
pub type Dims = SmallVec<[i64; 6]>;
/// A list of ids that seldom exceeds the inline room.
pub type Ids = SmallVec<[u64; 8]>;

/// Memory up to this many bytes may stay in use for a while after it could be freed: nobody is woken for it.
pub const FEW_BYTES: u64 = 64 << 10;

/// A stretch of the arena, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A create option or an attribute: a name and a value of one of PJRT's kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// The value of a [`NamedValue`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "one variant per kind of the interface")]
pub enum Value {
    String(String),
    Int64(i64),
    Int64List(Vec<i64>),
    Float(f32),
    Bool(bool),
}

/// A tiled device layout (`PJRT_Buffer_MemoryLayout_Tiled`), or strides in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// Minor-to-major order and tiles.
    Tiled {
        /// Dimension numbers, fastest varying first.
        minor_to_major: SmallVec<[i64; 6]>,
        /// All tiles' dimensions, one tile after the other.
        tile_dims: SmallVec<[i64; 4]>,
        /// How many of `tile_dims` belong to each tile.
        tile_dim_sizes: SmallVec<[u64; 4]>,
    },
    /// Bytes from one element to the next, by dimension.
    Strides(SmallVec<[i64; 6]>),
}

/// What a new buffer on the worker is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferSpec {
    /// `PJRT_Buffer_Type`.
    pub element_type: u32,
    /// Dimensions, major first.
    pub dims: Dims,
    /// Index into [`ClientDescription::memories`] of the slice.
    pub memory: u32,
    /// The device layout asked for; the plugin's default where absent.
    pub layout: Option<Layout>,
}

/// Bytes that a command brings along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Payload {
    /// In the message itself: small data.
    Inline(#[serde(with = "serde_bytes_vec")] Vec<u8>),
    /// In the arena. The worker reads it and says [`Report::Returned`] once it no longer will; where
    /// `mutable` it may use the memory as the buffer's own for as long as the buffer lives (zero-copy).
    Arena {
        /// Where the bytes are.
        extent: Extent,
        /// Named in the report that gives the extent back.
        loan: LoanId,
        /// Whether the worker may write to it and keep it as the buffer's memory.
        mutable: bool,
    },
}

/// Client to worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// The first command: load the plugin and, unless told otherwise, create the client.
    Start(Start),
    /// `buffers` exist from now on and get their values later ([`Command::Upload`] or [`Command::Fail`]).
    Declare {
        /// The new buffers.
        buffers: Ids,
    },
    /// Create a buffer (or give a declared one its value) from dense, major-to-minor host data.
    Upload {
        /// The new or declared buffer.
        buffer: BufferId,
        /// What it is.
        spec: BufferSpec,
        /// Its bytes.
        data: Payload,
        /// The client takes the buffer for ready already: [`Report::Ready`] is sent only where it has no value.
        quiet: bool,
    },
    /// Give a buffer an error for its value: poison.
    Fail {
        /// The new or declared buffer.
        buffer: BufferId,
        /// The first cause.
        status: Status,
    },
    /// Create a buffer of unspecified contents.
    Uninitialized {
        /// The new buffer.
        buffer: BufferId,
        /// What it is.
        spec: BufferSpec,
    },
    /// Make a declared buffer equal to another one that exists now or later (an alias fulfilled).
    Alias {
        /// The declared buffer.
        buffer: BufferId,
        /// The buffer that gives the value.
        source: BufferId,
    },
    /// Copy within the slice.
    Copy {
        /// The source.
        source: BufferId,
        /// The new buffer.
        buffer: BufferId,
        /// Destination, as in [`BufferSpec::memory`].
        memory: u32,
    },
    /// See the same bytes as another type and shape. The source is gone afterwards, as if donated.
    Bitcast {
        /// The source.
        source: BufferId,
        /// The new buffer.
        buffer: BufferId,
        /// Its type, shape and layout; `memory` is ignored.
        spec: BufferSpec,
    },
    /// Write a buffer's elements to the arena, dense in the order of `minor_to_major` (empty: major-to-minor).
    Download {
        /// Answered with [`Reply::Done`].
        request: RequestId,
        /// The buffer.
        buffer: BufferId,
        /// The host layout wanted: dimension numbers, fastest varying first; empty for the default.
        minor_to_major: SmallVec<[i64; 6]>,
        /// Where to.
        to: Extent,
    },
    /// As many [`Command::Download`]s to the default host layout, or [`Command::ReadRaw`]s, in one message.
    Downloads {
        /// The request of the first one; the others' are counted on from it.
        first: RequestId,
        /// What to read.
        downloads: Vec<Wanted>,
    },
    /// Write a buffer's raw device bytes to the arena.
    ReadRaw {
        /// Answered with [`Reply::Done`].
        request: RequestId,
        /// The buffer.
        buffer: BufferId,
        /// First byte of the buffer.
        offset: u64,
        /// Where to; its length is how much is read.
        to: Extent,
    },
    /// Forget buffers; their memory goes once nothing in flight uses it.
    Destroy {
        /// The buffers.
        buffers: Ids,
    },
    /// Load a serialized program.
    Load {
        /// Its id from now on.
        executable: ExecutableId,
        /// What the compiler serialized.
        serialized: Arc<[u8]>,
        /// Compile options (`CompileOptionsProto`) to load with, local to the slice; may be empty.
        options: Arc<[u8]>,
        /// [`ExecutableInfo::donated`]: parameters whose arguments an execution uses up.
        donated: Arc<[u32]>,
    },
    /// Forget a program.
    Unload {
        /// The program.
        executable: ExecutableId,
    },
    /// Run a program.
    Execute(Execute),
    /// The worker takes a slice's place in the exchange between slices, as this incarnation of it. Once, before the first
    /// [`Command::Spans`]; all earlier incarnations are dead and reaped.
    Join {
        /// The slice.
        slice: u32,
        /// Its incarnation, from 1.
        incarnation: u32,
    },
    /// A program that is to be loaded spans slices. Before its [`Command::Load`].
    Spans {
        /// The program.
        executable: ExecutableId,
        /// Partitions of the whole program.
        partitions: u32,
        /// Slice, and ordinal in its inner client, of each device: all partitions of replica 0, then of replica 1, ….
        places: Arc<[(u32, u32)]>,
    },
    /// A launch of a spanning program begins. Before its [`Command::Execute`], on every participating slice.
    Begin {
        /// The launch: the same number on all slices, and of no other launch.
        launch: LaunchId,
        /// The program on this slice.
        executable: ExecutableId,
        /// The participating slices and their incarnations.
        participants: SmallVec<[(u32, u32); 8]>,
    },
    /// Compile a program (compiler process, or a worker where the plugin can't have one).
    Compile {
        /// Answered with [`Reply::Compiled`].
        request: RequestId,
        /// The work.
        job: CompileJob,
    },
    /// Plan a program whose devices lie in several slices, and compile each slice's part (compiler process).
    CompileSpanning {
        /// Answered with [`Reply::Spanning`].
        request: RequestId,
        /// The work.
        job: SpanningJob,
    },
    /// Ask something.
    Ask {
        /// Answered with the reply that belongs to the query.
        request: RequestId,
        /// The question.
        query: Query,
    },
    /// Some of the arena is committed now: make it present ahead of use.
    Populate {
        /// The newly committed stretch.
        extent: Extent,
    },
    /// The machine is short of memory: give back what was freed on the device and is kept for what comes.
    GiveBack,
    /// Misbehave from now on: for people who test how their own code bears it.
    Misbehave(Misbehaviour),
    /// Finish what is running, destroy the inner client and leave with exit code 0.
    Shutdown,
}

/// Client to worker, past the commands: taken in on a thread that does nothing else, so also while the worker is inside the
/// inner plugin, which may wait there for what this ends. In order among themselves, in none with the commands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Urgent {
    /// A launch of a spanning program has failed on some slice: what waits of it here, or will, fails with the status.
    /// To be followed by [`Urgent::Over`], on every participating slice, whether it has begun there or not.
    FailLaunch {
        /// The launch.
        launch: LaunchId,
        /// The first cause.
        status: Status,
    },
    /// An incarnation of another slice is dead and reaped: all launches that it takes part in fail with the status.
    FailSlice {
        /// The slice.
        slice: u32,
        /// The incarnation; earlier ones are dead as well.
        incarnation: u32,
        /// The loss.
        status: Status,
    },
    /// A launch that has failed is over on all slices: each has reported all of its devices, or is dead.
    Over {
        /// The launch.
        launch: LaunchId,
    },
}

impl Command {
    /// The request that it is, where it is one.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Download { request, .. }
            | Self::ReadRaw { request, .. }
            | Self::Compile { request, .. }
            | Self::CompileSpanning { request, .. }
            | Self::Ask { request, .. } => Some(*request),
            _ => None,
        }
    }
}

/// How a worker misbehaves when told to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Misbehaviour {
    /// Takes no further command, and gives signs of life all the same.
    Hang,
    /// Waits so many milliseconds before each launch; 0: no longer.
    Slow(u64),
    /// Refuses the next launch.
    FailNextLaunch,
    /// Takes its memory from the system from now on, where limits hold.
    LeaveHeap,
}

/// How a worker starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Path of the inner plugin.
    pub plugin: PathBuf,
    /// Create options for the inner client.
    pub options: Vec<NamedValue>,
    /// Whether to create a client now (workers), or only to load the plugin (compiler).
    pub create_client: bool,
    /// How many bytes of its heap may lie free and keep their memory (see `worker::heap`).
    pub heap_slack: u64,
}

/// One launch of a program over the slice's devices that it is loaded for.
///
/// Arguments that the program donates are gone for every later command, whatever becomes of the launch;
/// to destroy them is allowed and does nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execute {
    /// Unique, named in [`Report::Executed`].
    pub launch: LaunchId,
    /// The program.
    pub executable: ExecutableId,
    /// `launch_id` of the execute options as the framework gave it.
    pub launch_id: i32,
    /// How many devices run.
    pub num_devices: u32,
    /// Where only one device is asked for (`execute_device`): its index among the slice's devices.
    pub execute_device: Option<u32>,
    /// Arguments, all of device 0, then all of device 1, …
    pub arguments: Ids,
    /// Output buffers of each device are numbered from here: `first_output + device * num_outputs + output`.
    pub first_output: BufferId,
    /// Outputs per device.
    pub num_outputs: u32,
    /// Indices of arguments that must not be donated.
    pub non_donatable: SmallVec<[i64; 4]>,
}

/// A program to compile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileJob {
    /// `mlir`, `hlo`, `hlo_with_config`, ….
    pub format: String,
    /// The program's bytes.
    pub code: Arc<[u8]>,
    /// `CompileOptionsProto` bytes, device assignment local to a slice.
    pub options: Arc<[u8]>,
    /// Create options of the inner client to compile with (made once per distinct list and kept).
    pub client_options: Vec<NamedValue>,
}

/// Where a topology is from. Not every plugin can serialize every topology: libtpu can't, where it has several slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TopologySource {
    /// By name (`PJRT_TopologyDescription_Create`).
    Name {
        /// The topology's name, in the plugin's terms; empty for its choice.
        name: String,
        /// Its create options.
        options: Vec<NamedValue>,
    },
    /// What `PJRT_TopologyDescription_Serialize` gave.
    Serialized(Vec<u8>),
    /// Of a client with these create options, as in [`CompileJob`].
    Client(Vec<NamedValue>),
}

/// A program that spans slices, to be compiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanningJob {
    /// The program for all its devices. Its `client_options` make a client with at least as many; the device assignment
    /// of its options is not used.
    pub program: CompileJob,
    /// The parts to compile: one for each list of devices that a slice of the program runs on, equal ones once.
    pub parts: Vec<SpanningPart>,
}

/// The devices of one slice, or of several alike, that run a part of a spanning program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanningPart {
    /// As in [`CompileJob`], of a slice.
    pub client_options: Vec<NamedValue>,
    /// The inner client's ids of the devices, in the order of their places in the program.
    pub devices: Vec<i64>,
}

/// Questions that want an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// [`Reply::Attributes`]: the plugin's own attributes.
    PluginAttributes,
    /// [`Reply::Attributes`]: `PJRT_Device_MemoryStats` of a device, by the names of its fields; absent where not set.
    MemoryStats {
        /// The device's index.
        device: u32,
    },
    /// [`Reply::Done`]: `PJRT_Device_ClearMemoryStats`.
    ClearMemoryStats {
        /// The device's index.
        device: u32,
    },
    /// [`Reply::Number`]: `PJRT_Buffer_OnDeviceSizeInBytes`.
    OnDeviceSize {
        /// The buffer.
        buffer: BufferId,
    },
    /// [`Reply::DefaultLayout`] of a type and shape.
    DefaultLayout {
        /// `PJRT_Buffer_Type`.
        element_type: u32,
        /// Dimensions.
        dims: Dims,
        /// Create options of the client to ask (compiler process); ignored by workers.
        client_options: Vec<NamedValue>,
    },
    /// [`Reply::Assignment`]: the default device assignment of the inner client.
    DefaultDeviceAssignment {
        /// Replicas.
        replicas: u32,
        /// Partitions.
        partitions: u32,
    },
    /// [`Reply::Compiled`] for a serialized program: what is known of it, without a new compilation.
    Inspect {
        /// What the compiler serialized.
        serialized: Arc<[u8]>,
        /// Compile options to load with; may be empty.
        options: Arc<[u8]>,
        /// As in [`CompileJob`].
        client_options: Vec<NamedValue>,
    },
    /// [`Reply::Topology`].
    Topology(TopologySource),
    /// [`Reply::Compiled`]: `PJRT_Compile`, ahead of time for a topology.
    CompileForTopology {
        /// The topology.
        topology: TopologySource,
        /// The program; its `client_options` are not used.
        job: CompileJob,
    },
    /// [`Reply::Done`] once everything sent before is done or under way: a round trip.
    Ping,
}

/// Where device memory lies that the client can see, as one number: 0 where it is none.
pub mod place {
    /// Set where the memory is a stretch of the arena that was lent.
    const ARENA: u64 = 1 << 63;

    /// A stretch of memory, by its first byte.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Place {
        /// In the worker's heap.
        Heap(u64),
        /// In the arena.
        Arena(u64),
    }

    /// As it travels.
    pub fn encode(place: Option<Place>) -> u64 {
        match place {
            None => 0,
            Some(Place::Heap(offset)) => offset + 1,
            Some(Place::Arena(offset)) => ARENA | (offset + 1),
        }
    }

    /// What a number that travelled means.
    pub fn decode(number: u64) -> Option<Place> {
        let offset = (number & !ARENA).checked_sub(1)?;
        Some(if number & ARENA == 0 { Place::Heap(offset) } else { Place::Arena(offset) })
    }
}

/// A value, or a part of one, that is wanted in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Whose.
    pub buffer: BufferId,
    /// The first of its raw device bytes; `None` for all elements as the host has them.
    pub from: Option<u64>,
    /// Where to, and how much.
    pub to: Extent,
}

/// Worker to client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The answer to [`Command::Start`]. The description is absent where no client was to be created.
    Started(Result<Option<Box<ClientDescription>>, Status>),
    /// A buffer has its value, or an error: once for every command that gives one a value ([`Command::Fail`] too),
    /// except that [`Report::Executed`] speaks for a launch's outputs.
    Ready {
        /// The buffer.
        buffer: BufferId,
        /// Its fate.
        result: Result<(), Status>,
        /// Where the value lies; see [`place`].
        place: u64,
    },
    /// One device's part of a launch is over: all its outputs are ready, or poisoned.
    Executed {
        /// The launch.
        launch: LaunchId,
        /// Position in the launch, 0 … `num_devices`.
        device: u32,
        /// Its fate.
        result: Result<(), Status>,
        /// For each output, where its value lies; see [`place`]. Empty where that is nowhere that the client can see.
        places: Ids,
    },
    /// The worker no longer uses an extent of the arena.
    Returned {
        /// Which.
        loan: LoanId,
    },
    /// A program is loaded, or why it is not.
    Loaded {
        /// The program.
        executable: ExecutableId,
        /// Its fate.
        result: Result<(), Status>,
    },
    /// The answer to a request.
    Reply {
        /// Which.
        request: RequestId,
        /// The answer.
        result: Result<Reply, Status>,
    },
}

/// Answers to requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// A number.
    Number(u64),
    /// Names and values.
    Attributes(Vec<NamedValue>),
    /// A layout: the interface's structure and the plugin's serialized text of it.
    DefaultLayout(Layout, String),
    /// Device ids, `replicas` rows of `partitions`.
    Assignment(Vec<i32>),
    /// What a compilation gave.
    Compiled(Box<Compiled>),
    /// A topology.
    Topology(Box<TopologyInfo>),
    /// What the compilation of a spanning program gave.
    Spanning(Box<CompiledSpanning>),
}

/// What the inner client of a slice is. Devices and memories are named by their index from here on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientDescription {
    /// `PJRT_Api` version of the plugin.
    pub api_version: (i32, i32),
    /// Types of the extensions that the plugin offers.
    pub extensions: Vec<u32>,
    /// Platform name.
    pub platform_name: String,
    /// Platform version.
    pub platform_version: String,
    /// Process index.
    pub process_index: i32,
    /// Addressable devices in the plugin's order.
    pub devices: Vec<DeviceInfo>,
    /// Addressable memories in the plugin's order.
    pub memories: Vec<MemoryInfo>,
}

/// A device as the inner plugin describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are the interface's own")]
pub struct DeviceInfo {
    pub id: i32,
    pub process_index: i32,
    pub local_hardware_id: i32,
    pub kind: String,
    pub debug_string: String,
    pub to_string: String,
    /// Of the device description and, where the plugin has that call, of the device.
    pub attributes: Vec<NamedValue>,
    /// Indices into [`ClientDescription::memories`].
    pub memories: Vec<u32>,
    /// Index into [`ClientDescription::memories`]; of a topology's device, into its `memory_descriptions`.
    pub default_memory: Option<u32>,
    /// Descriptions of each memory, where the plugin has the MemoryDescriptions extension.
    pub memory_descriptions: Vec<(i32, String)>,
}

/// A memory as the inner plugin describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are the interface's own")]
pub struct MemoryInfo {
    pub id: i32,
    pub kind: String,
    pub kind_id: i32,
    pub debug_string: String,
    pub to_string: String,
    /// Indices into [`ClientDescription::devices`].
    pub devices: Vec<u32>,
}

/// A topology as the inner plugin describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are the interface's own")]
pub struct TopologyInfo {
    pub platform_name: String,
    pub platform_version: String,
    pub attributes: Vec<NamedValue>,
    pub devices: Vec<DeviceInfo>,
    pub serialized: Result<Vec<u8>, Status>,
    pub fingerprint: Result<u64, Status>,
}

/// A compiled program: its serialized form and all that a framework asks of it.
///
/// Where the plugin answered a question with an error, the error is kept and given to whoever asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    /// `PJRT_Executable_Serialize`.
    pub serialized: Result<Arc<[u8]>, Status>,
    /// What is known of it.
    pub info: ExecutableInfo,
}

/// A compiled program that spans slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompiledSpanning {
    /// What is known of the whole program. The optimized program, costs and memory are those of a slice's part: who
    /// wants the whole program's compiles it in full ([`Command::Compile`], with the options of the job).
    pub info: ExecutableInfo,
    /// The parts, in the order of [`SpanningJob::parts`].
    pub parts: Vec<Compiled>,
}

/// What is known of a compiled program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are the interface's own")]
pub struct ExecutableInfo {
    pub name: String,
    pub num_replicas: u32,
    pub num_partitions: u32,
    pub num_outputs: u32,
    pub output_types: Vec<u32>,
    pub output_dims: Vec<Dims>,
    /// `PJRT_Executable_OutputMemoryKinds`.
    pub output_memory_kinds: Result<Vec<String>, Status>,
    pub parameter_memory_kinds: Result<Vec<String>, Status>,
    /// Serialized text of each layout (Layouts extension).
    pub output_layouts: Result<Vec<String>, Status>,
    pub parameter_layouts: Result<Vec<String>, Status>,
    /// Serialized `OpSharding`s (Shardings extension); `None` where the program has none.
    pub output_shardings: Result<Option<Vec<Vec<u8>>>, Status>,
    pub parameter_shardings: Result<Option<Vec<Vec<u8>>>, Status>,
    pub generated_code_size: Result<i64, Status>,
    pub fingerprint: Result<Vec<u8>, Status>,
    pub cost_analysis: Result<Vec<NamedValue>, Status>,
    /// In the order of the fields of `PJRT_Executable_GetCompiledMemoryStats_Args`.
    pub memory_stats: Result<Vec<i64>, Status>,
    /// Format and bytes of `PJRT_Executable_OptimizedProgram`.
    pub optimized_program: Result<(String, Vec<u8>), Status>,
    /// `PJRT_Executable_GetCompileOptions`.
    pub compile_options: Result<Vec<u8>, Status>,
    /// Serialized `DeviceAssignmentProto`, where the plugin gives it.
    pub device_assignment: Result<Vec<u8>, Status>,
    /// Number of parameters and the types and shapes of each, from the optimized program; empty if unknown.
    pub parameters: Vec<(u32, Dims)>,
    /// Parameters that an execution donates, from the program's input-output aliases and donors.
    pub donated: Vec<u32>,
}

/// Byte vectors as one length and the bytes, not element by element.
mod serde_bytes_vec {
    use serde::{Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        from.deserialize_byte_buf(Bytes)
    }
}
