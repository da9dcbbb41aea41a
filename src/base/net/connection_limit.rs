//! So many limit for each of something, given back however who has one ends.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

/// ConnectionLimit holders, by whom. Holds only those who have one, so it is bounded by how many limit there are in all.
pub struct ConnectionLimit<K> {
    max: usize,
    holders: Mutex<HashMap<K, usize>>,
}

/// One of them.
pub struct ConnectionPermit<K: Eq + Hash> {
    limit: Arc<ConnectionLimit<K>>,
    key: K,
}

impl<K: Copy + Eq + Hash> ConnectionLimit<K> {
    /// At max `max` for each.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            holders: Mutex::default(),
        })
    }

    /// A place, if one is left.
    pub fn try_acquire(self: &Arc<Self>, key: K) -> Option<ConnectionPermit<K>> {
        let mut holders = self.holders.lock();
        let count = holders.entry(key).or_default();
        // Who has none is not in the map, and there is at least one for everybody.
        (*count < self.max).then(|| {
            *count += 1;
            ConnectionPermit {
                limit: Arc::clone(self),
                key,
            }
        })
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
    fn everybody_has_so_many_and_nothing_is_kept_of_who_has_none() {
        let limit = ConnectionLimit::new(2);
        let first: Vec<_> = [1, 1].map(|key| limit.try_acquire(key).unwrap()).into();
        assert!(limit.try_acquire(1).is_none());
        let other = limit.try_acquire(2).unwrap();
        drop(first);
        assert!(limit.try_acquire(1).is_some());
        drop(other);
        assert!(limit.holders.lock().is_empty());
    }
}
