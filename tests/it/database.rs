//! SQL and migrations through the API, on a real project. The properties of SQL itself are tested
//! in `sql`.

mod history;

use futures_util::future::join_all;
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};

use crate::support::{
    Actor, TestApp,
    client::{Answer, Call},
};

struct Project {
    app: TestApp,
    path: String,
}

impl Project {
    async fn new() -> Self {
        let app = TestApp::running().await;
        let project: ProjectRef = app.real_project().await;
        Self {
            path: format!("/v1/projects/{project}/database"),
            app,
        }
    }

    async fn query(&self, actor: &Actor, body: Value) -> Answer {
        self.app
            .post(&format!("{}/query", self.path))
            .as_(actor)
            .json(&body)
            .send()
            .await
    }

    async fn rows(&self, sql: &str) -> Value {
        self.query(&self.app.owner, json!({"query": sql}))
            .await
            .expect(201)
            .json()
    }

    fn migrate(&self, body: &Value) -> Call {
        self.app
            .post(&format!("{}/migrations", self.path))
            .as_(&self.app.developer)
            .json(body)
    }

    async fn history(&self) -> Vec<Value> {
        let listed = self
            .app
            .get(&format!("{}/migrations", self.path))
            .as_(&self.app.read_only)
            .send()
            .await
            .expect(200);
        listed.json().as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn query_returns_rows_as_json() {
    let project = Project::new().await;
    let answer = project
        .query(
            &project.app.developer,
            json!({"query": "select 1 as n, 'é' as t, null as nothing"}),
        )
        .await
        .expect(201);
    assert_eq!(answer.text(), r#"[{"n":1,"t":"é","nothing":null}]"#);
    assert_eq!(
        (
            answer.header("content-type"),
            answer.header("cache-control")
        ),
        (Some("application/json"), Some("no-cache"))
    );

    let parameters =
        json!({"query": "select $1::int + 1 as n, $2::text as t", "parameters": [41, "it's"]});
    assert_eq!(
        project
            .query(&project.app.developer, parameters)
            .await
            .expect(201)
            .json(),
        json!([{"n": 42, "t": "it's"}])
    );
    let empty = project
        .query(
            &project.app.developer,
            json!({"query": "create table t (id int primary key)"}),
        )
        .await
        .expect(201);
    assert_eq!(
        (empty.text(), empty.header("content-type")),
        ("[]", Some("application/json"))
    );
}

#[tokio::test]
async fn burst_of_queries_waits_for_places_of_the_project() {
    let project = Project::new().await;
    let body = json!({"query": "select count(*)::int as n from pg_stat_activity, pg_sleep(0.02) \
                                where usename = 'gantry_owner'"});
    let calls = (0..24).map(|_| project.query(&project.app.owner, body.clone()));
    let mut most = 0;
    for answer in join_all(calls).await {
        let rows = answer.expect(201).json();
        most = most.max(rows[0]["n"].as_i64().unwrap());
    }
    // A few that have ended are still counted.
    assert!((2..12).contains(&most), "{most} sessions at a time");
}

#[tokio::test]
async fn failed_query_returns_message_of_postgresql() {
    let project = Project::new().await;
    let failed = async |sql: &str| {
        project
            .query(&project.app.owner, json!({"query": sql}))
            .await
            .expect(400)
            .message()
    };
    assert_eq!(
        failed("select 1;\nselect * from nope").await,
        "Failed to run sql query: ERROR:  42P01: relation \"nope\" does not exist\nLINE 2: select * from nope\n                      ^\n"
    );
    assert_eq!(
        failed("create table t (id int primary key); insert into t values (1), (1)").await,
        "Failed to run sql query: ERROR:  23505: duplicate key value violates unique constraint \"t_pkey\"\nDETAIL:  Key (id)=(1) already exists.\n"
    );
    for (body, message) in [
        (json!({}), "query: Required"),
        (json!({"query": ""}), "query: Required"),
        (json!({"query": " \n"}), "query: Required"),
    ] {
        assert_eq!(
            project
                .query(&project.app.owner, body)
                .await
                .expect(400)
                .message(),
            message
        );
    }
}

#[tokio::test]
async fn read_only_query_rejects_writes() {
    let project = Project::new().await;
    project
        .rows("create table public.t (id int); insert into t values (7)")
        .await;
    let app = &project.app;

    let refused = project
        .query(&app.read_only, json!({"query": "select 1"}))
        .await
        .expect(403);
    assert!(
        refused
            .message()
            .starts_with("Your account does not have the necessary privileges"),
        "{}",
        refused.message()
    );
    let read = json!({"query": "select id from public.t", "read_only": true});
    assert_eq!(
        project.query(&app.read_only, read).await.expect(201).json(),
        json!([{"id": 7}])
    );
    let reader = |body: Value| {
        app.post(&format!("{}/query/read-only", project.path))
            .as_(&app.read_only)
            .json(&body)
            .send()
    };
    let answer =
        reader(json!({"query": "select id from public.t where id = $1", "parameters": [7]}))
            .await
            .expect(201);
    assert_eq!(
        (answer.text(), answer.header("cache-control")),
        (r#"[{"id":7}]"#, Some("no-cache"))
    );

    // On either endpoint, independently of the SQL.
    for write in [
        "insert into public.t values (8)",
        "set transaction read write; delete from public.t",
        "rollback; drop table public.t",
    ] {
        for answer in [
            project
                .query(&app.read_only, json!({"query": write, "read_only": true}))
                .await,
            reader(json!({"query": write})).await,
        ] {
            let message = answer.expect(400).message();
            assert!(
                ["25006", "42501", "cannot contain ROLLBACK"]
                    .iter()
                    .any(|refusal| message.contains(refusal)),
                "{write}: {message}"
            );
        }
    }
    assert_eq!(
        project.rows("select count(*) from public.t").await,
        json!([{"count": 1}])
    );
    app.post(&format!("{}/migrations", project.path))
        .as_(&app.read_only)
        .json(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(403);
}

#[tokio::test]
async fn apply_migration_records_and_lists_it() {
    let project = Project::new().await;
    assert_eq!(project.history().await, [Value::Null; 0]);
    let body = json!({"query": "create table a (id int);\ninsert into a values (1)", "name": "first", "rollback": "drop table a"});
    let applied = project
        .migrate(&body)
        .header("idempotency-key", "k1")
        .send()
        .await
        .expect(200);
    assert_eq!((applied.text(), applied.header("content-type")), ("", None));
    assert_eq!(
        (
            applied.quota.limit,
            applied.quota.remaining,
            applied.quota.reset
        ),
        (120, 119, 180)
    );

    assert_eq!(
        project.history().await,
        [json!({"version": "20261121091503", "name": "first"})]
    );
    assert_eq!(
        project
            .rows("select * from supabase_migrations.schema_migrations")
            .await,
        json!([{
            "version": "20261121091503", "statements": [body["query"]], "name": "first", "created_by": "dora@example.com",
            "idempotency_key": "k1", "rollback": ["drop table a"],
        }])
    );
    assert_eq!(project.rows("select id from a").await, json!([{"id": 1}]));
}

#[tokio::test]
async fn apply_migration_with_same_key_runs_once() {
    let project = Project::new().await;
    let body = json!({"query": "create table a ()", "name": "first"});
    for _ in 0..3 {
        let answer = project
            .migrate(&body)
            .header("idempotency-key", "k")
            .send()
            .await
            .expect(200);
        assert_eq!(answer.text(), "");
        project.app.advance(1);
    }
    assert_eq!(project.history().await.len(), 1);
    let other = project
        .migrate(&json!({"query": "create table b ()"}))
        .header("idempotency-key", "k")
        .send()
        .await
        .expect(409);
    assert_eq!(
        other.message(),
        "This Idempotency-Key was used for another migration"
    );
    for unfit in ["", "é", &"x".repeat(256)] {
        let message = project
            .migrate(&body)
            .header("idempotency-key", unfit)
            .send()
            .await
            .expect(400)
            .message();
        assert!(message.starts_with("Idempotency-Key: "), "{message}");
    }
    // Without a key it is another migration.
    project
        .migrate(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(200);
    project
        .migrate(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(200);
    assert_eq!(project.history().await.len(), 3);
}

#[tokio::test]
async fn failed_migration_is_rolled_back() {
    let project = Project::new().await;
    let failed = project
        .migrate(&json!({"query": "create table a ();\nselect nope"}))
        .header("idempotency-key", "k")
        .send()
        .await
        .expect(400);
    assert_eq!(
        failed.message(),
        "Failed to run sql query: ERROR:  42703: column \"nope\" does not exist\nLINE 2: select nope\n               ^\nCONTEXT:  statement 2, line 2: select nope\n"
    );
    assert_eq!(project.history().await, [Value::Null; 0]);
    assert_eq!(
        project
            .rows("select to_regclass('a') as a, to_regclass('supabase_migrations.schema_migrations') as h")
            .await,
        json!([{"a": null, "h": null}])
    );
    let ending = project
        .migrate(&json!({"query": "create table b (); commit; select 1/0"}))
        .send()
        .await
        .expect(400);
    assert!(ending.message().contains("22012"), "{}", ending.message());
    assert_eq!(project.history().await, [Value::Null; 0]);
    assert_eq!(
        project
            .migrate(&json!({"query": " "}))
            .send()
            .await
            .expect(400)
            .message(),
        "query: Required"
    );
    // A failure does not use up its key.
    project
        .migrate(&json!({"query": "create table a ()"}))
        .header("idempotency-key", "k")
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn ten_migrations_in_one_second_get_ordered_versions() {
    let project = Project::new().await;
    for n in 0..10 {
        project
            .migrate(&json!({"query": format!("create table t{n} ()"), "name": format!("m{n}")}))
            .send()
            .await
            .expect(200);
    }
    let expected: Vec<_> = (0..10)
        .map(|n| json!({"version": format!("202611210915{:02}", 3 + n), "name": format!("m{n}")}))
        .collect();
    assert_eq!(project.history().await, expected);
}

#[tokio::test]
async fn databases_and_schemas_are_listed() {
    let project = Project::new().await;
    project.rows("create schema app").await;
    let path = format!("{}/context", project.path);
    let context = project
        .app
        .get(&path)
        .as_(&project.app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    let databases = context["databases"].as_array().unwrap();
    assert_eq!(
        databases
            .iter()
            .map(|database| &database["name"])
            .collect::<Vec<_>>(),
        ["postgres"]
    );
    let schemas: Vec<_> = databases[0]["schemas"]
        .as_array()
        .unwrap()
        .iter()
        .map(|schema| schema["name"].as_str().unwrap())
        .collect();
    assert!(
        schemas.contains(&"app") && schemas.contains(&"public") && schemas.is_sorted(),
        "{schemas:?}"
    );
    assert!(
        !schemas
            .iter()
            .any(|name| name.starts_with("pg_") || *name == "information_schema"),
        "{schemas:?}"
    );
}

/// A script may create a project and use it at once: the first operation waits for the start.
#[tokio::test]
async fn query_waits_for_starting_project() {
    let app = TestApp::running().await;
    let project = app.create_project("eager").await;
    let query = json!({"query": "select 1 as n"});
    let answer = app
        .post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&query)
        .send()
        .await
        .expect(201);
    assert_eq!(answer.json(), json!([{"n": 1}]));
}
