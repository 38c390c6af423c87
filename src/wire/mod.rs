//! Moving messages and bulk data between client and worker.
//!
//! [`message`] is what they say, [`connection`] moves it over [`ring`]s, [`arena`] holds the bulk data, [`copy`]
//! brings host arrays there, [`stream`] copies much at once, [`shm`] maps what both share, [`numa`] says on which nodes it
//! lies, and [`machine`] knows how much memory there is.

pub mod arena;
pub mod connection;
pub mod copy;
pub mod ids;
pub mod machine;
pub mod message;
pub mod numa;
pub mod ring;
pub mod shm;
pub mod stream;
