//! Hostile SQL: attempts to leave read-only mode, role, database or limits.

use std::time::Duration;

use gantry::{
    api::database::{
        migrations::apply,
        query::{SqlQuery, run_query},
    },
    control::database_session::{
        READER,
        session::{DatabaseSession, SessionLimits},
    },
    platform::error::Error,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    LIMITS, MIGRATION_LIMITS, clock, message, new, one, read, run, server, wait_until_idle,
};

/// Returns the persistent state: roles with their settings, and owned objects.
const WHAT_STAYS: &str = "
    select (select count(*) from pg_class where oid >= 16384) as relations, (select count(*) from pg_proc where oid >= 16384) as functions,
        (select count(*) from pg_largeobject_metadata) as objects, (select count(*) from pg_database) as databases,
        (select count(*) from pg_namespace where nspname !~ '^pg_(toast_)?temp') as schemas, (select count(*) from public.t) as rows,
        (select last_value from public.t_id_seq) as drawn,
        (select json_agg(r order by rolname) from pg_roles r) as roles, (select json_agg(s order by setrole, setdatabase) from pg_db_role_setting s) as settings";

const SCENE: &str = "create table public.t (id serial); create function public.own() returns void language sql as 'delete from public.t';
    insert into t default values";

/// Statements that write in different ways.
const WRITES: [&str; 31] = [
    "insert into public.t values (7)",
    "truncate public.t",
    "select public.own()",
    "select setval('public.t_id_seq', 9)",
    "select nextval('public.t_id_seq')",
    "create table public.x ()",
    "create table extensions.x ()",
    "create temporary table x ()",
    "create temporary sequence x",
    "create function pg_temp.x() returns int language sql as 'select 1'",
    "select 1 as a into temporary x",
    "create schema x",
    "create role x",
    "create database x",
    "select lo_create(4711)",
    "select lo_creat(-1)",
    "select lo_from_bytea(0, 'x')",
    "select lo_put(4711, 0, 'x')",
    "select lo_unlink(4711)",
    "select lowrite(lo_open(4711, 131072), 'x')",
    "select pg_logical_emit_message(false, 'a', 'b')",
    "alter role supabase_read_only_user superuser",
    "alter role supabase_read_only_user createdb",
    "alter role postgres set statement_timeout = 1",
    "set role postgres; insert into public.t values (1)",
    "set session authorization postgres; insert into public.t values (1)",
    "grant postgres to supabase_read_only_user",
    "create extension hstore",
    "copy public.t to program 'id'",
    "copy public.t from '/etc/passwd'",
    "do $$ begin execute 'insert into public.t values (1)'; end $$",
];

#[tokio::test]
async fn read_only_query_never_writes() {
    let target = server().await;
    run(&target, SCENE).await.unwrap();
    let before = run(&target, WHAT_STAYS).await.unwrap();
    let writable = "set session characteristics as transaction read write; set default_transaction_read_only = off;";
    let escapes = [
        String::new(),
        "set transaction read write;".into(),
        "set transaction_read_only = off;".into(),
        "rollback; begin read write;".into(),
        format!("commit; {writable} commit;"),
        format!(
            "reset role; reset session authorization; commit; {writable} commit; begin; reset role;"
        ),
        format!("commit; {writable} discard all; {writable} commit;"),
        "commit and chain; set transaction read write;".into(),
        "savepoint a; set transaction read write;".into(),
        "do $$ begin commit; end $$;".into(),
        "abort;".into(),
        "end; begin;".into(),
    ];
    let last = ["", "; commit", "; end; select 1"];
    // Permitted, because a role may change its own settings. The change must not persist.
    let itself = [
        "alter role current_user set statement_timeout = 1",
        "alter role current_user password 'x'",
        "set statement_timeout = 0",
    ];
    for escape in &escapes {
        for write in WRITES {
            let text = format!("{escape} {write}");
            let refusal = message(read(&target, &text).await);
            assert!(
                [
                    "42501",
                    "25006",
                    "25001",
                    "2D000",
                    "cannot contain",
                    "does not run"
                ]
                .iter()
                .any(|refused| refusal.contains(refused)),
                "{text}: {refusal}"
            );
        }
        for text in itself
            .iter()
            .flat_map(|write| last.map(|last| format!("{escape} {write}{last}")))
        {
            let _ = read(&target, &text).await;
        }
    }
    assert_eq!(run(&target, WHAT_STAYS).await.unwrap(), before);
}

/// Even outside the read-only transaction, the role has no write privileges.
#[tokio::test]
async fn reader_role_has_no_write_privilege() {
    let target = server().await;
    run(&target, SCENE).await.unwrap();
    let before = run(&target, WHAT_STAYS).await.unwrap();
    let mut session = DatabaseSession::open(
        &target,
        READER,
        "postgres",
        &[("default_transaction_read_only", "off")],
        LIMITS,
    )
    .await
    .unwrap();
    for write in WRITES {
        let refusal = message(session.simple_query(write).await);
        assert!(refusal.contains("42501"), "{write}: {refusal}");
    }
    drop(session);
    assert_eq!(run(&target, WHAT_STAYS).await.unwrap(), before);
}

