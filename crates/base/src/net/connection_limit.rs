//! A limit on concurrent holders per key. The permit is released on drop.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

/// Number of permits held for each key. Keys without a permit are removed, so the map is bounded by
/// the number of permits in use.
pub struct ConnectionLimit<K> {
    max: usize,
    holders: Mutex<HashMap<K, usize>>,
}

/// A permit for one key. Dropping it releases it.
pub struct ConnectionPermit<K: Eq + Hash> {
    limit: Arc<ConnectionLimit<K>>,
    key: K,
}

impl<K: Copy + Eq + Hash> ConnectionLimit<K> {
    /// Creates a limit of `max` permits per key.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            holders: Mutex::default(),
        })
    }

    /// Returns a permit, or `None` if `max` permits are held for `key`.
    pub fn try_acquire(self: &Arc<Self>, key: K) -> Option<ConnectionPermit<K>> {
        self.try_acquire_within(key, self.max)
    }

    /// Returns a permit, or `None` if `max` permits or those of the limit are held for `key`.
    pub fn try_acquire_within(self: &Arc<Self>, key: K, max: usize) -> Option<ConnectionPermit<K>> {
        let mut holders = self.holders.lock();
        let count = holders.entry(key).or_default();
        // At least 1, so an entry of zero never remains in the map.
        (*count < max.min(self.max).max(1)).then(|| {
            *count += 1;
            ConnectionPermit {
                limit: Arc::clone(self),
                key,
            }
        })
    }

    /// Returns the number of permits held for `key`.
    pub fn held(&self, key: &K) -> usize {
        self.holders.lock().get(key).copied().unwrap_or(0)
    }

    /// Returns whether a permit is held for `key`.
    pub fn is_held(&self, key: &K) -> bool {
        self.holders.lock().contains_key(key)
    }
}

impl<K: Eq + Hash> Drop for ConnectionPermit<K> {
    fn drop(&mut self) {
        let mut holders = self.limit.holders.lock();
        if let Some(count) = holders.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                holders.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_applies_per_key_and_released_keys_are_removed() {
        let limit = ConnectionLimit::new(2);
        let first: Vec<_> = [1, 1].map(|key| limit.try_acquire(key).unwrap()).into();
        assert!(limit.try_acquire(1).is_none());
        assert!(limit.is_held(&1) && !limit.is_held(&2));
        assert_eq!((limit.held(&1), limit.held(&2)), (2, 0));
        assert!(limit.try_acquire_within(1, 3).is_none());
        let other = limit.try_acquire_within(2, 1).unwrap();
        assert!(limit.try_acquire_within(2, 1).is_none());
        drop(first);
        assert!(limit.try_acquire(1).is_some());
        drop(other);
        assert!(limit.holders.lock().is_empty());
    }
}
