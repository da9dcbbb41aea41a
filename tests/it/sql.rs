//! SQL of customers, migrations and the list of schemas, against a real PostgreSQL.
//!
//! Each test has its own cluster, in the state of a new project.

mod bounds;
mod cut;
mod history;
mod hostile;
mod migrations;
mod rehearsal;
mod segments;
mod values;

use std::{ops::Deref, path::PathBuf, time::Duration};

use chrono::{DateTime, Utc};
use gantry::{
    api::database::{
        migrations::{MigrationLimits, NewMigration},
        query::{SqlQuery, run_query},
    },
    control::database_session::session::{ConnectTarget, SessionLimits},
    platform::error::Error,
};
use gantry_base::{clock::Clock, ids::ProjectRef};
use gantry_node::{
    clusters::ServerSocket,
    engines::{Engine, Engines},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::machine::{Machine, PATIENCE, SuperuserClients as _, engine};

/// A PostgreSQL server for one test. Dropping it stops the server.
pub(crate) struct Server {
    target: ConnectTarget,
    machine: Machine,
    project: ProjectRef,
}

impl Server {
    /// Opens a superuser session for actions that a customer cannot perform.
    pub(crate) async fn admin(&self) -> tokio_postgres::Client {
        self.machine
            .clusters
            .admin_session(&self.project)
            .await
            .unwrap()
    }
}

impl Deref for Server {
    type Target = ConnectTarget;

    fn deref(&self) -> &ConnectTarget {
        &self.target
    }
}

pub(crate) async fn server() -> Server {
    server_on(engine()).await
}

pub(crate) async fn server_on(engine: Engine) -> Server {
    let machine = Machine::on(&Engines::only(engine)).await;
    let project = machine.running(1).await;
    Server {
        target: ConnectTarget::new(machine.clusters.socket(&project)),
        machine,
        project,
    }
}

/// A socket on which this process itself listens.
pub(crate) fn our_own(path: PathBuf) -> ServerSocket {
    ServerSocket::of_process(
        path,
        rustix::process::geteuid().as_raw(),
        std::process::id().cast_signed(),
    )
}

pub(crate) const LIMITS: SessionLimits = SessionLimits {
    time: Duration::from_secs(20),
    rows_max: 1000,
    bytes_max: 1 << 20,
};

const MIGRATION_LIMITS: MigrationLimits = MigrationLimits {
    session: LIMITS,
    lock_timeout: Duration::from_secs(4),
};

fn clock() -> Clock {
    Clock::manual("2026-11-01T09:15:03Z".parse::<DateTime<Utc>>().unwrap())
}

fn new(query: &str) -> NewMigration {
    NewMigration {
        query: query.into(),
        ..NewMigration::default()
    }
}

fn keyed(query: &str, key: &str) -> NewMigration {
    NewMigration {
        idempotency_key: Some(key.into()),
        ..new(query)
    }
}

pub(crate) async fn run(target: &ConnectTarget, text: &str) -> Result<Value, Error> {
    run_with(target, text, json!([])).await
}

async fn run_with(target: &ConnectTarget, text: &str, parameters: Value) -> Result<Value, Error> {
    let query = SqlQuery {
        text: text.into(),
        parameters: parameters.as_array().unwrap().clone(),
        read_only: false,
    };
    Ok(serde_json::from_slice(&run_query(target, &query, LIMITS).await?).unwrap())
}

async fn read(target: &ConnectTarget, text: &str) -> Result<Value, Error> {
    let query = SqlQuery {
        text: text.into(),
        read_only: true,
        ..SqlQuery::default()
    };
    Ok(serde_json::from_slice(&run_query(target, &query, LIMITS).await?).unwrap())
}

/// Returns the first column of the first row.
async fn one(target: &ConnectTarget, text: &str) -> Value {
    run(target, text).await.unwrap()[0]
        .as_object()
        .unwrap()
        .values()
        .next()
        .unwrap()
        .clone()
}

fn message(result: Result<impl std::fmt::Debug, Error>) -> String {
    result.unwrap_err().message().into_owned()
}

/// Waits until the owner has no other session.
async fn wait_until_idle(target: &ConnectTarget) {
    let busy = "select count(*) from pg_stat_activity where usename = 'gantry_owner' and pid <> pg_backend_pid()";
    timeout(PATIENCE, async {
        while one(target, busy).await != json!(0) {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("a statement still runs");
}
