//! Restores beside the project: into a new project, and of single tables.

use std::{fs, sync::Arc, time::Duration};

use gantry::control::{
    backups::state::BackupOptions,
    projects::{self, Status},
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    LOOK, at, backed_up, get, next_second, options, post, sql, until_complete, until_reached,
};
use crate::support::{
    TestApp,
    machine::{PATIENCE, SuperuserClients as _},
};

/// Requests a new project, and returns its reference.
async fn restored_to_new(app: &TestApp, source: &ProjectRef, body: &Value) -> ProjectRef {
    let path = at(source, "/restore-to-new-project");
    let made = post(app, &path, body).await.expect(201).json();
    assert_eq!(made["status"], "COMING_UP");
    made["ref"].as_str().unwrap().parse().unwrap()
}

/// Waits until the last restore of a project has ended, and returns it.
pub(crate) async fn until_ended(app: &TestApp, project: &ProjectRef) -> Value {
    // Not over the API, which limits its callers.
    let running = "select 1 from restores r join projects p on p.id = r.project_id
                   where p.ref = $1 and r.finished_at is null and r.error is null
                   union all select 1 from table_restores r join projects p on p.id = r.project_id
                   where p.ref = $1 and r.finished_at is null";
    let ended = async {
        let db = &app.app.db;
        while !db
            .query(running, &[&project.as_str()])
            .await
            .unwrap()
            .is_empty()
        {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE * 2, ended)
        .await
        .expect("the restore did not end");
    let list = get(app, &at(project, "/restores")).await.expect(200).json();
    list[0].clone()
}

async fn secret_keys(app: &TestApp, project: &ProjectRef) -> Value {
    let path = format!("/v1/projects/{project}/api-keys?reveal=true");
    get(app, &path).await.expect(200).json()
}

#[tokio::test]
async fn new_project_has_the_past_and_nothing_that_is_the_sources_alone() {
    let app = backed_up(BackupOptions::default()).await;
    let source = app.real_project().await;
    until_complete(&app, &source, 1).await;
    sql(
        &app,
        &source,
        "create table public.notes (n int); insert into public.notes values (1);
         select vault.create_secret('hidden', 'token')",
    )
    .await;
    let moment = next_second().await;
    next_second().await;
    sql(&app, &source, "insert into public.notes values (2)").await;
    until_reached(&app, &source, moment).await;

    let path = at(&source, "/restore-to-new-project");
    let body = json!({"name": "past", "db_pass": "correct horse battery", "recovery_time_target_unix": moment});
    let by = |actor| app.post(&path).as_(actor).json(&body).send();
    by(&app.developer).await.expect(403);
    by(&app.stranger).await.expect(404);
    let with = |field: &str, value: Value| {
        let mut body = body.clone();
        body[field] = value;
        body
    };
    let both = with("id", json!(1));
    post(&app, &path, &both).await.expect(400);
    let late = with("recovery_time_target_unix", json!(moment + 1_000_000));
    let refused = post(&app, &path, &late).await.expect(400);
    assert!(refused.message().contains("within range"));
    let foreign = with("organization_slug", json!(app.foreign.slug));
    post(&app, &path, &foreign).await.expect(404);

    let new = restored_to_new(&app, &source, &body).await;
    let repeated = post(&app, &path, &body).await.expect(400);
    assert!(
        repeated.message().contains("already exists"),
        "{}",
        repeated.message()
    );
    app.until(&new, Status::ActiveHealthy).await;
    let notes = "select n from public.notes order by n";
    assert_eq!(sql(&app, &new, notes).await, json!([{"n": 1}]));
    assert_eq!(
        sql(&app, &source, notes).await,
        json!([{"n": 1}, {"n": 2}]),
        "the source is untouched"
    );
    let restore = until_ended(&app, &new).await;
    assert_eq!(restore["kind"], "new_project");
    assert_eq!(restore["status"], "COMPLETED", "{restore}");
    assert_eq!(restore["source_ref"], source.as_str());
    let steps = restore["isolation"].as_array().unwrap();
    assert!(
        steps.contains(&json!({"name": "vault secrets deleted", "count": 1})),
        "{steps:?}"
    );
    let secrets = "select count(*)::int as n from vault.secrets";
    assert_eq!(sql(&app, &new, secrets).await, json!([{"n": 0}]));
    assert_ne!(
        secret_keys(&app, &new).await,
        secret_keys(&app, &source).await
    );
    let identity = "select system_identifier::text, rolpassword from pg_control_system(), pg_authid where rolname = 'postgres'";
    let mut found = Vec::new();
    for project in [&source, &new] {
        let admin = app.machine.clusters.admin_session(project).await.unwrap();
        let row = admin.query_one(identity, &[]).await.unwrap();
        found.push((row.get::<_, String>(0), row.get::<_, String>(1)));
    }
    assert_ne!(found[0].0, found[1].0, "system identifiers");
    assert_ne!(found[0].1, found[1].1, "passwords");
    // It is backed up as any other project.
    until_complete(&app, &new, 1).await;
}

#[tokio::test]
async fn new_project_of_a_damaged_backup_never_gets_an_empty_cluster() {
    let app = backed_up(BackupOptions::default()).await;
    let source = app.real_project().await;
    let list = until_complete(&app, &source, 1).await;
    for pack in super::faults::objects(&app, &source, "packs/") {
        let mut bytes = fs::read(&pack).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&pack, bytes).unwrap();
    }
    let body =
        json!({"name": "past", "db_pass": "correct horse battery", "id": list["backups"][0]["id"]});
    let new = restored_to_new(&app, &source, &body).await;
    app.until(&new, Status::InitFailed).await;
    let restore = until_ended(&app, &new).await;
    assert_eq!(restore["status"], "FAILED");
    assert!(
        restore["error"].as_str().unwrap().contains("is damaged"),
        "{restore}"
    );
    assert!(!app.machine.clusters.exists(&new));
    sql(&app, &source, "select 1").await;
    let path = format!("/v1/projects/{new}");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.until(&new, Status::Removed).await;
}

