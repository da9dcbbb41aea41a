//! The address of the client behind trusted proxies, and whether the request used HTTPS.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use gantry_base::ids::Malformed;
use http::{HeaderMap, HeaderName, Uri, header};
use ipnet::IpNet;

use crate::platform::error::{Denial, Error};

/// TLS of the listener, and the trusted forwarding headers.
#[derive(Debug, Clone, Default)]
pub struct Transport {
    /// The listener terminates TLS itself.
    pub tls: bool,
    /// Networks of trusted proxies.
    pub trusted_proxies: Vec<IpNet>,
    /// The header with the client address.
    pub client_header: ClientHeader,
}

/// The header in which proxies send the client address. Only one is trusted: a proxy that sets one
/// header forwards the others as the client sent them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHeader(HeaderName);

impl Default for ClientHeader {
    fn default() -> Self {
        Self(FORWARDED_FOR)
    }
}

impl FromStr for ClientHeader {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        text.parse()
            .map(Self)
            .map_err(|_| Malformed("the name of a header"))
    }
}

impl fmt::Display for ClientHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// The client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The client's address, behind any trusted proxies.
    pub address: IpAddr,
    /// Whether the request used HTTPS or came from this machine.
    pub secure: bool,
    /// Whether the request used HTTPS.
    pub https: bool,
}

impl Peer {
    /// Returns the origin of this server as the client addressed it: scheme, host and port.
    pub fn origin(self, uri: &Uri, headers: &HeaderMap) -> String {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let host = uri
            .authority()
            .map(http::uri::Authority::as_str)
            .or(host)
            .unwrap_or_default();
        // The origin becomes part of links and header fields: only a host name and a port are
        // allowed.
        let plain = host.bytes().all(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']')
        });
        format!(
            "{}://{}",
            if self.https { "https" } else { "http" },
            if plain { host } else { "" }
        )
    }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

impl Transport {
    /// Returns the client of a request from the connection peer `socket`.
    pub fn peer(&self, socket: IpAddr, headers: &HeaderMap) -> Peer {
        let socket = socket.to_canonical();
        if !self.trusts(socket) {
            return Peer {
                address: socket,
                secure: self.tls || socket.is_loopback(),
                https: self.tls,
            };
        }
        let (address, proto) = self.client_behind(socket, headers);
        let proto = proto.or_else(|| headers.get(FORWARDED_PROTO)?.to_str().ok());
        let https = self.tls || proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
        Peer {
            address,
            secure: https,
            https,
        }
    }

    /// Rejects a request that crossed a network unencrypted (specification §5.1).
    pub fn require_secure(peer: Peer) -> Result<(), Error> {
        if peer.secure {
            Ok(())
        } else {
            Err(Error::Forbidden(Denial::InsecureTransport))
        }
    }

    /// Returns the right-most hop that is not a trusted proxy, and its protocol if the header has
    /// it. Stops at the first hop that cannot be parsed.
    ///
    /// Splits at every comma from the right, quoted or not. Addresses contain no comma, and an
    /// unclosed quote in the client's part cannot hide the hops that proxies appended.
    fn client_behind<'a>(
        &self,
        socket: IpAddr,
        headers: &'a HeaderMap,
    ) -> (IpAddr, Option<&'a str>) {
        let read = if self.client_header.0 == header::FORWARDED {
            forwarded
        } else {
            bare
        };
        let mut last = socket;
        let mut last_proto = None;
        let mut lines: Vec<_> = headers.get_all(&self.client_header.0).iter().collect();
        while let Some(line) = lines.pop() {
            let Ok(line) = line.to_str() else {
                return (last, last_proto);
            };
            for hop in line.rsplit(',') {
                let Some((address, proto)) = read(hop.trim()) else {
                    return (last, last_proto);
                };
                if !self.trusts(address) {
                    return (address, proto);
                }
                (last, last_proto) = (address, proto);
            }
        }
        (last, last_proto)
    }

    /// Returns whether an address belongs to a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_proxies
            .iter()
            .any(|net| net.contains(&address))
    }
}

type Hop<'a> = (IpAddr, Option<&'a str>);

/// Parses a hop that is only an address.
fn bare(hop: &str) -> Option<Hop<'_>> {
    parse_address(hop).map(|address| (address, None))
}

/// Parses a hop of RFC 7239: `for=192.0.2.60;proto=https;by=203.0.113.43`. Returns `None` without a
/// `for`, or with an obfuscated one.
fn forwarded(hop: &str) -> Option<Hop<'_>> {
    let parameter = |wanted: &str| {
        let mut pairs = hop
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        pairs
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.trim_matches('"'))
    };
    parse_address(parameter("for")?).map(|address| (address, parameter("proto")))
}

