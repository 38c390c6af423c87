//! The threads that compute checksums and put arrays together: few, shared by all stores, started at first need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// More threads than this gain nothing: the memory is busy.
const MOST: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

static SENDER: OnceLock<Option<Mutex<Sender<Job>>>> = OnceLock::new();

/// Runs a job soon on one of the threads; here, if there are none to be had.
pub fn run(job: impl FnOnce() + Send + 'static) {
    let sender = SENDER.get_or_init(start).as_ref();
    let Some(sender) = sender else { return job() };
    let unsent = sender.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(job)).err();
    if let Some(unsent) = unsent {
        (unsent.0)();
    }
}

/// How many jobs run at the same time.
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

fn start() -> Option<Mutex<Sender<Job>>> {
    let (sender, jobs) = channel::<Job>();
    let jobs = Arc::new(Mutex::new(jobs));
    let spawn = |_| {
        let jobs = jobs.clone();
        std::thread::Builder::new().name("mainstay-snapshot".into()).spawn(move || work(&jobs)).is_ok()
    };
    let started = (0..count()).filter(|number| spawn(*number)).count();
    (started > 0).then(|| Mutex::new(sender))
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A panic is a bug that its thread has reported already; the thread is still good for other jobs.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}
