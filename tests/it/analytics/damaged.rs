//! Damaged log files: queries and usage counts warn instead of failing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use chrono::TimeDelta;
use serde_json::{Value, json};

use super::{ingest, question};
use crate::support::{TestApp, dawn};

/// Returns the Parquet files below a folder.
fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "parquet") {
                files.push(path);
            }
        }
    }
    files
}

#[tokio::test]
async fn damaged_file_is_named_in_answers_and_usage_is_not_500() {
    let app = TestApp::new().await;
    let key = app
        .post(&app.at("/analytics/ingest-keys"))
        .as_(&app.owner)
        .json(&json!({ "name": "one" }))
        .send()
        .await
        .expect(201)
        .json();
    let line = json!({ "event_message": "m", "timestamp": dawn() });
    app.post("/api/logs?source_name=edge_logs")
        .header("x-api-key", key["key"].as_str().unwrap())
        .json(&line)
        .send()
        .await
        .expect(200);
    for minutes in 0..3 {
        let now = dawn() + TimeDelta::minutes(2 * minutes);
        app.app.analytics.upkeep(now).await;
    }
    let file = parquet_files(&app.app.home.dir().join("logs/objects")).remove(0);
    let mut content = fs::read(&file).unwrap();
    content[100] ^= 1;
    fs::write(&file, content).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let sql = "select event_message from logs";
    let paths = [
        question(&app.home.project, "logs", sql, dawn()),
        app.at("/analytics/endpoints/usage.api-counts"),
        app.at("/analytics/endpoints/usage.api-requests-count"),
        app.at("/analytics/endpoints/functions.combined-stats?interval=1day&function_id=f"),
    ];
    for path in paths {
        let answer = app.get(&path).as_(&app.owner).send().await.expect(200);
        let body = answer.json();
        assert!(body["result"].is_array(), "{path}: {body}");
        let warning = body["warning"].as_str().unwrap_or_default();
        assert!(warning.contains(name), "{path}: {body}");
    }
    let errors = app.log.take_errors();
    assert_eq!(errors.len(), 1, "logged once: {errors:?}");
    assert!(errors[0].contains(name), "{errors:?}");
    let damage = app.app.analytics.damage().await;
    assert_eq!((damage.files, damage.segments), (1, 0));
    assert!(damage.warning().is_some());
    let data = app.app.home.dir();
    let verified = gantry_logs(data, "verify");
    assert!(!verified.status.success());
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert!(
        report["damaged_files"][0]["file"]
            .as_str()
            .unwrap()
            .ends_with(name),
        "{report}"
    );
    // The server still uses the folder.
    assert!(!gantry_logs(data, "repair").status.success());
    app.app.analytics.close().await;
    let repaired = gantry_logs(data, "repair");
    let report: Value = serde_json::from_slice(&repaired.stdout).unwrap();
    assert_eq!(report[0]["rebuilt_from"], "nothing", "{report}");
    assert!(gantry_logs(data, "verify").status.success());
}

#[tokio::test]
async fn removed_file_is_named_in_answers() {
    let app = TestApp::new().await;
    let (key, _) = ingest::key(&app, "tests").await;
    let mut names = Vec::new();
    for (at, message) in ["lost", "kept"].iter().enumerate() {
        let line = json!({ "event_message": message, "timestamp": dawn() });
        app.post("/api/logs?source_name=edge_logs")
            .header("x-api-key", &key)
            .json(&line)
            .send()
            .await
            .expect(200);
        for minutes in 0..3 {
            let minutes = i64::try_from(at).unwrap() * 10 + 2 * minutes;
            let now = dawn() + TimeDelta::minutes(minutes);
            app.app.analytics.upkeep(now).await;
        }
        if names.is_empty() {
            names = parquet_files(&app.app.home.dir().join("logs/objects"));
        }
    }
    fs::remove_file(&names[0]).unwrap();
    let sql = "select event_message from logs";
    let path = question(&app.home.project, "logs", sql, dawn());
    let body = app
        .get(&path)
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(body["result"], json!([{ "event_message": "kept" }]));
    let name = names[0].file_name().unwrap().to_str().unwrap();
    let warning = body["warning"].as_str().unwrap_or_default();
    assert!(warning.contains(name), "{body}");
    assert_eq!(app.app.analytics.damage().await.files, 1);
    let errors = app.log.take_errors();
    assert!(errors.len() == 1 && errors[0].contains(name), "{errors:?}");
}

/// Runs `gantry logs` on a data folder.
fn gantry_logs(data: &Path, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["logs", command, "--output", "json", "--data-dir"])
        .arg(data)
        .output()
        .unwrap()
}
