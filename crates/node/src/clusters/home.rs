//! The data directory: its layout and its lock.
//!
//! ```text
//! <dir>/lock              one Gantry at a time, or several with a control database elsewhere
//!       driver            lock of the process that operates the clusters
//!       starting          lock of the process that initializes the folder
//!       control/data      Gantry's own cluster
//!       templates/        prepared data directories, copied to make projects
//!       projects/<ref>/   a project: data/ and start.log
//!       run/<ref>/        its Unix socket
//!       run/<ref>.<service>/  an instance of a service
//!       engines/          PostgreSQL versions that were installed beside the distribution's
//!       kits/             programs for services of projects
//!       functions/<ref>/  sources of Edge Functions
//!       tmp/              incomplete directories
//!       restored/         clusters that were restored and have no place yet
//!       replaced/         clusters that a restored one took the place of
//!       backups/          backups, unless they are in an object store
//!       trash/            deleted directories
//! ```
//!
//! As root, each project's data and socket belong to the project's own uid; the data has mode 0700,
//! and the socket is also accessible to the project's own group, which its services have. Other
//! accounts can pass through the folders above them but not list them. The rest is accessible to
//! Gantry's account only, except for `engines/` and the certificate of the development authority.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use gantry_base::ids::ProjectRef;
use rustix::fs::{FlockOperation, Mode};
use sha2::{Digest, Sha256};

use crate::{
    error::{At, ClusterError, Result},
    files,
    supervisor::{Account, ProcessOwner, account::is_root},
};

/// The file that the configuration includes last.
pub(super) const OVERRIDES: &str = "overrides.conf";

/// Maximum length of the path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;
/// The name of a server's socket. It contains a port, but no server listens on TCP.
pub(super) const SOCKET: &str = ".s.PGSQL.5432";
/// Mode of folders that other accounts can pass through but not list.
const PASSAGE: u32 = 0o711;
const PRIVATE: u32 = 0o700;
/// Mode of a server's socket directory: the project's group, which only its services share, can
/// connect.
const SOCKET_DIR: u32 = 0o710;
/// Permissions of other accounts on entries of the data folder. Servers and services pass through
/// the first six to their own folders. All projects run the installed engines and kits, and
/// clients read the authority's certificate. Other entries are accessible to Gantry's account only.
const SHARED: [(&str, u32); 9] = [
    ("control", PASSAGE),
    ("projects", PASSAGE),
    ("run", PASSAGE),
    ("tmp", PASSAGE),
    ("functions", PASSAGE),
    ("storage", PASSAGE),
    ("engines", 0o755),
    ("kits", 0o755),
    (gantry_base::net::tls::AUTHORITY, 0o644),
];

/// A data directory that is locked by this process.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    sockets: PathBuf,
    templates: PathBuf,
    account: Account,
    /// Released on drop, or by the kernel when the process ends.
    _lock: File,
}

impl Home {
    /// Creates missing directories and takes the lock. The control cluster runs as `account`.
    ///
    /// An existing `dir` keeps its mode, because it may have another owner; it must already permit
    /// other accounts to pass.
    pub fn open(dir: &Path, account: Account) -> Result<Self> {
        Self::open_with(dir, account, FlockOperation::NonBlockingLockExclusive)
    }

    /// Opens a data folder that other processes share. None of them may run the control cluster.
    pub fn share(dir: &Path, account: Account) -> Result<Self> {
        Self::open_with(dir, account, FlockOperation::NonBlockingLockShared)
    }

