//! Stops asking a store that does not answer, and asks again now and then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::clock::Ticks;

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 5;
/// How long it stays open before one request may try again, in milliseconds.
pub(super) const PAUSE: Ticks = 250;

/// Closed: every request goes to the store. Open: none does, but one in each [`PAUSE`].
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// In a row.
    failures: AtomicU32,
    /// When the next request may try; 0 while closed.
    retry: AtomicU64,
}

/// What an outcome did to the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Opened,
    Closed,
    Stayed,
}

impl Breaker {
    /// Whether a request at `now` goes to the store.
    pub(super) fn lets_through(&self, now: Ticks) -> bool {
        let retry = self.retry.load(Ordering::Acquire);
        // Whoever moves the mark is the one to try.
        retry == 0
            || (now >= retry
                && self
                    .retry
                    .compare_exchange(retry, now + PAUSE, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok())
    }

    pub(super) fn succeeded(&self) -> Turn {
        // Read first: on the way that is taken a million times, no cache line is written.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.retry.load(Ordering::Acquire) != 0 && self.retry.swap(0, Ordering::AcqRel) != 0 {
            Turn::Closed
        } else {
            Turn::Stayed
        }
    }

    pub(super) fn failed(&self, now: Ticks) -> Turn {
        let failures = self
            .failures
            .fetch_add(1, Ordering::AcqRel)
            .saturating_add(1);
        let opens = failures >= FAILURES_MAX
            && self
                .retry
                .compare_exchange(0, now + PAUSE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if opens { Turn::Opened } else { Turn::Stayed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_row_open_it_and_one_success_closes_it() {
        let breaker = Breaker::default();
        for _ in 0..4 {
            assert_eq!(breaker.failed(0), Turn::Stayed);
        }
        assert_eq!(breaker.succeeded(), Turn::Stayed);
        for _ in 0..4 {
            assert_eq!(breaker.failed(1000), Turn::Stayed);
            assert!(breaker.lets_through(1000));
        }
        assert_eq!(breaker.failed(1000), Turn::Opened);
        assert_eq!(breaker.failed(1000), Turn::Stayed, "it opens once");
        assert!(!breaker.lets_through(1249));
        assert!(breaker.lets_through(1250), "one tries");
        assert!(!breaker.lets_through(1250), "and only one");
        assert_eq!(breaker.failed(1255), Turn::Stayed);
        assert!(breaker.lets_through(1500));
        assert_eq!(breaker.succeeded(), Turn::Closed);
        assert!(breaker.lets_through(1500) && breaker.lets_through(1500));
    }
}
