//! The client side: slices and their workers, buffers, events, launches.
//!
//! Who holds what: a [`client::Client`] holds its [`slice::Slice`]s; a slice has a listener thread and the current
//! [`session::Session`], the life of one worker; buffers hold the session that has their value.
//!
//! Lock order: none of the locks here is taken while another one is held, with these exceptions, outer lock first:
//! - a program's `loaded`, a buffer's `view`, the client's `spanning_order` or the spares' `state`, then a session's `gate`,
//!   `sender`, `pending` or `heap`; a session's `gate`, then its `sender`;
//! - a buffer's `view`, then the heap's list of views;
//! - the list of compilers, then a compiler's `state`.
//!
//! Callbacks run outside every lock of these.

pub mod buffer;
pub mod callbacks;
pub mod client;
pub mod compilation;
pub mod compiler;
pub mod copier;
pub mod device;
pub mod event;
pub mod fault;
pub mod fetch;
pub mod gate;
pub mod host_array;
pub mod host_slot;
pub mod launch;
mod life;
pub mod listen;
pub mod notice;
pub mod process;
pub mod program;
pub mod pulse;
pub mod session;
pub mod slice;
pub mod spanning;
pub mod spares;
pub mod status;
pub mod transfer;
pub mod view;
