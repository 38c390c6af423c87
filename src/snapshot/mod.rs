//! Snapshots of device memory in the arena.