const TABLES: &str = "create type public.mood as enum ('good', 'bad');
    create table public.parents (id int primary key);
    create table public.notes (id int primary key, mood public.mood not null, \"the Text\" text,
        parent int references public.parents, gone int);
    alter table public.notes drop column gone;
    alter table public.notes enable row level security;
    create table public.parts (n int, t text) partition by range (n);
    create table public.parts_1 partition of public.parts for values from (0) to (10);
    create view public.seen as select 1 as n;
    insert into public.parents values (1);
    insert into public.parts values (5, E'tab\\tline\\nend');
    insert into public.notes select n, 'good', 'text ' || n, 1 from generate_series(1, 1000) n";

#[tokio::test]
async fn tables_of_a_past_moment_are_restored_into_a_new_schema() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(&app, &project, TABLES).await;
    let moment = next_second().await;
    next_second().await;
    sql(
        &app,
        &project,
        "update public.notes set mood = 'bad'; delete from public.notes where id > 10; drop table public.parts",
    )
    .await;
    until_reached(&app, &project, moment).await;
    let path = at(&project, "/restore-tables");
    let body = |tables: Value| json!({"tables": tables, "recovery_time_target_unix": moment});
    post(&app, &path, &body(json!([]))).await.expect(400);
    let twice = json!([{"name": "notes"}, {"schema": "auth", "name": "notes"}]);
    post(&app, &path, &body(twice)).await.expect(400);
    let tables = body(json!([{"schema": "public", "name": "notes"}, {"name": "parts"}]));
    let by = |actor| app.post(&path).as_(actor).json(&tables).send();
    by(&app.read_only).await.expect(403);
    by(&app.stranger).await.expect(404);
    let requested = post(&app, &path, &tables).await.expect(201).json();
    let schema = requested["schema"].as_str().unwrap().to_owned();
    assert!(schema.starts_with("restored_20"), "{schema}");
    post(&app, &path, &tables).await.expect(409);
    let restore = until_ended(&app, &project).await;
    assert_eq!(restore["status"], "COMPLETED", "{restore}");
    assert_eq!(restore["schema"], requested["schema"]);
    assert_eq!(
        restore["tables"],
        json!([{"schema": "public", "name": "notes", "rows": 1000}, {"schema": "public", "name": "parts", "rows": 1}])
    );
    let found = format!(
        "select (select count(*)::int from {schema}.notes where mood = 'good' and \"the Text\" = 'text ' || id) as notes,
                (select t from {schema}.parts) as part,
                (select count(*)::int from public.notes where mood = 'bad') as present,
                (select nspowner::regrole::text from pg_namespace
                 where nspname = '{schema}') as owner,
                (select count(*)::int from pg_constraint where conrelid = '{schema}.notes'::regclass and contype = 'p') as keys"
    );
    assert_eq!(
        sql(&app, &project, &found).await,
        json!([{"notes": 1000, "part": "tab\tline\nend", "present": 10, "owner": "postgres", "keys": 1}])
    );

    // Tables that cannot be restored are named, and leave nothing.
    for (table, problem) in [
        (json!({"name": "missing"}), "did not exist at that moment"),
        (json!({"name": "seen"}), "is not a table"),
        (
            json!({"schema": "pg_catalog", "name": "pg_authid"}),
            "cannot be read by the owner",
        ),
    ] {
        post(&app, &path, &body(json!([{"name": "notes"}, table])))
            .await
            .expect(201);
        let restore = until_ended(&app, &project).await;
        assert_eq!(restore["status"], "FAILED", "{restore}");
        let error = restore["error"].as_str().unwrap();
        assert!(error.contains(problem), "{error}");
    }
    let drops =
        format!("drop schema {schema} cascade; drop table public.notes; drop type public.mood");
    sql(&app, &project, &drops).await;
    post(&app, &path, &body(json!([{"name": "notes"}])))
        .await
        .expect(201);
    let restore = until_ended(&app, &project).await;
    let error = restore["error"].as_str().unwrap();
    assert_eq!(
        error, "public.notes: type \"public.mood\" does not exist",
        "{error}"
    );
    let schemas = "select count(*)::int as n from pg_namespace where nspname like 'restored%'";
    assert_eq!(sql(&app, &project, schemas).await, json!([{"n": 0}]));
    until_no_scratch_cluster(&app).await;
}

