//! The control cluster, which holds Gantry's own database.

use std::{path::Path, sync::Arc, time::Duration};

use gantry_base::{clock::Entropy, repeat::Backoff};
use tokio::time::{Instant, sleep};
use tokio_postgres::Config;

use super::{
    home::Home,
    server::process::{Host, Server},
};
use crate::{
    background::blocking,
    clusters::{
        shutdown::ShutdownMode,
        template::{self, Recipe},
    },
    error::{At, ClusterError, Result},
    files,
};

/// Name of the cluster, of its superuser and of its database.
const NAME: &str = "control";
const SUPERUSER: &str = "gantry";
const DATABASE: &str = "gantry";
/// Time limit of a start, including recovery after a crash.
const READY_PATIENCE: Duration = Duration::from_mins(1);
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// A server that exits sooner than this after its start counts as crashing repeatedly.
const STEADY: Duration = Duration::from_mins(1);
/// Pauses before restarts of a server that crashes repeatedly.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

const RECIPE: Recipe = Recipe {
    name: NAME,
    superuser: SUPERUSER,
    wal_segment_mb: 4,
    conf: include_str!("recipes/control.conf"),
    peers: &[SUPERUSER],
    logins: false,
    sql: None,
};

/// The running control cluster.
#[derive(Debug)]
pub struct Control {
    server: Server,
}

impl Control {
    /// Creates the cluster unless it exists, starts it unless it runs, and creates the database.
    pub async fn ensure(home: &Arc<Home>, host: &Host, entropy: &Entropy) -> Result<Self> {
        let account = home.account();
        let server = Server::new(
            host.clone(),
            NAME,
            &home.control(),
            home.socket_dir(NAME),
            account.process_owner(),
            SUPERUSER,
        );
        if !server.data().exists() {
            let place = template::make(home, host, &RECIPE, entropy).await?;
            let target = server.data().to_owned();
            blocking(move || {
                files::commit(&place.join("data"), &target)?;
                files::remove_tree(&place)
            })
            .await?;
        }
        server.start_ready(READY_PATIENCE).await?;
        ensure_database(&server).await?;
        Ok(Self { server })
    }

    /// Connection parameters of the control cluster of `dir`, which another process runs.
    pub fn config_in(dir: &Path) -> Config {
        let mut config = Config::new();
        config
            .host_path(Home::sockets_of(dir, NAME))
            .port(5432)
            .user(SUPERUSER)
            .dbname(DATABASE);
        config
    }

    /// Connection parameters of the database `gantry`, as its owner, with peer authentication.
    pub fn config(&self) -> Config {
        let mut config = self.server.config(SUPERUSER, DATABASE);
        let socket = self.server.socket();
        config
            .host_path(socket.path().parent().unwrap_or(socket.path()))
            .port(5432);
        // The settings of sessions in tenant databases would hide the schema and time out
        // migrations.
        config.options("");
        config
    }

    /// Stops the cluster after a checkpoint.
    pub async fn stop(&self) -> Result<()> {
        self.server.stop(ShutdownMode::Fast, STOP_PATIENCE).await
    }

    /// Restarts the server whenever it exits, until `stopping` completes: at once, or with a pause
    /// if it crashes repeatedly. A start in progress is completed first.
    pub async fn supervise(&self, stopping: impl Future<Output = ()>) {
        tokio::pin!(stopping);
        let mut starts = 0_u32;
        let mut started = None::<Instant>;
        loop {
            tokio::select! {
                () = &mut stopping => return,
                () = self.ended() => {}
            }
            if started.is_none_or(|started| started.elapsed() > STEADY) {
                starts = 0;
            }
            let pause = BACKOFF.pause(starts);
            tracing::error!(
                pause_secs = pause.as_secs(),
                "the server of the control cluster is down; restarting it"
            );
            tokio::select! {
                () = &mut stopping => return,
                () = sleep(pause) => {}
            }
            (starts, started) = (starts + 1, Some(Instant::now()));
            // Not cancelled by a stop, which could miss a server that is being launched.
            if let Err(error) = self.server.start().await {
                tracing::error!(%error, "failed to start the server of the control cluster; retrying");
                continue;
            }
            tokio::select! {
                () = &mut stopping => return,
                ready = self.server.wait_ready(READY_PATIENCE) => match ready {
                    Ok(()) => tracing::info!("the server of the control cluster runs again"),
                    Err(error) => tracing::error!(%error, "the server of the control cluster was started but does not accept connections"),
                },
            }
        }
    }

    /// Returns when the server has exited, or at once if it does not run.
    async fn ended(&self) {
        let ended = async {
            match self.server.running().await? {
                Some(server) => server.ended().await.at("watching", self.server.data()),
                None => Ok(()),
            }
        };
        if let Err(error) = ended.await {
            tracing::warn!(%error, "cannot watch the server of the control cluster");
        }
    }
}

async fn ensure_database(server: &Server) -> Result<()> {
    let sql_error = |cause| ClusterError::Sql {
        doing: "creating the control database",
        cause,
    };
    let admin = server.connect(SUPERUSER, "postgres").await?;
    let found = admin
        .query_opt("select from pg_database where datname = $1", &[&DATABASE])
        .await
        .map_err(sql_error)?;
    if found.is_none() {
        admin
            .batch_execute(&format!("create database {DATABASE}"))
            .await
            .map_err(sql_error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_pause_doubles_up_to_maximum() {
        let pauses =
            [0, 1, 2, 3, 4, 5, 6, 7, u32::MAX].map(|starts| BACKOFF.pause(starts).as_secs());
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
