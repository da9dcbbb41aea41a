//! Sessions of the platform in a server.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

use super::process::Server;
use crate::{
    clusters::{
        home, platform_roles, socket::ServerSocket, superuser::sessions::SUPERUSER_OPTIONS,
    },
    error::{ClusterError, Result},
};

/// The time limit of one connection attempt.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// A setting of sessions, which overrides that of their role and database. PostgreSQL lets each
/// role and the owner of a database name libraries here, and a session that does not find one of
/// them ends.
pub const NO_LIBRARIES: (&str, &str) = ("local_preload_libraries", "");

impl Server {
    /// Checks that the superuser can connect: to database `postgres` or, if its owner closed that,
    /// to another database, from which it can be opened again.
    pub(super) async fn accepts(&self) -> Result<()> {
        match self.connect(self.superuser, "postgres").await {
            Err(error) if error.is_closed_database() => self
                .connect(self.superuser, platform_roles::REPAIR_DATABASE)
                .await
                .map(drop),
            answer => answer.map(drop),
        }
    }

    /// The server's Unix socket.
    pub(in crate::clusters) fn socket(&self) -> ServerSocket {
        ServerSocket::of_server(
            self.sockets.join(home::SOCKET),
            self.name(),
            self.processes.data.clone(),
        )
    }

    /// Returns the parameters of a session as `role` with peer authentication. They contain no
    /// server: sessions use a connection of [`ServerSocket::connect`].
    pub fn config(&self, role: &str, database: &str) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        let (user, setting) = platform_roles::peer_login(role);
        config
            .user(user)
            .dbname(database)
            .application_name("gantry");
        if role == self.superuser {
            config.options(SUPERUSER_OPTIONS);
        } else if let Some((name, value)) = setting {
            config.options(format!("-c {name}={value} -c {}=", NO_LIBRARIES.0));
        } else {
            config.options(format!("-c {}=", NO_LIBRARIES.0));
        }
        config
    }

    /// Opens a session, which ends when the client is dropped.
    pub async fn connect(&self, role: &str, database: &str) -> Result<Client> {
        self.connect_with(self.config(role, database)).await
    }

    /// Opens a session with these parameters.
    pub(in crate::clusters) async fn connect_with(
        &self,
        config: tokio_postgres::Config,
    ) -> Result<Client> {
        let socket = self.socket();
        let attempt = async {
            let stream = socket
                .connect()
                .await
                .map_err(|cause| ClusterError::Unreached {
                    name: self.name().to_owned(),
                    cause,
                })?;
            config
                .connect_raw(stream, NoTls)
                .await
                .map_err(|cause| ClusterError::Sql {
                    doing: "connecting to a cluster",
                    cause,
                })
        };
        let attempt = timeout(CONNECT_PATIENCE, attempt).await;
        let (client, connection) =
            attempt.map_err(|_| ClusterError::ConnectTimeout(self.name().to_owned()))??;
        tokio::spawn(connection);
        Ok(client)
    }
}
