//! Memory for a snapshot: large values get blocks of their own, small ones lie together in few; and all of them behind one
//! another, so that snapshot after snapshot fits where an earlier one was.

use crate::abi::Status;
use crate::runtime::client::Client;
use crate::wire::arena::{ALIGNMENT, Block, Commit, PAGE_ALIGNED_FROM};

/// Values of fewer bytes lie together.
const SMALL: u64 = 256 << 10;
/// Blocks of small values have about so many bytes.
const SHARED: u64 = 8 << 20;

/// A block, and the values in it: where each begins.
struct Whole {
    len: u64,
    values: Vec<u64>,
}

/// Blocks, and where in them each value is to be: which block, from where on, how many bytes.
#[derive(Default)]
pub struct Room {
    blocks: Vec<Block>,
    places: Vec<(u32, u64, u64)>,
}

impl Room {
    /// For values of so many bytes each, in their order; whoever writes them commits large blocks, if that is for later.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where the arena has no room.
    pub fn new(client: &Client, sizes: &[u64], commit: Commit) -> Result<Self, Status> {
        let wholes = wholes(sizes);
        let is_large = |whole: &&Whole| whole.len >= PAGE_ALIGNED_FROM;
        let lens: Vec<u64> = wholes.iter().filter(is_large).map(|whole| whole.len).collect();
        let mut large = client.allocate_row(&lens, commit)?.into_iter();
        let mut room = Self { blocks: Vec::with_capacity(wholes.len()), places: Vec::with_capacity(sizes.len()) };
        for (number, whole) in wholes.iter().enumerate() {
            let block = if is_large(&whole) { large.next() } else { None };
            room.blocks.push(block.map_or_else(|| client.allocate(whole.len), Ok)?);
            let first = room.places.len();
            let places = whole.values.iter().zip(&sizes[first..]);
            room.places.extend(places.map(|(&offset, &len)| (number as u32, offset, len)));
        }
        Ok(room)
    }

    /// That of the value with this number, which is to be called for once.
    pub fn of(&self, number: usize) -> Block {
        let (block, offset, len) = self.places[number];
        self.blocks[block as usize].part(offset, len).expect("a value lies in the block that was made for it")
    }
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
