//! State of the contact with the shared store: whether it answers, how fast, and how many processes count in it.
//!
//! The rules here say what may be admitted while the store does not answer, so that all processes together stay within
//! the limit. They are pure: time is passed in.

use std::time::Duration;

use parking_lot::Mutex;

use super::{WINDOWS_MAX, Window, store::Beat};
use crate::base::clock::Ticks;

/// How often a process tells the store that it lives, and hears how many others do.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Longest time anything waits for the store. After it, a store that answers others is away for this process.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(2);
/// A request waits so many times what the store lately needed, at least the operator's deadline.
const WAIT_TIMES: u32 = 8;
/// How long after its last answer the store may still have answered others, in milliseconds: until the next heartbeat
/// fails.
const SILENCE_MAX: Ticks = 3_000;

/// Contact with a store.
#[derive(Debug, Default)]
pub(super) struct Contact(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// When the store last answered this process.
    heard: Ticks,
    /// Smoothed: grows at once, shrinks slowly.
    latency: Duration,
    /// Processes that count in the store, this one included; 0 before the store told.
    processes: u32,
    /// Since when this process is the only one.
    sole_since: Ticks,
    /// When there last was another one.
    crowded: Option<Ticks>,
    /// Which counters the store has: another text means that it lost those before.
    counters: String,
    /// When the store last answered before it lost its counters.
    lost: Option<Ticks>,
    /// The last time of silence: the answer before it, and the answer after it.
    gap: Option<(Ticks, Ticks)>,
    /// When this process last admitted a request by itself.
    alone: Option<Ticks>,
}

/// How a request is decided without the store, or beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alone {
    /// Refused: requests that other processes admitted may be in the window.
    Nothing,
    /// By the counters of this process, which know every request of the window: there is no other process.
    Everything,
    /// By the counters of this process, if they know the window; otherwise refused.
    KnownWindows,
    /// By the counters of this process, up to its share of these windows.
    Share([Window; WINDOWS_MAX]),
}

impl Contact {
    /// How long a request waits for the store.
    pub(super) fn wait(&self, deadline: Duration) -> Duration {
        (self.0.lock().latency * WAIT_TIMES)
            .max(deadline)
            .min(WAIT_MAX.max(deadline))
    }

    /// The store answered a request that was sent at `sent`, after `took`.
    pub(super) fn heard(&self, sent: Ticks, took: Duration) {
        self.0.lock().hear(sent, took);
    }

    /// The store answered a heartbeat.
    pub(super) fn beaten(&self, beat: Beat, sent: Ticks, took: Duration) {
        let mut known = self.0.lock();
        let before = known.heard;
        known.hear(sent, took);
        let sole = beat.others == 0;
        if sole && known.processes != 1 {
            known.sole_since = sent;
        }
        if !sole {
            known.crowded = Some(sent);
        }
        known.processes = beat.others.saturating_add(1);
        if known.counters != beat.counters {
            if !known.counters.is_empty() {
                known.lost = Some(before);
                known.alone = Some(sent);
            }
            known.counters = beat.counters;
        }
    }

    /// Notes that this process admitted a request by itself.
    pub(super) fn admitted_alone(&self, now: Ticks) {
        let mut known = self.0.lock();
        known.alone = known.alone.max(Some(now));
    }

    /// Whether this process is the only one: then its own counters follow the store's.
    pub(super) fn is_sole(&self) -> bool {
        self.0.lock().processes == 1
    }

    /// How a request is decided while the store does not answer.
    pub(super) fn without(&self, windows: &[Window], now: Ticks) -> Alone {
        self.0.lock().without(windows, now)
    }

    /// The limit on a request besides the store that answers: requests admitted without it, or before it lost its counters,
    /// are in none of its counters. `None` if there is no such request.
    pub(super) fn beside(&self, windows: &[Window], now: Ticks) -> Option<Alone> {
        self.0.lock().beside(windows, now)
    }
}

