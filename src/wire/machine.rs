//! How much memory this process may have: the machine's, or less where its control group or its NUMA nodes have less.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::numa::{self, Numbers};

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// What could be had now without pushing others out.
    pub available: u64,
}

/// This part of the memory is left to others by whoever keeps some only because it may use it again.
const LEFT_TO_OTHERS: u64 = 4;

impl Memory {
    /// What may be kept for later use, so that others find enough.
    pub fn spare(&self) -> u64 {
        self.available.saturating_sub(self.total / LEFT_TO_OTHERS)
    }

    /// Whether others find too little.
    pub fn is_short(&self) -> bool {
        self.available < self.total / LEFT_TO_OTHERS
    }
}

/// Whether memory is known to be short.
pub fn is_short() -> bool {
    memory().is_some_and(|memory| memory.is_short())
}

/// Processors that this process may run on. Asked once: each answer takes dozens of system calls.
pub fn processors() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *COUNT
}

/// The memory of the machine, narrowed by every control group around this process and to the NUMA nodes that it may use.
/// `None` where the kernel tells nothing.
pub fn memory() -> Option<Memory> {
    let machine = from_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let nodes = numa::restricted().and_then(|nodes| of_nodes(Path::new("/sys/devices/system/node"), &nodes));
    let narrower = control_groups().into_iter().filter_map(|group| of_group(&group)).chain(nodes);
    Some(narrower.fold(machine, |all, part| Memory {
        total: all.total.min(part.total),
        available: all.available.min(part.available),
    }))
}

fn from_meminfo(text: &str) -> Option<Memory> {
    Some(Memory { total: bytes_of(text, "MemTotal:")?, available: bytes_of(text, "MemAvailable:")? })
}

/// A field of the machine's, or a node's, `meminfo`.
fn bytes_of(text: &str, field: &str) -> Option<u64> {
    let (_, value) = text.lines().find_map(|line| line.split_once(field))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What some NUMA nodes have together.
fn of_nodes(folder: &Path, nodes: &Numbers) -> Option<Memory> {
    nodes.iter().try_fold(Memory { total: 0, available: 0 }, |sum, node| {
        let text = fs::read_to_string(folder.join(format!("node{node}/meminfo"))).ok()?;
        let (free, idle) = (bytes_of(&text, "MemFree:")?, bytes_of(&text, "Inactive(file):")?);
        Some(Memory {
            total: sum.total.saturating_add(bytes_of(&text, "MemTotal:")?),
            available: sum.available.saturating_add(free).saturating_add(idle),
        })
    })
}

/// The directories of this process's memory control groups, innermost first.
fn control_groups() -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path_of = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (controllers, path) = (fields.nth(1)?, fields.next()?);
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            list if list.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
            _ => return None,
        };
        Some((PathBuf::from(root), path.trim_start_matches('/').to_owned()))
    };
    let mut groups = Vec::new();
    for (root, path) in own.lines().filter_map(path_of) {
        groups.extend(root.join(path).ancestors().take_while(|at| at.starts_with(&root)).map(Path::to_owned));
    }
    groups
}

/// The limit of one group; `None` where it has none.
fn of_group(group: &Path) -> Option<Memory> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (total, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    // Pages of files that nobody uses count as used, but go when memory is asked for.
    let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let idle = statistics.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(Memory { total, available: total.saturating_sub(used).saturating_add(idle.unwrap_or(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = memory().unwrap();
        assert!(memory.total > 0 && memory.available > 0 && memory.available <= memory.total, "{memory:?}");
    }

    #[test]
    fn meminfo_is_in_kilobytes() {
        let text = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(from_meminfo(text), Some(Memory { total: 24_576_000_000, available: 20_480_000_000 }));
        assert_eq!(from_meminfo("MemTotal: much"), None);
    }

    #[test]
    fn nodes_are_added_up() {
        let folder = tempfile::tempdir().unwrap();
        for (node, free) in [(1, 100), (3, 10)] {
            let text = format!(
                "Node {node} MemTotal: 1000 kB\nNode {node} MemFree: {free} kB\nNode {node} Inactive(file): 1 kB\n"
            );
            fs::create_dir(folder.path().join(format!("node{node}"))).unwrap();
            fs::write(folder.path().join(format!("node{node}/meminfo")), text).unwrap();
        }
        let of = |list| of_nodes(folder.path(), &Numbers::parse(list).unwrap());
        assert_eq!(of("1"), Some(Memory { total: 1000 << 10, available: 101 << 10 }));
        assert_eq!(of("1,3"), Some(Memory { total: 2000 << 10, available: 112 << 10 }));
        assert_eq!(of("1-3"), None);
    }

    #[test]
    fn a_group_narrows() {
        let group = tempfile::tempdir().unwrap();
        assert_eq!(of_group(group.path()), None);
        for (name, text) in
            [("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", "anon 1\ninactive_file 50\n")]
        {
            fs::write(group.path().join(name), text).unwrap();
        }
        assert_eq!(of_group(group.path()), Some(Memory { total: 1000, available: 150 }));
        fs::write(group.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(of_group(group.path()), None);
    }
}
