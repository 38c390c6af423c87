//! Starts workers and talks with them.

use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay::abi::{Status, sys};
use mainstay::wire::arena::{Arena, ArenaOptions, Block};
use mainstay::wire::connection::{self, ClientEnd, ConnectionError, Listener, Wait};
use mainstay::wire::message::{
    BufferId, BufferSpec, ClientDescription, Command, CompileJob, Compiled, Dims, Execute, Ids, NamedValue, Payload,
    Query, Reply, Report, RequestId, Start, Value,
};

/// More than anything here takes, on the busiest machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The plugin that tests use.
pub fn default_plugin() -> PathBuf {
    match std::env::var_os("MAINSTAY_TEST_PLUGIN") {
        Some(path) => path.into(),
        None => {
            panic!("MAINSTAY_TEST_PLUGIN is not set: it must be the path of a CPU plugin; `make test-rust` sets it")
        }
    }
}

/// All plugins that are to work, the default first.
pub fn all_plugins() -> Vec<PathBuf> {
    match std::env::var_os("MAINSTAY_TEST_PLUGINS") {
        Some(paths) => std::env::split_paths(&paths).collect(),
        None => vec![default_plugin()],
    }
}

/// A worker and the client's end of its connection.
pub struct Worker {
    pub child: Child,
    pub end: Arc<ClientEnd>,
    pub arena: Arc<Arena>,
    pub description: Option<ClientDescription>,
    listener: Option<Listener>,
    backlog: Vec<Report>,
    next_id: u64,
}

impl Worker {
    /// A process that has got its start command.
    pub fn spawn(start: Start) -> Self {
        Self::spawn_in(start, None, 8)
    }

    /// A worker with a client of the fake plugin, which is told this (see `ffi/fake_faults.h`).
    pub fn start_fake(commands: &str) -> Self {
        let plugin = env!("MAINSTAY_FAKE_PLUGIN").into();
        let start = Start { plugin, options: Vec::new(), create_client: true, heap_slack: 0 };
        let mut worker = Self::spawn_with(start, None, &[("FAKE_PLUGIN", commands)]);
        worker.description = worker.started().unwrap().map(|description| *description);
        worker
    }

    /// A process that has got its start command, with memory to exchange data with other slices in, and so many threads
    /// for programs.
    ///
    /// XLA's CPU plugin has a thread for each device or processor, and the last bits of a convolution follow from how
    /// many: eight give the bits that one client of eight devices gives.
    pub fn spawn_in(start: Start, exchange: Option<BorrowedFd<'_>>, threads: usize) -> Self {
        Self::spawn_with(start, exchange, &[("PJRT_NPROC", &threads.to_string())])
    }

    fn spawn_with(start: Start, exchange: Option<BorrowedFd<'_>>, environment: &[(&str, &str)]) -> Self {
        let arena = Arena::new(ArenaOptions::new(64 << 20)).unwrap();
        let (end, listener, mut fds) = connection::connect(&connection::Options::default(), Some(arena.fd())).unwrap();
        if let Some(exchange) = exchange {
            fds = fds.with_exchange(exchange).unwrap();
        }
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command.args(["worker", "--label", "test"]).envs(environment.iter().copied());
        fds.inherit(&mut command).unwrap();
        let child = command.spawn().unwrap();
        drop(command);
        end.send(&Command::Start(start)).unwrap();
        let listener = Some(listener);
        Self { child, end, arena, description: None, listener, backlog: Vec::new(), next_id: 1 }
    }

    /// A worker with a client of `devices` CPU devices.
    pub fn start(plugin: &Path, devices: i64) -> Self {
        let start = Start { plugin: plugin.into(), options: cpu_options(devices), create_client: true, heap_slack: 0 };
        let mut worker = Self::spawn(start);
        worker.description = worker.started().unwrap().map(|description| *description);
        worker
    }

    /// A process to compile with.
    pub fn start_compiler(plugin: &Path) -> Self {
        let mut worker =
            Self::spawn(Start { plugin: plugin.into(), options: Vec::new(), create_client: false, heap_slack: 0 });
        assert_eq!(worker.started().unwrap(), None);
        worker
    }

