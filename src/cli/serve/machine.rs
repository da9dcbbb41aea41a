//! Preparation of the machine: listeners, TLS, PostgreSQL versions and resource limits.

use std::{net::SocketAddr, ops::RangeInclusive, path::Path, sync::Arc};

use gantry_base::{
    clock::{Clock, Entropy},
    net::tls,
};
use gantry_node::{
    clusters::{ControlGroups, Home, Location, Resources, server::Host},
    engines::{
        Engine, EngineError, Engines, ExtensionPolicy, Installed, LayoutOptions, OldVersions,
        extensions,
    },
    supervisor::{Account, Launcher, namespaces_available, sandbox_available},
};
use rustls::ServerConfig;
use tokio::net::TcpListener;

use crate::{
    app::{
        config::{Config, ExtensionOptions},
        operator_api,
    },
    cli::{
        databases::DatabaseListeners,
        edges::ServiceListeners,
        listeners::{ListenerDefaults, bind},
    },
    control::installation::recovery,
};

/// Major versions that can have a folder of extensions in the data folder.
const EXTENSION_MAJORS: RangeInclusive<u16> = 15..=30;

/// Listeners that do not accept connections yet.
pub(super) struct Listeners {
    pub(super) api: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) admin: Option<TcpListener>,
    pub(super) operator: Option<operator_api::Socket>,
    pub(super) databases: DatabaseListeners,
    pub(super) services: ServiceListeners,
    /// The fleet port.
    pub(super) fleet: Option<TcpListener>,
}

impl Listeners {
    /// Binds all listeners before anything is started, so that an address in use fails early.
    pub(in crate::cli) fn bind(
        config: &Config,
        defaults: ListenerDefaults,
    ) -> anyhow::Result<Self> {
        let api = TcpListener::from_std(bind(config.api.listen, "--listen")?)?;
        let admin = match config.api.admin_listen {
            Some(address) => Some(TcpListener::from_std(bind(address, "--admin-listen")?)?),
            None => None,
        };
        let fleet = match config.node.fleet_listen {
            Some(address) => Some(TcpListener::from_std(bind(address, "--fleet-listen")?)?),
            None => None,
        };
        let operator = match &config.api.operator_socket {
            Some(file) => Some(operator_socket(file)?),
            None => None,
        };
        Ok(Self {
            address: api.local_addr()?,
            api,
            admin,
            operator,
            databases: DatabaseListeners::bind(config, defaults)?,
            services: ServiceListeners::bind(config, defaults)?,
            fleet,
            tls: api_tls(config)?,
        })
    }
}

/// The data folder, the PostgreSQL versions and the resource limits of this machine.
pub(super) struct Machine {
    pub(super) home: Arc<Home>,
    /// Engine and launcher of the control cluster and of project clusters.
    pub(super) host: Host,
    pub(super) engines: Engines,
    pub(super) resources: Resources,
    /// Isolation that this machine does not provide.
    pub(super) warnings: Vec<&'static str>,
}

impl Machine {
    /// Opens the data folder and creates the control groups. May move this process to another
    /// control group, so it must run before other processes are started.
    pub(super) fn prepare(config: &Config) -> anyhow::Result<Self> {
        let installed = installed(config)?;
        // Fails before anything is written.
        installed.clone().offer(old_versions(config))?;
        let launcher = Launcher {
            sandbox: !config.projects.unsafe_no_sandbox && sandbox_available(),
            ..Launcher::default()
        };
        let account = Account::for_servers()?;
        recovery::check_complete(&config.control.home())?;
        let home = if config.control.database_url.is_some() {
            Home::share(&config.control.home(), account)?
        } else {
            let home = Home::open(&config.control.home(), account)?;
            // A copied embedded control database cannot be told from the original by its content.
            Location::confirm(home.dir())?;
            home
        };
        let options = layout_options(home.dir(), &config.projects.extensions);
        let laid_out = installed.clone().laid_out(&options, &Entropy::system());
        if let Err(error) = laid_out.remove_unused_layouts(&options, Clock::system().now().into()) {
            tracing::warn!(%error, "unused layouts of engines were not removed");
        }
        let control_data = home.control_data();
        let control_engine = control_engine(&installed, &laid_out, &control_data);
        let engines = laid_out.offer(old_versions(config))?;
        let resources = resources(config, &home)?;
        let warnings = warnings(&Isolation {
            sandbox: launcher.sandbox,
            root: Account::current()?.uid == 0,
            groups: resources.groups().enforced(),
            namespaces: namespaces_available(),
        });
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok(Self {
            home: Arc::new(home),
            host: Host {
                engine: control_engine,
                launcher,
            },
            engines,
            resources,
            warnings,
        })
    }
}

