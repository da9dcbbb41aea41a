//! The launch of an instance: its arguments, and the files that its sandbox permits.
//!
//! Gantry executes its own binary with the hidden subcommand [`SUBCOMMAND`], and that process calls
//! [`launch`]. The mechanism is in [`supervisor`](crate::supervisor).

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{ArgAction, Args};
use landlock::AccessFs;

use crate::{
    services::scratch,
    supervisor::{
        Confinement, LaunchError, LauncherArguments, Namespaces, ProcessOwner, Sandbox,
        SandboxedProgram,
    },
    system_calls::services,
};

/// Name of the hidden subcommand that calls [`launch`].
pub const SUBCOMMAND: &str = "launch-service";

/// Largest file of variables, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 4 << 20;

/// Files by which names of hosts are resolved and their certificates verified.
const NAME_SERVICES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/pki",
];

/// Which program to start and under which account. The arguments of the hidden subcommand. They
/// contain no secret, because other accounts can read them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct ServiceLaunchPlan {
    /// The program.
    #[arg(long)]
    pub program: PathBuf,
    /// The folder of the kit, which the instance may read.
    #[arg(long)]
    pub kit: PathBuf,
    /// The folder of the instance, in which it may create its socket.
    #[arg(long)]
    pub folder: PathBuf,
    /// Do not record the process beside its folder.
    #[arg(long = "no-record", action = ArgAction::SetFalse)]
    pub record: bool,
    /// A further file or folder that the instance may read.
    #[arg(long = "read", value_name = "PATH")]
    pub read: Vec<PathBuf>,
    /// A further folder that the instance may change.
    #[arg(long = "write", value_name = "DIR")]
    pub write: Vec<PathBuf>,
    /// A Unix socket, or a folder of them, that the instance may connect to.
    #[arg(long = "connect", value_name = "PATH")]
    pub connect: Vec<PathBuf>,
    /// A further file, or a folder of files, that the instance may execute.
    #[arg(long = "execute", value_name = "PATH")]
    pub execute: Vec<PathBuf>,
    /// The working directory of the program. Absent: the folder of the instance.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// A TCP port that the instance may connect to.
    #[arg(long = "port")]
    pub ports: Vec<u16>,
    /// A TCP port that the instance may listen on.
    #[arg(long = "listen-port")]
    pub listen_ports: Vec<u16>,
    /// Permit no sockets of the internet.
    #[arg(long)]
    pub offline: bool,
    /// Permit the system calls that store attributes of files.
    #[arg(long)]
    pub attributes: bool,
    /// Permit the system calls of JavaScript, and of clients and servers of the internet.
    #[arg(long)]
    pub network: bool,
    /// Give the program a file system of its own for temporary files.
    #[arg(long)]
    pub scratch: bool,
    /// File with further variables, which is deleted after it was read. Each ends with a NUL.
    #[arg(long, value_name = "FILE")]
    pub environment: Option<PathBuf>,
    /// The name of the machine that the program sees, where the system permits it.
    #[arg(long, value_name = "NAME")]
    pub host_name: Option<String>,
    /// Account and bounds, and whether the sandbox applies.
    #[command(flatten)]
    pub confinement: Confinement,
    /// A variable of the environment.
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    pub variables: Vec<String>,
    /// An argument of the program.
    #[arg(long = "argument", value_name = "TEXT")]
    pub program_arguments: Vec<String>,
}

impl ServiceLaunchPlan {
    /// Returns the command line that parses to this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        LauncherArguments::new(SUBCOMMAND)
            .values("--program", [&self.program])
            .values("--kit", [&self.kit])
            .values("--folder", [&self.folder])
            .values("--read", &self.read)
            .values("--write", &self.write)
            .values("--connect", &self.connect)
            .values("--execute", &self.execute)
            .numbers("--port", self.ports.iter().copied())
            .flag("--no-record", !self.record)
            .flag("--network", self.network)
            .flag("--offline", self.offline)
            .flag("--attributes", self.attributes)
            .flag("--scratch", self.scratch)
            .numbers("--listen-port", self.listen_ports.iter().copied())
            .values("--directory", &self.directory)
            .values("--environment", &self.environment)
            .values("--host-name", &self.host_name)
            .confinement(&self.confinement)
            .texts("--variable", &self.variables)
            .texts("--argument", &self.program_arguments)
            .into_vec()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().args(&self.program_arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        for variable in &self.variables {
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            command.env(name, value);
        }
        command
    }

    /// The sandbox of the instance: reads its kit and the system's libraries, executes only its
    /// program, and creates only its socket. It needs no names of accounts: the id of its own has
    /// none. A function also reads its sources, and writes its own folder and its cache.
    fn sandbox(&self) -> Sandbox {
        let own =
            AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile;
        let names: &[&str] = if self.network { NAME_SERVICES } else { &[] };
        let system_calls = match (self.network, self.attributes) {
            (_, true) => &services::STORAGE,
            (true, false) if self.offline => &services::OFFLINE,
            (true, false) => &services::FUNCTION,
            (false, false) => &services::INSTANCE,
        };
        let mut sandbox = Sandbox::new(system_calls)
            .read([&self.kit])
            .execute([&self.program])
            .execute(&self.execute)
            .allow(own, [&self.folder])
            .read(names)
            .read(&self.read)
            .change(&self.write, AccessFs::Refer)
            // Kernels that do not know the second right permit all sockets, subject to their modes.
            .allow(AccessFs::ReadFile | AccessFs::ResolveUnix, &self.connect);
        sandbox.ports.clone_from(&self.ports);
        sandbox.listen_ports.clone_from(&self.listen_ports);
        sandbox
    }
}