/// Parses an address with an optional port, IPv6 optionally in brackets.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map_or(text, |(inside, _)| inside);
    let address = bare.parse().ok().or_else(|| {
        bare.rsplit_once(':')
            .and_then(|(host, _)| host.parse::<Ipv4Addr>().ok())
            .map(IpAddr::V4)
    })?;
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusting(header: &str) -> Transport {
        Transport {
            tls: false,
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            client_header: header.parse().unwrap(),
        }
    }

    fn peer(socket: &str, forwarded: &[&str], proto: Option<&str>) -> Peer {
        let transport = trusting("x-forwarded-for");
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
    fn x_forwarded_for_of_untrusted_peers_is_ignored() {
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
            assert_eq!(
                peer(socket, &forwarded, None).address,
                address.parse::<IpAddr>().unwrap(),
                "{socket} {forwarded:?}"
            );
        }
    }

    #[test]
    fn forwarded_is_parsed_as_rfc_7239() {
        let cases = [
            (vec!["for=1.1.1.1"], "1.1.1.1", false),
            (vec!["for=1.1.1.1;proto=https"], "1.1.1.1", true),
            (
                vec!["For=\"1.1.1.1:4711\";Proto=HTTPS;by=10.0.0.1"],
                "1.1.1.1",
                true,
            ),
            (
                vec!["for=\"[2001:db8:cafe::17]:4711\";proto=\"https\""],
                "2001:db8:cafe::17",
                true,
            ),
            (
                vec!["for=6.6.6.6;proto=https, for=1.1.1.1;proto=http, for=10.0.0.7;proto=https"],
                "1.1.1.1",
                false,
            ),
            (
                vec!["for=6.6.6.6", "for=1.1.1.1;proto=https"],
                "1.1.1.1",
                true,
            ),
            (vec!["by=10.0.0.9;proto=https"], "10.0.0.1", false),
            (vec!["for=1.1.1.1, for=unknown"], "10.0.0.1", false),
            (
                vec!["for=1.1.1.1, for=_hidden, for=10.0.0.7;proto=https"],
                "10.0.0.7",
                true,
            ),
            (
                vec!["for=\"6.6.6.6, for=1.1.1.1;proto=https"],
                "1.1.1.1",
                true,
            ),
            (vec![""], "10.0.0.1", false),
            (vec![], "10.0.0.1", false),
        ];
        for (lines, address, secure) in cases {
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append(header::FORWARDED, line.parse().unwrap());
            }
            let peer = trusting("Forwarded").peer("10.0.0.1".parse().unwrap(), &headers);
            assert_eq!(
                peer,
                Peer {
                    address: address.parse().unwrap(),
                    secure,
                    https: secure
                },
                "{lines:?}"
            );
        }
    }

    #[test]
    fn other_headers_than_the_configured_one_are_ignored() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-forwarded-for", "6.6.6.1"),
            ("forwarded", "for=6.6.6.2"),
            ("cf-connecting-ip", "6.6.6.3"),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        for (header, address) in [
            ("x-forwarded-for", "6.6.6.1"),
            ("forwarded", "6.6.6.2"),
            ("CF-Connecting-IP", "6.6.6.3"),
            ("x-real-ip", "10.0.0.1"),
        ] {
            let peer = trusting(header).peer("10.0.0.1".parse().unwrap(), &headers);
            assert_eq!(peer.address, address.parse::<IpAddr>().unwrap(), "{header}");
            let untrusted = trusting(header).peer("203.0.113.9".parse().unwrap(), &headers);
            assert_eq!(
                untrusted.address,
                "203.0.113.9".parse::<IpAddr>().unwrap(),
                "{header} of an untrusted peer"
            );
        }
    }

    #[test]
    fn plain_http_is_secure_from_loopback_and_https_proxies_only() {
        assert!(peer("127.0.0.1", &[], None).secure);
        assert!(peer("::1", &[], None).secure);
        assert!(peer("10.0.0.1", &["1.1.1.1"], Some("https")).secure);
        assert!(!peer("10.0.0.1", &["1.1.1.1"], Some("http")).secure);
        assert!(!peer("10.0.0.1", &["1.1.1.1"], None).secure);
        assert!(
            !peer("203.0.113.9", &[], Some("https")).secure,
            "the header of an untrusted peer is ignored"
        );
    }
}
