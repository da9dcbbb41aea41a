//! A damaged log file, as clients and operators see it: answers, `/readyz` and metrics.

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use chrono::{SecondsFormat, TimeDelta};
use gantry_base::clock::Clock;
use gantry_logs::{
    event::{Attributes, Event, Source},
    store::{Batch, Options, Store},
};

use super::{
    machine::{Machine, until},
    wire,
};

/// Writes a log file of a project into the shared folder, as another process does. Returns its
/// path.
fn write_file(machine: &Machine, project: &str) -> PathBuf {
    let objects = machine.data().join("logs/objects");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let now = Clock::system().now().timestamp_micros();
        let store = Store::open(Options {
            files: Some(objects.clone()),
            seal_after: Duration::ZERO,
            ..Options::new(machine.data().join("logs/other"), "other")
        })
        .await
        .unwrap();
        let attributes = Attributes::default();
        let event = Event::new("i".into(), now - 1, Source::Auth, "m".into(), attributes);
        let batch = Batch {
            project: project.to_owned(),
            events: vec![event],
            reader_offset: None,
        };
        store.append(batch).await.unwrap();
        while store.stats(now).pending_rows > 0 {
            store.upkeep(now).await;
        }
        let view = store.view(project, 0, now).await.unwrap();
        objects.join(view.files[0].path.as_ref())
    })
}

#[test]
fn damaged_log_file_is_reported_by_readyz_metrics_and_answers() {
    let machine = Machine::new();
    // The port was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = free.local_addr().unwrap();
    drop(free);
    let gantry = machine.dev(&["--admin-listen", &admin.to_string()]);
    let project = gantry.create("damaged");
    let file = write_file(&machine, &project);
    let mut content = fs::read(&file).unwrap();
    content[100] ^= 1;
    fs::write(&file, content).unwrap();
    let get = |path: &str| {
        let answer = wire::send(admin, "GET", path, None, None);
        answer.unwrap().text
    };
    assert_eq!(get("/readyz"), "ready\n");

    let start = Clock::system().now() - TimeDelta::hours(1);
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("sql", "select id from logs where source = 'auth_logs'")
        .append_pair(
            "iso_timestamp_start",
            &start.to_rfc3339_opts(SecondsFormat::Millis, true),
        )
        .finish();
    let path = format!("/v1/projects/{project}/analytics/endpoints/logs?{query}");
    let body = gantry.get(&path).expect(200);
    assert_eq!(body["result"], serde_json::json!([]));
    let warning = body["warning"].as_str().unwrap_or_default();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(
        warning.contains("1 damaged file with 1 lines") && warning.contains(name),
        "{body}"
    );
    assert_eq!(
        get("/readyz"),
        "ready\nwarning: 1 log files and 0 log segments are damaged; run 'gantry logs verify'\n"
    );
    until("the metric", || {
        let metrics = get("/metrics");
        metrics
            .lines()
            .any(|line| line == "gantry_logs_damaged_files 1")
            .then_some(())
    });
}
