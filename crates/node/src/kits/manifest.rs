//! The manifest of a kit: which program serves a project's service, and how it is started, checked
//! and bounded.
//!
//! A manifest is a TOML file. The manifests of the kits that Gantry knows are compiled in; a folder
//! of the operator can contain another one.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use hyper::Method;
use serde::Deserialize;

use super::service::Service;

/// Largest number of arguments or variables of a program.
const ARGUMENTS_MAX: usize = 100;
/// Largest number of ports that a program may connect to.
const EGRESS_MAX: usize = 16;
/// Largest number of further programs, and of ports to listen on.
const PROGRAMS_MAX: usize = 8;
const PORTS_MAX: u8 = 2;
/// Placeholder in paths and arguments: the file name of the dynamic loader of this machine's
/// processor. Portable archives bring their own.
const LOADER: &str = "{loader}";

/// A manifest as written, before it is checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    kit: String,
    per: Option<String>,
    program: PathBuf,
    prepare: Option<PathBuf>,
    directory: Option<PathBuf>,
    #[serde(default)]
    execute: Vec<PathBuf>,
    #[serde(default)]
    arguments: Vec<String>,
    listen: Option<String>,
    #[serde(default = "one_port")]
    ports: u8,
    #[serde(default)]
    data: bool,
    #[serde(default)]
    egress: Vec<u16>,
    #[serde(default)]
    ready: Ready,
    #[serde(default)]
    stop: Stop,
    #[serde(default = "idle_minutes")]
    idle_minutes: u32,
    #[serde(default = "memory_mb")]
    memory_mb: u64,
    #[serde(default)]
    needs: Needs,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

const fn idle_minutes() -> u32 {
    5
}

const fn memory_mb() -> u64 {
    256
}

const fn one_port() -> u8 {
    1
}

/// The request by which a started program is recognised as ready.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ready {
    /// Method of the request.
    pub method: ReadyMethod,
    /// Path of the request.
    pub path: String,
    /// Statuses that mean that the program is not ready yet.
    pub not: Vec<u16>,
    /// Longest time from the start, in seconds.
    pub seconds: u32,
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            method: ReadyMethod::Head,
            path: "/".to_owned(),
            not: vec![503],
            seconds: 10,
        }
    }
}

/// The method of the request by which a started program is recognised as ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReadyMethod {
    /// Without a body in the response.
    Head,
    /// For programs that do not answer `HEAD`.
    Get,
}

impl From<ReadyMethod> for Method {
    fn from(method: ReadyMethod) -> Self {
        match method {
            ReadyMethod::Head => Self::HEAD,
            ReadyMethod::Get => Self::GET,
        }
    }
}

/// The end of a program: SIGTERM, then SIGKILL.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stop {
    /// Time between the two signals, in seconds.
    pub seconds: u32,
}

impl Default for Stop {
    fn default() -> Self {
        Self { seconds: 10 }
    }
}

/// Preparations before a start.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a key of kit.toml, independent of the others"
)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Needs {
    /// The role that the program logs in as: that of its service. Its server is started first.
    pub database: Option<String>,
    /// Whether to write the configuration and the key set of PostgREST into the folder.
    pub postgrest: bool,
    /// Whether to put the service's settings, its keys and the address of the database into the
    /// environment.
    pub settings: bool,
    /// Whether the program cannot use Unix sockets: it reaches the database by a port of 127.0.0.1
    /// that Gantry forwards.
    pub database_port: bool,
    /// Whether to write the configuration of `PgBouncer` into the folder.
    pub pooler: bool,
}

/// The way by which requests reach a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket in the instance's folder.
    Unix,
    /// A port of 127.0.0.1 that Gantry chooses.
    Tcp,
}

