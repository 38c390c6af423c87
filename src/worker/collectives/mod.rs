//! Collectives of programs that span slices, run by the workers among themselves.
//!
//! The rewritten program ([`crate::program::spanning`]) calls [`ffi`]'s handlers on each device. A handler never
//! blocks: it brings its rank to a [`meeting`] and leaves a future; the meeting's last event completes it.
//!
//! # Why it never comes to a stop
//! 1. *No thread waits for a meeting.* A device that arrives goes away again, so XLA's threads are never used up,
//!    whatever the order in which devices come to independent collectives.
//! 2. *Messages are always taken.* The listening thread runs no program and holds no lock while it sleeps; what it
//!    takes it puts in place, or, if the ranks it is for have not arrived, into memory of its own. Only small
//!    collectives send before they are asked, so that memory is bounded by what is small times what is in flight.
//! 3. *So blocks are always released.* Whoever takes a message needs no block of his own to be done with it: streams
//!    end with their receiver, and a chain's chunk travels in one block, in which each worker adds its ranks. Hence
//!    there are no cycles of workers who wait for each other's room, and whoever finds no room gets it.
//! 4. *So what is sent arrives, and a meeting whose ranks have all come is completed.* That they come is the program's
//!    own order: every device runs the same program, whose collectives depend on each other without cycles.
//! 5. *Unless one dies.* Then its client says so ([`Exchange::fail_slice`], [`Exchange::fail`]), and all meetings of the
//!    launch end with that status, present and future ones. Nothing else ends a meeting that waits: no timeouts here,
//!    since a slow peer is the client's to judge.
//!
//! # What a death leaves behind
//! Blocks that the dead worker was to release, which their owner takes back when the launch is over everywhere
//! ([`Exchange::over`]); nothing else. A successor is told apart by its incarnation, in every message, and a block
//! used anew by its tag, which is looked at again after the block has been read.

pub mod exchange;
pub mod ffi;
pub mod meeting;
pub mod plan;
pub mod shared;
pub mod transport;

mod pool;
mod ragged;
mod reduce;

pub use exchange::{Buffer, Call, Exchange, Program};
pub use shared::{Shared, create_region};
pub use transport::MAX_SLOTS;

#[cfg(test)]
mod tests;
