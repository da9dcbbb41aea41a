//! The counters, wherever they are.

use std::{
    future::{Ready, ready},
    sync::Arc,
};

use futures_util::future::{BoxFuture, Either};

use super::{Counted, Key, Limit, Memory, Place, Policies, Policy, Quotas, Shared, Verdict, Window, overrides::Changed};
use crate::clock::Ticks;

/// A decision that is there already, or is waited for.
pub type Deciding<'a> = Either<Ready<Verdict>, BoxFuture<'a, Verdict>>;

/// Counts requests: in this process, or together with others.
pub struct Limits {
    memory: Arc<Memory>,
    shared: Option<Shared>,
    policies: Policies,
    changed: Changed,
}

impl Limits {
    /// For operations of these ids and limits, numbered in this order; in `memory` unless `shared` is given and answers.
    pub fn new(operations: impl Iterator<Item = (&'static str, &'static Limit)>, memory: Memory, shared: Option<Shared>) -> Self {
        Self { memory: Arc::new(memory), shared, policies: Policies::new(operations), changed: Changed::default() }
    }

    /// Counts one request of `key` at `now`, if every window admits it; counts nothing otherwise. Waits for nothing
    /// unless counters are shared, and then at most for the deadline.
    pub fn take<'a>(&'a self, key: Key, windows: &'a [Window], now: Ticks) -> Deciding<'a> {
        match &self.shared {
            None => Either::Left(ready(self.memory.take(key, windows, now))),
            // Boxed, so that who counts in memory does not carry the future of a statement around.
            Some(shared) => Either::Right(Box::pin(shared.take(&self.memory, self.policies.id(key.operation), key, windows, now))),
        }
    }

    /// Gives back what a [`take`](Self::take) at `taken` counted: the request turned out to belong to another key.
    pub async fn give_back(&self, key: Key, windows: &[Window], verdict: &Verdict, taken: Ticks, now: Ticks) {
        match (verdict.counted, &self.shared) {
            (Counted::Shared(left), Some(shared)) => {
                let left = left.map(|left| left.saturating_sub(now.saturating_sub(taken)));
                Box::pin(shared.give_back(self.policies.id(key.operation), key, &left[..windows.len()])).await;
            }
            _ => self.memory.give_back(key, windows, taken),
        }
    }

    /// Where each key stands, without counting anything.
    pub async fn peek(&self, keys: &[(Key, &[Window])], now: Ticks) -> Vec<Quotas> {
        if let Some(shared) = &self.shared {
            let keys: Vec<_> = keys.iter().map(|(key, windows)| (self.policies.id(key.operation), *key, *windows)).collect();
            if let Some(quotas) = shared.peek(&keys).await {
                return quotas;
            }
        }
        keys.iter().map(|(key, windows)| self.memory.peek(*key, windows, now)).collect()
    }

    /// What applies to `operation` here: its own limit, or the operator's override.
    pub fn policy(&self, operation: u16, place: Place) -> Policy {
        self.policies.of(operation, place)
    }

    /// The counters of this process, to be kept across a restart.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// To be woken when an operator changed something.
    pub fn changed(&self) -> &Changed {
        &self.changed
    }

    /// The operations and what the operator changed about them.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }
}
