//! Options of certificates for custom hostnames.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::sections;

/// Certificate authority and challenges for custom hostnames.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::ACME.heading)]
pub struct AcmeFlags {
    /// Directory URL of the ACME certificate authority for custom hostnames, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Setting it accepts the authority's terms
    /// of service. The authority connects to ports 80 and 443 of the proxy.
    #[arg(long, env = "GANTRY_ACME_DIRECTORY", value_name = "URL")]
    pub acme_directory: Option<String>,

    /// Root certificate (PEM) for connections to the authority. Default: the system's.
    #[arg(
        long,
        env = "GANTRY_ACME_ROOT",
        requires = "acme_directory",
        value_name = "FILE"
    )]
    pub acme_root: Option<PathBuf>,

    /// Contact email address for the authority.
    #[arg(
        long,
        env = "GANTRY_ACME_CONTACT",
        requires = "acme_directory",
        value_name = "EMAIL"
    )]
    pub acme_contact: Option<String>,

    /// Issuer domain name of the authority in CAA records, such as `letsencrypt.org`. With it, a
    /// hostname with CAA records that exclude the authority is rejected before an order is made.
    #[arg(
        long,
        env = "GANTRY_ACME_ISSUER",
        requires = "acme_directory",
        value_name = "NAME"
    )]
    pub acme_issuer: Option<String>,

    /// DNS zone under your control for DNS-01 challenges: for custom hostnames with
    /// `_acme-challenge` delegated to it, for example behind another proxy, and for
    /// `--edge-acme-wildcard`. Written by `--acme-dns-server` or `--acme-dns-hook`.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_ZONE",
        requires = "acme_directory",
        value_name = "DOMAIN"
    )]
    pub acme_dns_zone: Option<String>,

    /// Name server that accepts dynamic updates (RFC 2136) of that zone.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_SERVER",
        requires = "acme_dns_zone",
        requires = "acme_dns_key",
        conflicts_with = "acme_dns_hook",
        value_name = "ADDRESS:PORT"
    )]
    pub acme_dns_server: Option<SocketAddr>,

    /// File with the TSIG key of the updates, as `hmac-sha256:name:base64`.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_KEY",
        requires = "acme_dns_server",
        value_name = "FILE"
    )]
    pub acme_dns_key: Option<PathBuf>,

    /// Program that writes the challenge records instead. It is run with `present` or `cleanup`,
    /// the record name and its value, has thirty seconds, and may run twice for one record. If
    /// Gantry runs as root, the program runs as the owner of its file.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_HOOK",
        requires = "acme_dns_zone",
        value_name = "PROGRAM"
    )]
    pub acme_dns_hook: Option<PathBuf>,

    /// DNS resolver for finding the name servers of custom hostnames. May be repeated. Default: the
    /// system's resolver.
    #[arg(
        long,
        env = "GANTRY_DNS_RESOLVER",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub dns_resolver: Vec<SocketAddr>,
}
