//! Pauses after starts that failed.

use std::collections::VecDeque;

use gantry_base::clock::Ticks;

/// Time in which failures are counted, in milliseconds.
const FAILURE_WINDOW: Ticks = 600_000;
/// Failures in the window after which a start is tried once a minute.
const FAILURES_MAX: usize = 5;
/// Longest pause after a failure, in milliseconds.
const PAUSE_MAX: Ticks = 60_000;

/// Times of the last failed starts, from which the pause before the next start follows.
#[derive(Debug, Default)]
pub(super) struct FailureHistory(VecDeque<Ticks>);

impl FailureHistory {
    /// Records a failure. Returns the pause before the next start, in milliseconds: one second,
    /// doubled by each further failure within ten minutes; after five failures one minute.
    pub(super) fn record(&mut self, now: Ticks) -> Ticks {
        while self
            .0
            .front()
            .is_some_and(|then| now.saturating_sub(*then) >= FAILURE_WINDOW)
        {
            self.0.pop_front();
        }
        if self.0.len() >= FAILURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(now);
        if self.is_crashing() {
            PAUSE_MAX
        } else {
            1000 << (self.0.len() - 1)
        }
    }

    pub(super) fn is_crashing(&self) -> bool {
        self.0.len() >= FAILURES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_and_ends_at_one_start_a_minute() {
        let mut history = FailureHistory::default();
        let pauses: Vec<_> = (0..7).map(|n| history.record(n * 1000)).collect();
        assert_eq!(pauses, [1000, 2000, 4000, 8000, 60_000, 60_000, 60_000]);
        assert_eq!(history.record(FAILURE_WINDOW * 3), 1000, "forgotten");
    }
}
