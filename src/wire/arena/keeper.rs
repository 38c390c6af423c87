//! The arena's thread: commits memory ahead of use, gives back what lies idle.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{Next, Shared, State};
use crate::wire::machine;
use crate::wire::shm::{self, HUGE_PAGE, PAGE};

/// Free memory is given back in stretches of at most this many bytes.
const STRETCH: u64 = 8 << 20;
/// Free stretches shorter than this are not worth giving back.
const WORTHWHILE: u64 = 1 << 20;

/// The last border of pages up to `end`, of huge ones if there is one behind `start`.
fn border(end: u64, start: u64) -> u64 {
    let huge = end / HUGE_PAGE * HUGE_PAGE;
    if huge > start { huge } else { end / PAGE * PAGE }
}

/// Something to do, chosen under the lock and done without it.
enum Work {
    /// A free stretch without memory, taken from the free space.
    Commit(u64, u64),
    /// A committed stretch, taken from the free space.
    Release(u64, u64),
}

/// Starts the thread; it ends when [`State::stop`] is set.
pub fn start(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("mainstay-arena".to_owned()).spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    // Number of blocks when the kernel refused: not tried again before that changes.
    let mut refused_at = None;
    while !state.stop {
        let work = shared.next_work(&mut state, refused_at);
        let Some(work) = work else {
            state = shared.watch(state);
            continue;
        };
        drop(state);
        let done = shared.perform(&work);
        state = shared.lock();
        refused_at = if done { None } else { Some(state.blocks) };
        shared.conclude(&mut state, &work, done);
    }
}

impl Shared {
    /// Whether there is something to do ahead, or to watch.
    pub(super) fn keeper_is_needed(&self, state: &State) -> bool {
        let ready = state.ready(self.options.capacity);
        ready < self.ahead(state) && state.uncommitted.total() > 0
            || ready > self.slack(state) && !state.idle.is_watching()
    }

    /// Waits until there may be something to do; finds what has lain idle, where more is ready than is to be kept.
    fn watch<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (ready, slack) = (state.ready(self.options.capacity), self.slack(&state));
        match state.idle.next(ready, slack, Instant::now()) {
            Next::Nothing => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            Next::Wait(time) => self.work.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
            Next::GiveBack(bytes) => {
                state.surplus = bytes;
                state
            }
            Next::LookUp => {
                drop(state);
                let is_short = machine::is_short();
                state = self.lock();
                let excess = state.ready(self.options.capacity).saturating_sub(self.slack(&state));
                state.surplus = if is_short { excess } else { 0 };
                state
            }
        }
    }

    /// A stretch of the surplus.
    fn surplus_stretch(&self, state: &State) -> Option<(u64, u64)> {
        let excess = state.ready(self.options.capacity).saturating_sub(self.slack(state));
        let surplus = state.surplus.min(excess);
        if surplus > 0 { self.stretch_to_release(state, surplus) } else { None }
    }

    /// So much free memory is to be ready.
    fn ahead(&self, state: &State) -> u64 {
        self.options.ahead.max(state.expected)
    }

    /// More free memory than this is given back.
    fn slack(&self, state: &State) -> u64 {
        self.options.slack.saturating_add(state.lenience)
    }

    fn next_work(&self, state: &mut State, refused_at: Option<u64>) -> Option<Work> {
        if state.ready(self.options.capacity) < self.ahead(state) {
            if refused_at == Some(state.blocks) {
                return None;
            }
            let (start, end) = self.stretch_to_commit(state)?;
            self.take(state, start, end);
            return Some(Work::Commit(start, end));
        }
        let (start, end) = self.surplus_stretch(state)?;
        state.surplus = state.surplus.saturating_sub(end - start);
        self.take(state, start, end);
        Some(Work::Release(start, end))
    }

    fn take(&self, state: &mut State, start: u64, end: u64) {
        state.space.take_at(start, end - start);
        state.in_work += end - start;
    }

    /// The first free stretch without memory, up to a step of it.
    fn stretch_to_commit(&self, state: &State) -> Option<(u64, u64)> {
        state.uncommitted.iter().find_map(|(start, end)| {
            let free = state.space.free_from(start).min(end - start).min(self.options.step);
            (free >= PAGE).then(|| (start, border(start + free, start)))
        })
    }

    /// The end of a long free stretch that has memory.
    fn stretch_to_release(&self, state: &State, excess: u64) -> Option<(u64, u64)> {
        state.space.at_least(WORTHWHILE).find_map(|(start, len)| {
            let (first, last) = (start.next_multiple_of(PAGE), (start + len) - (start + len) % PAGE);
            let mut end = last;
            for (a, b) in state.uncommitted.within(first, last).into_iter().rev() {
                if b < end {
                    break;
                }
                end = a;
            }
            let begin = state.uncommitted.within(first, end).last().map_or(first, |(_, b)| *b);
            let begin = begin.max(end.saturating_sub(excess.next_multiple_of(PAGE).min(STRETCH)));
            let whole = begin.next_multiple_of(HUGE_PAGE);
            let begin = if whole < end { whole } else { begin };
            (end > begin).then_some((begin, end))
        })
    }

    /// Whether it worked.
    fn perform(&self, work: &Work) -> bool {
        match *work {
            Work::Commit(start, end) => self.commit(&[(start, end)], (start, end)).is_ok(),
            Work::Release(start, end) => shm::release(&self.fd, start, end - start).is_ok(),
        }
    }

    /// Gives back what was taken for the work, and records what it did.
    fn conclude(&self, state: &mut State, work: &Work, done: bool) {
        let (Work::Commit(start, end) | Work::Release(start, end)) = *work;
        state.in_work -= end - start;
        state.space.give(start, end - start);
        self.settled.notify_all();
        match work {
            Work::Commit(..) if done => self.record(state, &[(start, end)]),
            Work::Release(..) if done => {
                state.uncommitted.insert(start, end);
                // Whoever touched it now would give it memory again.
                state.announce.remove(start, end);
            }
            // Not again before more has rested.
            Work::Release(..) => state.surplus = 0,
            Work::Commit(..) => {}
        }
    }
}
