//! Code of a tenant in every place where PostgreSQL accepts it, and every operation by which the
//! platform works in a tenant's database: none runs with a right of the platform.

use std::collections::BTreeSet;

use gantry::control::database_session::OWNER;
use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::{ClusterSpec, CopyPriority, CopySpec, UpgradeStep, UpgradeSupport},
    engines::{Engine, Engines},
};
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::{
    clusters::{copies::copy_of, upgrades::upgrade_to},
    support::machine::{Machine, SuperuserClients as _, cluster, engines},
};

mod findings;
mod operations;

/// The statements that plant the traps.
const PLANT: &str = include_str!("traps/plant.sql");
/// Plants all traps in a project, as its owner. Asserts that the server accepts each, except for
/// those with roles before PostgreSQL 16, where the owner creates and changes none.
pub(crate) async fn plant(machine: &Machine, project: &ProjectRef) {
    let owner = machine.connect(project, OWNER).await.unwrap();
    let version = text(&owner, "show server_version_num").await.unwrap();
    for statement in PLANT.split(";;\n") {
        if statement.trim().is_empty() {
            continue;
        }
        // The traps that run while others are planted leave the role.
        owner.batch_execute("set role postgres").await.unwrap();
        if let Err(error) = owner.batch_execute(statement).await {
            let reason = error.as_db_error().map_or("", |error| error.message());
            let is_of_roles = reason.contains("role") && version.starts_with("15");
            assert!(is_of_roles, "{statement}: {reason}");
        }
    }
}

/// Returns the statements that plant the traps as one script, for a caller other than [`plant`].
pub(crate) fn script(major: u16) -> String {
    let is_accepted = |statement: &&str| major > 15 || !statement.contains("trap_owner");
    let statements: Vec<&str> = PLANT.split(";;\n").filter(is_accepted).collect();
    statements.join(";\nset role postgres;\n")
}

/// Queries with a text that is null unless a trap ran with a right of the platform.
pub(crate) const SPRUNG: [&str; 3] = [
    "select 'superusers: ' || string_agg(rolname, ', ') from pg_roles where rolsuper and oid <> 10",
    "select 'traps: ' || string_agg(distinct place || ' as ' || session_name, ', ') from trap.notes",
    "select 'rolled back: ' || case when is_called then last_value::text end from trap.caught",
];

/// Asserts that no trap of a project has run with a right of the platform.
pub(crate) async fn assert_not_sprung(machine: &Machine, project: &ProjectRef, after: &str) {
    let admin = machine.clusters.admin_session(project).await.unwrap();
    for sql in SPRUNG {
        assert_eq!(text(&admin, sql).await, None, "after {after}");
    }
}

async fn text(admin: &Client, sql: &str) -> Option<String> {
    admin.query_one(sql, &[]).await.unwrap().get(0)
}

async fn planted(machine: &Machine, engine: &Engine) -> ClusterSpec {
    let cluster = ClusterSpec {
        major: engine.major(),
        ..cluster(1)
    };
    machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap();
    machine.up(&cluster.project).await;
    plant(machine, &cluster.project).await;
    cluster
}

/// Copies a project, starts the copy, and asserts that no trap ran in it.
async fn assert_copy_is_safe(machine: &Machine, spec: &CopySpec, what: &str) {
    machine.clusters.create_copy(spec).await.unwrap();
    machine.up(&spec.cluster.project).await;
    assert_not_sprung(machine, &spec.cluster.project, what).await;
    let admin = machine
        .clusters
        .superuser_session(&spec.cluster.project)
        .await
        .unwrap();
    let found = machine.clusters.find_privileges(&admin).await.unwrap();
    assert_eq!(found, [], "{what}");
}

#[tokio::test]
async fn traps_run_with_no_right_of_the_platform_on_any_engine() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let cluster = planted(&machine, engine).await;
        let project = &cluster.project;
        let clusters = &machine.clusters;
        assert_not_sprung(&machine, project, "planting").await;

        let admin = clusters.superuser_session(project).await.unwrap();
        clusters.repair_roles_over(&admin).await.unwrap();
        clusters.apply_platform(&admin).await.unwrap();
        clusters.grant_on_new_tables(&admin).await.unwrap();
        assert_eq!(clusters.find_privileges(&admin).await.unwrap(), []);
        assert!(clusters.has_sessions(project).await.unwrap());
        clusters.set_read_only(project, true).await.unwrap();
        clusters.set_read_only(project, false).await.unwrap();
        clusters.refresh_access(project).await.unwrap();
        clusters.reload(project).await.unwrap();
        assert_not_sprung(&machine, project, "updates of the platform").await;
        clusters
            .check_upgrade(project, engine.major())
            .await
            .unwrap();
        drop(clusters.snapshot(project, 1 << 30).await.unwrap());
        clusters.stop(project).await.unwrap();
        machine.up(project).await;
        assert_not_sprung(&machine, project, "a restart").await;

        let major = engine.major();
        let with_data = copy_of(project, 2, major);
        assert_copy_is_safe(&machine, &with_data, "a copy with data").await;
        let masked = CopySpec {
            masking: vec!["update public.trapped set body = 'masked'".to_owned()],
            ..copy_of(project, 3, major)
        };
        assert_copy_is_safe(&machine, &masked, "a masked copy").await;
        let schema_only = CopySpec {
            schema_only: true,
            ..copy_of(project, 4, major)
        };
        assert_copy_is_safe(&machine, &schema_only, "a schema-only copy").await;
        let copy = clusters
            .admin_session(&schema_only.cluster.project)
            .await
            .unwrap();
        for table in ["public.trapped", "public.parts", "net.http_request_queue"] {
            let sql = format!("select count(*)::text from {table}");
            assert_eq!(text(&copy, &sql).await.unwrap(), "0", "{table}");
        }
        let scratch = clusters.scratch_copy(project, 1 << 30).await.unwrap();
        scratch.discard().await.unwrap();
        assert_not_sprung(&machine, project, "copies").await;
    }
}

