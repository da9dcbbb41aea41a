//! Checks of option combinations, and options in the types of their consumers.

use std::{net::SocketAddr, time::Duration};

use chrono::TimeDelta;
use secrecy::ExposeSecret;

use super::Config;
use crate::platform::{object_store, rate_limits};

/// An invalid combination of options.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The API would listen without TLS on a public address.
    #[error(
        "{0} is reachable from other machines, and tokens would be sent unencrypted: \
         give --tls-cert and --tls-key, or list the proxies in front in --trusted-proxies, or listen on 127.0.0.1"
    )]
    PlainHttp(SocketAddr),
    /// Databases would be reachable without TLS on a public address.
    #[error(
        "{0} is reachable from other machines, and database contents would be sent unencrypted: give --db-tls-cert and --db-tls-key, or listen on 127.0.0.1"
    )]
    PlainDatabases(SocketAddr),
    /// The host check would be public.
    #[error(
        "{0} is reachable from other machines, and the host check must be private: give --edge-ask-listen a loopback address"
    )]
    OpenAsk(SocketAddr),
    /// No way to write the challenge records is set.
    #[error(
        "--acme-dns-zone needs --acme-dns-server and --acme-dns-key, or --acme-dns-hook, to write the challenge records"
    )]
    UnwrittenZone,
    /// The URL of the rate-limit store is invalid.
    #[error("{0}")]
    Limits(crate::platform::error::Error),
    /// Shared counters need a control database that other processes can reach.
    #[error(
        "--limits-url postgres shares counters through the control database, so it needs --database-url"
    )]
    NothingShared,
    /// Nodes are those of one control database.
    #[error(
        "--fleet-listen connects the nodes of one control database, so it needs --database-url"
    )]
    NothingSharedWithNodes,
    /// Other nodes cannot connect to an unspecified address.
    #[error("--fleet-listen {0} names no address for other nodes: give --fleet-address")]
    NoFleetAddress(SocketAddr),
    /// The issuer of tokens must be an origin: the protocol appends paths to it.
    #[error(
        "--public-url must be a scheme, a host and a port, such as https://api.example.com, without a path"
    )]
    NotAnOrigin,
    /// A project could set cookies for the account pages and imitate them.
    #[error(
        "--public-url is below --project-domain, which belongs to the projects: choose a host outside of it"
    )]
    AmongProjects,
    /// The object store of the logs is invalid.
    #[error("{0}")]
    Logs(#[from] object_store::PlaceError),
}

