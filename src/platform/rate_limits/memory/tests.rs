//! Tests of windows, concurrency, floods and time.

use gantry_base::ids::{OrganizationId, ProjectId, UserId};

use super::*;
use crate::platform::rate_limits::{CONTEXT, CounterScope, Quota, STANDARD, per};

fn key(user: i64) -> CounterKey {
    CounterKey {
        identifier: Identifier::User(UserId(user)),
        scope: CounterScope::User,
        operation: 0,
    }
}

fn address(address: u64) -> CounterKey {
    CounterKey {
        identifier: Identifier::Address(address),
        ..key(0)
    }
}

fn quota(limit: u32, remaining: u32, reset_secs: u32) -> Quota {
    Quota {
        limit,
        remaining,
        reset_secs,
    }
}

fn outcome(decision: LimitDecision) -> (bool, Quota) {
    (decision.admitted, decision.quota())
}

fn small(counters: usize) -> Memory {
    Memory::new(
        CounterCapacity {
            known: counters,
            addresses: counters,
        },
        &[],
        [1; 32],
    )
}

#[test]
fn window_starts_with_its_first_request() {
    let limits = Memory::default();
    let take = |now| limits.take(key(1), STANDARD.windows, now);
    assert_eq!(take(500).quota(), quota(120, 119, 60));
    assert_eq!(take(1_600).quota(), quota(120, 118, 59));
    for _ in 0..118 {
        assert!(take(2_000).admitted);
    }
    assert_eq!(outcome(take(60_499)), (false, quota(120, 0, 1)));
    assert_eq!(outcome(take(60_500)), (true, quota(120, 119, 60)));
}

#[test]
fn keys_have_separate_counters() {
    let limits = Memory::default();
    let windows = &[per(1, 60)];
    let base = key(1);
    let others = [
        key(2),
        CounterKey {
            identifier: Identifier::address([127, 0, 0, 1].into()),
            ..base
        },
        CounterKey {
            scope: CounterScope::Organization(OrganizationId(1)),
            ..base
        },
        CounterKey {
            scope: CounterScope::Project(ProjectId(1)),
            ..base
        },
        CounterKey {
            scope: CounterScope::Unresolved,
            ..base
        },
        CounterKey {
            operation: 1,
            ..base
        },
    ];
    assert!(limits.take(base, windows, 0).admitted);
    assert!(!limits.take(base, windows, 0).admitted);
    for other in others {
        assert!(limits.take(other, windows, 0).admitted, "{other:?}");
    }
}

#[test]
fn request_refused_by_the_burst_does_not_count() {
    let limits = Memory::default();
    let take = |now| limits.take(key(1), CONTEXT.windows, now);
    assert_eq!(outcome(take(0)), (true, quota(1, 0, 1)));
    for now in 1..1000 {
        assert!(!take(now).admitted);
    }
    for second in 1..10 {
        assert!(take(second * 1000).admitted, "second {second}");
    }
    assert_eq!(outcome(take(10_000)), (false, quota(10, 0, 50)));
}

#[test]
fn refused_request_opens_no_window() {
    let limits = Memory::default();
    let windows = &[per(2, 60), per(1, 50)];
    assert!(limits.take(key(1), windows, 0).admitted);
    assert!(limits.take(key(1), windows, 50_000).admitted);
    // The second window refuses, so the first one is not opened.
    assert!(!limits.take(key(1), windows, 90_000).admitted);
    assert!(limits.take(key(1), windows, 100_000).admitted);
    assert!(limits.take(key(1), windows, 150_000).admitted);
    assert_eq!(
        outcome(limits.take(key(1), windows, 159_000)),
        (false, quota(1, 0, 41))
    );
    assert!(limits.take(key(1), windows, 200_000).admitted);
}

#[test]
fn limit_of_zero_refuses_and_no_limit_admits() {
    let limits = Memory::default();
    assert_eq!(
        outcome(limits.take(key(1), &[per(0, 60)], 5)),
        (false, quota(0, 0, 60))
    );
    assert!(limits.take(key(1), &[], 5).admitted);
    assert_eq!(limits.export(5).count(), 0);
}