/// Waits until no cluster is in the making. They are removed in the background.
async fn until_no_scratch_cluster(app: &TestApp) {
    let tmp = app.machine.dir().join("tmp");
    let gone = async {
        while fs::read_dir(&tmp).unwrap().count() > 0 {
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, gone)
        .await
        .expect("a scratch cluster is left");
}

#[tokio::test]
async fn killed_restore_of_tables_is_completed_and_leaves_no_scratch_cluster() {
    let mut app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(&app, &project, TABLES).await;
    let moment = next_second().await;
    until_reached(&app, &project, moment).await;
    let path = at(&project, "/restore-tables");
    let tables = json!({"tables": [{"name": "notes"}], "recovery_time_target_unix": moment});
    for delay in [0, 300, 900, 1800] {
        post(&app, &path, &tables).await.expect(201);
        sleep(Duration::from_millis(delay)).await;
        app.node.kill();
        let machine = Arc::clone(&app.node.machine);
        app.node = app.another_in_real_time(options(BackupOptions::default()), machine);
        projects::lease::claim(&app.app).await.unwrap();
        projects::reconciler::recover_on_startup(&app.app)
            .await
            .unwrap();
        app.node.start();
        let restore = until_ended(&app, &project).await;
        assert_eq!(restore["status"], "COMPLETED", "{delay}: {restore}");
        let schema = restore["schema"].as_str().unwrap();
        let count = format!("select count(*)::int as n from {schema}.notes");
        let count = sql(&app, &project, &count).await;
        assert_eq!(count, json!([{"n": 1000}]), "{delay}");
        until_no_scratch_cluster(&app).await;
    }
}
