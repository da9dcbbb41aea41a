//! Logins of the superuser. Every session sets its `search_path` at the login.

use gantry_base::ids::ProjectRef;
use tokio::net::UnixStream;
use tokio_postgres::NoTls;

use super::session::{SqlError, SuperuserSession};
use crate::{
    clusters::{local_driver::LocalDriver, platform_roles, server::process::Server},
    error::Result,
};

/// The database of a project.
const DATABASE: &str = "postgres";
/// Settings of superuser sessions. They override settings that a tenant attached to its database.
pub(in crate::clusters) const SUPERUSER_OPTIONS: &str = "-c search_path=pg_catalog \
    -c default_transaction_read_only=off -c statement_timeout=30s -c lock_timeout=5s \
    -c local_preload_libraries=";
/// Settings of superuser sessions in quarantine: no trigger fires and no policy applies, and no
/// statement is logged.
pub(in crate::clusters) const QUARANTINE_OPTIONS: &str = "-c search_path=pg_catalog \
    -c default_transaction_read_only=off -c statement_timeout=10min -c lock_timeout=10s \
    -c session_replication_role=replica -c row_security=off -c session_preload_libraries= \
    -c local_preload_libraries= -c log_statement=none -c log_min_duration_statement=-1 \
    -c log_min_error_statement=panic";

impl Server {
    /// Opens a superuser session in database `postgres`.
    pub(in crate::clusters) async fn superuser(&self) -> Result<SuperuserSession> {
        self.superuser_in(DATABASE).await
    }

    /// Opens a superuser session in another database.
    pub(in crate::clusters) async fn superuser_in(
        &self,
        database: &str,
    ) -> Result<SuperuserSession> {
        self.superuser_with(database, SUPERUSER_OPTIONS).await
    }

    /// Opens a superuser session in a database that a tenant cannot close. Must be short: meanwhile
    /// no database can be created from that template.
    pub(in crate::clusters) async fn repairer(&self) -> Result<SuperuserSession> {
        self.superuser_in(platform_roles::REPAIR_DATABASE).await
    }

    /// Opens a superuser session in a server in quarantine.
    pub(in crate::clusters) async fn isolator(&self, database: &str) -> Result<SuperuserSession> {
        let mut options = QUARANTINE_OPTIONS.to_owned();
        if self.major() >= 17 {
            options.push_str(" -c event_triggers=off");
        }
        self.superuser_with(database, &options).await
    }

    async fn superuser_with(&self, database: &str, options: &str) -> Result<SuperuserSession> {
        let mut config = self.config(platform_roles::SUPERUSER, database);
        config.options(options);
        self.connect_with(config).await.map(SuperuserSession)
    }
}

impl SuperuserSession {
    /// Opens a session over a connection to the socket of a server.
    pub async fn over(stream: UnixStream, database: &str) -> std::result::Result<Self, SqlError> {
        let mut config = tokio_postgres::Config::new();
        config
            .user(platform_roles::SUPERUSER)
            .dbname(database)
            .application_name("gantry")
            .options(SUPERUSER_OPTIONS);
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self(client))
    }
}

impl LocalDriver {
    /// Opens a superuser session in database `postgres`, with settings that override those of the
    /// tenant. If the tenant closed the database, it is opened again first. The connection ends
    /// when the client is dropped.
    pub async fn superuser_session(&self, project: &ProjectRef) -> Result<SuperuserSession> {
        let server = self.existing(project)?;
        match server.superuser().await {
            Err(error) if error.is_closed_database() => {
                tracing::warn!(%project, %error, "project database does not accept connections; repairing");
                self.repair_roles(project).await?;
                server.superuser().await
            }
            answer => answer,
        }
    }

    /// Opens a superuser session in another database.
    pub async fn superuser_session_in(
        &self,
        project: &ProjectRef,
        database: &str,
    ) -> Result<SuperuserSession> {
        self.existing(project)?.superuser_in(database).await
    }
}
