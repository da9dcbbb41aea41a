//! One shard of a table: counters in cache lines with open addressing. The caller holds the lock.
//!
//! A slot is unused, *live* (its window is open), or *dead* (its window has ended). The search for
//! a key starts at its home line and continues until a line with an unused slot. A dead slot may
//! therefore be reused by any key, but it becomes unused only when the shard is rebuilt. A rebuild
//! drops dead slots when too few unused ones are left.

use std::collections::BTreeMap;

use gantry_base::clock::Ticks;

use super::{
    name::CounterName,
    state,
    state::{State, WindowStates},
};
use crate::platform::rate_limits::{
    counter::{LimitDecision, Quotas},
    window::{WINDOWS_MAX, Window},
};

const SLOTS: usize = 4;
/// Largest share of used slots, in quarters of a slot per line: 13/16. Searches visit 1.2 lines on
/// average.
const USED_QUARTERS: usize = 13;
/// Shortest time between two rebuilds of a full shard, in milliseconds, so that a flood does not
/// cause a rebuild with each request. Dead slots in the path of a key are reused in any case.
const REBUILD_PAUSE: Ticks = 1_000;

/// Slots of one cache line. They are filled from the left and never become unused again.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct SlotLine {
    hashes: [u64; SLOTS],
    states: [State; SLOTS],
}

impl SlotLine {
    const EMPTY: Self = Self {
        hashes: [0; SLOTS],
        states: [State::NONE; SLOTS],
    };

    fn has_room(&self) -> bool {
        self.states[SLOTS - 1].is_none()
    }
}

/// Position of a key's window.
#[derive(Debug, Clone, Copy)]
struct SlotPosition {
    line: usize,
    slot: usize,
}

type SlotPositions = [Option<SlotPosition>; WINDOWS_MAX];

/// Name and state of an exported counter.
pub(super) type Counter = (u64, State);

/// Counters in at most `lines_max` lines.
#[derive(Debug)]
pub(super) struct Shard {
    lines: Box<[SlotLine]>,
    used: usize,
    /// Whether anything was counted since the last [`Self::was_changed`].
    changed: bool,
    /// Time before which the shard is not rebuilt.
    no_rebuild_before: Ticks,
    /// Shared counters of keys that found no slot, by operation.
    overflow: BTreeMap<u64, WindowStates>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            lines: Box::new([SlotLine::EMPTY]),
            used: 0,
            changed: false,
            no_rebuild_before: 0,
            overflow: BTreeMap::new(),
        }
    }
}

impl Shard {
    /// Counts one request if every window admits it. Then `counted` receives the new states of its
    /// windows, and which of them are overflow counters.
    #[inline]
    pub(super) fn take(
        &mut self,
        name: CounterName,
        windows: &[Window],
        now: Ticks,
        lines_max: usize,
        counted: impl FnOnce(&[State], [bool; WINDOWS_MAX]),
    ) -> LimitDecision {
        let positions = self.find(name.hash, windows.len());
        let mut states = [State::NONE; WINDOWS_MAX];
        for (state, position) in states.iter_mut().zip(&positions).take(windows.len()) {
            let Some(position) = position else {
                let (decision, states, shared) =
                    self.take_without_slot(name, windows, now, lines_max, positions);
                if decision.admitted {
                    counted(&states[..windows.len()], shared);
                }
                return decision;
            };
            *state = self.lines[position.line].states[position.slot];
        }
        let decision = state::take(&mut states, windows, now);
        if decision.admitted {
            for (state, position) in states.iter().zip(&positions).take(windows.len()) {
                if let Some(position) = position {
                    self.lines[position.line].states[position.slot] = *state;
                }
            }
            self.changed = true;
            counted(&states[..windows.len()], [false; WINDOWS_MAX]);
        }
        decision
    }

