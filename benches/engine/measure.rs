//! How a method is measured: set up at its first use, gone through twice, then timed; and that nothing goes on forever.

use std::fmt::Display;
use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use criterion::BenchmarkId;
use mainstay::abi::Status;

use super::Group;

/// Far longer than anything between two samples takes.
const LONGEST: Duration = Duration::from_secs(300);

/// Told at every sample. The plugins' own waits have no bound; this ends the process, and with it Mainstay's workers.
static WATCHDOG: LazyLock<Sender<()>> = LazyLock::new(|| {
    let (samples, watch) = mpsc::channel();
    thread::spawn(move || {
        while watch.recv_timeout(LONGEST) != Err(RecvTimeoutError::Timeout) {}
        eprintln!("bench: a measurement did not end within {LONGEST:?}");
        std::process::abort();
    });
    samples
});

/// Says that the bench goes on.
pub fn sample_begins() {
    // The watchdog listens for as long as there is a process.
    let _ = WATCHDOG.send(());
}

/// Times `go` on what `set_up` gives, which is freed at the end. Nothing is set up where the command line leaves this out.
pub fn measure<S>(group: &mut Group, id: BenchmarkId, set_up: impl Fn() -> S, mut go: impl FnMut(&mut S)) {
    let mut held = None;
    // Criterion calls this for each sample.
    group.bench_function(id, |bencher| {
        sample_begins();
        let state = held.get_or_insert_with(|| {
            let mut state = set_up();
            // Twice, so that all memory is touched: what replaces something needs memory beside it.
            go(&mut state);
            go(&mut state);
            state
        });
        bencher.iter(|| go(state));
    });
}

/// Ends the bench, with the reason on standard error.
pub fn end(why: impl Display) -> ! {
    eprintln!("bench: {why}");
    std::process::exit(1);
}

/// For a bench there is nothing to do about a plugin's error.
pub trait OrEnd<T> {
    /// The value; an error ends the bench.
    fn or_end(self) -> T;
}

impl<T> OrEnd<T> for Result<T, Status> {
    fn or_end(self) -> T {
        self.unwrap_or_else(|status| end(status))
    }
}
