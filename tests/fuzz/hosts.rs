//! Host names of requests and of customers.
//!
//! The first line of an input is the `Host` field, the second the authority of the target, if there
//! is one.

use gantry::{
    control::domains::hostnames::Host,
    proxy::service_proxy::fuzzing::{host, is_for},
};
use hyper::{Request, header::HOST, http::request::Parts};

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "hosts",
    check,
    cases: 5_000,
    tokens: &[
        ".",
        ":",
        ":80",
        ":443",
        "@",
        "[::1]",
        "127.0.0.1",
        "0x7f.1",
        "xn--",
        "\u{e4}",
        "\u{3002}",
        "%2e",
        "user@",
        "\n",
        "A",
        "a.b.c",
        ".gantry.test",
        "api.customer.com",
        " ",
    ],
};

/// The domain of projects.
const DOMAIN: &str = "gantry.test";

fn check(bytes: &[u8]) {
    let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
    let field = lines.next().unwrap_or_default();
    let authority = lines.next();
    if let Some(head) = head(field, authority) {
        check_request(&head);
    }
    if let Ok(text) = std::str::from_utf8(field) {
        check_hostname(text);
    }
}

fn head(field: &[u8], authority: Option<&[u8]>) -> Option<Parts> {
    let mut target = Vec::from(&b"http://"[..]);
    match authority {
        Some(authority) => target.extend_from_slice(authority),
        None => target.clear(),
    }
    target.push(b'/');
    let request = Request::builder().uri(target).header(HOST, field).body(());
    Some(request.ok()?.into_parts().0)
}

/// Checks that the host name is a valid key of the route table, and that both comparisons agree.
fn check_request(head: &Parts) {
    let found = host(head);
    if let Some(found) = &found {
        assert!(!found.is_empty());
        assert!(!found.contains(['@', '/', '?', '#', ' ']), "{found:?}");
        assert!(!found.contains(':') || found.starts_with('['), "{found:?}");
        assert_eq!(*found, found.to_ascii_lowercase());
        assert_eq!(is_for(head, found), Some(true), "{found:?}");
    }
    assert_eq!(
        is_for(head, "api.customer.com"),
        found.map(|found| found == "api.customer.com")
    );
}

/// Checks that an accepted hostname is a DNS name outside the domain of projects, and round-trips.
fn check_hostname(text: &str) {
    let Ok(hostname) = Host::parse(text, DOMAIN) else {
        return;
    };
    let name = hostname.as_str();
    assert!(name.len() <= 253 && name.contains('.'), "{name:?}");
    for label in name.split('.') {
        let is_plain = label
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        assert!(is_plain && (1..=63).contains(&label.len()), "{name:?}");
        assert!(!label.starts_with('-') && !label.ends_with('-'), "{name:?}");
    }
    assert!(
        name != DOMAIN && !name.ends_with(".gantry.test"),
        "{name:?}"
    );
    assert_eq!(Host::parse(name, DOMAIN).as_ref(), Ok(&hostname));
}
