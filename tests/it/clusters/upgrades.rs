//! Upgrades of clusters to another major version: contents, failures, interruptions.

use std::{fs, time::Duration};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    clusters::{ClusterSpec, CopyPriority, UpgradeSpec, UpgradeStep, UpgradeSupport},
    engines::Engine,
};
use tokio::sync::watch;
use tokio_postgres::Client;

use super::{
    copies::{batch, number},
    text,
};
use crate::support::{
    machine::{Machine, SuperuserClients as _, engines, first_uid, processes_under},
    note_skipped,
};

/// Time limit of a step of an upgrade.
const STEP_PATIENCE: Duration = Duration::from_mins(5);

/// Returns the engines from which projects can be upgraded one after another, oldest first.
fn chain() -> Vec<Engine> {
    let engines = engines();
    let mut all = engines.offered().to_vec();
    all.sort_by_key(Engine::major);
    let mut chain: Vec<Engine> = Vec::new();
    for engine in all {
        match chain.last() {
            None => chain.push(engine),
            Some(last) if UpgradeSupport::of(last, &engine) == UpgradeSupport::Complete => {
                chain.push(engine);
            }
            Some(_) => {}
        }
    }
    chain
}

async fn project_on(machine: &Machine, engine: &Engine, n: u32) -> ClusterSpec {
    let cluster = ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid: first_uid() + n,
        major: engine.major(),
    };
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    machine.up(&cluster.project).await;
    cluster
}

pub(crate) fn upgrade_to(cluster: &ClusterSpec, engine: &Engine, number: i32) -> UpgradeSpec {
    UpgradeSpec {
        cluster: ClusterSpec {
            major: engine.major(),
            ..cluster.clone()
        },
        number,
    }
}

const FILL: &str = "
    create extension if not exists hstore schema extensions;
    create extension if not exists pg_trgm schema extensions;
    create table public.things (id bigint primary key, name text, tags extensions.hstore,
                                at timestamptz default now());
    insert into public.things (id, name, tags)
        select i, 'thing ' || i, extensions.hstore('n', i::text) from generate_series(1, 20000) i;
    create index on public.things using gin (name extensions.gin_trgm_ops);
    alter table public.things owner to postgres;
    create materialized view public.totals as select count(*) as n from public.things;
    create role app_reader nologin;
    grant select on public.things to app_reader, anon;
    alter table public.things enable row level security;
    create policy everything on public.things for select using (true);
    create sequence public.counter start 41;
    select nextval('public.counter');
    create database other;
    insert into auth.users (id, email)
        values ('11111111-1111-4111-8111-111111111111', 'a@example.com');
    alter role authenticator set statement_timeout = '7s';
";

/// A digest of everything that an upgrade must keep.
async fn fingerprint(admin: &Client) -> String {
    let mut parts = Vec::new();
    for query in [
        "select md5(string_agg(t::text, ',' order by id)) from public.things t",
        "select n::text from public.totals",
        "select last_value::text || is_called::text from public.counter",
        "select string_agg(id::text || email, ',') from auth.users",
        // Version 17 adds the privilege MAINTAIN to ALL.
        "select string_agg(relname || ' ' || coalesce(replace(relacl::text, 'Dxtm', 'Dxt'), ''), ',' order by relname) from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'm', 'S')",
        "select string_agg(polname::text, ',') from pg_policy where polrelid = 'public.things'::regclass",
        "select string_agg(extname, ',' order by extname) from pg_extension",
        "select string_agg(rolname || rolsuper || rolcanlogin || rolbypassrls || coalesce(rolpassword, ''), ',' order by rolname) from pg_authid where rolname not like 'pg\\_%'",
        "select string_agg(datname::text, ',' order by datname) from pg_database where datallowconn",
        "select string_agg(setconfig::text, ',' order by setrole) from pg_db_role_setting where setrole <> 0",
        "select md5(string_agg(n.nspname || p.proname || pg_get_function_identity_arguments(p.oid), ',' order by n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))) from pg_proc p join pg_namespace n on n.oid = pronamespace where nspname in ('auth', 'storage', 'realtime')",
    ] {
        let row = admin.query_one(query, &[]).await;
        let value: Option<String> = row.unwrap_or_else(|e| panic!("{query}: {e:?}")).get(0);
        parts.push(format!("{query}\n= {}", value.unwrap_or_default()));
    }
    parts.join("\n")
}

async fn identifier(admin: &Client) -> String {
    let sql = "select system_identifier::text from pg_control_system()";
    text(admin, sql).await
}

