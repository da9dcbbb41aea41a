//! Validation and rewriting of request heads. Pure.

use std::{borrow::Cow, net::IpAddr};

use hyper::{
    HeaderMap, Method, Version,
    header::{self, HeaderName, HeaderValue},
    http::{request::Parts, uri::Authority},
};
use smol_str::SmolStr;

use super::rejection::RequestRejection;

/// Hop-by-hop header fields (RFC 9110 §7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authorization"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Header fields set by the proxy, which upstreams trust.
const PROXY_HEADERS: [HeaderName; 3] = [header::FORWARDED, REAL_IP, PROJECT_REF];
const FORWARDED_HEADERS_PREFIX: &str = "x-forwarded-";

const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const PROJECT_REF: HeaderName = HeaderName::from_static("x-project-ref");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Returns whether a request is for `host`, which is in lower case.
pub(super) fn is_for(parts: &Parts, host: &str) -> Result<bool, RequestRejection> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    // Fast path: one `Host` field that equals `host`.
    let exact = hosts.next().is_some_and(|upstream| upstream == host)
        && hosts.next().is_none()
        && parts.uri.authority().is_none();
    if exact {
        Ok(true)
    } else {
        self::host(parts).map(|upstream| upstream == host)
    }
}

/// Returns the host of a request, in lower case and without port.
pub(super) fn host(parts: &Parts) -> Result<SmolStr, RequestRejection> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let upstream = match (hosts.next(), hosts.next()) {
        (upstream, None) => upstream
            .map(|upstream| {
                upstream
                    .to_str()
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or(RequestRejection::Malformed)
            })
            .transpose()?,
        _ => return Err(RequestRejection::Malformed),
    };
    let target = parts.uri.authority();
    // HTTP/2 does not need `Host`, and HTTP/1.1 needs no absolute target; if both are present they
    // must match.
    let authority: &Authority = match (&upstream, target) {
        (Some(upstream), Some(target)) if plain(upstream)? != plain(target)? => {
            return Err(RequestRejection::Malformed);
        }
        (None, Some(_)) if parts.version < Version::HTTP_2 => {
            return Err(RequestRejection::Malformed);
        }
        (upstream, target) => upstream
            .as_ref()
            .or(target)
            .ok_or(RequestRejection::Malformed)?,
    };
    plain(authority)
}

fn plain(authority: &Authority) -> Result<SmolStr, RequestRejection> {
    let host = authority.host();
    if host.is_empty() || authority.as_str().contains('@') {
        return Err(RequestRejection::Malformed);
    }
    Ok(if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        host.to_ascii_lowercase().into()
    } else {
        host.into()
    })
}

/// Returns an error if a request must not be forwarded.
pub(super) fn check(parts: &Parts) -> Result<(), RequestRejection> {
    if [Method::CONNECT, Method::TRACE].contains(&parts.method) {
        return Err(RequestRejection::Method);
    }
    check_coding(parts)?;
    // RFC 9110 §11.6.2 defines a single field. With two, the proxy could check one and an upstream
    // use the other.
    if parts
        .headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .nth(1)
        .is_some()
        || escapes_prefix(parts.uri.path())
    {
        return Err(RequestRejection::Malformed);
    }
    Ok(())
}

/// Checks that the body is unencoded or chunked. Any other transfer coding could be interpreted
/// differently by an upstream (RFC 9112 §6.1).
fn check_coding(parts: &Parts) -> Result<(), RequestRejection> {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None)
            if coding
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(b"chunked") =>
        {
            // HTTP/1.0 has no chunked coding: an intermediary may have assumed another end of the
            // body.
            if parts.version == Version::HTTP_11 {
                Ok(())
            } else {
                Err(RequestRejection::Malformed)
            }
        }
        _ => Err(RequestRejection::TransferCoding),
    }
}

/// Rounds of percent-decoding after which a path is checked. Services decode once, some twice.
const DECODINGS_MAX: usize = 3;

/// Returns whether an upstream could resolve a path to one outside its service's prefix: a segment
/// is `.` or `..` in any encoding, terminated by a slash, a backslash or `;` parameters.
fn escapes_prefix(path: &str) -> bool {
    // A backslash is not allowed in a URI (RFC 3986 §2).
    if path.contains('\\') {
        return true;
    }
    let mut path = Cow::Borrowed(path.as_bytes());
    for _ in 0..DECODINGS_MAX {
        if path.split(|byte| matches!(byte, b'/' | b'\\')).any(is_dots) {
            return true;
        }
        if !path.contains(&b'%') {
            return false;
        }
        path = Cow::Owned(percent_decoded(&path));
    }
    path.split(|byte| matches!(byte, b'/' | b'\\')).any(is_dots)
}