/// Adds the variables in a file to the environment of a program, and deletes the file.
fn add_variables(program: &mut Command, file: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    File::open(file)?
        .take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut text)?;
    fs::remove_file(file)?;
    for variable in text.split(|byte| *byte == 0) {
        let equals = variable.iter().position(|byte| *byte == b'=');
        if let Some(equals) = equals {
            let (name, value) = (&variable[..equals], &variable[equals + 1..]);
            program.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
        }
    }
    Ok(())
}

impl ServiceLaunchPlan {
    /// Mounts the file system of temporary files. Returns the plan with the access to it, and
    /// whether it is mounted.
    fn with_scratch(mut self) -> (Self, bool) {
        if !self.scratch {
            return (self, false);
        }
        let mounted = match self.confinement.ids() {
            Some(ids) => {
                let own = [&self.program, &self.kit, &self.folder];
                let more = [&self.read, &self.write, &self.connect, &self.execute];
                let paths = own.into_iter().chain(more.into_iter().flatten());
                let paths: Vec<&Path> = paths.map(PathBuf::as_path).collect();
                scratch::mount_own(ids, &paths)
            }
            None => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let is_mounted = mounted.is_ok();
        let shown = if is_mounted { ",/tmp" } else { "" };
        for argument in &mut self.program_arguments {
            *argument = argument.replace(scratch::ARGUMENT, shown);
        }
        if is_mounted {
            self.write.push(scratch::PLACE.into());
        }
        (self, is_mounted)
    }
}

/// Confines this process and executes the program. Returns only on failure.
///
/// The process must have a single thread and must not have done anything else.
pub fn launch(plan: &ServiceLaunchPlan) -> Result<Infallible, LaunchError> {
    let (plan, is_mounted) = plan.clone().with_scratch();
    let mut command = plan.command();
    if plan.scratch && !is_mounted {
        let ids = plan.confinement.ids();
        let owner = ids.map_or_else(ProcessOwner::own_account, |(uid, gid)| {
            ProcessOwner::new(uid, gid)
        });
        scratch::use_folder(&mut command, &plan.folder, owner)
            .map_err(|error| LaunchError::System("making the temporary folder", error))?;
    }
    if let Some(file) = &plan.environment {
        add_variables(&mut command, file)
            .map_err(|error| LaunchError::System("reading the environment", error))?;
    }
    let program = SandboxedProgram {
        command,
        exec_step: "starting the program",
        directory: plan.folder.clone(),
        record: plan.record,
        accounts: None,
        namespaces: Namespaces {
            host_name: plan.host_name.clone(),
            ..Namespaces::default()
        },
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
        plan: ServiceLaunchPlan,
    }

    #[test]
    fn variables_are_read_once() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("environment");
        fs::write(&file, "A=1=2\0B=two\nlines\0C=\0").unwrap();
        let mut program = Command::new("true");
        add_variables(&mut program, &file).unwrap();
        let found: Vec<_> = program.get_envs().collect();
        let pair = |name, value| (OsStr::new(name), Some(OsStr::new(value)));
        assert_eq!(
            found,
            [pair("A", "1=2"), pair("B", "two\nlines"), pair("C", "")]
        );
        assert!(!file.exists());
    }

    #[test]
    fn plan_round_trips_through_arguments() {
        for (ids, sandbox) in [(Some(7), true), (None, false)] {
            let plan = ServiceLaunchPlan {
                program: "/k/bin/x".into(),
                kit: "/k 1".into(),
                folder: "/f".into(),
                read: vec!["/r 1".into(), "/r2".into()],
                write: vec!["/w".into()],
                connect: vec!["/g".into()],
                execute: vec!["/bin/sh".into()],
                directory: ids.map(|_| "/k 1/app".into()),
                ports: vec![80, 443],
                listen_ports: ids.map(|_| vec![23_000, 23_001]).unwrap_or_default(),
                offline: sandbox,
                attributes: !sandbox,
                network: sandbox,
                scratch: sandbox,
                environment: ids.map(|_| "/e 1".into()),
                record: sandbox,
                host_name: ids.map(|_| "abcdefghijklmnopqrst".to_owned()),
                confinement: Confinement::example(ids, sandbox),
                variables: vec!["A=-b=c".to_owned(), "D=".to_owned()],
                program_arguments: vec!["--uid".to_owned(), "-x y".to_owned()],
            };
            // The name of the subcommand takes the place of the program name.
            assert_eq!(Cli::parse_from(plan.arguments()).plan, plan);
        }
    }
}
