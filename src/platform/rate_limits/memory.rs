//! Counters in memory: exact fixed windows that start at the first request of their key.
//!
//! A table is split into 256 shards with a lock each. A counter takes 16 bytes of one cache line,
//! so that a decision costs one lock and one line. The table grows and shrinks with the live
//! counters, by an eighth of a shard at a time, up to a bound. At the bound no live counter is
//! evicted: new keys share one counter per operation and shard, which refuses too early rather than
//! too late. Authenticated callers have a table of their own, which a flood of addresses cannot
//! fill.
//!
//! Time is passed in and never goes back: an earlier `now` is replaced by the latest one. Threads
//! race between reading the clock and taking the lock, and this must not change the length of a
//! window.

mod name;
mod shard;
mod state;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use gantry_base::clock::{Entropy, Ticks};
use parking_lot::Mutex;

use self::{
    name::{CounterName, KeyHasher},
    shard::{Shard, lines_for},
    state::State,
};
use super::{
    counter::{CounterKey, Identifier, LimitDecision, Quotas},
    window::{WINDOWS_MAX, Window},
};

pub(super) use name::Seed;
pub(super) use state::allotment;

/// Largest number of shards of a table: more than the cores of a machine.
const SHARDS_MAX: usize = 256;
/// Smallest number of counters per shard.
const SHARD_MIN: usize = 1024;

/// Bounds of the number of live counters. One takes 16 to 24 bytes; an operation with two windows
/// has two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCapacity {
    /// Counters of authenticated callers: 4,194,304 by default, at most 83 MB.
    pub known: usize,
    /// Counters of addresses of anonymous clients: 1,048,576 by default, at most 21 MB.
    pub addresses: usize,
}

impl Default for CounterCapacity {
    fn default() -> Self {
        Self {
            known: 1 << 22,
            addresses: 1 << 20,
        }
    }
}

/// Counters of one process. All methods are exact under concurrency.
#[derive(Debug)]
pub struct Memory {
    hasher: KeyHasher,
    latest: LatestTime,
    known: CounterTable,
    addresses: CounterTable,
}

/// The latest time, on a cache line of its own: it is written a thousand times a second and read
/// far more often.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LatestTime(AtomicU64);

#[derive(Debug)]
struct CounterTable {
    shards: Box<[LockedShard]>,
    /// Bound of the lines of each shard.
    lines_max: usize,
}

/// A shard on a cache line of its own, to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(64))]
struct LockedShard(Mutex<Shard>);

/// A live counter, for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterRecord {
    /// Kind of the counter.
    pub kind: Kind,
    /// Name of the key, or of the operation and the overflowing shard.
    pub name: u64,
    /// Index of the key's window.
    pub window: u8,
    /// Admitted requests.
    pub used: u32,
    /// Milliseconds until the window ends.
    pub left: u64,
}

/// The kind of a [`CounterRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A key of an authenticated caller.
    Known,
    /// A key of an address.
    Address,
    /// Authenticated callers of one operation that found no slot.
    KnownOverflow,
    /// Addresses that found no slot.
    AddressOverflow,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(CounterCapacity::default(), &[], Entropy::system().bytes())
    }
}

impl Memory {
    /// Returns empty counters. `operations` are the ids behind [`CounterKey::operation`], which
    /// identify them in snapshots. `seed` is a secret that keeps clients from choosing colliding
    /// keys.
    pub fn new(capacity: CounterCapacity, operations: &[&str], seed: [u8; 32]) -> Self {
        Self {
            hasher: KeyHasher::new(seed, operations),
            latest: LatestTime::default(),
            known: CounterTable::new(capacity.known),
            addresses: CounterTable::new(capacity.addresses),
        }
    }

    /// Counts one request of `key` at `now` if every window admits it; counts nothing otherwise.
    pub fn take(&self, key: CounterKey, windows: &[Window], now: Ticks) -> LimitDecision {
        self.observe_time(now);
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

    /// Counts one request of journaled counters. If it is the first of a step of its windows,
    /// `allot` receives the ends of the steps before the request is admitted. The lock of the shard
    /// excludes snapshots and other requests of the key meanwhile.
    pub(super) fn take_allotted(
        &self,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
        allot: impl FnOnce(&[CounterRecord]),
    ) -> LimitDecision {
        self.observe_time(now);
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
                let mut cells = [CounterRecord {
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
                    *place = CounterRecord {
                        used: allotment(state.used()),
                        ..cell(kind, name, *state, now)
                    };
                }
                allot(&cells[..states.len()]);
            },
        )
    }

