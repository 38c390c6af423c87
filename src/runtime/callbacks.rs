//! The thread that runs callers' callbacks in the place of a listener, which must not wait for a caller.
//!
//! A caller may wait for a worker while it holds a lock (JAX: Python's interpreter lock) that a callback of another value
//! wants. On the thread that listens to the worker, that callback would keep the answer from being heard.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// Runs a callback: here, or where workers are listened to here, soon on the thread. One after the other.
pub fn run(callback: impl FnOnce() + Send + 'static) {
    // Never joined: it may wait for a lock of whoever ends the client.
    static THREAD: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    if !super::listen::is_listener() {
        return callback();
    }
    let thread = THREAD.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        let run = move || jobs.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("mainstay-callbk".into()).spawn(run).ok().map(|_| sender)
    });
    match thread {
        // It ends with the process: somebody receives.
        Some(thread) => drop(thread.send(Box::new(callback))),
        // Without a thread: here, which is right for all but a few.
        None => callback(),
    }
}
