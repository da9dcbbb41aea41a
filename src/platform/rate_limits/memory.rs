//! Counters in memory: exact fixed windows that start at the first request of their key.
//!
//! A table is split into shards, each behind its lock: two requests meet only if their keys fall into the same of 256.
//! A counter takes 16 bytes of one cache line, so that a decision costs one lock and one line. Memory grows and shrinks
//! with what is alive, by an eighth of a shard at a time, up to a bound. At the bound nothing that is alive is given up:
//! new keys share one counter per operation and shard, which refuses too early rather than too late. Callers that are
//! known have a table of their own, which no flood of addresses can fill.
//!
//! Time is passed in, and never goes back: the engine takes a `now` that is earlier than one it has seen for that later
//! one. Threads race between reading the clock and getting here, and no window may become longer or shorter by that.

mod name;
mod shard;
mod state;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use self::{
    name::{Name, Namer},
    shard::{Shard, lines_for},
    state::State,
};
use super::{Identifier, Key, Quotas, Verdict, WINDOWS_MAX, Window};
use crate::base::clock::{Entropy, Ticks};

pub(super) use name::Seed;
pub(super) use state::allotment;

/// Locks of a table; more than any machine has cores, so that two requests rarely meet.
const SHARDS_MAX: usize = 256;
/// A shard is worth its lock from so many counters.
const SHARD_MIN: usize = 1024;

/// How many counters may be alive at a time. One takes 16 to 24 bytes; an operation with two windows has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Of callers that are known: 4,194,304 by default, at most 83 MB.
    pub known: usize,
    /// Of addresses of unauthenticated clients: 1,048,576 by default, at most 21 MB.
    pub addresses: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            known: 1 << 22,
            addresses: 1 << 20,
        }
    }
}

/// Counters of one process. All methods are exact under any number of threads.
#[derive(Debug)]
pub struct Memory {
    namer: Namer,
    latest: Latest,
    known: Table,
    addresses: Table,
}

/// The latest time seen. On a cache line of its own: it is written a thousand times a second, and read far more often.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Latest(AtomicU64);

#[derive(Debug)]
struct Table {
    shards: Box<[Locked]>,
    /// Lines each shard may grow to.
    lines_max: usize,
}

/// A shard on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Locked(Mutex<Shard>);

/// One live counter, for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// What it counts.
    pub kind: Kind,
    /// Name of its key, or of the operation and the shard that overflowed.
    pub name: u64,
    /// Which of the key's windows it is.
    pub window: u8,
    /// Requests admitted.
    pub used: u32,
    /// Milliseconds left of the window.
    pub left: u64,
}

/// What a [`Cell`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A key of a known caller.
    Known,
    /// A key of an address.
    Address,
    /// Known callers of one operation that found no room.
    KnownOverflow,
    /// Addresses that found no room.
    AddressOverflow,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Capacity::default(), &[], Entropy::system().bytes())
    }
}

impl Memory {
    /// No counters yet. `operations` are the ids behind [`Key::operation`], by which snapshots know them; `seed` is a
    /// secret, without which nobody can choose keys that collide.
    pub fn new(capacity: Capacity, operations: &[&str], seed: [u8; 32]) -> Self {
        Self {
            namer: Namer::new(seed, operations),
            latest: Latest::default(),
            known: Table::new(capacity.known),
            addresses: Table::new(capacity.addresses),
        }
    }

    /// Counts one request of `key` at `now`, if every window admits it; counts nothing otherwise.
    pub fn take(&self, key: Key, windows: &[Window], now: Ticks) -> Verdict {
        self.saw(now);
        let (name, table) = self.name(&key);
        let mut shard = table.shard(name.hash).lock();
        shard.take(
            name,
            bounded(windows),
            self.now(),
            table.lines_max,
            |_, _| {},
        )
    }

