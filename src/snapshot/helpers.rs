//! The threads that compute checksums and put arrays together: few, shared by all stores, started at first need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use crate::sync::lock;
use crate::wire::machine;

/// More threads than this gain nothing: the memory is busy.
const MOST: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

static SENDER: OnceLock<Option<Mutex<Sender<Job>>>> = OnceLock::new();

/// Runs a job soon on one of the threads; here, if there are none to be had.
pub fn run(job: impl FnOnce() + Send + 'static) {
    let sender = SENDER.get_or_init(start).as_ref();
    let Some(sender) = sender else { return job() };
    let unsent = lock(sender).send(Box::new(job)).err();
    if let Some(unsent) = unsent {
        (unsent.0)();
    }
}

/// How many jobs run at the same time.
pub fn count() -> usize {
    machine::processors().min(MOST)
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
    yield_to_others();
    loop {
        let job = lock(jobs).recv();
        let Ok(job) = job else { return };
        // A panic is a bug that its thread has reported already; the thread is still good for other jobs.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// Lets the thread that wakes this one go on: it is about to return to training. The kernel gives a thread of this kind the
/// processor when it is free or when its turn comes, and never because it was just woken.
fn yield_to_others() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: zero is the calling thread; the parameters live during the call. A refusal leaves things as they were.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}
