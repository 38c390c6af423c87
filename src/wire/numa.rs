//! NUMA: which nodes have memory for this process, and on which of them memory that processes share is to lie.
//!
//! The pages of a memfd are allocated by the policy of the file, in whatever process and however they come to be
//! (`fallocate` included; a huge page goes where the page went that it was begun with), and `mbind` on a shared mapping sets
//! that policy. The one used here is interleaving, be it over one node: where the nodes are full, the kernel takes memory of
//! others. Bound to full nodes, it would kill a process.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::shm::Mapping;

/// More nodes than any kernel is built for.
const MOST_NODES: u32 = 1024;
/// Numbers of processors are below this too.
const MOST_NUMBERS: u32 = 1 << 16;
/// Longer lists are not read, in bytes: the kernel's have some hundred.
const LONGEST_LIST: usize = 4096;
const WORD: u32 = libc::c_ulong::BITS;
/// Where the kernel tells of nodes.
const NODES: &str = "sys/devices/system/node";
// Of `linux/mempolicy.h`; not in the libc crate.
const MPOL_F_NODE: libc::c_ulong = 1;
const MPOL_F_ADDR: libc::c_ulong = 2;
const NO_MASK: *mut libc::c_ulong = std::ptr::null_mut();

/// Nodes or processors by number, read and printed as the kernel writes such lists: `0-1,3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(BTreeSet<u32>);

impl Numbers {
    /// Reads a list, which may be empty; `None` where the text isn't one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = BTreeSet::new();
        let text = text.trim();
        if text.len() > LONGEST_LIST {
            return None;
        }
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last >= MOST_NUMBERS {
                return None;
            }
            numbers.extend(first..=last);
        }
        Some(Self(numbers))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `other` has all of them.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Each, rising.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    fn common(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// Where memory is to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Spread over the nodes on whose processors this process may run. Where that is one node, or the process has a
    /// memory policy of its own (`numactl`), as the kernel does it.
    Auto,
    /// Spread over these.
    Over(Numbers),
}

/// Nodes with memory that this process may use.
pub fn usable() -> Numbers {
    usable_under(Path::new("/"))
}

/// The nodes with memory that this process may use, where others have memory that it may not use.
pub fn restricted() -> Option<Numbers> {
    restricted_under(Path::new("/"))
}

/// Says where the pages of a mapping of shared memory will lie that are allocated from now on, and returns the nodes: none
/// where that is left to the kernel.
///
/// # Errors
/// The kernel's refusal of nodes that were asked for. Where it refuses what was found out, that is logged.
pub fn place(mapping: &Mapping, placement: &Placement) -> io::Result<Option<Numbers>> {
    place_under(Path::new("/"), mapping, placement)
}

/// The node on which the page at a mapped address lies, where that is none of `nodes` and the kernel tells.
pub fn elsewhere(address: usize, nodes: &Numbers) -> Option<u32> {
    let (mut node, flags): (libc::c_int, _) = (0, MPOL_F_NODE | MPOL_F_ADDR);
    // SAFETY: the kernel writes one integer to `node`; without a mask, its length is zero; it only looks at the address,
    // and refuses one that isn't mapped.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, NO_MASK, 0usize, address, flags) };
    u32::try_from(node).ok().filter(|node| result == 0 && !nodes.0.contains(node))
}

fn place_under(root: &Path, mapping: &Mapping, placement: &Placement) -> io::Result<Option<Numbers>> {
    let nodes = match placement {
        Placement::Over(nodes) => nodes.clone(),
        Placement::Auto => local_under(root),
    };
    let is_auto = *placement == Placement::Auto;
    if is_auto && (nodes.len() < 2 || has_policy()) {
        return Ok(None);
    }
    match interleave(mapping, &nodes) {
        Ok(()) => {
            tracing::debug!(%nodes, "host memory is spread over NUMA nodes");
            Ok(Some(nodes))
        }
        Err(error) if is_auto => {
            tracing::warn!(%nodes, %error, "the kernel refuses to spread host memory over NUMA nodes; it lies where it is first touched");
            Ok(None)
        }
        Err(error) => Err(io::Error::other(format!(
            "the kernel refuses to place it on NUMA nodes {nodes} (MAINSTAY_HOST_MEMORY_NODES): {error}"
        ))),
    }
}