    /// The answer to the start command.
    pub fn started(&mut self) -> Result<Option<Box<ClientDescription>>, Status> {
        self.wait_for(|report| match report {
            Report::Started(result) => Some(result.clone()),
            _ => None,
        })
    }

    pub fn send(&self, command: Command) {
        self.end.send(&command).unwrap();
    }

    /// A new id.
    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The first of so many new ids in a row.
    pub fn ids(&mut self, count: u64) -> u64 {
        self.next_id += count;
        self.next_id - count + 1
    }

    /// The first report, old or new, that `wanted` takes; the others are kept.
    pub fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Report) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let found = self.backlog.iter().enumerate().find_map(|(at, report)| Some((at, wanted(report)?)));
            if let Some((at, found)) = found {
                self.backlog.remove(at);
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "no such report; kept: {:?}", self.backlog);
            self.receive().unwrap();
        }
    }

    fn receive(&mut self) -> Result<(), ConnectionError> {
        let wait = Wait { timeout: Some(Duration::from_secs(1)), in_flight: true, ..Wait::default() };
        self.listener.as_mut().unwrap().wait(wait, &mut self.backlog).map(|_| ())
    }

    /// Waits until all that was sent is done or under way; whether a report that `unwanted` takes had come by then.
    pub fn has_come(&mut self, unwanted: impl Fn(&Report) -> bool) -> bool {
        self.ask(Query::Ping).unwrap();
        self.backlog.iter().any(unwanted)
    }

    pub fn ask(&mut self, query: Query) -> Result<Reply, Status> {
        let request = self.id();
        self.send(Command::Ask { request, query });
        self.reply(request)
    }

    pub fn reply(&mut self, request: RequestId) -> Result<Reply, Status> {
        self.wait_for(|report| match report {
            Report::Reply { request: of, result } if *of == request => Some(result.clone()),
            _ => None,
        })
    }

    /// Whether a reply comes within a time; it is kept.
    #[allow(dead_code, reason = "for the tests of programs that span slices")]
    pub fn replies_within(&mut self, request: RequestId, bound: Duration) -> bool {
        let until = Instant::now() + bound;
        loop {
            let replies = |report: &Report| matches!(report, Report::Reply { request: of, .. } if *of == request);
            if self.backlog.iter().any(replies) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let wait = Wait { timeout: Some(left), in_flight: true, ..Wait::default() };
            self.listener.as_mut().unwrap().wait(wait, &mut self.backlog).unwrap();
        }
    }

    /// A buffer's fate.
    pub fn ready(&mut self, buffer: BufferId) -> Result<(), Status> {
        self.wait_for(|report| match report {
            Report::Ready { buffer: of, result, .. } if *of == buffer => Some(result.clone()),
            _ => None,
        })
    }

    /// The fate of one device's part of a launch.
    pub fn executed(&mut self, launch: u64, device: u32) -> Result<(), Status> {
        self.wait_for(|report| match report {
            Report::Executed { launch: of, device: on, result, .. } if (*of, *on) == (launch, device) => {
                Some(result.clone())
            }
            _ => None,
        })
    }

    pub fn returned(&mut self, loan: u64) {
        self.wait_for(|report| (*report == Report::Returned { loan }).then_some(()));
    }

    pub fn compile(
        &mut self,
        code: &str,
        options: Vec<u8>,
        client_options: Vec<NamedValue>,
    ) -> Result<Compiled, Status> {
        let request = self.id();
        let job =
            CompileJob { format: "mlir".into(), code: code.as_bytes().into(), options: options.into(), client_options };
        self.send(Command::Compile { request, job });
        match self.reply(request)? {
            Reply::Compiled(compiled) => Ok(*compiled),
            other => panic!("{other:?}"),
        }
    }

    /// Loads a program; its id.
    pub fn load(&mut self, compiled: &Compiled) -> Program {
        let executable = self.id();
        let serialized = compiled.serialized.clone().unwrap();
        let donated = compiled.info.donated.as_slice().into();
        self.send(Command::Load { executable, serialized, options: Arc::from([]), donated });
        let result = self.wait_for(|report| match report {
            Report::Loaded { executable: of, result } if *of == executable => Some(result.clone()),
            _ => None,
        });
        result.unwrap();
        Program { executable, num_outputs: compiled.info.num_outputs }
    }

    /// Compiles in this very process, and loads.
    pub fn program(&mut self, code: &str, options: Vec<u8>) -> Program {
        let compiled = self.compile(code, options, Vec::new()).unwrap();
        self.load(&compiled)
    }

    /// Launches a program; the launch and the first output.
    pub fn execute(&mut self, program: Program, num_devices: u32, arguments: &[BufferId]) -> (u64, BufferId) {
        let launch = self.id();
        let first_output = self.ids(u64::from(num_devices * program.num_outputs));
        self.send(Command::Execute(Execute {
            launch,
            executable: program.executable,
            launch_id: 0,
            num_devices,
            execute_device: None,
            arguments: arguments.into(),
            first_output,
            num_outputs: program.num_outputs,
            non_donatable: Default::default(),
        }));
        (launch, first_output)
    }

    /// Declares a buffer.
    pub fn declare(&mut self) -> BufferId {
        let buffer = self.id();
        self.send(Command::Declare { buffers: Ids::from_slice(&[buffer]) });
        buffer
    }

    /// Uploads to the default memory of device 0, in the message.
    pub fn upload(&mut self, values: &[f32], dims: &[i64]) -> BufferId {
        let buffer = self.id();
        self.upload_to(buffer, values, dims, 0);
        buffer
    }

    /// Uploads to a memory, in the message.
    pub fn upload_to(&mut self, buffer: BufferId, values: &[f32], dims: &[i64], memory: u32) {
        let data = Payload::Inline(bytes_of(values));
        self.send(Command::Upload { buffer, spec: f32_spec(dims, memory), data, quiet: false });
    }

    /// The index of the memory of this kind that a device has.
    pub fn memory(&self, device: usize, kind: &str) -> u32 {
        let description = self.description.as_ref().unwrap();
        let memories = &description.devices[device].memories;
        *memories.iter().find(|index| description.memories[**index as usize].kind == kind).unwrap()
    }

    /// A block of the arena that holds these values.
    pub fn block(&self, values: &[f32]) -> Block {
        let mut block = self.arena.allocate(size_of_val(values) as u64).unwrap();
        // SAFETY: the block is new: no worker knows of it.
        unsafe { block.as_mut_slice() }.copy_from_slice(&bytes_of(values));
        block
    }

    /// Reads a buffer of `len` elements.
    pub fn download(&mut self, buffer: BufferId, len: usize) -> Result<Vec<f32>, Status> {
        self.download_as(buffer, len, &[])
    }

    /// Reads it in this order.
    pub fn download_as(&mut self, buffer: BufferId, len: usize, minor_to_major: &[i64]) -> Result<Vec<f32>, Status> {
        let block = self.arena.allocate(4 * len as u64).unwrap();
        let request = self.id();
        let minor_to_major = minor_to_major.into();
        self.send(Command::Download { request, buffer, minor_to_major, to: block.extent() });
        self.reply(request).map(|reply| {
            assert_eq!(reply, Reply::Done);
            read(&block)
        })
    }

    /// Has the worker leave, and says how it left.
    pub fn shut_down(&mut self) -> ExitStatus {
        self.send(Command::Shutdown);
        self.wait_for_exit()
    }

    /// Closes the client's end.
    pub fn close(&mut self) {
        self.listener = None;
    }

    /// How the worker left.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the worker stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A worker that is gone already can't be killed, and that is all right.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loaded program.
#[derive(Clone, Copy)]
pub struct Program {
    pub executable: u64,
    pub num_outputs: u32,
}

/// Whether the process left by itself, with this code.
pub fn left_with(status: ExitStatus, code: i32) -> bool {
    status.code() == Some(code) && status.signal().is_none()
}

/// The values in a block.
pub fn read(block: &Block) -> Vec<f32> {
    // SAFETY: the tests read only what the worker has given back or says that it has written.
    let bytes = unsafe { block.as_slice() };
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub fn f32_spec(dims: &[i64], memory: u32) -> BufferSpec {
    BufferSpec { element_type: sys::PJRT_Buffer_Type_F32, dims: Dims::from_slice(dims), memory, layout: None }
}

pub fn cpu_options(devices: i64) -> Vec<NamedValue> {
    vec![NamedValue { name: "cpu_device_count".into(), value: Value::Int64(devices) }]
}
