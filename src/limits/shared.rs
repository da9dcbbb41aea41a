//! Counting with other processes: what is known to be refused, then the store, and without it this process alone.

use std::time::Duration;

use metrics::{Counter, Gauge};
use tokio::sync::Semaphore;

use super::{
    Counted, Key, Memory, Quotas, Verdict, Window,
    breaker::{Breaker, Turn},
    denied::Denied,
    store::{Store, Trouble, spelled},
};
use crate::clock::Ticks;

/// How long a look at many counters may take at least: nothing is decided by it.
const PEEK_DEADLINE: Duration = Duration::from_secs(1);
/// Looks at once; more are answered from this process.
const PEEKS_MAX: usize = 8;

/// Counters that several processes share. Exact while the store answers.
///
/// While it does not, each process goes on by itself from what the store last told it: of `n` processes, together at most
/// `n` times what was left. The alternatives are to admit everything, or to refuse everybody because a counter is away.
pub struct Shared {
    store: Store,
    denied: Denied,
    breaker: Breaker,
    deadline: Duration,
    peeks: Semaphore,
    tally: Tally,
}

/// What is counted about counting.
#[derive(Clone)]
pub struct Tally {
    /// Requests the store was asked about.
    pub asked: Counter,
    /// Requests refused without asking, because the store refused one before.
    pub remembered: Counter,
    /// Requests counted in this process because the store gave no answer.
    pub fell_back: Counter,
    /// 1 while the store is not asked.
    pub away: Gauge,
}

impl Default for Tally {
    /// Counts nothing.
    fn default() -> Self {
        Self { asked: Counter::noop(), remembered: Counter::noop(), fell_back: Counter::noop(), away: Gauge::noop() }
    }
}

impl Shared {
    /// Counts in `store`, waiting at most `deadline` for each answer.
    pub fn new(store: Store, deadline: Duration, tally: Tally) -> Self {
        Self { store, denied: Denied::default(), breaker: Breaker::default(), deadline, peeks: Semaphore::new(PEEKS_MAX), tally }
    }

    pub(super) async fn take(&self, memory: &Memory, operation: &str, key: Key, windows: &[Window], now: Ticks) -> Verdict {
        if let Some(refused) = self.denied.get(key, windows, now) {
            self.tally.remembered.increment(1);
            return refused;
        }
        if !self.breaker.lets_through(now) {
            self.tally.fell_back.increment(1);
            return memory.take(key, windows, now);
        }
        self.tally.asked.increment(1);
        let answer = within(self.deadline, self.store.take(spelled(operation, key), windows)).await;
        match answer {
            Ok(answer) => {
                self.told(self.breaker.succeeded(), None);
                // Should the store go away, we go on from here, and give nothing back.
                memory.note(key, answer.used, answer.left, now);
                if !answer.admitted {
                    self.denied.remember(key, windows, &answer, now);
                }
                Verdict { admitted: answer.admitted, quotas: answer.quotas(windows), counted: Counted::Shared(answer.left) }
            }
            Err(trouble) => {
                self.told(self.breaker.failed(now), Some(&trouble));
                self.tally.fell_back.increment(1);
                memory.take(key, windows, now)
            }
        }
    }

    /// Gives back what was counted in windows that have so many milliseconds `left`.
    pub(super) async fn give_back(&self, operation: &str, key: Key, left: &[u64]) {
        self.denied.forget(key);
        // What could not be given back was taken from a counter for names in vain: the caller can do without it.
        let _ = within(self.deadline, self.store.give_back(spelled(operation, key), left)).await;
    }

    /// Where the keys stand; `None` if the store does not say.
    pub(super) async fn peek(&self, keys: &[(&str, Key, &[Window])]) -> Option<Vec<Quotas>> {
        let _permit = self.peeks.try_acquire().ok()?;
        let spelled: Vec<_> = keys.iter().map(|(operation, key, _)| spelled(operation, *key)).collect();
        let answers = within(self.deadline.max(PEEK_DEADLINE), self.store.peek(&spelled)).await.ok()?;
        Some(answers.iter().zip(keys).map(|(answer, (.., windows))| answer.quotas(windows)).collect())
    }

    /// One line when the store goes away, and one when it is back.
    fn told(&self, turn: Turn, trouble: Option<&Trouble>) {
        match (turn, trouble) {
            (Turn::Opened, Some(trouble)) => {
                self.tally.away.set(1.0);
                tracing::warn!(store = %self.store, %trouble, "limits are counted in this process alone until the shared store answers");
            }
            (Turn::Closed, _) => {
                self.tally.away.set(0.0);
                tracing::info!(store = %self.store, "limits are shared again");
            }
            _ => {}
        }
    }
}

async fn within<T>(deadline: Duration, answer: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    tokio::time::timeout(deadline, answer).await.unwrap_or(Err(Trouble::Late(deadline)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Identifier, Scope, per,
            store::{Answer, tests::Scripted},
        },
        *,
    };
    use crate::ids::UserId;

    const WINDOWS: &[Window] = &[per(3, 60)];
    const KEY: Key = Key { identifier: Identifier::User(UserId(1)), scope: Scope::User, operation: 0 };

    fn shared(script: impl IntoIterator<Item = Answer>) -> Shared {
        let store = Store::Scripted(Scripted(parking_lot::Mutex::new(script.into_iter().collect())));
        Shared::new(store, Duration::from_millis(5), Tally::default())
    }

    fn answer(admitted: bool, used: u32, left: u64) -> Answer {
        Answer { admitted, used: [used, 0], left: [left, 0] }
    }

    #[tokio::test]
    async fn a_refusal_is_remembered_and_ends_with_its_window() {
        let shared = shared([answer(true, 3, 40_000), answer(false, 3, 39_000), answer(true, 1, 60_000)]);
        let memory = Memory::default();
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 0).await.admitted);
        assert!(!shared.take(&memory, "a", KEY, WINDOWS, 1_000).await.admitted);
        // The script has only one answer left: none of these reaches it.
        for now in [1_001, 20_000, 39_999] {
            let verdict = shared.take(&memory, "a", KEY, WINDOWS, now).await;
            assert!(!verdict.admitted);
            assert_eq!(u64::from(verdict.quota().reset_secs), (40_000 - now).div_ceil(1_000));
        }
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 40_000).await.admitted);
    }

    #[tokio::test]
    async fn without_an_answer_this_process_goes_on_from_the_last_one() {
        let shared = shared([answer(true, 2, 40_000)]);
        let memory = Memory::default();
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 0).await.admitted);
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 1_000).await.admitted, "the third of three");
        let refused = shared.take(&memory, "a", KEY, WINDOWS, 1_000).await;
        assert_eq!((refused.admitted, refused.quota().reset_secs), (false, 39), "the store's window, not one of our own");
    }

    #[tokio::test]
    async fn without_an_answer_this_process_counts_and_the_store_is_tried_now_and_then() {
        let shared = shared([]);
        let memory = Memory::default();
        for request in 0..5 {
            assert_eq!(shared.take(&memory, "a", KEY, WINDOWS, 0).await.admitted, request < 3, "the local table is exact too");
        }
        let Store::Scripted(script) = &shared.store else { unreachable!() };
        script.0.lock().extend([answer(true, 1, 60_000), answer(true, 2, 60_000)]);
        assert!(!shared.take(&memory, "a", KEY, WINDOWS, 249).await.admitted, "open: the store is not asked");
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 250).await.admitted, "tried, and closed again");
        assert!(shared.take(&memory, "a", KEY, WINDOWS, 251).await.admitted);
        assert!(script.0.lock().is_empty());
    }
}
