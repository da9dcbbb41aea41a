//! `gantry engine`: the PostgreSQL versions that projects can have.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::output::Output;
use crate::{
    clock::Entropy,
    clusters::{Engines, Home, install},
    config::ControlOptions,
};

#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    control: ControlOptions,
    /// How the answer looks.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Subcommand)]
pub(super) enum Engine {
    /// List the PostgreSQL versions that projects can have.
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Install another PostgreSQL into the data folder, through the machine's npm. The next start of the server finds it.
    Install {
        /// Major version, such as 17.
        #[arg(value_parser = clap::value_parser!(u16).range(15..))]
        major: u16,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Serialize)]
struct Listed {
    version: String,
    postgres_engine: String,
    release_channel: &'static str,
    default: bool,
    bin_dir: String,
}

impl Engine {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List { common } => list(&common),
            Self::Install { major, common } => install_one(major, &common).await,
        }
    }
}

fn list(common: &Common) -> anyhow::Result<()> {
    let engines = Engines::find(common.control.postgres_bin.as_deref(), &Home::engines_of(&common.control.home()))?;
    let listed: Vec<_> = engines
        .all()
        .iter()
        .map(|engine| Listed {
            version: engine.text().to_owned(),
            postgres_engine: engine.major().to_string(),
            release_channel: engine.channel(),
            default: engine == engines.default_engine(),
            bin_dir: engine.bin_dir().display().to_string(),
        })
        .collect();
    let line = |engine: &Listed| {
        let mark = if engine.default { "  (default)" } else { "" };
        format!("{:<8} {}{mark}", engine.version, engine.bin_dir)
    };
    common.output.print(&listed, || listed.iter().map(line).collect::<Vec<_>>().join("\n"))
}

async fn install_one(major: u16, common: &Common) -> anyhow::Result<()> {
    let home = common.control.home();
    let engine = install::install(&Home::engines_of(&home), major, &Entropy::system()).await?;
    let said = json!({"version": engine.text(), "bin_dir": engine.bin_dir()});
    common.output.print(&said, || format!("PostgreSQL {} is installed in {}", engine.text(), engine.bin_dir().display()))
}
