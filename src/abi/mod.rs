//! The PJRT C interface as Rust sees it: bindings, `struct_size` discipline, versions, status codes. The only place that
//! knows layouts.

mod args;
pub mod element;
mod inner;
mod status;
mod versions;

pub use args::{StructSize, new_args, with_args, with_struct};
pub use inner::{Extension, InnerApi};
pub use status::{Code, Status, harmless};
pub use versions::{Call, OLDEST_MINOR, Slot};

/// The C declarations of `include/`, as bindgen reads them: raw structs, function types and constants.
///
/// Enumerations are plain `u32` with constants: a plugin or a caller may send values that this version does not know.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all,
    reason = "the names are the interface's own, the code is bindgen's"
)]
pub mod sys {
    include!(concat!(env!("OUT_DIR"), "/abi_bindings.rs"));
}
