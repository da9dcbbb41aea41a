//! Branches through the API, on real clusters.

mod diff;
mod faults;
mod life;
mod origins;
mod rehearsals;

use std::sync::Arc;

use gantry::{
    control::projects::{Status, reconciler::recover_on_startup},
    platform::access::Role,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    functions,
    support::{TestApp, client::Answer, machine::PATIENCE},
};

async fn post(app: &TestApp, path: &str, body: &Value) -> Answer {
    app.post(path).as_(&app.owner).json(body).send().await
}

async fn get(app: &TestApp, path: &str) -> Answer {
    app.get(path).as_(&app.owner).send().await
}

async fn sql(app: &TestApp, project: &str, query: &str) -> Answer {
    let path = format!("/v1/projects/{project}/database/query");
    post(app, &path, &json!({"query": query})).await
}

async fn migrate(app: &TestApp, project: &str, name: &str, query: &str) {
    let path = format!("/v1/projects/{project}/database/migrations");
    let body = json!({"name": name, "query": query});
    post(app, &path, &body).await.expect(200);
}

async fn versions(app: &TestApp, project: &str) -> Vec<String> {
    let path = format!("/v1/projects/{project}/database/migrations");
    let listed = get(app, &path).await.expect(200).json();
    let listed = listed.as_array().unwrap();
    let names = listed
        .iter()
        .map(|it| it["name"].as_str().unwrap().to_owned());
    names.collect()
}

async fn branch(app: &TestApp, parent: &str, body: &Value) -> Value {
    let path = format!("/v1/projects/{parent}/branches");
    post(app, &path, body).await.expect(201).json()
}

