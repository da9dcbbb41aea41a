//! The process of a function: packages, environment and arguments.
//!
//! The packages of a version are fetched once, by the runtime itself in the sandbox of the
//! function, before its first start. It executes no module of the function then.

use std::{
    fmt, fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use gantry_base::{files::replace, ids::ProjectRef};
use gantry_node::{
    kits::kit::InstalledKit,
    services::{launch::ServiceLaunchPlan, scratch::ARGUMENT as SCRATCH},
    supervisor::{Confinement, LaunchBounds, ProcessOwner},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep, timeout_at},
};
use uuid::Uuid;

use super::{
    egress::EgressPorts,
    environment::{DATABASE_PORT, POOLER_PORT, database_host, platform_variables},
    node_network,
    output::LoggedFunction,
    secrets,
    sources::VersionFolder,
    type_imports,
};
use crate::{
    control::{
        context::ControlContext,
        services::{
            folder::InstanceFolder,
            instance_id::{FunctionVersion, InstanceId},
            start_failure::StartFailure,
        },
    },
    proxy::{service_proxy::LiveFunction, unavailable::UnavailableReason},
};

/// Argument of a kit that stands for the options and the first module of a function.
pub(in crate::control::services) const FUNCTION: &str = "{function}";
/// Processes and threads of all functions of a project.
pub(in crate::control::services) const PROCESSES_MAX: u64 = 2048;
/// Open descriptors of a function.
pub(in crate::control::services) const DESCRIPTORS_MAX: u64 = 512;
/// Longest time in which packages are fetched.
const FETCH_MAX: Duration = Duration::from_mins(1);
/// Interval of polling for the end of a process.
const POLL: Duration = Duration::from_millis(5);
/// Largest message of the runtime that is kept, in bytes.
const MESSAGE_BYTES_MAX: u64 = 16 << 10;
/// Size of one file that is fetched, in bytes.
const FETCHED_FILE_BYTES_MAX: u64 = 256 << 20;
/// Name of the file that marks fetched packages, with [`FetchedPackages`].
const FETCHED: &str = "fetched";
/// Argument of a kit with the networks that functions may not reach.
const DENIED_NETWORKS: &str = "--deny-net=";
/// The module that runs before those of a function.
const PRELOAD: &str = include_str!("preload.ts");