#[tokio::test]
async fn upgrade_runs_no_code_of_the_tenant_as_superuser() {
    let mut all = engines().offered().to_vec();
    all.sort_by_key(Engine::major);
    let machine = Machine::on(&engines()).await;
    for pair in all.windows(2) {
        if UpgradeSupport::of(&pair[0], &pair[1]) != UpgradeSupport::Complete {
            continue;
        }
        let cluster = planted(&machine, &pair[0]).await;
        let project = &cluster.project;
        let owner = machine.connect(project, OWNER).await.unwrap();
        // The upgrade names what it cannot restore without a call of the tenant's code.
        let spec = upgrade_to(&cluster, &pair[1], 1);
        let progress = watch::Sender::new(UpgradeStep::Started);
        let refused = machine.clusters.upgrade(&spec, &progress).await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("functions do not run during an upgrade"),
            "{refused}"
        );
        machine.up(project).await;
        let owner = if owner.is_closed() {
            machine.connect(project, OWNER).await.unwrap()
        } else {
            owner
        };
        for sql in [
            "drop table public.parts",
            "drop index public.trapped_id_idx",
        ] {
            owner.batch_execute(sql).await.unwrap();
        }
        let spec = upgrade_to(&cluster, &pair[1], 2);
        machine.clusters.upgrade(&spec, &progress).await.unwrap();
        machine.up(project).await;
        let what = format!("an upgrade to {}", pair[1].major());
        assert_not_sprung(&machine, project, &what).await;
        let owner = machine.connect(project, OWNER).await.unwrap();
        let domain = "select count(*)::text from pg_constraint
                      where contypid = 'public.checked'::regtype and convalidated";
        assert_eq!(text(&owner, domain).await.unwrap(), "1");
        let blocked = "select count(*)::text from pg_proc
                       where proconfig::text like '%default_tablespace%'";
        assert_eq!(text(&owner, blocked).await.unwrap(), "0");
        assert_eq!(
            text(&owner, "select trap.same('works', 'after')")
                .await
                .unwrap(),
            "works"
        );
    }
}

#[tokio::test]
async fn table_of_the_tenant_with_a_name_of_an_extension_is_its_own() {
    let machine = Machine::new().await;
    let source = machine.running(1).await;
    let owner = machine.connect(&source, OWNER).await.unwrap();
    owner
        .batch_execute(
            "create schema cron; create table cron.job (id int, command text);
             insert into cron.job values (1, 'water the plants');
             create schema net; create table net.http_request_queue (id int);
             insert into net.http_request_queue values (1)",
        )
        .await
        .unwrap();
    let spec = copy_of(
        &source,
        2,
        machine.clusters.engines().default_engine().major(),
    );
    machine.clusters.create_copy(&spec).await.unwrap();
    machine.up(&spec.cluster.project).await;
    let copy = machine
        .clusters
        .admin_session(&spec.cluster.project)
        .await
        .unwrap();
    for table in ["cron.job", "net.http_request_queue"] {
        let sql = format!("select count(*)::text from {table}");
        assert_eq!(text(&copy, &sql).await.unwrap(), "1", "{table}");
    }
}

#[tokio::test]
async fn privileges_of_the_platform_are_found_and_revoked() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let intruder = machine.clusters.admin_session(&project).await.unwrap();
    intruder
        .batch_execute(
            "alter role postgres superuser; create role helper login bypassrls createrole;
             grant pg_read_server_files to helper; grant supabase_auth_admin to helper;
             create function public.door() returns void language sql security definer
                 as 'select 1'",
        )
        .await
        .unwrap();
    let admin = machine.clusters.superuser_session(&project).await.unwrap();
    let clusters = &machine.clusters;
    let findings = clusters.find_privileges(&admin).await.unwrap();
    let found: BTreeSet<String> = findings.iter().map(ToString::to_string).collect();
    let expected = [
        "function public.door() belongs to the superuser and is not the platform's",
        "role helper bypassed row-level security",
        "role helper could create roles",
        "role helper was a member of pg_read_server_files",
        "role helper was a member of supabase_auth_admin",
        "role postgres was a superuser",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
    for _ in ["the first time", "again"] {
        let revoked = clusters.revoke_privileges(&project, &admin, &findings);
        revoked.await.unwrap();
        let left = clusters.find_privileges(&admin).await.unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
    }
    let sql = "select rolsuper::text from pg_roles where rolname = 'postgres'";
    assert_eq!(text(&intruder, sql).await.unwrap(), "false");
}

#[tokio::test]
async fn rules_of_authentication_are_restored_at_each_start() {
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let path = machine.data(&project).join("pg_hba.conf");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "local all all trust\n").unwrap();
    machine.clusters.stop(&project).await.unwrap();
    machine.up(&project).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}
