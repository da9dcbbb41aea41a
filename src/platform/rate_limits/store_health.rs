//! Health of the shared store: its availability, its latency, and the number of processes that use
//! it.
//!
//! Its rules bound what may be admitted while the store does not respond, so that all processes
//! together stay within the limit. They are pure functions of the time that is passed in.

use std::time::Duration;

use gantry_base::clock::Ticks;
use parking_lot::Mutex;

use super::{
    store::HeartbeatAnswer,
    window::{WINDOWS_MAX, Window},
};

/// Pause between heartbeats.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the store. A store that takes longer is treated as unavailable.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(2);
/// A request waits this multiple of the store's recent latency, and at least the operator's
/// deadline.
const WAIT_TIMES: u32 = 8;
/// Milliseconds after its last response for which the store may have served other processes: until
/// the next heartbeat fails.
const SILENCE_MAX: Ticks = 3_000;

/// The health of a store, as observed by this process.
#[derive(Debug, Default)]
pub(super) struct StoreHealth(Mutex<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    /// Time of the last response to this process.
    last_response: Ticks,
    /// Smoothed latency: increases at once, decreases slowly.
    latency: Duration,
    /// Number of processes that use the store, this one included. 0 before the first heartbeat.
    processes: u32,
    /// Time since which this is the only process.
    sole_since: Ticks,
    /// Time when another process was last present.
    last_seen_others: Option<Ticks>,
    /// Identity of the store's counters. A new one means that the store lost its counters.
    counters: String,
    /// Time of the last response before the store lost its counters.
    lost_at: Option<Ticks>,
    /// The last gap without responses: times of the responses before and after it.
    gap: Option<(Ticks, Ticks)>,
    /// Time when this process last admitted a request without the store.
    last_local_admission: Option<Ticks>,
}

/// The rule for a request that the store does not decide alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalAdmission {
    /// Reject: other processes may have admitted requests in the window.
    Refuse,
    /// Decide by the counters of this process. They have every request of the window, because there
    /// is no other process.
    OwnCounters,
    /// Decide by the counters of this process if they have the window, else reject.
    KnownWindows,
    /// Decide by the counters of this process, up to its share of these windows.
    Share([Window; WINDOWS_MAX]),
}

impl StoreHealth {
    /// Returns the longest wait of a request for the store.
    pub(super) fn request_timeout(&self, deadline: Duration) -> Duration {
        (self.0.lock().latency * WAIT_TIMES)
            .max(deadline)
            .min(WAIT_MAX.max(deadline))
    }

    /// Records a response to a request that was sent at `sent` and took `took`.
    pub(super) fn record_response(&self, sent: Ticks, took: Duration) {
        self.0.lock().record_response(sent, took);
    }

    /// Records a response to a heartbeat.
    pub(super) fn record_heartbeat(&self, beat: HeartbeatAnswer, sent: Ticks, took: Duration) {
        let mut state = self.0.lock();
        let before = state.last_response;
        state.record_response(sent, took);
        let sole = beat.others == 0;
        if sole && state.processes != 1 {
            state.sole_since = sent;
        }
        if !sole {
            state.last_seen_others = Some(sent);
        }
        state.processes = beat.others.saturating_add(1);
        if state.counters != beat.counters {
            if !state.counters.is_empty() {
                state.lost_at = Some(before);
                state.last_local_admission = Some(sent);
            }
            state.counters = beat.counters;
        }
    }

    /// Records that this process admitted a request without the store.
    pub(super) fn record_local_admission(&self, now: Ticks) {
        let mut state = self.0.lock();
        state.last_local_admission = state.last_local_admission.max(Some(now));
    }

    /// Returns whether this is the only process. Its own counters then follow those of the store.
    pub(super) fn is_sole(&self) -> bool {
        self.0.lock().processes == 1
    }

    /// Returns the rule for a request while the store does not respond.
    pub(super) fn admission_without_store(&self, windows: &[Window], now: Ticks) -> LocalAdmission {
        self.0.lock().admission_without_store(windows, now)
    }

    /// Returns the rule that applies in addition to the store. Requests that were admitted without
    /// the store, or before it lost its counters, are missing in its counters. `None` if there are
    /// none.
    pub(super) fn admission_beside_store(
        &self,
        windows: &[Window],
        now: Ticks,
    ) -> Option<LocalAdmission> {
        self.0.lock().admission_beside_store(windows, now)
    }
}

