//! The launch of `pg_upgrade`: its sandbox, and its run.
//!
//! The program starts both servers and their clients by a shell, so its sandbox permits what those
//! of a server forbid: executing programs and connecting to sockets. Programs are only those of the
//! two engines, the shell and `cp`; files are only those of the two copies; sockets are only Unix
//! sockets.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use clap::Args;
use landlock::AccessFs;
use rustix::process::Signal;
use tokio::time::timeout;

use crate::{
    background::blocking,
    clusters::{launch::ACCOUNTS, settings::KillOnDrop},
    error::{At, ClusterError, Result},
    files,
    supervisor::{
        Confinement, LaunchError, Launcher, LauncherArguments, Namespaces, ProcessHandle, Sandbox,
        SandboxedProgram,
    },
    system_calls::postgres,
};

/// Name of the hidden subcommand that calls [`launch`].
const SUBCOMMAND: &str = "launch-upgrade";
/// Programs of the system that `pg_upgrade` runs.
const SHELL: [&str; 2] = ["/bin/sh", "/bin/cp"];

/// How to run `pg_upgrade`. The arguments of the hidden subcommand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct UpgradeLaunchPlan {
    /// The program.
    #[arg(long)]
    pub program: PathBuf,
    /// The working directory.
    #[arg(long)]
    pub directory: PathBuf,
    /// A folder that the program may read.
    #[arg(long = "read", value_name = "DIR")]
    pub read: Vec<PathBuf>,
    /// A folder or file that the program may execute.
    #[arg(long = "execute", value_name = "PATH")]
    pub execute: Vec<PathBuf>,
    /// A folder that the program may change.
    #[arg(long = "write", value_name = "DIR")]
    pub write: Vec<PathBuf>,
    /// The file that the program sees as `/etc/passwd`.
    #[arg(long, value_name = "FILE")]
    pub accounts: Option<PathBuf>,
    /// Account and bounds, and whether the sandbox applies.
    #[command(flatten)]
    pub confinement: Confinement,
    /// An argument of the program.
    #[arg(long = "argument", value_name = "TEXT")]
    pub program_arguments: Vec<String>,
}

impl UpgradeLaunchPlan {
    /// Returns the command line that parses to this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        LauncherArguments::new(SUBCOMMAND)
            .values("--program", [&self.program])
            .values("--directory", [&self.directory])
            .values("--read", &self.read)
            .values("--execute", &self.execute)
            .values("--write", &self.write)
            .values("--accounts", &self.accounts)
            .confinement(&self.confinement)
            .texts("--argument", &self.program_arguments)
            .into_vec()
    }

    fn sandbox(&self) -> Sandbox {
        // Links between the folders of the two clusters need the last right.
        let more = AccessFs::MakeSock | AccessFs::Refer;
        let mut sandbox = Sandbox::new(&postgres::UPGRADE)
            .read([ACCOUNTS])
            .read(&self.read)
            .execute(SHELL)
            .execute(&self.execute)
            // Folders of programs.
            .read(&self.execute)
            .change(&self.write, more);
        sandbox.executes = true;
        sandbox
    }

    /// Runs the program, with its output in the file `log`. The program is killed after `patience`.
    ///
    /// Errors: [`ClusterError::Upgrade`] with the end of its output if it fails.
    pub(super) async fn run(
        &self,
        launcher: &Launcher,
        log: &Path,
        patience: Duration,
    ) -> Result<()> {
        let output = File::create(log).at("writing", log)?;
        let twin = output.try_clone().at("writing", log)?;
        let mut command = launcher.command(self.arguments());
        command.current_dir("/").stdout(output).stderr(twin);
        let child = launcher.run_untraced(command);
        let mut child = child.at("running", &launcher.program)?;
        let handle = KillOnDrop(ProcessHandle::of_child(&child).at("watching", log)?);
        if let Some(process) = &handle.0
            && timeout(patience, process.ended()).await.is_err()
        {
            process
                .signal(Signal::KILL)
                .at("killing", &launcher.program)?;
        }
        let place = log.to_owned();
        let status = blocking(move || child.wait().at("waiting for", &place)).await?;
        // The process has ended and been collected, so its handle refers to no process.
        drop(handle);
        if status.success() {
            return Ok(());
        }
        let said = files::tail(log);
        let text = format!("pg_upgrade ended with {status}: {said}");
        Err(ClusterError::Upgrade(text))
    }
}

/// Confines this process and executes the program. Returns only on failure.
///
/// The process must have a single thread and must not have done anything else.
pub fn launch(plan: &UpgradeLaunchPlan) -> Result<Infallible, LaunchError> {
    let mut command = Command::new(&plan.program);
    command
        .env_clear()
        .env("TZ", "UTC")
        // Programs that the shell looks up.
        .env("PATH", "/usr/bin:/bin")
        .args(&plan.program_arguments);
    let program = SandboxedProgram {
        command,
        exec_step: "starting pg_upgrade",
        directory: plan.directory.clone(),
        record: false,
        accounts: plan.accounts.clone(),
        namespaces: Namespaces::default(),
        confinement: plan.confinement.clone(),
        sandbox: plan.sandbox(),
    };
    program.exec()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        plan: UpgradeLaunchPlan,
    }

    #[test]
    fn plan_round_trips_through_arguments() {
        for (ids, sandbox) in [(Some(7), true), (None, false)] {
            let plan = UpgradeLaunchPlan {
                program: "/p 1/pg_upgrade".into(),
                directory: "/w".into(),
                read: vec!["/r 1".into(), "/r2".into()],
                execute: vec!["/x".into()],
                write: vec!["/a".into(), "/b".into()],
                accounts: ids.map(|_| "/w/passwd".into()),
                confinement: Confinement::example(ids, sandbox),
                program_arguments: vec!["-b".to_owned(), "/x y".to_owned()],
            };
            assert_eq!(Cli::parse_from(plan.arguments()).plan, plan);
        }
    }
}
