//! Turning the current process into a confined server.
//!
//! The steps cannot run between `fork` and `exec` of Gantry itself without unsafe code, because
//! Gantry has many threads. Gantry therefore executes its own binary again with a hidden
//! subcommand, and that single-threaded process calls [`SandboxedProgram::exec`]. The pid does not
//! change through the last `exec`, so it is the server's pid.

use std::{
    convert::Infallible,
    fs::OpenOptions,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
};

use rustix::{
    fs::Mode,
    process::{Gid, Resource, Rlimit, Uid},
};

use crate::supervisor::{
    confinement::Confinement,
    namespaces::{Namespaces, replace_accounts},
    process::LaunchRecord,
    sandbox::{Sandbox, SandboxError},
    trace::TRACED,
};

/// A program, and the account, limits, namespaces and sandbox that it runs in.
#[derive(Debug)]
pub struct SandboxedProgram {
    /// The program with its arguments and environment.
    pub command: Command,
    /// The last step, for the message if the program cannot be executed: "starting postgres".
    pub exec_step: &'static str,
    /// The working directory.
    pub directory: PathBuf,
    /// Whether to write a [`LaunchRecord`] beside `directory`.
    pub record: bool,
    /// A file that the program sees as `/etc/passwd`, for programs that look up the name of their
    /// account. Needs the right to mount.
    pub accounts: Option<PathBuf>,
    /// Namespaces, where the system permits them.
    pub namespaces: Namespaces,
    /// Account and bounds, and whether the sandbox applies.
    pub confinement: Confinement,
    /// The sandbox.
    pub sandbox: Sandbox,
}

/// A step of a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// The sandbox could not be applied.
    #[error("sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// The parent process does not trace this process, which a sandbox requires.
    #[error("sandbox: not traced by the process that started this one")]
    NotTraced,
}

impl SandboxedProgram {
    /// Confines this process and executes the program. Returns only on failure.
    ///
    /// The process must have a single thread and must not have done anything else.
    pub fn exec(mut self) -> Result<Infallible, LaunchError> {
        let is_sandboxed = self.confinement.sandbox;
        if is_sandboxed {
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
        let applied = self.confinement.bounds.apply();
        applied.map_err(|(step, error)| LaunchError::System(step, error))?;
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
        self.namespaces
            .enter(self.confinement.ids().map(|(_, gid)| gid))
            .map_err(|(step, error)| LaunchError::System(step, error))?;
        rustix::process::chdir(&self.directory).map_err(step("chdir"))?;
        rustix::thread::set_no_new_privs(true).map_err(step("no_new_privs"))?;
        if is_sandboxed {
            self.sandbox.restrict_files()?;
        }
        // From here on the process has only the privileges of the server.
        self.set_ids().map_err(step("setuid"))?;
        if is_sandboxed {
            self.sandbox.restrict_system_calls()?;
        }
        Err(LaunchError::System(self.exec_step, self.command.exec()))
    }

    /// Changes the user and group id and drops supplementary groups.
    fn set_ids(&self) -> Result<(), rustix::io::Errno> {
        let Some((uid, gid)) = self.confinement.ids() else {
            return Ok(());
        };
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_gid(Gid::from_raw(gid))?;
        rustix::thread::set_thread_uid(Uid::from_raw(uid))
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
