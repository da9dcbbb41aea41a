//! Listeners for the services of projects. `gantry serve` uses the configured addresses; `gantry
//! dev` listens on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use gantry_node::clusters::Home;
use tokio::task::JoinSet;

use crate::{
    app::{App, config::Config},
    cli::listeners::{ListenerDefaults, bind},
    control::proxies,
    proxy::service_proxy::{self, ServiceProxyListeners, WildcardCertificate},
};

/// Common HTTPS port that needs no privileges.
const PORT: u16 = 8443;

/// Bound listeners that do not accept connections yet.
pub(super) struct ServiceListeners {
    https: Vec<TcpListener>,
    http: Vec<TcpListener>,
    ask: Vec<TcpListener>,
    defaults: ListenerDefaults,
    wildcard: Option<WildcardCertificate>,
}

impl ServiceListeners {
    /// Binds the listeners. When the default port of `gantry dev` is in use, a free port is used
    /// instead.
    pub(super) fn bind(config: &Config, defaults: ListenerDefaults) -> anyhow::Result<Self> {
        let all = |addresses: &[SocketAddr], flag| {
            addresses
                .iter()
                .map(|address| bind(*address, flag))
                .collect::<anyhow::Result<Vec<_>>>()
        };
        let https =
            if defaults == ListenerDefaults::Local && config.edge.edge_https_listen.is_empty() {
                let near = |port| bind((Ipv4Addr::LOCALHOST, port).into(), "--edge-https-listen");
                vec![near(PORT).or_else(|_| near(0))?]
            } else {
                all(&config.edge.edge_https_listen, "--edge-https-listen")?
            };
        let http = all(&config.edge.edge_http_listen, "--edge-http-listen")?;
        Ok(Self {
            https,
            http,
            ask: all(&config.edge.edge_ask_listen, "--edge-ask-listen")?,
            defaults,
            wildcard: None,
        })
    }

    /// Loads the configured certificate, or creates one.
    pub(super) fn certify(&mut self, config: &Config, home: &Home) -> anyhow::Result<()> {
        self.wildcard = match (&config.edge.edge_tls_cert, &config.edge.edge_tls_key) {
            (Some(cert), Some(key)) => Some(WildcardCertificate::from_files(cert, key)?),
            _ if config.edge.edge_acme_wildcard => None,
            _ if self.defaults == ListenerDefaults::Local => Some(
                WildcardCertificate::own_authority(home.dir(), &config.projects.project_domain)?,
            ),
            _ => None,
        };
        if self.wildcard.is_none() && !config.edge.edge_acme_wildcard && !self.https.is_empty() {
            tracing::warn!(
                "neither --edge-tls-cert nor --edge-acme-wildcard is set: hosts under {} are not served, only custom hostnames are",
                config.projects.project_domain
            );
        }
        Ok(())
    }

    /// Returns the bound HTTPS addresses, with the actual port where the configuration says port 0.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.https
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Starts accepting connections, if any listener is configured.
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
        Ok(service_proxy::listen(
            &proxies::service_proxy(app),
            listeners,
            self.wildcard,
        )?)
    }
}
