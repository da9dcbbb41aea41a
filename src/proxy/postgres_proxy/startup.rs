//! Parses startup packets of clients and writes those for servers. Pure.
//!
//! The input is untrusted: a packet's length is limited before it is read, and a packet is rejected
//! unless it parses completely. Packets for servers are written from the parsed values.

use bytes::{BufMut, Bytes, BytesMut};
use gantry_node::clusters::NO_LIBRARIES;

use super::rejection::ConnectionRejection;

/// Longest startup packet, as in PostgreSQL.
pub(super) const OPENING_BYTES_MAX: usize = 10_000;
/// Longest name of a role or database. PostgreSQL truncates longer names, and would then use
/// another name than the proxy checked.
const NAME_BYTES_MAX: usize = 63;
/// Longest cancel key, in bytes (protocol 3.2).
const KEY_BYTES_MAX: usize = 256;

const CANCEL: u32 = 80_877_102;
const TLS: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

/// A parsed startup packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StartupRequest {
    /// `SSLRequest`.
    Tls,
    /// `GSSENCRequest`, which is not supported.
    Gss,
    /// `CancelRequest`.
    Cancel(CancelKey),
    /// `StartupMessage`.
    Start(StartupMessage),
}

/// Identifies the session to cancel. A secret: its holder can cancel queries of the session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct CancelKey {
    pub(super) pid: u32,
    pub(super) secret: Bytes,
}

impl std::fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelKey({}, …)", self.pid)
    }
}

impl CancelKey {
    /// Parses the body of a cancel request or of `BackendKeyData`.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let (pid, secret) = body.split_first_chunk()?;
        let bounded = (4..=KEY_BYTES_MAX).contains(&secret.len());
        bounded.then(|| Self {
            pid: u32::from_be_bytes(*pid),
            secret: Bytes::copy_from_slice(secret),
        })
    }

    /// Returns the cancel request for a server.
    pub(super) fn request(&self) -> Vec<u8> {
        let mut packet = Vec::with_capacity(12 + self.secret.len());
        // The length was limited when the key was parsed.
        packet.put_u32(u32::try_from(12 + self.secret.len()).unwrap_or(u32::MAX));
        packet.put_u32(CANCEL);
        packet.put_u32(self.pid);
        packet.extend_from_slice(&self.secret);
        packet
    }
}

/// A startup message of protocol 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartupMessage {
    minor: u16,
    /// As sent by the client; may contain the project's reference.
    pub(super) user: String,
    pub(super) database: Option<String>,
    pub(super) options: Option<String>,
    /// Whether logical replication is requested. Physical replication is rejected.
    replication: bool,
    /// All other parameters and protocol extensions, validated by the server.
    rest: Vec<(String, String)>,
}

/// Returns the length of a startup packet, including its four-byte length field.
pub(super) fn opening_length(prefix: [u8; 4]) -> Result<usize, ConnectionRejection> {
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if (8..=OPENING_BYTES_MAX).contains(&length) {
        Ok(length)
    } else {
        Err(ConnectionRejection::Malformed(
            "invalid length of startup packet",
        ))
    }
}

/// Parses a startup packet without its length field.
pub(super) fn opening(packet: &[u8]) -> Result<StartupRequest, ConnectionRejection> {
    let (code, body) = packet
        .split_first_chunk()
        .ok_or(ConnectionRejection::Malformed("incomplete startup packet"))?;
    match (u32::from_be_bytes(*code), body) {
        (TLS, []) => Ok(StartupRequest::Tls),
        (GSS, []) => Ok(StartupRequest::Gss),
        (TLS | GSS, _) => Err(ConnectionRejection::Malformed(
            "invalid length of startup packet",
        )),
        (CANCEL, key) => {
            CancelKey::read(key)
                .map(StartupRequest::Cancel)
                .ok_or(ConnectionRejection::Malformed(
                    "invalid length of cancel request",
                ))
        }
        (version, body) if version >> 16 == 3 => startup(version, body).map(StartupRequest::Start),
        _ => Err(ConnectionRejection::Protocol),
    }
}

