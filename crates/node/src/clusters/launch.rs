//! The launch of a PostgreSQL server: its arguments, and the files that its sandbox permits.
//!
//! Gantry executes its own binary with the hidden subcommand [`SUBCOMMAND`], and that process calls
//! [`launch`]. The mechanism is in [`supervisor`](crate::supervisor).

use std::{
    convert::Infallible,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Args, ValueEnum, builder::PossibleValue};
use landlock::{AccessFs, BitFlags};

use crate::{
    clusters::{archive_way::ArchiveWay, vault_key},
    engines::Engine,
    supervisor::{
        Confinement, LaunchError, LauncherArguments, Namespaces, Sandbox, SandboxedProgram,
    },
    system_calls::postgres,
};

/// Name of the hidden subcommand that calls [`launch`].
pub const SUBCOMMAND: &str = "launch";
/// Name of the file beside the data directory that the server sees as `/etc/passwd`.
const ACCOUNT: &str = "account";

/// The account names.
///
/// Peer authentication, by which Gantry logs in, looks up the name of the connecting account with
/// the C library, which reads no other file. Where [`Namespaces`] are available, the file has
/// Gantry's account only; elsewhere it is the machine's, without passwords.
///
/// Tools that add an account replace the file. Peer authentication then fails in running servers
/// until they are restarted.
pub(super) const ACCOUNTS: &str = "/etc/passwd";

/// Which server to start and under which account. The arguments of the hidden subcommand.
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
    /// The `cluster_name`, which is part of process titles.
    #[arg(long)]
    pub name: String,
    /// Files of the engine.
    #[command(flatten)]
    pub engine: EngineFiles,
    /// Account and bounds, and whether the sandbox applies.
    #[command(flatten)]
    pub confinement: Confinement,
    /// Give the server a machine name, System V objects and account names of its own, where the
    /// system permits it.
    #[arg(long)]
    pub namespaces: bool,
    /// Archive the write-ahead log in this way.
    #[arg(long, value_enum)]
    pub archive: Option<ArchiveWay>,
    /// Only check the configuration, without starting a server.
    #[arg(long)]
    pub check: bool,
    /// A setting for the check, as `name=value`.
    #[arg(long = "setting", value_name = "NAME=VALUE", requires = "check")]
    pub settings: Vec<String>,
}

/// The files of an engine besides its program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct EngineFiles {
    /// A folder of the installation that the server reads, besides those of the system.
    #[arg(long = "read", value_name = "DIR")]
    pub read: Vec<PathBuf>,
    /// The dynamic loader of the server, if it is not that of the machine.
    #[arg(long)]
    pub loader: Option<PathBuf>,
    /// A library to load at the start.
    #[arg(long = "preload", value_name = "NAME")]
    pub preload: Vec<String>,
}

impl EngineFiles {
    /// Returns the files of an engine, and the libraries to load if the server has extensions.
    pub(super) fn of(engine: &Engine, has_extensions: bool) -> Self {
        let layout = engine.layout();
        let preload = if has_extensions {
            engine.preload()
        } else {
            Vec::new()
        };
        Self {
            read: layout.map_or_else(Vec::new, |layout| layout.readable().to_vec()),
            loader: layout.and_then(|layout| Some(layout.loader()?.to_owned())),
            preload: preload.into_iter().map(str::to_owned).collect(),
        }
    }
}

impl LaunchPlan {
    /// Returns the command line that parses to this plan.
    pub fn arguments(&self) -> Vec<OsString> {
        let way = self.archive.and_then(|way| way.to_possible_value());
        LauncherArguments::new(SUBCOMMAND)
            .values("--postgres", [&self.postgres])
            .values("--data", [&self.data])
            .values("--sockets", [&self.sockets])
            .values("--name", [&self.name])
            .values("--read", &self.engine.read)
            .values("--loader", &self.engine.loader)
            .values("--preload", &self.engine.preload)
            .confinement(&self.confinement)
            .values("--archive", way.as_ref().map(PossibleValue::get_name))
            .flag("--namespaces", self.namespaces)
            .flag("--check", self.check)
            .texts("--setting", &self.settings)
            .into_vec()
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
        // Set on the command line, which a tenant with superuser rights cannot override by files or
        // ALTER SYSTEM: the name identifies the processes, and the collector bounds the log.
        // Services of the project connect with the group of the project. Other shared memory than
        // that of a mapping exceeds the size that the list of system calls permits.
        server.args(["-c", "shared_memory_type=mmap"]);
        server.args(["-c", "unix_socket_permissions=0770"]);
        server
            .arg("-c")
            .arg(format!("cluster_name={}", self.name))
            .args(["-c", "logging_collector=on"]);
        if let Some(way) = self.archive {
            server.args(way.arguments());
        }
        // Also here, because a server does not start if its configuration names a library that is
        // no longer installed.
        if !self.engine.preload.is_empty() {
            let libraries = self.engine.preload.join(",");
            server
                .arg("-c")
                .arg(format!("shared_preload_libraries={libraries}"));
        }
        if self
            .engine
            .preload
            .iter()
            .any(|library| library == "pg_cron")
        {
            server.args(CRON);
        }
    }