impl HealthState {
    fn record_response(&mut self, sent: Ticks, took: Duration) {
        if self.last_response != 0 && sent > self.last_response + SILENCE_MAX {
            self.gap = Some((self.last_response, sent));
        }
        self.last_response = self.last_response.max(sent);
        self.latency = took.max((self.latency * 7 + took) / 8);
    }

    fn admission_without_store(&self, windows: &[Window], now: Ticks) -> LocalAdmission {
        let longest = longest(windows);
        match self.processes {
            0 => LocalAdmission::Refuse,
            1 if self.sole_since + longest <= now => LocalAdmission::OwnCounters,
            1 if self
                .last_seen_others
                .is_none_or(|last_seen_others| last_seen_others + longest <= now) =>
            {
                LocalAdmission::KnownWindows
            }
            // Every window that was opened in the store has ended.
            _ if self.last_response + SILENCE_MAX + longest <= now => self.share(windows),
            _ => LocalAdmission::Refuse,
        }
    }

    fn admission_beside_store(&self, windows: &[Window], now: Ticks) -> Option<LocalAdmission> {
        let longest = longest(windows);
        let counters_lost = self
            .lost_at
            .is_some_and(|lost_at| now < lost_at + SILENCE_MAX + longest);
        // A store that lost its counters also lost the list of processes. The first process with a
        // new heartbeat looks like the only one, although others counted in the window.
        let others_counted = self
            .last_seen_others
            .is_some_and(|last_seen_others| now < last_seen_others + SILENCE_MAX + longest);
        if counters_lost && (self.processes > 1 || others_counted) {
            return Some(LocalAdmission::Refuse);
        }
        if self.processes == 1 {
            return self
                .last_local_admission
                .filter(|last_local_admission| now < last_local_admission + longest)
                .map(|_| LocalAdmission::OwnCounters);
        }
        // No process admits requests without the store before a gap of this length.
        let (_, back) = self
            .gap
            .filter(|(last, back)| last + SILENCE_MAX + longest <= *back)?;
        let share = (now < back + longest).then(|| self.share(windows))?;
        (share != LocalAdmission::Refuse).then_some(share)
    }

    /// Returns an equal part of the limit for each process, rounded down. Rejects if the limit is
    /// smaller than the number of processes.
    fn share(&self, windows: &[Window]) -> LocalAdmission {
        let mut shares = [Window::default(); WINDOWS_MAX];
        for (share, window) in shares.iter_mut().zip(windows) {
            *share = Window {
                requests: window.requests / self.processes.max(1),
                ..*window
            };
        }
        let admits = shares
            .iter()
            .zip(windows)
            .all(|(share, _)| share.requests > 0);
        if admits {
            LocalAdmission::Share(shares)
        } else {
            LocalAdmission::Refuse
        }
    }
}

