//! Privileges that only the platform has, found at the start of a project: the record in the audit
//! log and in health.

use std::sync::Arc;

use gantry::control::projects::{Status, reconciler};
use gantry_base::ids::ProjectRef;
use gantry_node::engines::Engines;
use tokio::time::timeout;

use super::text;
use crate::support::{
    TestApp,
    machine::{Machine, PATIENCE, SuperuserClients as _, engines},
};

/// Rejects the entry of the audit log about findings.
const REJECT: &str =
    "create function reject() returns trigger language plpgsql as $$ begin raise 'rejected'; end $$;
     create trigger reject before insert on audit_entries for each row
         when (new.operation = 'repair_project_privileges') execute function reject()";
/// Entries of the audit log about findings.
const ENTRIES: &str = "select count(*) from audit_entries
                       where operation = 'repair_project_privileges' and subject = $1";

async fn entries(app: &TestApp, project: &ProjectRef) -> i64 {
    let rows = app.app.db.query(ENTRIES, &[&project.as_str()]).await;
    rows.unwrap()[0].get(0)
}

async fn health(app: &TestApp, project: &ProjectRef) -> String {
    let path = format!("/v1/projects/{project}/health?services=db");
    let answer = app.get(&path).as_(&app.owner).send().await;
    answer.expect(200).text().to_owned()
}

async fn restart(app: &TestApp, project: &ProjectRef) {
    let path = format!("/v1/projects/{project}/restart");
    let answer = app.post(&path).as_(&app.owner).send().await;
    assert!(answer.status.is_success(), "{}", answer.text());
}

/// Waits until an attempt to start a project has failed with `reason`.
async fn until_failed(app: &TestApp, project: &ProjectRef, reason: &str) {
    let failed = async {
        let mut changes = app.app.reconciler.changes();
        loop {
            let sql = "select coalesce(last_error, '') from projects where ref = $1";
            let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
            if rows[0].get::<_, String>(0).contains(reason) {
                return;
            }
            changes.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, failed).await.expect("no failed attempt");
}

#[tokio::test]
async fn privilege_is_revoked_only_after_it_is_recorded() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let change = "create role helper login bypassrls";
    admin.batch_execute(change).await.unwrap();
    let control = app.app.db.client().await.unwrap();
    control.batch_execute(REJECT).await.unwrap();
    restart(&app, &project).await;
    until_failed(&app, &project, "writing the audit log").await;

    let held = "select rolbypassrls::text from pg_roles where rolname = 'helper'";
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    assert_eq!(text(&admin, held).await.unwrap(), "true");
    assert_eq!(entries(&app, &project).await, 0);
    let allow = "drop trigger reject on audit_entries";
    control.batch_execute(allow).await.unwrap();
    app.advance(61);
    app.app.reconciler.wake();
    app.until(&project, Status::ActiveHealthy).await;
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    assert_eq!(text(&admin, held).await.unwrap(), "false");
    assert_eq!(entries(&app, &project).await, 1);
    let seen = health(&app, &project).await;
    assert!(
        seen.contains("role helper bypassed row-level security"),
        "{seen}"
    );

    restart(&app, &project).await;
    app.until(&project, Status::ActiveHealthy).await;
    assert_eq!(entries(&app, &project).await, 1);
    let seen = health(&app, &project).await;
    assert!(!seen.contains("helper"), "{seen}");
}

#[tokio::test]
async fn role_creation_that_gantry_granted_before_16_is_no_finding() {
    let engines = engines();
    let Some(fifteen) = engines.offered().iter().find(|it| it.major() == 15) else {
        return;
    };
    let machine = Machine::on(&Engines::only(fifteen.clone())).await;
    let mut app = TestApp::new().await;
    app.node = app.another(2, Arc::new(machine));
    app.node.start();
    let project = app.real_project().await;
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    admin
        .batch_execute("alter role postgres createrole")
        .await
        .unwrap();
    // As after an upgrade of Gantry.
    let outdated = "update projects set grants = 'of another version' where ref = $1";
    app.app
        .db
        .query(outdated, &[&project.as_str()])
        .await
        .unwrap();
    reconciler::recover_on_startup(&app.app).await.unwrap();
    app.app.reconciler.wake();
    let updated = async {
        let mut changes = app.app.reconciler.changes();
        let sql = "select outdated from projects where ref = $1";
        let rows = async || app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
        while rows().await[0].get::<_, bool>(0) {
            changes.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, updated).await.expect("still outdated");
    let held = "select rolcreaterole::text from pg_roles where rolname = 'postgres'";
    assert_eq!(text(&admin, held).await.unwrap(), "false");
    assert_eq!(entries(&app, &project).await, 0);
    assert!(!health(&app, &project).await.contains("create roles"));

    admin
        .batch_execute("alter role postgres createrole")
        .await
        .unwrap();
    restart(&app, &project).await;
    app.until(&project, Status::ActiveHealthy).await;
    assert_eq!(entries(&app, &project).await, 1);
}
