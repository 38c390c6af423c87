//! Programs: compile options, compiled artifacts, the planning of programs that span slices.

pub mod artifact;
pub mod options;
pub mod proto;
pub mod signature;
pub mod spanning;
