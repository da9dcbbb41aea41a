//! The entry point to rate limits, independent of the place of the counters.

use std::{
    future::{Ready, ready},
    sync::{Arc, OnceLock},
};

use futures_util::future::{BoxFuture, Either};
use gantry_base::clock::Ticks;

use super::{
    counter::{CounterKey, CounterScope, Identifier, LimitDecision, Quotas},
    journal::Journal,
    memory::Memory,
    policy::OverrideChanges,
    policy::{Policies, Policy, PolicyContext},
    shared::Shared,
    window::{LOOK_UPS, Limit, Window},
};

/// A decision that is either ready or waits for the shared store.
pub type DecisionFuture<'a> = Either<Ready<LimitDecision>, BoxFuture<'a, LimitDecision>>;

/// Rate limits with counters in this process or in a shared store.
pub struct RateLimiter {
    memory: Arc<Memory>,
    journal: OnceLock<Arc<Journal>>,
    shared: Option<Shared>,
    policies: Policies,
    override_changes: OverrideChanges,
}

impl RateLimiter {
    /// Creates the limits of these operations, indexed in this order. Counters are in `shared` if
    /// given, otherwise in `memory`.
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
            override_changes: OverrideChanges::default(),
        }
    }

    /// Counts one request of `key` at `now` if every window admits it; counts nothing otherwise.
    /// Waits only for a shared store, for a time bounded by its recent latency.
    pub fn take<'a>(
        &'a self,
        key: CounterKey,
        windows: &'a [Window],
        now: Ticks,
    ) -> DecisionFuture<'a> {
        match (&self.shared, self.journal.get()) {
            (None, None) => Either::Left(ready(self.memory.take(key, windows, now))),
            (None, Some(journal)) => Either::Left(ready(journal.take(key, windows, now))),
            // Boxed to keep the future of counters in memory small.
            (Some(shared), _) => Either::Right(Box::pin(shared.take(
                &self.memory,
                self.policies.id(key.operation),
                key,
                windows,
                now,
            ))),
        }
    }

    /// Counts a look-up of an unknown name for `identifier`. Returns the policy and the quotas if
    /// the limit is exhausted. Counted in this process only, because a shared store would cost as
    /// much as the look-up.
    pub fn take_look_up(&self, identifier: Identifier, now: Ticks) -> Result<(), (Policy, Quotas)> {
        let decision = self.memory.take(look_ups(identifier), LOOK_UPS, now);
        if decision.admitted {
            Ok(())
        } else {
            Err((Policy::new(LOOK_UPS), decision.quotas))
        }
    }

    /// Gives back the look-up that was counted at `taken`, after the name turned out to belong to
    /// the caller.
    pub fn give_back_look_up(&self, identifier: Identifier, taken: Ticks) {
        self.memory.give_back(look_ups(identifier), LOOK_UPS, taken);
    }

    /// Returns the quotas of each key, without counting.
    pub async fn peek(&self, keys: &[(CounterKey, &[Window])], now: Ticks) -> Vec<Quotas> {
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

    /// Returns the policy of an operation in this context: its own limit, or the operator's
    /// override.
    pub fn policy(&self, operation: u16, place: PolicyContext) -> Policy {
        self.policies.policy_for(operation, place)
    }

    /// Sets the journal that keeps counters across restarts. Only the first call has an effect.
    pub fn set_journal(&self, journal: Arc<Journal>) {
        // A process has one journal, so the error is ignored.
        let _ = self.journal.set(journal);
    }

    /// Returns the journal that keeps counters across restarts.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Returns the counters of this process.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the signal for changes of overrides.
    pub fn override_changes(&self) -> &OverrideChanges {
        &self.override_changes
    }

    /// Returns the policies of all operations.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }
}

/// Returns the key that counts the look-ups of an identifier for all operations.
fn look_ups(identifier: Identifier) -> CounterKey {
    CounterKey {
        identifier,
        scope: CounterScope::LookUps,
        operation: u16::MAX,
    }
}
