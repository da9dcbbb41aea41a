//! History of migrations and dry runs through the API.

use serde_json::{Value, json};

use super::Project;

#[tokio::test]
async fn history_is_read_patched_and_rolled_back() {
    let project = Project::new().await;
    let (app, migrations) = (&project.app, format!("{}/migrations", project.path));
    let one = |version: &str| format!("{migrations}/{version}");
    let first =
        json!({"query": "create table a (id int)", "name": "first", "rollback": "drop table a"});
    project
        .migrate(&first)
        .header("idempotency-key", "k1")
        .send()
        .await
        .expect(200);

    let by_hand = json!({"query": "create table by_hand ()", "name": "by hand"});
    let put = || {
        app.request("PUT", &migrations)
            .as_(&app.developer)
            .header("idempotency-key", "k2")
            .json(&by_hand)
    };
    for answer in [
        put().send().await.expect(200),
        put().send().await.expect(200),
    ] {
        assert_eq!((answer.text(), answer.header("content-type")), ("", None));
    }
    assert_eq!(
        project.history().await,
        [
            json!({"version": "20261121091503", "name": "first"}),
            json!({"version": "20261121091504", "name": "by hand"})
        ]
    );
    assert_eq!(
        project.rows("select to_regclass('by_hand') as made").await,
        json!([{"made": null}])
    );
    let applied = json!({"query": by_hand["query"], "name": by_hand["name"]});
    project
        .migrate(&applied)
        .header("idempotency-key", "k2")
        .send()
        .await
        .expect(409);

    let shown = app
        .get(&one("20261121091503"))
        .as_(&app.read_only)
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        shown,
        json!({"version": "20261121091503", "name": "first", "statements": [first["query"]], "rollback": [first["rollback"]],
            "created_by": "dora@example.com", "idempotency_key": "k1"})
    );
    let patch =
        |version: &str, body: Value| app.patch(&one(version)).as_(&app.developer).json(&body);
    let patched = patch("20261121091504", json!({"name": "renamed"}))
        .send()
        .await
        .expect(200);
    assert_eq!((patched.text(), patched.header("content-type")), ("", None));
    assert_eq!(
        patch("7", json!({})).send().await.expect(404).message(),
        "Not Found"
    );
    assert_eq!(
        app.get(&one("7"))
            .as_(&app.read_only)
            .send()
            .await
            .expect(404)
            .message(),
        "Not Found"
    );
    assert_eq!(
        app.get(&one("7x"))
            .as_(&app.read_only)
            .send()
            .await
            .expect(400)
            .message(),
        "version: Invalid input: expected digits"
    );

    let delete = |query: &str| {
        app.delete(&format!("{migrations}{query}"))
            .as_(&app.developer)
    };
    assert_eq!(
        delete("").send().await.expect(400).message(),
        "gte: Required"
    );
    assert_eq!(
        delete("?gte=first").send().await.expect(400).message(),
        "gte: Invalid input: expected digits"
    );
    let refused = delete("?gte=20261121091503")
        .send()
        .await
        .expect(400)
        .message();
    assert!(
        refused.starts_with("No rollback is recorded for 20261121091504: nothing was rolled back."),
        "{refused}"
    );
    assert_eq!(project.history().await.len(), 2);
    patch("20261121091504", json!({"rollback": ""}))
        .send()
        .await
        .expect(200);
    let rolled_back = delete("?gte=20261121091503").send().await.expect(200);
    assert_eq!(
        (rolled_back.text(), rolled_back.header("content-type")),
        ("", None)
    );
    assert_eq!(project.history().await, [Value::Null; 0]);
    assert_eq!(
        project.rows("select to_regclass('a') as a").await,
        json!([{"a": null}])
    );
}

#[tokio::test]
async fn dry_run_returns_effects_of_migration() {
    let project = Project::new().await;
    let app = &project.app;
    let post = |query: &str, body: Value| {
        app.post(&format!("{}/migrations{query}", project.path))
            .as_(&app.developer)
            .json(&body)
    };
    let body = json!({"query": "create table a (id int); insert into a values (1), (2)"});
    let told = post("?dry_run=true&lock_timeout_ms=500", body.clone())
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(
        told["created"],
        json!([{"kind": "table", "name": "public.a"}])
    );
    assert_eq!(
        told["rows"],
        json!([{"table": "public.a", "inserted": 2, "updated": 0, "deleted": 0}])
    );
    assert_eq!(
        (
            &told["version"],
            &told["lock_timeout_ms"],
            &told["time_limit_ms"]
        ),
        (&json!("20261121091503"), &json!(500), &json!(60_000))
    );
    assert_eq!(project.history().await, [Value::Null; 0]);
    assert_eq!(
        project.rows("select to_regclass('a') as a").await,
        json!([{"a": null}])
    );

    for (query, message) in [
        (
            "?dry_run=perhaps",
            "dry_run: Invalid input: provided string was not `true` or `false`",
        ),
        (
            "?lock_timeout_ms=0",
            "lock_timeout_ms: Invalid input: expected 1 to 30000",
        ),
        (
            "?lock_timeout_ms=30001",
            "lock_timeout_ms: Invalid input: expected 1 to 30000",
        ),
    ] {
        assert_eq!(
            post(query, body.clone()).send().await.expect(400).message(),
            message
        );
    }
    let failed = post("?dry_run=true", json!({"query": "select 1;\nselect nope"}))
        .send()
        .await
        .expect(400)
        .message();
    assert!(
        failed.starts_with("Failed to run sql query: ERROR:  42703: ")
            && failed.contains("\nLINE 2: select nope\n"),
        "{failed}"
    );
    assert_eq!(
        post("?dry_run=false", body).send().await.expect(200).text(),
        ""
    );
    assert_eq!(project.history().await.len(), 1);
}

#[tokio::test]
async fn migration_of_eight_mebibytes_is_applied() {
    let project = Project::new().await;
    let send = async |bytes: usize| {
        let query = format!("create table a (); --{}", "x".repeat(bytes - 21));
        let body = json!({"query": query});
        let length = body.to_string().len().to_string();
        let call = project.migrate(&body).header("content-length", &length);
        call.send().await
    };
    let error = send((8 << 20) + 1).await.expect(413);
    assert_eq!(
        error.message(),
        "request entity too large: at most 8388608 bytes"
    );
    let error = send(17 << 20).await.expect(413);
    assert_eq!(
        error.message(),
        "request entity too large: at most 16777216 bytes"
    );
    send(8 << 20).await.expect(200);
    let length = "select length(statements[1]) as bytes from supabase_migrations.schema_migrations";
    assert_eq!(project.rows(length).await, json!([{"bytes": 8 << 20}]));
}