#[tokio::test]
async fn upgrade_through_all_versions_keeps_everything_and_gets_new_identifiers() {
    let chain = chain();
    if chain.len() < 2 {
        note_skipped("only one engine with pg_upgrade");
        return;
    }
    let machine = Machine::on(&engines()).await;
    let cluster = project_on(&machine, &chain[0], 1).await;
    let project = cluster.project.clone();
    let admin = machine.clusters.admin_session(&project).await.unwrap();
    // `create database` must be a statement of its own.
    for statement in FILL.split(";\n") {
        if !statement.trim().is_empty() {
            batch(&admin, statement).await;
        }
    }
    let before = fingerprint(&admin).await;
    let mut identifiers = vec![identifier(&admin).await];
    drop(admin);
    let key = fs::read(machine.home.project(&project).join("vault.key")).unwrap();
    for (number, engine) in (1..).zip(&chain[1..]) {
        let spec = upgrade_to(&cluster, engine, number);
        let blockers = machine
            .clusters
            .check_upgrade(&project, engine.major())
            .await
            .unwrap();
        assert!(blockers.is_empty(), "{blockers:?}");
        let progress = watch::Sender::new(UpgradeStep::Started);
        machine.clusters.upgrade(&spec, &progress).await.unwrap();
        assert_eq!(*progress.borrow(), UpgradeStep::InPlace);
        // Repeated, it changes nothing.
        machine.clusters.upgrade(&spec, &progress).await.unwrap();
        machine.up(&project).await;
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        let version = text(&admin, "show server_version_num").await;
        assert!(
            version.starts_with(&engine.major().to_string()),
            "{version}"
        );
        assert_eq!(fingerprint(&admin).await, before);
        let creates = "select rolcreaterole::text from pg_roles where rolname = 'postgres'";
        let expected = (engine.major() >= 16).to_string();
        assert_eq!(text(&admin, creates).await, expected);
        let session = machine.clusters.superuser_session(&project).await.unwrap();
        machine.clusters.repair_roles_over(&session).await.unwrap();
        let conflicts = machine.clusters.apply_platform(&session).await;
        assert_eq!(conflicts.unwrap(), []);
        drop(session);
        let estimated =
            "select reltuples::bigint from pg_class where oid = 'public.things'::regclass";
        assert!(number_is_near(number_of(&admin, estimated).await, 20_000));
        identifiers.push(identifier(&admin).await);
        let kept = machine
            .home
            .project(&project)
            .join(format!("before-{number}/data/PG_VERSION"));
        assert!(kept.exists(), "the original is kept");
        machine
            .clusters
            .discard_original(&project, number)
            .await
            .unwrap();
        assert!(!kept.exists());
    }
    identifiers.dedup();
    assert_eq!(identifiers.len(), chain.len());
    let now = fs::read(machine.home.project(&project).join("vault.key")).unwrap();
    assert_eq!(now, key);
    assert_eq!(fs::read_dir(machine.dir().join("tmp")).unwrap().count(), 0);
}

async fn number_of(admin: &Client, sql: &str) -> i64 {
    number(admin, sql).await
}

fn number_is_near(found: i64, expected: i64) -> bool {
    (found - expected).abs() < expected / 2
}

#[tokio::test]
async fn failed_upgrade_leaves_the_original_untouched() {
    let chain = chain();
    let [old, new, ..] = chain.as_slice() else {
        return;
    };
    let machine = Machine::on(&engines()).await;
    let cluster = project_on(&machine, old, 1).await;
    let project = cluster.project.clone();
    let admin = machine.clusters.admin_session(&project).await.unwrap();
    batch(
        &admin,
        "create table public.blocked (f regproc); insert into public.blocked values ('now')",
    )
    .await;
    let before = identifier(&admin).await;
    drop(admin);
    let blockers = machine
        .clusters
        .check_upgrade(&project, new.major())
        .await
        .unwrap();
    assert_eq!(
        blockers.objects,
        ["column public.blocked.f of type regproc"]
    );
    let spec = upgrade_to(&cluster, new, 1);
    let progress = watch::Sender::new(UpgradeStep::Started);
    let error = machine
        .clusters
        .upgrade(&spec, &progress)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("public.blocked.f"), "{error}");
    assert_eq!(*progress.borrow(), UpgradeStep::UpgradeBegun);
    machine.clusters.revert_upgrade(&project, 1).await.unwrap();
    machine.up(&project).await;
    let admin = machine.clusters.admin_session(&project).await.unwrap();
    assert_eq!(identifier(&admin).await, before);
    assert_eq!(
        number(&admin, "select count(*) from public.blocked").await,
        1
    );
    assert_eq!(fs::read_dir(machine.dir().join("tmp")).unwrap().count(), 0);
    let place = machine.home.project(&project);
    assert!(!place.join("upgrade-1").exists() && !place.join("before-1").exists());
}

/// An attempt that ends at any step is completed by the next one, and leaves no process.
#[tokio::test]
async fn upgrade_interrupted_at_each_step_is_completed_by_the_next_attempt() {
    let chain = chain();
    let [old, new, ..] = chain.as_slice() else {
        return;
    };
    let machine = Machine::on(&engines()).await;
    for (n, step) in (1..).zip([
        UpgradeStep::Started,
        UpgradeStep::NewClusterMade,
        UpgradeStep::UpgradeBegun,
        UpgradeStep::Upgraded,
        UpgradeStep::OriginalMoved,
    ]) {
        let cluster = project_on(&machine, old, n).await;
        let project = cluster.project.clone();
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        batch(&admin, "create table public.kept as select 7 as n").await;
        drop(admin);
        let spec = upgrade_to(&cluster, new, 1);
        let (sender, mut steps) = watch::channel(UpgradeStep::InPlace);
        let clusters = machine.clusters.clone();
        {
            let attempt = clusters.upgrade(&spec, &sender);
            let reached = steps.wait_for(|now| *now == step);
            // Dropped at the step, as a killed process leaves it.
            tokio::select! {
                _ = tokio::time::timeout(STEP_PATIENCE, reached) => {}
                done = attempt => done.unwrap(),
            }
        }
        // Garbage of the interrupted attempt is collected at the next start.
        let known = [project.clone()].into();
        machine.clusters.collect_garbage(&known).await.unwrap();
        let progress = watch::Sender::new(UpgradeStep::Started);
        machine.clusters.upgrade(&spec, &progress).await.unwrap();
        machine.up(&project).await;
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        assert_eq!(number(&admin, "select n::bigint from public.kept").await, 7);
        assert_eq!(
            text(&admin, "show server_version_num").await[..2],
            *new.major().to_string(),
            "{step:?}"
        );
        drop(admin);
        machine.clusters.remove(&project).await.unwrap();
    }
    assert_eq!(processes_under(&machine.dir().join("tmp")), []);
}