/// A function that is about to start.
pub(in crate::control::services) struct PreparedFunction {
    folder: VersionFolder,
    arguments: Vec<String>,
    /// The sockets to the services of the project and to its database.
    sockets: [PathBuf; 2],
    /// Data segment and private mappings of the process, in bytes.
    memory_bytes: u64,
    /// TCP ports that it may connect to.
    egress: EgressPorts,
    pub(in crate::control::services) logged: LoggedFunction,
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> StartFailure {
    move |error| StartFailure::new(UnavailableReason::Failed, format!("{doing}: {error}"))
}

impl PreparedFunction {
    /// Adds the function to the plan of its kit.
    pub(in crate::control::services) fn apply(&self, plan: &mut ServiceLaunchPlan) {
        let source = self.folder.source();
        let (source, cache) = (source.to_string_lossy(), self.folder.cache());
        let inner = plan.folder.to_string_lossy().into_owned();
        let [gateway, database] = self.sockets.each_ref().map(|path| path.to_string_lossy());
        // The runtime asks for both rights to connect to a socket.
        let options = [
            format!("--allow-read={source},{inner},{gateway},{database}{SCRATCH}"),
            format!("--allow-write={inner},{gateway},{database}{SCRATCH}"),
        ];
        let mut arguments = Vec::new();
        for argument in std::mem::take(&mut plan.program_arguments) {
            if argument == FUNCTION {
                arguments.extend(options.iter().cloned());
                arguments.extend(self.arguments.iter().cloned());
            } else {
                arguments.push(argument);
            }
        }
        plan.program_arguments = arguments;
        plan.variables.push(format!("DENO_DIR={}", cache.display()));
        plan.ports = self.egress.as_slice().to_vec();
        plan.scratch = true;
        (plan.network, plan.offline) = (true, plan.ports.is_empty());
        plan.read.push(self.folder.source());
        plan.connect.extend(self.sockets.iter().cloned());
        // Its compiled code and its own files.
        plan.write.extend([cache, plan.folder.clone()]);
        // The runtime reserves more addresses than memory.
        let bounds = &mut plan.confinement.bounds;
        bounds.memory_max = None;
        bounds.data_max = Some(self.memory_bytes);
        bounds.descriptors_max = Some(DESCRIPTORS_MAX);
        bounds.processes_max = bounds.processes_max.map(|_| PROCESSES_MAX);
    }
}

/// Fetches packages if necessary, and writes the files of a new process into its folder.
pub(in crate::control::services) async fn prepare(
    context: &ControlContext,
    id: &InstanceId,
    function: &FunctionVersion,
    live: &LiveFunction,
    (folder, owner, kit): (&InstanceFolder, ProcessOwner, &InstalledKit),
) -> Result<PreparedFunction, StartFailure> {
    let version = VersionFolder::of(&context.home, &id.reference, function.deployment);
    let modules = FunctionModules {
        entrypoint: live.entrypoint.clone(),
        import_map: live.import_map.clone(),
    };
    let plan = FetchPlan {
        context,
        project: &id.reference,
        folder: &version,
        kit,
        owner,
    };
    let uses_node_network = plan
        .fetch(&modules)
        .await
        .map_err(|why| StartFailure::new(UnavailableReason::Failed, why))?;
    let execution = context.entropy.uuid();
    let variables = variables(context, id, live, execution)
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))?;
    let sockets = [folder.gateway(), folder.database()];
    let [gateway, database] = sockets.each_ref().map(|path| path.to_string_lossy());
    let settings = json!({
        "variables": variables,
        "gateway": gateway,
        "database": {
            "socket": database,
            "host": database_host(context, &id.reference),
            "ports": [DATABASE_PORT, POOLER_PORT],
        },
        "node": uses_node_network,
    });
    let settings = SecretString::from(settings.to_string());
    folder
        .write("settings.json", settings.expose_secret(), owner)
        .and_then(|()| folder.write("preload.ts", PRELOAD, owner))
        .map_err(failed("writing the settings of a function"))?;
    Ok(PreparedFunction {
        arguments: modules.arguments(&version),
        sockets,
        memory_bytes: kit.manifest.memory_bytes,
        egress: context.control_settings.services.egress.clone(),
        folder: version,
        logged: LoggedFunction {
            function: live.id,
            slug: live.slug.clone(),
            version: live.version,
            execution,
        },
    })
}

/// Returns the environment of a function: the project's secrets, and the variables of the platform.
async fn variables(
    context: &ControlContext,
    id: &InstanceId,
    live: &LiveFunction,
    execution: Uuid,
) -> Result<Map<String, Value>, crate::platform::error::Error> {
    let mut all = Map::new();
    for (name, value) in secrets::open(context, id.project).await? {
        all.insert(name, value.expose_secret().into());
    }
    for (name, value) in platform_variables(context, id.project, &id.reference).await? {
        all.insert(name.to_owned(), value.expose_secret().into());
    }
    for (name, value) in [
        ("SUPABASE_FUNCTION_SLUG", live.slug.clone()),
        ("SB_REGION", "local".to_owned()),
        ("SB_EXECUTION_ID", execution.to_string()),
        ("DENO_DEPLOYMENT_ID", deployment_id(&id.reference, live)),
    ] {
        all.insert(name.to_owned(), value.into());
    }
    Ok(all)
}

fn deployment_id(project: &ProjectRef, live: &LiveFunction) -> String {
    format!("{project}_{}_{}", live.id, live.version)
}

/// The modules that a version begins with.
pub(super) struct FunctionModules {
    pub(super) entrypoint: String,
    pub(super) import_map: Option<String>,
}

impl FunctionModules {
    /// Returns the options of an import map, and the path of the first module.
    fn arguments(&self, folder: &VersionFolder) -> Vec<String> {
        let source = folder.source();
        let path = |name: &str| source.join(name).to_string_lossy().into_owned();
        let mut arguments = Vec::new();
        let map = self.import_map.as_deref();
        let generated = type_imports::generated(&source, &self.entrypoint, map);
        let generated = generated.map(|path| path.to_string_lossy().into_owned());
        if let Some(map) = generated.as_deref().or(map) {
            let name = map.rsplit('/').next().unwrap_or(map);
            let option = if type_imports::is_configuration(name) {
                "--config"
            } else {
                "--import-map"
            };
            arguments.push(format!("{option}={}", path(map)));
        }
        arguments.push(path(&self.entrypoint));
        arguments
    }
}