fn longest(windows: &[Window]) -> Ticks {
    windows
        .iter()
        .map(|window| window.millis())
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, STANDARD, per};

    const QUICK: Duration = Duration::from_millis(2);

    fn beat(others: u32) -> HeartbeatAnswer {
        HeartbeatAnswer {
            others,
            counters: "a".into(),
        }
    }

    fn share(requests: u32) -> LocalAdmission {
        LocalAdmission::Share([per(requests, 60), Window::default()])
    }

    #[test]
    fn request_timeout_follows_latency_within_bounds() {
        let health = StoreHealth::default();
        let deadline = Duration::from_millis(250);
        assert_eq!(
            health.request_timeout(deadline),
            deadline,
            "before the first answer"
        );
        health.record_response(1, QUICK);
        assert_eq!(health.request_timeout(deadline), deadline);
        health.record_response(2, Duration::from_millis(100));
        assert_eq!(health.request_timeout(deadline), Duration::from_millis(800));
        health.record_response(3, Duration::from_secs(1));
        assert_eq!(health.request_timeout(deadline), WAIT_MAX);
        for sent in 4..100 {
            health.record_response(sent, QUICK);
        }
        assert_eq!(health.request_timeout(deadline), deadline, "quick again");
        assert_eq!(
            health.request_timeout(Duration::from_secs(10)),
            Duration::from_secs(10),
            "the operator wants more"
        );
    }

    #[test]
    fn without_heartbeat_requests_are_refused() {
        assert_eq!(
            StoreHealth::default().admission_without_store(STANDARD.windows, 1_000_000),
            LocalAdmission::Refuse
        );
    }

    #[test]
    fn only_process_uses_its_own_counters() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(0), 1_000, QUICK);
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 2_000),
            LocalAdmission::KnownWindows,
            "one before it may have counted"
        );
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 61_000),
            LocalAdmission::OwnCounters,
            "all its windows are over"
        );
    }

    #[test]
    fn new_only_process_waits_for_windows_of_others() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(1), 1_000, QUICK);
        health.record_heartbeat(beat(0), 12_000, QUICK);
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 60_999),
            LocalAdmission::Refuse
        );
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 72_000),
            LocalAdmission::OwnCounters
        );
    }

    #[test]
    fn processes_share_the_limit_after_windows_ended() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(2), 1_000, QUICK);
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 63_999),
            LocalAdmission::Refuse
        );
        assert_eq!(
            health.admission_without_store(STANDARD.windows, 64_000),
            share(40)
        );
        assert_eq!(
            health.admission_without_store(CONTEXT.windows, 64_000),
            LocalAdmission::Refuse,
            "one a second cannot be shared"
        );
    }

    #[test]
    fn shares_apply_for_a_window_after_a_long_gap() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(1), 1_000, QUICK);
        health.record_heartbeat(beat(1), 70_000, QUICK);
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 70_001),
            Some(share(60))
        );
        assert_eq!(
            health.admission_beside_store(&[per(120, 180)], 70_001),
            None,
            "no process can have admitted by itself yet"
        );
        assert_eq!(
            health.admission_beside_store(CONTEXT.windows, 70_001),
            None,
            "no process could"
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 130_000),
            None
        );
    }

    #[test]
    fn first_process_after_counter_loss_is_not_the_only_one() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(1), 1_000, QUICK);
        let after_loss = |others| HeartbeatAnswer {
            others,
            counters: "b".into(),
        };
        health.record_heartbeat(after_loss(0), 2_000, QUICK);
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 2_001),
            Some(LocalAdmission::Refuse)
        );
        health.record_heartbeat(after_loss(1), 3_000, QUICK);
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 3_001),
            Some(LocalAdmission::Refuse)
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 64_000),
            None
        );

        let only = StoreHealth::default();
        only.record_heartbeat(beat(0), 1_000, QUICK);
        only.record_heartbeat(after_loss(0), 2_000, QUICK);
        assert_eq!(
            only.admission_beside_store(STANDARD.windows, 2_001),
            Some(LocalAdmission::OwnCounters),
            "it knows what it admitted itself"
        );
    }

    #[test]
    fn lost_counters_refuse_until_windows_ended() {
        let health = StoreHealth::default();
        health.record_heartbeat(beat(1), 1_000, QUICK);
        health.record_heartbeat(
            HeartbeatAnswer {
                others: 1,
                counters: "b".into(),
            },
            2_000,
            QUICK,
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 2_001),
            Some(LocalAdmission::Refuse)
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 64_000),
            None
        );

        let health = StoreHealth::default();
        health.record_heartbeat(beat(0), 1_000, QUICK);
        health.record_heartbeat(
            HeartbeatAnswer {
                others: 0,
                counters: "b".into(),
            },
            2_000,
            QUICK,
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 2_001),
            Some(LocalAdmission::OwnCounters),
            "this process knows them all"
        );
        assert_eq!(
            health.admission_beside_store(STANDARD.windows, 62_000),
            None
        );
    }

    /// Checks that the shares of all processes add up to at most the limit.
    #[test]
    fn shares_sum_to_at_most_the_limit() {
        for processes in 1..200_u32 {
            for requests in [1, 10, 30, 120, 1_000_000] {
                let state = HealthState {
                    processes,
                    ..HealthState::default()
                };
                if let LocalAdmission::Share([share, _]) = state.share(&[per(requests, 60)]) {
                    assert!(share.requests * processes <= requests);
                    assert!(share.requests > 0);
                }
            }
        }
    }
}
