//! Options of the proxy in front of the services of projects.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{UnderscoreHeaders, sections};

/// Addresses, certificate and rules of the proxy in front of services.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::EDGE.heading)]
pub struct EdgeFlags {
    /// HTTPS address of the services of projects: `https://<ref>.<domain>`. May be repeated.
    /// Default: 127.0.0.1:8443, or another free port, for `gantry dev`; disabled for `gantry
    /// serve`.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTPS_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_https_listen: Vec<SocketAddr>,

    /// Address for plain HTTP, usually port 80: redirects clients to HTTPS and answers ACME
    /// challenges.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTP_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_http_listen: Vec<SocketAddr>,

    /// Loopback address where your own proxy checks whether a host name belongs to a project: `GET
    /// /?domain=<name>` returns 200 or 404.
    #[arg(
        long,
        env = "GANTRY_EDGE_ASK_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_ask_listen: Vec<SocketAddr>,

    /// Certificate chain (PEM) for `*.<domain>`. Reloaded when the file changes. Default: a local
    /// certificate authority for `gantry dev`.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_CERT",
        requires = "edge_tls_key",
        value_name = "FILE"
    )]
    pub edge_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the `*.<domain>` certificate.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_KEY",
        requires = "edge_tls_cert",
        value_name = "FILE"
    )]
    pub edge_tls_key: Option<PathBuf>,

    /// Obtain the certificate of `*.<domain>` by a DNS-01 challenge instead of `--edge-tls-cert`.
    /// `_acme-challenge.<domain>` must be in `--acme-dns-zone` or delegated to it.
    #[arg(
        long,
        env = "GANTRY_EDGE_ACME_WILDCARD",
        requires = "acme_dns_zone",
        conflicts_with = "edge_tls_cert"
    )]
    pub edge_acme_wildcard: bool,

    /// Require an API key of the project for `rest`, `auth` and `realtime`, in the header or query
    /// parameter `apikey` or as bearer token. Pages of the sign-in flow stay open. `gantry
    /// key-check` overrides it for one project.
    #[arg(long, env = "GANTRY_EDGE_CHECK_KEYS")]
    pub edge_check_keys: bool,

    /// Treatment of header fields with underscores in their names. Many services read
    /// `X_Forwarded_For` as `X-Forwarded-For`, which only the proxy may set.
    #[arg(long, env = "GANTRY_EDGE_UNDERSCORE_HEADERS", value_enum, default_value_t = UnderscoreHeaders::Drop, value_name = "ACTION")]
    pub edge_underscore_headers: UnderscoreHeaders,
}