/// Other roles keep PostgreSQL's default privileges.
#[tokio::test]
async fn other_roles_keep_temporary_tables_and_large_objects() {
    let target = server().await;
    for role in ["postgres", "anon", "authenticated", "service_role"] {
        let text = format!(
            "begin; set local role {role}; create temporary table x (); select lo_unlink(lo_from_bytea(0, 'x')) as gone; rollback"
        );
        assert_eq!(
            run(&target, &text).await.unwrap(),
            json!([{"gone": 1}]),
            "{role}"
        );
    }
    run(&target, "create role mine; grant mine to postgres; grant temporary on database postgres to mine; grant execute on function lo_create(oid) to mine; set role mine; create temp table x (); select lo_create(0)").await.unwrap();
}

#[tokio::test]
async fn read_only_query_with_outer_begin_and_commit_succeeds() {
    let target = server().await;
    assert_eq!(
        read(&target, "begin; select 1 as a; commit").await.unwrap(),
        json!([{"a": 1}])
    );
    assert_eq!(
        message(read(&target, "select 1;\ncommit; select 2").await),
        "query: a read-only query runs in one transaction, so it cannot contain COMMIT (line 2); \
         leave it out, or put begin and commit around the whole text"
    );
    let with_parameters = SqlQuery {
        text: "commit".into(),
        parameters: vec![json!(1)],
        read_only: true,
    };
    assert!(matches!(
        run_query(&target, &with_parameters, LIMITS).await,
        Err(Error::Invalid { .. })
    ));
}

#[tokio::test]
async fn owner_cannot_leave_role_or_database() {
    let target = server().await;
    for text in [
        "reset role; create role boss superuser",
        "reset session authorization; alter role postgres superuser",
        "set role supabase_admin",
        "set session authorization supabase_admin",
        "grant supabase_admin to postgres",
        "commit; reset all; alter role postgres superuser",
        "alter system set log_statement = 'none'",
        "set log_statement = 'none'",
        "set session_preload_libraries = 'x'",
        "load '$libdir/plugins/x'",
        "copy (select 1) to program 'id'",
        "create temp table x (a text); copy x from program 'id'",
        "create temp table x (a text); copy x from '/etc/passwd'",
        "copy (select 1) to '/tmp/gantry-was-here'",
        "select pg_read_file('/etc/passwd')",
        "select pg_read_binary_file('postgresql.conf')",
        "select pg_ls_dir('/')",
        "select lo_import('/etc/passwd')",
        "select lo_export(1, '/tmp/gantry-was-here')",
        "create extension dblink",
        "create extension postgres_fdw",
        "create extension file_fdw",
        "create extension adminpack",
        "create function f() returns int language c as 'libc', 'abort'",
        "create function f() returns int language internal as 'pg_reload_conf'",
        "create event trigger e on ddl_command_start execute function now()",
        "create subscription s connection 'host=127.0.0.1' publication p",
        "select pg_reload_conf()",
        "select from pg_stat_activity where (usename = 'supabase_admin' or backend_type = 'checkpointer') and pg_terminate_backend(pid)",
        "update pg_catalog.pg_authid set rolsuper = true",
        "select * from pg_catalog.pg_authid",
        "drop role supabase_admin",
        "drop database postgres",
    ] {
        match run(&target, text).await {
            Ok(answer) => assert_eq!(answer, json!([]), "{text}"),
            Err(Error::Sql(_)) => {}
            Err(error) => panic!("{text}: {error}"),
        }
        assert!(
            !std::path::Path::new("/tmp/gantry-was-here").exists(),
            "{text}"
        );
    }
    let me = "select current_user::text as me, (select rolsuper from pg_roles where rolname = 'postgres') as super,
                  (select count(*) from pg_roles where rolsuper) as supers, to_regproc('f') as f";
    assert_eq!(
        run(&target, me).await.unwrap(),
        json!([{"me": "postgres", "super": false, "supers": 1, "f": null}])
    );
}

