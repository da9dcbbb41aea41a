//! The state of one open window in eight bytes, and the rule that admits or refuses.

use gantry_base::clock::Ticks;

use crate::platform::rate_limits::{
    counter::{LimitDecision, Quota, Quotas, secs_up},
    window::{WINDOWS_MAX, Window},
};

/// Largest count of a window, 8,388,607: 23 bits. Higher limits are reduced to it.
const USED_MAX: u32 = (1 << 23) - 1;
/// Latest end of a window: 34 years after the process started.
const ENDS_MAX: Ticks = (1 << 40) - 1;
/// `used` and `window` occupy the bits below `ends`.
const ENDS_SHIFT: u32 = 24;

/// End of the window (40 bits of milliseconds), admitted requests (23 bits), and index of the key's
/// window (1 bit). The end occupies the top bits, so that states are ordered by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State(u64);

/// The windows of one key.
pub(super) type WindowStates = [State; WINDOWS_MAX];

impl State {
    /// No window: it ended at time zero.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn new(window: usize, used: u32, ends: Ticks) -> Self {
        Self(
            ends.clamp(1, ENDS_MAX) << ENDS_SHIFT
                | u64::from(used.min(USED_MAX)) << 1
                | (window as u64 & 1),
        )
    }

    /// Returns whether the slot of this state was never used. It then holds no key, not even an
    /// ended one.
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

    /// Returns the index of the key's window.
    pub(super) fn window(self) -> usize {
        usize::from(self.0 & 1 == 1)
    }

    /// Returns this state at `now` under the current limit: a new window if it has ended. If the
    /// operator shortened the window, it ends earlier; if it was lengthened, it keeps the end that
    /// clients have seen.
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

    /// Merges another counter's state of this window: the higher use and the later end. Ends that
    /// differ by more than half a window belong to two windows, of which the later one is open.
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

    /// Undoes one request that was counted at `taken`, if it was counted in this window. A window
    /// that the request opened is closed again.
    pub(super) fn give_back(&mut self, window: Window, taken: Ticks) -> bool {
        let was_in_it = self.is_open(taken) && self.ends() <= taken + length(window);
        let gives = was_in_it && self.used() > 0;
        if gives {
            let used = self.used() - 1;
            // Before the time of every thread, of which one may be behind `taken`.
            let ends = if used == 0 { 1 } else { self.ends() };
            *self = Self::new(self.window(), used, ends);
        }
        gives
    }
}

/// Returns the allotment that covers `used` requests: the end of their step. A step is one request
/// for the first eight, and then an eighth to a quarter of the requests so far.
pub(in crate::platform::rate_limits) fn allotment(used: u32) -> u32 {
    let Some(before) = used.checked_sub(1) else {
        return 0;
    };
    (before | ((1 << step_bits(before)) - 1)) + 1
}

/// Returns whether the request with the number `used` is the first of its step.
#[inline]
pub(super) fn begins_step(used: u32) -> bool {
    let before = used.saturating_sub(1);
    before & ((1 << step_bits(before)) - 1) == 0
}

/// Returns the number of bits of `used`, minus two.
#[inline]
fn step_bits(before: u32) -> u32 {
    (u32::BITS - before.leading_zeros()).saturating_sub(3)
}

/// Returns the length of a window, at least one millisecond. A window of length 0 would never admit
/// a request.
fn length(window: Window) -> u64 {
    window.millis().max(1)
}

fn limit(window: Window) -> u32 {
    window.requests.min(USED_MAX)
}

/// Counts one request in every window if every window admits it. Otherwise the caller must discard
/// the new `states`: a refused request counts nothing and opens nothing.
pub(super) fn take(states: &mut WindowStates, windows: &[Window], now: Ticks) -> LimitDecision {
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
    LimitDecision::local(admitted, quotas(states, windows, now))
}

/// Returns the quotas that a request at `now` would find. A window that is not open has its whole
/// quota and length.
pub(super) fn peek(states: &WindowStates, windows: &[Window], now: Ticks) -> Quotas {
    let mut states = *states;
    for (index, (state, &window)) in states.iter_mut().zip(windows).enumerate() {
        *state = state.at(index, length(window), now);
    }
    quotas(&states, windows, now)
}

fn quotas(states: &WindowStates, windows: &[Window], now: Ticks) -> Quotas {
    Quotas::new(states.iter().zip(windows).map(|(state, &window)| {
        let limit = limit(window);
        Quota {
            limit,
            remaining: limit.saturating_sub(state.used()),
            reset_secs: secs_up(state.ends().saturating_sub(now)),
        }
    }))
}
