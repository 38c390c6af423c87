//! XLA's messages, as far as Mainstay reads or rewrites them: generated from the `.proto` files beside this one.
//!
//! Fields that the files don't declare survive parsing and writing as unknown fields.

include!(concat!(env!("OUT_DIR"), "/proto/mod.rs"));