#[test]
fn changed_limit_applies_to_the_open_window() {
    let limits = Memory::default();
    for _ in 0..3 {
        assert!(limits.take(key(1), &[per(3, 60)], 0).admitted);
    }
    assert_eq!(
        outcome(limits.take(key(1), &[per(2, 60)], 0)),
        (false, quota(2, 0, 60))
    );
    assert_eq!(
        outcome(limits.take(key(1), &[per(5, 120)], 1_000)),
        (true, quota(5, 1, 59))
    );
    assert_eq!(
        outcome(limits.take(key(1), &[per(5, 10)], 2_000)),
        (true, quota(5, 0, 10))
    );
    assert_eq!(
        limits
            .peek(key(1), &[per(5, 10), per(1, 1)], 3_000)
            .binding(),
        quota(5, 0, 9)
    );
}

#[test]
fn huge_limits_and_lengths_are_clamped() {
    let limits = Memory::default();
    let decision = limits.take(key(1), &[per(u32::MAX, u32::MAX)], 0);
    assert_eq!(
        decision.quota(),
        quota((1 << 23) - 1, (1 << 23) - 2, 1_099_511_628)
    );
}

/// Waiting for `reset` whenever nothing remains is sufficient at any rate of requests.
#[test]
fn client_that_obeys_the_headers_is_never_refused() {
    for windows in [
        CONTEXT.windows,
        STANDARD.windows,
        &[per(3, 7), per(2, 3)],
        &[per(1, 1), per(4, 9)],
    ] {
        let limits = Memory::default();
        let mut now = 123;
        for step in 0..2_000_u64 {
            let decision = limits.take(key(1), windows, now);
            assert!(decision.admitted, "refused at {now} in step {step}");
            now += if decision.quota().remaining == 0 {
                u64::from(decision.quota().reset_secs) * 1000
            } else {
                step % 7 * 100
            };
        }
    }
}

#[test]
fn given_back_request_is_available_again() {
    let limits = Memory::default();
    let windows = &[per(1, 60)];
    assert!(limits.take(key(1), windows, 0).admitted);
    limits.give_back(key(1), windows, 0);
    assert!(limits.take(key(1), windows, 0).admitted);
}

#[test]
fn give_back_ignores_requests_of_earlier_windows() {
    let limits = Memory::default();
    let windows = &[per(1, 60)];
    assert!(limits.take(key(1), windows, 0).admitted);
    assert!(limits.take(key(1), windows, 60_000).admitted);
    limits.give_back(key(1), windows, 0);
    assert!(!limits.take(key(1), windows, 60_001).admitted);
}

#[test]
fn earlier_time_does_not_change_the_window() {
    let limits = Memory::default();
    let windows = &[per(2, 60)];
    assert!(limits.take(key(1), windows, 10_000).admitted);
    // A request of a thread that read the clock earlier.
    assert_eq!(limits.take(key(1), windows, 2_000).quota(), quota(2, 0, 60));
    assert_eq!(
        outcome(limits.take(key(1), windows, 69_999)),
        (false, quota(2, 0, 1))
    );
    assert!(limits.take(key(1), windows, 70_000).admitted);
    // The window began at 70 s for all threads.
    assert!(limits.take(key(1), windows, 69_999).admitted);
    assert!(!limits.take(key(1), windows, 69_999).admitted);
}

/// Threads with few keys, two windows and differing clocks admit exactly the quota.
#[test]
fn concurrent_threads_get_exactly_the_quota() {
    let limits = small(64);
    for round in 0..50_u64 {
        let windows = &[per(7, 60), per(5, 30)];
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let limits = &limits;
                    let take = move |n: u64| {
                        limits
                            .take(address(n % 3), windows, round * 60_000 + thread)
                            .admitted
                    };
                    scope.spawn(move || (0..60).filter(|n| take(*n)).count())
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(admitted, 15, "round {round}");
    }
}

/// While the table grows under other threads, no new key is lost or counted twice.
#[test]
fn concurrent_growth_loses_no_counter() {
    let limits = small(1 << 14);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let limits = &limits;
            scope.spawn(move || {
                for n in 0..8_000 {
                    assert!(
                        limits
                            .take(address(n % 2_000 + thread * 2_000), &[per(4, 60)], n)
                            .admitted
                    );
                }
            });
        }
    });
    assert!((0..8_000).all(|n| !limits.take(address(n), &[per(4, 60)], 8_000).admitted));
    assert_eq!(limits.export(8_000).count(), 8_000);
}

