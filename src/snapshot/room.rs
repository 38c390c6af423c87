//! Memory for a snapshot: large values get blocks of their own, small ones lie together in few; and all of them behind one
//! another, so that snapshot after snapshot fits where an earlier one was.

use crate::abi::Status;
use crate::runtime::client::Client;
use crate::wire::arena::{ALIGNMENT, Block, PAGE_ALIGNED_FROM};

/// Values of fewer bytes lie together.
const SMALL: u64 = 256 << 10;
/// Blocks of small values have about so many bytes.
const SHARED: u64 = 8 << 20;

/// A block, and the values in it: where each begins.
struct Whole {
    len: u64,
    values: Vec<u64>,
}

/// Blocks for values of so many bytes each, in their order.
///
/// # Errors
/// RESOURCE_EXHAUSTED where the arena has no room.
pub fn make(client: &Client, sizes: &[u64]) -> Result<Vec<Block>, Status> {
    let wholes = wholes(sizes);
    let lens =
        |large: bool| wholes.iter().map(|whole| whole.len).filter(move |len| (*len >= PAGE_ALIGNED_FROM) == large);
    let mut large = client.allocate_row(&lens(true).collect::<Vec<_>>())?.into_iter();
    let few = lens(false).map(|len| client.allocate(len)).collect::<Result<Vec<_>, _>>()?;
    let mut few = few.into_iter();
    let mut blocks = Vec::with_capacity(sizes.len());
    for Whole { len, values } in &wholes {
        let whole = if *len >= PAGE_ALIGNED_FROM { large.next() } else { few.next() };
        let whole = whole.ok_or_else(no_room)?;
        for &offset in values {
            blocks.push(whole.part(offset, sizes[blocks.len()]).ok_or_else(no_room)?);
        }
    }
    Ok(blocks)
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
