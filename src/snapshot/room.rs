//! Memory for a snapshot: large values get blocks of their own, small ones lie together in few; and all of them behind one
//! another, so that snapshot after snapshot fits where an earlier one was.

use std::sync::Arc;

use crate::abi::Status;
use crate::runtime::client::Client;
use crate::wire::arena::{ALIGNMENT, Block, PAGE_ALIGNED_FROM};

/// Values of fewer bytes lie together.
const SMALL: u64 = 256 << 10;
/// Blocks of small values have about so many bytes.
const SHARED: u64 = 8 << 20;

/// Where a value is stored: a block, or its part of one that small values share.
#[derive(Clone)]
pub struct Stored {
    block: Arc<Block>,
    offset: u64,
    len: u64,
}

impl Stored {
    /// A value that fills its block.
    pub fn whole(block: Arc<Block>) -> Self {
        let len = block.len() as u64;
        Self { block, offset: 0, len }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The first byte; good for [`Stored::len`] bytes while this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: within the block, or one past its end: `make` has seen to that.
        unsafe { self.block.as_ptr().add(self.offset as usize) }
    }

    /// The bytes.
    ///
    /// # Safety
    /// Nobody, in whichever process, writes to them while the result lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: within the block, as above; no writers, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len as usize) }
    }

    /// The bytes as a block, whose memory stays as long as that of the blocks it is a part of.
    pub fn block(&self) -> Arc<Block> {
        if self.offset == 0 && self.len == self.block.len() as u64 {
            return self.block.clone();
        }
        Block::part(&self.block, self.offset, self.len).map_or_else(|| self.block.clone(), Arc::new)
    }
}

/// A block, and the values in it: where each begins.
struct Whole {
    len: u64,
    values: Vec<u64>,
}

/// Room for values of so many bytes each, in their order.
///
/// # Errors
/// RESOURCE_EXHAUSTED where the arena has no room.
pub fn make(client: &Client, sizes: &[u64]) -> Result<Vec<Stored>, Status> {
    let wholes = wholes(sizes);
    let lens =
        |large: bool| wholes.iter().map(|whole| whole.len).filter(move |len| (*len >= PAGE_ALIGNED_FROM) == large);
    let mut large = client.allocate_row(&lens(true).collect::<Vec<_>>())?.into_iter();
    let few = lens(false).map(|len| client.allocate(len)).collect::<Result<Vec<_>, _>>()?;
    let mut few = few.into_iter();
    let mut rooms = Vec::with_capacity(sizes.len());
    for Whole { len, values } in &wholes {
        let block = if *len >= PAGE_ALIGNED_FROM { large.next() } else { few.next() };
        let block = Arc::new(block.ok_or_else(no_room)?);
        for &offset in values {
            let len = sizes[rooms.len()];
            assert!(offset + len <= block.len() as u64, "a value lies within its block");
            rooms.push(Stored { block: block.clone(), offset, len });
        }
    }
    Ok(rooms)
}

fn wholes(sizes: &[u64]) -> Vec<Whole> {
    let mut wholes: Vec<Whole> = Vec::new();
    let mut is_open = false;
    for &size in sizes {
        if size >= SMALL {
            wholes.push(Whole { len: size, values: vec![0] });
            is_open = false;
            continue;
        }
        match wholes.last_mut().filter(|whole| is_open && whole.len < SHARED) {
            Some(whole) => {
                whole.values.push(whole.len);
                whole.len += size.next_multiple_of(ALIGNMENT);
            }
            None => wholes.push(Whole { len: size.next_multiple_of(ALIGNMENT), values: vec![0] }),
        }
        is_open = true;
    }
    wholes
}

fn no_room() -> Status {
    Status::invalid("a bug in Mainstay: a value does not fit into its own room")
}
