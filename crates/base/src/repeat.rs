//! Repeated work: passes at an interval, and pauses between attempts.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{MissedTickBehavior, interval};

/// Runs a pass at once, and then one per period. A pass that takes longer delays the next ones;
/// missed ones are left out. Never returns.
pub async fn every<F: Future<Output = ()>>(period: Duration, mut pass: impl FnMut() -> F) {
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        pass().await;
    }
}

/// Returns the time until `due`, at most `max`. It is rounded up to a millisecond, because a pass
/// that begins earlier finds nothing due.
pub fn pause_until(due: DateTime<Utc>, now: DateTime<Utc>, max: Duration) -> Duration {
    let pause = (due - now + TimeDelta::milliseconds(1)).to_std();
    pause.unwrap_or_default().min(max)
}

/// Pauses after failed attempts, which double with each further failure.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Backoff {
    /// Returns pauses from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// Returns the pause after a number of failures in a row. Zero if there was none.
    pub fn pause(self, failures: impl Into<i64>) -> Duration {
        let doublings = failures.into().saturating_sub(1).min(31);
        let Ok(doublings) = u32::try_from(doublings) else {
            return Duration::ZERO;
        };
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// Returns a pause between half and all of [`Self::pause`], chosen by a random byte, so that
    /// clients do not retry at the same time.
    pub fn pause_with_jitter(self, failures: impl Into<i64>, random: u8) -> Duration {
        let share = 0.5 + f64::from(random) / 512.0;
        self.pause(failures).mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(2));

    #[test]
    fn pause_doubles_up_to_its_maximum() {
        let minute = Backoff::new(BACKOFF.first, Duration::from_mins(1));
        let failures = [i32::MIN, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 33, i32::MAX];
        for (backoff, expected) in [
            (minute, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]),
            (BACKOFF, [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 120, 120, 120]),
        ] {
            let seconds = failures.map(|failures| backoff.pause(failures).as_secs());
            assert_eq!(seconds, expected);
        }
        assert_eq!(BACKOFF.pause(i64::MAX), BACKOFF.max);
    }

    #[test]
    fn jitter_shortens_a_pause_by_up_to_half() {
        for (failures, millis) in [
            (1, 500),
            (2, 1000),
            (4, 4000),
            (8, 60_000),
            (u32::MAX, 60_000),
        ] {
            let pause = BACKOFF.pause_with_jitter(failures, 0);
            assert_eq!(pause, Duration::from_millis(millis));
        }
        let longest = |failures: u32| BACKOFF.pause_with_jitter(failures, 255);
        assert!(longest(3) > BACKOFF.pause_with_jitter(3, 0) && longest(9) < BACKOFF.max);
    }

    #[test]
    fn pause_until_a_time_is_bounded() {
        let now = DateTime::UNIX_EPOCH;
        for (due_millis, millis) in [(-5, 0), (0, 1), (20, 21), (90_000, 60_000)] {
            let due = now + TimeDelta::milliseconds(due_millis);
            let pause = pause_until(due, now, Duration::from_mins(1));
            assert_eq!(pause, Duration::from_millis(millis));
        }
    }
}