fn startup(version: u32, body: &[u8]) -> Result<StartupMessage, ConnectionRejection> {
    let mut startup = StartupMessage {
        minor: u16::try_from(version & 0xffff).unwrap_or_default(),
        user: String::new(),
        database: None,
        options: None,
        replication: false,
        rest: Vec::new(),
    };
    let mut user = None;
    let mut replication = None;
    let mut texts = body;
    loop {
        let name = text(&mut texts)?;
        if name.is_empty() {
            break;
        }
        let value = text(&mut texts)?;
        let once = match name.as_str() {
            "user" => &mut user,
            "database" => &mut startup.database,
            "options" => &mut startup.options,
            "replication" => &mut replication,
            _ => {
                startup.rest.push((name, value));
                continue;
            }
        };
        // PostgreSQL uses the last value; the proxy must not check another one.
        if once.replace(value).is_some() {
            return Err(ConnectionRejection::Malformed(
                "a startup parameter is there twice",
            ));
        }
    }
    if !texts.is_empty() {
        return Err(ConnectionRejection::Malformed(
            "invalid startup packet layout: expected terminator as last byte",
        ));
    }
    startup.user = user
        .filter(|user| !user.is_empty())
        .ok_or(ConnectionRejection::NoUser)?;
    startup.database = startup.database.filter(|database| !database.is_empty());
    startup.replication = match replication.as_deref() {
        None | Some("false" | "off" | "no" | "0") => false,
        Some("database") => true,
        Some(_) => return Err(ConnectionRejection::Replication),
    };
    Ok(startup)
}

/// Splits a zero-terminated string off the front.
fn text(from: &mut &[u8]) -> Result<String, ConnectionRejection> {
    let end = from
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(ConnectionRejection::Malformed("incomplete startup packet"))?;
    let (text, rest) = from.split_at(end);
    *from = &rest[1..];
    std::str::from_utf8(text)
        .map(str::to_owned)
        .map_err(|_| ConnectionRejection::Malformed("a startup parameter is not UTF-8"))
}

impl StartupMessage {
    /// Returns whether the client names libraries that its session would load, in a parameter or
    /// in the options. Those may have any case, hyphens for underscores, and escapes.
    pub(super) fn names_libraries(&self) -> bool {
        let (setting, _) = NO_LIBRARIES;
        let options = self.options.as_deref().unwrap_or_default();
        let options = options.replace('\\', "").replace('-', "_");
        let named = self
            .rest
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case(setting));
        named || options.to_ascii_lowercase().contains(setting)
    }

    /// Returns the startup packet for the server, with `user` and the remaining `options`.
    pub(super) fn packet(
        &self,
        user: &str,
        options: Option<&str>,
    ) -> Result<BytesMut, ConnectionRejection> {
        // PostgreSQL defaults the database to the user name: that of the role, without the
        // reference.
        let database = self.database.as_deref().unwrap_or(user);
        if user.len() > NAME_BYTES_MAX || database.len() > NAME_BYTES_MAX {
            return Err(ConnectionRejection::Malformed(
                "the name of a role or database is longer than 63 bytes",
            ));
        }
        let mut packet = BytesMut::with_capacity(256);
        packet.put_u32(0);
        packet.put_u16(3);
        packet.put_u16(self.minor);
        let replication = self.replication.then_some(("replication", "database"));
        let ours = [("user", user), ("database", database)]
            .into_iter()
            .chain(options.map(|text| ("options", text)))
            .chain(replication);
        for (name, value) in ours.chain(
            self.rest
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        ) {
            for text in [name, value] {
                packet.put_slice(text.as_bytes());
                packet.put_u8(0);
            }
        }
        packet.put_u8(0);
        let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        packet[..4].copy_from_slice(&length.to_be_bytes());
        Ok(packet)
    }
}

