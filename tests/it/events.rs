//! The events of organizations: their numbers, their transactions, and the cursor.

mod changes;
pub(crate) mod cursor;
mod numbers;
mod stream;

use std::{fs, path::Path};

use gantry::platform::{db::Db, events};
use serde_json::Value;

use crate::support::{Actor, TestApp, client::Answer};

/// Returns the names of the events of the home organization, oldest first.
pub(crate) async fn names(app: &TestApp) -> Vec<String> {
    let sql = "select type from events where organization_id = $1 order by number";
    let rows = app.app.db.query(sql, &[&app.home.id.0]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Checks that the changes of status of each project follow each other, and lead to its present
/// status.
pub(crate) async fn assert_chains(db: &Db) {
    let sql = "select e.project_ref, e.payload, p.status,
                   lead(e.number) over (partition by e.project_ref order by e.number) is null
               from events e join projects p on p.ref = e.project_ref
               where e.type = 'v1.project.status.changed' order by e.project_ref, e.number";
    let mut last: Option<(String, String)> = None;
    for row in db.query(sql, &[]).await.unwrap() {
        let (project, status): (String, String) = (row.get(0), row.get(2));
        let payload: Value = serde_json::from_str(row.get(1)).unwrap();
        let text = |name: &str| payload[name].as_str().unwrap().to_owned();
        if let Some((before, current)) = &last
            && *before == project
        {
            assert_eq!(text("previous_status"), *current, "{project}");
        }
        assert_ne!(text("previous_status"), text("current_status"), "{project}");
        if row.get(3) {
            assert_eq!(text("current_status"), status, "{project}");
        }
        last = Some((project, text("current_status")));
    }
    // The others have not changed their status since they were created.
    let sql =
        "select ref, status from projects p where coalesce(announced_status, status) <> status";
    let missed = db.query(sql, &[]).await.unwrap();
    let missed: Vec<(String, String)> = missed.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(missed, [], "changes of status without an event");
}

/// Requests the events of the home organization.
async fn read(app: &TestApp, who: &Actor, query: &str) -> Answer {
    let path = format!("/v1/organizations/{}/events{query}", app.home.slug);
    app.get(&path).as_(who).send().await
}

/// Each type that is emitted is named by a test that makes it happen.
#[test]
fn every_emitted_type_is_made_by_a_test() {
    let mut texts = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                texts.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    for declared in events::catalog() {
        let is_made = texts.contains(&format!("\"{}\"", declared.name));
        assert_eq!(is_made, declared.is_emitted, "{}", declared.name);
    }
}
