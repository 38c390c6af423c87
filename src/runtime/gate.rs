//! How many launches a worker has at once. XLA's CPU plugin blocks the caller of an execution once 32 are under way on a
//! device; a worker that is blocked there takes no commands, not even those that give a launch its inputs. So no more are
//! sent than the plugin takes without blocking; what comes after waits here, in order.
//!
//! That never comes to a stop: the earliest launch that is not over, of all slices, is always sent, and so is what it waits
//! for. Values of declared buffers come later than their place in the order, so they pass, unless their declaration waits.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;
use crate::wire::message::Command;

/// Launches under way at a worker; fewer than the 32 that XLA's CPU plugin takes on a device without blocking.
const AT_ONCE: usize = 30;

/// Holds commands back while enough launches are under way.
#[derive(Default)]
pub struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    under_way: usize,
    held: VecDeque<Command>,
    closed: bool,
}

impl Gate {
    /// Sends a command, or holds it back.
    pub fn pass(&self, command: &Command, send: impl FnOnce(&Command)) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        if state.must_hold(command) {
            return state.held.push_back(command.clone());
        }
        state.under_way += usize::from(is_launch(command));
        // Under the lock, which makes this the order in which the worker gets commands.
        send(command);
    }

    /// A launch is over: what was held back and may go now is sent.
    pub fn launch_is_over(&self, mut send: impl FnMut(&Command)) {
        let mut state = self.state();
        state.under_way = state.under_way.saturating_sub(1);
        while let Some(next) = state.held.front() {
            if is_launch(next) && state.under_way >= AT_ONCE {
                return;
            }
            state.under_way += usize::from(is_launch(next));
            if let Some(next) = state.held.pop_front() {
                send(&next);
            }
        }
    }

    /// Lets nothing through any more, and forgets what was held back: the worker is lost.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.held.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn must_hold(&self, command: &Command) -> bool {
        if self.held.is_empty() {
            return is_launch(command) && self.under_way >= AT_ONCE;
        }
        match command {
            Command::Shutdown => false,
            Command::Upload { buffer, .. } | Command::Fail { buffer, .. } => {
                let declares =
                    |held: &Command| matches!(held, Command::Declare { buffers } if buffers.contains(buffer));
                self.held.iter().any(declares)
            }
            _ => true,
        }
    }
}

fn is_launch(command: &Command) -> bool {
    matches!(command, Command::Execute(_))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::abi::Status;
    use crate::wire::message::{Execute, Ids};

    fn launch(launch: u64) -> Command {
        Command::Execute(Execute {
            launch,
            executable: 1,
            launch_id: 0,
            num_devices: 1,
            execute_device: None,
            arguments: Ids::new(),
            first_output: 0,
            num_outputs: 0,
            non_donatable: Default::default(),
        })
    }

    fn destroy(buffer: u64) -> Command {
        Command::Destroy { buffers: Ids::from_slice(&[buffer]) }
    }

    #[test]
    fn what_comes_after_too_many_launches_waits_in_order() {
        let (gate, sent) = (Gate::default(), RefCell::new(Vec::new()));
        let send = |command: &Command| sent.borrow_mut().push(command.clone());
        let all: Vec<_> = (0..AT_ONCE as u64 + 2).flat_map(|number| [launch(number), destroy(number)]).collect();
        all.iter().for_each(|command| gate.pass(command, send));
        assert_eq!(sent.borrow().len(), 2 * AT_ONCE);
        gate.launch_is_over(send);
        assert_eq!(sent.borrow().len(), 2 * AT_ONCE + 2);
        gate.launch_is_over(send);
        assert_eq!(*sent.borrow(), all);
        gate.launch_is_over(send);
        gate.pass(&destroy(99), send);
        assert_eq!(sent.borrow().last(), Some(&destroy(99)));
    }

    #[test]
    fn values_pass() {
        let (gate, sent) = (Gate::default(), RefCell::new(Vec::new()));
        let send = |command: &Command| sent.borrow_mut().push(command.clone());
        (0..AT_ONCE as u64 + 1).for_each(|number| gate.pass(&launch(number), send));
        let status = Status::invalid("no");
        let passes = [Command::Fail { buffer: 7, status: status.clone() }, Command::Shutdown];
        passes.iter().for_each(|command| gate.pass(command, send));
        assert_eq!(sent.borrow()[AT_ONCE..], passes);
        // The value of a buffer whose declaration waits must come after it.
        let waits = [Command::Declare { buffers: Ids::from_slice(&[8]) }, Command::Fail { buffer: 8, status }];
        waits.iter().for_each(|command| gate.pass(command, send));
        gate.launch_is_over(send);
        assert_eq!(sent.borrow()[AT_ONCE + 3..], waits);
    }
}
