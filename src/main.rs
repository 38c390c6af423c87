//! The `mainstay` executable.

fn main() {}
