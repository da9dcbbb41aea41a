//! The listeners for databases: where `gantry serve` was told to, and in `gantry dev` where PostgreSQL's clients look first.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
};

use tokio::task::JoinSet;

use crate::{
    app::{App, config::Config},
    cli::serve::bind,
    data_plane::{
        clusters::Home,
        postgres_proxy,
        postgres_proxy::{PostgresProxyTls, PublishedAddress},
    },
};

/// PostgreSQL's own port, and that of poolers.
const PORTS: [u16; 2] = [5432, 6543];

/// Who is to decide where databases are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The options alone.
    Options,
    /// Without options: this machine, with certificates of an authority of its own.
    Convenient,
}

/// Bound, and not yet listening.
pub(super) struct Databases {
    listeners: Vec<TcpListener>,
    choice: Choice,
    tls: Option<PostgresProxyTls>,
    /// Ports that somebody else has.
    pub(super) taken: Vec<u16>,
    /// The certificate of the authority that clients may trust.
    pub(super) authority: Option<PathBuf>,
}

impl Databases {
    /// Binds. In `gantry dev` a port that somebody has is no fault: another one is taken.
    pub(super) fn bind(config: &Config, choice: Choice) -> anyhow::Result<Self> {
        let mut taken = Vec::new();
        let listeners = if choice == Choice::Convenient && config.db_listen.is_empty() {
            let mut bind_near = |port| {
                bind((Ipv4Addr::LOCALHOST, port).into(), "--db-listen").or_else(|_| {
                    taken.push(port);
                    bind((Ipv4Addr::LOCALHOST, 0).into(), "--db-listen")
                })
            };
            PORTS
                .into_iter()
                .map(&mut bind_near)
                .collect::<anyhow::Result<_>>()?
        } else {
            config
                .db_listen
                .iter()
                .map(|address| bind(*address, "--db-listen"))
                .collect::<anyhow::Result<_>>()?
        };
        Ok(Self {
            listeners,
            choice,
            tls: None,
            taken,
            authority: None,
        })
    }

    /// Reads or makes the certificate.
    pub(super) fn certify(&mut self, config: &Config, home: &Home) -> anyhow::Result<()> {
        if let (Some(cert), Some(key)) = (&config.db_tls_cert, &config.db_tls_key) {
            self.tls = Some(PostgresProxyTls::from_files(cert, key)?);
        } else if self.choice == Choice::Convenient {
            let (tls, authority) =
                PostgresProxyTls::own_authority(home.dir(), &config.project_domain)?;
            (self.tls, self.authority) = (Some(tls), Some(authority));
        }
        Ok(())
    }

    /// Where they are reached: the ports chosen, where the configuration left it open.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// What connection strings say.
    pub(super) fn published(&self, config: &Config) -> Option<PublishedAddress> {
        let port = self.addresses().first()?.port();
        let host = config
            .db_host
            .clone()
            .unwrap_or_else(|| format!("pooler.{}", config.project_domain));
        Some(PublishedAddress {
            host,
            port,
            tls: self.tls.is_some(),
        })
    }

    /// Begins to take connections.
    pub(super) fn listen(self, app: &App) -> anyhow::Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        for listener in self.listeners {
            tasks.spawn(postgres_proxy::run(
                app.data_plane.clone(),
                tokio::net::TcpListener::from_std(listener)?,
                self.tls.clone(),
            ));
        }
        Ok(tasks)
    }
}
