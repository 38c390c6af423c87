//! The PJRT C interface as Rust sees it: bindings, `struct_size` discipline, versions, status codes.

mod status;

pub use status::{Code, Status};
