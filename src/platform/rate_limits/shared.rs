//! Counters shared with other processes: first the cache of refusals, then the store, and during an
//! outage the rules of [`StoreHealth`].

use std::{sync::Arc, time::Duration};

use gantry_base::clock::{Clock, Ticks};
use metrics::{Counter, Gauge};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    breaker::{self, Breaker, BreakerChange},
    counter::{CountedBy, CounterKey, LimitDecision, Quota, Quotas},
    memory::Memory,
    refusal_cache::RefusalCache,
    store::{Store, StoreAnswer, StoreError, store_key},
    store_health::{HEARTBEAT_INTERVAL, LocalAdmission, StoreHealth, WAIT_MAX},
    window::Window,
};

/// Minimum deadline of a read of many counters, which decides nothing.
const PEEK_DEADLINE: Duration = Duration::from_secs(1);
/// Bound of concurrent reads; more are answered from this process.
const PEEKS_MAX: usize = 8;
/// `reset` of a request that could not be counted: the store may be back soon.
const AGAIN_SECS: u32 = 1;

/// Counters shared by several processes. Exact: together they admit no more than the limit, and no
/// less while the store responds.
///
/// During an outage of the store a request is refused, unless no other process can have admitted
/// one in the same window, or this process may use its share.
/// `docs/decisions/0072-rate-limit-counters.md` has the reasons and the bounds.
pub struct Shared {
    core: Arc<Core>,
    /// Aborted when the counters are dropped.
    _heartbeat: JoinSet<()>,
}

struct Core {
    store: Store,
    refusals: RefusalCache,
    breaker: Breaker,
    health: StoreHealth,
    /// Number of the connection with a successful heartbeat; 0 if there is none. Requests wait for
    /// it, because the store may have lost its counters.
    ready: watch::Sender<u64>,
    deadline: Duration,
    peeks: Semaphore,
    metrics: StoreMetrics,
}

/// Metrics of the shared store.
#[derive(Clone)]
pub struct StoreMetrics {
    /// Requests sent to the store.
    pub sent: Counter,
    /// Requests refused from the cache of refusals.
    pub remembered: Counter,
    /// Requests decided by this process because the store did not respond.
    pub fell_back: Counter,
    /// 1 while the breaker is open.
    pub away: Gauge,
}

impl Default for StoreMetrics {
    /// Returns metrics that discard everything.
    fn default() -> Self {
        Self {
            sent: Counter::noop(),
            remembered: Counter::noop(),
            fell_back: Counter::noop(),
            away: Gauge::noop(),
        }
    }
}

impl Shared {
    /// Counts in `store` under the unique name `process`. Requests wait for a time bounded by the
    /// store's recent latency, and at least for `deadline`.
    pub fn new(
        store: Store,
        process: String,
        deadline: Duration,
        clock: Clock,
        metrics: StoreMetrics,
    ) -> Self {
        let core = Arc::new(Core::new(store, deadline, metrics));
        let mut heartbeat = JoinSet::new();
        heartbeat.spawn(run_heartbeat(core.clone(), process, clock));
        Self {
            core,
            _heartbeat: heartbeat,
        }
    }

    pub(super) async fn take(
        &self,
        memory: &Memory,
        operation: &str,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> LimitDecision {
        self.core.take(memory, operation, key, windows, now).await
    }

    /// Returns the quotas of the keys. `None` if the store does not respond.
    pub(super) async fn peek(&self, keys: &[(&str, CounterKey, &[Window])]) -> Option<Vec<Quotas>> {
        self.core.peek(keys).await
    }
}

impl Core {
    fn new(store: Store, deadline: Duration, metrics: StoreMetrics) -> Self {
        Self {
            store,
            refusals: RefusalCache::default(),
            breaker: Breaker::default(),
            health: StoreHealth::default(),
            ready: watch::Sender::new(0),
            deadline,
            peeks: Semaphore::new(PEEKS_MAX),
            metrics,
        }
    }

