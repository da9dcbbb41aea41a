//! Access to the control database for commands: the database of `--database-url`, or the embedded
//! cluster of the data folder, which is started when it is not running.

use std::sync::Arc;

use anyhow::Context;
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::{Control, Home, Location, server::Host},
    engines::{Installed, LayoutOptions},
    error::ClusterError,
    supervisor::{Account, Launcher},
};
use secrecy::{ExposeSecret, SecretString};

use crate::{app::config::ControlOptions, control::installation::recovery, platform::db::Db};

/// An open connection to the control database.
pub(super) struct OpenControl {
    db: Db,
    /// The control cluster, if this process started it and must stop it.
    started: Option<(Control, Arc<Home>)>,
}

impl OpenControl {
    /// Runs `work` on the control database after applying migrations. Closes the connection in any
    /// case.
    pub(super) async fn with<T>(
        options: &ControlOptions,
        work: impl AsyncFnOnce(&Db) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        Self::with_unmigrated(options, async |db| {
            db.migrate()
                .await
                .context("migrating the control database failed")?;
            work(db).await
        })
        .await
    }

    /// Runs `work` on the control database without applying migrations. Closes the connection in
    /// any case.
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
            return Ok(Self {
                db: Db::new(parsed(url)?)?,
                started: None,
            });
        }
        let account = Account::for_servers()?;
        match Home::open(&options.home(), account) {
            Ok(home) => {
                let home = Arc::new(home);
                recovery::check_complete(home.dir())?;
                Location::confirm(home.dir())?;
                let control = start(&home, options).await?;
                Ok(Self {
                    db: Db::new(control.config())?,
                    started: Some((control, home)),
                })
            }
            // A server runs on this data folder, so its control cluster is running.
            Err(ClusterError::InUse { dir, .. }) => Ok(Self {
                db: Db::new(Control::config_in(&dir))?,
                started: None,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops the control cluster if this process started it.
    async fn close(self) -> anyhow::Result<()> {
        if let Some((control, _home)) = &self.started {
            control.stop().await?;
        }
        Ok(())
    }
}

/// Returns the control database without starting a control cluster. Connects on first use.
pub(super) fn running(options: &ControlOptions) -> anyhow::Result<Db> {
    let config = if let Some(url) = &options.database_url {
        parsed(url)?
    } else {
        let home = options.home();
        let dir = home.canonicalize();
        Control::config_in(&dir.with_context(|| format!("cannot open {}", home.display()))?)
    };
    Ok(Db::new(config)?)
}

fn parsed(url: &SecretString) -> anyhow::Result<tokio_postgres::Config> {
    let parsed = url.expose_secret().parse();
    parsed.context("--database-url is not a PostgreSQL URL")
}

/// Starts the embedded control cluster of an open data folder, unless it runs.
pub(super) async fn start(home: &Arc<Home>, options: &ControlOptions) -> anyhow::Result<Control> {
    let engines = Home::engines_of(home.dir());
    let installed = Installed::find(options.postgres_bin.as_deref(), &engines)?;
    let data = home.control_data();
    let engine = if installed.fitting(&data).runs_alone() {
        installed.fitting(&data).clone()
    } else {
        let laid_out = installed.laid_out(&LayoutOptions::beside(&engines), &Entropy::system());
        laid_out.fitting(&data).clone()
    };
    let host = Host {
        engine,
        launcher: Launcher::default(),
    };
    Ok(Control::ensure(home, &host, &Entropy::system()).await?)
}
