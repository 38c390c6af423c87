//! Mainstay: a PJRT plugin that outlives the hardware under it.
//!
//! A framework loads this library as its plugin. The modules, in the order a call travels:
//!
//! 1. [`plugin`]: the C entry points (`GetPjrtApi` and what hangs off it), one file per PJRT object;
//! 2. [`runtime`]: the client's side of everything: slices, buffers, events, launches, the threads that listen;
//! 3. [`program`]: compile options, executables, programs that span slices;
//! 4. [`slice`]: the state machine of a slice, without input, output or clock;
//! 5. [`wire`]: messages, rings and the arena in shared memory;
//! 6. [`worker`]: the other process: drives the inner plugin.
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
pub mod wire;
pub mod worker;