/// Returns whether a segment is `.` or `..`, before any parameters or a zero byte, at which C
/// programs stop reading.
fn is_dots(segment: &[u8]) -> bool {
    let end = segment
        .iter()
        .position(|byte| matches!(byte, b';' | 0))
        .unwrap_or(segment.len());
    matches!(&segment[..end], b"." | b"..")
}

/// Decodes each `%` followed by two hexadecimal digits.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, mut after)) = rest.split_first() {
        let encoded = match after {
            [high, low, ..] if *byte == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        if let Some((high, low)) = encoded {
            decoded.push(high << 4 | low);
            after = &after[2..];
        } else {
            decoded.push(*byte);
        }
        rest = after;
    }
    decoded
}

/// Returns whether a request asks for an upgrade to WebSocket, the only supported upgrade.
pub(super) fn is_websocket(parts: &Parts) -> bool {
    let is = |name: &HeaderName, word: &str| {
        let values = parts
            .headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && is(&header::CONNECTION, "upgrade")
        && is(&header::UPGRADE, "websocket")
}

/// Removes hop-by-hop header fields.
pub(super) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let values: Vec<_> = headers
            .get_all(header::CONNECTION)
            .iter()
            .cloned()
            .collect();
        for upstream in values
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
        {
            headers.remove(upstream.trim());
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Header values that identify a client to upstreams.
pub(super) struct ClientHeaders {
    address: Option<HeaderValue>,
    host: Option<HeaderValue>,
}

impl ClientHeaders {
    /// Builds the values for a client address and the requested host.
    pub(super) fn new(address: IpAddr, host: &str) -> Self {
        // Addresses and host names are ASCII.
        Self {
            address: HeaderValue::try_from(address.to_string()).ok(),
            host: HeaderValue::from_str(host).ok(),
        }
    }
}

/// Values of the forwarding header fields of a request.
pub(super) struct ForwardingHeaders<'a> {
    pub(super) client: &'a ClientHeaders,
    pub(super) project: &'a Option<HeaderValue>,
    pub(super) prefix: &'static str,
    /// Whether header fields with underscores in their names are forwarded.
    pub(super) underscores: bool,
}

/// Returns whether a client's header field must not reach an upstream: the proxy sets the field
/// itself, or the name differs from such a field only in underscores, which many servers treat as
/// hyphens.
fn is_foreign(name: &str, underscores: bool) -> bool {
    if name.starts_with(FORWARDED_HEADERS_PREFIX) {
        return true;
    }
    if !name.contains('_') {
        return false;
    }
    let read = name.replace('_', "-");
    !underscores
        || read.starts_with(FORWARDED_HEADERS_PREFIX)
        || PROXY_HEADERS
            .iter()
            .chain(&HOP_BY_HOP)
            .any(|ours| ours.as_str() == read)
        || read == "host"
}

/// Joins several `Cookie` fields, as HTTP/2 splits them (RFC 9113 §8.2.3), into the single field
/// that HTTP/1.1 allows.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    // Joining valid values yields a valid value.
    if let Ok(mut cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        cookie.set_sensitive(true);
        headers.insert(header::COOKIE, cookie);
    }
}

