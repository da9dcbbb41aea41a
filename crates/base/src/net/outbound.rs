//! Connections to addresses that customers choose. Addresses that are not public are refused,
//! unless the operator permits their network.
//!
//! The address is checked after the name was resolved, for each connection, so that a name cannot
//! first resolve to a public address and later to a private one.

use std::{
    error::Error as StdError,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use tokio::{net::TcpStream, time::timeout};
use url::Url;

/// Timeout for resolving a name, and for each connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The networks to which connections are permitted besides public addresses.
#[derive(Debug, Clone, Default)]
pub struct OutboundPolicy {
    permitted: Arc<[IpNet]>,
}

/// A refused address.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0} is not a public address, and the operator does not permit it")]
pub struct RefusedAddress(pub String);

impl OutboundPolicy {
    /// Returns the policy that permits public addresses and these networks.
    pub fn new(permitted: impl Into<Arc<[IpNet]>>) -> Self {
        Self {
            permitted: permitted.into(),
        }
    }

    /// Returns the policy that permits all addresses, for destinations that the operator chooses.
    pub fn unrestricted() -> Self {
        let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let networks: Vec<_> = all
            .into_iter()
            .filter_map(|address: IpAddr| IpNet::new(address, 0).ok())
            .collect();
        Self::new(networks)
    }

    /// Returns whether connections to an address are permitted.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.permitted.iter().any(|net| net.contains(&address))
    }

    /// Rejects a URL with an IP address that is not permitted. Names are checked by
    /// connections.
    pub fn check_literal(&self, url: &Url) -> Result<(), RefusedAddress> {
        self.check_host(url.host_str().unwrap_or_default())
    }

    /// Rejects a host that is an IP address and not permitted.
    pub(super) fn check_host(&self, host: &str) -> Result<(), RefusedAddress> {
        match without_brackets(host).parse() {
            Ok(address) if !self.permits(address) => Err(RefusedAddress(address.to_string())),
            _ => Ok(()),
        }
    }

    /// Returns the permitted addresses of a name or a textual address. Fails with
    /// [`RefusedAddress`] inside if there are others only.
    pub async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = without_brackets(host);
        let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((host, port)))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let permitted: Vec<_> = found.filter(|address| self.permits(address.ip())).collect();
        if permitted.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                RefusedAddress(host.to_owned()),
            ));
        }
        Ok(permitted)
    }

    /// Connects to the first permitted address that accepts.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses = self.resolve(host, port).await?;
        timeout(CONNECT_TIMEOUT, TcpStream::connect(addresses.as_slice()))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Returns a host without the brackets of an IPv6 address.
fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Returns the refused address among the sources of an error.
pub fn refusal<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a RefusedAddress> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error returns the source of its inner error instead of the inner error.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// Returns whether an address is assigned to the public internet (IANA special-purpose registries).
/// Addresses that embed an IPv4 address are judged by it.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        // This network, private, loopback, multicast and reserved.
        (0 | 10 | 127 | 224.., _, _)
            // Shared between a provider and its customers.
            | (100, 64..=127, _)
            // Link-local, with the metadata services of clouds.
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments, documentation, the relays of 6to4, and benchmarks.
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 51, 100)
            | (203, 0, 113)
            | (198, 18 | 19, _)
    );
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // NAT64 and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, benchmarks and other protocol assignments, and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast addresses.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for address in [
            "8.8.8.8",
            "100.63.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "::ffff:8.8.8.8",
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert!(OutboundPolicy::default().permits(address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.170",
            "192.0.2.1",
            "192.168.0.1",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert!(!OutboundPolicy::default().permits(address), "{address}");
        }
    }

    #[tokio::test]
    async fn private_address_is_refused_unless_its_network_is_permitted() {
        let refused = OutboundPolicy::default();
        let permitted = OutboundPolicy::new(["127.0.0.0/8".parse().unwrap()]);
        assert!(permitted.permits("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!permitted.permits("10.0.0.1".parse().unwrap()));
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            let error = refused.resolve(host, 1).await.unwrap_err();
            assert!(refusal(&error).is_some(), "{host}: {error}");
        }
        let url: Url = "http://127.0.0.1:9/".parse().unwrap();
        assert!(refused.check_literal(&url).is_err() && permitted.check_literal(&url).is_ok());
        // Spellings that a URL parser converts to the address.
        for spelling in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::ffff:7f00:1]/",
        ] {
            let url: Url = spelling.parse().unwrap();
            assert!(refused.check_literal(&url).is_err(), "{spelling}");
        }
        assert!(permitted.resolve("localhost", 1).await.is_ok());
    }
}
