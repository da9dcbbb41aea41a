//! Migrations that do not run in one transaction.

use gantry::{
    api::database::migrations::{self, NewMigration, apply, rehearsal::rehearse},
    control::database_session::session::{ConnectTarget, DatabaseSession},
    platform::error::Error,
};
use serde_json::{Value, json};

use super::{LIMITS, MIGRATION_LIMITS, clock, keyed, message, new, one, run, server};

async fn applied(target: &ConnectTarget, migration: &NewMigration) {
    apply(target, &clock(), migration, MIGRATION_LIMITS)
        .await
        .unwrap_or_else(|error| panic!("{}: {error}", migration.query));
}

async fn failed(target: &ConnectTarget, migration: &NewMigration) -> String {
    message(apply(target, &clock(), migration, MIGRATION_LIMITS).await)
}

#[tokio::test]
async fn statements_outside_of_transactions_are_applied() {
    let target = server().await;
    for text in [
        "create table a (id int); create index concurrently a_id on a (id); vacuum a; drop index concurrently a_id",
        "begin; create table b (); commit; begin; create table c (); commit;",
        "create type mood as enum ('sad'); commit; alter type mood add value 'ok'; create table d (m mood default 'ok')",
        "create type color as enum ('red')",
        // PostgreSQL reveals at the run that the value is new.
        "alter type color add value 'blue'; create table e (c color default 'blue'); insert into e default values",
        "create procedure p() language plpgsql as $$ begin create table f (); commit; create table g (); end $$; call p()",
        "do $$ begin create table h (); commit; end $$",
        "create table q (id int primary key) partition by range (id); create table q1 partition of q for values from (0) to (9);
         reindex table concurrently a; reindex table q",
        "discard all; create table i ()",
        "set role none; vacuum; create table j ()",
        "create role helper; grant helper to postgres; set role helper; vacuum; reset role; create table k ()",
        "begin read only; select 1; commit; begin transaction isolation level repeatable read; create table l (); end",
    ] {
        applied(&target, &new(text)).await;
    }
    let owners =
        "select string_agg(distinct tableowner, ',') from pg_tables where schemaname = 'public'";
    assert_eq!(one(&target, owners).await, json!("postgres"));
    let tables = "select string_agg(tablename, '' order by tablename) from pg_tables where schemaname = 'public' and length(tablename) = 1";
    assert_eq!(one(&target, tables).await, json!("abcdefghijklq"));
    let rows = "select count(*), bool_and(cardinality(statements) = 1) as whole from supabase_migrations.schema_migrations";
    assert_eq!(
        run(&target, rows).await.unwrap(),
        json!([{"count": 12, "whole": true}])
    );
}

#[tokio::test]
async fn failed_segment_is_resumed_with_corrected_text() {
    let target = server().await;
    let first = "create table t (id int);\ninsert into t values (1), (1);\ncreate unique index concurrently u on t (id);\ncreate table z ()";
    let error = failed(&target, &keyed(first, "k")).await;
    assert!(
        error.starts_with(
            "Failed to run sql query: ERROR:  23505: could not create unique index \"u\"\n"
        ) && error.ends_with(
            "CONTEXT:  statement 3, line 3: create unique index concurrently u on t (id)\n\
                 HINT:  the text up to line 2 is applied and stays; to continue after it, \
                 correct the rest and send the whole text with the same Idempotency-Key\n"
        ),
        "{error}"
    );
    assert!(migrations::list(&target, LIMITS).await.unwrap().is_empty());
    // As segments, and as one transaction.
    for text in ["create table other (); vacuum", "create table other ()"] {
        let changed = apply(&target, &clock(), &keyed(text, "k"), MIGRATION_LIMITS).await;
        assert!(matches!(changed, Err(Error::Conflict(_))), "{changed:?}");
    }

    let second = first.replace("\ncreate unique", "\ndelete from t; create unique");
    applied(&target, &keyed(&second, "k")).await;
    let state = "select (select count(*) from t) as rows, (select bool_and(indisvalid) from pg_index where indrelid = 't'::regclass) as valid,
                 to_regclass('z') is not null as z";
    assert_eq!(
        run(&target, state).await.unwrap(),
        json!([{"rows": 0, "valid": true, "z": true}])
    );
    let again = apply(&target, &clock(), &keyed(&second, "k"), MIGRATION_LIMITS).await;
    assert!(again.unwrap().replayed);
}

