//! Rehearsals of migrations: their reports, and that nothing remains.

use std::{process::Command, time::Duration};

use gantry::{
    api::database::migrations::{
        MigrationLimits, NewMigration, apply,
        rehearsal::{MigrationRehearsal, rehearse},
    },
    control::database_session::{
        OWNER,
        session::{ConnectTarget, DatabaseSession},
    },
    platform::error::Error,
};
use gantry_node::engines::Engine;
use serde_json::{Value, json};

use super::{LIMITS, MIGRATION_LIMITS, clock, keyed, message, new, one, run, server, server_on};

const SHOP: &str = "
    create table customers (id bigint generated always as identity primary key, name text not null);
    create table orders (id serial primary key, customer bigint references customers on delete cascade, total numeric);
    create index on orders (customer);
    create table legacy (id int);
    create view totals as select customer, sum(total) from orders group by 1;
    create type state as enum ('new');
    create function twice(n int) returns int language sql as 'select n * 2';
    insert into customers (name) select 'c' || n from generate_series(1, 10) n;
    insert into orders (customer, total) select n, n from generate_series(1, 10) n";

async fn tell(target: &ConnectTarget, query: &str) -> MigrationRehearsal {
    rehearse(target, &clock(), &new(query), MIGRATION_LIMITS)
        .await
        .unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// Returns a dump of the database, including sequences.
fn dump(target: &ConnectTarget) -> String {
    let folder = target.socket().path().parent().unwrap();
    let mut dump = Command::new(Engine::find(None).unwrap().program("pg_dump"));
    let output = dump
        .arg("--host")
        .arg(folder)
        .args([
            "--username",
            "gantry_owner",
            "--role",
            OWNER,
            "--dbname",
            "postgres",
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("setval") && text.contains("COPY public.orders"),
        "{text}"
    );
    // These two lines contain a random key.
    text.lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn rehearsal_returns_changes() {
    let target = server().await;
    run(&target, SHOP).await.unwrap();
    let told = tell(
        &target,
        "begin;
         create schema archive;
         create table archive.orders (id bigint generated always as identity primary key, note text check (note <> ''));
         alter table orders add column placed_at timestamptz default clock_timestamp(), alter column total set not null;
         create index on orders (placed_at);
         create policy mine on orders using (true); alter table orders enable row level security;
         drop table legacy;
         create or replace function twice(n int) returns int language sql as 'select n + n';
         alter type state add value 'paid';
         create or replace view totals as select customer, sum(total), count(*) from orders group by 1;
         create role clerk;
         delete from customers where id <= 3; update orders set total = total + 1 where id > 8;
         insert into customers (name) values ('new');
         commit",
    )
    .await;
    let named = |objects: &[_]| json!(objects);
    assert_eq!(
        named(&told.created),
        json!([
            {"kind": "index", "name": "archive.orders_pkey"},
            {"kind": "index", "name": "public.orders_placed_at_idx"},
            {"kind": "policy", "name": "mine on public.orders"},
            {"kind": "role", "name": "clerk"},
            {"kind": "schema", "name": "archive"},
            {"kind": "sequence", "name": "archive.orders_id_seq"},
            {"kind": "table", "name": "archive.orders"},
            {"kind": "table column", "name": "public.orders.placed_at"},
        ])
    );
    assert_eq!(
        named(&told.altered),
        json!([
            {"kind": "function", "name": "public.twice(integer)"},
            {"kind": "table", "name": "public.orders"},
            {"kind": "table column", "name": "public.orders.total"},
            {"kind": "type", "name": "public.state"},
            {"kind": "view", "name": "public.totals"},
        ])
    );
    assert_eq!(
        named(&told.dropped),
        json!([{"kind": "table", "name": "public.legacy"}])
    );
    let rewritten: Vec<_> = told
        .rewritten
        .iter()
        .map(|object| object.name.as_str())
        .collect();
    assert_eq!(
        rewritten,
        [
            "public.orders_customer_idx",
            "public.orders_pkey",
            "public.orders"
        ]
    );
    assert_eq!(
        json!(told.rows),
        json!([
            {"table": "public.customers", "inserted": 1, "updated": 0, "deleted": 3},
            {"table": "public.orders", "inserted": 0, "updated": 2, "deleted": 3},
        ])
    );
    assert_eq!(
        (
            told.version.as_str(),
            told.replayed,
            told.lock_timeout_ms,
            told.time_limit_ms
        ),
        ("20261101091503", false, 4000, 20_000)
    );
    let ran: Vec<_> = told
        .statements
        .iter()
        .map(|ran| (ran.line, ran.command.as_str()))
        .take(3)
        .collect();
    assert_eq!(
        ran,
        [
            (2, "CREATE SCHEMA"),
            (3, "CREATE TABLE"),
            (4, "ALTER TABLE")
        ]
    );
    assert_eq!(told.statements.len(), 14);
    assert!(told.sequences_left_advanced.is_empty());
}

#[tokio::test]
async fn rehearsal_returns_locks_with_durations() {
    let target = server().await;
    run(&target, SHOP).await.unwrap();
    let told =
        tell(&target, "select pg_sleep(0.1); lock table orders; select pg_sleep(0.3); update customers set name = ''; drop table legacy")
            .await;
    let lock = |mode: &str, name: &str| {
        told.locks
            .iter()
            .find(|lock| lock.mode == mode && lock.object.name == name)
            .unwrap()
    };
    let orders = lock("AccessExclusiveLock", "public.orders");
    assert_eq!(orders.object.kind, "table");
    let customers = lock("RowExclusiveLock", "public.customers");
    assert!(
        orders.held_ms >= 300.0 && orders.held_ms <= told.duration_ms - 100.0,
        "{told:?}"
    );
    assert!(customers.held_ms <= orders.held_ms - 300.0, "{told:?}");
    lock("AccessExclusiveLock", "public.legacy");
    assert!(
        !told
            .locks
            .iter()
            .any(|lock| lock.object.name.contains("schema_migrations")),
        "what we lock ourselves is not the migration's"
    );
    // Strongest first.
    assert_eq!(told.locks[0].mode, "AccessExclusiveLock");
    // No session waits any more.
    run(
        &target,
        "begin; set lock_timeout = '1s'; lock table orders, legacy, customers; commit",
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn rehearsal_leaves_database_unchanged() {
    // The distribution's PostgreSQL, which includes pg_dump.
    let target = server_on(Engine::find(None).unwrap()).await;
    run(&target, SHOP).await.unwrap();
    run(&target, "create sequence called start 5; create sequence fresh start 7 cache 3; select nextval('called')").await.unwrap();
    let before = dump(&target);
    for query in [
        "insert into orders (customer) values (1), (2); insert into customers (name) values ('x')",
        "select setval('called', 1000), nextval('fresh'), nextval('orders_id_seq')",
        "truncate orders restart identity; alter sequence called restart 1; drop sequence fresh",
        "do $$ begin begin insert into orders default values; raise 'x'; exception when others then null; end; end $$",
        "savepoint a; insert into orders default values; rollback to a; drop schema public cascade",
        "alter table orders rename to o; select lo_create(4711); comment on table customers is 'x'",
        "set role anon",
    ] {
        tell(&target, query).await;
        assert_eq!(dump(&target), before, "{query}");
    }
    for fails in [
        "insert into orders default values; select 1/0",
        "select nextval('called'); rollback",
    ] {
        rehearse(&target, &clock(), &new(fails), MIGRATION_LIMITS)
            .await
            .unwrap_err();
        assert_eq!(dump(&target), before, "{fails}");
    }
    assert_eq!(
        run(
            &target,
            "select nextval('called') as a, nextval('fresh') as b"
        )
        .await
        .unwrap(),
        json!([{"a": 6, "b": 7}])
    );
    assert_eq!(
        one(
            &target,
            "select to_regclass('supabase_migrations.schema_migrations')"
        )
        .await,
        Value::Null
    );
}

#[tokio::test]
async fn sequences_are_blocked_during_rehearsal() {
    let target = server().await;
    run(&target, "create sequence s").await.unwrap();
    let mut other = DatabaseSession::open(&target, OWNER, "postgres", &[], LIMITS)
        .await
        .unwrap();
    other
        .simple_query("begin; select nextval('s')")
        .await
        .unwrap();
    let budget = MigrationLimits {
        lock_timeout: Duration::from_millis(200),
        ..MIGRATION_LIMITS
    };
    let busy = message(rehearse(&target, &clock(), &new("select nextval('s')"), budget).await);
    assert!(
        busy.contains("55P03") && busy.contains("HINT:  a migration waits at most 200 ms"),
        "{busy}"
    );
    other.simple_query("commit").await.unwrap();
    let drawn = tell(&target, "select nextval('s')");
    let drawn = tokio::join!(drawn, run(&target, "select nextval('s') as n"))
        .1
        .unwrap();
    assert_eq!(drawn, json!([{"n": 2}]), "whichever came first");
    assert_eq!(one(&target, "select nextval('s')").await, json!(3));
}

#[tokio::test]
async fn rehearsal_returns_error_of_migration() {
    let target = server().await;
    run(&target, SHOP).await.unwrap();
    for query in [
        "select 1;\n  select é, nope from orders;",
        "select 1; select * from orders where x",
        "create table a ();\nrollback",
        "begin; vacuum; commit",
        "select 'é'; /* é */ insert into orders (id) values (1)",
        "begin; create procedure p() language plpgsql as 'begin commit; end'; call p(); commit",
    ] {
        let rehearsed = message(rehearse(&target, &clock(), &new(query), MIGRATION_LIMITS).await);
        assert_eq!(
            rehearsed,
            message(apply(&target, &clock(), &new(query), MIGRATION_LIMITS).await),
            "{query}"
        );
    }
}

#[tokio::test]
async fn rehearsal_with_used_key_is_replay() {
    let target = server().await;
    let migration = keyed("create table a ()", "k");
    let told = rehearse(&target, &clock(), &migration, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert!(!told.replayed && told.created.len() == 1);
    assert!(
        !apply(&target, &clock(), &migration, MIGRATION_LIMITS)
            .await
            .unwrap()
            .replayed,
        "a rehearsal does not use up the key"
    );
    let again = rehearse(&target, &clock(), &migration, MIGRATION_LIMITS)
        .await
        .unwrap();
    assert_eq!(
        (again.version, again.replayed, again.created.len()),
        (told.version, true, 0)
    );
    let other = rehearse(
        &target,
        &clock(),
        &NewMigration {
            name: Some("b".into()),
            ..migration
        },
        MIGRATION_LIMITS,
    )
    .await;
    assert!(matches!(other, Err(Error::Conflict(_))));
}

#[tokio::test]
async fn rehearsal_reports_sequences_of_other_owners() {
    let target = server().await;
    run(
        &target,
        "create role keeper; grant keeper to postgres; grant create on schema public to keeper; set role keeper; create sequence kept;
         grant usage on sequence kept to postgres; reset role; revoke keeper from postgres",
    )
    .await
    .unwrap();
    let told = tell(&target, "select nextval('kept')").await;
    assert_eq!(told.sequences_left_advanced, ["public.kept"]);
    assert!(
        tell(&target, "select 1")
            .await
            .sequences_left_advanced
            .is_empty()
    );
}
