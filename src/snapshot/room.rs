//! Memory for a snapshot: large values get blocks of their own, small ones lie together in few.

use std::sync::Arc;

use crate::abi::Status;
use crate::runtime::client::Client;
use crate::wire::arena::{ALIGNMENT, Block};

/// Values of fewer bytes lie together.
const SMALL: u64 = 256 << 10;
/// Blocks of small values have about so many bytes.
const SHARED: u64 = 8 << 20;

/// Blocks for values of so many bytes each, in their order.
///
/// # Errors
/// RESOURCE_EXHAUSTED where the arena has no room.
pub fn make(client: &Client, sizes: &[u64]) -> Result<Vec<Arc<Block>>, Status> {
    let mut blocks = Vec::with_capacity(sizes.len());
    let mut rest = sizes;
    while let Some(&first) = rest.first() {
        if first >= SMALL {
            blocks.push(Arc::new(client.allocate(first)?));
            rest = &rest[1..];
            continue;
        }
        let mut end = 0;
        let offsets: Vec<u64> = rest
            .iter()
            .take_while(|size| **size < SMALL)
            .map_while(|size| {
                let offset = end;
                end += size.next_multiple_of(ALIGNMENT);
                (offset < SHARED).then_some(offset)
            })
            .collect();
        let whole = Arc::new(client.allocate(end)?);
        for (&offset, &size) in offsets.iter().zip(rest) {
            let part = Block::part(&whole, offset, size);
            blocks.push(Arc::new(part.ok_or_else(|| Status::invalid("a value does not fit into its own room"))?));
        }
        rest = &rest[offsets.len()..];
    }
    Ok(blocks)
}
