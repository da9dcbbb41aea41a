//! Harmless and destructive SQL.

use super::*;

fn effect(sql: &str) -> String {
    effect_of(sql).unwrap_or_default().into_owned()
}

#[test]
fn harmless_statements_have_no_effect() {
    for sql in [
        "",
        "-- drop table users",
        "select 1 /* ; drop table users; */",
        "select 'drop table users; delete from users'",
        "select count(*), lower(email) from users where created_at > now() - interval '1 day'",
        "select * from users; select 2",
        "with recent as (select * from users limit 5) select jsonb_agg(r) from recent r",
        "insert into users (email) values ('a') on conflict (email) do update set email = 'b'",
        "insert into notes select * from old_notes returning id",
        "insert into notes select * from old_notes on conflict do nothing",
        "update users u set x = n.x from notes n where n.owner = u.id and u.id = 5",
        "delete from users using notes where notes.owner = users.id and users.id in (1, 2)",
        "delete from users where id = 5",
        "delete from users where 5 = id and name is not null",
        "delete from users where id in (1, 2, 3)",
        "delete from users where id = any($1)",
        "update users set name = 'b' where id = '7'::uuid",
        "update users u set name = $1 where u.id = $2 and u.active",
        "create table notes (id bigint generated always as identity primary key, at timestamptz default now())",
        "create table if not exists t (id uuid default gen_random_uuid(), owner uuid default auth.uid())",
        "create policy own on notes using (auth.uid() = owner)",
        "alter table notes enable row level security",
        "alter table notes add column body text not null default ''",
        "alter table notes alter column body set default 'x'",
        "alter table notes add constraint c check (length(body) < 100) not valid",
        "create index concurrently on notes (lower(body))",
        "create view v as select id from notes",
        "create function touch() returns trigger language plpgsql as $$ begin delete from users; end $$",
        "create extension if not exists pgcrypto",
        "create type mood as enum ('sad', 'ok')",
        "alter type mood add value 'happy'",
        "comment on table notes is 'drop'",
        "grant select on notes to anon",
        "begin; set local statement_timeout = '5s'; select 1; commit",
        "explain analyze select * from users",
        "create materialized view mv as select count(*) from users",
    ] {
        assert_eq!(effect(sql), "", "{sql}");
    }
}

#[test]
fn destructive_statements_have_their_effect() {
    for (sql, expected) in [
        ("drop table users", "runs DROP"),
        ("DROP SCHEMA public CASCADE", "runs DROP"),
        ("select 1; drop table users", "runs DROP"),
        ("/* select */ truncate users", "runs TRUNCATE"),
        ("drop owned by postgres", "runs DROP OWNED"),
        ("drop database x", "runs DROP DATABASE"),
        ("drop role anon", "runs DROP ROLE"),
        (
            "alter table users drop column email",
            "runs ALTER TABLE … DROP COLUMN",
        ),
        (
            "alter table users alter email drop not null",
            "runs ALTER TABLE … DROP NOT NULL",
        ),
        (
            "alter table users add column a int, drop constraint c",
            "runs ALTER TABLE … DROP CONSTRAINT",
        ),
        (
            "alter table users alter email type varchar(1)",
            "runs ALTER TABLE … ALTER COLUMN TYPE",
        ),
        (
            "alter table users disable row level security",
            "runs ALTER TABLE … DISABLE ROW SECURITY",
        ),
        ("alter table users rename to gone", "runs RENAME"),
        (
            "alter table users set schema hidden",
            "runs ALTER OBJECT SCHEMA",
        ),
        ("alter role anon superuser", "runs ALTER ROLE"),
        ("alter system set fsync = off", "runs ALTER SYSTEM"),
        ("do $$ begin execute 'drop table users'; end $$", "runs DO"),
        ("call wipe()", "runs CALL"),
        ("execute prepared", "runs EXECUTE"),
        ("copy users to program 'rm -rf /'", "runs COPY"),
        (
            "merge into t using s on true when matched then delete",
            "runs MERGE",
        ),
        ("revoke all on users from anon", "runs REVOKE"),
        (
            "create or replace view v as select 1",
            "runs CREATE OR REPLACE VIEW",
        ),
        (
            "create or replace function f() returns int language sql as 'select 1'",
            "runs CREATE OR REPLACE FUNCTION",
        ),
        (
            "create trigger t before insert on users execute function wipe()",
            "runs CREATE TRIGGER",
        ),
        (
            "create event trigger t on ddl_command_end execute function wipe()",
            "runs CREATE EVENT TRIGGER",
        ),
        (
            "create rule r as on insert to t do instead delete from t",
            "runs CREATE RULE",
        ),
        (
            "create cast (int as text) with function f(int)",
            "runs CREATE CAST",
        ),
        (
            "create operator === (leftarg = int, rightarg = int, function = f)",
            "runs CREATE",
        ),
        ("set role postgres", "runs SET"),
        ("set search_path = evil, public", "runs SET"),
        ("set standard_conforming_strings = off", "runs SET"),
        ("set client_encoding = 'SJIS'", "runs SET"),
        (
            "insert into t select id, 0 from t on conflict (id) do update set x = 0",
            "runs INSERT … ON CONFLICT DO UPDATE with the rows of a query",
        ),
        (
            "insert into t values (1) union select id from t on conflict (id) do update set x = 0",
            "runs INSERT … ON CONFLICT DO UPDATE with the rows of a query",
        ),
        ("reset all", "runs SET"),
        ("reassign owned by a to b", "runs REASSIGN OWNED"),
        ("load 'evil'", "runs LOAD"),
        ("refresh materialized view mv", "runs REFRESH MAT VIEW"),
        ("alter type mood rename value 'a' to 'b'", "runs ALTER ENUM"),
    ] {
        assert_eq!(effect(sql), expected, "{sql}");
    }
}