    /// Creates the directory and missing parents with a mode that permits servers of other accounts
    /// to pass, ignoring the umask. Existing directories keep their mode.
    pub fn create(dir: &Path) -> Result<()> {
        let missing = dir
            .ancestors()
            .take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists());
        let missing: Vec<&Path> = missing.collect();
        let mode = if is_root() { PASSAGE } else { PRIVATE };
        missing
            .into_iter()
            .rev()
            .try_for_each(|dir| files::make_dir(dir, mode))
    }

    fn open_with(dir: &Path, account: Account, how: FlockOperation) -> Result<Self> {
        Self::create(dir)?;
        // Servers are recognised by their working directory, which the kernel reports without
        // links.
        let dir = dir.canonicalize().at("opening", dir)?;
        let lock = take_lock(&dir, how)?;
        if let Some((ancestor, mode)) = closed_ancestor(&dir) {
            return Err(ClusterError::Unreachable {
                dir,
                ancestor,
                mode,
                account: account.name,
            });
        }
        for name in ["control", "projects", "run", "tmp", "functions", "storage"] {
            files::make_dir(&dir.join(name), PASSAGE)?;
        }
        for name in ["templates", "trash", "restored", "replaced"] {
            files::make_dir(&dir.join(name), PRIVATE)?;
        }
        tighten(&dir)?;
        let sockets = sockets_root(&dir);
        if !sockets.starts_with(&dir) {
            claim_short_dir(&sockets)?;
        }
        let templates = dir.join("templates");
        Ok(Self {
            dir,
            sockets,
            templates,
            account,
            _lock: lock,
        })
    }

    /// Takes the lock `name` if it is free. The lock is released when the file is closed.
    pub fn try_lock(&self, name: &str) -> Result<Option<File>> {
        let (file, path) = self.lock_file(name)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).at("locking", &path),
        }
    }

    /// Takes the lock of the process that operates the clusters of this folder, if it is free.
    pub fn try_lock_clusters(&self) -> Result<Option<File>> {
        self.try_lock("driver")
    }

    /// Waits for the lock that protects the initialization of a folder. The lock is released when
    /// the file is closed.
    pub fn lock_start(&self) -> Result<File> {
        let (file, path) = self.lock_file("starting")?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).at("locking", &path)?;
        Ok(file)
    }

    fn lock_file(&self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.dir.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .at("opening", &path)?;
        Ok((file, path))
    }

    /// Sets another directory for templates, which several homes can share. Creates it if missing.
    pub fn with_templates(mut self, templates: PathBuf) -> Result<Self> {
        fs::create_dir_all(&templates).at("creating", &templates)?;
        self.templates = templates;
        Ok(self)
    }

    /// Returns the directory of a server's Unix socket in a home that another process has locked.
    pub fn sockets_of(dir: &Path, name: &str) -> PathBuf {
        sockets_root(dir).join(name)
    }

    /// The directory of installed PostgreSQL versions in the home at `dir`.
    pub fn engines_of(dir: &Path) -> PathBuf {
        dir.join("engines")
    }

    /// The directory of installed programs for services in the home at `dir`.
    pub fn kits_of(dir: &Path) -> PathBuf {
        dir.join("kits")
    }

    /// The control cluster's data directory in the home at `dir`, which need not exist.
    pub fn control_data_of(dir: &Path) -> PathBuf {
        dir.join("control/data")
    }

    /// Returns whether servers could enter `dir`, which need not exist. Always true unless Gantry
    /// runs as root: servers then have other accounts, and every parent must permit them to pass.
    pub fn reachable(dir: &Path) -> bool {
        let existing = dir
            .ancestors()
            .find(|ancestor| ancestor.exists())
            .and_then(|ancestor| ancestor.canonicalize().ok());
        existing.is_none_or(|dir| closed_ancestor(&dir).is_none())
    }

    /// The directory itself, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The account of `initdb` and the control cluster.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// A project's directory; the data directory is `data` in it.
    pub fn project(&self, project: &ProjectRef) -> PathBuf {
        self.projects().join(project.as_str())
    }

    /// The data directory of a project, which may not exist.
    pub fn data_directory(&self, project: &ProjectRef) -> PathBuf {
        self.project(project).join("data")
    }

    /// The directory of the sources of Edge Functions, by project.
    pub fn functions(&self) -> PathBuf {
        self.dir.join("functions")
    }

    /// The directory of the files of Storage, by project.
    pub fn storage(&self) -> PathBuf {
        self.dir.join("storage")
    }

    /// The directory of a server's Unix socket.
    pub fn socket_dir(&self, name: &str) -> PathBuf {
        self.sockets.join(name)
    }

    /// The Unix socket of a server.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.socket_dir(name).join(SOCKET)
    }

    /// The control cluster's data directory, which need not exist.
    pub fn control_data(&self) -> PathBuf {
        self.control().join("data")
    }

    pub(super) fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    pub(super) fn projects(&self) -> PathBuf {
        self.dir.join("projects")
    }

    pub(super) fn sockets(&self) -> &Path {
        &self.sockets
    }

    pub(super) fn templates(&self) -> &Path {
        &self.templates
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    pub(super) fn trash(&self) -> PathBuf {
        self.dir.join("trash")
    }

    pub(super) fn restored(&self) -> PathBuf {
        self.dir.join("restored")
    }

    pub(super) fn replaced(&self) -> PathBuf {
        self.dir.join("replaced")
    }
}

