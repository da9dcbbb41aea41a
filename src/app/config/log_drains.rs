//! Options of log drains.

use clap::Args;
use ipnet::IpNet;

use super::sections;

/// Networks and destinations of log drains.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::LOG_DRAINS.heading)]
pub struct LogDrainFlags {
    /// Networks that log drains may connect to although their addresses are not public, such as
    /// `10.20.0.0/16`. Comma separated. Default: none, because customers choose the destinations.
    #[arg(
        long,
        env = "GANTRY_LOG_DRAIN_NETWORKS",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub log_drain_networks: Vec<IpNet>,

    /// URL that log drains of type `datadog` send to, instead of Datadog. `{region}` is replaced by
    /// the region of the drain.
    #[arg(long, env = "GANTRY_LOG_DRAIN_DATADOG_URL", value_name = "URL")]
    pub log_drain_datadog_url: Option<String>,
}
