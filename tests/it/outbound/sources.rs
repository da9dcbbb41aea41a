//! The files that open connections to other machines: the outgoing client, and those listed here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use gantry::platform::outbound::uses;

/// Texts of code that opens a connection, or makes a client.
const OPENERS: &[&str] = &[
    "HttpClient::",
    "legacy::Client::",
    "HttpConnector::",
    "TcpStream::connect",
    "TcpSocket::",
    "client::conn::",
    "Account::builder",
    "reqwest",
    "ureq::",
];

/// Files that open connections, with the reason why they are not users of the outgoing client.
const OPENING: &[(&str, &str)] = &[
    ("crates/base/src/net/http_client.rs", "is the HTTP client"),
    ("crates/base/src/net/outbound.rs", "is the policy"),
    (
        "crates/base/src/net/owned_port.rs",
        "the port of a child process, on this machine",
    ),
    (
        "crates/node/src/engines/registry.rs",
        "packages from the operator's registry, for commands without a server",
    ),
    (
        "src/cli/admin_listener.rs",
        "commands of the operator about their own server",
    ),
    ("src/cli/check.rs", "checks the operator's own addresses"),
    (
        "src/cli/config/api_client.rs",
        "a command of the operator; there is no server",
    ),
    (
        "src/cli/doctor/server.rs",
        "a command of the operator about its own server",
    ),
    (
        "src/control/import/settings.rs",
        "a command of the operator; there is no server",
    ),
    (
        "src/control/domains/hostnames/acme.rs",
        "the operator's certificate authority, by a client of its protocol",
    ),
    (
        "src/control/domains/hostnames/reach.rs",
        "asks whether a hostname leads to this server; sends no request of customers",
    ),
    (
        "src/control/domains/zone/update.rs",
        "the operator's name server",
    ),
    (
        "src/control/fleet/peer_connections.rs",
        "the operator's other nodes, over mutual TLS",
    ),
    (
        "src/control/services/probe.rs",
        "the socket of a service, on this machine",
    ),
    (
        "src/platform/object_store/client.rs",
        "stores of the operator; log drains give it the policy",
    ),
    ("src/platform/outbound/mod.rs", "is the outgoing client"),
    (
        "src/proxy/service_proxy/local_client.rs",
        "the service proxy inside of this process",
    ),
    (
        "src/proxy/service_proxy/upstream_pool.rs",
        "services on this machine, and upstreams of the operator",
    ),
];

/// The users of the outgoing client, by the names of their uses.
const USERS: &[(&str, &[&str])] = &[
    (
        "log_drain",
        &[
            "src/api/log_drains/target/datadog.rs",
            "src/api/log_drains/target/loki.rs",
            "src/api/log_drains/target/otlp.rs",
            "src/api/log_drains/target/s3.rs",
            "src/api/log_drains/target/syslog.rs",
            "src/api/log_drains/target/webhook.rs",
        ],
    ),
    ("http2_log_drain", &["src/api/log_drains/target/webhook.rs"]),
    ("database_call", &["src/control/database_calls/send.rs"]),
    ("branch_notification", &["src/api/branches/notify.rs"]),
    (
        "platform_webhook",
        &["src/control/platform_webhooks/send.rs"],
    ),
    (
        "signing_keys",
        &["src/control/third_party_auth/discovery.rs"],
    ),
    ("saml_metadata", &["src/control/sso_providers/metadata.rs"]),
    ("identity_provider", &["src/api/accounts/oidc/fetch.rs"]),
];

/// Returns the lines of code, without comments and tests at the end, of all files of the packages.
fn code() -> BTreeMap<String, Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "src",
        "crates/base/src",
        "crates/node/src",
        "crates/logs/src",
    ];
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = BTreeMap::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
            let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.insert(name.to_owned(), lines.map(str::to_owned).collect());
        }
    }
    found
}

#[test]
fn only_listed_files_open_connections_to_other_machines() {
    let opens = |lines: &[String]| {
        let mut lines = lines.iter();
        lines.any(|line| OPENERS.iter().any(|opener| line.contains(opener)))
    };
    let code = code();
    assert!(code.len() > 300, "the source was not found: {}", code.len());
    let found: BTreeSet<&str> = code
        .iter()
        .filter(|(_, lines)| opens(lines))
        .map(|(name, _)| name.as_str())
        .collect();
    let listed: BTreeSet<&str> = OPENING.iter().map(|(name, _)| *name).collect();
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "send requests with `OutboundClient` instead: {unlisted:?}"
    );
    let unused: Vec<_> = listed.difference(&found).collect();
    assert!(unused.is_empty(), "listed without need: {unused:?}");
}

#[test]
fn each_use_of_the_client_is_that_of_its_listed_files() {
    let names: Vec<_> = uses::ALL.iter().map(|usage| usage.name).collect();
    let listed: Vec<_> = USERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, listed);
    let code = code();
    for (name, expected) in USERS {
        let usage = name.to_ascii_uppercase();
        let mentions = |line: &String| {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.any(|word| word == usage)
        };
        let users: Vec<&str> = code
            .iter()
            .filter(|(_, lines)| lines.iter().any(mentions))
            .map(|(file, _)| file.as_str())
            .filter(|file| *file != "src/platform/outbound/uses.rs")
            .collect();
        assert_eq!(users, *expected, "{name}");
    }
}

/// A URL of the operator is not restricted, so its users are few.
#[test]
fn only_the_sign_in_names_the_operator_as_the_owner_of_a_url() {
    let code = code();
    let users: Vec<&str> = code
        .iter()
        .filter(|(_, lines)| lines.iter().any(|line| line.contains("UrlOwner::Operator")))
        .map(|(file, _)| file.as_str())
        .collect();
    let expected = [
        "src/api/accounts/oidc/fetch.rs",
        "src/platform/outbound/hosts.rs",
        "src/platform/outbound/mod.rs",
    ];
    assert_eq!(users, expected);
}