/// Creates an empty socket directory for a stopped server, owned by `owner`.
///
/// An existing one is replaced: it may contain a stale lock file, which prevents the start if its
/// pid is in use again.
pub(super) fn fresh_socket_dir(dir: &Path, owner: ProcessOwner) -> Result<()> {
    files::remove_tree(dir)?;
    files::make_dir(dir, SOCKET_DIR)?;
    owner.own(dir).at("handing over", dir)
}

/// Sets the umask, so that new files and folders are accessible to this account only, unless their
/// mode is changed explicitly.
pub fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Removes permissions of other accounts that earlier versions granted in the data folder. The
/// contents of a private folder need no change, because other accounts cannot reach them.
fn tighten(dir: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(dir).at("listing", dir)? {
        let path = entry.at("listing", dir)?.path();
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.at("examining", &path)?,
        };
        let shared = SHARED
            .iter()
            .find(|(name, _)| path.file_name().is_some_and(|other| other == *name));
        let mode = found.mode() & 0o777;
        let allowed = shared.map_or(PRIVATE, |(_, allowed)| *allowed);
        // A folder may be a mount or a link that belongs to another account.
        if mode & !allowed != 0 && found.uid() == own {
            fs::set_permissions(&path, Permissions::from_mode(mode & allowed))
                .at("closing", &path)?;
        }
    }
    Ok(())
}

