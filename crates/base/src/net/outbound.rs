//! The policy for addresses that customers choose. Addresses that are not public, and those of this
//! machine, are refused, unless the operator permits their network (decision 0185).
//!
//! The address is checked after the name was resolved, for each connection, so that a name cannot
//! first resolve to a public address and later to a private one.

use std::{
    error::Error as StdError,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use tokio::{net::TcpStream, time::timeout};
use url::Url;

use super::public_address::{embedded_v4, is_public};

/// Timeout for resolving a name, and for each connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The networks to which connections are permitted besides public addresses, and those to which
/// they are refused.
#[derive(Debug, Clone, Default)]
pub struct OutboundPolicy {
    permitted: Arc<[IpNet]>,
    denied: Arc<[IpNet]>,
}

/// A refused address.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0} is not a public address of another machine, and the operator does not permit it")]
pub struct RefusedAddress(pub String);

impl OutboundPolicy {
    /// Returns the policy that permits public addresses and these networks.
    pub fn new(permitted: impl Into<Arc<[IpNet]>>) -> Self {
        Self {
            permitted: permitted.into(),
            denied: Arc::default(),
        }
    }

    /// Refuses connections to these networks, also to public and permitted addresses.
    #[must_use]
    pub fn denying(self, denied: impl Into<Arc<[IpNet]>>) -> Self {
        let denied = denied.into();
        Self { denied, ..self }
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
        let embedded = embedded_v4(address).map(IpAddr::V4);
        let address = address.to_canonical();
        let is_in = |networks: &[IpNet], address| networks.iter().any(|net| net.contains(&address));
        // A gateway may deliver to the address that is embedded.
        let mut reached = [Some(address), embedded].into_iter().flatten();
        if reached.any(|address| is_in(&self.denied, address)) {
            return false;
        }
        is_in(&self.permitted, address) || is_public(address) && !is_own(address)
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

/// Returns whether packets to an address stay on this machine. The kernel answers from its routes:
/// it chooses the address itself as the source. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
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
            "2001:0:808:808::f7f7:f7f7",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "100::1",
            "5f00::1",
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

    #[test]
    fn denied_networks_precede_others_and_embedded_addresses_count() {
        let networks = |text: &str| -> Vec<IpNet> {
            let networks = text.split_whitespace();
            networks.map(|net| net.parse().unwrap()).collect()
        };
        let policy = OutboundPolicy::new(networks("10.0.0.0/8 fd00::/8"))
            .denying(networks("10.9.0.0/16 8.8.8.0/24 2606:4700::/32"));
        for (address, expected) in [
            ("10.1.0.1", true),
            ("::ffff:10.1.0.1", true),
            ("fd00::1", true),
            ("10.9.0.1", false),
            ("::ffff:10.9.0.1", false),
            ("1.1.1.1", true),
            ("8.8.8.8", false),
            ("64:ff9b::8.8.8.8", false),
            ("2002:808:808::1", false),
            ("2606:4700::1111", false),
            // A permitted network does not extend to gateways.
            ("64:ff9b::10.1.0.1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(policy.permits(address), expected, "{address}");
        }
    }

    #[test]
    fn own_address_is_recognised_by_its_route() {
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(OutboundPolicy::unrestricted().permits(Ipv4Addr::LOCALHOST.into()));
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
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://①②⑦.0.0.1/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
        ] {
            let url: Url = spelling.parse().unwrap();
            assert!(refused.check_literal(&url).is_err(), "{spelling}");
        }
        assert!(permitted.resolve("localhost", 1).await.is_ok());
    }
}
