//! Options of requests to other servers.

use clap::Args;
use ipnet::IpNet;

use super::sections;

/// Networks and destinations of requests to other servers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::OUTBOUND.heading)]
pub struct OutboundFlags {
    /// Networks to which requests may go although their addresses are not public or are those of
    /// this machine, such as `10.20.0.0/16`: requests of log drains, webhooks, databases and
    /// others. Comma separated. Default: none, because customers choose the destinations.
    #[arg(
        long,
        alias = "log-drain-networks",
        env = "GANTRY_OUTBOUND_NETWORKS",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub outbound_networks: Vec<IpNet>,

    /// Networks to which no request of customers may go, also if they are public or permitted.
    /// Comma separated. Default: none.
    #[arg(
        long,
        env = "GANTRY_OUTBOUND_DENIED_NETWORKS",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub outbound_denied_networks: Vec<IpNet>,

    /// URL that log drains of type `datadog` send to, instead of Datadog. `{region}` is replaced by
    /// the region of the drain.
    #[arg(long, env = "GANTRY_LOG_DRAIN_DATADOG_URL", value_name = "URL")]
    pub log_drain_datadog_url: Option<String>,
}
