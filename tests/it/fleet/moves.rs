//! Projects that are moved to other nodes while they run.

use std::sync::Arc;

use gantry::{
    control::{
        fleet::{
            moves::{self, MoveStep},
            rebuild,
        },
        projects::Status,
    },
    platform::{db::Param, error::Error, notifications},
};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::ObservedState;
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Member, holder,
    rebuild::{machine, start, until_archived},
};
use crate::{
    functions,
    support::{
        TestApp,
        machine::{Machine, PATIENCE},
        s3::Objects,
    },
};

const ONE: Uuid = Uuid::from_u128(11);
const TWO: Uuid = Uuid::from_u128(12);

/// Two nodes with a store of backups, and a project of the second one.
struct Moving {
    app: TestApp,
    store: Objects,
    machines: [Arc<Machine>; 2],
    one: Member,
    two: Member,
    project: ProjectRef,
}

impl Moving {
    async fn new() -> Self {
        let app = TestApp::new().await;
        // Steps of moves are announced.
        tokio::spawn(notifications::run(app.app.platform.clone()));
        let store = Objects::start().await;
        let machines = [machine().await, machine().await];
        let one = start(&app, &machines[0], 11, &store).await;
        let two = start(&app, &machines[1], 12, &store).await;
        one.review().await;
        let project = two.create(&app, &app.new_project("moving")).await;
        assert_eq!(holder(&app, &project).await, TWO);
        let made = "create table public.kept as select generate_series(1, 1000) as n";
        two.query(&app, &project, made).await.expect(201);
        until_archived(&app, &two, &project).await;
        Self {
            app,
            store,
            machines,
            one,
            two,
            project,
        }
    }

