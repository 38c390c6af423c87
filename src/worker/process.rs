//! The worker as a process: how it starts, and how it ends with the client, whatever it is doing then.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use super::fates::Fates;
use super::outbox::Outbox;
use super::session::{After, Session};
use crate::wire::arena::ArenaView;
use crate::wire::connection::{ConnectionError, WorkerEnd};

/// The time between two signs of life. Bounds on silence are several times as long at least.
const BEAT: Duration = Duration::from_millis(25);

/// How a worker exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Exit {
    /// Told to shut down.
    Shutdown = 0,
    /// It could not start: the reason is on its standard error.
    Start = 2,
    /// The client is gone or has closed the connection.
    ClientGone = 3,
    /// A bug of ours: the panic is on its standard error.
    Panic = 101,
}

/// Runs the worker that `fds` describes (see [`crate::wire::connection::FDS_ARGUMENT`]). Does not return.
///
/// The client must start it from a thread that lives as long as the worker may: the kernel ends the worker with that
/// thread.
///
/// # Safety
/// To be called once, at the start of the process, with the argument that the client put on the command line.
pub unsafe fn run(fds: &str) -> ! {
    start_logging();
    end_on_panic();
    ignore_interrupts();
    // SAFETY: as the caller promises.
    let (mut end, arena, exchange) = unsafe { WorkerEnd::from_inherited(fds) }.unwrap_or_else(|why| fail(&why));
    let heap = end.take_heap();
    let end = Arc::new(end);
    let fates = Arc::new(Fates::default());
    hear_of_fates(&end, &fates);
    give_signs_of_life(&end, &fates);
    let arena = arena.map(map_arena);
    let outbox = Outbox::new(end.clone());
    let mut session = Session::new(outbox, arena, exchange, heap, fates);
    loop {
        match end.recv(None) {
            Ok(Some(command)) => {
                if session.handle(command) == After::Leave {
                    tracing::debug!("told to shut down");
                    leave(Exit::Shutdown);
                }
            }
            Ok(None) => session.go_on(),
            Err(ConnectionError::Closed) => leave(Exit::ClientGone),
            Err(error) => fail(&error.to_string()),
        }
    }
}

/// Ends the process at once. The inner plugin's threads may be anywhere: nothing of theirs is cleaned up.
pub fn leave(exit: Exit) -> ! {
    let _ = std::io::stderr().flush();
    // SAFETY: takes a number and does not return.
    unsafe { c::_exit(exit as i32) }
}

fn fail(why: &str) -> ! {
    eprintln!("mainstay worker: {why}");
    leave(Exit::Start)
}

/// Logs go to standard error, which the client keeps: `MAINSTAY_LOG` says how much.
fn start_logging() {
    crate::logging::start(&std::env::var("MAINSTAY_LOG").unwrap_or_else(|_| "warn".to_owned()));
}

/// A panic in any thread ends the process: half a worker is worse than none, which the client knows how to replace.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        leave(Exit::Panic);
    }));
}

/// Ctrl-C goes to all processes of a terminal: what becomes of the workers is for the client to decide.
fn ignore_interrupts() {
    // SAFETY: sets a disposition; no handler is involved.
    unsafe { c::signal(Signal::INT.as_raw(), c::SIG_IGN) };
}

/// Hears of what has failed elsewhere, and ends this process with the client: at once, even while the main thread is inside
/// the inner plugin; the latter also where no thread of this process can run, because it is stopped.
fn hear_of_fates(end: &Arc<WorkerEnd>, fates: &Arc<Fates>) {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "the kernel will not end this worker with its client; a thread of its own will");
    }
    let (end, fates) = (end.clone(), fates.clone());
    let watch = move || {
        while let Some(urgent) = end.recv_urgent() {
            fates.hear(urgent);
        }
        leave(Exit::ClientGone);
    };
    if let Err(error) = std::thread::Builder::new().name("mainstay-watchdog".into()).spawn(watch) {
        fail(&format!("cannot start a thread to watch the client: {error}"));
    }
}

/// Counts the worker's pulse up for as long as threads of this process can run, whatever the others are doing; says with it
/// whether a collective waits for other slices.
fn give_signs_of_life(end: &Arc<WorkerEnd>, fates: &Arc<Fates>) {
    let (end, fates) = (end.clone(), fates.clone());
    let beat = move || {
        loop {
            end.beat(fates.waits_for_others());
            std::thread::sleep(BEAT);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("mainstay-pulse".into()).spawn(beat) {
        fail(&format!("cannot start a thread to give signs of life: {error}"));
    }
}

/// Maps the arena for as long as the process lives: the inner plugin may use it at any time.
fn map_arena(fd: OwnedFd) -> &'static ArenaView {
    match ArenaView::new(fd) {
        Ok(view) => Box::leak(Box::new(view)),
        Err(error) => fail(&format!("cannot map the arena: {error}")),
    }
}

/// What the standard library has no words for; it is linked against the C library anyway.
mod c {
    use std::ffi::c_int;

    /// Ignore the signal.
    pub const SIG_IGN: usize = 1;

    unsafe extern "C" {
        pub fn signal(signal: c_int, disposition: usize) -> usize;
        pub fn _exit(status: c_int) -> !;
    }
}
