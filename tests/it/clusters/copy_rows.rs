//! Further things that a copy must not bring along, in every version: jobs, secrets of the vault,
//! queued requests, hooks of the tenant, verifiers, logs; and copies without rows.

use std::{fs, os::unix::fs::chown, path::Path};

use gantry_node::{clusters::CopySpec, supervisor::sandbox_available};

use super::{
    copies::{
        batch, copy_of, counts, files_with, files_with_canary, furnished, in_every_version, number,
        started,
    },
    text,
};
use crate::support::machine::{Machine, SuperuserClients as _, first_uid, is_root};

/// Strings of the original beside those of [`furnished`].
const CANARIES: [&str; 4] = [
    "canary-job",
    "canary-vault",
    "canary-request",
    "canary-log-line",
];

/// Objects with the names of extensions that not every engine has. Their triggers fail in a session
/// that does not suppress them, as those of `pg_cron` do without its library.
const EXTENSIONS: &str = "
    create schema if not exists cron;
    create table if not exists cron.job (jobid bigint, schedule text, command text,
        nodename text, nodeport int, database text, username text, active boolean);
    create table if not exists cron.job_run_details (command text);
    create function cron.refuse() returns trigger language plpgsql as
        $$ begin raise 'pg_cron can only be loaded via shared_preload_libraries'; end $$;
    insert into cron.job
        values (1, '* * * * *', 'select 1', 'localhost', 1, 'postgres', 'postgres', true);
    insert into cron.job_run_details values ('canary-job');
    create trigger refuse before update on cron.job for each row execute function cron.refuse();
    create schema if not exists vault;
    create table if not exists vault.secrets (id int, secret text);
    insert into vault.secrets (secret) values ('canary-vault');
    create schema if not exists net;
    create table if not exists net.http_request_queue (id int, body text);
    insert into net.http_request_queue (body) values ('canary-request');
    do $$
    declare
        member record;
    begin
        set local allow_system_table_mods = on;
        insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
            select pg_nextoid('pg_extension', 'oid', 'pg_extension_oid_index'), name, 10,
                   schema::regnamespace, false, '1'
            from (values ('pg_cron', 'cron'), ('pg_net', 'net')) as extensions (name, schema);
        set local allow_system_table_mods = off;
        alter extension pg_cron add table cron.job;
        alter extension pg_cron add table cron.job_run_details;
        alter extension pg_net add table net.http_request_queue;
    end $$;";

/// Code of the tenant that fails if it runs in the quarantine, which has no autovacuum.
const HOOKS: &str = "
    create function public.hook() returns event_trigger language plpgsql as $$ begin
        if current_setting('autovacuum') = 'off' then raise 'hook of the tenant'; end if;
    end $$;
    create event trigger hook on ddl_command_start execute function public.hook();
    alter event trigger hook enable always;";
const LOGIN_HOOK: &str = "
    create event trigger login_hook on login execute function public.hook();
    alter event trigger login_hook enable always;";

async fn check_rows(machine: &Machine, n: u32, major: u16) {
    let source = furnished(machine, n, major).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    let has_extensions = "select count(*) from pg_namespace where nspname in ('cron', 'net')";
    let is_plain = number(&original, has_extensions).await == 0;
    if is_plain {
        batch(&original, EXTENSIONS).await;
    }
    batch(
        &original,
        "do $$ begin raise log 'canary-log-line'; end $$; checkpoint",
    )
    .await;
    let verifier = "select split_part(split_part(rolpassword, '$', 3), ':', 1)
                    from pg_authid where rolname = 'reader'";
    let verifier = text(&original, verifier).await;
    batch(&original, HOOKS).await;
    if major >= 17 {
        batch(&original, LOGIN_HOOK).await;
    }
    let spec = copy_of(&source, n + 1, major);
    let report = machine.clusters.create_copy(&spec).await.unwrap();
    let data = machine.data(&spec.cluster.project);
    let mut canaries = CANARIES.to_vec();
    canaries.push(&verifier);
    assert_eq!(files_with(&data, &canaries), Vec::<String>::new());
    let counts = counts(&report);
    if is_plain {
        for name in [
            "scheduled jobs deactivated",
            "runs of scheduled jobs deleted",
            "vault secrets deleted",
            "queued requests deleted",
        ] {
            assert_eq!(counts.get(name), Some(&1), "{name}: {counts:?}");
        }
    }
    assert!(counts["passwords removed"] >= 1, "{counts:?}");
    // A copy of tablespaces would share their folders with the original.
    let folder = machine.data(&source).join("own");
    fs::create_dir(&folder).unwrap();
    if is_root() {
        let uid = Some(first_uid() + n);
        chown(&folder, uid, uid).unwrap();
    }
    let sql = format!("create tablespace own location '{}'", folder.display());
    // The sandbox denies the link, so only a cluster without one can have tablespaces.
    if original.batch_execute(&sql).await.is_err() {
        return;
    }
    let spec = copy_of(&source, n + 2, major);
    let refused = machine.clusters.create_copy(&spec).await;
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("it has tablespaces"), "{message}");
}

