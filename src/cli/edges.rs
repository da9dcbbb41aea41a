//! The listeners for projects' services: where `gantry serve` was told to, and in `gantry dev` on this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::task::JoinSet;

use crate::{
    app::{App, config::Config},
    cli::{databases::Choice, serve::bind},
    data_plane::{
        clusters::Home,
        service_proxy,
        service_proxy::{ServiceProxyListeners, WildcardCertificate},
    },
};

/// Where people look for HTTPS that needs no privileges.
const PORT: u16 = 8443;

/// Bound, and not yet listening.
pub(super) struct Edges {
    https: Vec<TcpListener>,
    http: Vec<TcpListener>,
    ask: Vec<TcpListener>,
    choice: Choice,
    wildcard: Option<WildcardCertificate>,
}

impl Edges {
    /// Binds. In `gantry dev` a port that somebody has is no fault: another one is taken.
    pub(super) fn bind(config: &Config, choice: Choice) -> anyhow::Result<Self> {
        let all = |addresses: &[SocketAddr], flag| {
            addresses
                .iter()
                .map(|address| bind(*address, flag))
                .collect::<anyhow::Result<Vec<_>>>()
        };
        let https = if choice == Choice::Convenient && config.edge_https_listen.is_empty() {
            let near = |port| bind((Ipv4Addr::LOCALHOST, port).into(), "--edge-https-listen");
            vec![near(PORT).or_else(|_| near(0))?]
        } else {
            all(&config.edge_https_listen, "--edge-https-listen")?
        };
        let http = all(&config.edge_http_listen, "--edge-http-listen")?;
        Ok(Self {
            https,
            http,
            ask: all(&config.edge_ask_listen, "--edge-ask-listen")?,
            choice,
            wildcard: None,
        })
    }

    /// Reads or makes the certificate.
    pub(super) fn certify(&mut self, config: &Config, home: &Home) -> anyhow::Result<()> {
        self.wildcard = match (&config.edge_tls_cert, &config.edge_tls_key) {
            (Some(cert), Some(key)) => Some(WildcardCertificate::from_files(cert, key)?),
            _ if config.edge_acme_wildcard => None,
            _ if self.choice == Choice::Convenient => Some(WildcardCertificate::own_authority(
                home.dir(),
                &config.project_domain,
            )?),
            _ => None,
        };
        if self.wildcard.is_none() && !config.edge_acme_wildcard && !self.https.is_empty() {
            tracing::warn!(
                "without --edge-tls-cert or --edge-acme-wildcard nobody reaches a project under {}: only custom hostnames are served",
                config.project_domain
            );
        }
        Ok(())
    }

    /// Where HTTPS is answered: the ports chosen, where the configuration left it open.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.https
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Begins to take connections, if there is anywhere to take them.
    pub(super) fn listen(self, app: &App) -> anyhow::Result<JoinSet<()>> {
        if self.https.is_empty() && self.http.is_empty() && self.ask.is_empty() {
            return Ok(JoinSet::new());
        }
        let all = |listeners: Vec<TcpListener>| {
            listeners
                .into_iter()
                .map(tokio::net::TcpListener::from_std)
                .collect::<Result<Vec<_>, _>>()
        };
        let listeners = ServiceProxyListeners {
            https: all(self.https)?,
            http: all(self.http)?,
            ask: all(self.ask)?,
        };
        Ok(service_proxy::listen(app, listeners, self.wildcard)?)
    }
}
