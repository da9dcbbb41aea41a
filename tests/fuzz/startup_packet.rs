//! Opening packets of PostgreSQL connections, without their length.

use gantry::proxy::postgres_proxy::fuzzing::rewrite_opening;

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "startup_packet",
    check,
    cases: 5_000,
    tokens: &[
        "user\0",
        "database\0",
        "options\0",
        "replication\0",
        "database",
        "true",
        "application_name\0",
        "_pq_.x\0",
        "postgres",
        "\0",
        "\0\0",
        "\u{e9}",
        "\0\u{3}\0\0",
        "\0\u{3}\0\u{2}",
        "\u{4}\u{d2}\u{16}\u{2e}",
        "\u{4}\u{d2}\u{16}\u{2f}",
    ],
};

/// Parameters that the proxy writes itself.
const OWN: [&[u8]; 4] = [b"user", b"database", b"options", b"replication"];

/// Checks that the packet for the server declares its length, round-trips, and has the client's
/// user and settings.
fn check(packet: &[u8]) {
    let Some(written) = rewrite_opening(packet) else {
        return;
    };
    let (length, body) = written.split_first_chunk().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, written.len());
    assert_eq!(rewrite_opening(body).as_ref(), Some(&written));
    if body.starts_with(&[0, 3]) {
        assert_eq!(settings(body), settings(packet));
        assert_eq!(values(body, b"user"), values(packet, b"user"));
    } else {
        assert_eq!(body, packet, "a cancel request is passed on as it is");
    }
}

/// Names and values after the version, up to the empty name that ends them.
fn parameters(packet: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut texts = packet[4..].split(|byte| *byte == 0);
    let mut found = Vec::new();
    while let Some(name) = texts.next().filter(|name| !name.is_empty()) {
        found.push((name, texts.next().unwrap()));
    }
    assert_eq!(texts.count(), 1, "nothing follows the last parameter");
    found
}

/// Returns the parameters that only the server validates, in order.
fn settings(packet: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut all = parameters(packet);
    all.retain(|(name, _)| !OWN.contains(name));
    all
}

fn values<'a>(packet: &'a [u8], wanted: &[u8]) -> Vec<&'a [u8]> {
    let all = parameters(packet).into_iter();
    all.filter(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
        .collect()
}
