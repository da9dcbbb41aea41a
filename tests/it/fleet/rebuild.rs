//! Projects of a lost node, which other nodes restore from their backups.

use std::sync::Arc;

use chrono::TimeDelta;
use gantry::{
    app::Settings,
    control::{
        backups::{self, state::BackupOptions, upkeep},
        fleet::rebuild,
        projects::Status,
    },
    platform::db::Param,
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::{Member, holder};
use crate::{
    backups::LOOK,
    events,
    support::{
        TestApp,
        machine::{Machine, PATIENCE, SuperuserClients as _},
        s3::Objects,
    },
};

/// Starts a node that backs up to a store.
pub(super) async fn start(
    app: &TestApp,
    machine: &Arc<Machine>,
    number: u128,
    store: &Objects,
) -> Member {
    let backups = BackupOptions {
        place: Some(store.place("backups")),
        look: LOOK,
        ..BackupOptions::default()
    };
    let change = |settings| Settings {
        backups,
        hold: TimeDelta::days(1),
        ..settings
    };
    Member::on(app, machine.clone(), number, None, change).await
}

pub(super) async fn machine() -> Arc<Machine> {
    let mut machine = Machine::new().await;
    machine.clusters = machine.clusters.with_archives(true);
    Arc::new(machine)
}

/// Waits until the project has a complete backup, and its log is in the store up to now.
pub(super) async fn until_archived(app: &TestApp, member: &Member, project: &ProjectRef) {
    // Requests for SQL are limited.
    let clusters = &member.node.machine.clusters;
    let session = clusters.admin_session(project).await.unwrap();
    let position = "select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint";
    let position: i64 = session.query_one(position, &[]).await.unwrap().get(0);
    let is_archived = "select exists (select from base_backups b
                                      where b.status = 'COMPLETED' and b.project_id = p.id)
                          and exists (select from archives a
                                      where a.project_id = p.id and a.shipped_lsn >= $2)
                       from projects p where p.ref = $1";
    let params: [Param<'_>; 2] = [&project.as_str(), &position];
    let archived = async {
        loop {
            backups::look(&member.node.app).await.unwrap();
            upkeep::round(&member.node.app).await.unwrap();
            let rows = app.app.db.query(is_archived, &params).await.unwrap();
            if rows[0].get(0) {
                return;
            }
            // A commit, so that an idle project need not wait for the minute.
            let tick = "create table if not exists public.tick (n int); insert into public.tick values (1)";
            session.batch_execute(tick).await.unwrap();
        }
    };
    timeout(PATIENCE, archived)
        .await
        .expect("nothing was archived");
}

#[tokio::test]
async fn projects_of_a_lost_node_are_restored_and_its_copies_stay_stopped() {
    let app = TestApp::new().await;
    let store = Objects::start().await;
    let (first, second) = (machine().await, machine().await);
    let one = start(&app, &first, 11, &store).await;
    let two = start(&app, &second, 12, &store).await;
    one.review().await;
    let project = two.create(&app, &app.new_project("lost")).await;
    assert_eq!(holder(&app, &project).await, Uuid::from_u128(12));
    let made = "create table public.kept as select generate_series(1, 1000) as n";
    two.query(&app, &project, made).await.expect(201);
    until_archived(&app, &two, &project).await;

    let now = app.clock.now();
    let refused = rebuild::rebuild(&app.app.db, "node-12", None, (&app.app.entropy, now)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("a server runs the node"), "{refused}");
    let data = second.data(&project);
    let process = second.clusters.observe(&project).await.unwrap();
    assert!(
        matches!(process, ObservedState::Running { .. }),
        "{process:?}"
    );
    two.stop(&one).await;
    // The server of the project lives on: the machine may be cut off only.
    let outcome = rebuild::rebuild(&app.app.db, "node-12", None, (&app.app.entropy, now)).await;
    let outcome = outcome.unwrap();
    let names: Vec<_> = outcome.rebuilt.iter().map(|one| &*one.reference).collect();
    assert_eq!(names, [project.as_str()], "{outcome:?}");
    assert_eq!(outcome.rebuilt[0].node, "node-11");
    assert!(outcome.rebuilt[0].recovered_until.is_some());
    let events = events::names(&app).await;
    let lost = |name: &&String| *name == "gantry.node.lost";
    assert_eq!(events.iter().filter(lost).count(), 1, "{events:?}");
    one.node.until(&project, Status::ActiveHealthy).await;
    assert_eq!(holder(&app, &project).await, Uuid::from_u128(11));
    let count = "select count(*)::int from public.kept";
    let rows = one.query(&app, &project, count).await.expect(201).json();
    assert_eq!(rows, json!([{"count": 1000}]));

    // The node returns with its folder.
    let two = start(&app, &second, 12, &store).await;
    let observed = second.clusters.observe(&project).await.unwrap();
    assert!(matches!(observed, ObservedState::Stopped), "{observed:?}");
    assert!(data.exists(), "the copy is kept");
    two.review().await;
    let rows = two.query(&app, &project, count).await.expect(201).json();
    assert_eq!(rows, json!([{"count": 1000}]));
    let discarded = rebuild::discard_copies(&app.app.db, "node-12").await;
    assert_eq!(discarded.unwrap(), 1);
    two.stop(&one).await;
    let _two = start(&app, &second, 12, &store).await;
    assert!(!data.exists(), "the copy was discarded");
}

#[tokio::test]
async fn removed_project_of_a_lost_node_can_be_brought_back() {
    let app = TestApp::new().await;
    let store = Objects::start().await;
    let (first, second) = (machine().await, machine().await);
    let one = start(&app, &first, 11, &store).await;
    let two = start(&app, &second, 12, &store).await;
    one.review().await;
    let project = two.create(&app, &app.new_project("removed")).await;
    let made = "create table public.kept as select 42 as n";
    two.query(&app, &project, made).await.expect(201);
    until_archived(&app, &two, &project).await;
    let path = format!("/v1/projects/{project}");
    let removed = two.node.delete(&path).as_(&app.owner).send().await;
    removed.expect(200);
    two.node.until(&project, Status::Removed).await;
    // Another archive would hide that of the kept rows.
    backups::look(&two.node.app).await.unwrap();
    let rows = app.app.db.query("select id from archives", &[]).await;
    assert!(rows.unwrap().is_empty());
    two.stop(&one).await;

    let now = app.clock.now();
    let refused = rebuild::rebuild(
        &app.app.db,
        "node-12",
        Some("node-13"),
        (&app.app.entropy, now),
    )
    .await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("node-13 is no node"), "{refused}");
    let outcome = rebuild::rebuild(
        &app.app.db,
        "node-12",
        Some("node-11"),
        (&app.app.entropy, now),
    )
    .await;
    assert_eq!(outcome.unwrap().rebuilt.len(), 1);
    let sql = "select status, desired from projects where ref = $1";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    let state: (&str, &str) = (rows[0].get(0), rows[0].get(1));
    assert_eq!(state, ("REMOVED", "removed"), "nothing starts by itself");
    let restore = one.node.post(&format!("{path}/restore"));
    restore.as_(&app.owner).send().await.expect(200);
    one.node.until(&project, Status::ActiveHealthy).await;
    let rows = one.query(&app, &project, "select n from public.kept").await;
    assert_eq!(rows.expect(201).json(), json!([{"n": 42}]));
}
