//! Where the value of a buffer in host memory is: in a block of the arena, once it has come.

use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;
use crate::wire::arena::Block;

/// The place of a value that may be still to come. The framework may let go of it before those who wait have it.
#[derive(Default)]
pub struct HostSlot(Mutex<State>);

#[derive(Default)]
struct State {
    block: Option<Block>,
    /// How many wait for the block, or have been told of it and are about to fetch it.
    waiting: usize,
    /// Whether the framework has let go.
    released: bool,
}

impl HostSlot {
    /// A place that has its value.
    pub fn filled(block: Block) -> Self {
        Self(Mutex::new(State { block: Some(block), ..State::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics while it holds the lock.
        lock(&self.0)
    }

    /// The value if it is there; else the caller is counted as waiting, and must [collect](Self::collect) it.
    pub fn get_or_wait(&self) -> Option<Block> {
        let mut state = self.lock();
        if state.block.is_none() {
            state.waiting += 1;
        }
        state.block.clone()
    }

    /// The value for somebody who waited until it came; `None` where it did not come.
    pub fn collect(&self) -> Option<Block> {
        let mut state = self.lock();
        state.waiting -= 1;
        if state.released && state.waiting == 0 { state.block.take() } else { state.block.clone() }
    }

    /// Gives it its value, unless nobody wants it any more.
    pub fn fill(&self, block: Block) {
        let mut state = self.lock();
        if !state.released || state.waiting > 0 {
            state.block = Some(block);
        }
    }

    /// The framework lets go: the value is kept for those who wait, and for nobody else.
    pub fn release(&self) {
        let mut state = self.lock();
        state.released = true;
        let unwanted = if state.waiting == 0 { state.block.take() } else { None };
        drop(state);
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::arena::{Arena, ArenaOptions};

    fn block() -> (Arc<Arena>, Block) {
        let arena = Arena::new(ArenaOptions::new(1 << 20)).unwrap();
        let block = arena.allocate(64).unwrap();
        (arena, block)
    }

    #[test]
    fn who_waits_gets_the_value_though_it_is_released_first() {
        let (arena, block) = block();
        let slot = HostSlot::default();
        assert!(slot.get_or_wait().is_none());
        assert!(slot.get_or_wait().is_none());
        slot.fill(block);
        slot.release();
        assert!(slot.collect().is_some());
        assert_eq!(arena.stats().blocks, 1);
        drop(slot.collect());
        assert_eq!(arena.stats().blocks, 0);
    }

    #[test]
    fn a_value_that_nobody_waits_for_is_freed() {
        let (arena, block) = block();
        let slot = HostSlot::default();
        slot.release();
        slot.fill(block);
        assert_eq!(arena.stats().blocks, 0);
        let filled = HostSlot::filled(arena.allocate(64).unwrap());
        filled.release();
        assert_eq!(arena.stats().blocks, 0);
    }
}
