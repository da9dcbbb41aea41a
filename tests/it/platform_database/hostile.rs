//! Attempts of the tenant to take over the platform's roles, functions and tables.

use super::{Database, one, refusal};

/// Statements that must fail as the tenant, with their SQLSTATE.
const REFUSED: &[(&str, &str)] = &[
    (
        "create or replace function auth.uid() returns uuid language sql as 'select null::uuid'",
        "42501",
    ),
    ("drop function auth.jwt()", "42501"),
    ("alter function auth.uid() owner to postgres", "42501"),
    (
        "create or replace function vault._open(text, uuid) returns text language sql as 'select 1::text'",
        "42501",
    ),
    (
        "create or replace function extensions.platform_tables_begin() returns event_trigger language plpgsql as 'begin end'",
        "42501",
    ),
    ("drop event trigger platform_tables_begin", "42501"),
    ("alter event trigger platform_tables_drop disable", "42501"),
    ("drop table auth.users", "42501"),
    ("drop schema auth cascade", "42501"),
    ("alter table auth.users owner to postgres", "42501"),
    (
        "alter table storage.objects add column x int default 1",
        "42501",
    ),
    (
        "alter table storage.objects disable row level security",
        "42501",
    ),
    (
        "alter table storage.objects enable row level security; alter table storage.objects add column x int",
        "42501",
    ),
    (
        "do $$ begin alter table storage.objects enable row level security; end $$",
        "42501",
    ),
    (
        "/* alter table storage.objects enable row level security */ alter table storage.objects add column x int",
        "42501",
    ),
    (
        "drop trigger protect_objects_delete on storage.objects",
        "42501",
    ),
    (
        "create event trigger mine on ddl_command_start execute function extensions.pgrst_ddl_watch()",
        "42501",
    ),
    ("set role supabase_auth_admin", "42501"),
    ("set role supabase_storage_admin", "42501"),
    ("set role supabase_admin", "42501"),
    ("set role dashboard_user", "42501"),
    ("set session authorization supabase_auth_admin", "42501"),
    ("alter role supabase_auth_admin password 'x'", "42501"),
    ("alter role supabase_admin password 'x'", "42501"),
    ("alter role postgres superuser", "42501"),
    ("alter role authenticator superuser", "42501"),
    (
        "alter role authenticator set pgrst.jwt_secret = 'x'",
        "42501",
    ),
    (
        "alter role authenticator set session_preload_libraries = 'x'",
        "42501",
    ),
    ("grant supabase_auth_admin to postgres", "42501"),
    ("grant supabase_storage_admin to anon", "42501"),
    ("grant pg_execute_server_program to postgres", "42501"),
    ("grant pg_read_server_files to anon", "42501"),
    ("copy (select 1) to program 'true'", "42501"),
    ("select pg_read_file('../vault.key')", "42501"),
    ("select vault._key('encryption')", "42501"),
    ("select vault._seal('x', gen_random_uuid())", "42501"),
    ("insert into vault.secrets (secret) values ('x')", "42501"),
    (
        "create trigger t before delete on vault.secrets for each row execute function public.harmless()",
        "42501",
    ),
    ("select extensions.platform_tables_begin()", "0A000"),
    (
        "insert into extensions.platform_window values (1, '')",
        "42501",
    ),
    ("alter event trigger platform_guard disable", "42501"),
    ("drop function extensions.platform_guard() cascade", "42501"),
    (
        "create event trigger mine on sql_drop execute function extensions.pgrst_drop_watch()",
        "42501",
    ),
    ("alter extension supabase_vault update", "42501"),
    (
        "alter extension supabase_vault drop function vault._key(text)",
        "42501",
    ),
    ("drop extension supabase_vault cascade", "42501"),
    ("alter extension pgcrypto add function auth.uid()", "42501"),
    ("alter function auth.uid() security definer", "42501"),
    (
        "alter function auth.uid() set search_path = public",
        "42501",
    ),
    (
        "alter role supabase_auth_admin set search_path = public",
        "42501",
    ),
    (
        "alter role supabase_admin set search_path = public",
        "42501",
    ),
    ("alter role all set search_path = public", "42501"),
    (
        "alter default privileges for role supabase_auth_admin grant all on tables to anon",
        "42501",
    ),
    ("reassign owned by supabase_auth_admin to postgres", "42501"),
    ("drop owned by supabase_auth_admin", "42501"),
    ("create publication everything for all tables", "42501"),
    (
        "alter publication supabase_realtime add table auth.users",
        "42501",
    ),
    ("create index on auth.users (email)", "42501"),
    (
        "create rule r as on insert to auth.users do instead nothing",
        "42501",
    ),
    ("create statistics s on id, email from auth.users", "42501"),
    ("truncate vault.secrets", "42501"),
    ("select lo_import('/etc/passwd')", "42501"),
    ("select pg_read_binary_file('PG_VERSION')", "42501"),
    ("select pg_ls_dir('..')", "42501"),
    (
        "create function f() returns void language c as '$libdir/plpgsql', 'plpgsql_inline_handler'",
        "42501",
    ),
    ("load 'auto_explain'", "42501"),
    ("alter system set shared_preload_libraries = 'x'", "42501"),
];

