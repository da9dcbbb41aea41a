//! Options of the server: one clap struct, from which flags, environment variables, help texts,
//! keys of the configuration file with its example and schema, and
//! `docs/reference/configuration.md` derive.

mod acme;
mod api;
mod backups;
mod branches;
mod control;
mod databases;
mod edge;
mod example;
mod extensions;
pub mod file;
mod hold;
mod log;
mod logs;
mod node;
mod outbound;
mod project_limits;
mod projects;
mod rate_limits;
mod reference;
pub mod sections;
mod services;
pub mod setting;
mod sign_in;
mod underscore_headers;
mod validation;

use std::path::PathBuf;

use clap::Args;

pub use acme::AcmeFlags;
pub use api::ApiFlags;
pub use backups::{BackupFlags, BackupPlaceFlags};
pub use control::ControlOptions;
pub use databases::DatabaseFlags;
pub use edge::EdgeFlags;
pub use example::{example, first_file, schema};
pub use extensions::{ExtensionOptions, ExtensionsFolder};
pub use log::ProcessLogFlags;
pub use logs::LogFlags;
pub use node::NodeOptions;
pub use outbound::OutboundFlags;
pub use project_limits::ProjectLimitFlags;
pub use projects::ProjectFlags;
pub use rate_limits::RateLimitFlags;
pub use reference::reference;
pub use services::ServiceFlags;
pub use sign_in::SignInFlags;
pub use underscore_headers::UnderscoreHeaders;
pub use validation::ConfigError;

/// Options of `gantry dev` and `gantry serve`.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Location of the data and the control database.
    #[command(flatten)]
    pub control: ControlOptions,

    /// File with the key that encrypts secrets which are shown again, such as API keys: 64 hex
    /// digits. All servers of a control database need the same key. Default: `sealing-key` in the
    /// data folder, created on first use.
    #[arg(
        long,
        env = "GANTRY_SEALING_KEY",
        help_heading = sections::DATA.heading,
        value_name = "FILE"
    )]
    pub sealing_key: Option<PathBuf>,

    /// Addresses and certificate of the API.
    #[command(flatten)]
    pub api: ApiFlags,

    /// OpenID Connect provider for signing in.
    #[command(flatten)]
    pub sign_in: SignInFlags,

    /// Store of the rate-limit counters.
    #[command(flatten)]
    pub rate_limits: RateLimitFlags,

    /// Addresses and certificate for PostgreSQL clients.
    #[command(flatten)]
    pub databases: DatabaseFlags,

    /// Addresses, certificate and rules of the proxy in front of services.
    #[command(flatten)]
    pub edge: EdgeFlags,

    /// Programs, upstreams and network access of services.
    #[command(flatten)]
    pub services: ServiceFlags,

    /// Certificate authority and challenges for custom hostnames.
    #[command(flatten)]
    pub acme: AcmeFlags,

    /// Servers and limits of projects.
    #[command(flatten)]
    pub projects: ProjectFlags,

    /// Limits of branches.
    #[command(flatten)]
    pub branches: branches::BranchFlags,

    /// Backups.
    #[command(flatten)]
    pub backups: BackupFlags,

    /// Log lines.
    #[command(flatten)]
    pub logs: LogFlags,

    /// Networks and destinations of requests to other servers.
    #[command(flatten)]
    pub outbound: OutboundFlags,

    /// This machine among others.
    #[command(flatten)]
    pub node: NodeOptions,

    /// Log of this process.
    #[command(flatten)]
    pub process_log: ProcessLogFlags,
}
