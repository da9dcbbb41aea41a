//! Validation of request heads. Pure.

use std::borrow::Cow;

use hyper::{
    Method, Version,
    header::{self, HeaderName},
    http::{request::Parts, uri::Authority},
};
use smol_str::SmolStr;

use super::rejection::RequestRejection;

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
}
