//! The folder of an instance.
//!
//! ```text
//! run/<ref>.functions.<digest>/  of a version of a function, with the same content
//! run/<ref>.pooler.second/       of a pooler that was started while another had clients
//! run/<ref>.<service>/           accessible to Gantry's account, passable for the instance
//!                     launched   pid and start time of the process
//!                     kit        version of the kit, and generation of its configuration
//!                     environment  variables of a process that is being launched
//!                     g          socket to the project's services, for functions
//!                     d          socket to the project's database, for functions
//!                     output     FIFO of the program's output
//!                     i/         working directory and configuration; the instance's own account
//!                     i/s        its Unix socket; that of a pooler has another name
//! ```

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use gantry_base::{
    files::{absent_is_fine, make_folder, replace},
    ids::ProjectRef,
};
use gantry_node::{
    clusters::Home,
    kits::Service,
    proc_files::{ProcessFiles, pids},
    supervisor::{LaunchRecord, ProcessOwner},
};
use rustix::{
    fs::{CWD, FileType, Mode},
    process::Pid,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::instance_id::{FunctionVersion, InstanceId};

/// Largest file of an instance that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Mode of the outer folder: the instance's account can pass through it.
const PASSAGE: u32 = 0o711;
/// Name of the file with the variables of a process that is being launched.
const ENVIRONMENT: &str = "environment";

/// Name of the Unix socket, which `PgBouncer` derives from its port.
pub(super) const POOLER_SOCKET: &str = ".s.PGSQL.6543";
/// End of the name of the second folder of a pooler, for one that starts while another is retired.
pub(in crate::control::services) const SECOND_POOLER: &str = "second";

/// The kit and the configuration of a started instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartedKit {
    /// Version of the kit.
    pub(super) version: String,
    /// Generation of the project's settings.
    pub(super) settings: i64,
    /// Digest of the settings: a generation that was not stored may be given again.
    #[serde(default)]
    pub(super) digest: String,
    /// The version, for functions.
    #[serde(default)]
    pub(super) function: Option<FunctionVersion>,
    /// The ports that it listens on, then the one by which it reaches the database.
    #[serde(default)]
    pub(super) ports: Vec<u16>,
}

/// The paths of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceFolder {
    outer: PathBuf,
    /// Whether other instances have the same account.
    shares_account: bool,
}

impl InstanceFolder {
    pub(super) fn of(home: &Home, id: &InstanceId) -> Self {
        Self::named(home, &id.name())
    }

    /// The folder of this name in the directory of sockets.
    pub(super) fn named(home: &Home, name: &str) -> Self {
        Self {
            outer: home.socket_dir(name),
            shares_account: name.matches('.').count() > 1,
        }
    }

    /// Parses the name of a folder in the directory of sockets.
    pub(super) fn parse(name: &str) -> Option<(ProjectRef, Service)> {
        let (project, service) = name.split_once('.')?;
        let (service, digest) = service.split_once('.').unwrap_or((service, ""));
        let service = Service::of_program(service)?;
        let is_named = match service {
            // Each version has an instance.
            Service::Functions => !digest.is_empty(),
            Service::Pooler => digest.is_empty() || digest == SECOND_POOLER,
            _ => digest.is_empty(),
        };
        is_named.then_some((project.parse().ok()?, service))
    }

    /// Its name, and that of the control group of its processes.
    pub(super) fn name(&self) -> String {
        let name = self.outer.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The working directory.
    pub(super) fn inner(&self) -> PathBuf {
        self.outer.join("i")
    }

    /// The Unix socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.inner().join("s")
    }

    /// The Unix socket of a pooler, which chooses the name.
    pub(super) fn pooler_socket(&self) -> PathBuf {
        self.inner().join(POOLER_SOCKET)
    }

    /// The socket by which a function reaches the services of its project.
    pub(super) fn gateway(&self) -> PathBuf {
        self.outer.join("g")
    }

    /// The socket by which a function reaches the database of its project.
    pub(super) fn database(&self) -> PathBuf {
        self.outer.join("d")
    }

    /// The FIFO of the program's output.
    pub(super) fn output(&self) -> PathBuf {
        self.outer.join("output")
    }

    /// Creates the folder for a new process. Files of an earlier process are removed, except for
    /// unread output.
    pub(super) fn create(&self, owner: ProcessOwner) -> io::Result<()> {
        make_folder(&self.outer, PASSAGE)?;
        let inner = self.inner();
        absent_is_fine(fs::remove_dir_all(&inner))?;
        for file in ["launched", "kit", ENVIRONMENT] {
            absent_is_fine(fs::remove_file(self.outer.join(file)))?;
        }
        make_folder(&inner, 0o700)?;
        owner.own(&inner)?;
        let output = self.output();
        let is_fifo = fs::symlink_metadata(&output).is_ok_and(|found| found.file_type().is_fifo());
        if !is_fifo {
            absent_is_fine(fs::remove_file(&output))?;
            rustix::fs::mknodat(CWD, &output, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
        Ok(())
    }

    /// Writes a file of the instance atomically, with mode 0600 and its account as owner.
    pub(super) fn write(&self, name: &str, text: &str, owner: ProcessOwner) -> io::Result<()> {
        // Written where the instance has no access, so that it cannot put a link in its place.
        let unfinished = self.outer.join(format!("{name}.new"));
        absent_is_fine(fs::remove_file(&unfinished))?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        owner.own_file(&file)?;
        fs::rename(&unfinished, self.inner().join(name))
    }

    /// The file with the variables of a process that is being launched.
    pub(super) fn environment(&self) -> PathBuf {
        self.outer.join(ENVIRONMENT)
    }

    /// Writes the variables of a new process, for its launcher alone.
    pub(super) fn write_environment(&self, text: &SecretString) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.environment())?;
        file.write_all(text.expose_secret().as_bytes())
    }

