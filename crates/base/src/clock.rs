//! Time and randomness, injected. The only module that reads either from the system.
//!
//! All other code takes a [`Clock`] or an [`Entropy`], so that a test can control the time and
//! reproduce identifiers. `clippy.toml` bans the system functions elsewhere.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use uuid::{Builder, Uuid};

/// Milliseconds on a monotonic scale that starts when the clock is created.
pub type Ticks = u64;

/// Returns a duration in whole milliseconds.
pub fn ticks_of(duration: Duration) -> Ticks {
    duration.as_millis().try_into().unwrap_or(Ticks::MAX)
}

/// A clock with wall-clock time (for display and expiry) and monotonic time (for limits and
/// deadlines).
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    System { start: Instant },
    Manual(Arc<Mutex<ManualTime>>),
}

#[derive(Debug)]
struct ManualTime {
    wall: DateTime<Utc>,
    ticks: Ticks,
}

impl Clock {
    /// Returns a clock that reads the machine's clocks.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the system clock"
    )]
    pub fn system() -> Self {
        Self(ClockSource::System {
            start: Instant::now(),
        })
    }

    /// Returns a clock that stands still at `wall` until a test moves it.
    pub fn manual(wall: DateTime<Utc>) -> Self {
        Self(ClockSource::Manual(Arc::new(Mutex::new(ManualTime {
            wall,
            ticks: 0,
        }))))
    }

    /// Returns wall-clock time in UTC.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the system clock"
    )]
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            ClockSource::System { .. } => DateTime::from(SystemTime::now()),
            ClockSource::Manual(time) => time.lock().wall,
        }
    }

    /// Returns monotonic milliseconds since the clock was created.
    pub fn ticks(&self) -> Ticks {
        match &self.0 {
            ClockSource::System { start } => ticks_of(start.elapsed()),
            ClockSource::Manual(time) => time.lock().ticks,
        }
    }

    /// Moves a manual clock forward, wall-clock and monotonic time alike. Does nothing to the
    /// system clock.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(time) = &self.0 {
            let mut time = time.lock();
            time.wall += TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
            time.ticks += ticks_of(by);
        }
    }

    /// Steps only the wall-clock time of a manual clock, as an operator or NTP would.
    pub fn step_wall(&self, by: TimeDelta) {
        if let ClockSource::Manual(time) = &self.0 {
            time.lock().wall += by;
        }
    }
}

/// A source of random bytes: the operating system's generator, or a seeded sequence in tests.
#[derive(Clone, Debug)]
pub struct Entropy(Option<Arc<Mutex<SmallRng>>>);

impl Entropy {
    /// Returns the operating system's cryptographic generator.
    pub fn system() -> Self {
        Self(None)
    }

    /// Returns a repeatable sequence. For tests only: it is not secret.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)))))
    }

    /// Returns `N` random bytes.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that draws from the system generator"
    )]
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match &self.0 {
            None => rand::rng().fill_bytes(&mut bytes),
            Some(rng) => rng.lock().fill_bytes(&mut bytes),
        }
        bytes
    }

    /// Returns a random UUID (version 4).
    pub fn uuid(&self) -> Uuid {
        Builder::from_random_bytes(self.bytes()).into_uuid()
    }

    /// Returns a UUID version 7 (RFC 9562 §5.7) of this time: UUIDs of later milliseconds are
    /// greater.
    pub fn uuid_v7(&self, at: DateTime<Utc>) -> Uuid {
        let millis = u64::try_from(at.timestamp_millis()).unwrap_or_default();
        Builder::from_unix_timestamp_millis(millis, &self.bytes()).into_uuid()
    }

    /// Returns `len` lowercase letters, uniformly distributed.
    pub fn letters(&self, len: usize) -> String {
        let mut text = String::with_capacity(len);
        while text.len() < len {
            // 234 = 9 * 26: larger bytes would make the first letters more likely.
            text.extend(
                self.bytes::<32>()
                    .into_iter()
                    .filter(|b| *b < 234)
                    .map(|b| char::from(b'a' + b % 26))
                    .take(len - text.len()),
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_explicitly() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        clock.advance(Duration::from_millis(1500));
        assert_eq!(
            (clock.ticks(), clock.now().timestamp_millis()),
            (1500, 1500)
        );
        clock.step_wall(TimeDelta::seconds(-60));
        assert_eq!(
            (clock.ticks(), clock.now().timestamp_millis()),
            (1500, -58_500)
        );
    }

    #[test]
    fn uuids_version_7_are_ordered_by_time() {
        let entropy = Entropy::seeded(1);
        let at = |millis| DateTime::from_timestamp_millis(millis).unwrap();
        let ids: Vec<Uuid> = (1_000..1_100)
            .map(|millis| entropy.uuid_v7(at(millis)))
            .collect();
        assert!(ids.is_sorted() && ids.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn letters_returns_lowercase_letters() {
        for len in [0, 1, 20, 100] {
            let text = Entropy::system().letters(len);
            assert_eq!(text.len(), len);
            assert!(text.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
        }
    }
}
