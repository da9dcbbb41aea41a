//! Clients of services, as they are recognised when a process ends under their requests.

use std::net::IpAddr;

use gantry_base::net::address_block::address_block;
use ipnet::IpNet;
use sha2::{Digest, Sha256};

/// A client that can end processes by its requests: its network, and its token if that was
/// verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceCaller {
    /// An IPv4 address or an IPv6 /64 network.
    pub(crate) network: IpNet,
    /// Beginning of the SHA-256 of the token.
    pub(crate) token: Option<u64>,
}

impl ServiceCaller {
    /// A client without a token of its own.
    pub fn of_address(address: IpAddr) -> Self {
        Self {
            network: address_block(address),
            token: None,
        }
    }

    /// Adds a verified token.
    #[must_use]
    pub(crate) fn with_token(self, token: &str) -> Self {
        let digest = Sha256::digest(token.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self {
            token: Some(u64::from_be_bytes(first)),
            ..self
        }
    }
}
