//! Events: a result that comes once, with callbacks and waiters. Every PJRT event and every buffer's readiness
//! is one of these.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::abi::Status;
use crate::sync::lock;

/// The result that an event comes to.
pub type Outcome = Result<(), Status>;

type Callback = Box<dyn FnOnce(&Outcome) + Send>;

enum State {
    Pending(Vec<Callback>),
    Done(Outcome),
}

/// A result that comes once. Shared by whoever sets it and whoever waits.
pub struct Event {
    state: Mutex<State>,
    done: Condvar,
}

impl Event {
    /// An event whose result is still to come.
    pub fn pending() -> Arc<Self> {
        Self::with(State::Pending(Vec::new()))
    }

    /// An event that already has its result.
    pub fn completed(outcome: Outcome) -> Arc<Self> {
        Self::with(State::Done(outcome))
    }

    fn with(state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), done: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of ours panics while it holds the lock: callbacks run outside it.
        lock(&self.state)
    }

    /// Gives the result and runs the callbacks on this thread. Only the first result counts; returns whether this was it.
    pub fn set(&self, outcome: Outcome) -> bool {
        let callbacks = {
            let mut state = self.lock();
            let State::Pending(callbacks) = &mut *state else { return false };
            let callbacks = std::mem::take(callbacks);
            *state = State::Done(outcome.clone());
            self.done.notify_all();
            callbacks
        };
        for callback in callbacks {
            callback(&outcome);
        }
        true
    }

    /// The result, if it is there.
    pub fn outcome(&self) -> Option<Outcome> {
        match &*self.lock() {
            State::Pending(_) => None,
            State::Done(outcome) => Some(outcome.clone()),
        }
    }

    /// Whether the result is there. Cheaper than [`Event::outcome`].
    pub fn is_done(&self) -> bool {
        matches!(&*self.lock(), State::Done(_))
    }

    /// The error, if the result is there and is one.
    pub fn error(&self) -> Option<Status> {
        match &*self.lock() {
            State::Done(Err(status)) => Some(status.clone()),
            _ => None,
        }
    }

    /// Runs `callback` with the result: now, on this thread, if it is there; else later, on the thread that sets it.
    pub fn on_done(&self, callback: impl FnOnce(&Outcome) + Send + 'static) {
        let outcome = {
            let mut state = self.lock();
            match &mut *state {
                State::Pending(callbacks) => return callbacks.push(Box::new(callback)),
                State::Done(outcome) => outcome.clone(),
            }
        };
        callback(&outcome);
    }

    /// Waits for the result. Bounded by the life of the worker that owes it: a dead worker's events are set with its loss.
    pub fn wait(&self) -> Outcome {
        let mut state = self.lock();
        loop {
            match &*state {
                State::Done(outcome) => return outcome.clone(),
                State::Pending(_) => state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// An event that is done once all of `events` are; its error is that of the first in order that has one.
pub fn all(events: &[Arc<Event>]) -> Arc<Event> {
    match events {
        [] => return Event::completed(Ok(())),
        [one] => return one.clone(),
        _ => {}
    }
    let joined = Event::pending();
    let left = Arc::new(std::sync::atomic::AtomicUsize::new(events.len()));
    for event in events {
        let (joined, left, members) = (joined.clone(), left.clone(), events.to_vec());
        event.on_done(move |_| {
            if left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
                let error = members.iter().find_map(|member| member.error());
                joined.set(error.map_or(Ok(()), Err));
            }
        });
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Code;

    #[test]
    fn the_first_result_counts_and_callbacks_see_it() {
        let event = Event::pending();
        let (tell, told) = std::sync::mpsc::channel();
        let later = tell.clone();
        event.on_done(move |outcome| later.send(outcome.clone()).unwrap());
        assert!(event.outcome().is_none());
        let loss = Status::new(Code::DataLoss, "slice 0 is lost");
        assert!(event.set(Err(loss.clone())));
        assert!(!event.set(Ok(())));
        event.on_done(move |outcome| tell.send(outcome.clone()).unwrap());
        assert_eq!(told.recv().unwrap(), Err(loss.clone()));
        assert_eq!(told.recv().unwrap(), Err(loss.clone()));
        assert_eq!(event.wait(), Err(loss));
    }

    #[test]
    fn joined_events_wait_for_all_and_keep_the_first_error() {
        let (a, b) = (Event::pending(), Event::pending());
        let joined = all(&[a.clone(), b.clone()]);
        b.set(Err(Status::invalid("b")));
        assert!(!joined.is_done());
        a.set(Ok(()));
        assert_eq!(joined.wait(), Err(Status::invalid("b")));
        assert_eq!(all(&[]).wait(), Ok(()));
    }

    #[test]
    fn a_waiter_wakes() {
        let event = Event::pending();
        let waiter = {
            let event = event.clone();
            std::thread::spawn(move || event.wait())
        };
        event.set(Ok(()));
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}
