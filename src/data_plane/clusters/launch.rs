//! The moment between Gantry and a server: a fresh, single-threaded process that gives up everything the server does
//! not need and then becomes it.
//!
//! Doing this between `fork` and `exec` of Gantry itself would need unsafe code in a many-threaded process. Instead
//! Gantry re-executes its own binary with a hidden subcommand, and that process calls [`launch`]. The pid stays the
//! same through the final `exec`, so it is the postmaster's pid.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::OpenOptions,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{ArgAction, Args};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::{
    fs::Mode,
    process::{Gid, Resource, Rlimit, Uid},
};

use super::{
    process::Launched, resources::LaunchBounds, seccomp, seccomp::SeccompError, trace::TRACED,
};

/// Name of the hidden subcommand that must end in [`launch`].
pub const SUBCOMMAND: &str = "launch";

/// The newest Landlock interface whose rights the rules below account for. Older kernels enforce what they know.
const LANDLOCK: ABI = ABI::V9;

/// How servers are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// A Gantry binary: it is run as `<program> launch …`.
    pub program: PathBuf,
    /// Confine servers with Landlock and a list of system calls. A kernel without them then starts none: see
    /// [`sandbox_available`].
    pub sandbox: bool,
}

impl Default for Launcher {
    /// The running binary itself, even if its file was replaced or deleted by an upgrade.
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            sandbox: sandbox_available(),
        }
    }
}

/// What to start, and as whom. The arguments of the hidden subcommand.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LaunchPlan {
    /// The `postgres` program.
    #[arg(long)]
    pub postgres: PathBuf,
    /// The data directory.
    #[arg(long)]
    pub data: PathBuf,
    /// The directory for the Unix socket.
    #[arg(long)]
    pub sockets: PathBuf,
    /// The `cluster_name`, which process titles carry.
    #[arg(long)]
    pub name: String,
    /// User id to run under.
    #[arg(long, requires = "gid")]
    pub uid: Option<u32>,
    /// Group id to run under.
    #[arg(long, requires = "uid")]
    pub gid: Option<u32>,
    /// Control groups and resource limits.
    #[command(flatten)]
    pub bounds: LaunchBounds,
    /// Run without Landlock and the list of system calls.
    #[arg(long = "no-sandbox", action = ArgAction::SetFalse)]
    pub sandbox: bool,
    /// Start no server: only have the program read its configuration.
    #[arg(long)]
    pub check: bool,
    /// A setting for the check, as `name=value`.
    #[arg(long = "setting", value_name = "NAME=VALUE", requires = "check")]
    pub settings: Vec<String>,
}

/// Which step before the server's own start failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A system call.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// Landlock refused the rules.
    #[error("sandbox: {0}")]
    Sandbox(#[from] landlock::RulesetError),
    /// The sandbox was asked for, and the kernel has none.
    #[error("sandbox: this kernel has no Landlock")]
    NoSandbox,
    /// The kernel refused the list of system calls.
    #[error("sandbox: list of system calls of {0}: {1}")]
    Calls(&'static str, SeccompError),
    /// Confined programs are started by a process that traces them, and there is none.
    #[error("sandbox: not traced by the process that started this one")]
    NotTraced,
}

impl LaunchPlan {
    /// The command line that parses back to this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            SUBCOMMAND.into(),
            "--postgres".into(),
            self.postgres.clone().into(),
            "--data".into(),
            self.data.clone().into(),
            "--sockets".into(),
            self.sockets.clone().into(),
            "--name".into(),
            self.name.clone().into(),
        ];
        if let (Some(uid), Some(gid)) = (self.uid, self.gid) {
            arguments.extend([
                "--uid".into(),
                uid.to_string().into(),
                "--gid".into(),
                gid.to_string().into(),
            ]);
        }
        arguments.extend(self.bounds.arguments());
        if !self.sandbox {
            arguments.push("--no-sandbox".into());
        }
        if self.check {
            arguments.push("--check".into());
            // In one word: a value may begin with a dash.
            arguments.extend(
                self.settings
                    .iter()
                    .map(|setting| format!("--setting={setting}").into()),
            );
        }
        arguments
    }

    fn program(&self) -> Command {
        let mut program = Command::new(&self.postgres);
        program.env_clear().env("TZ", "UTC");
        if self.check {
            program
                .args(["-C", "max_connections", "-D"])
                .arg(&self.data);
            program.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        } else {
            self.serve(&mut program);
        }
        program
    }

    fn serve(&self, server: &mut Command) {
        server
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.sockets);
        // On the command line, because a tenant who became superuser can change files and ALTER SYSTEM, but not this:
        // the name identifies the processes, and the collector keeps stderr from growing without bound.
        server
            .arg("-c")
            .arg(format!("cluster_name={}", self.name))
            .args(["-c", "logging_collector=on"]);
    }

    /// Takes on the ids, without any other group.
    fn become_user(&self) -> Result<(), rustix::io::Errno> {
        let (Some(uid), Some(gid)) = (self.uid, self.gid) else {
            return Ok(());
        };
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid))
    }
}

