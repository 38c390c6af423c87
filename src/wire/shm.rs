//! Shared memory: a sealed memfd and a mapping of it. The only place that maps memory.
//!
//! The client creates the memfd and seals its size, so that no process can make an access beyond the end (and with
//! it a SIGBUS) possible later. The worker maps the descriptor that it inherited, after checking size and seals.
//! What the other process writes may change at any moment: read it through atomics, or copy it out first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

use crate::sync::lock;

/// The kernel's page size on every machine Mainstay runs on is a divisor of this; offsets into a mapping that are
/// handed to the kernel are multiples of it.
pub const PAGE: u64 = 4096;
/// A huge page's size: mappings begin at a multiple of it, and so do the huge pages of a memfd.
pub const HUGE_PAGE: u64 = 2 << 20;
/// The kernel is asked for huge pages of so many bytes at a time.
const AT_ONCE: u64 = 16 * HUGE_PAGE;
/// And not for so long after it refused.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// When it did last.
static REFUSED: Mutex<Option<Instant>> = Mutex::new(None);

/// Creates a memfd of `len` bytes, sparse, with its size sealed. `name` shows up in `/proc/<pid>/maps`.
///
/// # Errors
/// The kernel's, when it has no descriptors or memory to give.
pub fn create(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Gives a stretch of a memfd memory of its own, so that touching it can't fail for want of memory.
///
/// Costs no copy and keeps what is there. `offset` and `len` are multiples of [`PAGE`].
///
/// # Errors
/// `ENOSPC` or `ENOMEM` where the machine or its control group has no more.
pub fn commit(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), offset, len))?)
}

/// Gives the memory of a stretch back to the machine; it reads as zeros afterwards and is no longer committed.
///
/// # Errors
/// The kernel's; nothing is lost but the memory stays used.
pub fn release(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| rustix::fs::fallocate(&fd, flags, offset, len))?)
}

