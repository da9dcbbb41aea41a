//! Numbers and transactions of the log.

use chrono::TimeDelta;
use gantry::platform::events::{
    self, EventPayload, NewEvent,
    log::{self, EventFilter},
    payloads::{PauseReason, ProjectPaused},
    retention,
};
use gantry_base::ids::OrganizationId;

use super::{names, read};
use crate::support::{TestApp, dawn};

/// Transactions of one writer.
const TRANSACTIONS: u64 = 40;
const WRITERS: u64 = 6;

fn event(organization: OrganizationId) -> NewEvent {
    let reason = PauseReason::Other;
    ProjectPaused { reason }.about_organization(organization)
}

/// Appends events in transactions, of which some are rolled back. Returns how many were committed
/// in each organization.
async fn write(app: &TestApp, seed: u64, organizations: [OrganizationId; 2]) -> [i64; 2] {
    let mut committed = [0, 0];
    let mut random = seed;
    for _ in 0..TRANSACTIONS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let [first, second] =
            [random >> 40, random >> 48].map(|it| usize::try_from(it % 3).unwrap());
        let mut new = Vec::new();
        // Both orders of the organizations: a deadlock would fail the test.
        new.extend(std::iter::repeat_n(event(organizations[1]), second));
        new.extend(std::iter::repeat_n(event(organizations[0]), first));
        let mut client = app.app.db.client().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        events::append(&transaction, &new, None, &app.app.entropy, dawn())
            .await
            .unwrap();
        if random >> 60 < 4 {
            transaction.rollback().await.unwrap();
            continue;
        }
        transaction.commit().await.unwrap();
        committed[0] += i64::try_from(first).unwrap();
        committed[1] += i64::try_from(second).unwrap();
    }
    committed
}

/// A reader that follows the cursor while others write sees every number once, in order.
#[tokio::test]
async fn concurrent_events_are_numbered_in_commit_order_without_gaps() {
    let app = TestApp::new().await;
    let organizations = [app.home.id, app.foreign.id];
    let writers =
        futures_util::future::join_all((0..WRITERS).map(|seed| write(&app, seed, organizations)));
    let stopped = std::sync::atomic::AtomicBool::new(false);
    let follow = async {
        let mut seen = Vec::new();
        let mut filter = EventFilter {
            after: Some(0),
            limit: 7,
            ..EventFilter::default()
        };
        loop {
            let is_last = stopped.load(std::sync::atomic::Ordering::Acquire);
            let page = log::page(&app.app.db, app.home.id, &filter).await.unwrap();
            seen.extend(page.events.iter().map(|event| event.number));
            if is_last && page.events.is_empty() {
                return seen;
            }
            filter.after = Some(page.next);
            tokio::task::yield_now().await;
        }
    };
    let write_all = async {
        let committed = writers.await;
        stopped.store(true, std::sync::atomic::Ordering::Release);
        committed
    };
    let (committed, seen) = tokio::join!(write_all, follow);
    let total = |which: usize| committed.iter().map(|counts| counts[which]).sum::<i64>();
    assert!(total(0) > 20 && total(1) > 20, "{committed:?}");
    assert_eq!(seen, (1..=total(0)).collect::<Vec<_>>());
    let sql =
        "select count(*), max(number), count(distinct id) from events where organization_id = $1";
    let row = &app.app.db.query(sql, &[&app.foreign.id.0]).await.unwrap()[0];
    let counts: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(counts, (total(1), total(1), total(1)));
}

#[tokio::test]
async fn rejected_change_has_no_event() {
    let app = TestApp::new().await;
    app.create_project("first").await;
    assert_eq!(names(&app).await, ["v1.project.created"]);
    let again = app.post("/v1/projects").as_(&app.owner);
    again
        .json(&app.new_project("first"))
        .send()
        .await
        .expect(400);
    let pause = app.post(&app.at("/restore")).as_(&app.owner);
    pause.send().await.expect(400);
    assert_eq!(names(&app).await, ["v1.project.created"]);
}

#[tokio::test]
async fn old_events_are_removed_and_their_cursor_is_answered_410() {
    let app = TestApp::new().await;
    let append = async |count: usize| {
        let mut client = app.app.db.client().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let new = vec![event(app.home.id); count];
        let now = app.clock.now();
        events::append(&transaction, &new, None, &app.app.entropy, now)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    };
    append(3).await;
    app.clock.step_wall(TimeDelta::days(2));
    append(2).await;
    // A node with a clock that is late.
    app.clock.step_wall(TimeDelta::days(-1));
    append(1).await;
    app.clock
        .step_wall(TimeDelta::days(retention::KEPT_DAYS) - TimeDelta::hours(1));
    let removed = retention::remove_expired(&app.app.db, app.clock.now())
        .await
        .unwrap();
    assert_eq!(removed, 3);
    app.clock.step_wall(TimeDelta::hours(2));
    // The newest is the oldest by its time: everything before it goes too, so no gap remains.
    let removed = retention::remove_expired(&app.app.db, app.clock.now())
        .await
        .unwrap();
    assert_eq!(removed, 3);
    let gone = read(&app, &app.owner, "?after=2")
        .await
        .expect(410)
        .message();
    assert!(gone.contains("Events up to 6 were removed"), "{gone}");
    assert!(gone.contains("after=6"), "{gone}");
    append(1).await;
    let page = read(&app, &app.owner, "?after=6").await.expect(200).json();
    assert_eq!(page["events"][0]["number"], 7);
    let page = read(&app, &app.owner, "").await.expect(200).json();
    assert_eq!((&page["next"], &page["last"]), (&7.into(), &7.into()));
}
