//! The manifest of a kit: which program serves a project's service, and how it is started, checked
//! and bounded.
//!
//! A manifest is a TOML file. The manifests of the kits that Gantry installs itself are compiled
//! in; a folder of the operator can contain another one.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use hyper::Method;
use serde::Deserialize;

use super::c_library;
use crate::data_plane::service_proxy::upstreams::Service;

/// Name of the manifest in a kit's folder.
pub const MANIFEST: &str = "kit.toml";
/// Largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;
/// Largest number of arguments or variables of a program.
const ARGUMENTS_MAX: usize = 100;
/// Largest number of ports that a program may connect to.
const EGRESS_MAX: usize = 16;

/// A kit cannot be used. Each message is one line that names the file.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The manifest is not valid. The text has the line.
    #[error("{}: {why}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The problem, in one line.
        why: String,
    },
    /// A file of the kit must not be executed as it is.
    #[error("{}: {why}", path.display())]
    Unsafe {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The kit cannot be installed or checked.
    #[error("{0}")]
    Rejected(String),
}

/// A manifest as written, before it is checked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    kit: String,
    per: Option<String>,
    program: PathBuf,
    #[serde(default)]
    arguments: Vec<String>,
    listen: Option<String>,
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
    /// Its arguments. `{folder}` is the folder of the instance, `{kit}` that of the kit, `{socket}`
    /// the Unix socket to listen on.
    pub arguments: Vec<String>,
    /// Its environment, with the same placeholders. All other variables are absent.
    pub environment: BTreeMap<String, String>,
    /// The way by which requests reach it.
    pub listen: ListenAddress,
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
        let service = raw
            .kit
            .parse()
            .map_err(|expected| format!("kit: expected {expected}"))?;
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
        if !is_inside(&raw.program) {
            return Err("program: must be a path inside the kit's folder".to_owned());
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
            program: raw.program,
            arguments: raw.arguments,
            environment: raw.environment,
            listen,
            egress: raw.egress,
            ready: raw.ready,
            stop: raw.stop,
            idle: Duration::from_secs(60 * u64::from(raw.idle_minutes)),
            memory_bytes: raw.memory_mb << 20,
            needs: raw.needs,
        })
    }

    /// Returns the compiled-in manifest of a service, if Gantry has one.
    pub fn built_in(service: Service) -> Option<Self> {
        match service {
            Service::Rest => Self::parse(include_str!("rest/kit.toml")).ok(),
            Service::Functions => Self::parse(include_str!("functions/kit.toml")).ok(),
            Service::Auth => Self::parse(include_str!("environment/auth.toml")).ok(),
            Service::Storage | Service::Realtime => None,
        }
    }
}

/// Returns the role that the program of a service logs in as.
pub(super) const fn login_role(service: Service) -> Option<&'static str> {
    match service {
        Service::Rest => Some("authenticator"),
        Service::Auth => Some("supabase_auth_admin"),
        Service::Storage | Service::Realtime | Service::Functions => None,
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
    for (name, is_needed, owner) in [
        ("postgrest", needs.postgrest, Service::Rest),
        ("settings", needs.settings, Service::Auth),
    ] {
        if is_needed && service != owner {
            return Err(format!("needs.{name}: only for {owner}"));
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

/// A kit in a folder of this machine, with checked files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledKit {
    /// Its version: the name of its folder.
    pub version: String,
    /// Its folder, without symbolic links.
    pub folder: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
}

impl InstalledKit {
    /// Opens the kit in a folder and checks its files.
    pub fn open(service: Service, version: &str, folder: &Path) -> Result<Self, KitError> {
        let folder = folder.canonicalize().map_err(at(folder))?;
        let path = folder.join(MANIFEST);
        let manifest = match read(&path)? {
            Some(text) => Manifest::parse(&text).map_err(|why| KitError::Manifest {
                path: path.clone(),
                why,
            })?,
            None => Manifest::built_in(service).ok_or_else(|| KitError::Manifest {
                path: path.clone(),
                why: "is missing, and this version of Gantry has none for the service".to_owned(),
            })?,
        };
        if manifest.service != service {
            return Err(KitError::Manifest {
                path,
                why: format!("is a manifest of {}, not of {service}", manifest.service),
            });
        }
        let kit = Self {
            version: version.to_owned(),
            folder,
            manifest,
        };
        kit.check()?;
        Ok(kit)
    }

    /// The program.
    pub fn program(&self) -> PathBuf {
        self.folder.join(&self.manifest.program)
    }

    /// Checks that no other account can replace the program and that it grants no privileges.
    fn check(&self) -> Result<(), KitError> {
        let program = self.program();
        let found = fs::symlink_metadata(&program).map_err(at(&program))?;
        let reject = |path: &Path, why: &str| {
            Err(KitError::Unsafe {
                path: path.to_owned(),
                why: why.to_owned(),
            })
        };
        if !found.is_file() {
            return reject(&program, "is not a regular file");
        }
        if found.mode() & 0o6000 != 0 {
            return reject(&program, "has the setuid or setgid bit");
        }
        if found.mode() & 0o111 == 0 {
            return reject(&program, "is not executable");
        }
        if let Some(why) = c_library::problem(&program) {
            return reject(&program, &why);
        }
        for path in program
            .ancestors()
            .take_while(|path| path.starts_with(&self.folder))
        {
            let found = fs::symlink_metadata(path).map_err(at(path))?;
            if found.is_symlink() {
                return reject(path, "is a symbolic link");
            }
            if found.mode() & 0o022 != 0 {
                return reject(path, "is writable for other accounts");
            }
        }
        Ok(())
    }
}

/// Reads a manifest, if there is one.
fn read(path: &Path) -> Result<Option<String>, KitError> {
    use io::Read;
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(at(path))?,
    };
    let mut text = String::new();
    file.take(MANIFEST_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(at(path))?;
    Ok(Some(text))
}

/// Adds the path to an I/O error.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> KitError {
    let path = path.to_owned();
    move |cause| KitError::Io {
        path: path.clone(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

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
    fn built_in_manifest_of_auth_is_valid() {
        let manifest = Manifest::built_in(Service::Auth).unwrap();
        assert_eq!(manifest.listen, ListenAddress::Tcp);
        assert_eq!(manifest.ready.method, ReadyMethod::Get);
        assert!(manifest.needs.settings);
        // Neither databases nor ports of other instances.
        assert!(manifest.egress.iter().all(|port| *port < 5000));
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

    #[test]
    fn kit_with_replaceable_or_privileged_files_is_rejected() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("1.0");
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::write(dir.join(MANIFEST), MINIMAL).unwrap();
        let program = dir.join("bin/x");
        fs::write(&program, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for path in [&dir, &dir.join("bin"), &program] {
            mode(path, 0o755);
        }
        let open = || InstalledKit::open(Service::Rest, "1.0", &dir);
        assert_eq!(open().unwrap().version, "1.0");
        for (path, bad) in [
            (&program, 0o4755),
            (&program, 0o2755),
            (&program, 0o644),
            (&program, 0o757),
            (&dir.join("bin"), 0o777),
            (&dir, 0o775),
        ] {
            mode(path, bad);
            assert!(open().is_err(), "{} {bad:o}", path.display());
            mode(path, 0o755);
        }
        open().unwrap();
        assert!(InstalledKit::open(Service::Auth, "1.0", &dir).is_err());
        fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        assert!(open().is_err(), "a link");
    }
}
