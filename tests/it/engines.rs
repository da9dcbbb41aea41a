//! Several PostgreSQL versions side by side.

use std::sync::Arc;

use gantry::{
    app::Settings,
    control::projects::{Status, state::warm_pool::WarmPoolSize},
    platform::http::Transport,
};
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::CopyPriority,
    engines::{
        Engines,
        install::{self, Release},
        registry::{NpmConfig, Registry},
    },
};
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    TestApp,
    machine::{Machine, SuperuserClients as _, cluster, engines},
    settings,
};

#[tokio::test]
async fn project_runs_on_the_requested_version() {
    let engines = engines();
    let machine = Arc::new(Machine::on(&engines).await);
    let app = TestApp::new().await;
    let settings = Settings {
        prepared: WarmPoolSize {
            folders: 1,
            servers: 0,
        },
        ..settings(Transport::default(), Uuid::from_u128(2))
    };
    let mut node = app.another_with(settings, machine);
    node.start();
    for engine in engines.offered() {
        let major = engine.major().to_string();
        let mut wanted = app.new_project(&format!("on {major}"));
        wanted["postgres_engine"] = json!(major);
        wanted["release_channel"] = json!(engine.channel());
        let created = node
            .post("/v1/projects")
            .as_(&app.owner)
            .json(&wanted)
            .send()
            .await
            .expect(201)
            .json();
        let project = created["ref"].as_str().unwrap().parse().unwrap();
        node.until(&project, Status::ActiveHealthy).await;
        let path = format!("/v1/projects/{project}");
        let query = json!({"query": "select current_setting('server_version') as version"});
        let seen = node
            .post(&format!("{path}/database/query"))
            .as_(&app.owner)
            .json(&query)
            .send()
            .await
            .expect(201)
            .json();
        let seen = seen[0]["version"]
            .as_str()
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned();
        let database = node
            .get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()["database"]
            .clone();
        assert_eq!(
            (&database["version"], &database["postgres_engine"]),
            (&json!(seen), &json!(major))
        );

        // A restart reads the version from the data directory.
        node.post(&format!("{path}/pause"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
        node.until(&project, Status::Inactive).await;
        let versions = node
            .get(&format!("{path}/restore"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json();
        assert_eq!(versions["available_versions"][0]["version"], engine.text());
        node.post(&format!("{path}/restore"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200);
        node.until(&project, Status::ActiveHealthy).await;
    }
    let available: Vec<_> = engines
        .offered()
        .iter()
        .map(|engine| engine.major().to_string())
        .collect();
    for (field, value, available) in [
        ("postgres_engine", "12", available.join(", ")),
        ("release_channel", "alpha", "ga".to_owned()),
    ] {
        let mut wanted = app.new_project("refused");
        wanted[field] = json!(value);
        let refused = node
            .post("/v1/projects")
            .as_(&app.owner)
            .json(&wanted)
            .send()
            .await
            .expect(400)
            .message();
        assert!(
            refused.contains(&format!(
                "{value} is not offered here; available: {available}"
            )),
            "{refused}"
        );
    }
    node.stop().await;
}

/// A project on a version that is no longer installed keeps its data. The error names the remedy.
#[tokio::test]
async fn missing_version_is_named_in_the_error() {
    let machine = Machine::new().await;
    let mut cluster = cluster(1);
    cluster.major = 99;
    let refused = machine
        .clusters
        .create(&cluster, CopyPriority::Foreground)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "PostgreSQL 99 is not installed; install it with: gantry engine install 99"
    );
}

#[tokio::test]
async fn install_of_unpinned_version_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new(NpmConfig::default()).unwrap();
    let engines = dir.path().join("engines");
    let entropy = Entropy::system();
    let refused = install::install(&engines, 98, Release::Pinned, None, &registry, &entropy)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "PostgreSQL 98 is not pinned in this version of Gantry (pinned: 15, 16, 17, 18); install the newest release of the registry with --newest"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// On version 15 the owner cannot create roles, and thus cannot join reserved roles.
#[tokio::test]
async fn owner_on_postgres_15_cannot_create_or_join_reserved_roles() {
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        let owner = machine.connect(&project, "postgres").await.unwrap();
        let created = owner.batch_execute("create role helper createrole").await;
        assert_eq!(created.is_ok(), engine.major() >= 16, "{}", engine.text());
        let reserved = owner
            .query(
                "select rolname::text from pg_roles where rolname like 'pg\\_%'
                     and not pg_has_role('postgres', oid, 'member with admin option')",
                &[],
            )
            .await
            .unwrap();
        assert!(reserved.len() > 8);
        for role in reserved.iter().map(|row| row.get::<_, String>(0)).chain([
            "supabase_admin".to_owned(),
            "supabase_auth_admin".to_owned(),
        ]) {
            let granted = owner
                .batch_execute(&format!("grant {role} to postgres"))
                .await;
            assert!(granted.is_err(), "{role} on {}", engine.text());
        }
    }
}

/// In a project from before this rule, the owner may have joined any role and created roles with
/// CREATEROLE.
#[tokio::test]
async fn grants_revoke_reserved_memberships_on_postgres_15() {
    let Some(engine) = engines().of_major(15).cloned() else {
        return;
    };
    let machine = Machine::on(&Engines::only(engine)).await;
    let project = machine.running(1).await;
    let admin = machine.clusters.admin_session(&project).await.unwrap();
    admin
        .batch_execute(
            "alter role postgres createrole; create role helper createrole; grant pg_write_server_files to helper with admin option;
             grant pg_execute_server_program, pg_checkpoint, pg_monitor to postgres",
        )
        .await
        .unwrap();
    let session = machine.clusters.superuser_session(&project).await.unwrap();
    machine.clusters.apply_platform(&session).await.unwrap();
    let left = "select roleid::regrole::text || ' ' || member::regrole::text from pg_auth_members
                where roleid::regrole::text like 'pg\\_%' and member::regrole::text not like 'pg\\_%' order by 1";
    let left: Vec<String> = admin
        .query(left, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(
        left,
        [
            "pg_monitor postgres",
            "pg_read_all_data supabase_read_only_user",
            "pg_read_all_stats postgres",
            "pg_signal_backend postgres"
        ]
    );
    let creators = admin
        .query(
            "select from pg_roles where rolcreaterole and not rolsuper",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(creators.len(), 0);
}