/// The whole of a memfd, mapped to read and write, until dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range, owned by this value alone; every access through it is either atomic or
// through a raw pointer whose user answers for the absence of conflicting accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared references give out nothing but atomics, copies and raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole of `fd`, which [`create`] made in this process or in the one that passed it on.
    ///
    /// # Errors
    /// A descriptor that isn't a memfd with a sealed, non-zero size, or the kernel's refusal to map it.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("shared memory whose size is not sealed"));
        }
        let size = rustix::fs::fstat(fd)?.st_size;
        let len = usize::try_from(size).ok().filter(|len| *len > 0 && *len <= isize::MAX as usize);
        let len = len.ok_or_else(|| io::Error::other(format!("shared memory of {size} bytes")))?;
        Ok(Self { start: map(fd, len)?, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it begins in this process.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of `len` bytes at `offset`, or `None` where they aren't all inside.
    ///
    /// The address is good for as long as the mapping lives. Whoever uses it answers for conflicting accesses.
    pub fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: `offset` is at most `len`, so the result stays in (or one past) the one mapped object.
        Some(unsafe { self.start.add(offset as usize) })
    }

    /// A 64-bit word that both processes share.
    ///
    /// # Panics
    /// If `offset` is unaligned or outside: offsets of words are constants of ours, never a peer's.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let at = self.at(offset as u64, 8).expect("a word inside the mapping");
        // SAFETY: mapped, aligned (mappings start on a page), living as long as `self`; only accessed atomically.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// A 32-bit flag that both processes share.
    ///
    /// # Panics
    /// As [`Mapping::word`].
    pub fn flag(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        let at = self.at(offset as u64, 4).expect("a flag inside the mapping");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they would not fit: the caller has checked.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset as u64, bytes.len() as u64).expect("room inside the mapping");
        // SAFETY: `at` gave `bytes.len()` mapped bytes; private memory and a mapping of ours never overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) }
    }

    /// Appends `len` bytes from `offset` to `out`: a copy, since the other process may change the original.
    ///
    /// # Panics
    /// If they aren't all inside: the caller has checked.
    pub fn read_onto(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let at = self.at(offset as u64, len as u64).expect("bytes inside the mapping");
        out.reserve(len);
        // SAFETY: `len` bytes are mapped at `at`, and `reserve` made that much room after the vector's end.
        unsafe {
            std::ptr::copy_nonoverlapping(at.as_ptr(), out.as_mut_ptr().add(out.len()), len);
            out.set_len(out.len() + len);
        }
    }

    /// Gives a stretch of this mapping's memfd memory of its own, as [`commit`] does, and makes it present in this process: huge
    /// pages wherever whole ones fit and the kernel has them. They are there six times as fast, for all who map them.
    ///
    /// # Errors
    /// As [`commit`].
    pub fn commit(&self, fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
        let (start, end) = (offset.next_multiple_of(HUGE_PAGE), (offset + len) / HUGE_PAGE * HUGE_PAGE);
        for start in (start..end).step_by(AT_ONCE as usize) {
            // Where one isn't to be had, neither is the next, more often than not; and asking takes long then.
            let refused = *lock(&REFUSED);
            if refused.is_some_and(|when| when.elapsed() < ASK_AGAIN) {
                break;
            }
            match self.commit_huge_pages(start, AT_ONCE.min(end - start)) {
                // Some of them, whose page was in somebody's hands at the moment.
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(error) => {
                    tracing::debug!(%error, "the kernel has no huge pages for shared memory");
                    *lock(&REFUSED) = Some(Instant::now());
                }
            }
        }
        match self.advise(offset, len, Advice::LinuxPopulateWrite) {
            // A kernel before 5.14.
            Err(Errno::INVAL) => commit(fd, offset, len),
            // What access would be a SIGBUS for.
            Err(Errno::FAULT) => Err(Errno::NOMEM.into()),
            result => Ok(result?),
        }
    }

    /// Has huge pages in a stretch of whole ones, with what is there.
    fn commit_huge_pages(&self, start: u64, len: u64) -> rustix::io::Result<()> {
        // The kernel puts pages that exist together, one at least, whatever it was told to do about shared memory of its own
        // accord (`shmem_enabled`; Linux 6.1). It takes memory of that page's node. So that huge pages take turns where nodes do
        // for pages, each is begun with a page further in than the one before: 521 pages, a prime, lie between them.
        for start in (start..start + len).step_by(HUGE_PAGE as usize) {
            let page = start / HUGE_PAGE * 9 * PAGE % HUGE_PAGE;
            self.advise(start + page, PAGE, Advice::LinuxPopulateWrite)?;
        }
        let at = self.at(start, len).ok_or(Errno::NOMEM)?;
        // SAFETY: the range is mapped by us; neither contents nor protection change.
        retry_on_intr(|| match unsafe { libc::madvise(at.as_ptr().cast(), len as usize, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        })
    }

    /// Makes the pages of a stretch that has memory present in this process now, rather than at the first access of each.
    /// Keeps their contents. Does nothing on kernels before 5.14, or where the stretch isn't inside.
    pub fn populate(&self, offset: u64, len: u64) {
        // As if to read: the kernel maps pages that exist by the dozen then, and to be written to just as well. A refusal
        // costs speed only.
        let _ = self.advise(offset, len, Advice::LinuxPopulateRead);
    }

    /// Has the pages of a stretch stay in memory, never to be written to disk, from when they become present on. Takes no
    /// time for a stretch that has none. `false` where the kernel does not allow it, mostly for the process's limit
    /// (`ulimit -l`).
    pub fn lock(&self, offset: u64, len: u64) -> bool {
        let Some(at) = self.at(offset, len) else { return false };
        // SAFETY: mapped by us; locking changes neither contents nor protection.
        unsafe { rustix::mm::mlock_with(at.as_ptr().cast(), len as usize, MlockFlags::ONFAULT) }.is_ok()
    }

    /// Asks for huge pages also where memory is used without being [committed](Self::commit); the kernel may decline.
    pub fn prefer_huge_pages(&self) {
        let _ = self.advise(0, self.len as u64, Advice::LinuxHugepage);
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> rustix::io::Result<()> {
        let start = offset - offset % PAGE;
        let Some(at) = self.at(start, len + (offset - start)) else { return Err(Errno::NOMEM) };
        let len = (len + (offset - start)) as usize;
        // SAFETY: the range is mapped by us, and the advices used here change neither contents nor protection.
        retry_on_intr(|| unsafe { rustix::mm::madvise(at.as_ptr().cast(), len, advice) })
    }
}

/// Maps a memfd where a huge page may begin.
fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    const HUGE: usize = HUGE_PAGE as usize;
    let reserved = len.checked_next_multiple_of(HUGE).and_then(|len| len.checked_add(HUGE));
    let reserved = reserved.ok_or(Errno::NOMEM)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is asked for, so the kernel reserves one where nothing else is; nothing can be accessed there.
    let place = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            reserved,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    let before = place.addr().next_multiple_of(HUGE) - place.addr();
    // SAFETY: all of it is inside what was just reserved, which nobody else knows: the mapping takes the place of a part,
    // and the rest goes. On failure all does.
    unsafe {
        let start = place.byte_add(before);
        if let Err(error) = rustix::mm::mmap(start, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0) {
            let _ = rustix::mm::munmap(place, reserved);
            return Err(error.into());
        }
        let end = len.next_multiple_of(rustix::param::page_size());
        for (rest, len) in [(place, before), (start.byte_add(end), reserved - before - end)] {
            if len > 0 {
                // A refusal costs some addresses.
                let _ = rustix::mm::munmap(rest, len);
            }
        }
        NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone, and whoever got an address from `at` promised not to outlive us.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
impl Mapping {
    /// Bytes that lie in huge pages of this process, as the kernel tells.
    pub fn in_huge_pages(&self) -> u64 {
        let own = self.address()..self.address() + self.len();
        let (mut is_own, mut bytes) = (false, 0);
        for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if let Some((Ok(start), _)) =
                line.split_once('-').map(|(start, rest)| (usize::from_str_radix(start, 16), rest))
            {
                is_own = own.contains(&start);
            } else if let Some(size) = line.strip_prefix("ShmemPmdMapped:").filter(|_| is_own) {
                bytes += size.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024;
            }
        }
        bytes
    }
}

/// Whether the kernel has huge pages for shared memory: not one before 6.1, one that is told to deny them, or one whose memory
/// is in pieces.
#[cfg(test)]
pub fn has_huge_pages() -> bool {
    let fd = create("mainstay-test", HUGE_PAGE).unwrap();
    Mapping::new(fd.as_fd()).unwrap().commit_huge_pages(0, HUGE_PAGE).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_see_the_same_bytes() {
        let fd = create("mainstay-test", 2 * PAGE).unwrap();
        commit(&fd, 0, 2 * PAGE).unwrap();
        let (one, other) = (Mapping::new(fd.as_fd()).unwrap(), Mapping::new(fd.as_fd()).unwrap());
        one.write(4090, b"across a page");
        let mut seen = Vec::new();
        other.read_onto(4090, 13, &mut seen);
        assert_eq!(seen, b"across a page");
        release(&fd, PAGE, PAGE).unwrap();
        seen.clear();
        other.read_onto(4090, 13, &mut seen);
        assert_eq!(seen, b"across\0\0\0\0\0\0\0");
        other.populate(100, PAGE);
    }

    #[test]
    fn mappings_begin_where_huge_pages_do() {
        for len in [PAGE, HUGE_PAGE, 3 * HUGE_PAGE + 5 * PAGE] {
            let fd = create("mainstay-test", len).unwrap();
            let mapping = Mapping::new(fd.as_fd()).unwrap();
            assert_eq!((mapping.address() as u64 % HUGE_PAGE, mapping.len()), (0, len as usize));
            mapping.commit(&fd, 0, len).unwrap();
            assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512, len);
            mapping.write(len as usize - 4, b"last");
        }
    }

    #[test]
    fn what_is_committed_lies_in_huge_pages() {
        let fd = create("mainstay-test", 4 * HUGE_PAGE).unwrap();
        let mapping = Mapping::new(fd.as_fd()).unwrap();
        mapping.write(HUGE_PAGE as usize + 5, b"was there before");
        mapping.commit(&fd, HUGE_PAGE - PAGE, 2 * HUGE_PAGE + 2 * PAGE).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512, 2 * HUGE_PAGE + 2 * PAGE);
        assert_eq!(mapping.in_huge_pages(), if has_huge_pages() { 2 * HUGE_PAGE } else { 0 });
        let mut seen = Vec::new();
        mapping.read_onto(HUGE_PAGE as usize + 5, 16, &mut seen);
        assert_eq!(seen, b"was there before");
        // A part is given back as well.
        let before = rustix::fs::fstat(&fd).unwrap().st_blocks;
        release(&fd, HUGE_PAGE + PAGE, HUGE_PAGE / 2).unwrap();
        assert_eq!(before - rustix::fs::fstat(&fd).unwrap().st_blocks, (HUGE_PAGE / 2 / 512) as i64);
        seen.clear();
        mapping.read_onto(HUGE_PAGE as usize + 5, 16, &mut seen);
        assert_eq!(seen, b"was there before");
    }

    #[test]
    fn what_is_outside_is_refused() {
        let fd = create("mainstay-test", PAGE).unwrap();
        let mapping = Mapping::new(fd.as_fd()).unwrap();
        assert!(mapping.at(0, PAGE).is_some());
        assert!(mapping.at(PAGE, 0).is_some());
        assert!(mapping.at(1, PAGE).is_none());
        assert!(mapping.at(u64::MAX, 2).is_none());
    }

    #[test]
    fn a_descriptor_without_seals_is_refused() {
        let fd = rustix::fs::memfd_create("mainstay-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, PAGE).unwrap();
        assert!(Mapping::new(fd.as_fd()).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Mapping::new(file.as_fd()).is_err());
    }

    #[test]
    fn the_size_can_not_change() {
        let fd = create("mainstay-test", PAGE).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 2 * PAGE).is_err());
    }
}
