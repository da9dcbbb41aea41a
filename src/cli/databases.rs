//! Listeners for database connections. `gantry serve` uses the configured addresses; `gantry dev`
//! uses the default ports of PostgreSQL clients.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
};

use gantry_node::clusters::Home;
use tokio::task::JoinSet;

use crate::{
    app::{App, config::Config},
    cli::listeners::{ListenerDefaults, bind},
    control::proxies,
    proxy::postgres_proxy::{self, PostgresProxyTls, PublishedAddress, SessionKind},
};

/// Default port of PostgreSQL.
const PORT: u16 = 5432;
/// Default port of connection poolers.
const POOLER_PORT: u16 = 6543;

/// Bound listeners that do not accept connections yet.
pub(super) struct DatabaseListeners {
    listeners: Vec<(TcpListener, SessionKind)>,
    defaults: ListenerDefaults,
    tls: Option<PostgresProxyTls>,
    /// Default ports that another process uses.
    pub(super) taken: Vec<u16>,
    /// Certificate file of the local certificate authority, for clients to trust.
    pub(super) authority: Option<PathBuf>,
}

impl DatabaseListeners {
    /// Binds the listeners. When a default port of `gantry dev` is in use, a free port is used
    /// instead.
    pub(super) fn bind(config: &Config, defaults: ListenerDefaults) -> anyhow::Result<Self> {
        let mut taken = Vec::new();
        let listeners =
            if defaults == ListenerDefaults::Local && config.databases.db_listen.is_empty() {
                let mut bind_near = |port| {
                    bind((Ipv4Addr::LOCALHOST, port).into(), "--db-listen").or_else(|_| {
                        taken.push(port);
                        bind((Ipv4Addr::LOCALHOST, 0).into(), "--db-listen")
                    })
                };
                vec![
                    (bind_near(PORT)?, SessionKind::Direct),
                    (bind_near(POOLER_PORT)?, SessionKind::Pooled),
                ]
            } else {
                let bind_one = |address: &SocketAddr| {
                    anyhow::Ok((bind(*address, "--db-listen")?, kind(config, *address)))
                };
                let configured = config.databases.db_listen.iter().map(bind_one);
                configured.collect::<anyhow::Result<_>>()?
            };
        Ok(Self {
            listeners,
            defaults,
            tls: None,
            taken,
            authority: None,
        })
    }

    /// Loads the configured certificate, or creates one.
    pub(super) fn certify(&mut self, config: &Config, home: &Home) -> anyhow::Result<()> {
        if let (Some(cert), Some(key)) =
            (&config.databases.db_tls_cert, &config.databases.db_tls_key)
        {
            self.tls = Some(PostgresProxyTls::from_files(cert, key)?);
        } else if self.defaults == ListenerDefaults::Local {
            let (tls, authority) =
                PostgresProxyTls::own_authority(home.dir(), &config.projects.project_domain)?;
            (self.tls, self.authority) = (Some(tls), Some(authority));
        }
        Ok(())
    }

    /// Returns the bound addresses, with the actual port where the configuration says port 0.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|(listener, _)| listener.local_addr().ok())
            .collect()
    }

    /// Returns the port of the first listener of a kind.
    fn port(&self, kind: SessionKind) -> Option<u16> {
        let found = self.listeners.iter().find(|(_, found)| *found == kind);
        Some(found?.0.local_addr().ok()?.port())
    }

    /// Returns the host and port to publish in connection strings.
    pub(super) fn published(&self, config: &Config) -> Option<PublishedAddress> {
        let pooler_port = self.port(SessionKind::Pooled);
        let port = self.port(SessionKind::Direct).or(pooler_port)?;
        let host = config
            .databases
            .db_host
            .clone()
            .unwrap_or_else(|| format!("pooler.{}", config.projects.project_domain));
        Some(PublishedAddress {
            host,
            port,
            pooler_port,
            tls: self.tls.is_some(),
        })
    }

    /// Starts accepting connections.
    pub(super) fn listen(self, app: &App) -> anyhow::Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        for (listener, kind) in self.listeners {
            tasks.spawn(postgres_proxy::run(
                proxies::postgres_proxy(&app.control),
                tokio::net::TcpListener::from_std(listener)?,
                self.tls.clone(),
                kind,
            ));
        }
        Ok(tasks)
    }
}

/// Returns the sessions of a configured address: those of the pooler's port are pooled.
fn kind(config: &Config, address: SocketAddr) -> SessionKind {
    if address.port() != 0 && address.port() == config.databases.pooler_port {
        SessionKind::Pooled
    } else {
        SessionKind::Direct
    }
}
