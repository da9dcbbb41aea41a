//! Options of the services of projects.

use std::path::PathBuf;

use clap::Args;

use super::sections;
use crate::{control::services::functions::egress::EgressPorts, proxy::service_proxy::upstreams};

/// Programs, upstreams and network access of services.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::SERVICES.heading)]
pub struct ServiceFlags {
    /// Folder with programs for the services of projects, as `SERVICE/VERSION/…`. They take
    /// precedence over those of `gantry service install`. A service with `--upstream` or `gantry
    /// upstream` is not started.
    #[arg(long, env = "GANTRY_SERVICES_DIR", value_name = "DIR")]
    pub services_dir: Option<PathBuf>,

    /// Upstream of a service: `rest`, `auth`, `storage`, `realtime` or `functions`, and an
    /// `http://` URL in which `{ref}` is replaced by the project's ref. May be repeated. `gantry
    /// upstream` overrides it for one project.
    #[arg(
        long,
        env = "GANTRY_UPSTREAM",
        value_delimiter = ',',
        value_name = "SERVICE=URL"
    )]
    pub upstream: Vec<upstreams::ServiceUpstream>,

    /// TCP ports that Edge Functions may connect to on other machines, or `none`: functions then
    /// reach only the services of their own project.
    #[arg(
        long,
        env = "GANTRY_FUNCTIONS_EGRESS_PORTS",
        default_value_t = EgressPorts::default(),
        value_name = "PORTS"
    )]
    pub functions_egress_ports: EgressPorts,
}