/// Waits until no run is open.
pub(crate) async fn until_finished(app: &TestApp) {
    let open = "select count(*) from action_runs where finished_at is null";
    let finished = async {
        loop {
            let rows = app.app.db.query(open, &[]).await.unwrap();
            if rows[0].get::<_, i64>(0) == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    if timeout(PATIENCE, finished).await.is_err() {
        let sql = "select r.kind, r.logs, p.status, p.last_error from action_runs r join projects p on p.id = r.project_id";
        let rows = app.app.db.query(sql, &[]).await.unwrap();
        let texts = rows.iter().map(|row| {
            let error: Option<String> = row.get(3);
            format!(
                "{:?} {error:?}",
                [0, 1, 2].map(|at| row.get::<_, String>(at))
            )
        });
        panic!("a run did not finish: {:?}", texts.collect::<Vec<_>>());
    }
}

async fn seen(app: &TestApp, reference: &str) -> Value {
    let parent: Vec<Value> = app
        .app
        .db
        .query(
            "select p.ref, b.name from branches b join projects p on p.id = b.parent_id join projects c on c.id = b.project_id where c.ref = $1",
            &[&reference],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| json!([row.get::<_, String>(0), row.get::<_, String>(1)]))
        .collect();
    let (parent, name) = (
        parent[0][0].as_str().unwrap(),
        parent[0][1].as_str().unwrap(),
    );
    let name = name.replace('/', "%2F");
    let path = format!("/v1/projects/{parent}/branches/{name}");
    get(app, &path).await.expect(200).json()
}

fn reference(branch: &Value) -> String {
    branch["project_ref"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn schema_branch_has_migrations_and_merges_back() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let disabled = get(&app, &format!("/v1/projects/{parent}/branches")).await;
    assert_eq!(
        disabled.expect(422).message(),
        "Preview branching is not enabled for this project."
    );
    migrate(
        &app,
        &parent,
        "notes",
        "create table public.notes (id int primary key, body text)",
    )
    .await;
    sql(
        &app,
        &parent,
        "insert into public.notes values (1, 'production')",
    )
    .await
    .expect(201);

    let made = branch(
        &app,
        &parent,
        &json!({"branch_name": "feature/one", "is_default": false}),
    )
    .await;
    assert_eq!(made["status"], "CREATING_PROJECT");
    assert_eq!(made["parent_project_ref"], *parent);
    assert!(made.get("git_branch").is_none(), "{made}");
    let own = reference(&made);
    until_finished(&app).await;
    let view = seen(&app, &own).await;
    assert_eq!(view["status"], "FUNCTIONS_DEPLOYED");
    assert_eq!(view["preview_project_status"], "ACTIVE_HEALTHY");
    assert_eq!(versions(&app, &own).await, ["notes"]);
    let empty = sql(&app, &own, "select count(*) from public.notes")
        .await
        .expect(201);
    assert_eq!(empty.json(), json!([{"count": 0}]));

    // A branch is a project for all operations but reading it.
    get(&app, &format!("/v1/projects/{own}")).await.expect(404);
    get(&app, &format!("/v1/projects/{own}/api-keys"))
        .await
        .expect(200);
    let listed = get(&app, "/v1/projects").await.expect(200);
    assert!(!listed.text().contains(&own));
    let config = get(&app, &format!("/v1/branches/{own}"))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&config["ref"], &config["db_port"]),
        (&json!(own), &json!(5432))
    );
    let secret = get(&app, &format!("/v1/projects/{own}/postgrest"))
        .await
        .expect(200)
        .json();
    assert!(secret["jwt_secret"].is_string());
    assert_eq!(
        (&config["db_user"], &config["jwt_secret"]),
        (&json!("postgres"), &secret["jwt_secret"])
    );
    assert!(config["db_pass"].is_string());
    let reader = app.get(&format!("/v1/branches/{own}")).as_(&app.read_only);
    let shown = reader.send().await.expect(200).json();
    for secret in ["db_user", "db_pass", "jwt_secret"] {
        assert_eq!(shown.get(secret), None, "{secret}");
    }
    let by_id = format!("/v1/branches/{}", made["id"].as_str().unwrap());
    get(&app, &by_id).await.expect(200);
    let listed = get(&app, &format!("/v1/projects/{parent}/branches"))
        .await
        .expect(200)
        .json();
    let names: Vec<&Value> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["main", "feature/one"]);

    migrate(
        &app,
        &own,
        "tags",
        "create table public.tags (id int primary key)",
    )
    .await;
    sql(&app, &own, "create table public.unrecorded (n int)")
        .await
        .expect(201);
    let merged = post(&app, &format!("/v1/branches/{own}/merge"), &json!({}))
        .await
        .expect(201)
        .json();
    assert_eq!(merged["message"], "ok");
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["notes", "tags"]);
    sql(&app, &parent, "select from public.unrecorded")
        .await
        .expect(400);
    let run = merged["workflow_run_id"].as_str().unwrap();
    let run = get(&app, &format!("/v1/projects/{parent}/actions/{run}"))
        .await
        .expect(200)
        .json();
    let steps: Vec<(&str, &str)> = run["run_steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            (
                step["name"].as_str().unwrap(),
                step["status"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        steps,
        [
            ("clone", "EXITED"),
            ("pull", "EXITED"),
            ("health", "EXITED"),
            ("configure", "PAUSED"),
            ("migrate", "EXITED"),
            ("seed", "EXITED"),
            ("deploy", "EXITED")
        ]
    );
    let head = app.request("HEAD", &format!("/v1/projects/{parent}/actions"));
    let head = head.as_(&app.owner).send().await.expect(200);
    assert_eq!(head.header("x-total-count"), Some("1"));

    // The other direction, and a reset.
    migrate(&app, &parent, "later", "create table public.later (id int)").await;
    post(&app, &format!("/v1/branches/{own}/push"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(versions(&app, &own).await, ["notes", "tags", "later"]);
    sql(&app, &own, "insert into public.notes values (9, 'junk')")
        .await
        .expect(201);
    let keys = get(&app, &format!("/v1/projects/{own}/api-keys?reveal=true"))
        .await
        .json();
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(seen(&app, &own).await["status"], "FUNCTIONS_DEPLOYED");
    assert_eq!(versions(&app, &own).await, ["notes", "tags", "later"]);
    let reset = sql(&app, &own, "select count(*) from public.notes")
        .await
        .expect(201);
    assert_eq!(reset.json(), json!([{"count": 0}]));
    let kept = get(&app, &format!("/v1/projects/{own}/api-keys?reveal=true"))
        .await
        .json();
    assert_eq!(kept, keys);
    let unknown = json!({"migration_version": "20000101000000"});
    post(&app, &format!("/v1/branches/{own}/reset"), &unknown)
        .await
        .expect(400);

    // The parent cannot be deleted before its branches.
    let refused = app
        .delete(&format!("/v1/projects/{parent}"))
        .as_(&app.owner)
        .send()
        .await;
    assert!(refused.expect(409).message().contains("feature/one"));
    let patched = app.patch(&format!("/v1/branches/{own}")).as_(&app.owner);
    patched
        .json(&json!({"persistent": true, "branch_name": "one"}))
        .send()
        .await
        .expect(200);
    let kept = app
        .delete(&format!("/v1/branches/{own}"))
        .as_(&app.owner)
        .send()
        .await;
    assert_eq!(
        kept.expect(422).message(),
        "Cannot delete persistent branch"
    );
    let patched = app.patch(&format!("/v1/branches/{own}")).as_(&app.owner);
    patched
        .json(&json!({"persistent": false}))
        .send()
        .await
        .expect(200);
    let scheduled = app
        .delete(&format!("/v1/branches/{own}?force=false"))
        .as_(&app.owner);
    scheduled.send().await.expect(200);
    assert!(seen(&app, &own).await["deletion_scheduled_at"].is_string());
    let restored = post(&app, &format!("/v1/branches/{own}/restore"), &json!({}))
        .await
        .expect(200);
    assert_eq!(
        restored.json(),
        json!({"message": "Branch restoration initiated"})
    );
    let deleted = app
        .delete(&format!("/v1/branches/{own}"))
        .as_(&app.owner)
        .send()
        .await;
    assert_eq!(deleted.expect(200).json(), json!({"message": "ok"}));
    let removed: ProjectRef = own.parse().unwrap();
    app.until(&removed, Status::Removed).await;
    get(&app, &format!("/v1/branches/{own}")).await.expect(404);
    app.delete(&format!("/v1/projects/{parent}/branches"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
    app.delete(&format!("/v1/projects/{parent}"))
        .as_(&app.owner)
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn branch_with_data_is_isolated_and_survives_a_restart_of_the_manager() {
    let mut app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(
        &app,
        &parent,
        "notes",
        "create table public.notes (id int primary key, body text)",
    )
    .await;
    sql(
        &app,
        &parent,
        "insert into public.notes select n, md5(n::text) from generate_series(1, 20000) n",
    )
    .await
    .expect(201);
    let made = branch(
        &app,
        &parent,
        &json!({"branch_name": "data", "with_data": true}),
    )
    .await;
    let own = reference(&made);
    // The process ends while the cluster is copied.
    app.node.kill();
    let machine = Arc::clone(&app.machine);
    let restarted = app.another(1, machine);
    app.node = restarted;
    recover_on_startup(&app.app).await.unwrap();
    app.node.start();
    until_finished(&app).await;
    let count = sql(&app, &own, "select count(*) from public.notes")
        .await
        .expect(201);
    assert_eq!(count.json(), json!([{"count": 20000}]));
    assert_eq!(seen(&app, &own).await["status"], "FUNCTIONS_DEPLOYED");
    let marker = sql(&app, &own, "select current_setting('gantry.branch') as id")
        .await
        .expect(201);
    assert_eq!(marker.json()[0]["id"], made["id"]);
    let runs = get(&app, &format!("/v1/projects/{own}/actions"))
        .await
        .expect(200)
        .json();
    let run = runs[0]["id"].as_str().unwrap();
    let log = get(&app, &format!("/v1/projects/{own}/actions/{run}/logs"))
        .await
        .expect(200);
    assert!(log.text().contains("isolated:"), "{}", log.text());
    sql(&app, &own, "delete from public.notes")
        .await
        .expect(201);
    post(&app, &format!("/v1/branches/{own}/reset"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    let count = sql(&app, &own, "select count(*) from public.notes")
        .await
        .expect(201);
    assert_eq!(count.json(), json!([{"count": 20000}]));
}

#[tokio::test]
async fn conflicting_ledgers_and_second_merge_are_rejected() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    migrate(&app, &parent, "a", "create table public.a (id int)").await;
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let taken = post(
        &app,
        &format!("/v1/projects/{parent}/branches"),
        &json!({"branch_name": "b"}),
    )
    .await;
    assert!(taken.expect(409).message().contains('b'));
    migrate(
        &app,
        &own,
        "slow",
        "create table public.slow (id int); select pg_sleep(1)",
    )
    .await;
    let path = format!("/v1/branches/{own}/merge");
    let body = json!({});
    let (first, second) = tokio::join!(post(&app, &path, &body), post(&app, &path, &body));
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["a", "slow"]);

    // One failing migration undoes all of its run.
    migrate(&app, &own, "good", "create table public.good (id int)").await;
    migrate(&app, &own, "bad", "create table public.bad (id int)").await;
    sql(&app, &parent, "create table public.bad (id int)")
        .await
        .expect(201);
    let run = post(&app, &path, &body).await.expect(201).json();
    until_finished(&app).await;
    assert_eq!(versions(&app, &parent).await, ["a", "slow"]);
    let run = run["workflow_run_id"].as_str().unwrap();
    let log = get(&app, &format!("/v1/projects/{parent}/actions/{run}/logs"))
        .await
        .expect(200);
    assert!(log.text().contains("42P07"), "{}", log.text());

    let history = "update supabase_migrations.schema_migrations set statements = array['select 2'] where name = 'a'";
    sql(&app, &own, history).await.expect(201);
    let refused = post(&app, &path, &body).await.expect(409).message();
    let sql_version = "select version from supabase_migrations.schema_migrations where name = 'a'";
    let version = sql(&app, &own, sql_version).await.json()[0]["version"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(refused.contains(&version), "{refused}");
}

#[tokio::test]
async fn branches_are_hidden_from_other_tenants_and_roles() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    let own = reference(&branch(&app, &parent, &json!({"branch_name": "b"})).await);
    until_finished(&app).await;
    let outsider = &app.stranger;
    for path in [
        format!("/v1/branches/{own}"),
        format!("/v1/projects/{parent}/branches"),
        format!("/v1/projects/{own}/actions"),
        "/v1/branches/00000000-0000-4000-8000-000000000000".to_owned(),
        "/v1/branches/nonsense".to_owned(),
    ] {
        app.get(&path).as_(outsider).send().await.expect(404);
    }
    let merge = app.post(&format!("/v1/branches/{own}/merge"));
    merge
        .as_(outsider)
        .json(&json!({}))
        .send()
        .await
        .expect(404);
    for (actor, role) in app.members() {
        let answer = app.delete(&format!("/v1/branches/{own}")).as_(actor);
        if role == Role::ReadOnly {
            answer.send().await.expect(403);
        }
    }
}

/// Deploys a function with one file to a project.
async fn deploy(app: &TestApp, project: &str, slug: &str, text: &str) {
    let path = format!("/v1/projects/{project}/functions/deploy?slug={slug}");
    let metadata = json!({"entrypoint_path": "index.ts"});
    let call = app.post(&path).as_(&app.owner);
    functions::form(call, &metadata, &[("index.ts", text)])
        .send()
        .await
        .expect(201);
}

/// Returns slug and version of the functions of a project.
async fn deployed(app: &TestApp, project: &str) -> Value {
    let path = format!("/v1/projects/{project}/functions");
    let listed = get(app, &path).await.expect(200).json();
    let listed = listed.as_array().unwrap();
    listed
        .iter()
        .map(|one| json!([one["slug"], one["version"]]))
        .collect()
}

/// Returns the names of a project's secrets, without the variables of the platform.
async fn own_secrets(app: &TestApp, project: &str) -> Vec<String> {
    let path = format!("/v1/projects/{project}/secrets");
    let listed = get(app, &path).await.expect(200).json();
    let names = listed.as_array().unwrap().iter().map(|it| &it["name"]);
    let names = names.map(|name| name.as_str().unwrap().to_owned());
    names
        .filter(|name| !name.starts_with("SUPABASE_"))
        .collect()
}

#[tokio::test]
async fn functions_follow_a_branch_and_return_with_its_merge() {
    let app = TestApp::running().await;
    let parent = app.real_project().await.to_string();
    deploy(
        &app,
        &parent,
        "greet",
        "Deno.serve(() => new Response('1'))",
    )
    .await;
    deploy(
        &app,
        &parent,
        "other",
        "Deno.serve(() => new Response('o'))",
    )
    .await;
    let made = branch(
        &app,
        &parent,
        &json!({"branch_name": "one", "secrets": {"TOKEN": "of-the-branch"}}),
    )
    .await;
    let own = reference(&made);
    until_finished(&app).await;
    assert_eq!(
        deployed(&app, &own).await,
        json!([["greet", 1], ["other", 1]])
    );
    assert_eq!(own_secrets(&app, &own).await, ["TOKEN"]);
    assert_eq!(own_secrets(&app, &parent).await, [""; 0]);

    deploy(&app, &own, "greet", "Deno.serve(() => new Response('2'))").await;
    deploy(&app, &own, "new", "Deno.serve(() => new Response('n'))").await;
    // Changed meanwhile in production: the branch must not bring the old one back.
    deploy(
        &app,
        &parent,
        "other",
        "Deno.serve(() => new Response('p'))",
    )
    .await;
    post(&app, &format!("/v1/branches/{own}/merge"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(
        deployed(&app, &parent).await,
        json!([["greet", 2], ["new", 1], ["other", 2]])
    );
    let path = format!("/v1/projects/{parent}/functions/greet/body");
    let body = app
        .get(&path)
        .as_(&app.owner)
        .header("accept", "multipart/form-data");
    let body = body.send().await.expect(200);
    assert!(body.text().contains("Response('2')"));

    post(&app, &format!("/v1/branches/{own}/push"), &json!({}))
        .await
        .expect(201);
    until_finished(&app).await;
    assert_eq!(
        deployed(&app, &own).await,
        json!([["greet", 2], ["new", 1], ["other", 2]]),
        "only the one that production changed"
    );
}