    /// [`take`](Self::take) for a key without a slot for each window.
    #[inline(never)]
    fn take_without_slot(
        &mut self,
        name: CounterName,
        windows: &[Window],
        now: Ticks,
        lines_max: usize,
        positions: SlotPositions,
    ) -> (LimitDecision, WindowStates, [bool; WINDOWS_MAX]) {
        let mut states = self.states(name, positions, now);
        let mut shared = [false; WINDOWS_MAX];
        let decision = state::take(&mut states, windows, now);
        if !decision.admitted {
            return (decision, states, shared);
        }
        self.changed = true;
        for (state, position) in states.iter().zip(positions) {
            if let Some(SlotPosition { line, slot }) = position {
                self.lines[line].states[slot] = *state;
            }
        }
        // An insertion may rebuild the shard, which invalidates the positions.
        for index in (0..windows.len()).filter(|index| positions[*index].is_none()) {
            // A key in an open overflow window stays there until the window ends. Otherwise it
            // could be admitted by both counters.
            let stays = self
                .overflow
                .get(&name.operation)
                .is_some_and(|states| states[index].is_open(now));
            if stays || !self.insert(name.hash, states[index], now, lines_max) {
                self.overflow
                    .entry(name.operation)
                    .or_insert([State::NONE; WINDOWS_MAX])[index] = states[index];
                shared[index] = true;
            }
        }
        (decision, states, shared)
    }

    pub(super) fn peek(&self, name: CounterName, windows: &[Window], now: Ticks) -> Quotas {
        let positions = self.find(name.hash, windows.len());
        state::peek(&self.states(name, positions, now), windows, now)
    }

    pub(super) fn give_back(&mut self, name: CounterName, windows: &[Window], taken: Ticks) {
        let positions = self.find(name.hash, windows.len());
        // Overflow counters are shared with other keys and are not given back.
        for (position, &window) in positions.into_iter().zip(windows) {
            if let Some(SlotPosition { line, slot }) = position {
                self.changed |= self.lines[line].states[slot].give_back(window, taken);
            }
        }
    }

    /// Merges the counts of another counter of this key, as far as there are slots.
    pub(super) fn merge(
        &mut self,
        name: CounterName,
        states: impl Iterator<Item = (State, Window)>,
        now: Ticks,
        lines_max: usize,
    ) {
        for (state, window) in states {
            // An insertion may have rebuilt the shard, so the position is looked up again.
            match self.find(name.hash, WINDOWS_MAX)[state.window()] {
                Some(SlotPosition { line, slot }) => {
                    let known = &mut self.lines[line].states[slot];
                    *known = known.joined(state, window, now);
                }
                None => {
                    self.insert(name.hash, state, now, lines_max);
                }
            }
            self.changed = true;
        }
    }

    /// Returns the states of the key's windows: its own, or those of open overflow counters.
    fn states(&self, name: CounterName, positions: SlotPositions, now: Ticks) -> WindowStates {
        let shared = self
            .overflow
            .get(&name.operation)
            .copied()
            .unwrap_or([State::NONE; WINDOWS_MAX]);
        let mut states = shared.map(|state| {
            if state.is_open(now) {
                state
            } else {
                State::NONE
            }
        });
        for (state, position) in states.iter_mut().zip(positions) {
            if let Some(SlotPosition { line, slot }) = position {
                *state = self.lines[line].states[slot];
            }
        }
        states
    }

