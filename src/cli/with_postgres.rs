//! `gantry with-postgres -- command`: a throw-away control cluster and a prepared template for a command, such as the
//! test runner. Nothing is left behind.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use tokio::process::Command;

use crate::{
    base::clock::Entropy,
    cli::engine,
    data_plane::clusters::{
        Account, Control, Engine, Engines, Home, Installed, Launcher, LocalDriver, OldVersions,
        engines::DEFAULT_MAJOR, install::Release, server::Host,
    },
};

/// Data folder of the throw-away control cluster, for the command.
const HOME_VARIABLE: &str = "GANTRY_TEST_HOME";
/// Prepared templates, for the command.
const TEMPLATES_VARIABLE: &str = "GANTRY_TEST_TEMPLATES";

/// Folder with PostgreSQL versions beside the distribution's, for the command.
const ENGINES_VARIABLE: &str = "GANTRY_TEST_ENGINES";

#[derive(Debug, Args)]
pub(super) struct WithPostgres {
    /// Folder with PostgreSQL's programs.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    postgres_bin: Option<PathBuf>,
    /// Folder with PostgreSQL versions beside the distribution's. Kept between runs.
    #[arg(
        long,
        default_value = "/var/tmp/gantry-test-engines",
        value_name = "DIR"
    )]
    engines: PathBuf,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl WithPostgres {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let entropy = Entropy::system();
        let dir = std::env::temp_dir().join(format!("gantry-{}", entropy.letters(8)));
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o711))?;
        let outcome = self.run_in(&dir, entropy).await;
        std::fs::remove_dir_all(&dir)
            .with_context(|| format!("cannot remove {}", dir.display()))?;
        outcome
    }

    async fn run_in(&self, dir: &Path, entropy: Entropy) -> anyhow::Result<()> {
        let home = Arc::new(Home::open(dir, Account::for_servers()?)?);
        let engines = self.engines().await?;
        let host = Host {
            engine: Engine::find(self.postgres_bin.as_deref())?,
            launcher: Launcher::default(),
        };
        let control = Control::ensure(&home, &host, &entropy).await?;
        let set = loosen(&control).await;
        control.stop().await?;
        set?;
        let control = Control::ensure(&home, &host, &entropy).await?;
        let outcome = async {
            LocalDriver::open(home.clone(), host, entropy)
                .with_engines(engines)
                .prepare()
                .await?;
            let (program, arguments) = self.command.split_first().context("no command")?;
            let status = Command::new(program)
                .args(arguments)
                .env(HOME_VARIABLE, home.dir())
                .env(TEMPLATES_VARIABLE, home.dir().join("templates"))
                .env(ENGINES_VARIABLE, &self.engines)
                .status()
                .await
                .with_context(|| format!("cannot run {program}"))?;
            anyhow::ensure!(status.success(), "{program} ended with {status}");
            Ok(())
        }
        .await;
        control.stop().await?;
        outcome
    }

    /// The PostgreSQL versions of projects. The default version is installed if it is missing; without a registry the
    /// command runs on the versions that are there.
    async fn engines(&self) -> anyhow::Result<Engines> {
        std::fs::create_dir_all(&self.engines)?;
        // Servers of every account run these programs, and only this account may write them.
        std::fs::set_permissions(&self.engines, std::fs::Permissions::from_mode(0o755))
            .with_context(|| {
                format!(
                    "{} belongs to another account; choose another folder with --engines",
                    self.engines.display()
                )
            })?;
        let installed = || Installed::find(self.postgres_bin.as_deref(), &self.engines);
        if self.postgres_bin.is_none()
            && installed()?
                .all()
                .iter()
                .all(|engine| engine.major() != DEFAULT_MAJOR)
            && let Err(error) =
                engine::install_into(&self.engines, DEFAULT_MAJOR, Release::Pinned).await
        {
            anstream::eprintln!(
                "PostgreSQL {DEFAULT_MAJOR} could not be installed, so projects run on another version: {error:#}"
            );
        }
        Ok(installed()?.offer(OldVersions::Offered)?)
    }
}

/// Makes it fit for a command that is many at once, and for being thrown away: nothing needs to survive a power cut. Holds from
/// the next start.
async fn loosen(control: &Control) -> anyhow::Result<()> {
    let (client, connection) = control.config().connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    for setting in [
        "fsync = off",
        "full_page_writes = off",
        "max_connections = 200",
    ] {
        client
            .batch_execute(&format!("alter system set {setting}"))
            .await?;
    }
    Ok(())
}
