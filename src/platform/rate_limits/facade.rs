//! The counters, wherever they are.

use std::{
    future::{Ready, ready},
    sync::{Arc, OnceLock},
};

use futures_util::future::{BoxFuture, Either};

use super::{
    Identifier, Journal, Key, LOOK_UPS, Limit, Memory, Place, Policies, Policy, Quotas, Scope,
    Shared, Verdict, Window, overrides::Changed,
};
use crate::base::clock::Ticks;

/// A decision that is there already, or is waited for.
pub type Deciding<'a> = Either<Ready<Verdict>, BoxFuture<'a, Verdict>>;

/// Counts requests: in this process, or together with others.
pub struct Limits {
    memory: Arc<Memory>,
    journal: OnceLock<Arc<Journal>>,
    shared: Option<Shared>,
    policies: Policies,
    changed: Changed,
}

impl Limits {
    /// For operations of these ids and limits, numbered in this order; in `memory` unless `shared` is given and answers.
    pub fn new(
        operations: impl Iterator<Item = (&'static str, &'static Limit)>,
        memory: Memory,
        shared: Option<Shared>,
    ) -> Self {
        Self {
            memory: Arc::new(memory),
            journal: OnceLock::new(),
            shared,
            policies: Policies::new(operations),
            changed: Changed::default(),
        }
    }

    /// Counts one request of `key` at `now`, if every window admits it; counts nothing otherwise. Waits for nothing
    /// unless counters are shared, and then at most as long as the store lately needed.
    pub fn take<'a>(&'a self, key: Key, windows: &'a [Window], now: Ticks) -> Deciding<'a> {
        match (&self.shared, self.journal.get()) {
            (None, None) => Either::Left(ready(self.memory.take(key, windows, now))),
            (None, Some(journal)) => Either::Left(ready(journal.take(key, windows, now))),
            // Boxed, so that who counts in memory does not carry the future of a statement around.
            (Some(shared), _) => Either::Right(Box::pin(shared.take(
                &self.memory,
                self.policies.id(key.operation),
                key,
                windows,
                now,
            ))),
        }
    }

    /// Takes a look-up of a name that is not known to belong to `identifier`; if there is none left, what its window says.
    /// In this process alone: the look-up is a query of this process, and asking a store costs as much.
    pub fn take_look_up(&self, identifier: Identifier, now: Ticks) -> Result<(), (Policy, Quotas)> {
        let verdict = self.memory.take(look_ups(identifier), LOOK_UPS, now);
        if verdict.admitted {
            Ok(())
        } else {
            Err((Policy::new(LOOK_UPS), verdict.quotas))
        }
    }

    /// Gives back the look-up that was taken at `taken`: the name is the caller's own.
    pub fn give_back_look_up(&self, identifier: Identifier, taken: Ticks) {
        self.memory.give_back(look_ups(identifier), LOOK_UPS, taken);
    }

    /// Where each key stands, without counting anything.
    pub async fn peek(&self, keys: &[(Key, &[Window])], now: Ticks) -> Vec<Quotas> {
        if let Some(shared) = &self.shared {
            let keys: Vec<_> = keys
                .iter()
                .map(|(key, windows)| (self.policies.id(key.operation), *key, *windows))
                .collect();
            if let Some(quotas) = shared.peek(&keys).await {
                return quotas;
            }
        }
        keys.iter()
            .map(|(key, windows)| self.memory.peek(*key, windows, now))
            .collect()
    }

    /// What applies to `operation` here: its own limit, or the operator's override.
    pub fn policy(&self, operation: u16, place: Place) -> Policy {
        self.policies.of(operation, place)
    }

    /// Counts with what keeps the counters across a restart, from now on. Only the first is taken.
    pub fn keep(&self, journal: Arc<Journal>) {
        // There is one for each process.
        let _ = self.journal.set(journal);
    }

    /// The journal that keeps counters across a restart, if there is one.
    pub fn kept(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
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

/// Counts the look-ups of an identifier, for all operations together.
fn look_ups(identifier: Identifier) -> Key {
    Key {
        identifier,
        scope: Scope::LookUps,
        operation: u16::MAX,
    }
}