    /// Finds the slots of the first `windows` windows of a key.
    #[inline]
    fn find(&self, hash: u64, windows: usize) -> SlotPositions {
        let mut positions = [None; WINDOWS_MAX];
        let mut missing = windows;
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            for slot in 0..SLOTS {
                // An unused slot has hash 0, which a key may have too.
                if line.hashes[slot] == hash
                    && !line.states[slot].is_none()
                    && line.states[slot].window() < windows
                {
                    positions[line.states[slot].window()] = Some(SlotPosition { line: at, slot });
                    missing -= 1;
                }
            }
            if missing == 0 || line.has_room() {
                return positions;
            }
            at = self.after(at);
        }
    }

    /// Stores a window in the first slot of its path that is not live. Returns `false` if no slot
    /// is free.
    fn insert(&mut self, hash: u64, state: State, now: Ticks, lines_max: usize) -> bool {
        if self.used >= used_max(self.lines.len()) && now >= self.no_rebuild_before {
            self.rebuild(now, lines_max);
        }
        let full = self.used >= used_max(self.lines.len());
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            for slot in 0..SLOTS {
                let is_new = line.states[slot].is_none();
                if is_new && full {
                    return false;
                }
                if !line.states[slot].is_open(now) {
                    self.used += usize::from(is_new);
                    (line.hashes[slot], line.states[slot]) = (hash, state);
                    return true;
                }
            }
            at = self.after(at);
        }
    }

    /// Drops dead slots and resizes the shard to an eighth more than the live ones, within the
    /// bound.
    fn rebuild(&mut self, now: Ticks, lines_max: usize) {
        let live = self.live(now).count();
        let lines = lines_for(live + live / 8 + 1).min(lines_max);
        let mut rebuilt = Self {
            lines: vec![SlotLine::EMPTY; lines].into_boxed_slice(),
            ..Self::default()
        };
        // Home lines are ordered by hash, so that reads and writes are sequential.
        for (hash, state) in self.live(now) {
            rebuilt.push(hash, state);
        }
        if lines == lines_max && live + live / 8 > used_max(lines) {
            self.no_rebuild_before = now + REBUILD_PAUSE;
        }
        (self.lines, self.used) = (rebuilt.lines, live);
        self.overflow
            .retain(|_, states| states.iter().any(|state| state.is_open(now)));
    }

    /// Stores a window in an unused slot, of which there must be one.
    fn push(&mut self, hash: u64, state: State) {
        let mut at = self.home(hash);
        while !self.lines[at].has_room() {
            at = self.after(at);
        }
        let line = &mut self.lines[at];
        if let Some(slot) = line.states.iter().position(|state| state.is_none()) {
            (line.hashes[slot], line.states[slot]) = (hash, state);
        }
    }

    fn live(&self, now: Ticks) -> impl Iterator<Item = (u64, State)> {
        let slots = self
            .lines
            .iter()
            .flat_map(|line| line.hashes.into_iter().zip(line.states));
        slots.filter(move |(_, state)| state.is_open(now))
    }

    /// Returns the line where the search for a key starts: its hash as a fraction of all lines.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "less than the number of lines"
    )]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() {
            0
        } else {
            line + 1
        }
    }

    /// Returns the live counters of keys with slots, and of overflowing operations.
    pub(super) fn export(&self, now: Ticks) -> (Vec<Counter>, Vec<Counter>) {
        let overflow = self
            .overflow
            .iter()
            .flat_map(|(operation, states)| states.iter().map(|state| (*operation, *state)));
        (
            self.live(now).collect(),
            overflow.filter(|(_, state)| state.is_open(now)).collect(),
        )
    }

    /// Restores a counter, unless its key has an open window.
    pub(super) fn import(&mut self, hash: u64, state: State, now: Ticks, lines_max: usize) {
        match self.find(hash, WINDOWS_MAX)[state.window()] {
            Some(SlotPosition { line, slot }) if self.lines[line].states[slot].is_open(now) => {}
            Some(SlotPosition { line, slot }) => self.lines[line].states[slot] = state,
            None => {
                self.insert(hash, state, now, lines_max);
            }
        }
    }

    pub(super) fn import_overflow(&mut self, operation: u64, state: State) {
        self.overflow
            .entry(operation)
            .or_insert([State::NONE; WINDOWS_MAX])[state.window()] = state;
    }

    /// Returns whether anything was counted since the last call.
    pub(super) fn was_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines) + self.overflow.len() * size_of::<(u64, WindowStates)>()
    }
}

/// Returns the number of slots that may be used in this many lines. At least one stays unused and
/// ends every search.
fn used_max(lines: usize) -> usize {
    lines * USED_QUARTERS / 4
}

/// Returns the number of lines for this many counters.
pub(super) fn lines_for(counters: usize) -> usize {
    (counters * 4).div_ceil(USED_QUARTERS).max(1)
}
