//! SQL on a protected project.

use serde_json::{Value, json};

use super::{Protected, approval_of};
use crate::support::{Actor, client::Answer};

/// SQL that creates what an agent could destroy.
const SCHEMA: &str = "
    create table users (id int primary key, email text not null, active bool default true);
    insert into users select n, 'u' || n from generate_series(1, 100) n;
    create table notes (id int primary key, owner int references users on delete cascade);
    insert into notes select n, n from generate_series(1, 100) n;
    create type mood as enum ('sad', 'ok');
    create view people as select id from users;
    create function wipe() returns int language plpgsql as
        $$ begin delete from users; return 1; end $$;
    create procedure wipe_all() language sql as 'delete from users';
    alter table users enable row level security;";

/// The state of the schema and its rows.
const STATE: &str = "
    select (select string_agg(u::text, ',' order by id) from users u) as users,
      (select string_agg(n::text, ',' order by id) from notes n) as notes,
      (select string_agg(relname || relkind::text || relrowsecurity::text
           || coalesce(relacl::text, ''), ',' order by relname)
         from pg_class where relnamespace = 'public'::regnamespace) as tables,
      (select string_agg(proname || prosrc, ',' order by proname) from pg_proc
         where pronamespace = 'public'::regnamespace) as functions,
      (select string_agg(attname || atttypid || attnotnull::text || atthasdef::text, ','
           order by attnum) from pg_attribute where attrelid = 'users'::regclass) as columns,
      (select string_agg(enumlabel, ',' order by enumsortorder) from pg_enum
         where enumtypid = 'mood'::regtype) as labels,
      (select string_agg(tgname, ',' order by tgname) from pg_trigger
         where tgrelid = 'users'::regclass) as triggers,
      (select count(*) from pg_roles) as roles";

/// Destructive SQL, directly and hidden.
const WAYS: &[&str] = &[
    "drop table notes",
    "drop table users cascade",
    "DROP/**/TABLE notes",
    "drop schema public cascade",
    "drop view people",
    "drop function wipe()",
    "drop procedure wipe_all()",
    "drop type mood",
    "drop index notes_pkey",
    "drop owned by current_user",
    "select 1; drop table notes; select 2",
    "begin; drop table notes; commit",
    "-- harmless\ndrop table notes",
    "/* select 1; */ drop table notes -- ;",
    "truncate users cascade",
    "truncate notes",
    "delete from notes",
    "delete from notes where true",
    "delete from notes where 1 = 1",
    "delete from notes where id = id",
    "delete from notes where id > 0",
    "delete from notes where id is not null",
    "delete from notes where id = 1 or id <> 1",
    "delete from notes using users where notes.owner = users.id",
    "delete from users where id in (select id from users)",
    "delete from users where active = true",
    "delete from users where not id = 0",
    "update users set email = ''",
    "update users set email = '' where true",
    "update users set email = '' where email like '%'",
    "update users set email = '' from notes where notes.owner = users.id",
    "update users set email = '' from notes where notes.id = 5",
    "delete from users where tableoid = 'users'::regclass",
    "insert into users select id, '' from users on conflict (id) do update set email = ''",
    "set standard_conforming_strings = off; select '\\''; drop table notes; --'",
    "with gone as (delete from notes returning *) select * from gone",
    "with a as (update users set email = '' returning *) select count(*) from a",
    "explain analyze delete from notes",
    "explain (analyze, costs off) update users set email = ''",
    "prepare p as delete from notes; execute p",
    "create table copy as with gone as (delete from notes returning *) select * from gone",
    "alter table users drop column email",
    "alter table users drop constraint users_pkey cascade",
    "alter table users alter column email drop not null",
    "alter table users alter column active drop default",
    "alter table users alter column email type varchar(1) using 'x'",
    "alter table users disable row level security",
    "alter table users rename to gone",
    "alter table users rename column email to mail",
    "alter table users set schema pg_temp",
    "alter view people rename to gone",
    "alter type mood rename value 'sad' to 'bad'",
    "revoke all on users from public, anon, authenticated",
    "do $$ begin delete from notes; end $$",
    "do $$ begin execute 'drop' || ' table notes'; end $$",
    "do language plpgsql 'begin execute chr(100) || ''rop table notes''; end'",
    "select wipe()",
    "select public.wipe()",
    "select * from wipe()",
    "select id, (select wipe()) from users limit 1",
    "select case when wipe() > 0 then 1 end",
    "values (wipe())",
    "call wipe_all()",
    "insert into users values (wipe() + 1000, 'x')",
    "create table t (id int default wipe()); insert into t default values",
    "create trigger t before insert on users for each row execute function wipe()",
    "create rule r as on insert to users do instead delete from users",
    "create or replace function wipe() returns int language sql as 'select 2'",
    "create or replace view people as select id from users where false",
    "create function public.lower(int) returns int language sql as 'select 1'",
    "create event trigger e on ddl_command_start execute function wipe()",
    "create cast (mood as int) with function wipe()",
    "select query_to_xml('delete from notes returning 1', true, true, '')",
    "select set_config('search_path', '', false)",
    "set role anon",
    "set search_path to nowhere",
    "reset all",
    "alter role anon nologin",
    "create role evil superuser",
    "alter database postgres set default_transaction_read_only = on",
    "alter system set fsync = off",
    "copy notes from program 'true'",
    "copy (with gone as (delete from notes returning *) select * from gone) to stdout",
    "merge into notes n using users u on n.owner = u.id when matched then delete",
    "reassign owned by current_user to anon",
    "load 'auto_explain'",
    "lock table users in access exclusive mode",
    "update pg_catalog.pg_class set relname = 'gone' where relname = 'users'",
    "comment on table users is 'x'; drop table notes",
    "select pg_terminate_backend(pid) from pg_stat_activity",
    "drop tables notes",
    "\u{feff}drop table notes",
];

