//! A real worker process with a real inner plugin, driven through the wire as the client would.

mod buffers;
mod compiler;
mod harness;
mod launches;
mod process;
mod programs;
