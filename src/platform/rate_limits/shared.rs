//! Counting with other processes: what is known to be refused, then the store, and without it what [`Contact`] lets.

use std::{sync::Arc, time::Duration};

use metrics::{Counter, Gauge};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Counted, Key, Memory, Quota, Quotas, Verdict, Window, breaker,
    breaker::{Breaker, Turn},
    contact::{Alone, BEAT_EVERY, Contact, WAIT_MAX},
    denied::Denied,
    store::{Answer, Store, Trouble, spelled},
};
use crate::base::clock::{Clock, Ticks};

/// How long a look at many counters may take at least: nothing is decided by it.
const PEEK_DEADLINE: Duration = Duration::from_secs(1);
/// Looks at once; more are answered from this process.
const PEEKS_MAX: usize = 8;
/// Seconds after which a request that could not be counted may be tried again: the store may be back.
const AGAIN_SECS: u32 = 1;

/// Counters that several processes share. Exact: together they admit no more than the limit, and no less while the store
/// answers, however slow it is.
///
/// While it does not, a request is refused unless this process knows that no other can have admitted one in the same
/// window, or may use its share. `docs/decisions/0072-exact-rate-limits-during-outages.md` has the reasons and the bounds.
pub struct Shared {
    core: Arc<Core>,
    /// Ends with it.
    _heartbeat: JoinSet<()>,
}

struct Core {
    store: Store,
    denied: Denied,
    breaker: Breaker,
    contact: Contact,
    /// Number of the connection over which a heartbeat was answered; 0 while there is none. Nothing is asked before: the
    /// store may have lost its counters.
    ready: watch::Sender<u64>,
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
    /// Requests decided by this process because the store gave no answer.
    pub fell_back: Counter,
    /// 1 while the store is not asked.
    pub away: Gauge,
}

impl Default for Tally {
    /// Counts nothing.
    fn default() -> Self {
        Self {
            asked: Counter::noop(),
            remembered: Counter::noop(),
            fell_back: Counter::noop(),
            away: Gauge::noop(),
        }
    }
}

impl Shared {
    /// Counts in `store` under the name `process`, which no other has. An answer is waited for as long as the store lately
    /// needed, and at least for `deadline`.
    pub fn new(
        store: Store,
        process: String,
        deadline: Duration,
        clock: Clock,
        tally: Tally,
    ) -> Self {
        let core = Arc::new(Core::new(store, deadline, tally));
        let mut heartbeat = JoinSet::new();
        heartbeat.spawn(keep_in_touch(core.clone(), process, clock));
        Self {
            core,
            _heartbeat: heartbeat,
        }
    }

    pub(super) async fn take(
        &self,
        memory: &Memory,
        operation: &str,
        key: Key,
        windows: &[Window],
        now: Ticks,
    ) -> Verdict {
        self.core.take(memory, operation, key, windows, now).await
    }

    /// Where the keys stand; `None` if the store does not say.
    pub(super) async fn peek(&self, keys: &[(&str, Key, &[Window])]) -> Option<Vec<Quotas>> {
        self.core.peek(keys).await
    }
}

impl Core {
    fn new(store: Store, deadline: Duration, tally: Tally) -> Self {
        Self {
            store,
            denied: Denied::default(),
            breaker: Breaker::default(),
            contact: Contact::default(),
            ready: watch::Sender::new(0),
            deadline,
            peeks: Semaphore::new(PEEKS_MAX),
            tally,
        }
    }

    async fn take(
        &self,
        memory: &Memory,
        operation: &str,
        key: Key,
        windows: &[Window],
        now: Ticks,
    ) -> Verdict {
        if let Some(refused) = self.denied.get(key, windows, now) {
            self.tally.remembered.increment(1);
            return refused;
        }
        if !self.breaker.lets_through(now) {
            return self.take_alone(memory, key, windows, now);
        }
        match self.contact.beside(windows, now) {
            None => match self.ask(memory, operation, key, windows, now).await {
                Some(verdict) => verdict,
                None => self.take_alone(memory, key, windows, now),
            },
            Some(beside) => {
                self.take_beside(memory, operation, key, windows, now, beside)
                    .await
            }
        }
    }

