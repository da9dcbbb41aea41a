//! Option of the hold of removed projects.

use clap::Args;

use super::sections;

/// Days for which removed projects can be restored.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::PROJECTS.heading)]
pub struct HoldOptions {
    /// Days for which a deleted project can be restored with `POST /v1/projects/{ref}/restore`.
    /// Its data, its ref and its keys are kept meanwhile. With 0 they are deleted at once.
    #[arg(long, env = "GANTRY_DELETED_PROJECT_DAYS", default_value_t = 7, value_parser = clap::value_parser!(u16).range(0..=365), value_name = "DAYS")]
    pub deleted_project_days: u16,
}
