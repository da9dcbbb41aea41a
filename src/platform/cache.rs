//! A cache of values from the database, cleared by notifications. Entries expire in case a
//! notification is lost.

use std::{
    hash::Hash,
    sync::atomic::{AtomicU64, Ordering},
};

use gantry_base::clock::Ticks;
use quick_cache::{Weighter, sync::Cache};

/// Lifetime of an entry, in milliseconds.
const LIFETIME: Ticks = 30_000;

/// A bounded cache of values by key. A value that was read before the last clear is not cached.
pub struct EpochCache<K, V> {
    entries: Cache<K, CacheEntry<V>, EntryWeight<V>>,
    /// Incremented by every clear. A value that was read in an earlier epoch is not used. Odd while
    /// caching is disabled.
    epoch: AtomicU64,
}

#[derive(Clone)]
struct CacheEntry<V> {
    value: V,
    cached_at: Ticks,
    /// Epoch in which the value was read.
    epoch: u64,
}

/// Function that returns the weight of a value.
struct EntryWeight<V>(fn(&V) -> u64);

impl<V> Clone for EntryWeight<V> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<K, V> Weighter<K, CacheEntry<V>> for EntryWeight<V> {
    fn weight(&self, _: &K, entry: &CacheEntry<V>) -> u64 {
        (self.0)(&entry.value)
    }
}

impl<K: Eq + Hash, V: Clone> EpochCache<K, V> {
    /// Returns a cache of at most `entries_max` values; the least used are evicted first.
    pub fn new(entries_max: usize) -> Self {
        Self::with_weight(
            entries_max,
            u64::try_from(entries_max).unwrap_or(u64::MAX),
            |_| 1,
        )
    }

    /// Returns a cache of values with a total weight of at most `weight_max`, about `entries` of
    /// them; the least used are evicted first.
    pub fn with_weight(entries: usize, weight_max: u64, weight: fn(&V) -> u64) -> Self {
        Self {
            entries: Cache::with_weighter(entries, weight_max, EntryWeight(weight)),
            epoch: AtomicU64::new(0),
        }
    }

    /// Returns the current epoch. Callers read it before the value and pass it to [`Self::put`].
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the value unless it has expired.
    pub fn get(&self, key: &K, now: Ticks) -> Option<V> {
        let entry = self.entries.get(key)?;
        self.is_current(&entry, now).then_some(entry.value)
    }

    fn is_current(&self, entry: &CacheEntry<V>, now: Ticks) -> bool {
        entry.epoch == self.epoch() && now.saturating_sub(entry.cached_at) < LIFETIME
    }

    /// Caches a value that was read in `epoch`, unless the cache was cleared since.
    pub fn put(&self, key: K, value: V, now: Ticks, epoch: u64) {
        if self.epoch() == epoch && epoch.is_multiple_of(2) {
            self.entries.insert(
                key,
                CacheEntry {
                    value,
                    cached_at: now,
                    epoch,
                },
            );
        }
    }

    /// Removes all values, and prevents caching of values that are being read.
    pub fn clear(&self) {
        self.epoch.fetch_add(2, Ordering::AcqRel);
        self.entries.clear();
    }

    /// Removes all values, and enables or disables caching. Disabled while no notifications are
    /// received.
    pub fn set_trusted(&self, trusted: bool) {
        let next = |epoch: u64| Some((epoch | 1) + if trusted { 1 } else { 2 });
        // The closure never returns `None`.
        let _ = self
            .epoch
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_late_puts_are_ignored_after_clear() {
        let cache = EpochCache::<u8, &str>::new(10);
        let epoch = cache.epoch();
        cache.put(1, "one", 0, epoch);
        assert_eq!(cache.get(&1, 29_999), Some("one"));
        assert_eq!(cache.get(&1, 30_000), None);

        let before = cache.epoch();
        cache.clear();
        cache.put(2, "read before the change", 0, before);
        assert_eq!(cache.get(&2, 0), None);
    }

    #[test]
    fn cache_is_bounded_by_weight() {
        let cache =
            EpochCache::<u16, Vec<u8>>::with_weight(100, 10_000, |bytes| bytes.len() as u64);
        for key in 0..1_000 {
            cache.put(key, vec![0; 100], 0, cache.epoch());
        }
        let held = (0..1_000).filter(|key| cache.get(key, 0).is_some()).count();
        assert!((50..=100).contains(&held), "{held} of at most 100");
    }

    #[test]
    fn untrusted_cache_stores_nothing() {
        let cache = EpochCache::<u8, &str>::new(10);
        let keeps = |epoch| {
            cache.put(1, "one", 0, epoch);
            cache.get(&1, 0).is_some()
        };
        assert!(keeps(cache.epoch()));
        for trusted in [false, false, true, true, false, true] {
            let before = cache.epoch();
            cache.set_trusted(trusted);
            assert_eq!(cache.get(&1, 0), None, "everything is forgotten");
            assert!(!keeps(before), "read before the change");
            assert_eq!(keeps(cache.epoch()), trusted);
            cache.clear();
            assert_eq!(
                keeps(cache.epoch()),
                trusted,
                "a clear changes nothing of it"
            );
        }
    }
}
