//! Whether a worker gives signs of life, judged by one who may have been asleep himself.

use std::time::{Duration, Instant};

/// A look is due so many times within the bound on silence.
const LOOKS: u32 = 4;

/// What was last seen of a worker's pulse.
#[derive(Debug)]
pub struct Pulse {
    count: u64,
    looked: Instant,
    /// When there was a sign of life, or silence said nothing.
    alive: Instant,
    interval: Duration,
}

/// What a look at the pulse says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The worker's threads can run.
    Life,
    /// Nothing new.
    None,
    /// This process was not running itself for a while (Ctrl-Z stops client and workers alike): nothing that was timed
    /// meanwhile says anything of the worker.
    Paused,
}

impl Pulse {
    /// The pulse of a worker that may be silent for `bound`; `count` is its count now.
    pub fn new(bound: Duration, count: u64, now: Instant) -> Self {
        Self { count, looked: now, alive: now, interval: bound / LOOKS }
    }

    /// The time from one look to the next, at most.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes the count of now.
    pub fn look(&mut self, count: u64, now: Instant) -> Sign {
        let paused = now.saturating_duration_since(self.looked) > 2 * self.interval;
        let beats = count != self.count;
        (self.count, self.looked) = (count, now);
        let sign = match (paused, beats) {
            (true, _) => Sign::Paused,
            (false, true) => Sign::Life,
            (false, false) => Sign::None,
        };
        if sign != Sign::None {
            self.alive = now;
        }
        sign
    }

    /// How long it had been silent at the last look.
    pub fn silence(&self) -> Duration {
        self.looked.saturating_duration_since(self.alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_only_for_who_listens() {
        let ms = Duration::from_millis;
        let start = Instant::now();
        let mut pulse = Pulse::new(ms(400), 7, start);
        assert_eq!(pulse.interval(), ms(100));
        assert_eq!(pulse.look(8, start + ms(100)), Sign::Life);
        assert_eq!(pulse.look(8, start + ms(200)), Sign::None);
        assert_eq!(pulse.silence(), ms(100));
        assert_eq!(pulse.look(8, start + ms(401)), Sign::Paused);
        assert_eq!(pulse.look(8, start + ms(500)), Sign::None);
    }
}