fn take_lock(dir: &Path, how: FlockOperation) -> Result<File> {
    let path = dir.join("lock");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut lock = opened.at("writing", &path)?;
    match rustix::fs::flock(&lock, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            let holder = pid
                .trim()
                .parse::<u32>()
                .map_or_else(|_| String::new(), |pid| format!(" (pid {pid})"));
            return Err(ClusterError::InUse {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(error) => return Err(error).at("locking", &path),
    }
    // The content is only used for the message above.
    lock.set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .at("writing", &path)?;
    Ok(lock)
}

/// Returns the first directory from the root down that other accounts cannot pass, with its mode.
/// `None` unless this process runs as root.
fn closed_ancestor(dir: &Path) -> Option<(PathBuf, u32)> {
    if !is_root() {
        return None;
    }
    let mut ancestors: Vec<_> = dir.ancestors().collect();
    ancestors.reverse();
    ancestors.into_iter().find_map(|ancestor| {
        let mode = ancestor
            .metadata()
            .map_or(0, |metadata| metadata.permissions().mode() & 0o7777);
        (mode & 0o001 == 0).then(|| (ancestor.to_owned(), mode))
    })
}

/// Returns `<dir>/run`, or a short directory in `/tmp` if the longest socket path would exceed
/// [`SOCKET_PATH_MAX`].
fn sockets_root(dir: &Path) -> PathBuf {
    /// A project reference; no other server has a longer name.
    const NAME_MAX: usize = 20;
    let run = dir.join("run");
    let longest = run.as_os_str().len() + 1 + NAME_MAX + 1 + SOCKET.len();
    if longest <= SOCKET_PATH_MAX {
        return run;
    }
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    PathBuf::from(format!("/tmp/gantry-{}", hex::encode(&digest[..6])))
}

/// Checks that a directory in `/tmp`, where all users can create names, belongs to Gantry.
fn claim_short_dir(dir: &Path) -> Result<()> {
    match files::make_dir(dir, PASSAGE) {
        Ok(()) => {}
        Err(ClusterError::Io { cause, .. }) if cause.kind() == io::ErrorKind::AlreadyExists => {}
        Err(other) => return Err(other),
    }
    let found = fs::symlink_metadata(dir).at("examining", dir)?;
    let ours = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o022 == 0;
    if ours {
        Ok(())
    } else {
        Err(ClusterError::SocketsTaken(dir.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account::for_servers().unwrap()
    }

    /// Returns a directory under `/tmp` that other accounts can pass, with any umask.
    fn open_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        dir
    }

    #[test]
    fn open_locked_home_is_rejected() {
        let dir = open_dir();
        let first = Home::open(dir.path(), account()).unwrap();
        let refusal = Home::open(dir.path(), account()).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!(
                "in use by another gantry (pid {})",
                std::process::id()
            )),
            "{refusal}"
        );
        drop(first);
        Home::open(dir.path(), account()).unwrap();
    }

    #[test]
    fn long_path_uses_short_socket_directory() {
        let fits = PathBuf::from(format!(
            "/{}",
            "d".repeat(SOCKET_PATH_MAX - 1 - "/run/".len() - 20 - 1 - SOCKET.len())
        ));
        assert_eq!(sockets_root(&fits), fits.join("run"));
        assert_eq!(
            fits.join("run")
                .join("r".repeat(20))
                .join(SOCKET)
                .as_os_str()
                .len(),
            SOCKET_PATH_MAX
        );

        let long = PathBuf::from(format!("{}d", fits.display()));
        let short = sockets_root(&long);
        assert!(
            short.to_str().unwrap().starts_with("/tmp/gantry-"),
            "{short:?}"
        );
        assert_ne!(short, sockets_root(&long.join("other")));
    }

    #[test]
    fn short_socket_directory_of_other_user_is_rejected() {
        let dir = open_dir();
        let (link, wide) = (dir.path().join("link"), dir.path().join("wide"));
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        fs::create_dir(&wide).unwrap();
        fs::set_permissions(&wide, Permissions::from_mode(0o777)).unwrap();
        for taken in [link, wide] {
            assert!(
                matches!(claim_short_dir(&taken), Err(ClusterError::SocketsTaken(_))),
                "{taken:?}"
            );
        }
        claim_short_dir(&dir.path().join("new")).unwrap();
        claim_short_dir(&dir.path().join("new")).unwrap();
    }

    #[test]
    fn unreachable_home_error_names_the_closed_directory() {
        if !is_root() {
            return;
        }
        let closed = open_dir();
        fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
        let inside = closed.path().join("a/b");
        assert!(!Home::reachable(&inside));
        let refusal = Home::open(&inside, account()).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("{} has mode 0700", closed.path().display())),
            "{refusal}"
        );
        assert!(Home::reachable(Path::new("/var/lib/gantry")));
    }

    #[test]
    fn open_removes_permissions_of_other_accounts() {
        let dir = open_dir();
        drop(Home::open(dir.path(), account()).unwrap());
        for (name, before, after) in [
            ("logs", 0o755, 0o700),
            ("projects", 0o777, 0o711),
            ("engines", 0o755, 0o755),
            ("node", 0o644, 0o600),
            ("db-ca.pem", 0o644, 0o644),
            ("db-ca-key.pem", 0o644, 0o600),
        ] {
            let path = dir.path().join(name);
            match name {
                "logs" | "projects" | "engines" => fs::create_dir_all(&path).unwrap(),
                _ => fs::write(&path, "").unwrap(),
            }
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            drop(Home::open(dir.path(), account()).unwrap());
            assert_eq!(
                path.metadata().unwrap().permissions().mode() & 0o777,
                after,
                "{name}"
            );
        }
    }

    #[test]
    fn create_makes_passable_directories_and_keeps_existing_modes() {
        let dir = open_dir();
        let inner = dir.path().join("a/b/c");
        Home::create(&inner).unwrap();
        Home::create(&inner).unwrap();
        let expected = if is_root() { 0o711 } else { 0o700 };
        for created in ["a", "a/b", "a/b/c"] {
            assert_eq!(
                dir.path()
                    .join(created)
                    .metadata()
                    .unwrap()
                    .permissions()
                    .mode()
                    & 0o777,
                expected,
                "{created}"
            );
        }
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(Home::create(&dir.path().join("file/inner")).is_err());
    }

    #[test]
    fn open_keeps_mode_of_existing_home() {
        let dir = open_dir();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let home = Home::open(dir.path(), account()).unwrap();
        assert_eq!(
            home.dir().metadata().unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(
            home.projects().metadata().unwrap().permissions().mode() & 0o777,
            0o711
        );
        assert_eq!(
            home.trash().metadata().unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
}
