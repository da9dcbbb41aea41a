//! Paths of requests to services.

use gantry::proxy::service_proxy::fuzzing::is_accepted;
use hyper::Request;
use url::Url;

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "request_targets",
    check,
    cases: 5_000,
    tokens: &[
        "/", "//", ".", "..", "/./", "/../", "%2e", "%2E%2e", "%252e", "%25", "%2f", "%5c", "\\",
        ";", "..;a=b", "%00", "?", "#", "rest/v1", "25", "%",
    ],
};

/// Maximum number of times that a service may decode a path.
const DECODINGS: usize = 3;

/// Checks that an accepted path keeps all its segments when a URL parser normalizes it, after any
/// number of decodings.
fn check(path: &[u8]) {
    let Ok(request) = Request::builder().uri(path).body(()) else {
        return;
    };
    let (head, ()) = request.into_parts();
    if !is_accepted(&head) {
        return;
    }
    let mut path = head.uri.path().to_owned();
    // The parser of URLs decodes a dot itself, which is one decoding more.
    for _ in 0..DECODINGS {
        assert_eq!(segments_normalized(&path), segments(&path), "{path:?}");
        path = decoded(&path);
    }
    let path = path.replace('%', "_");
    assert_eq!(segments_normalized(&path), segments(&path), "{path:?}");
}

/// Segments, with a backslash as a separator.
fn segments(path: &str) -> usize {
    path.split(['/', '\\']).count()
}

/// Segments that remain when dot segments are removed (WHATWG URL, 4.4).
fn segments_normalized(path: &str) -> usize {
    // These begin a query or a fragment, and tabs and line ends are dropped, which would all hide
    // segments from the count.
    let path = path.replace(['?', '#', '\t', '\n', '\r'], "_");
    // At the end of a URL spaces and control characters are dropped.
    let url = Url::parse(&format!("http://host/{path}?")).unwrap();
    segments(url.path()) - 1
}

/// The path with each `%` and two digits replaced by the character.
fn decoded(path: &str) -> String {
    let parts: Vec<&str> = path.split('%').collect();
    let mut text = parts[0].as_bytes().to_vec();
    for part in &parts[1..] {
        match part
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
        {
            Some(byte) if !part.starts_with('+') => {
                text.push(byte);
                text.extend_from_slice(&part.as_bytes()[2..]);
            }
            _ => {
                text.push(b'%');
                text.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
