//! Cache of refusals by the shared store.
//!
//! A refusal stays valid until its window ends, so that the cached decision is exact and saves a
//! round trip. Only refused keys can be hot, because admitted requests of a key are few by
//! definition.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use gantry_base::clock::Ticks;
use hashbrown::HashTable;
use parking_lot::Mutex;

use super::{
    counter::{CounterKey, LimitDecision, Quota, Quotas},
    store::StoreAnswer,
    window::{WINDOWS_MAX, Window},
};

/// Number of shards, each with a lock.
const SHARDS: usize = 64;
/// Bound of the refusals of a shard. One more is not cached; its next request costs a round trip.
const ENTRIES_MAX: usize = 2_048;
/// Shortest time between two sweeps of a full shard, in milliseconds.
const SWEEP: Ticks = 1_000;

/// Cached refusals of one node.
pub(super) struct RefusalCache {
    shards: Box<[Mutex<RefusalShard>]>,
    hasher: RandomState,
}

#[derive(Default)]
struct RefusalShard {
    refusals: HashTable<(CounterKey, CachedRefusal)>,
    swept: Ticks,
}

#[derive(Clone, Copy)]
struct CachedRefusal {
    /// Windows of the refused request. A request with other windows, after a change of the limit,
    /// does not match.
    windows: [Window; WINDOWS_MAX],
    used: [u32; WINDOWS_MAX],
    ends: [Ticks; WINDOWS_MAX],
    /// End of the last of the exhausted windows.
    until: Ticks,
}

impl Default for RefusalCache {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
        }
    }
}

impl RefusalCache {
    /// Returns the refusal of `key` if it is still valid at `now`.
    pub(super) fn get(
        &self,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> Option<LimitDecision> {
        let (hash, shard) = self.shard(key);
        let refusal = shard
            .lock()
            .refusals
            .find(hash, |(k, _)| *k == key)
            .map(|(_, refusal)| *refusal)?;
        (refusal.until > now && refusal.windows == padded(windows))
            .then(|| refusal.decision(windows, now))
    }

    /// Caches a refusal by the store of a request sent at `sent`. Remaining times count from then,
    /// so that a refusal never lasts too long.
    pub(super) fn remember(
        &self,
        key: CounterKey,
        windows: &[Window],
        answer: &StoreAnswer,
        sent: Ticks,
    ) {
        let ends = answer.left.map(|left| sent + left);
        let full = windows
            .iter()
            .zip(answer.used)
            .zip(ends)
            .filter(|((window, used), _)| *used >= window.requests);
        let Some(until) = full
            .map(|(_, ends)| ends)
            .max()
            .filter(|until| *until > sent)
        else {
            return;
        };
        let refusal = CachedRefusal {
            windows: padded(windows),
            used: answer.used,
            ends,
            until,
        };
        let (hash, shard) = self.shard(key);
        let mut shard = shard.lock();
        if let Some((_, known)) = shard.refusals.find_mut(hash, |(k, _)| *k == key) {
            *known = refusal;
        } else if shard.has_room(sent) {
            shard
                .refusals
                .insert_unique(hash, (key, refusal), |(k, _)| self.hasher.hash_one(k));
        }
    }

    fn shard(&self, key: CounterKey) -> (u64, &Mutex<RefusalShard>) {
        let hash = self.hasher.hash_one(key);
        // The hash table uses the low and the top bits, so the shard is selected by bits in
        // between.
        (hash, &self.shards[(hash >> 32) as usize % SHARDS])
    }
}

impl RefusalShard {
    fn has_room(&mut self, now: Ticks) -> bool {
        if self.refusals.len() >= ENTRIES_MAX && now >= self.swept + SWEEP {
            self.swept = now;
            self.refusals.retain(|(_, refusal)| refusal.until > now);
        }
        self.refusals.len() < ENTRIES_MAX
    }
}

impl CachedRefusal {
    fn decision(&self, windows: &[Window], now: Ticks) -> LimitDecision {
        let quotas = windows
            .iter()
            .zip(self.used)
            .zip(self.ends)
            .map(|((window, used), ends)| {
                if ends > now {
                    Quota::used(*window, used, ends - now)
                } else {
                    Quota::whole(*window)
                }
            });
        LimitDecision::local(false, Quotas::new(quotas))
    }
}

fn padded(windows: &[Window]) -> [Window; WINDOWS_MAX] {
    let mut list = [Window::default(); WINDOWS_MAX];
    list.iter_mut()
        .zip(windows)
        .for_each(|(place, window)| *place = *window);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, CounterScope, Identifier, per};
    use gantry_base::ids::UserId;

    fn key(user: i64) -> CounterKey {
        CounterKey {
            identifier: Identifier::User(UserId(user)),
            scope: CounterScope::User,
            operation: 0,
        }
    }

    #[test]
    fn refusal_expires_with_its_last_window() {
        let cache = RefusalCache::default();
        let windows = CONTEXT.windows;
        cache.remember(
            key(1),
            windows,
            &StoreAnswer {
                admitted: false,
                used: [10, 1],
                left: [30_000, 400],
            },
            1_000,
        );
        let at = |now| {
            cache
                .get(key(1), windows, now)
                .map(|decision| decision.quotas.as_slice().to_vec())
        };
        let quota = |limit, remaining, reset_secs| Quota {
            limit,
            remaining,
            reset_secs,
        };
        assert_eq!(at(1_001), Some(vec![quota(10, 0, 30), quota(1, 0, 1)]));
        assert_eq!(
            at(1_400),
            Some(vec![quota(10, 0, 30), quota(1, 1, 1)]),
            "the second is over, the minute is not"
        );
        assert_eq!(at(30_999), Some(vec![quota(10, 0, 1), quota(1, 1, 1)]));
        assert_eq!(at(31_000), None);

        cache.remember(
            key(2),
            windows,
            &StoreAnswer {
                admitted: false,
                used: [3, 1],
                left: [30_000, 400],
            },
            1_000,
        );
        assert!(cache.get(key(2), windows, 1_399).is_some());
        assert!(
            cache.get(key(2), windows, 1_400).is_none(),
            "only the second refused"
        );
    }

    #[test]
    fn refusal_is_valid_for_its_windows_only() {
        let cache = RefusalCache::default();
        cache.remember(
            key(1),
            &[per(10, 60)],
            &StoreAnswer {
                admitted: false,
                used: [10, 0],
                left: [30_000, 0],
            },
            0,
        );
        assert!(cache.get(key(1), &[per(10, 60)], 1).is_some());
        assert!(cache.get(key(1), &[per(500, 60)], 1).is_none());
    }

    #[test]
    fn cache_is_bounded_and_drops_ended_refusals() {
        let cache = RefusalCache::default();
        let refused = |left| StoreAnswer {
            admitted: false,
            used: [10, 0],
            left: [left, 0],
        };
        for user in 0..300_000 {
            cache.remember(key(user), &[per(10, 60)], &refused(30_000), 0);
        }
        let held = || {
            cache
                .shards
                .iter()
                .map(|shard| shard.lock().refusals.len())
                .sum::<usize>()
        };
        assert_eq!(held(), SHARDS * ENTRIES_MAX);
        cache.remember(key(-1), &[per(10, 60)], &refused(30_000), 30_000);
        assert!(cache.get(key(-1), &[per(10, 60)], 30_001).is_some());
    }
}
