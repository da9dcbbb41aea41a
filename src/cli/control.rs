//! The control database for commands: the one named, or the embedded cluster of the data folder, running or not.

use std::sync::Arc;

use anyhow::Context;
use secrecy::ExposeSecret;

use crate::{
    app::config::ControlOptions,
    base::{clock::Entropy, db::Db},
    data_plane::clusters::{
        Account, ClusterError, Control, Home, Installed, Launcher, Location, server::Host,
    },
};

/// An open control database.
pub(super) struct OpenControl {
    db: Db,
    /// Present if this process started the cluster, which it then stops.
    started: Option<(Control, Arc<Home>)>,
}

impl OpenControl {
    /// Works with the control database, brought up to date, and closes it however the work ends.
    pub(super) async fn with<T>(
        options: &ControlOptions,
        work: impl AsyncFnOnce(&Db) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        Self::with_unmigrated(options, async |db| {
            db.migrate()
                .await
                .context("the control database could not be brought up to date")?;
            work(db).await
        })
        .await
    }

    /// The same, with the database as it is.
    pub(super) async fn with_unmigrated<T>(
        options: &ControlOptions,
        work: impl AsyncFnOnce(&Db) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let open = Self::connect(options).await?;
        let outcome = work(&open.db).await;
        let closed = open.close().await;
        let value = outcome?;
        closed.map(|()| value)
    }

    async fn connect(options: &ControlOptions) -> anyhow::Result<Self> {
        if let Some(url) = &options.database_url {
            let config = url
                .expose_secret()
                .parse::<tokio_postgres::Config>()
                .context("--database-url is not a PostgreSQL URL")?;
            return Ok(Self {
                db: Db::new(config)?,
                started: None,
            });
        }
        let account = Account::for_servers()?;
        match Home::open(&options.home(), account) {
            Ok(home) => {
                let home = Arc::new(home);
                Location::confirm(home.dir())?;
                let installed = Installed::find(
                    options.postgres_bin.as_deref(),
                    &Home::engines_of(home.dir()),
                )?;
                let host = Host {
                    engine: installed.fitting(&home.control_data()).clone(),
                    launcher: Launcher::default(),
                };
                let control = Control::ensure(&home, &host, &Entropy::system()).await?;
                Ok(Self {
                    db: Db::new(control.config())?,
                    started: Some((control, home)),
                })
            }
            // A server runs on this folder: its control cluster is up.
            Err(ClusterError::InUse { dir, .. }) => Ok(Self {
                db: Db::new(Control::config_in(&dir))?,
                started: None,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops what this process started.
    async fn close(self) -> anyhow::Result<()> {
        if let Some((control, _home)) = &self.started {
            control.stop().await?;
        }
        Ok(())
    }
}
