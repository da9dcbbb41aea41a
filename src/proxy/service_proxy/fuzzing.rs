//! Entry points for `tests/fuzz`: parsers of requests that arrive before authentication. Not an
//! interface for other code.

use hyper::http::request::Parts;

use super::{
    framing::{AmbiguityFlag, FramingParser},
    request,
};

/// Returns whether a connection with these bytes is closed because a request gives its length
/// twice. The bytes arrive in pieces of at most `size` bytes, which is not zero.
pub fn is_ambiguous(bytes: &[u8], size: usize) -> bool {
    let ambiguous = AmbiguityFlag::default();
    let mut parser = FramingParser::new(ambiguous.clone());
    for piece in bytes.chunks(size) {
        parser.see(piece);
    }
    ambiguous.is_set()
}

/// Returns whether method, target and fields of a request permit passing it on.
pub fn is_accepted(head: &Parts) -> bool {
    request::check(head).is_ok()
}

/// Returns the host of a request in lower case and without a port, or `None` if the request is
/// malformed.
pub fn host(head: &Parts) -> Option<String> {
    request::host(head).ok().map(|host| host.to_string())
}

/// Returns whether a request is for `host`, which is in lower case; `None` if the request is
/// malformed.
pub fn is_for(head: &Parts, host: &str) -> Option<bool> {
    request::is_for(head, host).ok()
}
