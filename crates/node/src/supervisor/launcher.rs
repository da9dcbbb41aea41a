//! Running a launcher: a fresh process of Gantry's own binary that becomes a server.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::{sync::oneshot, time::sleep};

use crate::supervisor::{
    process::ProcessHandle,
    sandbox::sandbox_available,
    trace::{self, TRACED},
};

/// The time that a launcher gets to become the server. It makes only a few system calls.
pub const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts servers, by executing Gantry's own binary as a launcher.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// A Gantry binary. It is executed with the arguments of a hidden subcommand.
    pub program: PathBuf,
    /// Whether servers are confined with Landlock and seccomp. On a kernel without them, confined
    /// servers do not start: see [`sandbox_available`].
    pub sandbox: bool,
}

/// A launcher could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// The program cannot be started or traced.
    #[error("{0}")]
    Run(io::Error),
    /// A launcher that exceeded [`LAUNCH_TIMEOUT`] cannot be killed.
    #[error("{0}")]
    Kill(io::Error),
    /// The runtime is shutting down.
    #[error("shutting down")]
    ShuttingDown,
}

impl Default for Launcher {
    /// The running binary, even if its file was replaced or deleted by an upgrade.
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            sandbox: sandbox_available(),
        }
    }
}

impl Launcher {
    /// Returns the command that runs a launcher, without environment.
    pub fn command(&self, arguments: Vec<OsString>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_clear();
        command
    }

    /// Starts a launcher of a program that may execute others. It is not traced.
    pub fn run_untraced(&self, mut command: Command) -> io::Result<Child> {
        command.stdin(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // Fails if the launcher exited with an error, which it prints.
            let _ = stdin.write_all(&[TRACED]);
        }
        Ok(child)
    }

    /// Runs a launcher. With a sandbox, returns when it has become the server or has exited;
    /// otherwise when it has started. Kills it after [`LAUNCH_TIMEOUT`].
    pub async fn run(&self, mut command: Command) -> Result<Child, LauncherError> {
        if !self.sandbox {
            return command.spawn().map_err(LauncherError::Run);
        }
        let (started, pid) = oneshot::channel();
        let mut run = tokio::task::spawn_blocking(move || trace::run(command, started));
        let deadline = async {
            let pid = pid
                .await
                .ok()
                .and_then(|pid| Pid::from_raw(pid.cast_signed()));
            sleep(LAUNCH_TIMEOUT).await;
            pid
        };
        tokio::select! {
            outcome = &mut run => return joined(outcome),
            pid = deadline => kill(pid).map_err(LauncherError::Kill)?,
        }
        joined(run.await)
    }
}

fn kill(pid: Option<Pid>) -> io::Result<()> {
    match pid.map(ProcessHandle::open).transpose()?.flatten() {
        Some(process) => process.signal(Signal::KILL),
        None => Ok(()),
    }
}

fn joined(
    outcome: Result<io::Result<Child>, tokio::task::JoinError>,
) -> Result<Child, LauncherError> {
    match outcome {
        Ok(child) => child.map_err(LauncherError::Run),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(LauncherError::ShuttingDown),
    }
}
