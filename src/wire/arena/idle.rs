//! How much of the free memory that is kept for use has not been needed for a while. Decides; others know the memory.

use std::time::{Duration, Instant};

/// Whether the machine is short of memory is to be looked up this often while free memory rests.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Watches free memory, of which some may be kept for good.
#[derive(Debug)]
pub struct Idle {
    rest: Duration,
    /// The fewest bytes that were free since then. None while there is nothing to watch.
    least: Option<(u64, Instant)>,
    looked_up: Option<Instant>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, before more is free.
    Nothing,
    /// Nothing for so long.
    Wait(Duration),
    /// See whether the machine is short of memory: then all that need not be kept is to go.
    LookUp,
    /// Give so many bytes back: they were not needed for long.
    GiveBack(u64),
}

impl Idle {
    /// Memory may rest for so long.
    pub fn new(rest: Duration) -> Self {
        Self { rest, least: None, looked_up: None }
    }

    /// Whether it knows that there is something to watch.
    pub fn is_watching(&self) -> bool {
        self.least.is_some()
    }

    /// So few bytes are free now: some were needed.
    pub fn fell_to(&mut self, free: u64) {
        if let Some((least, _)) = &mut self.least {
            *least = free.min(*least);
        }
    }

    /// What is to be done where so many bytes are free, of which `kept` are never given back.
    pub fn next(&mut self, free: u64, kept: u64, now: Instant) -> Next {
        if free <= kept {
            (self.least, self.looked_up) = (None, None);
            return Next::Nothing;
        }
        let (least, since) = *self.least.get_or_insert((free, now));
        let left = self.rest.saturating_sub(now.saturating_duration_since(since));
        if left.is_zero() {
            self.least = Some((free, now));
            return Next::GiveBack(least.min(free).saturating_sub(kept));
        }
        if self.looked_up.is_none_or(|then| now.saturating_duration_since(then) >= LOOK_UP) {
            self.looked_up = Some(now);
            return Next::LookUp;
        }
        Next::Wait(left.min(LOOK_UP))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Idle, Instant, LOOK_UP, Next};

    const REST: Duration = Duration::from_secs(5);

    #[test]
    fn what_was_free_all_the_time_is_given_back() {
        let (mut idle, start) = (Idle::new(REST), Instant::now());
        assert_eq!(idle.next(10, 10, start), Next::Nothing);
        assert!(!idle.is_watching());
        assert_eq!(idle.next(100, 10, start), Next::LookUp);
        assert_eq!(idle.next(100, 10, start), Next::Wait(LOOK_UP));
        idle.fell_to(40);
        assert_eq!(idle.next(90, 10, start + LOOK_UP), Next::LookUp);
        assert_eq!(idle.next(90, 10, start + REST - LOOK_UP / 2), Next::LookUp);
        assert_eq!(idle.next(90, 10, start + REST - LOOK_UP / 4), Next::Wait(LOOK_UP / 4));
        assert_eq!(idle.next(90, 10, start + REST), Next::GiveBack(30));
        assert_eq!(idle.next(60, 10, start + 2 * REST), Next::GiveBack(50));
    }

    #[test]
    fn what_is_needed_again_and_again_stays() {
        let (mut idle, start) = (Idle::new(REST), Instant::now());
        for round in 0..3 {
            idle.fell_to(5);
            let next = idle.next(50, 10, start + round * REST);
            assert!(matches!(next, Next::LookUp | Next::GiveBack(0)), "{next:?}");
        }
        idle.fell_to(10);
        assert_eq!(idle.next(10, 10, start + 3 * REST), Next::Nothing);
    }
}