#[test]
fn hidden_statements_count() {
    for sql in [
        "with gone as (delete from users returning *) select * from gone",
        "with a as (with b as (update users set x = 1 returning *) select * from b) select * from a",
        "explain analyze delete from users",
        "prepare p as delete from users",
        "create table t as with d as (delete from users returning *) select * from d",
        "create function f() returns void begin atomic delete from users; end",
        "insert into t with d as (delete from users returning *) select * from d",
        "declare c cursor for with d as (delete from users returning id) select * from d",
        "create view v as select wipe()",
        "create table t (id int default wipe())",
        "alter table t add column a int default wipe()",
        "create index on t (wipe(id))",
        "create policy p on t using (wipe())",
        "create domain d as int check (wipe(value))",
        "select * from wipe()",
        "select * from t, lateral wipe(t.id)",
        "select (select wipe())",
        "select case when true then wipe() end",
        "select wipe() over ()",
        "select 1 order by wipe()",
        "values (wipe())",
        "explain analyze execute p",
        "create schema s create table t (id int default wipe())",
        "insert into t values (wipe()) on conflict do nothing",
        "insert into t values (1) on conflict (id) do update set x = wipe()",
        "delete from users where id = 5 returning wipe()",
        "select 1 operator(public.+) 2",
        "select 1; ; select wipe();",
    ] {
        assert_ne!(effect(sql), "", "{sql}");
    }
}

#[test]
fn calls_of_functions_that_run_sql_or_act_on_the_server_count() {
    for call in [
        "wipe()",
        "public.lower('x')",
        "pg_catalog.set_config('search_path', '', false)",
        "dblink('', 'drop table users')",
        "query_to_xml('delete from users returning 1', true, true, '')",
        "ts_stat('select 1')",
        "cron.schedule('* * * * *', 'drop table users')",
        "net.http_post('https://example.com')",
        "pg_terminate_backend(1)",
        "pg_read_file('/etc/passwd')",
        "lo_unlink(1)",
        "setval('s', 1)",
        "pg_reload_conf()",
        "\"Count\"(1)",
        "auth.wipe()",
        "a.b.count()",
    ] {
        let sql = format!("select {call}");
        let effect = effect(&sql);
        assert!(effect.starts_with("calls the function "), "{sql}: {effect}");
    }
}

#[test]
fn conditions_that_hold_for_all_rows_do_not_limit() {
    for condition in [
        "",
        "where true",
        "where 1 = 1",
        "where id = id",
        "where id is not null",
        "where id > 0",
        "where id <> 0",
        "where id = 1 or true",
        "where not id = 1",
        "where active = true",
        "where active = 'true'::bool",
        "where id = (select 1)",
        "where id in (select id from users)",
        "where id = any(select id from users)",
        "where id not in (1)",
        "where exists (select 1)",
        "where email like '%'",
        "where id between 1 and 9",
        "where id = null",
        "where current of c",
        "where id operator(public.=) 1",
    ] {
        for statement in ["delete from users", "update users set x = 1"] {
            let sql = format!("{statement} {condition}");
            assert_ne!(effect(&sql), "", "{sql}");
        }
    }
}

#[test]
fn conditions_on_other_tables_do_not_limit() {
    for sql in [
        "update users u set x = 1 from notes n where n.id = 5",
        "update users set x = 1 from notes where id = 5",
        "update users set x = 1 from (values (5)) v(id) where v.id = 5",
        "delete from users using notes where notes.id = 5",
        "delete from users using notes where id = 5",
        "delete from users u using users where users.id = 5",
        "with n as (select 5 as id) update users set x = 1 from n where n.id = 5",
        "delete from users where tableoid = 'users'::regclass",
        "delete from users where users.xmin = '1'::xid",
    ] {
        assert_ne!(effect(sql), "", "{sql}");
    }
}

#[test]
fn system_tables_and_shadowed_functions_count() {
    for sql in [
        "insert into cron.job (schedule, command) values ('* * * * *', 'drop table users')",
        "update pg_catalog.pg_class set relname = 'x' where oid = 1",
        "delete from supabase_migrations.schema_migrations where version = '1'",
        "create function public.lower(int) returns int language sql as 'select 1'",
        "create function count() returns int language sql as 'select 1'",
    ] {
        assert_ne!(effect(sql), "", "{sql}");
    }
}

#[test]
fn sql_that_cannot_be_parsed_cannot_be_judged() {
    for sql in [
        "drop tables users",
        "select 'open",
        "select \0",
        "\u{feff}select 1",
    ] {
        let effect = effect(sql);
        assert!(
            effect.starts_with("has SQL that cannot be judged: "),
            "{sql}: {effect}"
        );
    }
}

#[test]
fn deep_and_long_sql_is_judged_without_a_crash() {
    let nested = format!("select {}1{}", "(".repeat(20_000), ")".repeat(20_000));
    assert_ne!(effect(&nested), "");
    let values = vec!["('a')"; 20_000].join(", ");
    assert_eq!(effect(&format!("insert into t values {values}")), "");
}
