//! A circuit breaker for the shared store.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gantry_base::clock::Ticks;

/// Consecutive failures that open the breaker.
const FAILURES_MAX: u32 = 5;
/// Milliseconds between two attempts while the breaker is open.
pub(super) const PAUSE: Ticks = 250;

/// Closed: every request is sent to the store. Open: one request in each [`PAUSE`] is sent.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Consecutive failures.
    failures: AtomicU32,
    /// Time of the next attempt; 0 while closed.
    retry: AtomicU64,
}

/// The effect of an outcome on the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BreakerChange {
    Opened,
    Closed,
    Unchanged,
}

impl Breaker {
    /// Returns whether a request at `now` may be sent to the store.
    pub(super) fn allows(&self, now: Ticks) -> bool {
        let retry = self.retry.load(Ordering::Acquire);
        // The request that moves `retry` makes the attempt.
        retry == 0
            || (now >= retry
                && self
                    .retry
                    .compare_exchange(retry, now + PAUSE, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok())
    }

    pub(super) fn succeeded(&self) -> BreakerChange {
        // The load avoids a write to a shared cache line on the common path.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.retry.load(Ordering::Acquire) != 0 && self.retry.swap(0, Ordering::AcqRel) != 0 {
            BreakerChange::Closed
        } else {
            BreakerChange::Unchanged
        }
    }

    pub(super) fn failed(&self, now: Ticks) -> BreakerChange {
        let failures = self
            .failures
            .fetch_add(1, Ordering::AcqRel)
            .saturating_add(1);
        let opens = failures >= FAILURES_MAX
            && self
                .retry
                .compare_exchange(0, now + PAUSE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if opens {
            BreakerChange::Opened
        } else {
            BreakerChange::Unchanged
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_open_the_breaker_and_one_success_closes_it() {
        let breaker = Breaker::default();
        for _ in 0..4 {
            assert_eq!(breaker.failed(0), BreakerChange::Unchanged);
        }
        assert_eq!(breaker.succeeded(), BreakerChange::Unchanged);
        for _ in 0..4 {
            assert_eq!(breaker.failed(1000), BreakerChange::Unchanged);
            assert!(breaker.allows(1000));
        }
        assert_eq!(breaker.failed(1000), BreakerChange::Opened);
        assert_eq!(
            breaker.failed(1000),
            BreakerChange::Unchanged,
            "it opens once"
        );
        assert!(!breaker.allows(1249));
        assert!(breaker.allows(1250), "one tries");
        assert!(!breaker.allows(1250), "and only one");
        assert_eq!(breaker.failed(1255), BreakerChange::Unchanged);
        assert!(breaker.allows(1500));
        assert_eq!(breaker.succeeded(), BreakerChange::Closed);
        assert!(breaker.allows(1500) && breaker.allows(1500));
    }
}
