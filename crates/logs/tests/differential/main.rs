//! Runs statements of `tests/logs-differential` and writes their answers.
//!
//! `GANTRY_LOGS_DIFFERENTIAL` is a folder with `lines.json`, a list of lines, and `cases.json`, a
//! list of statements. The answers are written to `answers.json` in the order of the statements.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use gantry_logs::{
    Dialect, Logs, QueryError, Question,
    engine::Bounds,
    event::{Attributes, Event, Source},
    store::{Batch, Options, Store},
};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

#[derive(Deserialize)]
struct Line {
    id: String,
    timestamp: i64,
    event_message: String,
    attributes: Map<String, Json>,
}

#[derive(Deserialize)]
struct Case {
    dialect: String,
    sql: String,
    now: i64,
}

#[tokio::test]
#[ignore = "needs generated statements: just logs-differential"]
async fn statements_are_answered() {
    let folder = PathBuf::from(std::env::var("GANTRY_LOGS_DIFFERENTIAL").unwrap());
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let lines: Vec<Line> = serde_json::from_slice(&read("lines.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&read("cases.json")).unwrap();
    let store = tempfile::tempdir().unwrap();
    let logs = filled(&lines, store.path()).await;
    let mut answers = Vec::with_capacity(cases.len());
    for case in cases {
        let question = Question {
            project: "own".into(),
            dialect: match case.dialect.as_str() {
                "clickhouse" => Dialect::ClickHouse,
                _ => Dialect::BigQuery,
            },
            sql: case.sql,
            after: 0,
            until: i64::MAX / 2,
            now: case.now,
        };
        answers.push(match logs.query(question).await {
            Ok(answer) => json!({ "columns": answer.columns, "rows": answer.rows }),
            Err(QueryError::Invalid(text)) => json!({ "error": text }),
            Err(other) => json!({ "error": format!("{other:?}") }),
        });
    }
    let text = serde_json::to_vec(&answers).unwrap();
    fs::write(folder.join("answers.json"), text).unwrap();
}

async fn filled(lines: &[Line], folder: &Path) -> Logs {
    let store = Store::open(Options {
        retention_days: u32::MAX,
        seal_after: Duration::ZERO,
        ..Options::new(folder, "a")
    })
    .await
    .unwrap();
    for chunk in lines.chunks(1_000) {
        let mut events = Vec::with_capacity(chunk.len());
        for line in chunk {
            events.push(Event::new(
                line.id.clone(),
                line.timestamp,
                Source::Edge,
                line.event_message.clone(),
                Attributes::of_json(&line.attributes),
            ));
        }
        let batch = Batch {
            project: "own".into(),
            events,
            reader_offset: None,
        };
        store.append(batch).await.unwrap();
    }
    Logs::new(Arc::new(store), Bounds::default()).unwrap()
}