#[tokio::test]
async fn unsupported_text_is_rejected_before_it_runs() {
    let target = server().await;
    for (text, problem) in [
        (
            "create table a ();\n\\d a",
            "query: line 2: \\d a is a command of psql",
        ),
        (
            "create table a ();\ncopy a from stdin;\n\\.\n",
            "query: line 2: copy a from stdin needs rows",
        ),
        (
            "create table a (); set standard_conforming_strings = off; vacuum",
            "query: standard_conforming_strings must stay on",
        ),
    ] {
        let error = failed(&target, &keyed(text, text)).await;
        assert!(error.starts_with(problem), "{error}");
    }
}

#[tokio::test]
async fn error_names_the_statement() {
    let target = server().await;
    let error = failed(&target, &new("select 1;\n\nselect 1/0;\nselect 2")).await;
    assert_eq!(
        error,
        "Failed to run sql query: ERROR:  22012: division by zero\nCONTEXT:  statement 2, line 3: select 1/0\n"
    );
    let error = failed(&target, &new("select 1;\nselect nope")).await;
    assert!(
        error.ends_with(
            "LINE 2: select nope\n               ^\nCONTEXT:  statement 2, line 2: select nope\n"
        ),
        "{error}"
    );
    let error = failed(&target, &new("vacuum;\nselect é nope nope")).await;
    assert!(
        error.contains("LINE 2: select é nope nope\n")
            && error.contains("CONTEXT:  statement 2, line 2"),
        "{error}"
    );
}

#[tokio::test]
async fn other_migrations_wait_for_segments() {
    let target = server().await;
    let mut holder = DatabaseSession::open(&target, "postgres", "postgres", &[], LIMITS)
        .await
        .unwrap();
    holder
        .simple_query("select pg_advisory_lock(113668162613882)")
        .await
        .unwrap();
    let limits = migrations::MigrationLimits {
        session: gantry::control::database_session::session::SessionLimits {
            time: std::time::Duration::from_millis(300),
            ..LIMITS
        },
        ..MIGRATION_LIMITS
    };
    for text in ["select 1", "vacuum"] {
        let outcome = apply(&target, &clock(), &new(text), limits).await;
        assert!(matches!(outcome, Err(Error::Conflict(_))), "{outcome:?}");
    }
    let waiting = tokio::spawn({
        let target = target.clone();
        async move { apply(&target, &clock(), &new("vacuum"), MIGRATION_LIMITS).await }
    });
    // Not blocked by a request that waits.
    holder
        .batch_execute("create table a (id int)")
        .await
        .unwrap();
    holder
        .batch_execute("create index concurrently on a (id)")
        .await
        .unwrap();
    holder
        .simple_query("select pg_advisory_unlock_all()")
        .await
        .unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn dry_run_names_statements_that_it_cannot_rehearse() {
    let target = server().await;
    run(
        &target,
        "create table t (id int); create type mood as enum ('sad')",
    )
    .await
    .unwrap();
    let text = "alter table t add note text;\ncreate index concurrently i on t (id);\nbegin; create table u (); commit;\n\
                alter type mood add value 'ok';\ninsert into t (note) values ('ok'::mood::text);\n\
                do $$ begin commit; end $$;\nbegin; create table v (); rollback";
    let told = json!(
        rehearse(&target, &clock(), &new(text), MIGRATION_LIMITS)
            .await
            .unwrap()
    );
    let skipped: Vec<_> = told["not_rehearsed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["line"].as_u64().unwrap(),
                one["statement"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        skipped,
        [
            (2, "create index concurrently i on t (id)"),
            (5, "insert into t (note) values ('ok'::mood::text)"),
            (6, "do $$ begin commit")
        ]
    );
    assert_eq!(told["statements"].as_array().unwrap().len(), 4);
    assert_eq!(
        told["created"],
        json!([
            {"kind": "table", "name": "public.u"},
            {"kind": "table column", "name": "public.t.note"},
        ])
    );
    assert!(told["segments"].as_u64().unwrap() > 1);
    assert_eq!(one(&target, "select to_regclass('u')").await, Value::Null);
}