    async fn request(&self, to: &str) -> Result<usize, String> {
        let now = self.app.clock.now();
        let requested = moves::request(&self.app.app.db, &self.project, to, now).await;
        match requested {
            Ok(requested) => Ok(requested.len()),
            Err(Error::Conflict(text)) => Err(text.into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until the last move has a step that is accepted.
    async fn until(&self, accepted: &[MoveStep]) -> moves::ProjectMove {
        let mut changes = self.app.app.reconciler.changes();
        let reached = async {
            loop {
                let listed = moves::list(&self.app.app.db).await.unwrap();
                let last = listed.into_iter().max_by_key(|one| one.id).unwrap();
                if accepted.contains(&last.step) {
                    return last;
                }
                changes.changed().await.unwrap();
            }
        };
        timeout(PATIENCE, reached).await.expect("the move hangs")
    }

    /// Waits until the last move has succeeded.
    async fn until_moved(&self) {
        let last = self.until(&[MoveStep::Done, MoveStep::Failed]).await;
        assert_eq!(last.step, MoveStep::Done, "{last:?}");
    }

    async fn count(&self, member: &Member) -> i64 {
        let sql = "select count(*)::int from public.kept";
        let rows = member.query(&self.app, &self.project, sql).await;
        rows.expect(201).json()[0]["count"].as_i64().unwrap()
    }

    async fn step(&self, step: &str) {
        let sql = "update project_moves set step = $1 where finished_at is null";
        self.app.app.db.query(sql, &[&step]).await.unwrap();
    }
}

#[tokio::test]
async fn running_project_moves_with_its_rows_functions_and_history() {
    let moving = Moving::new().await;
    let Moving {
        app,
        machines,
        one,
        two,
        project,
        ..
    } = &moving;
    let deploy = format!("/v1/projects/{project}/functions/deploy?slug=kept");
    let metadata = json!({"entrypoint_path": "index.ts"});
    let source = [("index.ts", "Deno.serve(() => new Response('kept'))")];
    let call = two.node.post(&deploy).as_(&app.owner);
    let call = functions::form(call, &metadata, &source);
    call.send().await.expect(201);
    let data = machines[1].data(project);
    assert_eq!(moving.request("node-11").await, Ok(1));
    moving.until_moved().await;
    one.node.until(project, Status::ActiveHealthy).await;
    assert_eq!(holder(app, project).await, ONE);
    for member in [one, two] {
        assert_eq!(moving.count(member).await, 1000);
    }
    let body = one.get(app, project, "/functions/kept/body").await;
    let body = body.expect(200);
    let source = String::from_utf8_lossy(&body.body);
    assert!(source.contains("new Response('kept')"));
    assert!(!data.exists(), "the earlier node keeps no copy");
    let observed = machines[1].clusters.observe(project).await.unwrap();
    assert!(matches!(observed, ObservedState::Absent), "{observed:?}");
    // The log goes on where it ended: no moment is lost.
    let sql = "select count(*) filter (where ended_at is null), count(*) filter (where parent_id is not null), count(*)
               from archives a join projects p on p.id = a.project_id where p.ref = $1";
    let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
    let archives: (i64, i64, i64) = (rows[0].get(0), rows[0].get(1), rows[0].get(2));
    assert_eq!(archives, (1, 1, 2), "open, continued and all archives");
    // And back again.
    assert_eq!(moving.request("node-12").await, Ok(1));
    moving.until_moved().await;
    assert_eq!(holder(app, project).await, TWO);
    assert_eq!(moving.count(one).await, 1000);
}

#[tokio::test]
async fn move_continues_after_both_nodes_were_killed_in_the_middle() {
    let mut moving = Moving::new().await;
    moving.one.node.kill();
    assert_eq!(moving.request("node-11").await, Ok(1));
    // The new node is down: the earlier one does its part, and waits.
    let waiting = moving.until(&[MoveStep::Copying]).await;
    assert_eq!(waiting.error, None);
    assert_eq!(moving.count(&moving.two).await, 1000, "it runs on");
    moving.one = start(&moving.app, &moving.machines[0], 11, &moving.store).await;
    moving
        .until(&[MoveStep::HandingOver, MoveStep::Restoring, MoveStep::Done])
        .await;
    moving.one.node.kill();
    moving.two.node.kill();
    // The files that the new node has written so far are gone with its process.
    moving.two = start(&moving.app, &moving.machines[1], 12, &moving.store).await;
    moving.one = start(&moving.app, &moving.machines[0], 11, &moving.store).await;
    let last = moving.until(&[MoveStep::Done, MoveStep::Failed]).await;
    if last.step == MoveStep::Failed {
        // The new node was down at the moment of the stop: the project stays.
        assert_eq!(last.error.as_deref(), Some("the new node is down"));
        moving
            .two
            .node
            .until(&moving.project, Status::ActiveHealthy)
            .await;
        assert_eq!(holder(&moving.app, &moving.project).await, TWO);
    } else {
        moving
            .one
            .node
            .until(&moving.project, Status::ActiveHealthy)
            .await;
        assert_eq!(holder(&moving.app, &moving.project).await, ONE);
    }
    moving.one.review().await;
    assert_eq!(moving.count(&moving.one).await, 1000);
}

#[tokio::test]
async fn project_stays_if_its_log_cannot_be_archived() {
    let moving = Moving::new().await;
    moving.store.away(true);
    assert_eq!(moving.request("node-11").await, Ok(1));
    moving.step("handing_over").await;
    let last = moving.until(&[MoveStep::Done, MoveStep::Failed]).await;
    assert_eq!(last.step, MoveStep::Failed);
    let reason = last.error.unwrap();
    assert!(reason.contains("log could not be archived"), "{reason}");
    moving
        .two
        .node
        .until(&moving.project, Status::ActiveHealthy)
        .await;
    assert_eq!(holder(&moving.app, &moving.project).await, TWO);
    assert_eq!(moving.count(&moving.two).await, 1000);
    // The installation is not backed up either.
    moving.app.log.take_errors();
}

#[tokio::test]
async fn paused_project_moves_and_keeps_its_copy_until_it_is_resumed() {
    let moving = Moving::new().await;
    let Moving {
        app,
        machines,
        one,
        two,
        project,
        ..
    } = &moving;
    let path = format!("/v1/projects/{project}");
    let pause = two.node.post(&format!("{path}/pause")).as_(&app.owner);
    pause.send().await.expect(200);
    two.node.until(project, Status::Inactive).await;
    assert_eq!(moving.request("node-11").await, Ok(1));
    let last = moving.until(&[MoveStep::Restoring]).await;
    assert!(last.paused);
    assert_eq!(holder(app, project).await, ONE);
    let data = machines[1].data(project);
    assert!(data.exists(), "the only cluster is kept");
    let resume = one.node.post(&format!("{path}/restore")).as_(&app.owner);
    resume.send().await.expect(200);
    one.node.until(project, Status::ActiveHealthy).await;
    assert_eq!(moving.count(one).await, 1000);
    moving.until(&[MoveStep::Done]).await;
    assert!(!data.exists());
}

#[tokio::test]
async fn moves_that_cannot_succeed_are_refused() {
    let moving = Moving::new().await;
    for (to, reason) in [
        ("node-13", "is no node that takes projects"),
        ("node-12", "holds the project already"),
    ] {
        let refused = moving.request(to).await.unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let now = moving.app.clock.now();
    let db = &moving.app.app.db;
    let unknown: ProjectRef = "aaaaaaaaaaaaaaaaaaaa".parse().unwrap();
    let refused = moves::request(db, &unknown, "node-11", now).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    assert!(moves::cancel(db, &moving.project, now).await.is_err());
    let sql = "update nodes set engines = '{}' where name = $1";
    let name: [Param<'_>; 1] = [&"node-11"];
    db.query(sql, &name).await.unwrap();
    let refused = moving.request("node-11").await.unwrap_err();
    assert!(refused.contains("has no PostgreSQL"), "{refused}");
    let drained = moves::drain(db, "node-12", now).await.unwrap();
    assert_eq!(drained.requested.len(), 0);
    assert_eq!(drained.staying[0].0, moving.project.as_str());
    assert!(moves::list(db).await.unwrap().is_empty());
    assert_eq!(moving.count(&moving.two).await, 1000);
}

#[tokio::test]
async fn drained_node_holds_no_project_and_gets_no_new_ones() {
    let moving = Moving::new().await;
    let Moving {
        app, one, project, ..
    } = &moving;
    let now = app.clock.now();
    let drained = moves::drain(&app.app.db, "node-12", now).await.unwrap();
    assert_eq!(drained.requested.len(), 1);
    let again = moves::drain(&app.app.db, "node-12", now).await.unwrap();
    assert_eq!(again.requested.len(), 0, "it is moving already");
    moving.until_moved().await;
    assert_eq!(holder(app, project).await, ONE);
    one.review().await;
    let new = one.create(app, &app.new_project("new")).await;
    assert_eq!(holder(app, &new).await, ONE);
}

#[tokio::test]
async fn move_of_a_lost_project_ends_when_it_is_rebuilt() {
    let Moving {
        app,
        store: _store,
        one,
        two,
        project,
        ..
    } = Moving::new().await;
    two.stop(&one).await;
    let db = &app.app.db;
    let now = app.clock.now();
    let sql = "insert into project_moves (project_id, from_node, to_node, requested_at, updated_at)
               select id, node, $2, $3, $3 from projects where ref = $1";
    let params: [Param<'_>; 3] = [&project.as_str(), &ONE, &now];
    db.query(sql, &params).await.unwrap();
    rebuild::rebuild(db, "node-12", None, (&app.app.entropy, now))
        .await
        .unwrap();
    one.node.until(&project, Status::ActiveHealthy).await;
    let ended = &moves::list(db).await.unwrap()[0];
    assert_eq!(ended.step, MoveStep::Failed);
    let reason = ended.error.as_deref().unwrap();
    assert!(reason.contains("rebuilt on another node"), "{reason}");
    assert_eq!(holder(&app, &project).await, ONE);
}
