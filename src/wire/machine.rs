//! How much memory this process may have: the machine's, or less where its control group says so.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// What could be had now without pushing others out.
    pub available: u64,
}

/// The memory of the machine, narrowed by every control group around this process. `None` where the kernel tells
/// nothing.
pub fn memory() -> Option<Memory> {
    let machine = from_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(control_groups().into_iter().filter_map(|group| of_group(&group)).fold(machine, |all, group| Memory {
        total: all.total.min(group.total),
        available: all.available.min(group.available),
    }))
}

fn from_meminfo(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { total: field("MemTotal:")?, available: field("MemAvailable:")? })
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
