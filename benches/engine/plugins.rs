//! The real plugin, loaded into this process, and Mainstay, loaded as a framework does it; a client of each, of as many
//! devices.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use mainstay::wire::message::{NamedValue, Value};
use mainstay::worker::inner::{Client, Plugin};

use super::measure::{OrEnd, end};

static REAL: LazyLock<&Plugin> = LazyLock::new(|| Plugin::load(&real_plugin()).or_end());
static OURS: LazyLock<&Plugin> = LazyLock::new(|| Plugin::load(&library()).or_end());

/// Clients to compare, made at their first use: of Mainstay with so many slices of one device, and of the real plugin
/// with so many devices.
pub struct Setup {
    /// How many.
    pub slices: usize,
    host_memory: u64,
    ours: OnceCell<Client>,
    raw: OnceCell<Client>,
}

impl Setup {
    /// For so many slices; `host_memory` is Mainstay's budget in bytes.
    pub fn new(slices: usize, host_memory: u64) -> Self {
        Self { slices, host_memory, ours: OnceCell::new(), raw: OnceCell::new() }
    }

    /// Mainstay's client.
    pub fn ours(&self) -> &Client {
        self.ours.get_or_init(|| {
            let options = [
                option("plugin", Value::String(real_plugin().to_string_lossy().into_owned())),
                option("slices", Value::Int64(self.slices as i64)),
                option("devices_per_slice", Value::Int64(1)),
                option("host_memory", Value::String(self.host_memory.to_string())),
            ];
            Client::new(*OURS, &options).or_end()
        })
    }

    /// The real plugin's client.
    pub fn raw(&self) -> &Client {
        self.raw.get_or_init(|| {
            Client::new(*REAL, &[option("cpu_device_count", Value::Int64(self.slices as i64))]).or_end()
        })
    }
}

fn option(name: &str, value: Value) -> NamedValue {
    NamedValue { name: name.to_owned(), value }
}

/// The path that the user gave.
fn real_plugin() -> PathBuf {
    const NEEDED: &str = "it must be the path of a CPU plugin; `make bench ARGS='--only engine'` sets it";
    match std::env::var_os("MAINSTAY_TEST_PLUGIN").map(PathBuf::from) {
        Some(path) if path.is_file() => path,
        Some(path) => end(format!("MAINSTAY_TEST_PLUGIN is {}, which is no file: {NEEDED}", path.display())),
        None => end(format!("MAINSTAY_TEST_PLUGIN is not set: {NEEDED}")),
    }
}

/// The library that Cargo built for this bench: in the folder of dependencies beside the executable.
pub fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_mainstay")).with_file_name("deps").join("libmainstay.so")
}
