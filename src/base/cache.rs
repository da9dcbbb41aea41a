//! What the database said, kept for a while: cleared by its notifications, aged in case one was lost.

use std::{
    hash::Hash,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};

use crate::base::clock::Ticks;

/// How long an entry is believed without a word from the database, in milliseconds.
const LIFETIME: Ticks = 30_000;

/// Values of one kind by key: bounded, aged, and safe against keeping a value that was read before it changed.
pub struct Shelf<K, V> {
    entries: Cache<K, Entry<V>, Weight<V>>,
    /// Grows with every clear: a value read in an older epoch is not believed. Odd while nothing may be kept.
    epoch: AtomicU64,
}

#[derive(Clone)]
struct Entry<V> {
    value: V,
    since: Ticks,
    /// In which it was read.
    epoch: u64,
}

/// What somebody was given last from a shelf, and is likely to ask for next. It is at hand with the one who asks: to look it up
/// again would touch several cache lines more.
pub struct Memo<V>(Mutex<Option<Entry<V>>>);

impl<V> Default for Memo<V> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// How much of a shelf a value takes.
struct Weight<V>(fn(&V) -> u64);

impl<V> Clone for Weight<V> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<K, V> Weighter<K, Entry<V>> for Weight<V> {
    fn weight(&self, _: &K, entry: &Entry<V>) -> u64 {
        (self.0)(&entry.value)
    }
}

impl<K: Eq + Hash, V: Clone> Shelf<K, V> {
    /// Holds at most `entries_max`; the least used go first.
    pub fn new(entries_max: usize) -> Self {
        Self::weighing(
            entries_max,
            u64::try_from(entries_max).unwrap_or(u64::MAX),
            |_| 1,
        )
    }

    /// Holds values that together weigh at most `weight_max`, `entries` of them as a rule; the least used go first.
    pub fn weighing(entries: usize, weight_max: u64, weight: fn(&V) -> u64) -> Self {
        Self {
            entries: Cache::with_weighter(entries, weight_max, Weight(weight)),
            epoch: AtomicU64::new(0),
        }
    }

    /// Read before the value is; given back with it.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The value, unless it is too old to be believed.
    pub fn get(&self, key: &K, now: Ticks) -> Option<V> {
        self.find(key, now).map(|entry| entry.value)
    }

    /// The same by way of a memo, if there is one: the value in it, if that `is` the one, else that of `key`, which is in it from
    /// then on.
    pub fn recall(
        &self,
        memo: Option<&Memo<V>>,
        is: impl FnOnce(&V) -> bool,
        key: impl FnOnce() -> K,
        now: Ticks,
    ) -> Option<V> {
        // Who comes while somebody else looks does not wait.
        let Some(mut last) = memo.and_then(|memo| memo.0.try_lock()) else {
            return self.get(&key(), now);
        };
        if let Some(entry) = last
            .as_ref()
            .filter(|entry| self.believes(entry, now) && is(&entry.value))
        {
            return Some(entry.value.clone());
        }
        let entry = self.find(&key(), now)?;
        Some(last.insert(entry).value.clone())
    }

    fn find(&self, key: &K, now: Ticks) -> Option<Entry<V>> {
        self.entries
            .get(key)
            .filter(|entry| self.believes(entry, now))
    }

    fn believes(&self, entry: &Entry<V>, now: Ticks) -> bool {
        entry.epoch == self.epoch() && now.saturating_sub(entry.since) < LIFETIME
    }

    /// Keeps a value that was read in `epoch`, unless everything was cleared since.
    pub fn put(&self, key: K, value: V, now: Ticks, epoch: u64) {
        if self.epoch() == epoch && epoch.is_multiple_of(2) {
            self.entries.insert(
                key,
                Entry {
                    value,
                    since: now,
                    epoch,
                },
            );
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
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
    fn a_memo_knows_the_last_one_as_long_as_its_shelf_would() {
        let (shelf, memo) = (Shelf::<u8, &str>::new(10), Memo::default());
        let put = |now| {
            shelf.put(1, "one", now, shelf.epoch());
            shelf.put(2, "two", now, shelf.epoch());
        };
        put(0);
        let looked_up = Cell::new(0);
        let ask = |number: u8, name: &str, now| {
            let key = || {
                looked_up.set(looked_up.get() + 1);
                number
            };
            shelf.recall(Some(&memo), |value| *value == name, key, now)
        };
        assert_eq!(
            (ask(1, "one", 0), ask(1, "one", 29_999), looked_up.get()),
            (Some("one"), Some("one"), 1)
        );
        assert_eq!(
            (ask(2, "two", 0), ask(2, "two", 0), looked_up.get()),
            (Some("two"), Some("two"), 2)
        );
        assert_eq!(ask(2, "two", 30_000), None, "too old");
        put(30_000);
        assert_eq!(ask(2, "two", 30_000), Some("two"));
        shelf.clear();
        assert_eq!(ask(2, "two", 30_000), None, "cleared");
        put(30_000);
        assert_eq!(ask(2, "two", 30_000), Some("two"));
        shelf.believe(false);
        assert_eq!(ask(2, "two", 30_000), None, "nothing is believed");
        shelf.believe(true);
        assert_eq!(ask(2, "two", 30_000), None);

        put(30_000);
        assert_eq!(ask(1, "one", 30_000), Some("one"));
        let (before, held) = (looked_up.get(), memo.0.lock());
        assert_eq!(ask(1, "one", 30_000), Some("one"), "not waited for");
        assert_eq!(looked_up.get(), before + 1);
        drop(held);
    }

    #[test]
    fn what_is_held_is_bounded_by_its_weight() {
        let shelf = Shelf::<u16, Vec<u8>>::weighing(100, 10_000, |bytes| bytes.len() as u64);
        for key in 0..1_000 {
            shelf.put(key, vec![0; 100], 0, shelf.epoch());
        }
        let held = (0..1_000).filter(|key| shelf.get(key, 0).is_some()).count();
        assert!((50..=100).contains(&held), "{held} of at most 100");
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
            assert_eq!(
                keeps(shelf.epoch()),
                believe,
                "a clear changes nothing of it"
            );
        }
    }
}
