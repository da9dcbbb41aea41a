//! `gantry service`: list, install, verify and remove programs for the services of projects.

use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::{
    app::config::ControlOptions,
    base::clock::Entropy,
    cli::{engine, output::Output},
    data_plane::{
        clusters::Home,
        service_proxy::upstreams::Service,
        services::{
            install,
            kit::{InstalledKit, KitError},
            shelf::KitShelf,
        },
    },
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
    /// Install the program of a service from the npm registry into the data folder, verified
    /// against digests that this version of Gantry pins. npm and Node.js are not needed. A running
    /// server uses it at the next start of the service.
    Install {
        /// The service: `rest`.
        service: Service,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
    /// Verify an installed program against the digest that this version of Gantry pins.
    Verify {
        /// The service: `rest`.
        service: Service,
        /// The version, as listed.
        #[arg(value_name = "VERSION")]
        release: String,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
    /// Remove an installed version. The newest remaining version is used instead.
    Remove {
        /// The service: `rest`.
        service: Service,
        /// The version, as listed.
        #[arg(value_name = "VERSION")]
        release: String,
        #[command(flatten)]
        common: ServiceCommandOptions,
    },
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
                let kit = install(&common.control.home(), service).await?;
                print(&common, service, &kit, "is installed in")
            }
            Self::Verify {
                service,
                release,
                common,
            } => {
                let kits = Home::kits_of(&common.control.home());
                let kit = install::verify(&kits, service, &release)?;
                print(&common, service, &kit, "is unchanged in")
            }
            Self::Remove {
                service,
                release,
                common,
            } => {
                let kits = Home::kits_of(&common.control.home());
                install::remove(&kits, service, &release)?;
                let answer = json!({"service": service.name(), "version": release});
                common
                    .output
                    .print(&answer, || format!("{service} {release} was removed."))
            }
        }
    }
}

fn print(
    common: &ServiceCommandOptions,
    service: Service,
    kit: &InstalledKit,
    state: &str,
) -> anyhow::Result<()> {
    let (version, folder) = (&kit.version, &kit.folder);
    let answer = json!({"service": service.name(), "version": version, "program": kit.program()});
    common.output.print(&answer, || {
        format!("{service} {version} {state} {}", folder.display())
    })
}

fn list(
    services_dir: Option<std::path::PathBuf>,
    common: &ServiceCommandOptions,
) -> anyhow::Result<()> {
    let shelf = KitShelf::new(services_dir, Home::kits_of(&common.control.home()));
    let listed: Vec<ListedKit> = shelf
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

/// Installs the program of a service into the data folder `home`, from the registry of the npm
/// configuration.
pub(super) async fn install(home: &Path, service: Service) -> anyhow::Result<InstalledKit> {
    Home::create(home)?;
    install_into(&Home::kits_of(home), service).await
}

/// Installs the program of a service into the folder `kits`.
pub(super) async fn install_into(kits: &Path, service: Service) -> anyhow::Result<InstalledKit> {
    let installed: Result<_, KitError> =
        install::install(kits, service, &engine::registry()?, &Entropy::system()).await;
    Ok(installed?)
}
