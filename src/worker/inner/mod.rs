//! The driver of an inner plugin: safe, owning handles over the PJRT C interface, for the worker's process only (and for
//! `benches/engine`, which drives Mainstay itself with it).
//!
//! - [`Plugin`] is the loaded library with its table of functions; it is never unloaded. A function that the plugin
//!   is too old for, or leaves out, is an `UNIMPLEMENTED` that names it.
//! - [`Client`], [`Buffer`], [`Event`], [`LoadedExecutable`], [`Executable`] and [`Topology`] each own one handle and
//!   destroy it when dropped; what hangs on a client keeps the client alive.
//! - [`Device`], [`Memory`] and [`DeviceDescription`] are borrowed from their client or topology.
//!
//! Every error of the plugin becomes a [`crate::abi::Status`] with its code, words and payloads as they are. Handles
//! may be used from any thread: the interface promises it.

mod buffer;
mod call;
mod client;
mod device;
mod event;
mod executable;
mod ffi;
mod layout;
mod named_values;
mod plugin;
mod topology;
mod transform;

pub use buffer::Buffer;
pub use client::{Client, HostData, HostSemantics};
pub use device::{Device, DeviceDescription, Memory};
pub use event::Event;
pub use executable::{Executable, Launched, LoadedExecutable, Program, RunArguments};
pub use ffi::Handler;
pub use layout::{LayoutText, major_to_minor};
pub use plugin::Plugin;
pub use topology::Topology;