/// The content of [`FETCHED`]: the version of the kit, and a second line unless no module uses the
/// network modules of Node.js.
struct FetchedPackages<'a> {
    kit: &'a str,
    uses_node_network: bool,
}

impl<'a> FetchedPackages<'a> {
    /// Second line of versions without network modules. Earlier releases wrote one line.
    const NO_NETWORK: &'static str = "no node:net";

    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.lines();
        Some(Self {
            kit: lines.next()?,
            uses_node_network: lines.next() != Some(Self::NO_NETWORK),
        })
    }
}

impl fmt::Display for FetchedPackages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.kit)?;
        if self.uses_node_network {
            return Ok(());
        }
        writeln!(f, "{}", Self::NO_NETWORK)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)?
}

/// A version with packages to fetch.
pub(super) struct FetchPlan<'a> {
    pub(super) context: &'a ControlContext,
    pub(super) project: &'a ProjectRef,
    pub(super) folder: &'a VersionFolder,
    pub(super) kit: &'a InstalledKit,
    pub(super) owner: ProcessOwner,
}

impl FetchPlan<'_> {
    /// Fetches the packages of a version, unless this version of the kit did so and they are there:
    /// a recovered folder has none. Returns whether they, or the version's own modules, use the
    /// network modules of Node.js.
    ///
    /// Errors: the message of the runtime.
    pub(super) async fn fetch(&self, modules: &FunctionModules) -> Result<bool, String> {
        let marker = self.folder.path().join(FETCHED);
        if let Ok(text) = fs::read_to_string(&marker)
            && let Some(fetched) = FetchedPackages::parse(&text)
            && fetched.kit == self.kit.version
            && self.folder.cache().is_dir()
        {
            return Ok(fetched.uses_node_network);
        }
        let (folder, owner) = (self.folder.clone(), self.owner);
        let (entrypoint, map) = (modules.entrypoint.clone(), modules.import_map.clone());
        let failed = |error: io::Error| format!("preparing the files of a function: {error}");
        blocking(move || {
            type_imports::generate(&folder.source(), &entrypoint, map.as_deref())?;
            hand_over(&folder, owner)
        })
        .await
        .map_err(failed)?;
        self.run(modules).await?;
        let folders = [self.folder.source(), self.folder.cache()];
        let used = blocking(move || Ok(node_network::is_used(folders))).await;
        let fetched = FetchedPackages {
            kit: &self.kit.version,
            uses_node_network: used.map_err(failed)?,
        };
        replace(&marker, fetched.to_string(), 0o600).map_err(failed)?;
        Ok(fetched.uses_node_network)
    }

    async fn run(&self, modules: &FunctionModules) -> Result<(), String> {
        let launcher = &self.context.control_settings.services.launcher;
        let cannot = |error: io::Error| format!("running the bundler: {error}");
        let (read, write) = io::pipe().map_err(cannot)?;
        let twin = write.try_clone().map_err(cannot)?;
        let plan = self.plan(modules, launcher.sandbox);
        let mut command = launcher.command(plan.arguments());
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(write)
            .stderr(twin);
        let deadline = Instant::now() + FETCH_MAX;
        let child = launcher.run(command).await;
        let child = child.map_err(|error| format!("running the bundler: {error}"))?;
        let mut child = KilledOnDrop(child);
        let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(read.into());
        let reader = reader.map_err(cannot)?;
        let mut text = Vec::new();
        let mut bounded = reader.take(MESSAGE_BYTES_MAX);
        // Ends when the program has ended, or has written too much.
        let ended = timeout_at(deadline, bounded.read_to_end(&mut text)).await;
        if ended.is_err() {
            return Err("Bundle generation timed out".to_owned());
        }
        match timeout_at(deadline, child.ended()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Err(_) => Err("Bundle generation timed out".to_owned()),
            _ => Err(self.without_paths(&String::from_utf8_lossy(&text))),
        }
    }

    /// Returns a message without the place of the sources on this machine.
    fn without_paths(&self, text: &str) -> String {
        let place = format!("{}/", self.folder.path().display());
        let text = text.replace(&place, "");
        let text: String = text
            .chars()
            .filter(|c| *c == '\n' || !c.is_control())
            .collect();
        let text = text.trim();
        if text.is_empty() {
            return "the modules could not be loaded".to_owned();
        }
        text.to_owned()
    }

    fn plan(&self, modules: &FunctionModules, sandbox: bool) -> ServiceLaunchPlan {
        let bounds = LaunchBounds {
            data_max: Some(self.kit.manifest.memory_bytes * 2),
            descriptors_max: Some(DESCRIPTORS_MAX),
            processes_max: self.owner.ids().map(|_| PROCESSES_MAX),
            file_max: Some(FETCHED_FILE_BYTES_MAX),
            ..LaunchBounds::default()
        };
        let mut variables = vec![
            format!("DENO_DIR={}", self.folder.cache().display()),
            "DENO_NO_UPDATE_CHECK=1".to_owned(),
            "DENO_TLS_CA_STORE=system".to_owned(),
            "NO_COLOR=1".to_owned(),
        ];
        // The way to the registry, as npm and Deno read it.
        for name in [
            "NPM_CONFIG_REGISTRY",
            "JSR_URL",
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "NO_PROXY",
            "https_proxy",
            "http_proxy",
            "no_proxy",
            "SSL_CERT_FILE",
            "DENO_CERT",
        ] {
            if let Ok(value) = std::env::var(name) {
                variables.push(format!("{name}={value}"));
            }
        }
        let mut arguments: Vec<String> = [
            "cache",
            "--quiet",
            "--no-lock",
            "--no-check",
            "--node-modules-dir=none",
            "--allow-import",
        ]
        .map(str::to_owned)
        .to_vec();
        // Modules must not come from the networks that functions may not reach.
        let mut denied = self.kit.manifest.arguments.iter();
        let denied = denied.find_map(|argument| argument.strip_prefix(DENIED_NETWORKS));
        arguments.extend(denied.map(|networks| format!("--deny-import={networks}")));
        arguments.extend(modules.arguments(self.folder));
        ServiceLaunchPlan {
            program: self.kit.program(),
            kit: self.kit.folder.clone(),
            folder: self.folder.cache(),
            record: false,
            host_name: Some(self.project.to_string()),
            confinement: Confinement::new(self.owner, bounds, sandbox),
            read: vec![self.folder.source()],
            write: vec![self.folder.cache()],
            ports: registry_ports(&variables),
            network: true,
            variables,
            program_arguments: arguments,
            ..ServiceLaunchPlan::default()
        }
    }
}