    /// Has the store count the request. `None` if it does not answer in time.
    async fn ask(
        &self,
        memory: &Memory,
        operation: &str,
        key: Key,
        windows: &[Window],
        now: Ticks,
    ) -> Option<Verdict> {
        self.tally.asked.increment(1);
        let asked = Instant::now();
        match timeout(
            self.contact.wait(self.deadline),
            self.answer(operation, key, windows, now),
        )
        .await
        {
            Ok(Ok(answer)) => {
                let took = asked.elapsed();
                self.contact.heard(now, took);
                self.told(self.breaker.succeeded(), None);
                if self.contact.is_sole() {
                    // Should the store go away, this process goes on from here. Windows end no earlier than the store's.
                    let arrived = now + Ticks::try_from(took.as_millis()).unwrap_or_default() + 1;
                    memory.note(key, windows, answer.used, answer.left, arrived);
                }
                if !answer.admitted {
                    self.denied.remember(key, windows, &answer, now);
                }
                Some(Verdict {
                    admitted: answer.admitted,
                    quotas: answer.quotas(windows),
                    counted: Counted::Shared,
                })
            }
            // The store may have counted it, or may still. It is not admitted by that, so this errs towards refusing.
            late_or_failed => {
                let trouble = late_or_failed.map_or(
                    Trouble::Late(self.contact.wait(self.deadline)),
                    |outcome| match outcome {
                        Ok(_) => Trouble::Away,
                        Err(trouble) => trouble,
                    },
                );
                self.told(self.breaker.failed(now), Some(&trouble));
                None
            }
        }
    }

    /// The store's answer, over a connection that stands before and after.
    async fn answer(
        &self,
        operation: &str,
        key: Key,
        windows: &[Window],
        now: Ticks,
    ) -> Result<Answer, Trouble> {
        let before = self.contact.beside(windows, now);
        let stands = |ready: &u64| *ready != 0 && *ready == *self.store.link().borrow();
        let link = *self
            .ready
            .subscribe()
            .wait_for(stands)
            .await
            .map_err(|_| Trouble::Away)?;
        let answer = self.store.take(spelled(operation, key), windows).await?;
        // Over another connection it may come from counters that were lost in between.
        // While this waited, a heartbeat may have told that they are lost.
        let same =
            *self.store.link().borrow() == link && self.contact.beside(windows, now) == before;
        if same { Ok(answer) } else { Err(Trouble::Away) }
    }

    /// Decides without the store.
    fn take_alone(&self, memory: &Memory, key: Key, windows: &[Window], now: Ticks) -> Verdict {
        self.tally.fell_back.increment(1);
        let verdict = match self.contact.without(windows, now) {
            Alone::Everything => memory.take(key, windows, now),
            Alone::KnownWindows if is_open(&memory.peek(key, windows, now)) => {
                memory.take(key, windows, now)
            }
            Alone::Nothing | Alone::KnownWindows => return unknown(windows),
            Alone::Share(share) => {
                of_share(memory.take(key, &share[..windows.len()], now), windows)
            }
        };
        if verdict.admitted {
            self.contact.admitted_alone(now);
        }
        verdict
    }

    /// Has both this process and the store count the request.
    async fn take_beside(
        &self,
        memory: &Memory,
        operation: &str,
        key: Key,
        windows: &[Window],
        now: Ticks,
        beside: Alone,
    ) -> Verdict {
        let counted = match &beside {
            Alone::Nothing => return unknown(windows),
            Alone::Everything | Alone::KnownWindows => windows,
            Alone::Share(share) => &share[..windows.len()],
        };
        let here = memory.take(key, counted, now);
        if !here.admitted {
            return of_share(here, windows);
        }
        let verdict = self.ask(memory, operation, key, windows, now).await;
        if !verdict.is_some_and(|verdict| verdict.admitted) {
            memory.give_back(key, counted, now);
        }
        verdict.unwrap_or_else(|| self.take_alone(memory, key, windows, now))
    }