impl Config {
    /// Checks combinations of options that clap cannot check.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.node.check(self.control.database_url.is_some())?;
        let plain = self.api.tls_cert.is_none();
        if plain && !self.api.listen.ip().is_loopback() && self.api.trusted_proxies.is_empty() {
            return Err(ConfigError::PlainHttp(self.api.listen));
        }
        if let Some(open) = self
            .databases
            .db_listen
            .iter()
            .find(|address| !address.ip().is_loopback() && self.databases.db_tls_cert.is_none())
        {
            return Err(ConfigError::PlainDatabases(*open));
        }
        if let Some(open) = self
            .edge
            .edge_ask_listen
            .iter()
            .find(|address| !address.ip().is_loopback())
        {
            return Err(ConfigError::OpenAsk(*open));
        }
        if self.acme.acme_dns_zone.is_some()
            && self.acme.acme_dns_server.is_none()
            && self.acme.acme_dns_hook.is_none()
        {
            return Err(ConfigError::UnwrittenZone);
        }
        let postgres = self
            .rate_limits
            .limits_url
            .as_ref()
            .is_some_and(|url| url.expose_secret() == "postgres");
        if postgres && self.control.database_url.is_none() {
            return Err(ConfigError::NothingShared);
        }
        let public = self
            .api
            .public_url
            .as_ref()
            .map(|url| url::Url::parse(url).map_err(|_| ConfigError::NotAnOrigin))
            .transpose()?;
        if public.as_ref().is_some_and(|url| {
            self.public_url().as_deref() != Some(&url.origin().ascii_serialization())
        }) {
            return Err(ConfigError::NotAnOrigin);
        }
        let host = public.as_ref().and_then(url::Url::host_str);
        if host.is_some_and(|host| {
            host.ends_with(&format!(
                ".{}",
                self.projects.project_domain.to_ascii_lowercase()
            ))
        }) {
            return Err(ConfigError::AmongProjects);
        }
        self.logs.store.check()?;
        self.backups.options(&self.logs.store)?;
        self.counting().check().map_err(ConfigError::Limits)
    }

    /// The public URL without a slash at the end.
    pub fn public_url(&self) -> Option<String> {
        self.api
            .public_url
            .as_ref()
            .map(|url| url.trim_end_matches('/').to_owned())
    }

    /// Lifetime of OAuth access tokens.
    pub fn oauth_access_life(&self) -> TimeDelta {
        TimeDelta::minutes(self.api.oauth_access_life)
    }

    /// The store of the rate-limit counters.
    pub fn counting(&self) -> rate_limits::Options {
        let url = match self
            .rate_limits
            .limits_url
            .as_ref()
            .map(ExposeSecret::expose_secret)
        {
            Some("memory") => None,
            Some(_) => self.rate_limits.limits_url.clone(),
            // Other processes may use the control database too.
            None => self
                .control
                .database_url
                .is_some()
                .then(|| "postgres".into()),
        };
        rate_limits::Options {
            url,
            deadline: Duration::from_millis(self.rate_limits.limits_deadline_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn public_listener_without_tls_or_proxy_is_rejected() {
        let cases = [
            (vec!["x"], true),
            (vec!["x", "--listen", "[::1]:1"], true),
            (vec!["x", "--listen", "0.0.0.0:1"], false),
            (
                vec![
                    "x",
                    "--listen",
                    "0.0.0.0:1",
                    "--trusted-proxies",
                    "10.0.0.0/8,192.168.0.0/16",
                ],
                true,
            ),
            (
                vec![
                    "x",
                    "--listen",
                    "0.0.0.0:1",
                    "--tls-cert",
                    "c",
                    "--tls-key",
                    "k",
                ],
                true,
            ),
        ];
        for (line, ok) in cases {
            assert_eq!(
                Line::parse_from(&line).config.check().is_ok(),
                ok,
                "{line:?}"
            );
        }
    }

    #[test]
    fn public_host_check_listener_is_rejected() {
        for (address, ok) in [
            ("127.0.0.1:5555", true),
            ("[::1]:1,127.0.0.1:2", true),
            ("127.0.0.1:1,10.0.0.1:2", false),
            ("0.0.0.0:1", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--edge-ask-listen", address])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{address}"
            );
        }
    }

    #[test]
    fn public_database_listener_without_tls_is_rejected() {
        for (address, ok) in [
            ("127.0.0.1:5432", true),
            ("[::1]:1,127.0.0.1:2", true),
            ("127.0.0.1:1,10.0.0.1:2", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--db-listen", address])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{address}"
            );
            let line = [
                "x",
                "--db-listen",
                address,
                "--db-tls-cert",
                "c",
                "--db-tls-key",
                "k",
            ];
            assert!(Line::parse_from(line).config.check().is_ok());
        }
    }

    #[test]
    fn public_url_below_the_project_domain_is_rejected() {
        for (url, ok) in [
            ("https://gantry.example.com", true),
            ("https://projects.test", true),
            ("https://otherprojects.test", true),
            ("https://account.Projects.test/", false),
            ("https://a.b.projects.test:8443", false),
        ] {
            let line = [
                "x",
                "--project-domain",
                "Projects.test",
                "--public-url",
                url,
            ];
            assert_eq!(Line::parse_from(line).config.check().is_ok(), ok, "{url}");
        }
    }

    #[test]
    fn public_url_with_more_than_an_origin_is_rejected() {
        for (url, ok) in [
            ("https://gantry.example.com", true),
            ("https://gantry.example.com/", true),
            ("http://127.0.0.1:8080", true),
            ("https://[::1]:8443", true),
            ("https://gantry.example.com/base", false),
            ("https://gantry.example.com?x", false),
            ("https://gantry.example.com#x", false),
            ("https://user@gantry.example.com", false),
            ("https://Gantry.example.com", false),
            ("https://gantry.example.com:443", false),
            ("gantry.example.com", false),
            ("ftp:gantry", false),
            ("", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--public-url", url])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{url}"
            );
        }
    }

    #[test]
    fn counters_are_shared_with_a_control_database_or_redis() {
        let database = ["--database-url", "postgres://db.internal/gantry"];
        let cases = [
            (vec!["x", "--limits-url", "redis://10.0.0.1"], true),
            (vec!["x", "--limits-url", "http://10.0.0.1"], false),
            (vec!["x", "--limits-url", "postgres"], false),
            (
                [&["x", "--limits-url", "postgres"][..], &database].concat(),
                true,
            ),
        ];
        for (line, ok) in cases {
            assert_eq!(
                Line::parse_from(&line).config.check().is_ok(),
                ok,
                "{line:?}"
            );
        }
        assert!(Line::try_parse_from(["x", "--client-address-header", "not a header"]).is_err());
        let shared = |line: &[&str]| {
            Line::parse_from([&["x"], line].concat())
                .config
                .counting()
                .url
                .is_some()
        };
        assert!(!shared(&[]), "the embedded database has one process");
        assert!(shared(&database));
        assert!(!shared(
            &[&database[..], &["--limits-url", "memory"]].concat()
        ));
    }

    #[test]
    fn certificate_without_key_is_rejected() {
        assert!(Line::try_parse_from(["x", "--tls-cert", "c"]).is_err());
    }
}
