//! Code of the tenant that runs while a role of the platform is at hand: in the literals of a
//! policy, and in sessions of the platform's services.

use tokio_postgres::Client;

use super::{Database, hostile::MEMBERSHIPS, one, refusal};

/// PostgreSQL calls the input functions of types while it reads a command. That of an array of a
/// domain checks the constraints of the domain, which call functions of the tenant.
#[tokio::test]
async fn literal_of_a_policy_cannot_use_the_membership() {
    let setup = "
        create table public.ran (what text);
        create function public.evil(text) returns boolean language plpgsql as $$
        begin
            insert into public.ran values ($1);
            execute $1;
            return true;
        end $$;
        create domain public.command as text check (public.evil(value));
        create type public.commands as range (subtype = public.command);
        create table public.row_of (c public.command)";
    let commands = [
        "create or replace function auth.uid() returns uuid language sql as $$select null::uuid$$",
        "drop table storage.objects cascade",
        "alter table auth.users disable row level security",
        "create policy all_of_them on storage.objects using (true)",
        "reassign owned by supabase_auth_admin to postgres",
        "drop owned by supabase_storage_admin cascade",
        "grant supabase_auth_admin to anon",
        "set role supabase_auth_admin",
        "set role supabase_auth_admin; alter role supabase_auth_admin password $$x$$; reset role",
        "set role supabase_auth_admin; alter role supabase_auth_admin set work_mem = $$8MB$$; reset role",
    ];
    let literals = [
        ("'{\"", "\"}'::public.command[] is null"),
        ("'[\"", "\",]'::public.commands is null"),
        ("'(\"", "\")'::public.row_of is null"),
    ];
    let secrets = "select rolpassword from pg_authid where rolname = 'supabase_auth_admin'";
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        tenant.batch_execute(setup).await.unwrap();
        let password = one(&database.admin, secrets).await;
        for command in commands {
            for (before, after) in literals {
                let policy =
                    format!("create policy p on storage.objects using ({before}{command}{after})");
                let code = refusal(tenant, &policy).await;
                assert_eq!(code, "42501", "{policy} on {}", database.major);
            }
        }
        // Such literals do run.
        let harmless =
            "create policy p on storage.objects using ('{select 1}'::public.command[] is null)";
        tenant.batch_execute(harmless).await.unwrap();
        let ran = "select string_agg(what, ',') from public.ran";
        assert_eq!(one(tenant, ran).await.as_deref(), Some("select 1"));
        assert_eq!(one(&database.admin, secrets).await, password);
        assert_eq!(one(tenant, MEMBERSHIPS).await.as_deref(), Some("0"));
        let user = one(tenant, "select current_user").await;
        assert_eq!(user.as_deref(), Some("postgres"));
    }
}

/// The SQLSTATE of a statement in a session of a service, if it fails.
async fn as_service(admin: &Client, role: &str, sql: &str) -> Option<String> {
    let session = format!("set session authorization {role}");
    admin.batch_execute(&session).await.unwrap();
    let outcome = admin.batch_execute(sql).await;
    let reset = "reset session authorization; reset role";
    admin.batch_execute(reset).await.unwrap();
    let error = outcome.err()?;
    Some(error.code().unwrap().code().to_owned())
}

/// A service of the platform writes as a role that owns functions. Code of the tenant that runs in
/// its sessions must not replace them.
#[tokio::test]
async fn code_of_the_tenant_in_a_session_of_a_service_defines_nothing() {
    let setup = "
        create function public.take() returns boolean language plpgsql as $$
        begin
            reset role;
            execute 'create or replace function auth.uid() returns uuid
                language sql as ''select null::uuid''';
            execute 'create or replace function storage.filename(name text) returns text
                language sql as ''select 1::text''';
            return true;
        end $$;
        create function public.on_user() returns trigger language plpgsql as $$
        begin
            perform public.take();
            return new;
        end $$;
        create trigger on_user before insert on auth.users
            for each row execute function public.on_user();
        create policy take on storage.objects for select to authenticated using (public.take())";
    let definer = "
        create function public.make_profile() returns trigger
            language plpgsql security definer as $$
        begin
            create table if not exists public.profiles (id uuid);
            return new;
        end $$;
        drop trigger on_user on auth.users;
        create trigger on_user after insert on auth.users
            for each row execute function public.make_profile()";
    let object = "insert into storage.buckets (id, name) values ('a', 'a');
                  insert into storage.objects (bucket_id, name) values ('a', 'a')";
    let sign_up = "insert into auth.users (id) values (gen_random_uuid()) on conflict do nothing";
    let list = "set role authenticated; select * from storage.objects";
    let (auth, storage) = ("supabase_auth_admin", "supabase_storage_admin");
    for database in Database::on_each().await {
        let (admin, tenant) = (&database.admin, &database.tenant);
        tenant.batch_execute(setup).await.unwrap();
        admin.batch_execute(object).await.unwrap();
        for (role, sql) in [(auth, sign_up), (storage, list)] {
            let code = as_service(admin, role, sql).await;
            assert_eq!(code.as_deref(), Some("42501"), "{sql}");
        }
        // What the query of the service says, and functions that run as their owner.
        for (role, sql) in [
            (auth, "create table auth.next (id int)"),
            (
                auth,
                "do $$ begin alter table auth.next add column x int; end $$",
            ),
            (
                storage,
                "/* 1 */ create or replace function storage.mine() returns int language sql as 'select 1'",
            ),
        ] {
            assert_eq!(as_service(admin, role, sql).await, None, "{sql}");
        }
        tenant.batch_execute(definer).await.unwrap();
        assert_eq!(as_service(admin, auth, sign_up).await, None);
        let name = one(tenant, "select storage.filename('a/b')").await;
        assert_eq!(name.as_deref(), Some("b"));
    }
}

/// A definer function without a search path of its own would call functions of its caller.
#[tokio::test]
async fn functions_that_run_as_the_platform_fix_their_search_path() {
    let open = "
        select string_agg(p.oid::regprocedure::text, ', ')
        from pg_proc p
        join pg_namespace n on n.oid = p.pronamespace
        join pg_roles r on r.oid = p.proowner
        where (p.prosecdef or p.prorettype = 'event_trigger'::regtype)
            and (r.rolsuper or r.rolname like 'supabase\\_%')
            and n.nspname not in ('pg_catalog', 'information_schema')
            and not exists (select from unnest(p.proconfig) as s where s like 'search_path=%')";
    for database in Database::on_each().await {
        assert_eq!(one(&database.admin, open).await, None, "{}", database.major);
    }
}