/// Ports of the registries and proxies in variables, besides those of HTTP.
fn registry_ports(variables: &[String]) -> Vec<u16> {
    let mut ports = vec![80, 443];
    for variable in variables {
        let value = variable.split_once('=').map(|(_, value)| value);
        let url = value.and_then(|value| url::Url::parse(value).ok());
        ports.extend(url.and_then(|url| url.port()));
    }
    ports
}

/// A process that is killed and collected on drop.
pub(in crate::control::services) struct KilledOnDrop(
    pub(in crate::control::services) std::process::Child,
);

impl KilledOnDrop {
    /// Returns the exit status when the process has ended.
    pub(in crate::control::services) async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets the account of a project's functions read the sources and write the cache. The sources
/// remain Gantry's, so that a function cannot change them.
fn hand_over(folder: &VersionFolder, owner: ProcessOwner) -> io::Result<()> {
    let cache = folder.cache();
    match fs::create_dir(&cache) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o700))?;
    owner.own(&cache)?;
    let Some((_, gid)) = owner.ids() else {
        return Ok(());
    };
    let mut paths: Vec<PathBuf> = vec![folder.source()];
    give(folder.path(), gid, 0o750)?;
    while let Some(path) = paths.pop() {
        if fs::symlink_metadata(&path)?.is_dir() {
            for entry in fs::read_dir(&path)? {
                paths.push(entry?.path());
            }
            give(&path, gid, 0o750)?;
        } else {
            give(&path, gid, 0o640)?;
        }
    }
    Ok(())
}

fn give(path: &Path, gid: u32, mode: u32) -> io::Result<()> {
    chown(path, None, Some(gid))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