#[tokio::test]
async fn result_of_ten_gigabytes_is_rejected() {
    let target = server().await;
    let start = Instant::now();
    for text in [
        "select repeat('x', 1000000) from generate_series(1, 10000)",
        "select n, repeat('x', 10000) from generate_series(1, 1000000) n",
        "select array_agg(repeat('x', 1000000)) from generate_series(1, 200)",
    ] {
        for result in [run(&target, text).await, read(&target, text).await] {
            assert_eq!(
                message(result),
                "query: the result is over 1048576 bytes; select less",
                "{text}"
            );
        }
    }
    // Larger than the server's own limit for a value.
    assert!(
        message(
            run(
                &target,
                "select string_agg(repeat('x', 100000000), '') from generate_series(1, 100)"
            )
            .await
        )
        .contains("ERROR:  ")
    );
    // Rows of a migration are discarded.
    apply(
        &target,
        &clock(),
        &new("select repeat('x', 10000) from generate_series(1, 20000)"),
        MIGRATION_LIMITS,
    )
    .await
    .unwrap();
    assert!(start.elapsed() < Duration::from_mins(1));
    wait_until_idle(&target).await;
}

#[tokio::test]
async fn megabyte_of_parentheses_returns_sql_error() {
    let target = server().await;
    let nested = |open: &str, close: &str| {
        format!("select {}1{}", open.repeat(500_000), close.repeat(500_000))
    };
    for text in [
        nested("(", ")"),
        nested("array[", "]"),
        nested("not ", ""),
        nested("/* ", " */"),
        nested("- ", ""),
        nested("case when ", ""),
    ] {
        let failed = |result: Result<Value, Error>| match result {
            Ok(_) | Err(Error::Sql(_)) => {}
            Err(error) => panic!("{}…: {error}", &text[..20]),
        };
        failed(run(&target, &text).await);
        failed(read(&target, &text).await);
        failed(
            apply(&target, &clock(), &new(&text), MIGRATION_LIMITS)
                .await
                .map(|_| Value::Null),
        );
        assert_eq!(
            one(&target, "select 1").await,
            json!(1),
            "and the server lives"
        );
    }
}

/// PostgreSQL's lexer would take minutes, without reacting to signals.
#[tokio::test]
async fn megabyte_of_nested_comments_is_rejected() {
    let target = server().await;
    let text = format!("select {}1", "/*".repeat(500_000));
    for result in [
        run(&target, &text).await,
        read(&target, &text).await,
        apply(&target, &clock(), &new(&text), MIGRATION_LIMITS)
            .await
            .map(|_| Value::Null),
    ] {
        assert_eq!(
            message(result),
            "query: more than 100 comments begin one inside the other"
        );
    }
    // Below the limit, parsing takes no noticeable time.
    let text = format!("select {}1", "/*".repeat(100) + &" /*".repeat(300_000));
    assert!(message(run(&target, &text).await).contains("unterminated /* comment"));
}

#[tokio::test]
async fn notification_flood_is_discarded() {
    let target = server().await;
    let flood = "listen a; do $$ begin for i in 1..50000 loop perform pg_notify('a', i || repeat('x', 7000)); end loop; end $$";
    for _ in 0..2 {
        assert_eq!(
            read(&target, &format!("{flood}; select 1 as a"))
                .await
                .unwrap(),
            json!([{"a": 1}])
        );
        assert_eq!(
            run(&target, &format!("{flood}; select 1 as a"))
                .await
                .unwrap(),
            json!([{"a": 1}])
        );
    }
    wait_until_idle(&target).await;
    assert_eq!(
        run(
            &target,
            "select pg_notification_queue_usage() < 0.5 as room"
        )
        .await
        .unwrap(),
        json!([{"room": true}])
    );
}

#[tokio::test]
async fn every_statement_ends_at_the_deadline() {
    let target = server().await;
    let limits = SessionLimits {
        time: Duration::from_millis(500),
        ..LIMITS
    };
    run(
        &target,
        "create procedure forever() language plpgsql as 'begin loop commit; end loop; end'",
    )
    .await
    .unwrap();
    for (text, reader) in [
        (
            "set statement_timeout = 0; set lock_timeout = 0; select pg_sleep(60)",
            true,
        ),
        (
            "do $$ begin loop begin perform pg_sleep(60); exception when query_canceled then null; end; end loop; end $$",
            true,
        ),
        (
            "do $$ begin loop begin loop end loop; exception when others then null; end; end loop; end $$",
            true,
        ),
        (
            "with recursive r(n) as (select 1 union all select n + 1 from r) select max(n) from r",
            true,
        ),
        (
            "select count(*) from generate_series(1, 100000000) a, generate_series(1, 100000000) b",
            true,
        ),
        ("select pg_advisory_lock(1); select pg_sleep(60)", false),
        ("call forever()", false),
    ] {
        let start = Instant::now();
        let result = run_query(
            &target,
            &SqlQuery {
                text: text.into(),
                read_only: reader,
                ..SqlQuery::default()
            },
            limits,
        )
        .await;
        assert!(message(result).contains("57014"), "{text}");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{text}: {:?}",
            start.elapsed()
        );
    }
    wait_until_idle(&target).await;
    let readers = "select count(*) from pg_stat_activity where usename = 'supabase_read_only_user'";
    assert_eq!(one(&target, readers).await, json!(0));
}
