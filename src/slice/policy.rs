//! Bounds and limits of a slice: how long to wait, how often to try again.

use std::time::Duration;

/// What the user sets, see `docs/configuration.md`, and a few times that nobody has to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A worker that isn't up after this time is lost.
    pub start_timeout: Duration,
    /// A worker that was told to stop and has not after this time is killed.
    pub stop_timeout: Duration,
    /// After the connection closed, so long the worker's exit status is waited for before it is killed: a process
    /// closes its descriptors a moment before it can be reaped, and its own cause of death says more.
    pub exit_grace: Duration,
    /// So many incarnations in a row may be lost before they [settled](Self::settled_after) and still be replaced.
    /// Zero: no slice is replaced at all.
    pub replace_limit: u32,
    /// The wait before the second replacement in a row; it doubles with each further one. The first is immediate.
    pub backoff_initial: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// An incarnation that was up for so long is no failure, whatever happens to it then.
    pub settled_after: Duration,
    /// A worker that gave no sign of life for so long is lost; `None`: no bound.
    pub heartbeat: Option<Duration>,
    /// A worker that has work and finished none of it for so long is lost; `None`: no bound.
    pub progress: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(120),
            stop_timeout: Duration::from_secs(5),
            exit_grace: Duration::from_millis(50),
            replace_limit: 10,
            backoff_initial: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            settled_after: Duration::from_secs(10),
            heartbeat: Some(Duration::from_secs(30)),
            progress: None,
        }
    }
}

impl Policy {
    /// The wait before the next start, after so many failures in a row.
    pub fn backoff(&self, failures: u32) -> Duration {
        match failures.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
                self.backoff_initial.saturating_mul(factor).min(self.backoff_max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let waits: Vec<_> = [0, 1, 2, 3, 4, 9, 40, u32::MAX].map(|failures| Policy::default().backoff(failures)).into();
        assert_eq!(waits, [0, 0, 100, 200, 400, 10_000, 10_000, 10_000].map(Duration::from_millis));
    }
}
