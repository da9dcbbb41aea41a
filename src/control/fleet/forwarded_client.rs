//! Header fields that describe a client to another node.
//!
//! Only requests of the fleet port are read with them; fields of these names that clients send are
//! replaced.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use smol_str::SmolStr;

use crate::{
    platform::http::Peer,
    proxy::node_streams::{ForwardedClient, StreamProtocol},
};

/// Address of the client; with its port, for a stream.
const ADDRESS: HeaderName = HeaderName::from_static("gantry-client-address");
/// Transport of the client.
const TRANSPORT: HeaderName = HeaderName::from_static("gantry-client-transport");
/// Protocol of a stream.
const PROTOCOL: HeaderName = HeaderName::from_static("gantry-stream-protocol");
/// Server name of the client's TLS handshake.
const NAME: HeaderName = HeaderName::from_static("gantry-client-server-name");

/// Values of the field for the transport: over TLS, from this machine, and over a plain network.
const TRANSPORTS: [(&str, (bool, bool)); 3] = [
    ("tls", (true, true)),
    ("local", (true, false)),
    ("plain", (false, false)),
];

/// Values of the field for the protocol.
const PROTOCOLS: [(&str, StreamProtocol); 5] = [
    ("postgres", StreamProtocol::PostgresDirect),
    ("postgres-pooled", StreamProtocol::PostgresPooled),
    ("postgres-cancel", StreamProtocol::PostgresCancel),
    ("http/1.1", StreamProtocol::Http1),
    ("h2", StreamProtocol::Http2),
];

/// Replaces the fields by those of the client of a request.
pub(super) fn write_peer(headers: &mut HeaderMap, peer: Peer) {
    remove(headers);
    insert(headers, ADDRESS, &peer.address.to_string());
    let transport = (peer.secure, peer.https);
    let known = TRANSPORTS.iter().find(|(_, other)| *other == transport);
    insert(headers, TRANSPORT, known.map_or("plain", |(name, _)| name));
}

/// Reads and removes the fields of a request.
pub(super) fn take_peer(headers: &mut HeaderMap) -> Option<Peer> {
    let address: IpAddr = text(headers, &ADDRESS)?.parse().ok()?;
    let transport = text(headers, &TRANSPORT)?;
    let (_, (secure, https)) = *TRANSPORTS.iter().find(|(name, _)| *name == transport)?;
    remove(headers);
    Some(Peer {
        address,
        secure,
        https,
    })
}

/// Writes the fields of a stream.
pub(super) fn write_client(headers: &mut HeaderMap, client: &ForwardedClient) {
    insert(headers, ADDRESS, &client.address.to_string());
    let transport = if client.encrypted { "tls" } else { "plain" };
    insert(headers, TRANSPORT, transport);
    let known = PROTOCOLS
        .iter()
        .find(|(_, protocol)| *protocol == client.protocol);
    if let Some((name, _)) = known {
        insert(headers, PROTOCOL, name);
    }
    if let Some(name) = &client.name {
        insert(headers, NAME, name);
    }
}

/// Reads the fields of a stream.
pub(super) fn read_client(headers: &HeaderMap) -> Option<ForwardedClient> {
    let protocol = text(headers, &PROTOCOL)?;
    let (_, protocol) = *PROTOCOLS.iter().find(|(name, _)| *name == protocol)?;
    let address: SocketAddr = text(headers, &ADDRESS)?.parse().ok()?;
    Some(ForwardedClient {
        protocol,
        address,
        encrypted: text(headers, &TRANSPORT)? == "tls",
        name: text(headers, &NAME).map(SmolStr::from),
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn remove(headers: &mut HeaderMap) {
    for name in [ADDRESS, TRANSPORT, PROTOCOL, NAME] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_written() {
        for (_, (secure, https)) in TRANSPORTS {
            for address in ["203.0.113.9", "2001:db8::1"] {
                let peer = Peer {
                    address: address.parse().unwrap(),
                    secure,
                    https,
                };
                let mut headers = HeaderMap::new();
                headers.append(ADDRESS, HeaderValue::from_static("6.6.6.6"));
                headers.append(ADDRESS, HeaderValue::from_static("7.7.7.7"));
                headers.insert(NAME, HeaderValue::from_static("of the client"));
                write_peer(&mut headers, peer);
                assert_eq!(take_peer(&mut headers), Some(peer));
                assert!(headers.is_empty(), "{headers:?}");
            }
        }
    }

    #[test]
    fn streams_are_read_as_written() {
        for (_, protocol) in PROTOCOLS {
            for name in [None, Some("db.example.test".into())] {
                let client = ForwardedClient {
                    protocol,
                    address: "[2001:db8::1]:4711".parse().unwrap(),
                    encrypted: name.is_some(),
                    name,
                };
                let mut headers = HeaderMap::new();
                write_client(&mut headers, &client);
                assert_eq!(read_client(&headers), Some(client));
            }
        }
    }

    #[test]
    fn incomplete_and_unknown_fields_are_rejected() {
        assert_eq!(take_peer(&mut HeaderMap::new()), None);
        assert_eq!(read_client(&HeaderMap::new()), None);
        let client = ForwardedClient {
            protocol: StreamProtocol::Http1,
            address: "127.0.0.1:1".parse().unwrap(),
            encrypted: true,
            name: None,
        };
        for (field, value) in [
            (ADDRESS, "here"),
            (ADDRESS, "127.0.0.1"),
            (PROTOCOL, "ssh"),
            (PROTOCOL, ""),
        ] {
            let mut headers = HeaderMap::new();
            write_client(&mut headers, &client);
            insert(&mut headers, field.clone(), value);
            assert_eq!(read_client(&headers), None, "{field}: {value}");
        }
    }
}