    async fn peek(&self, keys: &[(&str, Key, &[Window])]) -> Option<Vec<Quotas>> {
        let _permit = self.peeks.try_acquire().ok()?;
        let spelled: Vec<_> = keys
            .iter()
            .map(|(operation, key, _)| spelled(operation, *key))
            .collect();
        let answers = timeout(self.deadline.max(PEEK_DEADLINE), self.store.peek(&spelled))
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

    /// One line when the store goes away, and one when it is back.
    fn told(&self, turn: Turn, trouble: Option<&Trouble>) {
        match (turn, trouble) {
            (Turn::Opened, Some(trouble)) => {
                self.tally.away.set(1.0);
                tracing::warn!(store = %self.store, %trouble, "the shared store of limits does not answer: requests that it should count are refused, or admitted up to this process's share");
            }
            (Turn::Closed, _) => {
                self.tally.away.set(0.0);
                tracing::info!(store = %self.store, "limits are shared again");
            }
            _ => {}
        }
    }

    /// One heartbeat, over the connection there is.
    async fn beat(&self, process: &str, clock: &Clock) -> Option<()> {
        let link = *self.store.link().borrow();
        if link == 0 {
            return None;
        }
        let (sent, began) = (clock.ticks(), Instant::now());
        let beat = timeout(WAIT_MAX, self.store.beat(process))
            .await
            .ok()?
            .ok()?;
        if *self.store.link().borrow() != link {
            return None;
        }
        self.contact.beaten(beat, sent, began.elapsed());
        self.told(self.breaker.succeeded(), None);
        self.ready.send_replace(link);
        Some(())
    }
}

/// Tells the store every second that this process lives, and at once over a new connection.
async fn keep_in_touch(core: Arc<Core>, process: String, clock: Clock) {
    let mut links = core.store.link().subscribe();
    loop {
        links.mark_unchanged();
        let pause = if core.beat(&process, &clock).await.is_some() {
            BEAT_EVERY
        } else {
            Duration::from_millis(breaker::PAUSE)
        };
        tokio::select! {
            () = sleep(pause) => {}
            // The sender lives as long as the store.
            Ok(()) = links.changed() => core.ready.send_modify(|ready| *ready = 0),
        }
    }
}

/// Whether a window of the key is open: nothing was taken from one that is not.
fn is_open(quotas: &Quotas) -> bool {
    quotas
        .as_slice()
        .first()
        .is_some_and(|quota| quota.remaining < quota.limit)
}

/// A refusal because the remaining quota is unknown. It may become known at any moment.
fn unknown(windows: &[Window]) -> Verdict {
    let quota = |window: &Window| Quota {
        limit: window.requests,
        remaining: 0,
        reset_secs: AGAIN_SECS,
    };
    Verdict::here(false, Quotas::new(windows.iter().map(quota)))
}

/// The verdict about a share, told as one about the whole limit.
fn of_share(verdict: Verdict, windows: &[Window]) -> Verdict {
    let whole = verdict
        .quotas
        .as_slice()
        .iter()
        .zip(windows)
        .map(|(quota, window)| Quota {
            limit: window.requests,
            ..*quota
        });
    Verdict {
        quotas: Quotas::new(whole),
        ..verdict
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{
        super::{
            Identifier, Scope, per,
            store::{Answer, tests::Scripted},
        },
        *,
    };
    use crate::base::ids::UserId;

    const WINDOWS: &[Window] = &[per(3, 60)];
    const KEY: Key = Key {
        identifier: Identifier::User(UserId(1)),
        scope: Scope::User,
        operation: 0,
    };
    const PROCESS: &str = "test";

    /// A process that counts in a script, with `others`, and heard from it at 0.
    async fn core(others: u32, script: impl IntoIterator<Item = Answer>) -> Core {
        let scripted = Scripted::default();
        scripted.others.store(others, Ordering::Relaxed);
        scripted.answers.lock().extend(script);
        let core = Core::new(
            Store::Scripted(scripted),
            Duration::from_millis(5),
            Tally::default(),
        );
        core.beat(PROCESS, &Clock::manual(chrono::DateTime::UNIX_EPOCH))
            .await
            .unwrap();
        core
    }

    fn script(core: &Core) -> &Scripted {
        let Store::Scripted(scripted) = &core.store else {
            unreachable!()
        };
        scripted
    }

    fn answer(admitted: bool, used: u32, left: u64) -> Answer {
        Answer {
            admitted,
            used: [used, 0],
            left: [left, 0],
        }
    }

    #[tokio::test]
    async fn a_refusal_is_remembered_and_ends_with_its_window() {
        let core = core(
            1,
            [
                answer(true, 3, 40_000),
                answer(false, 3, 39_000),
                answer(true, 1, 60_000),
            ],
        )
        .await;
        let memory = Memory::default();
        assert!(core.take(&memory, "a", KEY, WINDOWS, 0).await.admitted);
        assert!(!core.take(&memory, "a", KEY, WINDOWS, 1_000).await.admitted);
        // The script has only one answer left: none of these reaches it.
        for now in [1_001, 20_000, 39_999] {
            let verdict = core.take(&memory, "a", KEY, WINDOWS, now).await;
            assert!(!verdict.admitted);
            assert_eq!(
                u64::from(verdict.quota().reset_secs),
                (40_000 - now).div_ceil(1_000)
            );
        }
        assert!(core.take(&memory, "a", KEY, WINDOWS, 40_000).await.admitted);
    }

    #[tokio::test]
    async fn without_an_answer_the_only_process_goes_on_from_the_last_one() {
        let core = core(0, [answer(true, 2, 40_000)]).await;
        let memory = Memory::default();
        assert!(core.take(&memory, "a", KEY, WINDOWS, 100).await.admitted);
        assert!(
            core.take(&memory, "a", KEY, WINDOWS, 1_000).await.admitted,
            "the third of three"
        );
        let refused = core.take(&memory, "a", KEY, WINDOWS, 1_000).await;
        assert_eq!(
            (refused.admitted, refused.quota().reset_secs),
            (false, 40),
            "the store's window, not one of our own"
        );
        let other = Key {
            operation: 1,
            ..KEY
        };
        assert!(
            !core
                .take(&memory, "b", other, WINDOWS, 1_000)
                .await
                .admitted,
            "a process before this one may have counted"
        );
    }

    #[tokio::test]
    async fn requests_admitted_without_the_store_still_count_when_it_is_back() {
        let core = core(0, [answer(true, 1, 60_000)]).await;
        let memory = Memory::default();
        assert!(core.take(&memory, "a", KEY, WINDOWS, 100).await.admitted);
        assert!(
            core.take(&memory, "a", KEY, WINDOWS, 200).await.admitted,
            "without an answer"
        );
        script(&core)
            .answers
            .lock()
            .extend([answer(true, 2, 59_000), answer(true, 3, 58_000)]);
        assert!(
            core.take(&memory, "a", KEY, WINDOWS, 300).await.admitted,
            "the third; the store knows two"
        );
        assert!(
            !core.take(&memory, "a", KEY, WINDOWS, 400).await.admitted,
            "the fourth; the store knows two"
        );
        assert_eq!(script(&core).answers.lock().len(), 1, "it was not asked");
    }

    #[tokio::test]
    async fn one_of_several_admits_nothing_without_an_answer() {
        let core = core(1, [answer(true, 1, 60_000)]).await;
        let memory = Memory::default();
        assert!(core.take(&memory, "a", KEY, WINDOWS, 100).await.admitted);
        for now in 200..300 {
            let refused = core.take(&memory, "a", KEY, WINDOWS, now).await;
            assert_eq!(
                (refused.admitted, refused.quota()),
                (
                    false,
                    Quota {
                        limit: 3,
                        remaining: 0,
                        reset_secs: 1
                    }
                )
            );
        }
    }

    #[tokio::test]
    async fn one_of_several_admits_its_share_when_the_stores_windows_are_over() {
        let core = core(1, []).await;
        let memory = Memory::default();
        let windows = &[per(7, 60)];
        let mut admitted = 0;
        for _ in 0..10 {
            admitted += u32::from(core.take(&memory, "a", KEY, windows, 70_000).await.admitted);
        }
        assert_eq!(admitted, 3, "half of seven");
        assert_eq!(
            core.take(&memory, "a", KEY, windows, 70_000)
                .await
                .quota()
                .limit,
            7,
            "headers tell the limit"
        );
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_tried_now_and_then() {
        let core = core(1, []).await;
        let memory = Memory::default();
        for _ in 0..5 {
            assert!(!core.take(&memory, "a", KEY, WINDOWS, 0).await.admitted);
        }
        script(&core)
            .answers
            .lock()
            .extend([answer(true, 1, 60_000), answer(true, 2, 60_000)]);
        assert!(
            !core.take(&memory, "a", KEY, WINDOWS, 249).await.admitted,
            "open: the store is not asked"
        );
        assert!(
            core.take(&memory, "a", KEY, WINDOWS, 250).await.admitted,
            "tried, and closed again"
        );
        assert!(core.take(&memory, "a", KEY, WINDOWS, 251).await.admitted);
        assert!(script(&core).answers.lock().is_empty());
    }

    #[tokio::test]
    async fn nothing_is_asked_over_a_connection_that_no_heartbeat_went_over() {
        let core = core(1, [answer(true, 1, 60_000)]).await;
        let memory = Memory::default();
        script(&core).link.send_replace(2);
        assert!(!core.take(&memory, "a", KEY, WINDOWS, 100).await.admitted);
        assert_eq!(script(&core).answers.lock().len(), 1, "it was not asked");
        core.beat(PROCESS, &Clock::manual(chrono::DateTime::UNIX_EPOCH))
            .await
            .unwrap();
        assert!(core.take(&memory, "a", KEY, WINDOWS, 200).await.admitted);
    }
}
