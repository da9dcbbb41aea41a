//! The receivers of a project's calls. One that does not answer gets few of the project's places,
//! so that calls to others are not held up. Pure.
//!
//! A call is tried once, so there is no pause before it. A call without a place stays in the queue
//! and is parked here by its id, so that calls after it are read.

use std::collections::{BTreeMap, HashMap};

/// Calls without a response, one after another, from which a receiver counts as failing.
const FAILURES_MIN: u32 = 3;
/// Calls in flight to a failing receiver.
const FAILING_CALLS_MAX: usize = 4;
/// Parked calls. Further ones take places of the project.
const PARKED_MAX: usize = 4_000;
/// Remembered receivers. Those without calls in flight are forgotten first.
const RECEIVERS_MAX: usize = 1_000;

#[derive(Debug, Default)]
struct Receiver {
    in_flight: usize,
    failures: u32,
}

/// The receivers of one project, by host.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    hosts: HashMap<String, Receiver>,
    parked: BTreeMap<i64, String>,
}

impl Receivers {
    /// Returns whether a call may begin. Parks it otherwise.
    pub(super) fn admit(&mut self, id: i64, host: &str) -> bool {
        if self.hosts.len() >= RECEIVERS_MAX {
            self.hosts.retain(|_, receiver| receiver.in_flight > 0);
        }
        let receiver = self.hosts.entry(host.to_owned()).or_default();
        let is_full = receiver.in_flight >= FAILING_CALLS_MAX;
        if receiver.failures >= FAILURES_MIN && is_full && self.parked.len() < PARKED_MAX {
            self.parked.insert(id, host.to_owned());
            return false;
        }
        receiver.in_flight += 1;
        true
    }

    /// Records the end of a call. Returns whether parked calls can be read again.
    pub(super) fn end(&mut self, host: &str, is_answered: bool) -> bool {
        let Some(receiver) = self.hosts.get_mut(host) else {
            return false;
        };
        receiver.in_flight = receiver.in_flight.saturating_sub(1);
        if is_answered {
            receiver.failures = 0;
            if receiver.in_flight == 0 {
                self.hosts.remove(host);
            }
            let before = self.parked.len();
            self.parked.retain(|_, parked| parked != host);
            return self.parked.len() < before;
        }
        receiver.failures = receiver.failures.saturating_add(1);
        let mut parked = self.parked.iter();
        let first = parked.find(|(_, parked)| *parked == host);
        let first = first.map(|(id, _)| *id);
        first.is_some_and(|id| self.parked.remove(&id).is_some())
    }

    /// Returns the ids of parked calls.
    pub(super) fn parked(&self) -> impl Iterator<Item = i64> {
        self.parked.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_receiver_keeps_four_places_until_it_answers() {
        let mut receivers = Receivers::default();
        assert!(
            (0..32).all(|id| receivers.admit(id, "a")),
            "not failing yet"
        );
        for _ in 0..28 {
            assert!(!receivers.end("a", false));
        }
        assert!(!receivers.admit(40, "a") && !receivers.admit(41, "a"));
        assert!(receivers.admit(42, "b"));
        assert_eq!(receivers.parked().collect::<Vec<_>>(), [40, 41]);
        assert!(receivers.end("a", false), "one place is free");
        assert_eq!(receivers.parked().collect::<Vec<_>>(), [41]);
        assert!(receivers.admit(40, "a") && !receivers.admit(43, "a"));
        assert!(receivers.end("a", true));
        assert_eq!(receivers.parked().count(), 0);
        assert!((50..80).all(|id| receivers.admit(id, "a")));
    }

    #[test]
    fn memory_is_bounded() {
        let mut receivers = Receivers::default();
        for id in 0..5_000 {
            let host = id.to_string();
            receivers.admit(id, &host);
            receivers.end(&host, false);
        }
        assert!(receivers.hosts.len() <= RECEIVERS_MAX);
        for id in 0..10_000 {
            if id >= 4 {
                receivers.hosts.get_mut("a").unwrap().failures = FAILURES_MIN;
            }
            receivers.admit(id, "a");
        }
        assert_eq!(receivers.parked.len(), PARKED_MAX);
    }
}
