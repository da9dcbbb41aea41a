//! The choice of grants on new tables, and conflicts in the health of a project.

use gantry::control::projects::Status;
use serde_json::{Value, json};

use crate::support::TestApp;

/// Creates a project with this choice and returns whether `anon` may read a new table in `public`.
async fn open_to_anon(app: &TestApp, choice: Option<&str>) -> Value {
    let mut wanted = app.new_project(&format!("with {choice:?}"));
    if let Some(choice) = choice {
        wanted["new_table_grants"] = json!(choice);
    }
    let created = app
        .post("/v1/projects")
        .as_(&app.owner)
        .json(&wanted)
        .send()
        .await
        .expect(201)
        .json();
    let project = created["ref"].as_str().unwrap().parse().unwrap();
    app.until(&project, Status::ActiveHealthy).await;
    let query = "create table public.t (id int); select has_table_privilege('anon', 'public.t', 'select') as readable";
    let answer = app
        .post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&json!({"query": query}))
        .send()
        .await
        .expect(201)
        .json();
    answer[0]["readable"].clone()
}

#[tokio::test]
async fn new_tables_are_closed_unless_the_project_chooses_otherwise() {
    let app = TestApp::running().await;
    assert_eq!(open_to_anon(&app, None).await, json!(false));
    assert_eq!(open_to_anon(&app, Some("none")).await, json!(false));
    assert_eq!(open_to_anon(&app, Some("api")).await, json!(true));
    let mut wrong = app.new_project("wrong");
    wrong["new_table_grants"] = json!("all");
    app.post("/v1/projects")
        .as_(&app.owner)
        .json(&wrong)
        .send()
        .await
        .expect(400);
}

#[tokio::test]
async fn health_names_the_parts_of_the_platform_that_are_missing() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let conflict = "auth: schema auth belongs to role postgres; rename it";
    app.app
        .db
        .query(
            "update projects set platform_conflicts = $2 where ref = $1",
            &[&project.as_str(), &conflict],
        )
        .await
        .unwrap();
    let health = app
        .get(&format!("/v1/projects/{project}/health?services=db"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(health[0]["status"], "ACTIVE_HEALTHY");
    assert_eq!(
        health[0]["error"],
        format!("the platform's schemas are not complete: {conflict}")
    );
}

#[tokio::test]
async fn query_that_enables_row_level_security_of_the_platform_is_one_transaction() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}/database/query");
    let query = async |text: &str| {
        let answer = app
            .post(&path)
            .as_(&app.owner)
            .json(&json!({"query": text}));
        answer.send().await
    };
    let enable = "alter table storage.objects enable row level security";
    let text = format!(
        "-- Files\n{enable};\ncreate policy one on storage.objects using (true);\nselect 1 as one;\nset local work_mem = '5MB'"
    );
    let rows = query(&text).await.expect(201).json();
    assert_eq!(rows, json!([{"one": 1}]));
    let failing =
        format!("create policy two on storage.objects using (true);\n{enable};\nselect missing");
    let error = query(&failing).await.expect(400).json();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("LINE 3: select missing"), "{message}");
    let policies =
        "select string_agg(policyname, ',') as names from pg_policies where tablename = 'objects'";
    let rows = query(policies).await.expect(201).json();
    assert_eq!(rows, json!([{"names": "one"}]));
}