/// Sets the policy of the file behind a mapping.
fn interleave(mapping: &Mapping, nodes: &Numbers) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; (MOST_NODES / WORD) as usize];
    for node in nodes.iter().filter(|node| *node < MOST_NODES) {
        mask[(node / WORD) as usize] |= 1 << (node % WORD);
    }
    // The kernel takes one bit less than it is told.
    let bits = libc::c_ulong::from(MOST_NODES + 1);
    let (start, len, mode) = (mapping.address(), mapping.len(), libc::MPOL_INTERLEAVE as libc::c_ulong);
    // SAFETY: the range is the mapping's own, the mask has as many bits as are announced and is only read; a policy changes
    // neither contents nor protection.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, mask.as_ptr(), bits, 0usize) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this thread was given a memory policy. Its children have it too.
fn has_policy() -> bool {
    let (mut mode, none) = (libc::MPOL_DEFAULT, 0usize);
    // SAFETY: the kernel writes one integer to `mode`; without a mask, its length is zero.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, NO_MASK, none, none, none) };
    result == 0 && mode != libc::MPOL_DEFAULT
}

fn usable_under(root: &Path) -> Numbers {
    match (nodes_with_memory(root), allowed(root, "Mems_allowed_list:")) {
        (Some(all), Some(allowed)) => all.common(&allowed),
        (all, allowed) => all.or(allowed).unwrap_or_else(|| Numbers([0].into())),
    }
}

fn restricted_under(root: &Path) -> Option<Numbers> {
    let (all, usable) = (nodes_with_memory(root)?, usable_under(root));
    (usable != all).then_some(usable)
}

/// Those of the usable nodes on whose processors this thread, and what it starts, may run: not the memory of
/// accelerators, nor what has no processors beside it.
fn local_under(root: &Path) -> Numbers {
    let usable = usable_under(root);
    let Some(allowed) = allowed(root, "Cpus_allowed_list:") else { return usable };
    let is_local = |node: &u32| {
        let processors = list(&root.join(format!("{NODES}/node{node}/cpulist")));
        processors.is_some_and(|processors| !processors.common(&allowed).is_empty())
    };
    Numbers(usable.iter().filter(is_local).collect())
}

/// All of the machine; `None` where the kernel knows no nodes.
fn nodes_with_memory(root: &Path) -> Option<Numbers> {
    list(&root.join(NODES).join("has_memory"))
}

/// What this thread may use.
fn allowed(root: &Path, field: &str) -> Option<Numbers> {
    let status = fs::read_to_string(root.join("proc/thread-self/status")).ok()?;
    Numbers::parse(status.lines().find_map(|line| line.strip_prefix(field))?)
}

