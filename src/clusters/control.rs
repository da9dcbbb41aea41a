//! Gantry's own cluster: the same machinery as a project's, with durable settings and one database.

use std::{path::Path, sync::Arc, time::Duration};

use tokio_postgres::Config;

use super::{
    ClusterError, Home, Result, blocking, files,
    server::{Host, Server, Stop},
    template::{self, Recipe},
};
use crate::clock::Entropy;

/// Name of the cluster, of its superuser and of its database.
const NAME: &str = "control";
const SUPERUSER: &str = "gantry";
const DATABASE: &str = "gantry";
/// Includes the recovery after a crash.
const READY_PATIENCE: Duration = Duration::from_mins(1);
const STOP_PATIENCE: Duration = Duration::from_secs(30);

const RECIPE: Recipe = Recipe {
    name: NAME,
    superuser: SUPERUSER,
    wal_segment_mb: 4,
    conf: include_str!("recipes/control.conf"),
    peers: &[SUPERUSER],
    logins: false,
    sql: &[],
};

/// The control cluster, running.
#[derive(Debug)]
pub struct Control {
    server: Server,
}

impl Control {
    /// Makes the cluster if there is none, starts it or adopts the running one, and makes sure of the database.
    pub async fn ensure(home: &Arc<Home>, host: &Host, entropy: &Entropy) -> Result<Self> {
        let account = home.account();
        let server = Server::new(host.clone(), NAME, &home.control(), home.socket_dir(NAME), account.run_as(), SUPERUSER);
        if !server.data().exists() {
            let place = template::make(home, host, &RECIPE, entropy).await?;
            let target = server.data().to_owned();
            blocking(move || {
                files::commit(&place.join("data"), &target)?;
                files::remove_tree(&place)
            })
            .await?;
        }
        server.start().await?;
        server.wait_ready(READY_PATIENCE).await?;
        ensure_database(&server).await?;
        Ok(Self { server })
    }

    /// How to connect to the control cluster of `dir`, which another process runs.
    pub fn config_in(dir: &Path) -> Config {
        let mut config = Config::new();
        config.host_path(Home::sockets_of(dir, NAME)).port(5432).user(SUPERUSER).dbname(DATABASE);
        config
    }

    /// How to connect to the database `gantry`, as its owner, by peer authentication.
    pub fn config(&self) -> Config {
        let mut config = self.server.config(SUPERUSER, DATABASE);
        // Our own database: the guards for a tenant's would hide its schema and end a migration.
        config.options("");
        config
    }

    /// Stops the cluster with a checkpoint.
    pub async fn stop(&self) -> Result<()> {
        self.server.stop(Stop::Fast, STOP_PATIENCE).await
    }
}

async fn ensure_database(server: &Server) -> Result<()> {
    let sql_error = |cause| ClusterError::Sql { doing: "creating the control database", cause };
    let admin = server.admin().await?;
    let found = admin.query_opt("select from pg_database where datname = $1", &[&DATABASE]).await.map_err(sql_error)?;
    if found.is_none() {
        admin.batch_execute(&format!("create database {DATABASE}")).await.map_err(sql_error)?;
    }
    Ok(())
}
