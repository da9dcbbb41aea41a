//! Options of database connections.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::sections;

/// Addresses and certificate for PostgreSQL clients.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::DATABASES.heading)]
pub struct DatabaseFlags {
    /// Address for PostgreSQL clients, for the databases of all projects. May be repeated. Default:
    /// 127.0.0.1:5432 and :6543, or other free ports, for `gantry dev`; disabled for `gantry
    /// serve`.
    #[arg(
        long,
        env = "GANTRY_DB_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub db_listen: Vec<SocketAddr>,

    /// The port of `--db-listen` on which connections are pooled by transaction. 0: on none.
    #[arg(
        long,
        env = "GANTRY_POOLER_PORT",
        default_value_t = 6543,
        value_name = "PORT"
    )]
    pub pooler_port: u16,

    /// Host name in connection strings. Default: `pooler.<domain>`.
    #[arg(long, env = "GANTRY_DB_HOST", value_name = "HOST")]
    pub db_host: Option<String>,

    /// Certificate chain (PEM) for database connections, valid for `db.<ref>.<domain>` and the host
    /// in connection strings. Reloaded when the file changes. Default: a local certificate
    /// authority for `gantry dev`; no TLS for `gantry serve`.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_CERT",
        requires = "db_tls_key",
        value_name = "FILE"
    )]
    pub db_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the database certificate.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_KEY",
        requires = "db_tls_cert",
        value_name = "FILE"
    )]
    pub db_tls_key: Option<PathBuf>,
}
