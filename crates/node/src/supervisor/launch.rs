//! Turning the current process into a confined server.
//!
//! The steps cannot run between `fork` and `exec` of Gantry itself without unsafe code, because
//! Gantry has many threads. Gantry therefore executes its own binary again with a hidden
//! subcommand, and that single-threaded process calls [`Launch::exec`]. The pid does not change
//! through the last `exec`, so it is the server's pid.

use std::{
    convert::Infallible,
    fs::OpenOptions,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::{
    fs::Mode,
    process::{Gid, Resource, Rlimit, Uid},
};

use crate::supervisor::{
    bounds::LaunchBounds,
    namespaces::{Namespaces, replace_accounts},
    process::LaunchRecord,
    seccomp::{self, SeccompError, SystemCalls},
    trace::TRACED,
};

/// The newest Landlock ABI with rights that the rules cover. Older kernels enforce the rights
/// that they know.
const LANDLOCK: ABI = ABI::V9;

/// The steps that turn the current process into a server.
#[derive(Debug)]
pub struct Launch {
    /// The server program with its arguments and environment.
    pub program: Command,
    /// The last step, for the message if the program cannot be executed: "starting postgres".
    pub exec_step: &'static str,
    /// The working directory of the server.
    pub directory: PathBuf,
    /// Whether to write a [`LaunchRecord`] beside `directory`.
    pub record: bool,
    /// User and group id of the server. `None`: those of this process.
    pub ids: Option<(u32, u32)>,
    /// A file that the program sees as `/etc/passwd`, for programs that look up the name of their
    /// account. Needs the right to mount.
    pub accounts: Option<PathBuf>,
    /// Control groups and resource limits.
    pub bounds: LaunchBounds,
    /// The sandbox. `None`: the server is not confined.
    pub sandbox: Option<Sandbox>,
}

/// File access, ports and system calls of a confined server. All other access is denied, including
/// other network access and signals to other processes.
#[derive(Debug)]
pub struct Sandbox {
    /// File access beneath certain paths.
    pub files: Vec<AccessRule>,
    /// TCP ports that it may connect to.
    pub ports: Vec<u16>,
    /// TCP ports that it may listen on.
    pub listen_ports: Vec<u16>,
    /// Permitted system calls.
    pub system_calls: &'static SystemCalls,
    /// Whether the program may execute other programs, as far as its file access permits.
    pub executes: bool,
}

/// File access beneath some paths. Paths that do not exist are ignored.
///
/// A rule applies to the file that has the name now. If a file is replaced, running servers cannot
/// access the new file.
#[derive(Debug)]
pub struct AccessRule {
    /// Files and directories.
    pub paths: Vec<PathBuf>,
    /// Permitted access.
    pub access: BitFlags<AccessFs>,
}

/// A step of a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// Landlock rejected the rules.
    #[error("sandbox: {0}")]
    Sandbox(#[from] landlock::RulesetError),
    /// A sandbox was requested, but the kernel has no Landlock.
    #[error("sandbox: this kernel has no Landlock")]
    NoSandbox,
    /// The kernel rejected the list of system calls.
    #[error("sandbox: list of system calls of {0}: {1}")]
    Calls(&'static str, SeccompError),
    /// The parent process does not trace this process, which a sandbox requires.
    #[error("sandbox: not traced by the process that started this one")]
    NotTraced,
}

impl Launch {
    /// Does [`Launch::exec_in`] in the namespaces of this process.
    pub fn exec(self) -> Result<Infallible, LaunchError> {
        self.exec_in(&Namespaces::default())
    }

    /// Confines this process and executes the server in `namespaces`. Returns only on failure.
    ///
    /// The process must have a single thread and must not have done anything else.
    pub fn exec_in(mut self, namespaces: &Namespaces) -> Result<Infallible, LaunchError> {
        if self.sandbox.is_some() {
            await_tracer()?;
        }
        // In its own session the server survives the end of Gantry and of its terminal.
        rustix::process::setsid().map_err(step("setsid"))?;
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        // A core file would contain the tenant's data.
        let no_core = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        rustix::process::setrlimit(Resource::Core, no_core).map_err(step("setrlimit"))?;
        // Entering a control group needs privileges that are given up below.
        self.bounds
            .apply()
            .map_err(|(step, error)| LaunchError::System(step, error))?;
        if self.record {
            // Written before the server exists: without a record it would count as a process of
            // the tenant.
            LaunchRecord::write_current(&self.directory)
                .map_err(|error| LaunchError::System("noting the server's process", error))?;
        }
        if let Some(accounts) = &self.accounts {
            // Before the sandbox, which forbids mounts.
            replace_accounts(accounts)
                .map_err(|errno| LaunchError::System("mounting /etc/passwd", errno.into()))?;
        }
        // Before the sandbox, and before the privileges are given up.
        namespaces
            .enter(self.ids.map(|(_, gid)| gid))
            .map_err(|(step, error)| LaunchError::System(step, error))?;
        rustix::process::chdir(&self.directory).map_err(step("chdir"))?;
        rustix::thread::set_no_new_privs(true).map_err(step("no_new_privs"))?;
        if let Some(sandbox) = &self.sandbox {
            sandbox.restrict_files()?;
        }
        // From here on the process has only the privileges of the server.
        self.set_ids().map_err(step("setuid"))?;
        if let Some(sandbox) = &self.sandbox {
            let calls = sandbox.system_calls;
            calls
                .apply(sandbox.executes)
                .map_err(|error| LaunchError::Calls(calls.name, error))?;
        }
        Err(LaunchError::System(self.exec_step, self.program.exec()))
    }

    /// Changes the user and group id and drops supplementary groups.
    fn set_ids(&self) -> Result<(), rustix::io::Errno> {
        let Some((uid, gid)) = self.ids else {
            return Ok(());
        };
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid))
    }
}

impl Sandbox {
    /// Restricts this process to the permitted files and ports, without other network access and
    /// without signals to processes outside the sandbox.
    fn restrict_files(&self) -> Result<(), LaunchError> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        for rule in &self.files {
            ruleset = ruleset.add_rules(path_beneath_rules(&rule.paths, rule.access))?;
        }
        for port in &self.ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        for port in &self.listen_ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        match ruleset.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => Err(LaunchError::NoSandbox),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        }
    }
}

fn step(name: &'static str) -> impl Fn(rustix::io::Errno) -> LaunchError {
    move |error| LaunchError::System(name, error.into())
}

/// Waits for the byte that the tracing process sends, then replaces standard input with
/// `/dev/null`.
fn await_tracer() -> Result<(), LaunchError> {
    let mut byte = [0];
    io::stdin()
        .read_exact(&mut byte)
        .map_err(|_| LaunchError::NotTraced)?;
    if byte != [TRACED] {
        return Err(LaunchError::NotTraced);
    }
    let null = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .map_err(|error| LaunchError::System("opening /dev/null", error))?;
    nix::unistd::dup2_stdin(null).map_err(|error| LaunchError::System("dup2", error.into()))
}

/// Returns whether the kernel supports Landlock and seccomp filters and both are enabled.
pub fn sandbox_available() -> bool {
    let landlock = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    landlock
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .is_ok()
        && seccomp::available()
}
