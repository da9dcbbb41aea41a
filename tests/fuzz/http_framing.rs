//! Bytes of HTTP/1 connections.

use gantry::proxy::service_proxy::fuzzing::is_ambiguous;

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "http_framing",
    check,
    cases: 5_000,
    tokens: &[
        "Content-Length: 5\r\n",
        "content-length:0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:x\r\n",
        "Upgrade: websocket\r\n",
        "GET / HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\n\n",
        "\r",
        ":",
        " ",
        "0\r\n\r\n",
        "99999999999999999999",
        "-1",
    ],
};

/// Maximum length of a line that is read completely. Longer lines are rejected if relevant.
const LINE_BYTES_MAX: usize = 63;

/// Checks that the result is independent of the sizes of the reads, and that it equals a parser of
/// the whole first head.
fn check(bytes: &[u8]) {
    let whole = is_ambiguous(bytes, bytes.len().max(1));
    for size in [1, 2, 3, 7, 64] {
        assert_eq!(
            is_ambiguous(bytes, size),
            whole,
            "in pieces of {size} bytes"
        );
    }
    let Some((head, lines)) = first_head(bytes) else {
        return;
    };
    if lines.iter().all(|line| line.len() <= LINE_BYTES_MAX) {
        let expected = has(&lines, "content-length") && has(&lines, "transfer-encoding");
        assert_eq!(is_ambiguous(head, 1), expected);
        assert!(whole || !expected, "a later request hides an earlier one");
    }
}

/// The bytes of the first head, and the lines of its fields.
fn first_head(bytes: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut lines = Vec::new();
    let mut end = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        let line = line.strip_suffix(b"\n")?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Empty lines before a request are ignored (RFC 9112, 2.2).
        if line.is_empty() && !lines.is_empty() {
            return Some((&bytes[..end], lines.split_off(1)));
        }
        if !line.is_empty() {
            lines.push(line);
        }
    }
    None
}

fn has(lines: &[&[u8]], field: &str) -> bool {
    lines.iter().any(|line| {
        let name = line.split(|byte| *byte == b':').next().unwrap();
        name.len() < line.len() && name.eq_ignore_ascii_case(field.as_bytes())
    })
}