/// A checked manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The service that the program serves.
    pub service: Service,
    /// The program, relative to the kit's folder.
    pub program: PathBuf,
    /// A program that runs to its end before each start, relative to the kit's folder. It gets the
    /// same environment, and no arguments.
    pub prepare: Option<PathBuf>,
    /// The working directory, relative to the kit's folder. `None`: the folder of the instance.
    pub directory: Option<PathBuf>,
    /// Further files and folders that the program may execute, absolute or relative to the kit's
    /// folder. With any, it may also write files into the folder of the instance, as scripts do.
    pub execute: Vec<PathBuf>,
    /// Its arguments. `{folder}` is the folder of the instance, `{kit}` that of the kit, `{socket}`
    /// the Unix socket to listen on, `{port}` and `{port2}` the ports, `{data}` the folder that
    /// lives as long as the project, `{loader}` the file name of the dynamic loader.
    pub arguments: Vec<String>,
    /// Its environment, with the same placeholders. All other variables are absent.
    pub environment: BTreeMap<String, String>,
    /// The way by which requests reach it.
    pub listen: ListenAddress,
    /// Number of ports that it listens on, if it listens on ports. Requests go to the first one.
    pub ports: u8,
    /// Whether it has a folder that lives as long as the project.
    pub data: bool,
    /// TCP ports that it may connect to.
    pub egress: Vec<u16>,
    /// The check after a start.
    pub ready: Ready,
    /// The end.
    pub stop: Stop,
    /// Time without requests after which an instance is stopped.
    pub idle: Duration,
    /// Address space of an instance, in bytes.
    pub memory_bytes: u64,
    /// Preparations.
    pub needs: Needs,
}

impl Manifest {
    /// Parses and checks a manifest.
    ///
    /// Errors: one line with the problem, and its line number if the syntax is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let raw: RawManifest = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        let service = Service::of_program(&raw.kit).ok_or_else(|| {
            let names = Service::WITH_PROGRAMS.map(Service::name).join(", ");
            format!("kit: expected one of {names}")
        })?;
        if raw.per.as_deref().is_some_and(|per| per != "project") {
            return Err("per: only \"project\" is supported".to_owned());
        }
        let listen = match raw.listen.as_deref() {
            None | Some("unix") => ListenAddress::Unix,
            Some("tcp") => ListenAddress::Tcp,
            Some(_) => return Err("listen: expected \"unix\" or \"tcp\"".to_owned()),
        };
        if raw.egress.len() > EGRESS_MAX {
            return Err(format!("egress: at most {EGRESS_MAX} ports"));
        }
        for (name, path) in [
            ("program", Some(&raw.program)),
            ("prepare", raw.prepare.as_ref()),
            ("directory", raw.directory.as_ref()),
        ] {
            if path.is_some_and(|path| !is_inside(path)) {
                return Err(format!("{name}: must be a path inside the kit's folder"));
            }
        }
        if raw.execute.len() > PROGRAMS_MAX || !raw.execute.iter().all(|path| is_executable(path)) {
            return Err("execute: at most 8 paths, absolute or inside the kit's folder".to_owned());
        }
        if !(1..=PORTS_MAX).contains(&raw.ports) {
            return Err(format!("ports: must be 1 to {PORTS_MAX}"));
        }
        let texts = raw.arguments.iter().chain(raw.environment.values());
        if raw.arguments.len().max(raw.environment.len()) > ARGUMENTS_MAX
            || texts
                .chain(raw.environment.keys())
                .any(|text| text.contains('\0'))
            || raw
                .environment
                .keys()
                .any(|name| name.is_empty() || name.contains('='))
        {
            return Err("arguments, environment: too many or invalid".to_owned());
        }
        if !raw.ready.path.starts_with('/') || !(1..=60).contains(&raw.ready.seconds) {
            return Err("ready: path must begin with / and seconds be 1 to 60".to_owned());
        }
        if !(1..=60).contains(&raw.stop.seconds) {
            return Err("stop.seconds: must be 1 to 60".to_owned());
        }
        if !(1..=1440).contains(&raw.idle_minutes) || !(16..=16_384).contains(&raw.memory_mb) {
            return Err("idle_minutes must be 1 to 1440 and memory_mb 16 to 16384".to_owned());
        }
        check_needs(service, &raw.needs)?;
        Ok(Self {
            service,
            program: with_loader(&raw.program),
            prepare: raw.prepare.as_deref().map(with_loader),
            directory: raw.directory,
            execute: raw.execute,
            arguments: raw.arguments,
            environment: raw.environment,
            listen,
            ports: raw.ports,
            data: raw.data,
            egress: raw.egress,
            ready: raw.ready,
            stop: raw.stop,
            idle: Duration::from_secs(60 * u64::from(raw.idle_minutes)),
            memory_bytes: raw.memory_mb << 20,
            needs: raw.needs,
        })
    }

    /// Returns the compiled-in manifest of a service, if Gantry has one.
    ///
    /// Storage and Realtime have the layout of the vendor's portable archives.
    pub fn built_in(service: Service) -> Option<Self> {
        match service {
            Service::Rest => Self::parse(include_str!("manifests/rest.toml")).ok(),
            Service::Functions => Self::parse(include_str!("manifests/functions.toml")).ok(),
            Service::Auth => Self::parse(include_str!("manifests/auth.toml")).ok(),
            Service::Storage => Self::parse(include_str!("manifests/storage.toml")).ok(),
            Service::Realtime => Self::parse(include_str!("manifests/realtime.toml")).ok(),
            Service::Pooler => Self::parse(include_str!("manifests/pooler.toml")).ok(),
        }
    }
}

