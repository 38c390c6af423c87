//! Configuration: read once, from create options over `MAINSTAY_…` variables over defaults, into one typed value.
//!
//! [`settings`] is the table of all settings, from which `docs/configuration.md` is made; [`values`] reads their
//! values; [`worker`] finds the executable that hosts workers.

mod settings;
mod values;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::abi::Status;
use crate::slice::Policy;
use crate::wire::machine;
use crate::wire::message::{NamedValue, Value};
use crate::wire::numa::Placement;
use settings::Given;
pub use settings::MOST_SLICES;

/// The CPU plugin's create option for its number of devices.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";
/// The share of the machine's memory that host memory may take by default: one half.
const HOST_MEMORY_SHARE: u64 = 2;
/// Where the kernel tells nothing of the machine's memory.
const HOST_MEMORY_UNKNOWN: u64 = 4 << 30;

/// Where programs are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompilerPlace {
    /// In a process of its own, where the plugin can have one.
    Auto,
    /// In a process of its own.
    Process,
    /// In a worker.
    Worker,
}

/// What the user set. Each field is documented in `docs/configuration.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Path of the inner plugin.
    pub plugin: PathBuf,
    /// Slices, each a worker process.
    pub slices: u32,
    /// Devices of each slice; `None`: what the plugin has.
    pub devices_per_slice: Option<u32>,
    /// Workers kept ready for the next loss.
    pub spares: u32,
    /// The executable that hosts workers.
    pub worker: PathBuf,
    /// The budget of memory shared with workers, in bytes.
    pub host_memory: u64,
    /// Where that memory lies.
    pub host_memory_nodes: Placement,
    /// A worker that isn't up after this time is lost.
    pub start_timeout: Duration,
    /// Losses in a row after which a slice stays down.
    pub replace_limit: u32,
    /// The wait before the second replacement in a row.
    pub replace_backoff: Duration,
    /// The longest wait before a replacement.
    pub replace_backoff_max: Duration,
    /// A worker that was silent for so long is lost; `None`: no bound.
    pub heartbeat_timeout: Option<Duration>,
    /// A worker that finished none of its work for so long is lost; `None`: no bound.
    pub progress_timeout: Option<Duration>,
    /// Where programs are compiled.
    pub compiler: CompilerPlace,
    /// Lines of each worker's output that are kept.
    pub worker_output_lines: usize,
    /// Whether workers' output also goes to the client's stderr.
    pub worker_output_echo: bool,
    /// The filter of Mainstay's own log.
    pub log: String,
    /// Further create options for the inner plugin.
    pub plugin_options: Vec<NamedValue>,
}

impl Config {
    /// Reads the create options of a client and the environment of this process.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the setting at fault, its value and what is allowed or known.
    pub fn load(options: &[NamedValue]) -> Result<Self, Status> {
        Self::from_sources(options, std::env::vars_os()).map_err(Status::invalid)
    }

    fn from_sources(
        options: &[NamedValue],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, String> {
        let given = Given::collect(options, environment)?;
        given.choice("isolation")?;
        let config = Self {
            plugin: given.path("plugin")?.ok_or_else(no_plugin)?,
            slices: given.count("slices")?,
            devices_per_slice: given.optional_count("devices_per_slice")?,
            spares: given.count("spares")?,
            worker: given.path("worker")?.map_or_else(worker::beside_the_library, Ok)?,
            host_memory: given.size("host_memory")?.unwrap_or_else(default_host_memory),
            host_memory_nodes: given.nodes("host_memory_nodes")?,
            start_timeout: given.time("start_timeout")?,
            replace_limit: given.count("replace_limit")?,
            replace_backoff: given.time("replace_backoff")?,
            replace_backoff_max: given.time("replace_backoff_max")?,
            heartbeat_timeout: given.bound("heartbeat_timeout")?,
            progress_timeout: given.bound("progress_timeout")?,
            compiler: match given.choice("compiler")?.as_str() {
                "process" => CompilerPlace::Process,
                "worker" => CompilerPlace::Worker,
                _ => CompilerPlace::Auto,
            },
            worker_output_lines: given.count("worker_output_lines")? as usize,
            worker_output_echo: given.flag("worker_output_echo")?,
            log: given.text("log"),
            plugin_options: given.named_values("plugin_options")?,
        };
        config.check_together()
    }

    /// What is fine alone and not together.
    fn check_together(self) -> Result<Self, String> {
        if std::fs::canonicalize(&self.plugin).ok().zip(worker::this_library()).is_some_and(|(a, b)| a == b) {
            return Err(format!("the plugin {} is Mainstay itself; name the plugin to wrap", self.plugin.display()));
        }
        if self.replace_backoff > self.replace_backoff_max {
            return Err(format!(
                "replace_backoff is {:?}, more than replace_backoff_max, which is {:?}; lower the first or raise the second",
                self.replace_backoff, self.replace_backoff_max
            ));
        }
        let counted_twice = self.plugin_options.iter().any(|option| option.name == CPU_DEVICE_COUNT);
        if self.devices_per_slice.is_some() && counted_twice {
            return Err(format!("devices_per_slice and {CPU_DEVICE_COUNT} in plugin_options say the same; give one"));
        }
        Ok(self)
    }

    /// The create options of inner clients.
    pub fn inner_options(&self) -> Vec<NamedValue> {
        let devices = self
            .devices_per_slice
            .map(|count| NamedValue { name: CPU_DEVICE_COUNT.to_owned(), value: Value::Int64(i64::from(count)) });
        devices.into_iter().chain(self.plugin_options.iter().cloned()).collect()
    }

    /// Bounds and limits of each slice.
    pub fn policy(&self) -> Policy {
        Policy {
            start_timeout: self.start_timeout,
            replace_limit: self.replace_limit,
            backoff_initial: self.replace_backoff,
            backoff_max: self.replace_backoff_max,
            heartbeat: self.heartbeat_timeout,
            progress: self.progress_timeout,
            ..Policy::default()
        }
    }
}

fn no_plugin() -> String {
    "no inner plugin is named; set MAINSTAY_PLUGIN, or the create option plugin, to the path of the PJRT plugin to wrap"
        .to_owned()
}

fn default_host_memory() -> u64 {
    machine::memory().map_or(HOST_MEMORY_UNKNOWN, |memory| memory.total / HOST_MEMORY_SHARE)
}

#[cfg(test)]
mod tests;