    /// Counts one request for counters that are journaled: if the request is the first of a step of its windows, `allot` is told the ends
    /// of the steps before the request counts as admitted. No snapshot and no other request of the key comes in between.
    pub(super) fn take_allotted(
        &self,
        key: Key,
        windows: &[Window],
        now: Ticks,
        allot: impl FnOnce(&[Cell]),
    ) -> Verdict {
        self.saw(now);
        let (name, table) = self.name(&key);
        let is_address = matches!(key.identifier, Identifier::Address(_));
        let mut shard = table.shard(name.hash).lock();
        let now = self.now();
        shard.take(
            name,
            bounded(windows),
            now,
            table.lines_max,
            |states, shared| {
                if !states.iter().any(|state| state::begins_step(state.used())) {
                    return;
                }
                let mut cells = [Cell {
                    kind: Kind::Known,
                    name: 0,
                    window: 0,
                    used: 0,
                    left: 0,
                }; WINDOWS_MAX];
                for ((place, state), shared) in cells.iter_mut().zip(states).zip(shared) {
                    let (kind, name) = match (is_address, shared) {
                        (false, false) => (Kind::Known, name.hash),
                        (true, false) => (Kind::Address, name.hash),
                        (false, true) => {
                            (Kind::KnownOverflow, name.operation | table.index(name.hash))
                        }
                        (true, true) => (
                            Kind::AddressOverflow,
                            name.operation | table.index(name.hash),
                        ),
                    };
                    *place = Cell {
                        used: allotment(state.used()),
                        ..cell(kind, name, *state, now)
                    };
                }
                allot(&cells[..states.len()]);
            },
        )
    }

    /// Gives back what a [`take`](Self::take) counted at `taken`: the request turned out to belong to another key. If
    /// that window has ended since, there is nothing to give back, and the one after it keeps what it counted.
    pub fn give_back(&self, key: Key, windows: &[Window], taken: Ticks) {
        let (name, table) = self.name(&key);
        table
            .shard(name.hash)
            .lock()
            .give_back(name, bounded(windows), taken);
    }

    /// Takes over what a shared store counted of `key`: how many requests each window admitted, and how many milliseconds it
    /// has left. A window that is not open has none left, and is passed over. Of an answer that comes late, only what is
    /// more than is known counts.
    pub fn note(
        &self,
        key: Key,
        windows: &[Window],
        used: [u32; WINDOWS_MAX],
        left: [u64; WINDOWS_MAX],
        now: Ticks,
    ) {
        self.saw(now);
        let (name, table) = self.name(&key);
        let mut shard = table.shard(name.hash).lock();
        let now = self.now();
        let open = windows
            .iter()
            .zip(used.into_iter().zip(left))
            .enumerate()
            .filter(|(_, (_, (_, left)))| *left > 0);
        let states = open
            .map(|(index, (window, (used, left)))| (State::new(index, used, now + left), *window));
        shard.note(name, states, now, table.lines_max);
    }

    /// Where `key` stands, without counting. A window that is not open is whole, and lasts its whole length.
    pub fn peek(&self, key: Key, windows: &[Window], now: Ticks) -> Quotas {
        self.saw(now);
        let (name, table) = self.name(&key);
        let shard = table.shard(name.hash).lock();
        shard.peek(name, bounded(windows), self.now())
    }

    /// Every counter alive at `now`, copied shard by shard: each is as it was at some moment of the iteration.
    pub fn export(&self, now: Ticks) -> impl Iterator<Item = Cell> {
        self.saw(now);
        let tables = [
            (&self.known, Kind::Known, Kind::KnownOverflow),
            (&self.addresses, Kind::Address, Kind::AddressOverflow),
        ];
        tables.into_iter().flat_map(move |(table, own, shared)| {
            table
                .shards
                .iter()
                .zip(0_u64..)
                .flat_map(move |(locked, index)| {
                    let shard = locked.0.lock();
                    let now = self.now();
                    let (counters, overflow) = shard.export(now);
                    drop(shard);
                    let counters = counters
                        .into_iter()
                        .map(move |(name, state)| cell(own, name, state, now));
                    counters.chain(
                        overflow.into_iter().map(move |(operation, state)| {
                            cell(shared, operation | index, state, now)
                        }),
                    )
                })
        })
    }

