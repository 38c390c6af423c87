//! The worker: the process that hosts one slice's inner client and runs what the client's process asks for.

pub mod inner;
mod describe;
mod table;
