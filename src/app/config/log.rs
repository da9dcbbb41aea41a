//! Options of the log of this process.

use clap::Args;

use super::sections;
use crate::platform::telemetry::LogFormat;

/// Log of this process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::LOG.heading)]
pub struct ProcessLogFlags {
    /// Log filter: `error`, `warn`, `info`, `debug`, or a directive such as
    /// `gantry::control=debug`.
    #[arg(
        long,
        env = "GANTRY_LOG",
        default_value = "warn,gantry=info",
        value_name = "FILTER"
    )]
    pub log: String,

    /// Format of log lines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}
