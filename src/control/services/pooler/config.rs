//! The settings of a pooler in effect, and its configuration file.

use std::path::Path;

use gantry_base::ids::ProjectId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::identity::{ROLE, USERS};
use crate::{
    control::{
        context::ControlContext,
        database_access,
        projects::sizes::ConnectionBudget,
        service_settings::{
            self, DEFAULT_POOL_SIZE, MAX_CLIENT_CONN, POOL_MODE, POOLER, QUERY_WAIT_TIMEOUT,
        },
        services::folder::StartedKit,
    },
    platform::error::Error,
};

/// Seconds until a server connection without use is closed.
const SERVER_IDLE_SECS: u32 = 60;
/// Seconds until a server connection is replaced.
const SERVER_LIFETIME_SECS: u32 = 3600;
/// Seconds between attempts to connect to a server that did not answer.
const SERVER_RETRY_SECS: u32 = 1;
/// Seconds that a login may take.
const LOGIN_SECS: u32 = 30;
/// Prepared statements that the pooler keeps for each server connection.
const PREPARED_STATEMENTS_MAX: u32 = 200;
/// Startup parameters that are ignored: drivers of Java send it always.
const IGNORED_PARAMETERS: &str = "extra_float_digits";

/// Assignment of server connections to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
pub enum PoolMode {
    /// A server connection serves transactions of several clients.
    Transaction,
    /// A server connection serves one client session.
    Session,
}

impl PoolMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Session => "session",
        }
    }
}

/// The settings of a project's pooler in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolerConfig {
    /// Assignment of server connections.
    pub pool_mode: PoolMode,
    /// Server connections of a role and database.
    pub default_pool_size: u32,
    /// Server connections of a database, and the largest value of `default_pool_size`.
    pub pool_max: u32,
    /// Clients.
    pub max_client_conn: u32,
    /// Largest value of `max_client_conn`.
    pub client_max: u32,
    /// Longest time that a client waits for a server connection, in seconds.
    pub query_wait_timeout: u32,
    /// Number of the last change of the settings.
    pub(super) generation: i64,
}

impl PoolerConfig {
    /// Startup parameters of clients that are ignored.
    pub const IGNORED_PARAMETERS: &str = IGNORED_PARAMETERS;
    /// Seconds until a server connection without use is closed.
    pub const SERVER_IDLE_SECS: u32 = SERVER_IDLE_SECS;
    /// Seconds until a server connection is replaced.
    pub const SERVER_LIFETIME_SECS: u32 = SERVER_LIFETIME_SECS;

    /// Returns the values of the file by name.
    fn values(&self) -> Vec<(&'static str, String)> {
        vec![
            ("pool_mode", self.pool_mode.name().to_owned()),
            ("default_pool_size", self.default_pool_size.to_string()),
            ("max_db_connections", self.pool_max.to_string()),
            ("max_client_conn", self.max_client_conn.to_string()),
            ("query_wait_timeout", self.query_wait_timeout.to_string()),
            ("server_idle_timeout", SERVER_IDLE_SECS.to_string()),
            ("server_lifetime", SERVER_LIFETIME_SECS.to_string()),
            ("server_login_retry", SERVER_RETRY_SECS.to_string()),
            ("client_login_timeout", LOGIN_SECS.to_string()),
            (
                "max_prepared_statements",
                PREPARED_STATEMENTS_MAX.to_string(),
            ),
            ("ignore_startup_parameters", IGNORED_PARAMETERS.to_owned()),
            ("auth_type", "scram-sha-256".to_owned()),
            ("auth_user", ROLE.to_owned()),
            ("auth_dbname", "postgres".to_owned()),
            (
                "auth_query",
                "select username, password from pgbouncer.get_auth($1)".to_owned(),
            ),
            ("admin_users", ROLE.to_owned()),
            ("unix_socket_mode", "0700".to_owned()),
            // No name is looked up.
            ("resolv_conf", "/dev/null".to_owned()),
            ("log_connections", "0".to_owned()),
            ("log_disconnections", "0".to_owned()),
            ("log_stats", "0".to_owned()),
        ]
    }

    /// Formats the file of a process with its socket in `folder`, for the server with its socket in
    /// `server`. It contains no secret.
    pub(super) fn file(&self, server: &Path, folder: &Path) -> String {
        let (server, folder) = (server.display(), folder.display());
        let mut text = format!(
            "[databases]\n* = host={server} port=5432\n\n[pgbouncer]\nlisten_port = 6543\n\
             unix_socket_dir = {folder}\nauth_file = {folder}/{USERS}\n"
        );
        for (name, value) in self.values() {
            text.extend([name, " = ", &value, "\n"]);
        }
        text
    }

    /// Returns the record of a process with this configuration.
    pub(in crate::control::services) fn started(&self, kit_version: &str) -> StartedKit {
        let mut digest = Sha256::new();
        for (name, value) in self.values() {
            digest.update(format!("{name}={value}\0"));
        }
        StartedKit {
            version: kit_version.to_owned(),
            settings: self.generation,
            digest: hex::encode(digest.finalize()),
            function: None,
            ports: Vec::new(),
        }
    }
}

/// Returns the configuration of a project's pooler: its settings, within the connections of its
/// compute size.
pub async fn config(context: &ControlContext, project: ProjectId) -> Result<PoolerConfig, Error> {
    let settings = service_settings::read(context, project, &POOLER).await?;
    let budget = database_access::connections(context, project).await?;
    let number = |name: &str| {
        let value = settings.value(name).as_u64();
        value.and_then(|value| u32::try_from(value).ok())
    };
    let pool = number(DEFAULT_POOL_SIZE);
    let clients = number(MAX_CLIENT_CONN);
    Ok(PoolerConfig {
        pool_mode: match settings.value(POOL_MODE).as_str() {
            Some("session") => PoolMode::Session,
            _ => PoolMode::Transaction,
        },
        default_pool_size: pool.map_or(budget.pool, |size| size.min(budget.pool)),
        pool_max: budget.pool,
        max_client_conn: clients.map_or(budget.pooled, |count| count.min(budget.pooled)),
        client_max: budget.pooled,
        query_wait_timeout: number(QUERY_WAIT_TIMEOUT).unwrap_or(ConnectionBudget::QUERY_WAIT_SECS),
        generation: settings.generation(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_one_socket_and_no_network() {
        let config = PoolerConfig {
            pool_mode: PoolMode::Transaction,
            default_pool_size: 15,
            pool_max: 15,
            max_client_conn: 200,
            client_max: 200,
            query_wait_timeout: 120,
            generation: 1,
        };
        let text = config.file(Path::new("/run/x"), Path::new("/run/x.pooler/i"));
        for line in [
            "* = host=/run/x port=5432",
            "unix_socket_dir = /run/x.pooler/i",
            "auth_file = /run/x.pooler/i/users.txt",
            "auth_type = scram-sha-256",
            "pool_mode = transaction",
            "max_client_conn = 200",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("listen_addr"), "{text}");
        let other = PoolerConfig {
            max_client_conn: 201,
            ..config
        };
        assert_ne!(config.started("1"), other.started("1"));
    }
}
