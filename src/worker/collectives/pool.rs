//! A few threads that run what must not run under the exchange's locks or on its listening thread: completions, which
//! go on with the program they belong to.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::sync::lock;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in the order of their arrival, several at a time. Dropping it runs what is left and ends the threads.
pub struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    arrived: Condvar,
}

impl Pool {
    /// A pool of `threads` threads.
    pub fn new(name: &str, threads: usize) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut pool = Self { queue: queue.clone(), threads: Vec::new() };
        for _ in 0..threads {
            let queue = queue.clone();
            pool.threads.push(std::thread::Builder::new().name(name.into()).spawn(move || queue.work())?);
        }
        Ok(pool)
    }

    /// Runs a job soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.queue.jobs);
        jobs.0.push_back(Box::new(job));
        drop(jobs);
        self.queue.arrived.notify_one();
    }
}

impl Queue {
    fn work(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                if let Some(job) = jobs.0.pop_front() {
                    break job;
                }
                if jobs.1 {
                    return;
                }
                jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            // A job that panics is one completion's bug; the others' have to go on.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).1 = true;
        self.queue.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // The last owner of the pool may be one of its own jobs.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
