//! A thread that copies large results to the framework's memory, so that listeners go on listening meanwhile.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::sync::lock;

/// Copies up to this many bytes are made at once, by whoever has them.
const AT_ONCE: u64 = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// The thread, started at first need.
#[derive(Default)]
pub struct Copier(Mutex<Option<(Sender<Job>, JoinHandle<()>)>>);

impl Copier {
    /// Runs `job`, which copies `bytes`: here if they are few, else on the thread.
    pub fn run(&self, bytes: u64, job: impl FnOnce() + Send + 'static) {
        if bytes <= AT_ONCE {
            return job();
        }
        let mut thread = lock(&self.0);
        if thread.is_none() {
            let (sender, jobs) = channel::<Job>();
            let copy = move || jobs.into_iter().for_each(|job| job());
            match std::thread::Builder::new().name("mainstay-copier".into()).spawn(copy) {
                Ok(handle) => *thread = Some((sender, handle)),
                // Without a thread the copy is made here: slower for others, but made.
                Err(_) => {
                    drop(thread);
                    return job();
                }
            }
        }
        let Some((sender, _)) = &*thread else { return };
        if let Err(unsent) = sender.send(Box::new(job)) {
            drop(thread);
            (unsent.0)();
        }
    }

    /// Finishes the copies under way and ends the thread.
    pub fn stop(&self) {
        let thread = lock(&self.0).take();
        if let Some((sender, handle)) = thread {
            drop(sender);
            if handle.thread().id() != std::thread::current().id() {
                // A panic in a copy was reported by the thread already.
                let _ = handle.join();
            }
        }
    }
}