    /// Puts exported counters back, as if they ended when `left` has passed from `now`. A key that has an open window
    /// keeps it. Names hold only under the same seed.
    pub fn import(&self, cells: impl IntoIterator<Item = Cell>, now: Ticks) {
        self.saw(now);
        for cell in cells {
            let table = match cell.kind {
                Kind::Known | Kind::KnownOverflow => &self.known,
                Kind::Address | Kind::AddressOverflow => &self.addresses,
            };
            let mut shard = table.shard(cell.name).lock();
            let now = self.now();
            let state = State::new(
                usize::from(cell.window),
                cell.used,
                now.saturating_add(cell.left),
            );
            match cell.kind {
                Kind::Known | Kind::Address => shard.import(cell.name, state, now, table.lines_max),
                // Without the shard's number, which is less than its number of shards.
                Kind::KnownOverflow | Kind::AddressOverflow => {
                    shard.import_overflow(cell.name & !0xffff, state)
                }
            }
        }
    }

    /// Whether anything was counted since this was last asked.
    pub(super) fn was_changed(&self) -> bool {
        // Not `any`: it would leave shards after the first unasked.
        self.locked()
            .filter(|shard| shard.0.lock().was_changed())
            .count()
            > 0
    }

    /// The secret that names depend on.
    pub(super) fn seed(&self) -> Seed {
        self.namer.seed()
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.locked()
            .map(|shard| size_of::<Locked>() + shard.0.lock().bytes())
            .sum()
    }

    fn locked(&self) -> impl Iterator<Item = &Locked> {
        self.known.shards.iter().chain(&self.addresses.shards)
    }

    #[inline]
    fn name(&self, key: &Key) -> (Name, &Table) {
        let table = match key.identifier {
            Identifier::User(_) | Identifier::Session(_) | Identifier::Application(_) => {
                &self.known
            }
            Identifier::Address(_) => &self.addresses,
        };
        (self.namer.name(key), table)
    }

    #[inline]
    fn saw(&self, now: Ticks) {
        // Most requests are not the first of their millisecond, and need not write.
        if now > self.latest.0.load(Ordering::Relaxed) {
            self.latest.0.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The time, for whoever holds the lock of a shard: what came before under the same lock did not see a later one.
    /// (Reading after locking is what makes it so: each published its time before it locked.)
    #[inline]
    fn now(&self) -> Ticks {
        self.latest.0.load(Ordering::Relaxed)
    }
}

impl Table {
    fn new(counters: usize) -> Self {
        let shards = (counters / SHARD_MIN)
            .clamp(1, SHARDS_MAX)
            .next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Locked::default()).collect(),
            lines_max: lines_for(counters.div_ceil(shards)),
        }
    }

    /// By the low bits; within a shard the high ones count.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "low bits are what is wanted"
    )]
    fn shard(&self, name: u64) -> &Mutex<Shard> {
        &self.shards[name as usize & (self.shards.len() - 1)].0
    }

    /// Number of the shard, as the name of what overflows it has it.
    fn index(&self, name: u64) -> u64 {
        name & (self.shards.len() as u64 - 1)
    }
}

fn cell(kind: Kind, name: u64, state: State, now: Ticks) -> Cell {
    Cell {
        kind,
        name,
        window: u8::from(state.window() == 1),
        used: state.used(),
        left: state.ends() - now,
    }
}

/// A limit has one or two windows; a third would not be counted.
#[inline]
fn bounded(windows: &[Window]) -> &[Window] {
    debug_assert!(windows.len() <= WINDOWS_MAX);
    &windows[..windows.len().min(WINDOWS_MAX)]
}
