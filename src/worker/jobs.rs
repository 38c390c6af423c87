//! Threads for jobs that take long: each job has one of its own, and at most so many run at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::sync::lock;

/// Compilers recurse deeply: as much stack as a main thread has, and more. Only what is used takes memory.
const STACK_BYTES: usize = 64 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs; clones share the bound.
#[derive(Clone)]
pub struct Jobs(Arc<Mutex<State>>);

struct State {
    waiting: VecDeque<Job>,
    running: usize,
    most: usize,
}

impl Jobs {
    /// At most `most` jobs run at a time.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State { waiting: VecDeque::new(), running: 0, most: most.max(1) })))
    }

    /// Has a job run as soon as one may. Where no thread can be had for it, the caller runs it.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        state.waiting.push_back(Box::new(job));
        if state.running == state.most {
            return;
        }
        state.running += 1;
        drop(state);
        let jobs = self.clone();
        let thread = std::thread::Builder::new().name("mainstay-job".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || jobs.work()) {
            tracing::warn!(%error, "no thread for a job");
            self.work();
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    /// The next job, or none: then this thread has left.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        let job = state.waiting.pop_front();
        if job.is_none() {
            state.running -= 1;
        }
        job
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn no_more_jobs_run_at_a_time_than_allowed() {
        let jobs = Jobs::new(2);
        let running = Arc::new(AtomicUsize::new(0));
        let (done, all_done) = channel();
        for _ in 0..20 {
            let (running, done) = (running.clone(), done.clone());
            jobs.run(move || {
                let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                done.send(at_once).unwrap();
            });
        }
        drop(done);
        let seen: Vec<usize> = all_done.iter().collect();
        assert_eq!(seen.len(), 20);
        assert!(seen.iter().all(|at_once| *at_once <= 2), "{seen:?}");
    }
}