impl Known {
    fn hear(&mut self, sent: Ticks, took: Duration) {
        if self.heard != 0 && sent > self.heard + SILENCE_MAX {
            self.gap = Some((self.heard, sent));
        }
        self.heard = self.heard.max(sent);
        self.latency = took.max((self.latency * 7 + took) / 8);
    }

    fn without(&self, windows: &[Window], now: Ticks) -> Alone {
        let longest = longest(windows);
        match self.processes {
            0 => Alone::Nothing,
            1 if self.sole_since + longest <= now => Alone::Everything,
            1 if self.crowded.is_none_or(|crowded| crowded + longest <= now) => Alone::KnownWindows,
            // Every window that was opened in the store is over.
            _ if self.heard + SILENCE_MAX + longest <= now => self.share(windows),
            _ => Alone::Nothing,
        }
    }

    fn beside(&self, windows: &[Window], now: Ticks) -> Option<Alone> {
        let longest = longest(windows);
        let is_lost = self
            .lost
            .is_some_and(|lost| now < lost + SILENCE_MAX + longest);
        // The store that lost its counters also lost the processes that it had heard of: the first to be heard again looks
        // like the only one, while others counted in the window.
        let had_others = self
            .crowded
            .is_some_and(|crowded| now < crowded + SILENCE_MAX + longest);
        if is_lost && (self.processes > 1 || had_others) {
            return Some(Alone::Nothing);
        }
        if self.processes == 1 {
            return self
                .alone
                .filter(|alone| now < alone + longest)
                .map(|_| Alone::Everything);
        }
        // Only after so long a silence may any process have begun to admit requests by itself.
        let (_, back) = self
            .gap
            .filter(|(last, back)| last + SILENCE_MAX + longest <= *back)?;
        let share = (now < back + longest).then(|| self.share(windows))?;
        (share != Alone::Nothing).then_some(share)
    }