fn list(file: &Path) -> Option<Numbers> {
    Numbers::parse(&fs::read_to_string(file).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::shm::{self, PAGE};

    fn numbers(list: &[u32]) -> Numbers {
        Numbers(list.iter().copied().collect())
    }

    /// A machine of two nodes with four processors each, and a third node without any.
    fn machine(memory: &str, processors: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/has_memory", "0-2\n");
        for (node, processors) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n"), (2, "\n")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), processors);
        }
        let status = format!("Name:\tx\nCpus_allowed_list:\t{processors}\nMems_allowed_list:\t{memory}\n");
        write("proc/thread-self/status", &status);
        root
    }

    fn mapping() -> (std::os::fd::OwnedFd, Mapping) {
        let fd = shm::create("mainstay-test", 64 * PAGE).unwrap();
        let mapping = Mapping::new(fd.as_fd()).unwrap();
        (fd, mapping)
    }

    /// Whether the kernel lets this process say where memory lies: in containers it often does not.
    fn may_place() -> bool {
        let refusal = interleave(&mapping().1, &numbers(&[0])).err().and_then(|error| error.raw_os_error());
        !matches!(refusal, Some(libc::EPERM | libc::ENOSYS))
    }

    /// The policy of the memory at an address, and the first of its nodes.
    fn policy_at(address: usize) -> (i32, libc::c_ulong) {
        let (mut mode, mut mask) = (-1, [0 as libc::c_ulong; (MOST_NODES / WORD) as usize]);
        let bits = libc::c_ulong::from(MOST_NODES + 1);
        // SAFETY: the kernel writes one integer and a mask of as many bits as it is told; it only looks at the address.
        let result = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), bits, address, MPOL_F_ADDR)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        (mode, mask[0])
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_are_printed(list in prop::collection::btree_set(0..200u32, 0..40)) {
            let list = Numbers(list);
            prop_assert_eq!(Numbers::parse(&list.to_string()), Some(list));
        }
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        for (text, list, printed) in [
            ("0\n", &[0][..], "0"),
            ("0-1,3", &[0, 1, 3], "0-1,3"),
            (" 3, 0 - 1,1\n", &[0, 1, 3], "0-1,3"),
            ("5-5,7,6", &[5, 6, 7], "5-7"),
            ("\n", &[], ""),
        ] {
            assert_eq!(Numbers::parse(text), Some(numbers(list)), "{text}");
            assert_eq!(numbers(list).to_string(), printed);
        }
        for text in [",", "0,", "1-0", "-1", "0-", "a", "0x1", "1.5", "0 1", "0-4294967295", "0--1"] {
            assert_eq!(Numbers::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_nodes_that_the_process_may_use_count() {
        let usable = |memory| usable_under(machine(memory, "0-7").path());
        assert_eq!(
            (usable("0-2"), usable("1"), usable("0-63")),
            (numbers(&[0, 1, 2]), numbers(&[1]), numbers(&[0, 1, 2]))
        );
        assert_eq!(restricted_under(machine("1", "0-7").path()), Some(numbers(&[1])));
        assert_eq!(restricted_under(machine("0-63", "0-7").path()), None);
        let silent = tempfile::tempdir().unwrap();
        assert_eq!((usable_under(silent.path()), restricted_under(silent.path())), (numbers(&[0]), None));
    }

    #[test]
    fn memory_goes_where_the_process_runs() {
        let local = |memory, processors| local_under(machine(memory, processors).path());
        assert_eq!(local("0-2", "0-7"), numbers(&[0, 1]));
        assert_eq!(local("0-2", "2,6-7"), numbers(&[1]));
        assert_eq!(local("0", "0-7"), numbers(&[0]));
    }

    #[test]
    fn a_process_at_one_node_leaves_it_to_the_kernel() {
        if !may_place() {
            return;
        }
        let (_fd, mapping) = mapping();
        for (memory, processors) in [("0", "0-7"), ("0-2", "0-1")] {
            let root = machine(memory, processors);
            assert_eq!(place_under(root.path(), &mapping, &Placement::Auto).unwrap(), None);
        }
        assert_eq!(policy_at(mapping.address()), (libc::MPOL_DEFAULT, 0));
    }

    /// On whatever machine this runs, node 0 is one of those that are found.
    #[test]
    fn a_process_at_several_nodes_is_spread_over_them() {
        if !may_place() {
            return;
        }
        let (fd, mapping) = mapping();
        let placed = place_under(machine("0-2", "0-7").path(), &mapping, &Placement::Auto).unwrap();
        assert_eq!(placed, Some(numbers(&[0, 1])));
        // The policy is the file's: another mapping has it too.
        let other = Mapping::new(fd.as_fd()).unwrap();
        let (mode, mask) = policy_at(other.address());
        assert_eq!((mode, mask & 1), (libc::MPOL_INTERLEAVE, 1));
    }

    #[test]
    fn what_is_committed_lies_where_it_was_to() {
        if !may_place() {
            return;
        }
        let hits = || {
            let counts = fs::read_to_string("/sys/devices/system/node/node0/numastat").unwrap();
            let count = counts.lines().find_map(|line| line.strip_prefix("interleave_hit ")).unwrap();
            count.trim().parse::<u64>().unwrap()
        };
        let (fd, mapping) = mapping();
        assert_eq!(place(&mapping, &Placement::Over(numbers(&[0]))).unwrap(), Some(numbers(&[0])));
        let before = hits();
        // On another thread: the policy isn't the thread's.
        std::thread::scope(|scope| scope.spawn(|| mapping.commit(&fd, 0, 64 * PAGE)).join().unwrap()).unwrap();
        assert!(hits() >= before + 64, "interleaved pages: {before} before, {} after", hits());
        let [zero, one] = [numbers(&[0]), numbers(&[1])];
        assert_eq!((elsewhere(mapping.address(), &zero), elsewhere(mapping.address(), &one)), (None, Some(0)));
        assert_eq!(elsewhere(0, &one), None);
    }

    /// Nobody has a node of that number.
    #[test]
    fn a_refusal_is_an_error_only_where_nodes_were_asked_for() {
        if !may_place() {
            return;
        }
        let (_fd, mapping) = mapping();
        let error = place(&mapping, &Placement::Over(numbers(&[MOST_NODES - 1]))).unwrap_err();
        assert!(error.to_string().starts_with("the kernel refuses to place it on NUMA nodes 1023 ("), "{error}");
        let root = machine("1022-1023", "0-7");
        fs::write(root.path().join(NODES).join("has_memory"), "1022-1023").unwrap();
        for node in [1022, 1023] {
            let folder = root.path().join(format!("{NODES}/node{node}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpulist"), "0").unwrap();
        }
        assert_eq!(place_under(root.path(), &mapping, &Placement::Auto).unwrap(), None);
        assert_eq!(policy_at(mapping.address()), (libc::MPOL_DEFAULT, 0));
    }
}