/// Binds the Unix socket of the operator API.
fn operator_socket(file: &Path) -> anyhow::Result<operator_api::Socket> {
    operator_api::Socket::bind(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "{} is in use: by another server, or by a file that is not a socket; choose another path with --operator-socket",
            file.display()
        ),
        _ => anyhow::anyhow!("cannot listen at {}: {error}", file.display()),
    })
}

/// Loads the TLS certificate of the API, if configured. It is reloaded when its files change.
fn api_tls(config: &Config) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let (Some(cert), Some(key)) = (&config.api.tls_cert, &config.api.tls_key) else {
        return Ok(None);
    };
    let mut server = ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(tls::from_files(cert, key)?);
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(server)))
}

/// Returns the PostgreSQL versions installed on this machine.
pub(in crate::cli) fn installed(config: &Config) -> Result<Installed, EngineError> {
    Installed::find(
        config.control.postgres_bin.as_deref(),
        &Home::engines_of(&config.control.home()),
    )
}

/// Returns the inputs of layouts in the data folder `home`.
pub(in crate::cli) fn layout_options(home: &Path, options: &ExtensionOptions) -> LayoutOptions {
    let mut folders: Vec<_> = options
        .extensions_dir
        .iter()
        .map(|folder| (folder.major, folder.dir.clone()))
        .collect();
    folders.extend(EXTENSION_MAJORS.map(|major| (major, extensions::folder_of(home, major))));
    LayoutOptions {
        policy: ExtensionPolicy::read(home),
        folders,
        ..LayoutOptions::beside(&Home::engines_of(home))
    }
}

/// Returns the engine of the control cluster: the installation itself, which needs no extensions,
/// or its layout if it only runs from that.
pub(in crate::cli) fn control_engine(
    installed: &Installed,
    laid_out: &Installed,
    data: &Path,
) -> Engine {
    let engine = installed.fitting(data);
    if engine.runs_alone() {
        engine.clone()
    } else {
        laid_out.fitting(data).clone()
    }
}

/// Returns the policy for PostgreSQL 15. Only the sandbox contains its owner role, so the version
/// is unusable without a sandbox.
pub(in crate::cli) fn old_versions(config: &Config) -> OldVersions {
    match (
        sandbox_available() || config.projects.unsafe_no_sandbox,
        config.projects.allow_postgres_15,
    ) {
        (false, _) => OldVersions::Unusable,
        (true, true) => OldVersions::Offered,
        (true, false) => OldVersions::Existing,
    }
}

/// Returns the resource limits of projects, with control groups if the kernel permits them.
fn resources(config: &Config, home: &Home) -> anyhow::Result<Resources> {
    let groups = ControlGroups::find(home.dir(), config.projects.cgroup_parent.as_deref());
    if let Some(parent) = config
        .projects
        .cgroup_parent
        .as_deref()
        .filter(|_| !groups.enforced())
    {
        anyhow::bail!(
            "cannot create control groups under {}: it must exist, delegate the memory and pids controllers, and be writable by Gantry; \
             choose another path with --cgroup-parent, or omit the option",
            parent.display()
        );
    }
    Ok(Resources::new(
        config.projects.project_limits.resource_limits(),
        groups,
    ))
}

/// The isolation mechanisms that are available.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a mechanism of its own"
)]
struct Isolation {
    sandbox: bool,
    root: bool,
    groups: bool,
    namespaces: bool,
}

/// Returns a warning for each isolation mechanism that is not available. Shown in the log and by
/// `/healthz`.
fn warnings(found: &Isolation) -> Vec<&'static str> {
    let unsafe_sandbox =
        "clusters run without the Landlock sandbox: a project's SQL can reach files of its user id";
    let shared_uid = "not running as root: the servers of all projects share one user id and are isolated only by the sandbox";
    let measured = "no control groups: memory is limited per process; the total of a project is only checked every second";
    let machine_names = "no namespaces: the code of projects can read the machine's host name and account names, and projects share the machine's System V objects";
    [
        (found.sandbox, unsafe_sandbox),
        (found.root, shared_uid),
        (found.groups, measured),
        (found.namespaces, machine_names),
    ]
    .into_iter()
    .filter(|(holds, _)| !holds)
    .map(|(_, warning)| warning)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_list_missing_isolation() {
        let all = || Isolation {
            sandbox: true,
            root: true,
            groups: true,
            namespaces: true,
        };
        assert!(warnings(&all()).is_empty());
        let none = Isolation {
            sandbox: false,
            root: false,
            groups: false,
            namespaces: false,
        };
        assert_eq!(warnings(&none).len(), 4);
        let groups = false;
        let without = warnings(&Isolation { groups, ..all() });
        assert!(without[0].starts_with("no control groups: "));
        let namespaces = false;
        let without = warnings(&Isolation {
            namespaces,
            ..all()
        });
        assert!(without[0].starts_with("no namespaces: "));
    }
}
