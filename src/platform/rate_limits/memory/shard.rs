//! One shard of a table: counters in cache lines, found by open addressing. Its owner holds its lock.
//!
//! A slot is in one of three states: never used, *live* (its window is open), or *dead* (its window ended). A key's
//! search starts at its home line and goes on to the next until it meets a line with a slot never used. So a dead slot
//! may be overwritten by any key, but never be made "never used" except by rebuilding the shard, which happens when too
//! few such slots are left, and drops the dead.

use std::collections::BTreeMap;

use super::{
    name::Name,
    state,
    state::{State, States},
};
use crate::{
    base::clock::Ticks,
    platform::rate_limits::{Quotas, Verdict, WINDOWS_MAX, Window},
};

const SLOTS: usize = 4;
/// Parts of the slots that may be used, as quarters per line: 13/16. Searches stay within 1.2 lines on average.
const USED_QUARTERS: usize = 13;
/// A full shard looks for dead counters no more often than this, in milliseconds: a flood must not make each of its
/// requests pay for a pass over the shard. (A dead slot on a key's own way is reused at once all the same.)
const REST: Ticks = 1_000;

/// Slots that share a cache line. They are filled from the left, and never emptied.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line {
    hashes: [u64; SLOTS],
    states: [State; SLOTS],
}

impl Line {
    const EMPTY: Self = Self {
        hashes: [0; SLOTS],
        states: [State::NONE; SLOTS],
    };

    fn has_room(&self) -> bool {
        self.states[SLOTS - 1].is_none()
    }
}

/// Where a window of a key is.
#[derive(Debug, Clone, Copy)]
struct Place {
    line: usize,
    slot: usize,
}

type Places = [Option<Place>; WINDOWS_MAX];

/// A counter outside its slot, with the name it goes by.
pub(super) type Counter = (u64, State);

/// Counters, at most `lines_max` lines of them.
#[derive(Debug)]
pub(super) struct Shard {
    lines: Box<[Line]>,
    used: usize,
    /// Something was counted since this was last asked.
    changed: bool,
    /// No rebuilding before.
    rests_until: Ticks,
    /// By operation: what counts the keys that found no slot.
    overflow: BTreeMap<u64, States>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            lines: Box::new([Line::EMPTY]),
            used: 0,
            changed: false,
            rests_until: 0,
            overflow: BTreeMap::new(),
        }
    }
}

impl Shard {
    /// Counts one request, if every window admits it; `counted` is then told the new states of its windows, and which of them
    /// are shared by keys that found no room.
    #[inline]
    pub(super) fn take(
        &mut self,
        name: Name,
        windows: &[Window],
        now: Ticks,
        lines_max: usize,
        counted: impl FnOnce(&[State], [bool; WINDOWS_MAX]),
    ) -> Verdict {
        let places = self.find(name.hash, windows.len());
        let mut states = [State::NONE; WINDOWS_MAX];
        for (state, place) in states.iter_mut().zip(&places).take(windows.len()) {
            let Some(place) = place else {
                let (verdict, states, shared) =
                    self.take_new(name, windows, now, lines_max, places);
                if verdict.admitted {
                    counted(&states[..windows.len()], shared);
                }
                return verdict;
            };
            *state = self.lines[place.line].states[place.slot];
        }
        let verdict = state::take(&mut states, windows, now);
        if verdict.admitted {
            for (state, place) in states.iter().zip(&places).take(windows.len()) {
                if let Some(place) = place {
                    self.lines[place.line].states[place.slot] = *state;
                }
            }
            self.changed = true;
            counted(&states[..windows.len()], [false; WINDOWS_MAX]);
        }
        verdict
    }

