//! What is told about the clients of this process: as JSON to the library's own caller, and over a socket to `mainstay status`.
//!
//! The socket has an abstract name, `mainstay/<user id>/<process id>`: it leaves no file behind, whatever dies. A caller of
//! another user gets no answer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::client::Client;
use super::fault::{self, Fault};
use super::notice;
use crate::slice::{Loss, State};
use crate::sync::lock;

/// The beginning of a request for a fault, before its description as JSON.
const FAULT: &str = "fault ";
/// How long a caller of the socket may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// All clients of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The process.
    pub pid: u32,
    /// Its clients.
    pub clients: Vec<ClientStatus>,
}

/// A client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The inner plugin's platform.
    pub platform: String,
    /// Path of the inner plugin.
    pub plugin: String,
    /// The client's slices, by index.
    pub slices: Vec<SliceStatus>,
    /// Workers that belong to no slice yet.
    pub spares: Vec<SpareStatus>,
    /// The arena.
    pub host_memory: HostMemoryStatus,
}

/// The arena. Sizes in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostMemoryStatus {
    /// In use.
    pub used: u64,
    /// Taken from the machine.
    pub committed: u64,
    /// The budget.
    pub limit: u64,
    /// The NUMA nodes that it is spread over, as `0-1,3`; none: where the kernel puts it.
    pub nodes: Option<String>,
}

/// A slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SliceStatus {
    /// The `slice_index` of its devices.
    pub index: u32,
    /// `starting`, `healthy`, `suspect`, `lost`, `replacing`, `failed`, `stopping`, `suspended` or `closed`.
    pub state: String,
    /// Workers it has had, the present one included.
    pub incarnation: u64,
    /// The worker's process; 0 while there is none.
    pub pid: u32,
    /// Ids of its devices.
    pub devices: Vec<i32>,
    /// Live buffers, lost ones included until the framework lets go of them.
    pub buffers: u64,
    /// Their bytes, by kind of memory.
    pub bytes: BTreeMap<String, u64>,
    /// How many incarnations were lost so far.
    pub loss_count: u64,
    /// The newest of those losses, at most 100, oldest first.
    pub losses: Vec<LossStatus>,
}

/// A worker that belongs to no slice yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpareStatus {
    /// Its process.
    pub pid: u32,
    /// Whether it is up.
    pub ready: bool,
}

/// One loss of a slice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LossStatus {
    /// The incarnation that was lost.
    pub incarnation: u64,
    /// What happened, in words.
    pub reason: String,
    /// When it was noticed, in seconds since the Unix epoch.
    pub at: f64,
}

#[derive(Default)]
struct Registry {
    clients: Vec<Weak<Client>>,
    serving: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { clients: Vec::new(), serving: false });

fn registry() -> MutexGuard<'static, Registry> {
    lock(&REGISTRY)
}

/// From now on the client is told about.
pub fn register(client: &Arc<Client>) {
    let mut registry = registry();
    registry.clients.push(Arc::downgrade(client));
    if !registry.serving {
        registry.serving = serve();
    }
    drop(registry);
    notice::announce();
}

/// The client is not told about any more. The socket goes with the last one.
pub fn unregister(client: &Client) {
    let mut registry = registry();
    registry.clients.retain(|known| !std::ptr::eq(known.as_ptr(), client));
    if registry.clients.is_empty() && registry.serving {
        registry.serving = false;
        // Wakes the thread, which finds that it is to end.
        let _ = address(std::process::id()).and_then(|address| UnixStream::connect_addr(&address));
    }
    drop(registry);
    notice::announce();
}

/// This process's clients.
pub fn clients() -> Vec<Arc<Client>> {
    registry().clients.iter().filter_map(Weak::upgrade).collect()
}

/// What there is to say about this process's clients.
pub fn process_status() -> ProcessStatus {
    let clients = clients();
    ProcessStatus { pid: std::process::id(), clients: clients.iter().map(|client| client_status(client)).collect() }
}

fn client_status(client: &Client) -> ClientStatus {
    let arena = client.arena().stats();
    ClientStatus {
        platform: client.platform_name.clone(),
        plugin: client.config().plugin.display().to_string(),
        slices: (0..client.slices().len()).map(|index| slice_status(client, index as u32)).collect(),
        spares: client
            .spares()
            .states()
            .into_iter()
            .map(|spare| SpareStatus { pid: spare.pid, ready: spare.is_ready })
            .collect(),
        host_memory: HostMemoryStatus {
            used: arena.used,
            committed: arena.committed,
            limit: arena.capacity,
            nodes: client.arena().nodes().map(ToString::to_string),
        },
    }
}

