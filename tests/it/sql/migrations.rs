//! Atomicity of migrations with their records, and the list of schemas.

use std::time::Duration;

use chrono::TimeDelta;
use gantry::{
    api::database::{
        context::context,
        migrations::{self, AppliedMigration, MigrationLimits, NewMigration, apply},
        query::{SqlQuery, run_query},
    },
    control::database_session::{
        OWNER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::Error,
};
use serde_json::{Value, json};

use super::{
    LIMITS, MIGRATION_LIMITS, clock, keyed, message, new, one, our_own, run, server,
    wait_until_idle,
};

async fn versions(target: &ConnectTarget) -> Vec<String> {
    migrations::list(target, LIMITS)
        .await
        .unwrap()
        .into_iter()
        .map(|migration| migration.version)
        .collect()
}

#[tokio::test]
async fn apply_migration_records_it() {
    let target = server().await;
    assert_eq!(versions(&target).await, [""; 0], "no history yet");
    let migration = NewMigration {
        query: "create table a (id int);\nselect * from generate_series(1, 5000)".into(),
        name: Some("first".into()),
        rollback: Some("drop table a".into()),
        idempotency_key: Some("k".into()),
        created_by: Some("me@example.com".into()),
        ..NewMigration::default()
    };
    let applied = apply(&target, &clock(), &migration, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        applied,
        AppliedMigration {
            version: "20261101091503".into(),
            replayed: false
        }
    );
    let listed = migrations::list(&target, LIMITS).await.unwrap();
    assert_eq!(
        json!(listed),
        json!([{"version": "20261101091503", "name": "first"}])
    );
    assert_eq!(
        run(
            &target,
            "select * from supabase_migrations.schema_migrations"
        )
        .await
        .unwrap(),
        json!([{"version": "20261101091503", "statements": [migration.query], "name": "first", "created_by": "me@example.com",
            "idempotency_key": "k", "rollback": ["drop table a"]}])
    );
    assert_eq!(
        one(
            &target,
            "select tableowner::text from pg_tables where tablename = 'schema_migrations'"
        )
        .await,
        json!(OWNER)
    );
    assert_eq!(
        one(&target, "select to_regclass('a')::text").await,
        json!("a")
    );
}

#[tokio::test]
async fn history_of_command_line_gets_missing_columns() {
    let target = server().await;
    run(
        &target,
        "create table supabase_migrations.schema_migrations (version text primary key, statements text[], name text);
         insert into supabase_migrations.schema_migrations values ('20300101000000', '{}', 'theirs'), ('init', null, null)",
    )
    .await
    .unwrap();
    assert_eq!(versions(&target).await, ["20300101000000", "init"]);
    let applied = apply(
        &target,
        &clock(),
        &keyed("create table a ()", "k"),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    assert_eq!(
        applied.version, "20300101000001",
        "after theirs, though it is dated in the future"
    );
    let constraint = "select conname::text from pg_constraint where conrelid = 'supabase_migrations.schema_migrations'::regclass and contype = 'u'";
    assert_eq!(
        one(&target, constraint).await,
        json!("schema_migrations_idempotency_key_key")
    );
}

#[tokio::test]
async fn failing_migration_is_rolled_back() {
    let target = server().await;
    let failed = apply(
        &target,
        &clock(),
        &new("create table a ();\nselect 1/0"),
        MIGRATION_LIMITS,
    )
    .await;
    assert_eq!(
        message(failed),
        "Failed to run sql query: ERROR:  22012: division by zero\n\
         CONTEXT:  statement 2, line 2: select 1/0\n"
    );
    for late in [
        "create table a (id int unique deferrable initially deferred); insert into a values (1), (1)",
        "begin; create procedure p() language plpgsql as 'begin commit; end'; create table a (); call p(); commit",
    ] {
        assert!(
            apply(&target, &clock(), &new(late), MIGRATION_LIMITS)
                .await
                .is_err(),
            "{late}"
        );
    }
    assert_eq!(one(&target, "select to_regclass('a')").await, Value::Null);
    assert_eq!(versions(&target).await, [""; 0]);
}

#[tokio::test]
async fn every_migration_text_is_atomic_with_its_record() {
    let target = server().await;
    for (text, problem) in [
        ("rollback; create table a ()", "rollback has no BEGIN"),
        ("commit; begin; create table a ()", "begin has no COMMIT"),
        ("begin; create table a ()", "begin has no COMMIT"),
        (
            "begin; create table a (); vacuum; commit",
            "vacuum cannot run",
        ),
    ] {
        let error = message(apply(&target, &clock(), &new(text), MIGRATION_LIMITS).await);
        assert!(
            error.starts_with(&format!("query: line 1: {problem}")),
            "{error}"
        );
    }
    assert_eq!(one(&target, "select to_regclass('a')").await, Value::Null);

    for text in [
        "begin;\ncreate table a ();\ncommit;",
        "create role helper; grant helper to postgres; grant create on schema public to helper; set role helper",
        "set transaction read only",
        "set client_encoding = 'LATIN1'; select set_config('search_path', '', false); set local datestyle = 'German'",
        "savepoint s; create table b (); rollback to s; release s",
        "set standard_conforming_strings = off",
    ] {
        apply(&target, &clock(), &new(text), MIGRATION_LIMITS)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    assert_eq!(versions(&target).await.len(), 6);
    assert_eq!(
        run(
            &target,
            "select to_regclass('a')::text as a, to_regclass('b') as b"
        )
        .await
        .unwrap(),
        json!([{"a": "a", "b": null}])
    );
}

/// Returns every concatenation of up to `length` of `parts`.
fn sequences(parts: &[&str], length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut start = 0;
    for _ in 0..length {
        let end = all.len();
        for at in start..end {
            all.extend(
                parts
                    .iter()
                    .map(|part| format!("{}{part}", all[at]))
                    .collect::<Vec<_>>(),
            );
        }
        start = end;
    }
    all
}

/// Returns texts with a `commit` inside or outside a literal, a comment or the body of a function.
fn texts_about_commit() -> impl Iterator<Item = String> {
    let opens = ["'", "e'", "E'x'\n'", "\"", "$$", "$a$", "x$a$", "--", "/*"];
    let insides = sequences(&["\\", "\\'", "'", "\"", "$$", "$a$", "\n", "/*", "*/"], 2);
    let tails = ["", "--'", "--\"", "--$$", "--$a$", "--*/"];
    let literals = opens.into_iter().flat_map(move |open| {
        let insides = insides.clone();
        insides.into_iter().flat_map(move |inside| {
            tails.map(|tail| format!("select 1 as a, {open}{inside};commit;{tail}"))
        })
    });
    let bodies = sequences(
        &[";", ";end", " as case", " as end", ";commit", " select 1"],
        4,
    );
    literals.chain(
        bodies
            .into_iter()
            .map(|body| format!("create function f() returns int begin atomic select 1{body}")),
    )
}

/// Compares with PostgreSQL: no accepted text may end a transaction.
#[tokio::test]
async fn statement_boundaries_match_postgresql() {
    let target = server().await;
    let nowhere = ConnectTarget::new(our_own("/nowhere/socket".into()));
    let mut session = DatabaseSession::open(
        &target,
        OWNER,
        "postgres",
        &[],
        SessionLimits {
            time: Duration::from_mins(2),
            ..LIMITS
        },
    )
    .await
    .unwrap();
    session
        .simple_query("create table marker ()")
        .await
        .unwrap();
    let (mut passed, mut ran) = (0, 0);
    for text in texts_about_commit() {
        // Texts that would end the transaction of a read-only query are not sent to the server.
        let query = SqlQuery {
            text: text.clone(),
            read_only: true,
            ..SqlQuery::default()
        };
        if matches!(
            run_query(&nowhere, &query, LIMITS).await,
            Err(Error::Invalid { .. })
        ) {
            continue;
        }
        passed += 1;
        session
            .simple_query("begin; insert into marker default values")
            .await
            .unwrap();
        ran += usize::from(session.simple_query(&text).await.is_ok());
        let left = session
            .simple_query("rollback; select from marker")
            .await
            .unwrap();
        assert!(left.rows.is_empty(), "{text:?} ended the transaction");
    }
    assert!(
        passed > 1000 && ran > 50,
        "{passed} were let through, {ran} of them were valid"
    );
}

#[tokio::test]
async fn outer_begin_keeps_error_lines() {
    let server = server().await;
    let failed = apply(
        &server,
        &clock(),
        &new("begin;\nselect nope;\ncommit;"),
        MIGRATION_LIMITS,
    )
    .await;
    assert!(message(failed).ends_with("\nLINE 2: select nope;\n               ^\n"));
}

#[tokio::test]
async fn key_is_applied_once() {
    let target = server().await;
    let clock = clock();
    let first = apply(
        &target,
        &clock,
        &keyed("create table a ()", "k"),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    clock.advance(Duration::from_mins(1));
    let again = apply(
        &target,
        &clock,
        &keyed("create table a ()", "k"),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    assert_eq!(
        again,
        AppliedMigration {
            replayed: true,
            ..first
        }
    );
    let other = apply(
        &target,
        &clock,
        &keyed("create table b ()", "k"),
        MIGRATION_LIMITS,
    )
    .await;
    assert!(matches!(other, Err(Error::Conflict(_))));
    assert_eq!(versions(&target).await, ["20261101091503"]);

    assert!(
        apply(
            &target,
            &clock,
            &keyed("select 1/0", "failed"),
            MIGRATION_LIMITS
        )
        .await
        .is_err()
    );
    apply(
        &target,
        &clock,
        &keyed("select 1", "failed"),
        MIGRATION_LIMITS,
    )
    .await
    .expect("a failure does not use up its key");
}

#[tokio::test]
async fn ten_concurrent_migrations_get_consecutive_versions() {
    let target = server().await;
    let clock = clock();
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let (target, clock) = (target.clone(), clock.clone());
            tokio::spawn(async move {
                apply(
                    &target,
                    &clock,
                    &new(&format!("create table t{n} ()")),
                    MIGRATION_LIMITS,
                )
                .await
                .unwrap()
                .version
            })
        })
        .collect();
    let mut applied: Vec<_> = futures_util::future::join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    applied.sort();
    assert_eq!(
        applied,
        (3..13)
            .map(|second| format!("202611010915{second:02}"))
            .collect::<Vec<_>>()
    );
    assert_eq!(versions(&target).await, applied);
    clock.step_wall(TimeDelta::hours(-1));
    assert_eq!(
        apply(&target, &clock, &new("select 1"), MIGRATION_LIMITS)
            .await
            .unwrap()
            .version,
        "20261101091513"
    );
}

#[tokio::test]
async fn concurrent_requests_with_one_key_run_once() {
    let target = server().await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let target = target.clone();
            tokio::spawn(async move {
                apply(
                    &target,
                    &clock(),
                    &keyed("create table a ()", "k"),
                    MIGRATION_LIMITS,
                )
                .await
                .unwrap()
                .replayed
            })
        })
        .collect();
    let replayed = futures_util::future::join_all(tasks)
        .await
        .into_iter()
        .filter(|replayed| *replayed.as_ref().unwrap())
        .count();
    assert_eq!(replayed, 5);
}

#[tokio::test]
async fn lock_timeout_aborts_migration() {
    let target = server().await;
    run(&target, "create table a (id int)").await.unwrap();
    let mut holder = DatabaseSession::open(&target, OWNER, "postgres", &[], LIMITS)
        .await
        .unwrap();
    holder.simple_query("begin; lock table a").await.unwrap();
    let budget = MigrationLimits {
        lock_timeout: Duration::from_millis(200),
        ..MIGRATION_LIMITS
    };
    assert_eq!(
        message(apply(&target, &clock(), &new("alter table a add b int"), budget).await),
        "Failed to run sql query: ERROR:  55P03: canceling statement due to lock timeout\n\
         HINT:  a migration waits at most 200 ms for a lock\n"
    );
    assert_eq!(
        MigrationLimits::default().lock_timeout,
        Duration::from_secs(4)
    );
    holder.simple_query("rollback").await.unwrap();
    let shown = "do $$ begin if current_setting('lock_timeout') <> '4s' then raise 'not set'; end if; end $$";
    apply(&target, &clock(), &new(shown), MigrationLimits::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn migration_over_deadline_is_rolled_back() {
    let target = server().await;
    let budget = MigrationLimits {
        session: SessionLimits {
            time: Duration::from_secs(1),
            ..LIMITS
        },
        ..MIGRATION_LIMITS
    };
    let overdue = message(
        apply(
            &target,
            &clock(),
            &new("create table a (); select pg_sleep(30)"),
            budget,
        )
        .await,
    );
    assert!(
        overdue.contains("ERROR:  57014: ")
            && overdue.ends_with("\nHINT:  a migration has 1000 ms in all\n"),
        "{overdue}"
    );
    wait_until_idle(&target).await;
    assert_eq!(one(&target, "select to_regclass('a')").await, Value::Null);
    assert_eq!(versions(&target).await, [""; 0]);
}

// List of databases and schemas.

#[tokio::test]
async fn databases_and_schemas_are_listed() {
    let target = server().await;
    for text in [
        "create schema b; create schema \"A\"",
        "create database other",
        "create database closed allow_connections false",
    ] {
        run(&target, text).await.unwrap();
    }
    assert_eq!(
        json!(context(&target, LIMITS).await.unwrap()),
        json!({"databases": [
            {"name": "other", "schemas": [{"name": "public"}]},
            {"name": "postgres", "schemas": [
                {"name": "A"}, {"name": "_realtime"}, {"name": "auth"}, {"name": "b"}, {"name": "extensions"},
                {"name": "graphql"}, {"name": "graphql_public"}, {"name": "pgbouncer"}, {"name": "public"},
                {"name": "realtime"}, {"name": "storage"}, {"name": "supabase_functions"},
                {"name": "supabase_migrations"}, {"name": "vault"},
            ]},
        ]})
    );
}
