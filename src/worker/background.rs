//! A thread for what must not be done by the main thread or by a thread of the inner plugin, or may block.

use std::sync::mpsc::{Sender, channel};

type Task = Box<dyn FnOnce() + Send>;

/// Hands tasks to the thread, which does them one after the other. Clones hand to the same thread.
#[derive(Clone)]
pub struct Background(Option<Sender<Task>>);

impl Background {
    /// Starts the thread; where it can't be started, tasks are done by whoever hands them over.
    pub fn start(name: &str) -> Self {
        let (sender, tasks) = channel::<Task>();
        let work = move || tasks.into_iter().for_each(|task| task());
        let started = std::thread::Builder::new().name(name.into()).spawn(work);
        Self(started.is_ok().then_some(sender))
    }

    /// Has something done soon.
    pub fn run(&self, task: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Some(sender) => {
                // The thread takes tasks for as long as there is a sender.
                let _ = sender.send(Box::new(task));
            }
            None => task(),
        }
    }

    /// Waits until all that was handed over before is done.
    pub fn wait(&self) {
        let (done, is_done) = channel::<()>();
        self.run(move || drop(done));
        // Ends with an error, once the task has dropped its end.
        let _ = is_done.recv();
    }
}
