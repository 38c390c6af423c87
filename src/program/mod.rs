//! Programs: compile options, executables, the planning of programs that span slices.

#[allow(missing_docs, reason = "the fields are XLA's")]
pub mod proto;
pub mod signature;
pub mod spanning;