impl Protected {
    async fn query(&self, actor: &Actor, sql: &str) -> Answer {
        let call = self.app.post(&self.path("/database/query")).as_(actor);
        call.json(&json!({"query": sql})).send().await
    }

    async fn state(&self) -> Value {
        let body = json!({"query": STATE, "read_only": true});
        let call = self.app.post(&self.path("/database/query"));
        let answer = call.as_(&self.app.owner).json(&body).send().await;
        answer.expect(201).json()
    }

    /// Runs SQL as the MCP server's tool. Returns the text of its error.
    async fn tool_error(&self, actor: &Actor, tool: &str, arguments: Value) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments}});
        let call = self.app.post(&format!("/mcp?project_ref={}", self.project));
        let call = call
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-06-18");
        let answer = call.as_(actor).json(&body).send().await.expect(200).json();
        let result = &answer["result"];
        assert_eq!(result["isError"], json!(true), "{answer}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// Checks that SQL is refused, for want of an approval or of room for a request.
fn assert_refused(answer: &Answer, sql: &str) {
    assert!(
        matches!(answer.status.as_u16(), 400 | 403),
        "{sql}: {answer:?}"
    );
}

#[tokio::test]
async fn agent_tries_all_destructive_ways_and_none_has_an_effect() {
    let protected = Protected::running().await;
    let app = &protected.app;
    app.post(&protected.path("/database/migrations"))
        .as_(&app.developer)
        .json(&json!({"query": "select 1"}))
        .send()
        .await
        .expect(200);
    // The schema has a function, so it is created without protection.
    unprotected_schema(&protected).await;
    let before = protected.state().await;
    let agent = &app.developer;
    let mut tried = 0;
    for sql in WAYS {
        app.advance(20);
        assert_refused(&protected.query(agent, sql).await, sql);
        let call = app.post(&protected.path("/database/migrations")).as_(agent);
        let migration = call
            .json(&json!({"query": sql, "name": "way"}))
            .send()
            .await;
        assert_refused(&migration, sql);
        let text = protected
            .tool_error(agent, "execute_sql", json!({"query": sql}))
            .await;
        let is_refused = text.contains("protected") || text.contains("wait for approval");
        assert!(is_refused, "{sql}: {text}");
        tried += 3;
    }
    assert!(tried >= 200, "{tried}");
    assert_eq!(protected.state().await, before);
}

/// Creates the schema by a connection of the owner, which protection does not affect.
async fn unprotected_schema(protected: &Protected) {
    let machine = &protected.app.machine;
    let client = machine
        .connect(&protected.project, "postgres")
        .await
        .unwrap();
    client.batch_execute(SCHEMA).await.unwrap();
}

#[tokio::test]
async fn harmless_sql_runs_without_an_approval() {
    let protected = Protected::running().await;
    let developer = &protected.app.developer;
    for sql in [
        "create table notes (id int primary key, body text, at timestamptz default now())",
        "insert into notes (id, body) values (1, 'a'), (2, 'b') returning id",
        "update notes set body = 'c' where id = 1",
        "delete from notes where id = 2",
        "select count(*), max(at), jsonb_agg(body) from notes",
        "alter table notes add column owner uuid",
        "create index on notes (lower(body))",
        "alter table notes enable row level security",
        "begin; select 1; commit",
    ] {
        protected.query(developer, sql).await.expect(201);
    }
    assert!(protected.approvals().await.is_empty());
    let body = json!({"query": "delete from notes", "read_only": true});
    let path = protected.path("/database/query");
    let call = protected.app.post(&path).as_(developer).json(&body);
    let answer = call.send().await.expect(400);
    assert!(
        answer.message().contains("permission denied") || answer.message().contains("read-only")
    );
}

#[tokio::test]
async fn approved_sql_runs_once() {
    let protected = Protected::running().await;
    let app = &protected.app;
    protected
        .query(&app.developer, "create table notes (id int)")
        .await
        .expect(201);
    let drop = "drop table notes";
    let refused = protected.query(&app.developer, drop).await;
    let message = refused.message();
    assert!(message.contains("this request runs DROP"), "{message}");
    protected.approve(&approval_of(&refused)).await;
    let other = protected
        .query(&app.developer, "drop table notes cascade")
        .await;
    approval_of(&other);
    let (first, second) = tokio::join!(
        protected.query(&app.developer, drop),
        protected.query(&app.developer, drop)
    );
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 403]);
}

#[tokio::test]
async fn large_migration_is_judged_whole() {
    let protected = Protected::running().await;
    let app = &protected.app;
    let rows = vec!["(1)"; 400_000].join(", ");
    let fill = format!("create table n (id int); insert into n values {rows}");
    let path = protected.path("/database/migrations");
    let send = |sql: String| {
        app.post(&path)
            .as_(&app.developer)
            .json(&json!({"query": sql}))
            .send()
    };
    send(fill.clone()).await.expect(200);
    let hidden = format!("create table m (id int); insert into m values {rows}; drop table n");
    let refused = send(hidden).await;
    assert!(
        refused.message().contains("runs DROP"),
        "{}",
        refused.message()
    );
}
