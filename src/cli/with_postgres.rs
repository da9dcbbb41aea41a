//! `gantry with-postgres -- command`: a throw-away control cluster and a prepared template for a command, such as the
//! test runner. Nothing is left behind.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use tokio::process::Command;

use crate::{
    clock::Entropy,
    clusters::{Account, Control, Embedded, Engine, Home, Launcher, server::Host},
};

/// Data folder of the throw-away control cluster, for the command.
const HOME_VARIABLE: &str = "GANTRY_TEST_HOME";
/// Prepared templates, for the command.
const TEMPLATES_VARIABLE: &str = "GANTRY_TEST_TEMPLATES";

#[derive(Debug, Args)]
pub(super) struct WithPostgres {
    /// Folder with PostgreSQL's programs.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    postgres_bin: Option<PathBuf>,
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
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        outcome
    }

    async fn run_in(&self, dir: &std::path::Path, entropy: Entropy) -> anyhow::Result<()> {
        let home = Arc::new(Home::open(dir, Account::for_servers()?)?);
        let host = Host { engine: Engine::find(self.postgres_bin.as_deref())?, launcher: Launcher::default() };
        let control = Control::ensure(&home, &host, &entropy).await?;
        let set = loosen(&control).await;
        control.stop().await?;
        set?;
        let control = Control::ensure(&home, &host, &entropy).await?;
        let outcome = async {
            Embedded::open(home.clone(), host, entropy).prepare().await?;
            let (program, arguments) = self.command.split_first().context("no command")?;
            let status = Command::new(program)
                .args(arguments)
                .env(HOME_VARIABLE, home.dir())
                .env(TEMPLATES_VARIABLE, home.dir().join("templates"))
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
}

/// Makes it fit for a command that is many at once, and for being thrown away: nothing needs to survive a power cut. Holds from
/// the next start.
async fn loosen(control: &Control) -> anyhow::Result<()> {
    let (client, connection) = control.config().connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    for setting in ["fsync = off", "full_page_writes = off", "max_connections = 200"] {
        client.batch_execute(&format!("alter system set {setting}")).await?;
    }
    Ok(())
}