#[tokio::test]
async fn tenant_cannot_change_the_platform_or_take_over_its_roles() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        let harmless = "create function public.harmless() returns trigger language plpgsql as 'begin return old; end'";
        tenant.batch_execute(harmless).await.unwrap();
        for (sql, code) in REFUSED {
            assert_eq!(
                refusal(tenant, sql).await,
                *code,
                "{sql} on {}",
                database.major
            );
        }
    }
}

/// Owners of the platform's tables that `postgres` is a member of.
pub(super) const MEMBERSHIPS: &str = "
    select count(*) from pg_auth_members m join pg_roles r on r.oid = m.roleid
    where m.member = 'postgres'::regrole and r.rolname like 'supabase\\_%'";

/// `postgres` belongs to the owners of the platform's tables during a command that defines a
/// policy. Code of the tenant must not run meanwhile, and nothing may remain afterwards.
#[tokio::test]
async fn membership_of_a_policy_command_cannot_be_used_for_anything_else() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        let setup = "
            create function public.evil() returns text language plpgsql as $$
            begin
                execute 'create or replace function storage.filename(name text) returns text
                    language sql as ''select 1::text''';
                return 'done';
            end $$;
            create domain public.checked as text check (public.evil() is not null);
            create table storage.\"objects-- x\" (id int);
            insert into storage.\"objects-- x\" values (1)";
        tenant.batch_execute(setup).await.unwrap();
        for attack in [
            "alter table storage.\"objects-- x\" add column c text default public.evil(),\n enable row level security",
            "alter table storage.\"objects-- x\" enable row level security, add column d text default public.evil()",
            "create policy p on storage.objects using (public.evil() = 'x' and name = 'x'::public.checked)",
            "create policy p2 on storage.\"objects-- x\" using (id::text = public.evil())",
            "comment on table storage.\"objects-- x\" is 'storage'",
        ] {
            // Whether it succeeds does not matter; a policy may name any function.
            let _ = tenant.batch_execute(attack).await;
            assert_eq!(
                one(tenant, "select storage.filename('a/b')")
                    .await
                    .as_deref(),
                Some("b"),
                "{attack}"
            );
            assert_eq!(
                one(tenant, MEMBERSHIPS).await.as_deref(),
                Some("0"),
                "{attack}"
            );
        }
        // Operators of the tenant that come before those of PostgreSQL in its search path.
        let operators = "
            create function public.evil_equal(text, text) returns boolean language plpgsql as $$
            begin
                perform public.evil();
                return true;
            end $$;
            create operator public.=
                (function = public.evil_equal, leftarg = text, rightarg = text);
            create policy q on storage.objects using (true);
            set search_path = public, pg_catalog";
        tenant.batch_execute(operators).await.unwrap();
        for command in [
            "drop policy q on storage.objects",
            "create policy q on storage.objects using (true)",
        ] {
            tenant.batch_execute(command).await.unwrap();
            assert_eq!(
                one(tenant, "select storage.filename('a/b')")
                    .await
                    .as_deref(),
                Some("b"),
                "{command}"
            );
        }
        tenant
            .batch_execute("reset search_path; drop operator public.= (text, text)")
            .await
            .unwrap();
        // A failed command and a rolled back one leave no membership.
        let failed = "create policy p3 on storage.objects using (missing = 1)";
        assert_eq!(refusal(tenant, failed).await, "42703");
        tenant
            .batch_execute("begin; create policy p4 on storage.objects using (true); rollback")
            .await
            .unwrap();
        assert_eq!(one(tenant, MEMBERSHIPS).await.as_deref(), Some("0"));
        let replica = "set session_replication_role = replica; create policy p5 on storage.objects using (true); set session_replication_role = default";
        tenant.batch_execute(replica).await.unwrap();
        assert_eq!(one(tenant, MEMBERSHIPS).await.as_deref(), Some("0"));
    }
}

/// A trigger of the tenant on a table of the platform must not run as superuser when an upgrade
/// writes there.
#[tokio::test]
async fn trigger_of_the_tenant_does_not_run_during_an_upgrade() {
    for database in Database::on_each().await {
        let setup = "
            create function public.evil() returns trigger language plpgsql as $$
            begin
                execute 'alter role postgres superuser';
                return null;
            end $$;
            create trigger evil before insert on auth.schema_migrations
                for each row execute function public.evil();
            create trigger evil before insert on storage.migrations for each statement execute function public.evil()";
        database.tenant.batch_execute(setup).await.unwrap();
        let conflicts = database.apply_platform().await;
        assert_eq!(conflicts, []);
        let superuser = "select rolsuper from pg_roles where rolname = 'postgres'";
        assert_eq!(one(&database.admin, superuser).await.as_deref(), Some("f"));
    }
}

#[tokio::test]
async fn concurrent_policy_commands_of_two_sessions_both_succeed() {
    let database = Database::on(&crate::support::machine::engine()).await;
    let other = database
        .machine
        .connect(&database.project, "postgres")
        .await
        .unwrap();
    database
        .tenant
        .batch_execute("begin; create policy a on storage.objects using (true)")
        .await
        .unwrap();
    let waiting = tokio::spawn(async move {
        other
            .batch_execute("create policy b on storage.buckets using (true)")
            .await
    });
    database.tenant.batch_execute("commit").await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(
        one(&database.tenant, MEMBERSHIPS).await.as_deref(),
        Some("0")
    );
}
