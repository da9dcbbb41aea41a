//! What the database said, kept for a while: cleared by its notifications, aged in case one was lost.

use std::{
    hash::Hash,
    sync::atomic::{AtomicU64, Ordering},
};

use quick_cache::sync::Cache;

use crate::clock::Ticks;

/// How long an entry is believed without a word from the database, in milliseconds.
const LIFETIME: Ticks = 30_000;

/// Values of one kind by key: bounded, aged, and safe against keeping a value that was read before it changed.
pub struct Shelf<K, V> {
    entries: Cache<K, (V, Ticks)>,
    /// Grows with every clear: a value read in an older epoch is not put back. Odd while nothing may be kept.
    epoch: AtomicU64,
}

impl<K: Eq + Hash, V: Clone> Shelf<K, V> {
    /// Holds at most `entries_max`; the least used go first.
    pub fn new(entries_max: usize) -> Self {
        Self { entries: Cache::new(entries_max), epoch: AtomicU64::new(0) }
    }

    /// Read before the value is; given back with it.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The value, unless it is too old to be believed.
    pub fn get(&self, key: &K, now: Ticks) -> Option<V> {
        let (value, since) = self.entries.get(key)?;
        (now.saturating_sub(since) < LIFETIME).then_some(value)
    }

    /// Keeps a value that was read in `epoch`, unless everything was cleared since.
    pub fn put(&self, key: K, value: V, now: Ticks, epoch: u64) {
        if self.epoch() == epoch && epoch.is_multiple_of(2) {
            self.entries.insert(key, (value, now));
            // Cleared between the check and the insert: take everything back rather than keep a stale entry.
            if self.epoch() != epoch {
                self.entries.clear();
            }
        }
    }

    /// Forgets everything, also what is being read right now.
    pub fn clear(&self) {
        self.epoch.fetch_add(2, Ordering::AcqRel);
        self.entries.clear();
    }

    /// Forgets everything, and keeps nothing until it is told to `believe` again.
    pub fn believe(&self, believe: bool) {
        let next = |epoch: u64| Some((epoch | 1) + if believe { 1 } else { 2 });
        // The closure never declines.
        let _ = self.epoch.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_ages_and_a_clear_beats_a_late_put() {
        let shelf = Shelf::<u8, &str>::new(10);
        let epoch = shelf.epoch();
        shelf.put(1, "one", 0, epoch);
        assert_eq!(shelf.get(&1, 29_999), Some("one"));
        assert_eq!(shelf.get(&1, 30_000), None);

        let before = shelf.epoch();
        shelf.clear();
        shelf.put(2, "read before the change", 0, before);
        assert_eq!(shelf.get(&2, 0), None);
    }

    #[test]
    fn nothing_is_kept_while_nothing_is_believed() {
        let shelf = Shelf::<u8, &str>::new(10);
        let keeps = |epoch| {
            shelf.put(1, "one", 0, epoch);
            shelf.get(&1, 0).is_some()
        };
        assert!(keeps(shelf.epoch()));
        for believe in [false, false, true, true, false, true] {
            let before = shelf.epoch();
            shelf.believe(believe);
            assert_eq!(shelf.get(&1, 0), None, "everything is forgotten");
            assert!(!keeps(before), "read before the change");
            assert_eq!(keeps(shelf.epoch()), believe);
            shelf.clear();
            assert_eq!(keeps(shelf.epoch()), believe, "a clear changes nothing of it");
        }
    }
}
