//! Options of log lines.

use std::path::PathBuf;

use clap::Args;

use super::sections;
use crate::platform::object_store;

/// Where log lines of projects are stored, and how long.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::LOGS.heading)]
pub struct LogFlags {
    /// Folder for log lines of projects. Default: `logs` in the data folder.
    #[arg(long, env = "GANTRY_LOGS_FOLDER", value_name = "DIR")]
    pub logs_folder: Option<PathBuf>,

    /// Retention of log lines, in days.
    #[arg(long, env = "GANTRY_LOGS_RETENTION_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3650), value_name = "DAYS")]
    pub logs_retention_days: u16,

    /// Object store for files of log lines, and of backups.
    #[command(flatten, next_help_heading = sections::LOGS.heading)]
    pub store: object_store::Flags,
}
