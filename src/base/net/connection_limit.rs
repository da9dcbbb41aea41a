//! So many places for each of something, given back however who has one ends.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

/// Places taken, by whom. Holds only those who have one, so it is bounded by how many places there are in all.
pub struct Places<K> {
    most: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// One of them.
pub struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    key: K,
}

impl<K: Copy + Eq + Hash> Places<K> {
    /// At most `most` for each.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
        })
    }

    /// A place, if one is left.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Place<K>> {
        let mut taken = self.taken.lock();
        let count = taken.entry(key).or_default();
        // Who has none is not in the map, and there is at least one for everybody.
        (*count < self.most).then(|| {
            *count += 1;
            Place {
                places: Arc::clone(self),
                key,
            }
        })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_so_many_and_nothing_is_kept_of_who_has_none() {
        let places = Places::new(2);
        let first: Vec<_> = [1, 1].map(|key| places.take(key).unwrap()).into();
        assert!(places.take(1).is_none());
        let other = places.take(2).unwrap();
        drop(first);
        assert!(places.take(1).is_some());
        drop(other);
        assert!(places.taken.lock().is_empty());
    }
}