/// Confines this process and turns it into the server. Returns only on failure.
///
/// Meant for a process that has done nothing else yet, and has a single thread.
pub fn launch(plan: &LaunchPlan) -> Result<Infallible, LaunchError> {
    let step = |name| move |error: rustix::io::Errno| LaunchError::System(name, error.into());
    if plan.sandbox {
        await_tracer()?;
    }
    // A session of its own: the server outlives Gantry and its terminal.
    rustix::process::setsid().map_err(step("setsid"))?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // A core file would hold the tenant's data.
    rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )
    .map_err(step("setrlimit"))?;
    // While the process still has the privileges to enter a control group.
    plan.bounds
        .apply()
        .map_err(|(step, error)| LaunchError::System(step, error))?;
    if !plan.check {
        // Before the server is there: a server without its note would pass for a process of the tenant's.
        Launched::note_self(&plan.data)
            .map_err(|error| LaunchError::System("noting the server's process", error))?;
    }
    rustix::process::chdir(&plan.data).map_err(step("chdir"))?;
    rustix::thread::set_no_new_privs(true).map_err(step("no_new_privs"))?;
    if plan.sandbox {
        confine(plan)?;
    }
    // From here on only what the server itself may do.
    plan.become_user().map_err(step("setuid"))?;
    if plan.sandbox {
        let profile = &seccomp::POSTGRES;
        profile
            .apply()
            .map_err(|error| LaunchError::Calls(profile.name, error))?;
    }
    Err(LaunchError::System(
        "starting postgres",
        plan.program().exec(),
    ))
}

/// Waits for the word of the process that traces this one, and closes the way by which it came.
fn await_tracer() -> Result<(), LaunchError> {
    let mut word = [0];
    io::stdin()
        .read_exact(&mut word)
        .map_err(|_| LaunchError::NotTraced)?;
    if word != [TRACED] {
        return Err(LaunchError::NotTraced);
    }
    let nothing = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .map_err(|error| LaunchError::System("opening /dev/null", error))?;
    nix::unistd::dup2_stdin(nothing).map_err(|error| LaunchError::System("dup2", error.into()))
}

/// Whether the kernel has Landlock, switched on, and filters of system calls.
pub fn sandbox_available() -> bool {
    let landlock = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    landlock
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .is_ok()
        && seccomp::available()
}

/// Read the installation and the account names, execute only the server, write only its own two directories, reach no
/// other process and no network. What is not granted is denied.
fn confine(plan: &LaunchPlan) -> Result<(), LaunchError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let execute = AccessFs::Execute | AccessFs::ReadFile;
    let discard = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
    // Files and directories, but no links, pipes, devices and sockets, and no names moved from one directory to another.
    let data = discard
        | AccessFs::ReadDir
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    // The socket and its lock file.
    let sockets =
        discard | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::MakeSock | AccessFs::RemoveFile;

    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(READABLE, read))?
        .add_rules(path_beneath_rules(installation(&plan.postgres), read))?
        .add_rules(path_beneath_rules(LOADERS, execute))?
        .add_rules(path_beneath_rules([&plan.postgres], execute))?
        .add_rules(path_beneath_rules(["/dev/null"], discard))?
        .add_rules(path_beneath_rules([&plan.data], data))?
        .add_rules(path_beneath_rules([&plan.sockets], sockets))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(LaunchError::NoSandbox),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// Shared libraries, extensions, time zones and locales; and the account names that peer authentication looks up.
/// Paths that do not exist are skipped.
///
/// A rule holds for the file that has the name now. Tools that add an account replace `/etc/passwd`, and peer
/// authentication then fails in servers that already run, until they are started again.
const READABLE: &[&str] = &[
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/ssl/openssl.cnf",
    "/dev/urandom",
];

/// The dynamic loader, which the kernel executes on the server's behalf.
const LOADERS: &[&str] = &[
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux-riscv64-lp64d.so.1",
    "/lib64/ld64.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// `<prefix>` of `<prefix>/bin/postgres`, for an installation outside `/usr`. Never the root directory.
fn installation(postgres: &Path) -> Option<&Path> {
    postgres
        .parent()?
        .parent()
        .filter(|prefix| prefix.parent().is_some())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plan: LaunchPlan,
    }

    #[test]
    fn arguments_parse_back_to_the_plan() {
        for (ids, sandbox) in [(Some(7), true), (None, false)] {
            let plan = LaunchPlan {
                postgres: "/usr/lib/postgresql/15/bin/postgres".into(),
                data: "/d".into(),
                sockets: "/s p".into(),
                name: "n".to_owned(),
                uid: ids,
                gid: ids,
                bounds: LaunchBounds {
                    groups: ids
                        .into_iter()
                        .flat_map(|_| ["/g 1".into(), "/g2".into()])
                        .collect(),
                    memory_max: ids.map(|_| 1 << 30),
                    processes_max: ids.map(u64::from),
                    file_max: Some(2 << 30),
                    locked_memory_max: ids.map(|_| 0),
                },
                sandbox,
                check: ids.is_some(),
                settings: ids
                    .iter()
                    .flat_map(|_| ["work_mem=1MB".to_owned(), "-search_path=-a, b".to_owned()])
                    .collect(),
            };
            // The subcommand's name stands where a parser expects the program's.
            assert_eq!(Cli::parse_from(plan.arguments()).plan, plan);
        }
    }

    #[test]
    fn an_installation_is_never_the_whole_system() {
        assert_eq!(
            installation(Path::new("/opt/pg/bin/postgres")),
            Some(Path::new("/opt/pg"))
        );
        assert_eq!(installation(Path::new("/bin/postgres")), None);
    }
}