#[test]
fn flood_is_bounded_and_keeps_other_counters() {
    const CAPACITY: usize = 1 << 12;
    let limits = small(CAPACITY);
    let windows = &[per(1, 60)];
    let (victims, caller) = (0..200_u64, key(1));
    assert!(limits.take(caller, windows, 0).admitted);
    assert_eq!(
        victims
            .clone()
            .filter(|n| limits.take(address(*n), windows, 0).admitted)
            .count(),
        200
    );
    let flood = |range: std::ops::Range<u64>, now| {
        range
            .filter(|n| limits.take(address(1 << 40 | n), windows, now).admitted)
            .count()
    };
    let admitted = flood(0..100_000, 1);
    assert!(admitted + 200 > CAPACITY * 9 / 10, "{admitted} found room");
    assert!(
        limits.bytes() < CAPACITY * 2 * 24 + 4096,
        "{} bytes",
        limits.bytes()
    );
    // Neither the existing keys nor those of the flood are admitted again.
    assert_eq!(
        victims
            .filter(|n| limits.take(address(*n), windows, 2).admitted)
            .count(),
        0
    );
    assert!(!limits.take(caller, windows, 2).admitted);
    assert_eq!(flood(0..100_000, 59_999), 0);
    // After the windows end there is room again, with no more memory than before.
    let admitted = flood(200_000..210_000, 60_001);
    assert!(admitted > CAPACITY * 9 / 10, "{admitted} found room");
    assert!(
        limits.bytes() < CAPACITY * 2 * 24 + 4096,
        "{} bytes",
        limits.bytes()
    );
}

#[test]
fn overflowed_key_gets_no_second_quota_in_its_window() {
    let limits = small(8);
    let (short, long) = (&[per(1, 10)], &[per(2, 60)]);
    while limits
        .take(address(limits.export(0).count() as u64), short, 0)
        .admitted
    {}
    let shared = CounterKey {
        operation: 1,
        ..address(99)
    };
    assert!(limits.take(shared, long, 1).admitted);
    assert!(
        limits
            .take(
                CounterKey {
                    operation: 1,
                    ..address(98)
                },
                long,
                1
            )
            .admitted
    );
    // The table has room again, but the window of the overflow counter is still open.
    assert_eq!(
        outcome(limits.take(shared, long, 20_000)),
        (false, quota(2, 0, 41))
    );
    assert_eq!(limits.peek(shared, long, 20_000).binding(), quota(2, 0, 41));
    assert_eq!(limits.take(shared, long, 60_001).quota(), quota(2, 1, 60));
    assert_eq!(
        limits
            .take(
                CounterKey {
                    operation: 1,
                    ..address(98)
                },
                long,
                60_001
            )
            .quota(),
        quota(2, 1, 60),
        "each on its own again"
    );
}

#[test]
fn memory_follows_the_number_of_live_counters() {
    let limits = small(1 << 20);
    let empty = limits.bytes();
    let fill = |users: std::ops::Range<i64>, now| {
        users.for_each(|user| assert!(limits.take(key(user), STANDARD.windows, now).admitted));
    };
    fill(0..100_000, 0);
    let full = limits.bytes() - empty;
    assert!(full < 100_000 * 24, "{full}");
    // A minute later the slots of ended counters are reused.
    fill(200_000..230_000, 60_000);
    assert!(limits.bytes() - empty <= full);
    fill(300_000..400_000, 61_000);
    assert!(limits.bytes() - empty < 130_000 * 24);
}

#[test]
fn exported_counters_can_be_imported() {
    let limits = small(1 << 10);
    for user in 0..100 {
        limits.take(key(user), CONTEXT.windows, 0);
    }
    for n in 0..2_000 {
        limits.take(address(n), STANDARD.windows, 500);
    }
    let mut cells: Vec<_> = limits.export(700).collect();
    cells.sort();
    let count = |kind| cells.iter().filter(|cell| cell.kind == kind).count();
    assert_eq!((count(Kind::Known), count(Kind::AddressOverflow)), (200, 1));
    let other = small(1 << 10);
    other.import(cells.iter().copied(), 9_000);
    let mut again: Vec<_> = other.export(9_000).collect();
    again.sort();
    assert_eq!(cells, again);
    assert_eq!(
        outcome(other.take(key(5), CONTEXT.windows, 9_000)),
        (false, quota(1, 0, 1))
    );
    // Counts that this engine already has are kept.
    other.take(key(5), CONTEXT.windows, 10_000);
    other.import(cells, 10_000);
    assert_eq!(
        other.peek(key(5), CONTEXT.windows, 10_000).binding(),
        quota(1, 0, 1)
    );
}
