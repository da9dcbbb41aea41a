//! Options of projects.

use std::path::PathBuf;

use clap::Args;

use super::{ExtensionOptions, ProjectLimitFlags, hold, sections};
use crate::control::projects::new_table_grants::NewTableGrants;

/// Servers and limits of projects.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::PROJECTS.heading)]
pub struct ProjectFlags {
    /// Domain of the projects: a database is `db.<ref>.<domain>`.
    #[arg(
        long,
        env = "GANTRY_PROJECT_DOMAIN",
        default_value = "localhost",
        value_name = "DOMAIN"
    )]
    pub project_domain: String,

    /// Limits of projects.
    #[command(flatten)]
    pub project_limits: ProjectLimitFlags,

    /// Minutes without use after which a project's server is stopped. The next connection starts it
    /// again. Default: never.
    #[arg(long, env = "GANTRY_IDLE_PAUSE_AFTER", value_parser = clap::value_parser!(u64).range(1..), value_name = "MINUTES")]
    pub idle_pause_after: Option<u64>,

    /// Hold of deleted projects.
    #[command(flatten)]
    pub hold: hold::HoldOptions,

    /// Grants to `anon`, `authenticated` and `service_role` on objects that a project's owner
    /// creates in `public`: `none`, or `api` for all privileges. A project can choose otherwise
    /// when it is created.
    #[arg(long, env = "GANTRY_NEW_TABLE_GRANTS", value_enum, default_value_t = NewTableGrants::None, value_name = "GRANTS")]
    pub new_table_grants: NewTableGrants,

    /// Number of warm clusters with files prepared for new projects. About 25 MB of disk each.
    #[arg(long, env = "GANTRY_WARM_CLUSTERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub warm_clusters: u16,

    /// Number of warm clusters with a running server. About 10 MB of memory each. Default: 1 for
    /// `gantry dev`, 0 for `gantry serve`.
    #[arg(long, env = "GANTRY_SPARE_CLUSTERS", value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub spare_clusters: Option<u16>,

    /// Offer PostgreSQL 15 to new projects. There, a role with CREATEROLE can grant itself roles
    /// that write files and run programs, so only the sandbox separates projects, and owners cannot
    /// create roles. Existing projects on 15 keep running without it.
    #[arg(long, env = "GANTRY_ALLOW_POSTGRES_15")]
    pub allow_postgres_15: bool,

    /// Further extensions.
    #[command(flatten)]
    pub extensions: ExtensionOptions,

    /// First numeric user id of project clusters when Gantry runs as root; one per project. Below
    /// 100000, processes are neither counted nor stopped by user id, because the ids may belong to
    /// other accounts.
    #[arg(
        long,
        env = "GANTRY_PROJECT_UID_BASE",
        default_value_t = 700_000,
        value_name = "UID"
    )]
    pub project_uid_base: u32,

    /// Existing control group below which those of projects are created, such as `/gantry.slice`,
    /// with the controllers `memory` and `pids`. Default: that of Gantry.
    #[arg(long, env = "GANTRY_CGROUP_PARENT", value_name = "PATH")]
    pub cgroup_parent: Option<PathBuf>,

    /// Run project clusters without the Landlock sandbox. Only for kernels that lack it.
    #[arg(long, env = "GANTRY_UNSAFE_NO_SANDBOX")]
    pub unsafe_no_sandbox: bool,
}