/// Removes untrusted header fields and sets the forwarding header fields.
pub(super) fn rewrite(headers: &mut HeaderMap, forwarding: &ForwardingHeaders<'_>) {
    strip(headers);
    for name in &PROXY_HEADERS {
        headers.remove(name);
    }
    let foreign: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_foreign(name.as_str(), forwarding.underscores))
        .cloned()
        .collect();
    for name in foreign {
        headers.remove(name);
    }
    join_cookies(headers);
    // hyper has already answered `100 Continue`.
    headers.remove(header::EXPECT);
    // Replaced by the upstream's host.
    headers.remove(header::HOST);
    let ClientHeaders { address, host } = forwarding.client;
    for (name, value) in [
        (FORWARDED_FOR, address),
        (REAL_IP, address),
        (FORWARDED_HOST, host),
        (PROJECT_REF, forwarding.project),
    ] {
        if let Some(value) = value {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    headers.insert(
        FORWARDED_PREFIX,
        HeaderValue::from_static(forwarding.prefix),
    );
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(version: Version, uri: &str, headers: &[(&'static str, &str)]) -> Parts {
        let request = headers.iter().fold(
            Request::builder().version(version).uri(uri),
            |request, (name, value)| request.header(*name, *value),
        );
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn conflicting_hosts_are_rejected() {
        let one = Version::HTTP_11;
        let two = Version::HTTP_2;
        let cases = [
            (one, "/", vec![("host", "A.test:8443")], Ok("a.test")),
            (
                one,
                "http://a.test/",
                vec![("host", "a.test")],
                Ok("a.test"),
            ),
            (two, "https://a.test/", vec![], Ok("a.test")),
            (
                two,
                "https://a.test:1/",
                vec![("host", "a.test:1")],
                Ok("a.test"),
            ),
            (one, "/", vec![], Err(RequestRejection::Malformed)),
            (
                one,
                "/",
                vec![("host", "")],
                Err(RequestRejection::Malformed),
            ),
            (
                one,
                "/",
                vec![("host", "a.test"), ("host", "a.test")],
                Err(RequestRejection::Malformed),
            ),
            (
                one,
                "/",
                vec![("host", "u@a.test")],
                Err(RequestRejection::Malformed),
            ),
            (
                one,
                "/",
                vec![("host", "a.test, b.test")],
                Err(RequestRejection::Malformed),
            ),
            (
                one,
                "http://a.test/",
                vec![],
                Err(RequestRejection::Malformed),
            ),
            (
                one,
                "http://a.test/",
                vec![("host", "b.test")],
                Err(RequestRejection::Malformed),
            ),
            (
                two,
                "https://a.test/",
                vec![("host", "b.test")],
                Err(RequestRejection::Malformed),
            ),
        ];
        for (version, uri, headers, expected) in cases {
            let parts = parts(version, uri, &headers);
            assert_eq!(
                host(&parts).as_deref().map_err(|rejection| *rejection),
                expected,
                "{uri} {headers:?}"
            );
            assert_eq!(
                is_for(&parts, "a.test"),
                expected.map(|_| true),
                "{uri} {headers:?}"
            );
            assert_eq!(
                is_for(&parts, "b.test"),
                expected.map(|_| false),
                "{uri} {headers:?}"
            );
        }
    }

    #[test]
    fn path_traversal_is_rejected() {
        for path in [
            "/rest/v1/a/../b",
            "/rest/v1/..",
            "/./a",
            "/rest/v1/%2e%2E/x",
            "/a/.%2e",
            "/a/%2e",
            "/a/%2e%2e%2fb",
            "/a%2F..%2Fb",
        ] {
            assert_eq!(
                check(&parts(Version::HTTP_11, path, &[])),
                Err(RequestRejection::Malformed),
                "{path}"
            );
        }
        for path in [
            "/rest/v1/..;/x",
            "/rest/v1/..;a=b/x",
            "/rest/v1/.;",
            "/rest/v1/..%3B/x",
            "/rest/v1/..%5cx",
            "/rest/v1/..%5C..%5cx",
            "/rest/v1/a%5c%2E%2e%5Cx",
            "/rest/v1/%252e%252e/x",
            "/rest/v1/..%252fx",
            "/rest/v1/%25%32%65.%2fx",
            "/rest/v1/..%00/x",
        ] {
            assert_eq!(
                check(&parts(Version::HTTP_11, path, &[])),
                Err(RequestRejection::Malformed),
                "{path}"
            );
        }
        for path in [
            "/rest/v1/a;b=c",
            "/rest/v1/;",
            "/rest/v1/a%5cb",
            "/rest/v1/a..;b",
            "/rest/v1/%",
            "/rest/v1/%2",
            "/rest/v1/%zz",
            "/rest/v1/%C3%A4",
        ] {
            assert_eq!(check(&parts(Version::HTTP_11, path, &[])), Ok(()), "{path}");
        }
        for path in [
            "/rest/v1/a",
            "/storage/v1/object/a..b/.well-known/...",
            "/a%2eb",
            "/a%2fb",
            "/a/%2e%2e%2e",
        ] {
            assert_eq!(check(&parts(Version::HTTP_11, path, &[])), Ok(()), "{path}");
        }
    }

    #[test]
    fn other_transfer_codings_are_rejected() {
        for (version, codings, expected) in [
            (Version::HTTP_11, &["chunked"][..], Ok(())),
            (Version::HTTP_11, &[" Chunked "], Ok(())),
            (
                Version::HTTP_10,
                &["chunked"],
                Err(RequestRejection::Malformed),
            ),
            (
                Version::HTTP_11,
                &["gzip, chunked"],
                Err(RequestRejection::TransferCoding),
            ),
            (
                Version::HTTP_11,
                &["gzip", "chunked"],
                Err(RequestRejection::TransferCoding),
            ),
            (
                Version::HTTP_11,
                &["chunked", "chunked"],
                Err(RequestRejection::TransferCoding),
            ),
            (
                Version::HTTP_11,
                &["chunked, chunked"],
                Err(RequestRejection::TransferCoding),
            ),
            (
                Version::HTTP_11,
                &["chunked;q=1"],
                Err(RequestRejection::TransferCoding),
            ),
            (
                Version::HTTP_11,
                &[""],
                Err(RequestRejection::TransferCoding),
            ),
            (Version::HTTP_11, &[], Ok(())),
        ] {
            let headers: Vec<_> = codings
                .iter()
                .map(|coding| ("transfer-encoding", *coding))
                .collect();
            assert_eq!(
                check(&parts(version, "/", &headers)),
                expected,
                "{version:?} {codings:?}"
            );
        }
    }

    #[test]
    fn duplicate_authorization_is_rejected() {
        let one = ("authorization", "Bearer a");
        let two = ("Authorization", "Bearer b");
        assert_eq!(check(&parts(Version::HTTP_2, "/", &[one])), Ok(()));
        for headers in [[one, two], [one, one]] {
            assert_eq!(
                check(&parts(Version::HTTP_2, "/", &headers)),
                Err(RequestRejection::Malformed)
            );
        }
    }

    /// Returns the header fields that an upstream receives from the client, sorted, without those
    /// set by the proxy.
    fn passed_on(sent: &[(&'static str, &str)], underscores: bool) -> Vec<String> {
        let mut headers = parts(Version::HTTP_11, "/", sent).headers;
        let client = ClientHeaders {
            address: None,
            host: None,
        };
        rewrite(
            &mut headers,
            &ForwardingHeaders {
                client: &client,
                project: &None,
                prefix: "/rest/v1",
                underscores,
            },
        );
        let all = headers
            .iter()
            .filter(|(name, _)| !name.as_str().starts_with(FORWARDED_HEADERS_PREFIX));
        let mut all: Vec<_> = all
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn header_names_with_underscores_are_dropped_by_default() {
        let sent = [
            ("x_custom", "1"),
            ("x_forwarded_for", "1.2.3.4"),
            ("X-Forwarded_Proto", "http"),
            ("x_project_ref", "a"),
            ("x_real-ip", "b"),
        ];
        let more = [
            ("transfer_encoding", "chunked"),
            ("host_", "c"),
            ("apikey", "k"),
        ];
        let sent = [&sent[..], &more].concat();
        assert_eq!(passed_on(&sent, false), ["apikey: k"]);
        assert_eq!(
            passed_on(&sent, true),
            ["apikey: k", "host_: c", "x_custom: 1"],
            "none that is read as one of the edge's"
        );
    }

    #[test]
    fn cookie_fields_are_joined() {
        assert_eq!(
            passed_on(
                &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3; d=4")],
                false
            ),
            ["cookie: a=1; b=2; c=3; d=4"]
        );
        assert_eq!(passed_on(&[("cookie", "a=1")], false), ["cookie: a=1"]);
    }

    #[test]
    fn websocket_upgrade_needs_both_headers() {
        let asks = |version, headers: &[(&'static str, &str)]| {
            is_websocket(&parts(version, "https://a/", headers))
        };
        let connection = ("connection", "keep-alive, Upgrade");
        let upgrade = ("upgrade", "WebSocket");
        assert!(asks(Version::HTTP_11, &[connection, upgrade]));
        assert!(!asks(Version::HTTP_11, &[connection]) && !asks(Version::HTTP_11, &[upgrade]));
        assert!(
            !asks(Version::HTTP_11, &[connection, ("upgrade", "h2c")])
                && !asks(Version::HTTP_10, &[connection, upgrade])
        );
        assert!(!asks(Version::HTTP_2, &[connection, upgrade]));
    }

    #[test]
    fn untrusted_forwarding_headers_are_replaced() {
        let sent = [
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy-authorization", "x"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("X-Forwarded-Anything", "x"),
            ("x-real-ip", "1.2.3.4"),
            ("x-project-ref", "other"),
            ("apikey", "k"),
            ("expect", "100-continue"),
            ("host", "a.test"),
        ];
        let mut headers = parts(Version::HTTP_11, "/", &sent).headers;
        let client = ClientHeaders::new([192, 0, 2, 1].into(), "a.test");
        let project = Some(HeaderValue::from_static("abcdefghijklmnopqrst"));
        rewrite(
            &mut headers,
            &ForwardingHeaders {
                client: &client,
                project: &project,
                prefix: "/rest/v1",
                underscores: false,
            },
        );
        let mut forwarding: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        forwarding.sort_unstable();
        let expected = [
            ("apikey", "k"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "a.test"),
            ("x-forwarded-prefix", "/rest/v1"),
            ("x-forwarded-proto", "https"),
            ("x-project-ref", "abcdefghijklmnopqrst"),
            ("x-real-ip", "192.0.2.1"),
        ];
        assert_eq!(forwarding, expected);
    }
}
