//! Tests of decisions with a scripted store.

use std::sync::atomic::Ordering;

use gantry_base::ids::UserId;

use super::{
    super::{
        CounterScope, Identifier, per,
        store::{StoreAnswer, tests::ScriptedStore},
    },
    *,
};

const WINDOWS: &[Window] = &[per(3, 60)];
const KEY: CounterKey = CounterKey {
    identifier: Identifier::User(UserId(1)),
    scope: CounterScope::User,
    operation: 0,
};
const PROCESS: &str = "test";

/// Returns a process with a scripted store, `others` other processes, and a heartbeat at time
/// 0.
async fn core(others: u32, script: impl IntoIterator<Item = StoreAnswer>) -> Core {
    let scripted = ScriptedStore::default();
    scripted.others.store(others, Ordering::Relaxed);
    scripted.answers.lock().extend(script);
    let core = Core::new(
        Store::Scripted(scripted),
        Duration::from_millis(5),
        StoreMetrics::default(),
    );
    core.send_heartbeat(PROCESS, &Clock::manual(chrono::DateTime::UNIX_EPOCH))
        .await
        .unwrap();
    core
}

fn script(core: &Core) -> &ScriptedStore {
    let Store::Scripted(scripted) = &core.store else {
        unreachable!()
    };
    scripted
}

fn answer(admitted: bool, used: u32, left: u64) -> StoreAnswer {
    StoreAnswer {
        admitted,
        used: [used, 0],
        left: [left, 0],
    }
}

#[tokio::test]
async fn refusal_is_cached_until_its_window_ends() {
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
    // One answer is left, and none of these requests consumes it.
    for now in [1_001, 20_000, 39_999] {
        let decision = core.take(&memory, "a", KEY, WINDOWS, now).await;
        assert!(!decision.admitted);
        assert_eq!(
            u64::from(decision.quota().reset_secs),
            (40_000 - now).div_ceil(1_000)
        );
    }
    assert!(core.take(&memory, "a", KEY, WINDOWS, 40_000).await.admitted);
}

#[tokio::test]
async fn only_process_continues_from_last_store_counts() {
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
    let other = CounterKey {
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
async fn local_admissions_count_after_recovery() {
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
async fn one_of_several_processes_refuses_without_the_store() {
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
async fn one_of_several_processes_admits_its_share_after_windows_ended() {
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
async fn open_breaker_retries_the_store() {
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
async fn connection_without_heartbeat_is_not_used() {
    let core = core(1, [answer(true, 1, 60_000)]).await;
    let memory = Memory::default();
    script(&core).link.send_replace(2);
    assert!(!core.take(&memory, "a", KEY, WINDOWS, 100).await.admitted);
    assert_eq!(script(&core).answers.lock().len(), 1, "it was not asked");
    core.send_heartbeat(PROCESS, &Clock::manual(chrono::DateTime::UNIX_EPOCH))
        .await
        .unwrap();
    assert!(core.take(&memory, "a", KEY, WINDOWS, 200).await.admitted);
}