    async fn take(
        &self,
        memory: &Memory,
        operation: &str,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> LimitDecision {
        if let Some(refused) = self.refusals.get(key, windows, now) {
            self.metrics.remembered.increment(1);
            return refused;
        }
        if !self.breaker.allows(now) {
            return self.take_locally(memory, key, windows, now);
        }
        match self.health.admission_beside_store(windows, now) {
            None => match self.ask(memory, operation, key, windows, now).await {
                Some(decision) => decision,
                None => self.take_locally(memory, key, windows, now),
            },
            Some(rule) => {
                self.take_in_both(memory, operation, key, windows, now, rule)
                    .await
            }
        }
    }

    /// Counts the request in the store. `None` if the store does not respond in time.
    async fn ask(
        &self,
        memory: &Memory,
        operation: &str,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> Option<LimitDecision> {
        self.metrics.sent.increment(1);
        let started = Instant::now();
        match timeout(
            self.health.request_timeout(self.deadline),
            self.answer(operation, key, windows, now),
        )
        .await
        {
            Ok(Ok(answer)) => {
                let took = started.elapsed();
                self.health.record_response(now, took);
                self.report_change(self.breaker.succeeded(), None);
                if self.health.is_sole() {
                    // During an outage this process continues from these counts. Its windows end no
                    // earlier than the store's.
                    let arrived = now + Ticks::try_from(took.as_millis()).unwrap_or_default() + 1;
                    memory.merge(key, windows, answer.used, answer.left, arrived);
                }
                if !answer.admitted {
                    self.refusals.remember(key, windows, &answer, now);
                }
                Some(LimitDecision {
                    admitted: answer.admitted,
                    quotas: answer.quotas(windows),
                    counted: CountedBy::Store,
                })
            }
            // The store may count the request nevertheless, although it is not admitted: this errs
            // towards refusing.
            late_or_failed => {
                let error = late_or_failed.map_or(
                    StoreError::Timeout(self.health.request_timeout(self.deadline)),
                    |outcome| match outcome {
                        Ok(_) => StoreError::Unreachable,
                        Err(error) => error,
                    },
                );
                self.report_change(self.breaker.failed(now), Some(&error));
                None
            }
        }
    }

    /// Returns the store's decision, if the connection does not change meanwhile.
    async fn answer(
        &self,
        operation: &str,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> Result<StoreAnswer, StoreError> {
        let before = self.health.admission_beside_store(windows, now);
        let is_current =
            |ready: &u64| *ready != 0 && *ready == *self.store.connection_number().borrow();
        let connection = *self
            .ready
            .subscribe()
            .wait_for(is_current)
            .await
            .map_err(|_| StoreError::Unreachable)?;
        let answer = self.store.take(store_key(operation, key), windows).await?;
        // Another connection may serve counters that were lost in between, and a heartbeat may have
        // reported a loss meanwhile.
        let same = *self.store.connection_number().borrow() == connection
            && self.health.admission_beside_store(windows, now) == before;
        if same {
            Ok(answer)
        } else {
            Err(StoreError::Unreachable)
        }
    }

    /// Counts a request locally while the store is unreachable: rejects it, or admits it within
    /// this process's share.
    fn take_locally(
        &self,
        memory: &Memory,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
    ) -> LimitDecision {
        self.metrics.fell_back.increment(1);
        let decision = match self.health.admission_without_store(windows, now) {
            LocalAdmission::OwnCounters => memory.take(key, windows, now),
            LocalAdmission::KnownWindows if is_open(&memory.peek(key, windows, now)) => {
                memory.take(key, windows, now)
            }
            LocalAdmission::Refuse | LocalAdmission::KnownWindows => {
                return refuse_unknown(windows);
            }
            LocalAdmission::Share(share) => {
                with_full_limits(memory.take(key, &share[..windows.len()], now), windows)
            }
        };
        if decision.admitted {
            self.health.record_local_admission(now);
        }
        decision
    }

    /// Counts the request both in this process and in the store.
    async fn take_in_both(
        &self,
        memory: &Memory,
        operation: &str,
        key: CounterKey,
        windows: &[Window],
        now: Ticks,
        rule: LocalAdmission,
    ) -> LimitDecision {
        let counted = match &rule {
            LocalAdmission::Refuse => return refuse_unknown(windows),
            LocalAdmission::OwnCounters | LocalAdmission::KnownWindows => windows,
            LocalAdmission::Share(share) => &share[..windows.len()],
        };
        let local = memory.take(key, counted, now);
        if !local.admitted {
            return with_full_limits(local, windows);
        }
        let decision = self.ask(memory, operation, key, windows, now).await;
        if !decision.is_some_and(|decision| decision.admitted) {
            memory.give_back(key, counted, now);
        }
        decision.unwrap_or_else(|| self.take_locally(memory, key, windows, now))
    }

    async fn peek(&self, keys: &[(&str, CounterKey, &[Window])]) -> Option<Vec<Quotas>> {
        let _permit = self.peeks.try_acquire().ok()?;
        let store_keys: Vec<_> = keys
            .iter()
            .map(|(operation, key, _)| store_key(operation, *key))
            .collect();
        let answers = timeout(
            self.deadline.max(PEEK_DEADLINE),
            self.store.peek(&store_keys),
        )
        .await
        .ok()?
        .ok()?;
        Some(
            answers
                .iter()
                .zip(keys)
                .map(|(answer, (.., windows))| answer.quotas(windows))
                .collect(),
        )
    }

    /// Logs one line when the store becomes unavailable, and one when it is available again.
    fn report_change(&self, change: BreakerChange, error: Option<&StoreError>) {
        match (change, error) {
            (BreakerChange::Opened, Some(error)) => {
                self.metrics.away.set(1.0);
                tracing::warn!(store = %self.store, %error, "shared rate limit store unreachable; refusing or using local shares");
            }
            (BreakerChange::Closed, _) => {
                self.metrics.away.set(0.0);
                tracing::info!(store = %self.store, "shared rate limit store reachable");
            }
            _ => {}
        }
    }

    /// Sends one heartbeat over the current connection.
    async fn send_heartbeat(&self, process: &str, clock: &Clock) -> Option<()> {
        let connection = *self.store.connection_number().borrow();
        if connection == 0 {
            return None;
        }
        let sent = clock.ticks();
        let began = Instant::now();
        let beat = timeout(WAIT_MAX, self.store.heartbeat(process))
            .await
            .ok()?
            .ok()?;
        if *self.store.connection_number().borrow() != connection {
            return None;
        }
        self.health.record_heartbeat(beat, sent, began.elapsed());
        self.report_change(self.breaker.succeeded(), None);
        self.ready.send_replace(connection);
        Some(())
    }
}

/// Sends a heartbeat every second, and at once over a new connection.
async fn run_heartbeat(core: Arc<Core>, process: String, clock: Clock) {
    let mut connections = core.store.connection_number().subscribe();
    loop {
        connections.mark_unchanged();
        let pause = if core.send_heartbeat(&process, &clock).await.is_some() {
            HEARTBEAT_INTERVAL
        } else {
            Duration::from_millis(breaker::PAUSE)
        };
        tokio::select! {
            () = sleep(pause) => {}
            // The sender lives as long as the store.
            Ok(()) = connections.changed() => core.ready.send_modify(|ready| *ready = 0),
        }
    }
}

/// Returns whether a window of the key is open: an unused window is not.
fn is_open(quotas: &Quotas) -> bool {
    quotas
        .as_slice()
        .first()
        .is_some_and(|quota| quota.remaining < quota.limit)
}

/// Returns a refusal because the remaining quota is unknown. It may become known at any moment.
fn refuse_unknown(windows: &[Window]) -> LimitDecision {
    LimitDecision::local(
        false,
        Quotas::new(windows.iter().map(|window: &Window| Quota {
            limit: window.requests,
            remaining: 0,
            reset_secs: AGAIN_SECS,
        })),
    )
}

/// Converts a decision by a share to one with the full limits.
fn with_full_limits(decision: LimitDecision, windows: &[Window]) -> LimitDecision {
    let quotas = decision
        .quotas
        .as_slice()
        .iter()
        .zip(windows)
        .map(|(quota, window)| Quota {
            limit: window.requests,
            ..*quota
        });
    LimitDecision {
        quotas: Quotas::new(quotas),
        ..decision
    }
}

#[cfg(test)]
mod tests;
