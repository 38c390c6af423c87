//! The threads that copy values, compute checksums and put arrays together: few, shared by all stores, started at first need.
//! Jobs are done in their order, but for those that let others go first between their steps: nobody waits for a snapshot as
//! for a restore.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::sync::lock;
use crate::wire::machine;

/// More threads than this gain nothing: the memory is busy.
const MOST: usize = 4;

/// Does a step; whether there is more to do.
type Job = Box<dyn FnMut() -> bool + Send>;

/// Jobs that wait for their turn.
#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    more: Condvar,
}

/// None where no thread is to be had.
static QUEUE: OnceLock<Option<Arc<Queue>>> = OnceLock::new();

/// Runs a job soon on one of the threads; here, if there are none to be had.
pub fn run(job: impl FnOnce() + Send + 'static) {
    let mut job = Some(job);
    run_stepwise(move || {
        if let Some(job) = job.take() {
            job();
        }
        false
    });
}

/// The same for a job of several steps, which does one each time that it is called and says whether there is more to do. Others
/// that wait come first, each time.
pub fn run_stepwise(mut job: impl FnMut() -> bool + Send + 'static) {
    match QUEUE.get_or_init(start) {
        Some(queue) => {
            lock(&queue.jobs).push_back(Box::new(job));
            queue.more.notify_one();
        }
        None => while job() {},
    }
}

/// How many jobs run at the same time.
pub fn count() -> usize {
    machine::processors().min(MOST)
}

fn start() -> Option<Arc<Queue>> {
    let queue = Arc::new(Queue::default());
    let spawn = |_| {
        let queue = queue.clone();
        std::thread::Builder::new().name("mainstay-snapshot".into()).spawn(move || work(&queue)).is_ok()
    };
    let started = (0..count()).filter(|number| spawn(*number)).count();
    (started > 0).then_some(queue)
}

fn work(queue: &Queue) {
    yield_to_others();
    let mut unfinished = None;
    loop {
        let mut job = queue.next(unfinished);
        // A panic is a bug that its thread has reported already; the thread is still good for other jobs.
        unfinished = catch_unwind(AssertUnwindSafe(move || job().then_some(job))).unwrap_or(None);
    }
}

impl Queue {
    /// The job whose turn it is: an unfinished one's comes after those that wait.
    fn next(&self, unfinished: Option<Job>) -> Job {
        let mut jobs = lock(&self.jobs);
        jobs.extend(unfinished);
        loop {
            if let Some(job) = jobs.pop_front() {
                return job;
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Lets the thread that wakes this one go on: it is about to return to training. The kernel gives a thread of this kind the
/// processor when it is free or when its turn comes, and never because it was just woken.
fn yield_to_others() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: zero is the calling thread; the parameters live during the call. A refusal leaves things as they were.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_jobs_take_turns() {
        let (queue, ran) = (Queue::default(), Arc::new(Mutex::new(Vec::new())));
        let job = |name, steps: usize| -> Job {
            let (ran, mut left) = (ran.clone(), steps);
            Box::new(move || {
                lock(&ran).push(name);
                left -= 1;
                left > 0
            })
        };
        lock(&queue.jobs).extend([job('a', 4), job('b', 2), job('c', 1)]);
        let mut unfinished = None;
        for _ in 0..7 {
            let mut job = queue.next(unfinished);
            unfinished = job().then_some(job);
        }
        assert!(unfinished.is_none() && lock(&queue.jobs).is_empty());
        assert_eq!(lock(&ran).iter().collect::<String>(), "abcabaa");
    }
}
