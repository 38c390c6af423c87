//! A thread for launches that may block whoever executes them: XLA's CPU plugin runs a small program of one device inside
//! its `Execute`, and where the program spans slices it waits there for the others. The main thread must not, since what it
//! does next may be what the others wait for.
//!
//! The lane runs one launch at a time, and the next only once that one is over, so that never more than one of the plugin's
//! threads is held by them.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::background::Background;
use super::inner::Buffer;
use super::launch::Aside;
use super::table::Ticket;
use crate::abi::Status;
use crate::wire::message::Execute;

/// The thread, and what it has done.
pub(super) struct Lane {
    thread: Background,
    tell: Sender<Returned>,
    told: Receiver<Returned>,
}

/// A launch that the plugin has taken, or refused.
pub(super) struct Returned {
    /// Its place among the parked commands.
    pub(super) ticket: Ticket,
    /// What was asked for.
    pub(super) execute: Execute,
    /// Its outputs.
    pub(super) outputs: Result<Vec<std::sync::Arc<Buffer>>, Status>,
}

impl Lane {
    /// A lane with nothing to do.
    pub(super) fn start() -> Self {
        let (tell, told) = channel();
        Self { thread: Background::start("mainstay-lane"), tell, told }
    }

    /// Has a launch run after all that were handed over before. The main thread is woken when it is [`Self::returned`].
    pub(super) fn run(&self, launch: Aside) {
        let tell = self.tell.clone();
        self.thread.run(move || {
            let outbox = launch.outbox.clone();
            let (is_over, over) = channel::<()>();
            // The main thread lives as long as this one has something to do.
            let _ = tell.send(launch.run(is_over));
            outbox.wake();
            // Ends with an error, once the launch has dropped its end.
            let _ = over.recv();
        });
    }

    /// A launch that has been run, if there is one that was not taken yet.
    pub(super) fn returned(&self) -> Option<Returned> {
        self.told.try_recv().ok()
    }

    /// Waits until nothing is left to do; what was returned and not taken is dropped.
    pub(super) fn stop(self) {
        self.thread.wait();
    }
}
