//! The contents of a new project's database: schemas, roles and functions of the platform.

mod behaviour;
mod bundled;
mod choices;
mod conformance;
mod histories;
mod hostile;
mod reserved_roles;
mod upgrades;

use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::PlatformConflict,
    engines::{Engine, Engines},
};
use tokio_postgres::Client;

use crate::support::machine::{Machine, SuperuserClients as _, engines};

/// A new project on one PostgreSQL version, with sessions of the superuser and of the tenant.
struct Database {
    machine: Machine,
    project: ProjectRef,
    major: u16,
    admin: Client,
    tenant: Client,
}

impl Database {
    /// Brings the database to this version of the platform.
    async fn apply_platform(&self) -> Vec<PlatformConflict> {
        let clusters = &self.machine.clusters;
        let session = clusters.superuser_session(&self.project).await.unwrap();
        clusters.apply_platform(&session).await.unwrap()
    }

    async fn on(engine: &Engine) -> Self {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        let tenant = machine.connect(&project, "postgres").await.unwrap();
        Self {
            machine,
            project,
            major: engine.major(),
            admin,
            tenant,
        }
    }

    /// One database for each installed PostgreSQL version.
    async fn on_each() -> Vec<Self> {
        let mut databases = Vec::new();
        for engine in engines().offered() {
            databases.push(Self::on(engine).await);
        }
        databases
    }
}

/// The first column of the first row, as text.
async fn one(client: &Client, sql: &str) -> Option<String> {
    let rows = client.simple_query(sql).await.unwrap();
    rows.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// The SQLSTATE of a statement that must fail.
async fn refusal(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.unwrap_err();
    error
        .code()
        .unwrap_or_else(|| panic!("{sql}: {error}"))
        .code()
        .to_owned()
}