/// Returns the role that the program of a service logs in as.
pub const fn login_role(service: Service) -> Option<&'static str> {
    match service {
        Service::Rest => Some("authenticator"),
        Service::Auth => Some("supabase_auth_admin"),
        Service::Storage => Some("supabase_storage_admin"),
        Service::Realtime => Some("gantry_realtime"),
        Service::Pooler => Some("pgbouncer"),
        Service::Functions => None,
    }
}

fn check_needs(service: Service, needs: &Needs) -> Result<(), String> {
    let role = login_role(service);
    if needs.database.is_some() && needs.database.as_deref() != role {
        return Err(match role {
            Some(role) => format!("needs.database: only \"{role}\" is supported"),
            None => format!("needs.database: {service} has no role in the database"),
        });
    }
    let has_settings = matches!(
        service,
        Service::Auth | Service::Storage | Service::Realtime
    );
    for (name, is_needed, is_supported) in [
        ("postgrest", needs.postgrest, service == Service::Rest),
        ("settings", needs.settings, has_settings),
        ("database_port", needs.database_port, has_settings),
        ("pooler", needs.pooler, service == Service::Pooler),
    ] {
        if is_needed && !is_supported {
            return Err(format!("needs.{name}: not for {service}"));
        }
        if is_needed && needs.database.is_none() {
            return Err(format!("needs.{name}: needs.database is missing"));
        }
    }
    Ok(())
}

/// Returns an error of the parser as one line, without the excerpt of the source.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map(|span| &text[..span.start.min(text.len())]);
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message().replace('\n', "; "))
}