    /// Reads a file of the instance: a regular one of at most [`FILE_BYTES_MAX`].
    pub(super) fn read(&self, name: &str) -> io::Result<String> {
        // The instance could have put a link or a pipe in its place.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.inner().join(name))?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Records the kit of the running process.
    pub(super) fn record(&self, started: &StartedKit) -> io::Result<()> {
        let text = serde_json::to_string(started)?;
        replace(&self.outer.join("kit"), text, 0o600)
    }

    /// Removes the record: the process is not adopted by another Gantry.
    pub(super) fn forget(&self) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.outer.join("kit")))
    }

    /// Returns the recorded kit.
    pub(super) fn recorded(&self) -> Option<StartedKit> {
        let text = fs::read_to_string(self.outer.join("kit")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns the live process that was launched in this folder.
    pub(super) fn launched(&self) -> Option<Pid> {
        let record = LaunchRecord::read(&self.inner())?;
        let pid = record.pid();
        (LaunchRecord::of_process(pid) == Some(record)).then_some(pid)
    }

    /// Returns all processes with this folder as working directory, and those of `uid`.
    pub(super) fn processes(&self, uid: Option<u32>) -> io::Result<Vec<Pid>> {
        let launched = self.launched();
        let belongs = |pid: &Pid| self.belongs(*pid, uid, launched);
        Ok(pids()?.into_iter().filter(belongs).collect())
    }

    /// Returns whether a live process has this folder as its working directory, or this user id.
    pub(super) fn is_process(&self, pid: Pid, uid: Option<u32>) -> bool {
        self.belongs(pid, uid, self.launched())
    }

    fn belongs(&self, pid: Pid, uid: Option<u32>, launched: Option<Pid>) -> bool {
        let files = ProcessFiles::of(pid);
        let Some(live) = files.live_uid() else {
            return false;
        };
        let cwd = files.working_directory().unwrap_or_default();
        // A program may have another working directory.
        if is_same(&cwd, &self.inner()) || launched == Some(pid) {
            return true;
        }
        // Another Gantry on this machine may have assigned the same user id.
        let is_elsewhere = || is_instance(&cwd);
        !self.shares_account && uid == Some(live) && !is_elsewhere()
    }

    /// Deletes the folder.
    pub(super) fn remove(&self) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(&self.outer))
    }
}

/// Compares a working directory with a folder. The kernel marks a removed directory.
fn is_same(cwd: &Path, folder: &Path) -> bool {
    let cwd = cwd.to_string_lossy();
    Path::new(cwd.strip_suffix(" (deleted)").unwrap_or(&cwd)) == folder
}

/// Returns whether a working directory is that of an instance.
fn is_instance(cwd: &Path) -> bool {
    let outer = cwd.parent().and_then(Path::file_name);
    cwd.ends_with("i")
        && outer
            .and_then(|name| name.to_str())
            .is_some_and(|name| InstanceFolder::parse(name).is_some())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folder_name_names_project_and_service() {
        let project = "abcdefghijklmnopqrst";
        let parsed = InstanceFolder::parse(&format!("{project}.rest")).unwrap();
        assert_eq!((parsed.0.as_str(), parsed.1), (project, Service::Rest));
        let parsed = InstanceFolder::parse(&format!("{project}.pooler")).unwrap();
        assert_eq!(parsed.1, Service::Pooler);
        let second = InstanceFolder::parse(&format!("{project}.pooler.second")).unwrap();
        assert_eq!(second.1, Service::Pooler);
        let parsed = InstanceFolder::parse(&format!("{project}.functions.0123")).unwrap();
        assert_eq!(parsed.1, Service::Functions);
        for other in [
            "control",
            project,
            "abcdefghijklmnopqrst.x",
            "x.rest",
            "abcdefghijklmnopqrst.functions",
            "abcdefghijklmnopqrst.rest.0123",
            "abcdefghijklmnopqrst.pooler.0123",
        ] {
            assert_eq!(InstanceFolder::parse(other), None, "{other}");
        }
    }

    #[test]
    fn new_process_finds_no_files_of_the_previous_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = InstanceFolder {
            outer: place.path().join("x.rest"),
            shares_account: false,
        };
        let owner = ProcessOwner::new(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        folder.create(owner).unwrap();
        folder.write("rest.conf", "a = 1", owner).unwrap();
        let started = StartedKit {
            version: "1".to_owned(),
            settings: 2,
            digest: "x".to_owned(),
            function: None,
            ports: vec![23_000, 23_001],
        };
        folder.record(&started).unwrap();
        assert_eq!(folder.read("rest.conf").unwrap(), "a = 1");
        assert_eq!(folder.recorded(), Some(started));
        let mode = fs::metadata(folder.inner().join("rest.conf")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        folder.create(owner).unwrap();
        assert!(folder.read("rest.conf").is_err());
        assert_eq!((folder.recorded(), folder.launched()), (None, None));
        folder.remove().unwrap();
        folder.remove().unwrap();
    }
}