#[tokio::test]
async fn copy_has_no_jobs_secrets_or_requests_in_every_version() {
    in_every_version(check_rows).await;
}

async fn check_schema_only(machine: &Machine, n: u32, major: u16) {
    let source = furnished(machine, n, major).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    batch(
        &original,
        "create table public.parent (id int primary key, body text) partition by range (id);
         create table public.part partition of public.parent for values from (0) to (100);
         create table public.child (id serial, parent int references public.parent);
         insert into public.parent values (1, 'canary-row');
         insert into public.child (parent) values (1);
         create materialized view public.bodies as select body from public.parent;
         create function public.refuse() returns trigger language plpgsql as
             $$ begin raise 'trigger of the tenant'; end $$;
         create trigger refuse before truncate on public.child execute function public.refuse();
         alter table public.child enable always trigger refuse;
         select lo_from_bytea(0, 'canary-row');
         analyze public.parent; analyze public.part;
         create schema if not exists supabase_migrations;
         create table if not exists supabase_migrations.schema_migrations
             (version text primary key);
         insert into supabase_migrations.schema_migrations (version) values ('1');",
    )
    .await;
    let spec = CopySpec {
        schema_only: true,
        masking: vec!["select 1 / 0".to_owned()],
        ..copy_of(&source, n + 1, major)
    };
    let (report, copy) = started(machine, &spec).await;
    let data = machine.data(&spec.cluster.project);
    assert_eq!(files_with(&data, &["canary-row"]), Vec::<String>::new());
    assert_eq!(files_with_canary(&data), Vec::<String>::new());
    assert!(counts(&report)["tables emptied"] >= 6);
    for (sql, expected) in [
        ("select count(*) from public.parent", 0),
        ("select count(*) from public.notes", 0),
        ("select count(*) from auth.users", 0),
        ("select count(*) from pg_largeobject_metadata", 0),
        (
            "select count(*) from pg_shdepend where classid = 'pg_largeobject'::regclass",
            0,
        ),
        (
            "select count(*) from supabase_migrations.schema_migrations",
            1,
        ),
        (
            "select count(*) from pg_class where relname = 'bodies' and not relispopulated",
            1,
        ),
        (
            "select count(*) from pg_trigger where tgname = 'refuse' and tgenabled = 'A'",
            1,
        ),
        (
            "select last_value from public.child_id_seq where not is_called",
            1,
        ),
    ] {
        assert_eq!(number(&copy, sql).await, expected, "{sql}");
    }
    let kept = "select (count(*) > 0)::int::bigint from auth.schema_migrations";
    if number(&original, kept).await == 1 {
        assert_eq!(number(&copy, kept).await, 1, "histories of services stay");
    }
    batch(&copy, "refresh materialized view public.bodies").await;
}

#[tokio::test]
async fn copy_without_rows_has_the_whole_schema_in_every_version() {
    in_every_version(check_schema_only).await;
}

#[tokio::test]
async fn copy_opens_no_connection_to_the_outside() {
    if !sandbox_available() {
        return;
    }
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let original = machine.clusters.admin_session(&source).await.unwrap();
    batch(&original, "create extension dblink schema extensions").await;
    let major = machine.clusters.engines().default_engine().major();
    let (_, copy) = started(&machine, &copy_of(&source, 2, major)).await;
    assert!(machine.clusters.denies_network());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let neighbour = machine.clusters.socket_path(&source);
    let folder = neighbour.parent().map(Path::display).unwrap();
    for place in [
        format!("host=127.0.0.1 port={port}"),
        format!("host={folder}"),
    ] {
        let sql = format!(
            "select extensions.dblink_connect('{place} dbname=postgres connect_timeout=2')"
        );
        let refused = copy.batch_execute(&sql).await;
        assert!(refused.is_err(), "{place}");
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "a copy opened a connection");
}
