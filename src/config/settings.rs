//! The table of all settings, and what was given for each.
//!
//! `docs/configuration.md` is made from the table; a test holds the two together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::values;
use crate::wire::message::{NamedValue, Value};
use crate::wire::numa::{self, Placement};

/// What every variable's name begins with.
pub const PREFIX: &str = "MAINSTAY_";
/// Variables that belong to others of this project: the Python package's path of the library, and those of tests and
/// benches.
const OF_OTHERS: [&str; 1] = ["MAINSTAY_LIBRARY"];
const OF_TESTS: [&str; 3] = ["MAINSTAY_TEST_", "MAINSTAY_FAKE_", "MAINSTAY_BENCH_"];

/// As many slices can exchange data between their workers.
pub const MOST_SLICES: u32 = 32;

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path of a file; one with a `/` must exist.
    Path,
    /// A whole number from the first to the second.
    Count(u32, u32),
    /// Bytes, at least so many.
    Size(u64),
    /// `auto`, `interleave`, or NUMA nodes.
    Nodes,
    /// A time of at least so many milliseconds and up to a day.
    Time(u64),
    /// A time of at least so many milliseconds and up to a day, or `off`.
    Bound(u64),
    /// Yes or no.
    Flag,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// `name=value;…`.
    NamedValues,
}

/// The value where none is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// As if this were given.
    Value(&'static str),
    /// Found out, as these words say.
    Found(&'static str),
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The create option; in upper case behind [`PREFIX`], the variable.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The value where none is given.
    pub default: Default,
    /// What it means.
    pub meaning: &'static str,
}

const fn setting(name: &'static str, kind: Kind, default: Default, meaning: &'static str) -> Setting {
    Setting { name, kind, default, meaning }
}

/// All settings, in the order of the documentation.
pub const SETTINGS: &[Setting] = &[
    setting(
        "plugin",
        Kind::Path,
        Default::Found("none: it must be given"),
        "The PJRT plugin to wrap: the inner plugin.",
    ),
    setting(
        "slices",
        Kind::Count(1, MOST_SLICES),
        Default::Value("1"),
        "Slices. Each is a worker process with a client of the inner plugin.",
    ),
    setting(
        "devices_per_slice",
        Kind::Count(1, 4096),
        Default::Found("what the plugin has"),
        "Devices of each slice. For XLA's CPU plugin only, which gets it as its create option `cpu_device_count`.",
    ),
    setting(
        "spares",
        Kind::Count(0, 1024),
        Default::Value("0"),
        "Workers that are kept ready to become the next incarnation of a lost slice.",
    ),
    setting(
        "worker",
        Kind::Path,
        Default::Found("`mainstay` beside the library"),
        "The executable that hosts workers.",
    ),
    setting(
        "host_memory",
        Kind::Size(16 << 20),
        Default::Found("half of the memory that the machine, or the control group, has"),
        "The most memory that the client and its workers share: data on its way, and buffers in host memory. It is \
         taken from the machine as it is needed.",
    ),
    setting(
        "host_memory_nodes",
        Kind::Nodes,
        Default::Value("auto"),
        "The NUMA nodes that host memory is spread over. `auto` means those on whose processors the process may run; with \
         one such node, or under a memory policy of the process's own (`numactl`), it is left to the kernel. `interleave` \
         means all with memory that the process may use.",
    ),
    setting(
        "start_timeout",
        Kind::Time(100),
        Default::Value("120s"),
        "A worker that isn't up after this time is killed and counts as lost.",
    ),
    setting(
        "replace_limit",
        Kind::Count(0, 1_000_000),
        Default::Value("10"),
        "When more than so many workers of a slice in a row were lost before they had been up for 10 seconds, the \
         slice stays down. 0: lost workers are not replaced.",
    ),
    setting(
        "replace_backoff",
        Kind::Time(0),
        Default::Value("100ms"),
        "The wait before the second replacement in a row. It doubles with each further one; the first comes at once.",
    ),
    setting("replace_backoff_max", Kind::Time(0), Default::Value("10s"), "The longest wait before a replacement."),
    setting(
        "heartbeat_timeout",
        Kind::Bound(100),
        Default::Value("30s"),
        "A worker that gave no sign of life for so long is killed and counts as lost. The sign comes from a thread that \
         does nothing else: a long step or compile is no silence, a stopped process is.",
    ),
    setting(
        "progress_timeout",
        Kind::Bound(100),
        Default::Value("off"),
        "A worker that has work, and finished none of it for so long, is killed and counts as lost. Has to be longer \
         than the longest program runs.",
    ),
    setting(
        "compiler",
        Kind::Choice(&["auto", "process", "worker"]),
        Default::Value("auto"),
        "Where programs are compiled: in a process of its own, whose crash costs no slice, or in a worker. `auto` \
         means a process, where the plugin can compile without the slice's devices.",
    ),
    setting(
        "isolation",
        Kind::Choice(&["process"]),
        Default::Value("process"),
        "How slices are kept apart: each in a process of its own.",
    ),
    setting(
        "worker_output_lines",
        Kind::Count(0, 100_000),
        Default::Value("50"),
        "Lines of each worker's stderr that are kept, to come with the report of its loss.",
    ),
    setting(
        "worker_output_echo",
        Kind::Flag,
        Default::Value("false"),
        "Whether what workers write to stderr also goes to the client's stderr.",
    ),
    setting(
        "log",
        Kind::Text,
        Default::Value("warn"),
        "What Mainstay logs to stderr: `error`, `warn`, `info`, `debug`, `trace`, or such levels by module \
         (`mainstay::slice=debug`).",
    ),
    setting(
        "plugin_options",
        Kind::NamedValues,
        Default::Value(""),
        "Further create options for the inner plugin, as `name=value;name=value`. Whole numbers, numbers with a point, \
         `true` and `false`, and lists of whole numbers as `[1,2]` get those types; all else, and what stands in double \
         quotes, is a string.",
    ),
];

impl Setting {
    fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase())
    }
}

