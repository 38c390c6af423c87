//! Moving messages and bulk data between client and worker.
//!
//! [`message`] is what they say, [`connection`] moves it over [`ring`]s, [`shm`] maps what both share.

pub mod connection;
pub mod message;
pub mod ring;
pub mod shm;