fn slice_status(client: &Client, index: u32) -> SliceStatus {
    let slice = &client.slices()[index as usize];
    let (state, incarnation, pid) = slice.standing();
    let (loss_count, losses) = slice.losses();
    let mut status = SliceStatus {
        index,
        state: state_name(state).to_owned(),
        incarnation,
        pid: pid.unwrap_or(0),
        devices: client.devices.iter().filter(|device| device.slice == index).map(|device| device.info.id).collect(),
        buffers: 0,
        bytes: BTreeMap::new(),
        loss_count,
        losses: losses.iter().map(|loss| loss_status(loss)).collect(),
    };
    for memory in client.memories.iter().filter(|memory| memory.slice == index) {
        let (buffers, bytes) = memory.usage.get();
        status.buffers += buffers;
        *status.bytes.entry(memory.info.kind.clone()).or_default() += bytes;
    }
    status
}

fn loss_status(loss: &Loss) -> LossStatus {
    let at = SystemTime::now() - loss.at.elapsed();
    let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    LossStatus { incarnation: loss.incarnation, reason: loss.status().message.to_string(), at }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::New | State::Starting => "starting",
        State::Healthy => "healthy",
        State::Suspect => "suspect",
        State::Stopping => "stopping",
        State::Lost => "lost",
        State::Replacing => "replacing",
        State::Failed => "failed",
        State::Suspended => "suspended",
        State::Closed => "closed",
    }
}

fn name_prefix() -> String {
    format!("mainstay/{}/", rustix::process::geteuid().as_raw())
}

fn address(pid: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}{pid}", name_prefix()))
}

/// Starts to answer on the socket. Without it everything else works, so a failure is only logged.
fn serve() -> bool {
    let listener = address(std::process::id()).and_then(|address| UnixListener::bind_addr(&address));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "`mainstay status` will not find this process: its socket cannot be made");
            return false;
        }
    };
    let run = move || {
        for stream in listener.incoming() {
            if !registry().serving {
                return;
            }
            // A caller that goes away or sends nonsense is its own problem.
            let _ = stream.and_then(answer);
        }
    };
    std::thread::Builder::new().name("mainstay-status".into()).spawn(run).is_ok()
}

fn answer(stream: UnixStream) -> std::io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new(std::io::Read::take(&stream, 4096)).read_line(&mut request)?;
    let answer = match request.trim() {
        "status" => serde_json::to_string(&process_status())?,
        request if request.starts_with(FAULT) => {
            let fault = serde_json::from_str(&request[FAULT.len()..]).map_err(|error| error.to_string());
            serde_json::to_string(&fault.and_then(fault::inject))?
        }
        other => serde_json::json!({ "error": format!("no such request: {other}") }).to_string(),
    };
    (&stream).write_all(answer.as_bytes())
}

/// Asks another process of this user about its clients.
pub fn ask(pid: u32) -> std::io::Result<ProcessStatus> {
    request(pid, "status")
}

/// Has another process of this user do a fault to one of its slices.
///
/// # Errors
/// In words: it can't be asked, or why it will not.
pub fn inject_into(pid: u32, fault: &Fault) -> Result<(), String> {
    let fault = serde_json::to_string(fault).map_err(|error| error.to_string())?;
    request::<Result<(), String>>(pid, &format!("{FAULT}{fault}")).map_err(|error| {
        format!("process {pid} cannot be asked: {error}; is it a program of yours that uses Mainstay now?")
    })?
}

/// Sends one line to the socket of a process and reads the answer.
fn request<T: serde::de::DeserializeOwned>(pid: u32, line: &str) -> std::io::Result<T> {
    let mut stream = UnixStream::connect_addr(&address(pid)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(line.as_bytes())?;
    stream.write_all(b"\n")?;
    Ok(serde_json::from_reader(BufReader::new(stream))?)
}

/// The processes of this user that can be asked, by rising id.
pub fn processes() -> std::io::Result<Vec<u32>> {
    let prefix = format!("@{}", name_prefix());
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let mut pids: Vec<u32> = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix(&prefix)?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}
