//! Mainstay: a PJRT plugin that outlives the hardware under it.
//!
//! A framework loads this library as its plugin. In its process, in the order a call travels:
//!
//! 1. [`plugin`]: the C entry points (`GetPjrtApi` and what hangs off it), one file per PJRT object;
//! 2. [`snapshot`]: copies of sets of arrays that outlive the slices they were on;
//! 3. [`runtime`]: slices, buffers, events, launches, the threads that listen;
//! 4. [`slice`]: the state machine of a slice, without input, output or clock.
//!
//! In the process of each slice, and in the compiler's: [`worker`], which drives the inner plugin. Between the two:
//! [`wire`], with messages, rings and the arena in shared memory, and [`program`], with compile options, compiled
//! programs and how one that spans slices is cut. [`cli`] is the `mainstay` executable's own commands.
//!
//! [`abi`] lies under all of them: the C interface as Rust sees it. [`config`] is read once.

pub mod abi;
pub mod cli;
pub mod config;
mod logging;
pub mod plugin;
pub mod program;
pub mod runtime;
pub mod slice;
pub mod snapshot;
mod sync;
pub mod wire;
pub mod worker;
