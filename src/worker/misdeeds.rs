//! Misbehaving on request, so that people can test how their own code bears it; see `mainstay fault`.

use std::cell::Cell;
use std::time::Duration;

use super::heap;
use crate::abi::{Code, Status};
use crate::wire::message::Misbehaviour;

/// What is to go wrong. Belongs to the worker's main thread.
#[derive(Debug, Default)]
pub(super) struct Misdeeds {
    delay: Cell<Duration>,
    fail_next: Cell<bool>,
}

impl Misdeeds {
    /// Takes an order; does not return from one to hang.
    pub(super) fn take(&self, misbehaviour: Misbehaviour) {
        match misbehaviour {
            Misbehaviour::Hang => loop {
                // Until the process is killed. May return early, which means nothing.
                std::thread::park();
            },
            Misbehaviour::Slow(milliseconds) => self.delay.set(Duration::from_millis(milliseconds)),
            Misbehaviour::FailNextLaunch => self.fail_next.set(true),
            Misbehaviour::LeaveHeap => heap::leave(),
        }
    }

    /// Does what was ordered for a launch.
    ///
    /// # Errors
    /// What the launch is to be refused with.
    pub(super) fn before_launch(&self) -> Result<(), Status> {
        if !self.delay.get().is_zero() {
            std::thread::sleep(self.delay.get());
        }
        if self.fail_next.take() {
            return Err(Status::new(Code::Aborted, "this launch was refused because `mainstay fault` asked for it"));
        }
        Ok(())
    }
}
