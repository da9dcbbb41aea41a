//! `gantry with-postgres -- command`: run a command, such as the test runner, with a temporary
//! control cluster and a prepared template. Both are removed afterwards.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::{Control, Home, LocalDriver, server::Host},
    engines::{
        Engine, Engines, Installed, LayoutOptions, OldVersions, catalog::DEFAULT_MAJOR,
        install::Release,
    },
    supervisor::{Account, Launcher},
};
use tokio::process::Command;

use crate::cli::engine::{self, EngineName};

/// Environment variable for the command: data folder of the temporary control cluster.
const HOME_VARIABLE: &str = "GANTRY_TEST_HOME";
/// Environment variable for the command: folder with prepared templates.
const TEMPLATES_VARIABLE: &str = "GANTRY_TEST_TEMPLATES";

/// Environment variable for the command: folder with installed PostgreSQL versions.
const ENGINES_VARIABLE: &str = "GANTRY_TEST_ENGINES";

/// The oldest and the newest supported version: tests of all versions include them.
const FURTHER_MAJORS: [u16; 2] = [16, 18];

#[derive(Debug, Args)]
pub(super) struct WithPostgres {
    /// Folder with the programs of PostgreSQL.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    postgres_bin: Option<PathBuf>,
    /// Folder with installed PostgreSQL versions. It is kept between runs.
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

    /// Returns the PostgreSQL versions for projects. Installs the default version and
    /// [`FURTHER_MAJORS`] if they are missing; when the registry cannot be reached, the command
    /// runs with the installed versions.
    async fn engines(&self) -> anyhow::Result<Engines> {
        std::fs::create_dir_all(&self.engines)?;
        // Servers of all accounts run these programs; only this account may write them.
        std::fs::set_permissions(&self.engines, std::fs::Permissions::from_mode(0o755))
            .with_context(|| {
                format!(
                    "{} is owned by another account; choose another folder with --engines",
                    self.engines.display()
                )
            })?;
        let installed = || Installed::find(self.postgres_bin.as_deref(), &self.engines);
        if self.postgres_bin.is_none() {
            let found = installed()?;
            if !found.has_vector(DEFAULT_MAJOR) {
                self.install(EngineName::best(DEFAULT_MAJOR)).await;
            }
            for major in FURTHER_MAJORS {
                let is_complete = |it: &Engine| it.major() == major && it.has_client_programs();
                if !found.has_vector(major) || !found.all().iter().any(is_complete) {
                    self.install(EngineName::npm(major)).await;
                }
            }
        }
        let options = LayoutOptions::beside(&self.engines);
        let laid_out = installed()?.laid_out(&options, &Entropy::system());
        Ok(laid_out.offer(OldVersions::Offered)?)
    }

    async fn install(&self, name: EngineName) {
        if let Err(error) = engine::install_into(&self.engines, name, Release::Pinned).await {
            anstream::eprintln!("installing {name} failed; the command runs without it: {error:#}");
        }
    }
}

/// Configures the cluster for many connections and no durability. Takes effect at the next start.
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