    /// Gives back a request that [`take`](Self::take) counted at `taken`, because it belongs to
    /// another key. Does nothing if its window has ended since.
    pub fn give_back(&self, key: CounterKey, windows: &[Window], taken: Ticks) {
        let (name, table) = self.name(&key);
        table
            .shard(name.hash)
            .lock()
            .give_back(name, bounded(windows), taken);
    }

    /// Merges the counts of a shared store for `key`: the admitted requests and the remaining
    /// milliseconds of each window. Windows with 0 milliseconds are skipped. A late response only
    /// adds to known counts.
    pub fn merge(
        &self,
        key: CounterKey,
        windows: &[Window],
        used: [u32; WINDOWS_MAX],
        left: [u64; WINDOWS_MAX],
        now: Ticks,
    ) {
        self.observe_time(now);
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
        shard.merge(name, states, now, table.lines_max);
    }

    /// Returns the quotas of `key` without counting. A window that is not open reports its whole
    /// quota and length.
    pub fn peek(&self, key: CounterKey, windows: &[Window], now: Ticks) -> Quotas {
        self.observe_time(now);
        let (name, table) = self.name(&key);
        let shard = table.shard(name.hash).lock();
        shard.peek(name, bounded(windows), self.now())
    }

    /// Returns every counter that is live at `now`. Shards are copied one after the other, each in
    /// a consistent state.
    pub fn export(&self, now: Ticks) -> impl Iterator<Item = CounterRecord> {
        self.observe_time(now);
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

    /// Restores exported counters, which end `left` milliseconds from `now`. A key with an open
    /// window keeps it. Requires the seed of the export.
    pub fn import(&self, cells: impl IntoIterator<Item = CounterRecord>, now: Ticks) {
        self.observe_time(now);
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
                // The low bits are the shard's index.
                Kind::KnownOverflow | Kind::AddressOverflow => {
                    shard.import_overflow(cell.name & !0xffff, state);
                }
            }
        }
    }

    /// Returns whether anything was counted since the last call.
    pub(super) fn was_changed(&self) -> bool {
        // `any` would stop at the first changed shard and leave the flags of the others set.
        self.locked()
            .filter(|shard| shard.0.lock().was_changed())
            .count()
            > 0
    }

    /// Returns the secret that names depend on.
    pub(super) fn seed(&self) -> Seed {
        self.hasher.seed()
    }

    /// Returns the allocated memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.locked()
            .map(|shard| size_of::<LockedShard>() + shard.0.lock().bytes())
            .sum()
    }

    fn locked(&self) -> impl Iterator<Item = &LockedShard> {
        self.known.shards.iter().chain(&self.addresses.shards)
    }

    #[inline]
    fn name(&self, key: &CounterKey) -> (CounterName, &CounterTable) {
        let table = match key.identifier {
            Identifier::User(_) | Identifier::Session(_) | Identifier::Application(_) => {
                &self.known
            }
            Identifier::Address(_) => &self.addresses,
        };
        (self.hasher.name(key), table)
    }

    #[inline]
    fn observe_time(&self, now: Ticks) {
        // The load avoids a write for all but the first request of a millisecond.
        if now > self.latest.0.load(Ordering::Relaxed) {
            self.latest.0.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Returns the time. To be called with the lock of a shard held: each thread publishes its time
    /// before it locks, so that the time under one lock never goes back.
    #[inline]
    fn now(&self) -> Ticks {
        self.latest.0.load(Ordering::Relaxed)
    }
}

impl CounterTable {
    fn new(counters: usize) -> Self {
        let shards = (counters / SHARD_MIN)
            .clamp(1, SHARDS_MAX)
            .next_power_of_two();
        Self {
            shards: (0..shards).map(|_| LockedShard::default()).collect(),
            lines_max: lines_for(counters.div_ceil(shards)),
        }
    }

    /// Selects the shard by the low bits of a name; the shard itself uses the high bits.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "low bits are what is wanted"
    )]
    fn shard(&self, name: u64) -> &Mutex<Shard> {
        &self.shards[name as usize & (self.shards.len() - 1)].0
    }

    /// Returns the index of the shard, as in the names of overflow counters.
    fn index(&self, name: u64) -> u64 {
        name & (self.shards.len() as u64 - 1)
    }
}

fn cell(kind: Kind, name: u64, state: State, now: Ticks) -> CounterRecord {
    CounterRecord {
        kind,
        name,
        window: u8::from(state.window() == 1),
        used: state.used(),
        left: state.ends() - now,
    }
}

/// A limit has at most two windows.
#[inline]
fn bounded(windows: &[Window]) -> &[Window] {
    debug_assert!(windows.len() <= WINDOWS_MAX);
    &windows[..windows.len().min(WINDOWS_MAX)]
}
