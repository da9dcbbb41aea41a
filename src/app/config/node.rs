//! Options of a node among others.

use std::net::SocketAddr;

use clap::Args;

use super::{ConfigError, sections};
use crate::control::{fleet::state::NodeSettings, projects::regions::Region};

/// Longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// This machine among others that share the control database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::NODE.heading)]
pub struct NodeOptions {
    /// Address for other nodes, which pass on requests about the projects of this one. Needs
    /// --database-url. The connections use mutual TLS. Disabled by default.
    #[arg(long, env = "GANTRY_FLEET_LISTEN", value_name = "ADDRESS:PORT")]
    pub fleet_listen: Option<SocketAddr>,

    /// Host and port by which other nodes reach --fleet-listen. Default: its address.
    #[arg(
        long,
        env = "GANTRY_FLEET_ADDRESS",
        requires = "fleet_listen",
        value_name = "HOST:PORT"
    )]
    pub fleet_address: Option<String>,

    /// Name of this node, unique among the nodes. Default: the host name.
    #[arg(long, env = "GANTRY_NODE_NAME", value_parser = name, value_name = "NAME")]
    pub node_name: Option<String>,

    /// Region of this node, such as `eu-central-1`: it takes new projects of this region only.
    /// Default: projects of every region.
    #[arg(long, env = "GANTRY_NODE_REGION", value_parser = region, value_name = "REGION")]
    pub node_region: Option<Region>,
}

impl NodeOptions {
    /// Checks combinations of options that clap cannot check.
    pub(super) fn check(&self, has_database_url: bool) -> Result<(), ConfigError> {
        let Some(listen) = self.fleet_listen else {
            return Ok(());
        };
        if !has_database_url {
            return Err(ConfigError::NothingSharedWithNodes);
        }
        if listen.ip().is_unspecified() && self.fleet_address.is_none() {
            return Err(ConfigError::NoFleetAddress(listen));
        }
        Ok(())
    }

    /// Returns the settings of the node. `bound` is the address of the fleet port, with the actual
    /// port where the configuration says port 0.
    pub fn settings(&self, bound: Option<SocketAddr>) -> NodeSettings {
        let bound = bound.map(|address| address.to_string());
        NodeSettings {
            name: self.node_name.clone(),
            region: self.node_region,
            address: self
                .fleet_address
                .clone()
                .filter(|_| bound.is_some())
                .or(bound),
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_valid = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain);
    is_valid
        .then(|| text.to_owned())
        .ok_or_else(|| format!("use 1 to {NAME_BYTES_MAX} letters, digits, hyphens and dots"))
}

fn region(text: &str) -> Result<Region, String> {
    Region::of_code(text).ok_or_else(|| {
        let codes: Vec<_> = Region::ALL.iter().map(|region| region.code()).collect();
        format!("use one of {}", codes.join(", "))
    })
}
