//! Moving messages and bulk data between client and worker.

pub mod message;
