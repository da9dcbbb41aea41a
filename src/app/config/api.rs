//! Options of the API.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use ipnet::IpNet;

use super::sections;
use crate::platform::http::transport::ClientHeader;

/// Addresses and certificate of the API.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::API.heading)]
pub struct ApiFlags {
    /// Address of the API.
    #[arg(
        long,
        env = "GANTRY_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,

    /// URL of this server for clients: scheme, host and port. It is the issuer of OAuth tokens;
    /// applications can request consent only if it is set. Default: none for `gantry serve`, the
    /// listening address for `gantry dev`.
    #[arg(long, env = "GANTRY_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,

    /// Certificate chain (PEM) for HTTPS. Reloaded when the file changes.
    #[arg(
        long,
        env = "GANTRY_TLS_CERT",
        requires = "tls_key",
        value_name = "FILE"
    )]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate.
    #[arg(
        long,
        env = "GANTRY_TLS_KEY",
        requires = "tls_cert",
        value_name = "FILE"
    )]
    pub tls_key: Option<PathBuf>,

    /// Networks of reverse proxies with trusted forwarding headers for the client's address
    /// and protocol. Comma separated.
    #[arg(
        long,
        env = "GANTRY_TRUSTED_PROXIES",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub trusted_proxies: Vec<IpNet>,

    /// Header in which the trusted proxies send the client's address: `x-forwarded-for`,
    /// `forwarded` (RFC 7239), or a proprietary one such as `cf-connecting-ip`. All others are
    /// ignored.
    #[arg(
        long,
        env = "GANTRY_CLIENT_ADDRESS_HEADER",
        default_value_t,
        value_name = "HEADER"
    )]
    pub client_address_header: ClientHeader,

    /// Address for /healthz, /readyz and /metrics. Disabled by default.
    #[arg(long, env = "GANTRY_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// Unix socket of the operator API, which sets the upstreams of single projects. Only the
    /// account that Gantry runs under can open the file, until its mode is changed. Disabled by
    /// default.
    #[arg(long, env = "GANTRY_OPERATOR_SOCKET", value_name = "FILE")]
    pub operator_socket: Option<PathBuf>,

    /// Lifetime of OAuth access tokens, in minutes.
    #[arg(long, env = "GANTRY_OAUTH_ACCESS_LIFE", default_value_t = 1440, value_parser = clap::value_parser!(i64).range(5..=10_080), value_name = "MINUTES")]
    pub oauth_access_life: i64,

    /// URL of the fair-use policy, published in the OpenAPI document.
    #[arg(long, env = "GANTRY_TERMS_URL", value_name = "URL")]
    pub terms_url: Option<String>,

    /// URL of the pricing page, published in the OpenAPI document.
    #[arg(long, env = "GANTRY_PRICING_URL", value_name = "URL")]
    pub pricing_url: Option<String>,
}
