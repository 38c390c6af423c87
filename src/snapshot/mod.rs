//! Snapshots: consistent copies of chosen buffers in the arena, which outlive the workers that had them.
//!
//! 1. The values of a snapshot are those at the call of [`Store::take`], whatever is dispatched afterwards.
//! 2. A snapshot is whole or absent: one that a loss cut short is never among its store's, and is never restored from.
//! 3. What a store has stays until a newer whole snapshot takes its place, or until it is dropped.
//! 4. Nothing writes to a value of a snapshot, so that it can be lent to any number of readers.
//!
//! Of arrays this knows element types and rectangular parts; what they mean (a tree, names, shardings) is the caller's,
//! who keeps it in a snapshot's metadata.
//!
//! Lock order: a store's `committing`, its `ring`, a snapshot's `state`. The latter two are not held while memory is freed
//! or copied.

mod contents;
mod file;
mod helpers;
mod local;
pub mod region;
mod restore;
mod room;
#[allow(clippy::module_inception, reason = "it holds the one type that the module is about")]
mod snapshot;
mod store;
#[cfg(test)]
mod tests;

pub use contents::{ArrayInfo, Contents, Numbers, Shard};
pub use file::{Imported, Watch};
pub use restore::{Part, supply};
pub use snapshot::{Phase, Progress, Snapshot, Value};
pub use store::{Request, Store};