    /// An equal part of the limit for each process, rounded down. A limit smaller than their number leaves nothing.
    fn share(&self, windows: &[Window]) -> Alone {
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
            Alone::Share(shares)
        } else {
            Alone::Nothing
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

    fn beat(others: u32) -> Beat {
        Beat {
            others,
            counters: "a".into(),
        }
    }

    fn share(requests: u32) -> Alone {
        Alone::Share([per(requests, 60), Window::default()])
    }

    #[test]
    fn a_request_waits_for_a_store_that_is_slow_and_not_for_ever() {
        let contact = Contact::default();
        let deadline = Duration::from_millis(250);
        assert_eq!(contact.wait(deadline), deadline, "before the first answer");
        contact.heard(1, QUICK);
        assert_eq!(contact.wait(deadline), deadline);
        contact.heard(2, Duration::from_millis(100));
        assert_eq!(contact.wait(deadline), Duration::from_millis(800));
        contact.heard(3, Duration::from_secs(1));
        assert_eq!(contact.wait(deadline), WAIT_MAX);
        for sent in 4..100 {
            contact.heard(sent, QUICK);
        }
        assert_eq!(contact.wait(deadline), deadline, "quick again");
        assert_eq!(
            contact.wait(Duration::from_secs(10)),
            Duration::from_secs(10),
            "the operator wants more"
        );
    }

    #[test]
    fn without_the_store_nothing_is_admitted_before_it_told_who_counts() {
        assert_eq!(
            Contact::default().without(STANDARD.windows, 1_000_000),
            Alone::Nothing
        );
    }

    #[test]
    fn a_process_that_is_the_only_one_goes_on_from_what_it_knows() {
        let contact = Contact::default();
        contact.beaten(beat(0), 1_000, QUICK);
        assert_eq!(
            contact.without(STANDARD.windows, 2_000),
            Alone::KnownWindows,
            "one before it may have counted"
        );
        assert_eq!(
            contact.without(STANDARD.windows, 61_000),
            Alone::Everything,
            "all its windows are over"
        );
    }

    #[test]
    fn a_process_that_became_the_only_one_waits_for_the_windows_of_the_others() {
        let contact = Contact::default();
        contact.beaten(beat(1), 1_000, QUICK);
        contact.beaten(beat(0), 12_000, QUICK);
        assert_eq!(contact.without(STANDARD.windows, 60_999), Alone::Nothing);
        assert_eq!(contact.without(STANDARD.windows, 72_000), Alone::Everything);
    }

    #[test]
    fn several_processes_share_the_limit_once_all_windows_of_the_store_are_over() {
        let contact = Contact::default();
        contact.beaten(beat(2), 1_000, QUICK);
        assert_eq!(contact.without(STANDARD.windows, 63_999), Alone::Nothing);
        assert_eq!(contact.without(STANDARD.windows, 64_000), share(40));
        assert_eq!(
            contact.without(CONTEXT.windows, 64_000),
            Alone::Nothing,
            "one a second cannot be shared"
        );
    }

    #[test]
    fn after_a_long_silence_every_process_keeps_to_its_share_for_a_window() {
        let contact = Contact::default();
        contact.beaten(beat(1), 1_000, QUICK);
        contact.beaten(beat(1), 70_000, QUICK);
        assert_eq!(contact.beside(STANDARD.windows, 70_001), Some(share(60)));
        assert_eq!(
            contact.beside(&[per(120, 180)], 70_001),
            None,
            "no process can have admitted by itself yet"
        );
        assert_eq!(
            contact.beside(CONTEXT.windows, 70_001),
            None,
            "no process could"
        );
        assert_eq!(contact.beside(STANDARD.windows, 130_000), None);
    }

    #[test]
    fn the_first_process_that_a_store_without_its_counters_hears_of_is_not_taken_for_the_only_one()
    {
        let contact = Contact::default();
        contact.beaten(beat(1), 1_000, QUICK);
        let lost = |others| Beat {
            others,
            counters: "b".into(),
        };
        contact.beaten(lost(0), 2_000, QUICK);
        assert_eq!(
            contact.beside(STANDARD.windows, 2_001),
            Some(Alone::Nothing)
        );
        contact.beaten(lost(1), 3_000, QUICK);
        assert_eq!(
            contact.beside(STANDARD.windows, 3_001),
            Some(Alone::Nothing)
        );
        assert_eq!(contact.beside(STANDARD.windows, 64_000), None);

        let only = Contact::default();
        only.beaten(beat(0), 1_000, QUICK);
        only.beaten(lost(0), 2_000, QUICK);
        assert_eq!(
            only.beside(STANDARD.windows, 2_001),
            Some(Alone::Everything),
            "it knows what it admitted itself"
        );
    }

    #[test]
    fn a_store_that_lost_its_counters_admits_nothing_until_their_windows_are_over() {
        let contact = Contact::default();
        contact.beaten(beat(1), 1_000, QUICK);
        contact.beaten(
            Beat {
                others: 1,
                counters: "b".into(),
            },
            2_000,
            QUICK,
        );
        assert_eq!(
            contact.beside(STANDARD.windows, 2_001),
            Some(Alone::Nothing)
        );
        assert_eq!(contact.beside(STANDARD.windows, 64_000), None);

        let contact = Contact::default();
        contact.beaten(beat(0), 1_000, QUICK);
        contact.beaten(
            Beat {
                others: 0,
                counters: "b".into(),
            },
            2_000,
            QUICK,
        );
        assert_eq!(
            contact.beside(STANDARD.windows, 2_001),
            Some(Alone::Everything),
            "this process knows them all"
        );
        assert_eq!(contact.beside(STANDARD.windows, 62_000), None);
    }

    /// The shares of all processes together are no more than the limit.
    #[test]
    fn shares_add_up_to_no_more_than_the_limit() {
        for processes in 1..200_u32 {
            for requests in [1, 10, 30, 120, 1_000_000] {
                let known = Known {
                    processes,
                    ..Known::default()
                };
                if let Alone::Share([share, _]) = known.share(&[per(requests, 60)]) {
                    assert!(share.requests * processes <= requests);
                    assert!(share.requests > 0);
                }
            }
        }
    }
}
