//! The worker's side of the arena: a mapping, and extents checked against it.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use crate::abi::{Code, Status};
use crate::wire::message::Extent;
use crate::wire::shm::Mapping;

/// The arena as a worker sees it: memory at the extents that commands name.
#[derive(Debug)]
pub struct ArenaView {
    mapping: Mapping,
}

impl ArenaView {
    /// Maps the arena whose descriptor the worker inherited.
    ///
    /// # Errors
    /// A descriptor that is no arena, or the kernel's refusal to map it.
    pub fn new(fd: impl AsFd) -> std::io::Result<Self> {
        let mapping = Mapping::new(fd.as_fd())?;
        mapping.prefer_huge_pages();
        Ok(Self { mapping })
    }

    /// The first byte of an extent; good for its length while the view lives.
    ///
    /// The worker may read or write there between the command that names the extent and the report that gives it
    /// back or says that it is done, and only then.
    ///
    /// # Errors
    /// OUT_OF_RANGE, where the extent is not inside the arena.
    pub fn at(&self, extent: Extent) -> Result<NonNull<u8>, Status> {
        self.mapping.at(extent.offset, extent.len).ok_or_else(|| {
            let Extent { offset, len } = extent;
            let message = format!("{len} bytes at {offset} are not in the arena of {} bytes", self.mapping.len());
            Status::new(Code::OutOfRange, message)
        })
    }

    /// Where in the arena an address of this process is, in bytes from its start.
    pub fn offset_of(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.mapping.address())?;
        (offset < self.mapping.len()).then_some(offset as u64)
    }

    /// Makes the pages of a committed stretch present in this process, so that using them costs no page faults.
    pub fn populate(&self, extent: Extent) {
        self.mapping.populate(extent.offset, extent.len);
    }
}
