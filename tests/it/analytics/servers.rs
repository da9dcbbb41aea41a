//! PostgreSQL server logs, read while they are written.

use std::time::Duration;

use gantry::control::projects::Status;
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{question, rows};
use crate::support::{Actor, Node, TestApp, machine::SuperuserClients as _};

/// Runs a statement with a missing table, and returns the log lines that appear within two seconds.
async fn fail(node: &Node, owner: &Actor, project: &ProjectRef, table: &str) -> Vec<Value> {
    let query = json!({ "query": format!("select * from {table}") });
    node.post(&format!("/v1/projects/{project}/database/query"))
        .as_(owner)
        .json(&query)
        .send()
        .await
        .expect(400);
    let found = async {
        let mut changes = node.app.analytics.changes();
        loop {
            let found = errors(node, owner, project, table).await;
            if !found.is_empty() {
                return found;
            }
            changes.changed().await.unwrap();
        }
    };
    timeout(Duration::from_secs(2), found)
        .await
        .expect("it is not there within two seconds")
}

async fn errors(node: &Node, owner: &Actor, project: &ProjectRef, table: &str) -> Vec<Value> {
    let sql = format!(
        "select t.event_message, parsed.error_severity as severity, parsed.sql_state_code as code from postgres_logs as t \
         cross join unnest(metadata) as m cross join unnest(m.parsed) as parsed \
         where parsed.query like '%{table}%' and parsed.error_severity = 'ERROR'"
    );
    rows(
        &node
            .get(&question(project, "logs.all", &sql, Clock::system().now()))
            .as_(owner)
            .send()
            .await
            .expect(200),
    )
}

fn expected(table: &str) -> [Value; 1] {
    [
        json!({ "event_message": format!("relation \"{table}\" does not exist"), "severity": "ERROR", "code": "42P01" }),
    ]
}

#[tokio::test]
async fn server_error_is_logged_once_within_two_seconds() {
    let mut app = TestApp::running().await;
    let project = app.real_project().await;
    assert_eq!(
        fail(&app, &app.owner, &project, "first").await,
        expected("first")
    );
    app.node.stop().await;
    let mut again = app.another(1, app.machine.clone());
    again.start();
    again.until(&project, Status::ActiveHealthy).await;
    assert_eq!(
        fail(&again, &app.owner, &project, "second").await,
        expected("second")
    );
    assert_eq!(
        errors(&again, &app.owner, &project, "first").await,
        expected("first"),
        "each line is kept once"
    );
}

#[tokio::test]
async fn platform_lines_and_host_paths_are_hidden() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    // A superuser session, whose statements contain password verifiers, and an API session as the
    // owner.
    let admin = app.app.driver.admin_session(&project).await.unwrap();
    admin
        .batch_execute("create role platform_only; drop role platform_only")
        .await
        .unwrap();
    let query = json!({ "query": "create table visible ()" });
    app.post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&query)
        .send()
        .await
        .expect(201);
    fail(&app, &app.owner, &project, "last").await;

    let sql = "select t.event_message as message, parsed.user_name as user, parsed.detail as detail from postgres_logs as t \
               cross join unnest(metadata) as m cross join unnest(m.parsed) as parsed";
    let path = question(&project, "logs.all", sql, Clock::system().now());
    let lines = rows(&app.get(&path).as_(&app.owner).send().await.expect(200));
    let text = json!(lines).to_string();
    assert!(
        text.contains("database system is ready") && text.contains("create table visible"),
        "{text}"
    );
    let home = app.app.home.dir().display().to_string();
    let sockets = app.app.home.socket_dir(project.as_str());
    let sockets = sockets.display().to_string();
    for forbidden in [
        home.as_str(),
        sockets.as_str(),
        "pg_hba.conf",
        "identity=",
        "connection received",
        "connection authorized",
        "supabase_admin",
        "platform_only",
    ] {
        assert!(!text.contains(forbidden), "{forbidden}: {text}");
    }
}

#[tokio::test]
async fn reader_takeover_continues_at_offset() {
    let mut app = TestApp::running().await;
    let project = app.real_project().await;
    assert_eq!(
        fail(&app, &app.owner, &project, "first").await,
        expected("first")
    );
    // While the other process runs, this one uses its own name and stores its queries under it.
    let mut other = app.another(1, app.machine.clone());
    other.start();
    assert!(
        errors(&other, &app.owner, &project, "first")
            .await
            .is_empty(),
        "it is in no file yet"
    );
    app.node.stop().await;
    other.until(&project, Status::ActiveHealthy).await;
    assert_eq!(
        fail(&other, &app.owner, &project, "second").await,
        expected("second")
    );
    assert_eq!(
        errors(&other, &app.owner, &project, "first").await,
        expected("first"),
        "each line is kept once"
    );
}

#[tokio::test]
async fn metrics_do_not_start_stopped_server() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/analytics/endpoints/metrics");
    let page = app.get(&path).as_(&app.read_only).send().await.expect(200);
    let page = page.text();
    let labels = format!("{{supabase_project_ref=\"{project}\",service_type=\"db\"}}");
    assert!(
        page.contains(&format!("pg_up{labels} 1\n"))
            && page.contains(&format!("pg_settings_max_connections{labels} 118\n")),
        "{page}"
    );
    let stub = app
        .get(&app.at("/analytics/endpoints/metrics"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    let stub = stub.text();
    assert!(
        stub.contains("pg_up") && !stub.contains("pg_database_size_bytes"),
        "{stub}"
    );
}