/// Returns whether a path is relative and stays inside its folder.
fn is_inside(path: &Path) -> bool {
    path.components().next().is_some()
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Returns whether a path names a file or folder to execute: absolute, the kit's folder, or inside
/// it.
fn is_executable(path: &Path) -> bool {
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    !has_parent && (path.is_absolute() || path == Path::new(".") || is_inside(path))
}

/// Returns a path with the file name of this machine's dynamic loader.
fn with_loader(path: &Path) -> PathBuf {
    fill_loader(&path.to_string_lossy()).into()
}

/// Replaces the placeholder of the dynamic loader.
pub fn fill_loader(text: &str) -> String {
    text.replace(LOADER, loader())
}

/// Returns the file name of the dynamic loader of the GNU C library.
fn loader() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "ld-linux-aarch64.so.1",
        _ => "ld-linux-x86-64.so.2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "kit = \"rest\"\nprogram = \"bin/x\"\n";

    #[test]
    fn built_in_manifest_of_rest_is_valid() {
        let manifest = Manifest::built_in(Service::Rest).unwrap();
        assert_eq!(manifest.needs.database.as_deref(), Some("authenticator"));
        assert!(manifest.needs.postgrest);
    }

    #[test]
    fn built_in_manifest_of_functions_is_valid() {
        let manifest = Manifest::built_in(Service::Functions).unwrap();
        assert_eq!(manifest.idle, Duration::from_mins(1));
        let flags = [
            "--no-prompt",
            "--deny-run",
            "--deny-ffi",
            "--cached-only",
            "{function}",
        ];
        for flag in flags {
            assert!(manifest.arguments.iter().any(|one| one == flag), "{flag}");
        }
    }

    #[test]
    fn built_in_manifest_of_pooler_is_valid() {
        let manifest = Manifest::built_in(Service::Pooler).unwrap();
        assert_eq!(manifest.needs.database.as_deref(), Some("pgbouncer"));
        assert!(manifest.needs.pooler && manifest.egress.is_empty());
        assert_eq!(manifest.listen, ListenAddress::Unix);
    }

    #[test]
    fn built_in_manifest_of_auth_is_valid() {
        let manifest = Manifest::built_in(Service::Auth).unwrap();
        assert_eq!(manifest.listen, ListenAddress::Tcp);
        assert_eq!(manifest.ready.method, ReadyMethod::Get);
        assert!(manifest.needs.settings);
        // Neither databases nor ports of other instances.
        assert!(manifest.egress.iter().all(|port| *port < 5000));
    }

    #[test]
    fn built_in_manifests_of_portable_archives_are_valid() {
        let storage = Manifest::built_in(Service::Storage).unwrap();
        assert!(storage.data && storage.egress.is_empty() && storage.needs.settings);
        assert!(!storage.program.to_string_lossy().contains('{'));
        let realtime = Manifest::built_in(Service::Realtime).unwrap();
        assert_eq!((realtime.ports, realtime.data), (2, false));
        assert!(realtime.needs.database_port && realtime.egress.is_empty());
        assert_eq!(realtime.prepare.as_deref(), Some(Path::new("bin/migrate")));
    }

    #[test]
    fn invalid_manifest_is_rejected_with_its_line() {
        assert!(Manifest::parse(MINIMAL).is_ok());
        for (added, expected) in [
            ("colour = 1", "line 3: unknown field `colour`"),
            ("ready = { pathh = \"/\" }", "line 3: unknown field `pathh`"),
            ("memory_mb = 1", "memory_mb"),
            ("per = \"node\"", "per:"),
            ("listen = \"udp\"", "listen:"),
            (
                "egress = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
                "egress:",
            ),
            ("needs = { settings = true }", "needs.settings"),
            ("arguments = [\"\\u0000\"]", "arguments"),
            ("needs = { database = \"postgres\" }", "needs.database"),
            ("needs = { postgrest = true }", "needs.postgrest"),
            ("needs = { pooler = true }", "needs.pooler"),
            ("needs = { database_port = true }", "needs.database_port"),
            ("prepare = \"/bin/sh\"", "prepare:"),
            ("directory = \"../x\"", "directory:"),
            ("execute = [\"../x\"]", "execute:"),
            ("execute = [\"/usr/../x\"]", "execute:"),
            ("ports = 3", "ports:"),
            ("= 1", "line 3"),
        ] {
            let error = Manifest::parse(&format!("{MINIMAL}{added}\n")).unwrap_err();
            assert!(error.contains(expected), "{added}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        for program in ["/bin/sh", "../x", "a/../../x", "", "./x"] {
            let text = format!("kit = \"rest\"\nprogram = \"{program}\"\n");
            assert!(Manifest::parse(&text).is_err(), "{program}");
        }
    }
}
