//! Rewriting of request headers for upstreams, and removal of hop-by-hop header fields. Pure.

use std::net::IpAddr;

use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};

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
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::try_from(*name).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// Returns the header fields that an upstream receives from the client, sorted, without those
    /// set by the proxy.
    fn passed_on(sent: &[(&'static str, &str)], underscores: bool) -> Vec<String> {
        let mut headers = headers(sent);
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
        let mut headers = headers(&sent);
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