/// A value, and where it came from for whoever has to correct it.
#[derive(Debug)]
struct Source {
    /// `MAINSTAY_SLICES`, or `create option slices`.
    label: String,
    value: String,
}

/// What was given, by setting. Reading a value checks it by the setting's [`Kind`].
#[derive(Debug)]
pub struct Given(BTreeMap<&'static str, Source>);

impl Given {
    /// Takes what options and environment give; options win.
    ///
    /// # Errors
    /// Names the option or variable that is unknown, given twice, or no text.
    pub fn collect(
        options: &[NamedValue],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, String> {
        let mut given = Self(BTreeMap::new());
        for (variable, value) in environment {
            given.take_variable(&variable.to_string_lossy(), value)?;
        }
        let mut seen = Vec::new();
        for option in options {
            if seen.contains(&option.name.as_str()) {
                return Err(format!("create option {} is given twice", option.name));
            }
            seen.push(&option.name);
            given.take_option(option)?;
        }
        Ok(given)
    }

    fn take_variable(&mut self, variable: &str, value: OsString) -> Result<(), String> {
        let Some(name) = variable.strip_prefix(PREFIX) else { return Ok(()) };
        if OF_OTHERS.contains(&variable) || OF_TESTS.iter().any(|prefix| variable.starts_with(prefix)) {
            return Ok(());
        }
        let setting = SETTINGS.iter().find(|setting| setting.name.to_uppercase() == name).ok_or_else(|| {
            let known: Vec<_> = SETTINGS.iter().map(Setting::variable).collect();
            format!("the environment variable {variable} is no setting of Mainstay; known are {}", known.join(", "))
        })?;
        let value =
            value.into_string().map_err(|value| format!("{variable}={}: not UTF-8", value.to_string_lossy()))?;
        self.0.insert(setting.name, Source { label: variable.to_owned(), value });
        Ok(())
    }

    fn take_option(&mut self, option: &NamedValue) -> Result<(), String> {
        let setting = Setting::named(&option.name).ok_or_else(|| {
            let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            format!(
                "the create option {} is none of Mainstay's, which are {}; options for the inner plugin go into \
                 plugin_options",
                option.name,
                known.join(", ")
            )
        })?;
        let value = match &option.value {
            Value::String(text) => text.clone(),
            Value::Int64(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Int64List(_) => {
                return Err(format!("create option {}: a list where one value belongs", option.name));
            }
        };
        self.0.insert(setting.name, Source { label: format!("create option {}", setting.name), value });
        Ok(())
    }

    /// Reads the given value, or the table's, with `parse`; `None` where the default is to be found out.
    fn read<T>(&self, name: &str, parse: impl FnOnce(&str, Kind) -> Result<T, String>) -> Result<Option<T>, String> {
        let setting = Setting::named(name).ok_or_else(|| format!("{name} is no setting"))?;
        let (label, value) = match (self.0.get(name), setting.default) {
            (Some(source), _) => (source.label.as_str(), source.value.as_str()),
            (None, Default::Value(value)) => (name, value),
            (None, Default::Found(_)) => return Ok(None),
        };
        parse(value, setting.kind).map(Some).map_err(|error| format!("{label}={value}: {error}"))
    }

    /// As [`Self::read`], for settings with a default in the table.
    fn read_always<T>(&self, name: &str, parse: impl FnOnce(&str, Kind) -> Result<T, String>) -> Result<T, String> {
        self.read(name, parse)?.ok_or_else(|| format!("{name} has no default"))
    }

    /// A path.
    pub fn path(&self, name: &str) -> Result<Option<PathBuf>, String> {
        self.read(name, |value, _| values::path(value))
    }

    /// A whole number with a default.
    pub fn count(&self, name: &str) -> Result<u32, String> {
        self.read_always(name, values::count)
    }

    /// A whole number.
    pub fn optional_count(&self, name: &str) -> Result<Option<u32>, String> {
        self.read(name, values::count)
    }

    /// Bytes.
    pub fn size(&self, name: &str) -> Result<Option<u64>, String> {
        self.read(name, values::size)
    }

    /// Where memory lies.
    pub fn nodes(&self, name: &str) -> Result<Placement, String> {
        self.read_always(name, |value, _| values::nodes(value, &numa::usable()))
    }

    /// A time.
    pub fn time(&self, name: &str) -> Result<Duration, String> {
        self.read_always(name, values::time)
    }

    /// A time, or none.
    pub fn bound(&self, name: &str) -> Result<Option<Duration>, String> {
        self.read_always(name, values::bound)
    }

    /// Yes or no.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        self.read_always(name, |value, _| values::flag(value))
    }

    /// One of the setting's choices.
    pub fn choice(&self, name: &str) -> Result<String, String> {
        self.read_always(name, values::choice)
    }

    /// Any text.
    pub fn text(&self, name: &str) -> String {
        self.read(name, |value, _| Ok(value.to_owned())).ok().flatten().unwrap_or_default()
    }

    /// Names and values.
    pub fn named_values(&self, name: &str) -> Result<Vec<NamedValue>, String> {
        self.read_always(name, |value, _| values::named_values(value))
    }
}
