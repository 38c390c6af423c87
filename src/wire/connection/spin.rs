//! A short look before the sleep: where an answer is due within microseconds, sleeping costs more than it saves.

use std::time::{Duration, Instant};

/// About what a sleep and a wake-up cost.
pub const DEFAULT: Duration = Duration::from_micros(20);

/// Spins for up to a limit; less after it was in vain, in full again once it paid off.
#[derive(Debug)]
pub struct Spin {
    limit: Duration,
    budget: Duration,
}

impl Spin {
    /// Spins up to `limit`; never, where the process has a single core.
    pub fn new(limit: Duration) -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let limit = if alone { Duration::ZERO } else { limit };
        Self { limit, budget: limit }
    }

    /// Whether `found` became true within the budget.
    pub fn until(&mut self, found: impl Fn() -> bool) -> bool {
        if self.limit.is_zero() {
            return found();
        }
        let start = Instant::now();
        loop {
            for _ in 0..16 {
                if found() {
                    self.budget = self.limit;
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= self.budget {
                self.budget = (self.budget / 2).max(self.limit / 16);
                return false;
            }
        }
    }
}