    /// [`take`](Self::take) for a key that misses a slot.
    #[inline(never)]
    fn take_new(
        &mut self,
        name: Name,
        windows: &[Window],
        now: Ticks,
        lines_max: usize,
        places: Places,
    ) -> (Verdict, States, [bool; WINDOWS_MAX]) {
        let mut states = self.states(name, places, now);
        let mut shared = [false; WINDOWS_MAX];
        let verdict = state::take(&mut states, windows, now);
        if !verdict.admitted {
            return (verdict, states, shared);
        }
        self.changed = true;
        for (state, place) in states.iter().zip(places) {
            if let Some(Place { line, slot }) = place {
                self.lines[line].states[slot] = *state;
            }
        }
        // Making room may move what was written above: places end here.
        for index in (0..windows.len()).filter(|index| places[*index].is_none()) {
            // A key that an open overflow window counts stays there until it ends. Else it would be admitted by both.
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
        (verdict, states, shared)
    }

    pub(super) fn peek(&self, name: Name, windows: &[Window], now: Ticks) -> Quotas {
        let places = self.find(name.hash, windows.len());
        state::peek(&self.states(name, places, now), windows, now)
    }

    pub(super) fn give_back(&mut self, name: Name, windows: &[Window], taken: Ticks) {
        let places = self.find(name.hash, windows.len());
        // What was counted with others is theirs too, and stays counted.
        for (place, &window) in places.into_iter().zip(windows) {
            if let Some(Place { line, slot }) = place {
                self.changed |= self.lines[line].states[slot].give_back(window, taken);
            }
        }
    }

    /// Adds to what is known of the key what another counter of it says, as far as there is room.
    pub(super) fn note(
        &mut self,
        name: Name,
        states: impl Iterator<Item = (State, Window)>,
        now: Ticks,
        lines_max: usize,
    ) {
        for (state, window) in states {
            // Making room may have moved what was found before.
            match self.find(name.hash, WINDOWS_MAX)[state.window()] {
                Some(Place { line, slot }) => {
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

    /// The key's windows: its own, or open ones that it shares because the table was full.
    fn states(&self, name: Name, places: Places, now: Ticks) -> States {
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
        for (state, place) in states.iter_mut().zip(places) {
            if let Some(Place { line, slot }) = place {
                *state = self.lines[line].states[slot];
            }
        }
        states
    }

    /// The slots of the first `windows` windows of a key.
    #[inline]
    fn find(&self, hash: u64, windows: usize) -> Places {
        let mut places = [None; WINDOWS_MAX];
        let mut missing = windows;
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            for slot in 0..SLOTS {
                // A slot never used has hash 0, which may be a key's; but no key follows it.
                if line.hashes[slot] == hash
                    && !line.states[slot].is_none()
                    && line.states[slot].window() < windows
                {
                    places[line.states[slot].window()] = Some(Place { line: at, slot });
                    missing -= 1;
                }
            }
            if missing == 0 || line.has_room() {
                return places;
            }
            at = self.after(at);
        }
    }

    /// Puts a window into the first slot on its way that is not live. False if the shard is full of live ones.
    fn insert(&mut self, hash: u64, state: State, now: Ticks, lines_max: usize) -> bool {
        if self.used >= used_max(self.lines.len()) && now >= self.rests_until {
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

    /// Drops the dead and makes room for an eighth more than the living, as far as it may.
    fn rebuild(&mut self, now: Ticks, lines_max: usize) {
        let live = self.live(now).count();
        let lines = lines_for(live + live / 8 + 1).min(lines_max);
        let mut rebuilt = Self {
            lines: vec![Line::EMPTY; lines].into_boxed_slice(),
            ..Self::default()
        };
        // Homes follow the order of hashes, so this writes as it reads: from the left to the right.
        for (hash, state) in self.live(now) {
            rebuilt.push(hash, state);
        }
        if lines == lines_max && live + live / 8 > used_max(lines) {
            self.rests_until = now + REST;
        }
        (self.lines, self.used) = (rebuilt.lines, live);
        self.overflow
            .retain(|_, states| states.iter().any(|state| state.is_open(now)));
    }

    /// Puts a window into a slot never used, of which there must be one.
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

    /// The line where the search for a key starts: its hash as a fraction of all.
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

    /// Live counters: of keys with a slot, then of operations that overflowed.
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

    /// Puts a counter back, unless one of the same name is open.
    pub(super) fn import(&mut self, hash: u64, state: State, now: Ticks, lines_max: usize) {
        match self.find(hash, WINDOWS_MAX)[state.window()] {
            Some(Place { line, slot }) if self.lines[line].states[slot].is_open(now) => {}
            Some(Place { line, slot }) => self.lines[line].states[slot] = state,
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

    /// Whether anything was counted since the last time this was asked.
    pub(super) fn was_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines) + self.overflow.len() * size_of::<(u64, States)>()
    }
}

/// Slots of so many lines that may be used. At least one stays unused, and ends every search.
fn used_max(lines: usize) -> usize {
    lines * USED_QUARTERS / 4
}

/// Lines that hold so many counters.
pub(super) fn lines_for(counters: usize) -> usize {
    (counters * 4).div_ceil(USED_QUARTERS).max(1)
}
