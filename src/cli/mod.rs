//! The subcommands of the `mainstay` executable that people use.

pub mod fault;
pub mod status;
