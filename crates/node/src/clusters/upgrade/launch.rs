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

use clap::{ArgAction, Args};
use landlock::AccessFs;
use rustix::process::{Pid, Signal};
use tokio::time::timeout;

use crate::{
    background::blocking,
    clusters::{
        launch::{LOADERS, READABLE},
        settings::KillOnDrop,
    },
    error::{At, ClusterError, Result},
    files,
    supervisor::{
        AccessRule, Launch, LaunchBounds, LaunchError, Launcher, LauncherError, ProcessHandle,
        Sandbox,
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
    /// User id to run under.
    #[arg(long, requires = "gid")]
    pub uid: Option<u32>,
    /// Group id to run under.
    #[arg(long, requires = "uid")]
    pub gid: Option<u32>,
    /// Control groups and resource limits.
    #[command(flatten)]
    pub bounds: LaunchBounds,
    /// Run without Landlock and seccomp.
    #[arg(long = "no-sandbox", action = ArgAction::SetFalse)]
    pub sandbox: bool,
    /// An argument of the program.
    #[arg(long = "argument", value_name = "TEXT")]
    pub program_arguments: Vec<String>,
}

impl UpgradeLaunchPlan {
    /// Returns the command line that parses to this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            SUBCOMMAND.into(),
            "--program".into(),
            self.program.clone().into(),
            "--directory".into(),
            self.directory.clone().into(),
        ];
        for (flag, paths) in [
            ("--read", &self.read),
            ("--execute", &self.execute),
            ("--write", &self.write),
        ] {
            for path in paths {
                arguments.extend([flag.into(), path.clone().into()]);
            }
        }
        if let Some(accounts) = &self.accounts {
            arguments.extend(["--accounts".into(), accounts.clone().into()]);
        }
        if let (Some(uid), Some(gid)) = (self.uid, self.gid) {
            let ids = ["--uid".to_owned(), uid.to_string()];
            arguments.extend(ids.map(OsString::from));
            arguments.extend(["--gid".to_owned(), gid.to_string()].map(OsString::from));
        }
        arguments.extend(self.bounds.arguments());
        if !self.sandbox {
            arguments.push("--no-sandbox".into());
        }
        for argument in &self.program_arguments {
            arguments.push(format!("--argument={argument}").into());
        }
        arguments
    }

    fn sandbox(&self) -> Sandbox {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let execute = read | AccessFs::Execute;
        let execute_file = AccessFs::ReadFile | AccessFs::Execute;
        let discard = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        // Links between the folders of the two clusters need the last right.
        let change = discard
            | AccessFs::ReadDir
            | AccessFs::MakeReg
            | AccessFs::MakeDir
            | AccessFs::MakeSock
            | AccessFs::RemoveFile
            | AccessFs::RemoveDir
            | AccessFs::Refer;
        let (folders, programs): (Vec<_>, Vec<_>) =
            self.execute.iter().cloned().partition(|path| path.is_dir());
        let system = LOADERS.iter().chain(&SHELL).map(PathBuf::from).collect();
        let rules = [
            (READABLE.iter().map(PathBuf::from).collect(), read),
            (self.read.clone(), read),
            (system, execute_file),
            (programs, execute_file),
            (folders, execute),
            (vec![PathBuf::from("/dev/null")], discard),
            (self.write.clone(), change),
        ];
        Sandbox {
            files: rules
                .into_iter()
                .map(|(paths, access)| AccessRule { paths, access })
                .collect(),
            ports: Vec::new(),
            listen_ports: Vec::new(),
            system_calls: &postgres::UPGRADE,
            executes: true,
        }
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
        let mut command = Command::new(&launcher.program);
        command
            .args(self.arguments())
            .env_clear()
            .current_dir("/")
            .stdout(output)
            .stderr(twin);
        let mut child = match launcher.run_untraced(command) {
            Ok(child) => child,
            Err(LauncherError::Run(error) | LauncherError::Kill(error)) => {
                return Err(error).at("running", &launcher.program);
            }
            Err(LauncherError::ShuttingDown) => return Err(ClusterError::ShuttingDown),
        };
        let pid = Pid::from_raw(child.id().cast_signed());
        let handle = pid.map(ProcessHandle::open).transpose();
        let handle = KillOnDrop(handle.at("watching", log)?.flatten());
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
    let mut program = Command::new(&plan.program);
    program
        .env_clear()
        .env("TZ", "UTC")
        // Programs that the shell looks up.
        .env("PATH", "/usr/bin:/bin")
        .args(&plan.program_arguments);
    let launch = Launch {
        program,
        exec_step: "starting pg_upgrade",
        directory: plan.directory.clone(),
        record: false,
        ids: plan.uid.zip(plan.gid),
        accounts: plan.accounts.clone(),
        bounds: plan.bounds.clone(),
        sandbox: plan.sandbox.then(|| plan.sandbox()),
    };
    launch.exec()
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
                uid: ids,
                gid: ids,
                bounds: LaunchBounds {
                    memory_max: ids.map(|_| 1 << 30),
                    ..LaunchBounds::default()
                },
                sandbox,
                program_arguments: vec!["-b".to_owned(), "/x y".to_owned()],
            };
            assert_eq!(Cli::parse_from(plan.arguments()).plan, plan);
        }
    }
}