/// Adds to the options of a client that its session loads no library that the role or the database
/// names.
pub(super) fn without_libraries(options: Option<&str>) -> String {
    // First, because the options of the client may end with a backslash.
    format!("-c {}= {}", NO_LIBRARIES.0, options.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the body of a startup packet with these parameters.
    fn body(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
        let mut body = version.to_be_bytes().to_vec();
        for text in parameters.iter().flat_map(|(name, value)| [name, value]) {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        body
    }

    fn start(parameters: &[(&str, &str)]) -> Result<StartupMessage, ConnectionRejection> {
        match opening(&body(3 << 16, parameters))? {
            StartupRequest::Start(startup) => Ok(startup),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn written_startup_message_equals_the_parsed_one() {
        let startup = start(&[
            ("user", "me.ref"),
            ("options", "-c a=b"),
            ("TimeZone", "UTC"),
            ("_pq_.x", ""),
        ])
        .unwrap();
        let packet = startup.packet("me", Some("-c a=b")).unwrap();
        assert_eq!(
            opening_length(packet[..4].try_into().unwrap()).unwrap(),
            packet.len()
        );
        let StartupRequest::Start(again) = opening(&packet[4..]).unwrap() else {
            panic!()
        };
        assert_eq!(
            (again.user.as_str(), again.database.as_deref()),
            ("me", Some("me")),
            "the database of a role that names none"
        );
        assert_eq!(
            again.rest,
            [
                ("TimeZone".to_owned(), "UTC".to_owned()),
                ("_pq_.x".to_owned(), String::new())
            ]
        );
    }

    #[test]
    fn libraries_are_noticed_as_a_parameter() {
        for name in ["local_preload_libraries", "LOCAL_Preload_libraries"] {
            let startup = start(&[("user", "me"), (name, "x")]).unwrap();
            assert!(startup.names_libraries(), "{name}");
        }
        let startup = start(&[("user", "me"), ("TimeZone", "UTC")]).unwrap();
        assert!(!startup.names_libraries());
        let options = without_libraries(Some("-c a=b"));
        assert_eq!(options, "-c local_preload_libraries= -c a=b");
    }

    #[test]
    fn startup_requests_are_distinguished() {
        assert_eq!(opening(&TLS.to_be_bytes()).unwrap(), StartupRequest::Tls);
        assert_eq!(opening(&GSS.to_be_bytes()).unwrap(), StartupRequest::Gss);
        let key = CancelKey {
            pid: 7,
            secret: Bytes::from_static(b"1234"),
        };
        let request = key.request();
        assert_eq!(opening(&request[4..]).unwrap(), StartupRequest::Cancel(key));
        for short in [
            &b""[..],
            &[0],
            &CANCEL.to_be_bytes(),
            &[TLS.to_be_bytes(), [0; 4]].concat(),
        ] {
            assert!(opening(short).is_err(), "{short:?}");
        }
    }

    #[test]
    fn ambiguous_startup_parameters_are_rejected() {
        let long = "x".repeat(64);
        for parameters in [
            &[("user", "a"), ("user", "b")][..],
            &[("user", "a"), ("database", "x"), ("database", "y")],
            &[("user", "a"), ("options", "-c a=b"), ("options", "")],
            &[("database", "x")],
            &[("user", "")],
            &[("user", "a"), ("replication", "true")],
            &[("user", "a"), ("replication", "on")],
            &[("user", "a"), ("replication", "t")],
            &[("user", "a"), ("replication", "DATABASE")],
        ] {
            assert!(start(parameters).is_err(), "{parameters:?}");
        }
        assert!(
            start(&[("user", "a")])
                .unwrap()
                .packet(&long, None)
                .is_err(),
            "PostgreSQL would cut it off"
        );
        assert!(
            start(&[("user", "a"), ("database", &long)])
                .unwrap()
                .packet("a", None)
                .is_err()
        );
        assert_eq!(
            opening(&body(2 << 16, &[("user", "a")])),
            Err(ConnectionRejection::Protocol)
        );
        let mut trailing = body(3 << 16, &[("user", "a")]);
        trailing.extend_from_slice(b"more\0");
        assert!(opening(&trailing).is_err());
        assert!(
            opening(b"\x00\x03\x00\x00user\0\xff\0\0").is_err(),
            "not UTF-8"
        );
        for length in [0, 7, 10_001, u32::MAX] {
            assert!(opening_length(length.to_be_bytes()).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), code in prop_oneof![
            Just(3_u32 << 16), Just(CANCEL), Just(TLS), Just(GSS), any::<u32>()])
        {
            let _ = opening(&bytes);
            if let Ok(StartupRequest::Start(startup)) = opening(&[&code.to_be_bytes()[..], &bytes].concat()) {
                let written = startup.packet("role", startup.options.as_deref()).map(|packet| opening(&packet[4..]));
                prop_assert!(written.is_err() || matches!(written, Ok(Ok(StartupRequest::Start(_)))));
            }
        }

        #[test]
        fn other_parameters_do_not_change_role_and_database(
            parameters in proptest::collection::btree_map("[a-z_.]{1,12}", "[^\0]{0,30}", 0..8), user in "[^\0]{1,20}")
        {
            let parameters: Vec<_> = parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
                .filter(|(name, _)| !["user", "database", "options", "replication"].contains(name)).chain([("user", user.as_str())]).collect();
            let startup = start(&parameters).unwrap();
            prop_assert_eq!(&startup.user, &user);
            let StartupRequest::Start(again) = opening(&startup.packet("r", None).unwrap()[4..]).unwrap() else { panic!() };
            prop_assert_eq!((again.user.as_str(), again.rest), ("r", startup.rest));
        }
    }
}
