//! Log files in an object store: nodes share them, failures neither lose nor duplicate lines, and
//! servers work while the store is unreachable.

use std::{path::Path, sync::Arc, time::Duration};

use gantry::platform::http::Transport;
use gantry_logs::{
    Dialect, Logs, Question,
    engine::Bounds,
    event::{Attributes, Event, Source},
    store::{Batch, Options, Store},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{ask, question, rows, s3::client};
use crate::support::{Node, TestApp, dawn, machine::Machine, s3::Objects, settings};

const SECOND: i64 = 1_000_000;

async fn open(folder: &Path, node: &str, objects: &Objects) -> Arc<Store> {
    let options = Options {
        objects: Some(Arc::new(client(objects.place("logs")))),
        seal_after: Duration::from_secs(1),
        seal_bytes: 1_000,
        merge_files: 3,
        grace: Duration::ZERO,
        ..Options::new(folder, node)
    };
    Arc::new(Store::open(options).await.unwrap())
}

async fn append(store: &Store, message: String, now: i64) {
    let event = Event::new(
        message.clone(),
        now,
        Source::Edge,
        message,
        Attributes::default(),
    );
    store
        .append(Batch {
            project: "p".into(),
            events: vec![event],
            reader_offset: None,
        })
        .await
        .unwrap();
}

/// Returns the messages of all lines.
async fn messages(store: &Arc<Store>) -> Vec<String> {
    let logs = Logs::new(
        store.clone(),
        Bounds {
            threads: 2,
            ..Bounds::default()
        },
    )
    .unwrap();
    let sql = "select event_message from logs order by event_message limit 1000".into();
    let now = dawn().timestamp_micros();
    let question = Question {
        project: "p".into(),
        dialect: Dialect::ClickHouse,
        sql,
        after: 0,
        until: now * 2,
        now,
    };
    let answer = logs.query(question).await.unwrap();
    answer
        .rows
        .iter()
        .map(|row| row["event_message"].as_str().unwrap().to_owned())
        .collect()
}

/// Two nodes on a store that fails a quarter, half or most of the requests, before or after their
/// execution. Each node is reopened repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_lines_survive_store_failures_once() {
    const LINES: usize = 40;
    for seed in 1..=3 {
        let (objects, folder) = (Objects::start().await, tempfile::tempdir().unwrap());
        let names = ["one", "other"];
        let mut now = dawn().timestamp_micros();
        let (mut stores, mut failures) = (Vec::new(), 0);
        for name in names {
            stores.push(open(&folder.path().join(name), name, &objects).await);
        }
        objects.bad_luck(seed, seed * 250);
        for line in 0..LINES {
            for (at, name) in names.into_iter().enumerate() {
                append(&stores[at], format!("{line:02} {name}"), now).await;
                stores[at].upkeep(now).await;
                if line % 10 == 9 {
                    failures += stores.remove(at).stats(now).failures;
                    stores.insert(at, open(&folder.path().join(name), name, &objects).await);
                }
            }
            now += 20 * SECOND;
        }
        objects.bad_luck(seed, 0);
        for _ in 0..3 {
            for store in &stores {
                now += 100 * SECOND;
                store.upkeep(now).await;
                assert_eq!(
                    store.stats(now).pending_rows,
                    0,
                    "all is filed once there is no trouble"
                );
            }
        }
        let written: Vec<String> = (0..LINES)
            .flat_map(|line| names.map(|name| format!("{line:02} {name}")))
            .collect();
        for store in &stores {
            assert_eq!(messages(store).await, written, "{seed}");
        }
        let merged: u64 = stores.iter().map(|store| store.stats(now).merged).sum();
        assert!(
            merged > 0 && (failures > 0 || seed < 3),
            "{failures} failures, {merged} merged"
        );
        stores[0].forget("p").await.unwrap();
        assert_eq!(messages(&stores[1]).await, [""; 0]);
    }
}

/// Losing a node's folder loses only lines that were not in a file yet.
#[tokio::test]
async fn node_with_lost_folder_keeps_filed_lines() {
    let (objects, now) = (Objects::start().await, dawn().timestamp_micros());
    for round in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), "one", &objects).await;
        append(&store, round.to_string(), now).await;
        store.upkeep(now).await;
        store.upkeep(now + 2 * SECOND).await;
        assert_eq!(messages(&store).await.len(), round + 1);
    }
}

async fn line(node: &Node, key: &str, message: &str) {
    let line = json!({ "event_message": message, "timestamp": dawn() });
    node.post("/api/logs?source_name=auth_logs")
        .header("x-api-key", key)
        .json(&line)
        .send()
        .await
        .expect(200);
}

/// Advances the clock until lines are old enough for files and retry delays have passed.
async fn file(app: &TestApp, node: &Node) {
    for _ in 0..2 {
        node.app.analytics.upkeep(app.clock.now()).await;
        app.advance(61);
    }
    node.app.analytics.upkeep(app.clock.now()).await;
}