    /// The name of the project instead of that of the machine, and Gantry's account instead of all
    /// accounts of the machine.
    fn namespaces(&self) -> Namespaces {
        if !self.namespaces {
            return Namespaces::default();
        }
        Namespaces {
            host_name: Some(self.name.clone()),
            own_ipc: true,
            own_account: Some(self.data.with_file_name(ACCOUNT)),
        }
    }

    /// The sandbox of the server: reads the installation and the account names, executes only the
    /// server, and writes only to its data directory and its socket directory.
    fn sandbox(&self) -> Sandbox {
        // The socket and its lock file.
        let sockets = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::MakeReg
            | AccessFs::MakeSock
            | AccessFs::RemoveFile;
        Sandbox::new(&postgres::POSTGRES)
            .read([ACCOUNTS])
            .read(installation(&self.postgres))
            .read(&self.engine.read)
            .execute(&self.engine.loader)
            .execute([&self.postgres])
            .change([&self.data], BitFlags::EMPTY)
            .allow(AccessFs::ReadFile, [vault_key::path(&self.data)])
            .allow(sockets, [&self.sockets])
    }
}

/// Confines this process and executes the server. Returns only on failure.
///
/// The process must have a single thread and must not have done anything else.
pub fn launch(plan: &LaunchPlan) -> Result<Infallible, LaunchError> {
    let program = SandboxedProgram {
        command: plan.program(),
        exec_step: "starting postgres",
        directory: plan.data.clone(),
        record: !plan.check,
        accounts: None,
        namespaces: plan.namespaces(),
        confinement: plan.confinement.clone(),
        sandbox: plan.sandbox(),
    };
    program.exec()
}

/// Jobs of `pg_cron` run in processes of the server. Its other way, a connection per job, needs
/// `connect`, which the sandbox denies.
const CRON: [&str; 4] = [
    "-c",
    "cron.use_background_workers=on",
    "-c",
    "cron.database_name=postgres",
];

/// Returns `<prefix>` of `<prefix>/bin/postgres`, for an installation outside `/usr`. Never returns
/// the root directory.
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
    fn plan_round_trips_through_arguments() {
        for (ids, sandbox) in [(Some(7), true), (None, false)] {
            let plan = LaunchPlan {
                postgres: "/usr/lib/postgresql/15/bin/postgres".into(),
                data: "/d".into(),
                sockets: "/s p".into(),
                name: "n".to_owned(),
                engine: EngineFiles {
                    read: ids
                        .iter()
                        .flat_map(|_| ["/e 1".into(), "/e2".into()])
                        .collect(),
                    loader: ids.map(|_| "/e 1/ld.so".into()),
                    preload: ids.iter().map(|_| "pg_cron".to_owned()).collect(),
                },
                confinement: Confinement::example(ids, sandbox),
                namespaces: sandbox,
                archive: ids.map(|_| ArchiveWay::Spool),
                check: ids.is_some(),
                settings: ids
                    .iter()
                    .flat_map(|_| ["work_mem=1MB".to_owned(), "-search_path=-a, b".to_owned()])
                    .collect(),
            };
            // The name of the subcommand takes the place of the program name.
            assert_eq!(Cli::parse_from(plan.arguments()).plan, plan);
        }
    }

    #[test]
    fn installation_is_never_the_root_directory() {
        assert_eq!(
            installation(Path::new("/opt/pg/bin/postgres")),
            Some(Path::new("/opt/pg"))
        );
        assert_eq!(installation(Path::new("/bin/postgres")), None);
    }
}
