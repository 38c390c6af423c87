//! The notice of change: a count that goes up whenever a slice of this process changes its state, and a wait for that.
//!
//! Whoever waits looks at the slices afterwards; the count says that there is something new, not what.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Changes so far, in all clients of the process. Taken alone or innermost.
static CHANGES: Mutex<u64> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

fn changes() -> MutexGuard<'static, u64> {
    lock(&CHANGES)
}

/// Says that something changed. To be called once it can be seen.
pub fn announce() {
    *changes() += 1;
    CHANGED.notify_all();
}

/// Waits until there were other changes than the first `seen`, no longer than `timeout`; returns how many there were.
pub fn wait_for_change(seen: u64, timeout: Duration) -> u64 {
    // A time too far to name is waited for as long as a day at once; callers ask again.
    let timeout = timeout.min(Duration::from_secs(24 * 3600));
    let until = Instant::now() + timeout;
    let mut changes = changes();
    while *changes == seen {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        changes = CHANGED.wait_timeout(changes, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    *changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_change_or_with_its_time() {
        let seen = wait_for_change(u64::MAX, Duration::ZERO);
        let waiter = std::thread::spawn(move || wait_for_change(seen, Duration::from_secs(60)));
        announce();
        assert!(waiter.join().unwrap() > seen);
        let now = wait_for_change(u64::MAX, Duration::ZERO);
        assert_eq!(wait_for_change(now, Duration::from_millis(1)), now);
    }
}
