//! One open window of one key, in eight bytes, and the rule that admits or refuses.

use super::super::{Quota, Quotas, Verdict, WINDOWS_MAX, Window, secs_up};
use crate::base::clock::Ticks;

/// Most requests a window can admit, 8,388,607: what is left of the eight bytes. A higher limit counts as this one.
const USED_MAX: u32 = (1 << 23) - 1;
/// Latest end of a window: 34 years after the process started.
const ENDS_MAX: Ticks = (1 << 40) - 1;
/// `used` and `window` lie below `ends`.
const ENDS_SHIFT: u32 = 24;

/// When the window ends (40 bits of milliseconds), how many requests it admitted (23 bits), and which of its key's
/// windows it is (1 bit). The end comes first, so that states compare by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State(u64);

/// The windows of one key.
pub(super) type States = [State; WINDOWS_MAX];

impl State {
    /// No window: it ended at the start of time.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn new(window: usize, used: u32, ends: Ticks) -> Self {
        Self(
            ends.clamp(1, ENDS_MAX) << ENDS_SHIFT
                | u64::from(used.min(USED_MAX)) << 1
                | (window as u64 & 1),
        )
    }

    /// Never written: a slot in this state holds no key, not even a dead one.
    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub(super) fn is_open(self, now: Ticks) -> bool {
        self.ends() > now
    }

    pub(super) fn ends(self) -> Ticks {
        self.0 >> ENDS_SHIFT
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked to 23 bits")]
    pub(super) fn used(self) -> u32 {
        (self.0 >> 1) as u32 & USED_MAX
    }

    /// Which of its key's windows it is.
    pub(super) fn window(self) -> usize {
        usize::from(self.0 & 1 == 1)
    }

    /// This state at `now`, under today's limit: a new window if it ended. An operator may have shortened the window
    /// since it opened; one that was made longer keeps the end that clients were told.
    fn at(self, window: usize, length: u64, now: Ticks) -> Self {
        let ends = now + length;
        if !self.is_open(now) {
            Self::new(window, 0, ends)
        } else if self.ends() > ends {
            Self::new(window, self.used(), ends)
        } else {
            self
        }
    }

    /// This state and what another counter says of the same window: the more of both. Ends that are half a window apart are
    /// those of two windows, of which the later is open.
    pub(super) fn joined(self, other: Self, window: Window, now: Ticks) -> Self {
        let half = length(window) / 2;
        if !self.is_open(now) || other.ends() >= self.ends() + half {
            other
        } else if self.ends() >= other.ends() + half {
            self
        } else {
            Self::new(
                self.window(),
                self.used().max(other.used()),
                self.ends().max(other.ends()),
            )
        }
    }

    /// Undoes one request that was counted at `taken`, if that was in this very window and not in one before it. A window
    /// that was opened by it is closed again: the next request is the first.
    pub(super) fn give_back(&mut self, window: Window, taken: Ticks) -> bool {
        let was_in_it = self.is_open(taken) && self.ends() <= taken + length(window);
        let gives = was_in_it && self.used() > 0;
        if gives {
            let used = self.used() - 1;
            let ends = if used == 0 { taken } else { self.ends() };
            *self = Self::new(self.window(), used, ends);
        }
        gives
    }
}

/// The allotment that covers `used` requests: the end of the step they are in. A step is one request for the first eight,
/// and then an eighth to a quarter of what was admitted before it.
pub(in crate::platform::rate_limits) fn allotment(used: u32) -> u32 {
    let Some(before) = used.checked_sub(1) else {
        return 0;
    };
    (before | ((1 << step_bits(before)) - 1)) + 1
}

/// Whether the request that made it `used` is the first of its step.
#[inline]
pub(super) fn begins_step(used: u32) -> bool {
    let before = used.saturating_sub(1);
    before & ((1 << step_bits(before)) - 1) == 0
}

/// Two less than the bits of the number.
#[inline]
fn step_bits(before: u32) -> u32 {
    (u32::BITS - before.leading_zeros()).saturating_sub(3)
}

/// A window of no length would never admit anything.
fn length(window: Window) -> u64 {
    window.millis().max(1)
}

fn limit(window: Window) -> u32 {
    window.requests.min(USED_MAX)
}

/// Counts one request in every window, if every window admits it. Otherwise the caller must forget the new `states`:
/// a refused request counts nothing and opens nothing.
pub(super) fn take(states: &mut States, windows: &[Window], now: Ticks) -> Verdict {
    let mut admitted = true;
    for (index, (state, &window)) in states.iter_mut().zip(windows).enumerate() {
        *state = state.at(index, length(window), now);
        admitted &= state.used() < limit(window);
    }
    if admitted {
        for (state, _) in states.iter_mut().zip(windows) {
            state.0 += 1 << 1;
        }
    }
    Verdict::here(admitted, quotas(states, windows, now))
}

/// What a request at `now` would find. A window that is not open is whole, and lasts its whole length.
pub(super) fn peek(states: &States, windows: &[Window], now: Ticks) -> Quotas {
    let mut states = *states;
    for (index, (state, &window)) in states.iter_mut().zip(windows).enumerate() {
        *state = state.at(index, length(window), now);
    }
    quotas(&states, windows, now)
}

fn quotas(states: &States, windows: &[Window], now: Ticks) -> Quotas {
    Quotas::new(states.iter().zip(windows).map(|(state, &window)| {
        let limit = limit(window);
        Quota {
            limit,
            remaining: limit.saturating_sub(state.used()),
            reset_secs: secs_up(state.ends().saturating_sub(now)),
        }
    }))
}
