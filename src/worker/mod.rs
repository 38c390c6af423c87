//! The worker: the process that hosts one slice's inner client and does what the client's process says.
//!
//! A command travels: [`process`] receives it, `session` parks it (`table`) or performs it (`transfer`, `launch`,
//! `compile`, `ask`) with the driver of the inner plugin ([`inner`]), and `outbox` sends the reports: from events of
//! the plugin, on the plugin's threads. `describe` puts what the plugin is into the words of the wire. `misdeeds` is what people ask
//! for who test their own code.
//!
//! The compiler is the same process, started without a client of its own.

mod ask;
mod background;
pub mod collectives;
mod compile;
mod describe;
mod fates;
pub mod heap;
pub mod inner;
mod jobs;
mod lane;
mod launch;
mod misdeeds;
mod outbox;
pub mod planner;
pub mod process;
mod session;
mod spanning;
mod table;
mod transfer;