#[tokio::test]
async fn nodes_share_files_and_serve_during_store_outage() {
    let (app, objects) = (TestApp::new().await, Objects::start().await);
    let node = |number| {
        let mut settings = settings(Transport::default(), Uuid::from_u128(number));
        settings.logs.place = Some(objects.place("gantry"));
        app.another_with(settings, Arc::new(Machine::bare()))
    };
    let (one, other) = (node(7), node(8));
    let project = &app.home.project;
    let made = one
        .post(&app.at("/analytics/ingest-keys"))
        .as_(&app.owner)
        .json(&json!({ "name": "x" }))
        .send()
        .await
        .expect(201);
    let key = made.json()["key"].as_str().unwrap().to_owned();
    let sql = "select event_message from logs order by event_message";
    let found = async |node: &Node| ask(node, &app.owner, project, sql, dawn()).await;
    let lines = |all: &[&str]| {
        all.iter()
            .map(|it| json!({ "event_message": it }))
            .collect::<Vec<Value>>()
    };

    line(&one, &key, "a").await;
    assert_eq!(
        (found(&one).await, found(&other).await),
        (lines(&["a"]), vec![]),
        "in the log of one"
    );
    file(&app, &one).await;
    assert_eq!(
        (found(&one).await, found(&other).await),
        (lines(&["a"]), lines(&["a"])),
        "in a file that both read"
    );
    assert!(
        objects
            .keys()
            .iter()
            .all(|key| key.starts_with(&format!("gantry/{project}/2026-11-21/"))),
        "{:?}",
        objects.keys()
    );

    objects.away(true);
    line(&one, &key, "b").await;
    file(&app, &one).await;
    let asked = question(project, "logs", sql, dawn());
    let body = one
        .get(&asked)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        body,
        json!({ "error": "The files of the logs cannot be read at the moment. Retry your query." })
    );
    let counted = one
        .get(&app.at("/endpoints/usage.api-counts"))
        .as_(&app.owner)
        .send()
        .await
        .expect(503);
    assert_eq!(
        counted.json()["message"],
        "The files of the logs cannot be read at the moment; try again shortly"
    );
    let logged = app.log.take_errors();
    assert!(
        logged.len() == 1 && logged[0].contains("lines stay in the log"),
        "{logged:#?}"
    );

    objects.away(false);
    file(&app, &one).await;
    assert_eq!(found(&other).await, lines(&["a", "b"]));
    // A store that is unreachable at first use is rejected; one that worked before is awaited.
    objects.away(true);
    assert!(node(9).app.analytics.ready().await.is_err());
    one.app.analytics.close().await;
    one.app.analytics.ready().await.unwrap();
    line(&one, &key, "c").await;
    objects.away(false);
    assert_eq!(found(&one).await, lines(&["a", "b", "c"]));
    assert_eq!(
        rows(&other.get(&asked).as_(&app.owner).send().await.expect(200)),
        lines(&["a", "b"])
    );
}

/// A chart lists the day of its window and reads the files of that day only. Listings and reads of
/// another day would grow with the size of the store.
#[tokio::test]
async fn query_requests_only_objects_of_its_window() {
    const DAY: i64 = 86_400 * SECOND;
    const DAYS: i64 = 6;
    let (objects, folder) = (Objects::start().await, tempfile::tempdir().unwrap());
    let store = open(folder.path(), "one", &objects).await;
    let first_day = dawn().timestamp_micros() / DAY * DAY;
    for day in 0..DAYS {
        for number in 0..2 {
            let now = first_day + day * DAY + number * 3_600 * SECOND + SECOND;
            append(&store, format!("{day} {number}"), now).await;
            store.upkeep(now).await;
            store.upkeep(now + 2 * SECOND).await;
        }
    }
    assert!(objects.keys().len() >= usize::try_from(DAYS).unwrap());
    let logs = Logs::new(store.clone(), Bounds::default()).unwrap();
    objects.asked();
    let after = first_day + 2 * DAY;
    let question = || Question {
        project: "p".into(),
        dialect: Dialect::ClickHouse,
        sql: "select toStartOfHour(timestamp) as t, count() as n from logs group by t".into(),
        after,
        until: after + DAY - 1,
        now: after,
    };
    let answer = logs.query(question()).await.unwrap();
    assert_eq!(answer.rows.len(), 2);
    let asked = objects.asked();
    let day = chrono::DateTime::from_timestamp_micros(after).unwrap();
    let folder_name = format!("p/{}", day.format("%Y-%m-%d"));
    let listings = asked.iter().filter(|it| it.contains("list-type=2")).count();
    assert_eq!(listings, 1, "{asked:?}");
    for request in &asked {
        let path = request.replace("%2F", "/");
        assert!(path.contains(&folder_name), "{request}");
    }
    let files = objects.keys();
    let files = files
        .iter()
        .filter(|key| key.contains(&folder_name))
        .count();
    assert!(asked.len() <= 1 + 2 * files, "{asked:?}");
    // The second time, the footers are cached.
    logs.query(question()).await.unwrap();
    assert!(objects.asked().len() <= 1 + files);
}
