//! Uses of a recovered cluster beside its project: as the cluster of another project, and as the
//! source of single tables.
//!
//! The server runs in quarantine in both cases: without libraries, workers and network.

use std::collections::BTreeMap;

use secrecy::SecretString;
use tokio_postgres::Client;

use super::{
    local_driver::LocalDriver, online_copy::IsolationStep, platform_roles::OWNER,
    recovery::UnfinishedCluster, server::process::Server,
};
use crate::{
    clusters::{
        home,
        online_copy::{self, CopyProgress, Isolation},
        platform_roles, recovery,
        shutdown::ShutdownMode,
    },
    error::Result,
};

/// Settings of sessions that read tables. They override those that the tenant attached to roles and
/// databases. Row-level security would leave rows out; with these settings it is an error instead.
const READER_OPTIONS: &str = "-c search_path=pg_catalog -c row_security=off \
    -c default_transaction_read_only=on -c statement_timeout=0 -c lock_timeout=10s \
    -c local_preload_libraries= -c client_encoding=UTF8 \
    -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex";

/// The running server of a recovered cluster in the making. Stop it with [`Self::stop`] before the
/// cluster is dropped.
#[derive(Debug)]
pub struct RecoveredServer(Server);

impl RecoveredServer {
    /// Opens a session that reads with the rights of the project's owner.
    pub async fn reader(&self) -> Result<Client> {
        let mut config = self.0.config(OWNER, "postgres");
        let (_, setting) = platform_roles::peer_login(OWNER);
        let role = setting.map_or_else(String::new, |(name, value)| format!(" -c {name}={value}"));
        config.options(format!("{READER_OPTIONS}{role}"));
        self.0.connect_with(config).await
    }

    /// Stops the server at once.
    pub async fn stop(&self) -> Result<()> {
        self.0
            .stop(ShutdownMode::Immediate, recovery::STOP_PATIENCE)
            .await
    }
}

impl LocalDriver {
    /// Starts a recovered cluster in the making, in quarantine. `settings` are those that it needs
    /// to start.
    pub async fn serve_recovered(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
    ) -> Result<RecoveredServer> {
        let major = unfinished.cluster.major;
        let text = recovery::quarantine_settings(major, settings);
        // The recovery removed the file; it is not overwritten, so no link is followed.
        unfinished.write_file(home::OVERRIDES, text.as_bytes())?;
        let (name, place) = (&unfinished.name, &unfinished.place);
        let server = self.quarantined(major, name, place, unfinished.owner())?;
        let served = RecoveredServer(server);
        let started = async { served.0.start_ready(recovery::REPLAY_PATIENCE).await };
        if let Err(error) = started.await {
            // Errors are ignored: the next start ends remaining processes.
            let _ = served.stop().await;
            return Err(error);
        }
        Ok(served)
    }

    /// Isolates a recovered cluster from its project as a copy of it, so that it can become that of
    /// another project: scheduled jobs are deactivated; connections to the outside, sessions,
    /// passwords and secrets are removed.
    ///
    /// Errors: [`ClusterError::Isolation`](crate::error::ClusterError::Isolation).
    pub async fn isolate_recovered(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
        secrets: &[(SecretString, SecretString)],
    ) -> Result<Vec<IsolationStep>> {
        let served = self.serve_recovered(unfinished, settings).await?;
        let progress = CopyProgress::default();
        let isolation = Isolation {
            marker: Some(""),
            secrets,
            masking: &[],
            schema_only: false,
            progress: &progress,
        };
        let isolated = online_copy::isolate(&served.0, &isolation).await;
        let mode = if isolated.is_ok() {
            ShutdownMode::Fast
        } else {
            ShutdownMode::Immediate
        };
        let stopped = served.0.stop(mode, recovery::STOP_PATIENCE).await;
        let steps = isolated?;
        stopped?;
        recovery::complete(&unfinished.place, self.entropy()).await?;
        Ok(steps)
    }
}
