//! Migration histories in the manner of real applications, applied through the API.

use std::{fs, path::Path};

use serde_json::json;

use crate::support::{TestApp, machine::engine};

/// Line between the migrations of a file.
const SEPARATOR: &str = "\n-- migration\n";

/// Returns whether the default engine is of this version or newer, or has this extension.
fn is_met(need: &str) -> bool {
    if need == "api" {
        return true;
    }
    match need.parse::<u16>() {
        Ok(major) => engine().major() >= major,
        Err(_) => engine().has_extension(need),
    }
}

/// Each file is a history. Parts of its name after a dot are what it needs: `.16` that version of
/// PostgreSQL, `.vector` that extension, `.api` the API, because the CLI runs a file as one
/// transaction.
#[tokio::test]
async fn histories_of_applications_apply_to_a_new_project() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/platform_database/histories");
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 26);
    let app = TestApp::running().await;
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.split('.').skip(1).all(is_met) {
            continue;
        }
        let project = app.real_project().await;
        let text = fs::read_to_string(&file).unwrap();
        for (number, migration) in text.split(SEPARATOR).enumerate() {
            let answer = app
                .post(&format!("/v1/projects/{project}/database/migrations"))
                .as_(&app.owner)
                .json(&json!({"query": migration, "name": format!("step_{number}")}))
                .send()
                .await;
            assert_eq!(
                answer.status.as_u16(),
                200,
                "{name}, migration {number}: {}",
                answer.text()
            );
        }
        let deleted = app
            .delete(&format!("/v1/projects/{project}"))
            .as_(&app.owner)
            .send()
            .await;
        deleted.expect(200);
        app.advance(60);
    }
}
