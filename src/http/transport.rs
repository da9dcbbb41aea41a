//! Where a request really comes from, and whether it came over HTTPS.

use std::net::{IpAddr, Ipv4Addr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::error::{Denial, Error};

/// How the listener speaks, and whose forwarding headers it believes.
#[derive(Debug, Clone, Default)]
pub struct Transport {
    /// The listener terminates TLS itself.
    pub tls: bool,
    /// Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.
    pub trusted_proxies: Vec<IpNet>,
}

/// The other end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The client's address, behind any trusted proxies.
    pub address: IpAddr,
    /// Whether the client's own hop was HTTPS, or never left this machine.
    pub secure: bool,
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

impl Transport {
    /// Who sent a request that reached us from `socket`.
    pub fn peer(&self, socket: IpAddr, headers: &HeaderMap) -> Peer {
        let socket = socket.to_canonical();
        if !self.trusts(socket) {
            return Peer { address: socket, secure: self.tls || socket.is_loopback() };
        }
        let https = headers.get(FORWARDED_PROTO).is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
        Peer { address: self.client_behind(socket, headers), secure: self.tls || https }
    }

    /// Refuses a request that crossed a network in the clear (specification §5.1).
    pub fn require_secure(peer: Peer) -> Result<(), Error> {
        if peer.secure { Ok(()) } else { Err(Error::Forbidden(Denial::InsecureTransport)) }
    }

    /// Right-most address of `X-Forwarded-For` that is not itself a trusted proxy; stops at the first one it cannot read.
    fn client_behind(&self, socket: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut last = socket;
        let hops = headers.get_all(FORWARDED_FOR).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
        for hop in hops.collect::<Vec<_>>().into_iter().rev() {
            let Some(address) = parse_hop(hop.trim()) else { return last };
            if !self.trusts(address) {
                return address;
            }
            last = address;
        }
        last
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|net| net.contains(&address))
    }
}

/// An address as proxies write it: bare, or with a port, or an IPv6 one in brackets.
fn parse_hop(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(hop, |(inside, _)| inside);
    let address =
        bare.parse().ok().or_else(|| bare.rsplit_once(':').and_then(|(host, _)| host.parse::<Ipv4Addr>().ok()).map(IpAddr::V4))?;
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(socket: &str, forwarded: &[&str], proto: Option<&str>) -> Peer {
        let transport = Transport { tls: false, trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()] };
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        if let Some(proto) = proto {
            headers.insert(FORWARDED_PROTO, proto.parse().unwrap());
        }
        transport.peer(socket.parse().unwrap(), &headers)
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let cases = [
            ("203.0.113.9", vec!["1.1.1.1"], "203.0.113.9"),
            ("10.0.0.1", vec!["1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", vec!["6.6.6.6, 1.1.1.1, 10.0.0.7"], "1.1.1.1"),
            ("10.0.0.1", vec!["6.6.6.6", "1.1.1.1:4711"], "1.1.1.1"),
            ("10.0.0.1", vec!["1.1.1.1, nonsense"], "10.0.0.1"),
            ("10.0.0.1", vec!["[2001:db8::1]:443"], "2001:db8::1"),
            ("10.0.0.1", vec!["::ffff:1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", vec![], "10.0.0.1"),
        ];
        for (socket, forwarded, address) in cases {
            assert_eq!(peer(socket, &forwarded, None).address, address.parse::<IpAddr>().unwrap(), "{socket} {forwarded:?}");
        }
    }

    #[test]
    fn plain_http_is_only_for_loopback_and_for_proxies_that_say_https() {
        assert!(peer("127.0.0.1", &[], None).secure);
        assert!(peer("::1", &[], None).secure);
        assert!(peer("10.0.0.1", &["1.1.1.1"], Some("https")).secure);
        assert!(!peer("10.0.0.1", &["1.1.1.1"], Some("http")).secure);
        assert!(!peer("10.0.0.1", &["1.1.1.1"], None).secure);
        assert!(!peer("203.0.113.9", &[], Some("https")).secure, "a stranger's header is not believed");
    }
}
