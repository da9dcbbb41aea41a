//! Namespaces of a launched program: the name of the machine, System V objects, and the names of
//! accounts that the program sees instead of those of the machine.
//!
//! Creating a namespace needs root and, in a container, the capability `CAP_SYS_ADMIN`. Without it
//! a program starts all the same and sees the machine's.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::sethostname,
};

use crate::supervisor::account::Account;

/// Longest name of a machine, in bytes (`__NEW_UTS_LEN`).
const HOST_NAME_BYTES_MAX: usize = 64;
const PASSWD: &str = "/etc/passwd";

/// The namespaces of a launched program.
#[derive(Debug, Default)]
pub struct Namespaces {
    /// The name of the machine that the program sees.
    pub host_name: Option<String>,
    /// Whether System V objects of the program are its own. They end with its last process, and no
    /// other program sees or runs out of them.
    pub own_ipc: bool,
    /// A file with the only account that the program sees in `/etc/passwd`: Gantry's. Written by
    /// the launcher.
    pub own_account: Option<PathBuf>,
}

impl Namespaces {
    /// Moves this process, which must have a single thread, into its namespaces. Does nothing if
    /// the system does not permit it. `gid` is the group of the program.
    ///
    /// Errors: the failed step and its cause. The process may be in some namespaces then.
    pub(super) fn enter(&self, gid: Option<u32>) -> Result<(), (&'static str, io::Error)> {
        let flags = self.flags();
        // Also without root, and in containers that forbid it.
        if flags.is_empty() || unshare(flags).is_err() {
            return Ok(());
        }
        if let Some(name) = &self.host_name {
            let end = name.floor_char_boundary(HOST_NAME_BYTES_MAX);
            sethostname(&name[..end]).map_err(|errno| ("sethostname", errno.into()))?;
        }
        if let Some(file) = &self.own_account {
            write_account(file, gid).map_err(|error| ("writing the account", error))?;
            // A container may permit namespaces, but no mounts.
            let _ = follow_mounts().and_then(|()| mount_accounts(file));
        }
        Ok(())
    }

    fn flags(&self) -> CloneFlags {
        let all = [
            (self.host_name.is_some(), CloneFlags::CLONE_NEWUTS),
            (self.own_ipc, CloneFlags::CLONE_NEWIPC),
            (self.own_account.is_some(), CloneFlags::CLONE_NEWNS),
        ];
        let needed = all.into_iter().filter(|(needed, _)| *needed);
        needed.fold(CloneFlags::empty(), |flags, (_, flag)| flags | flag)
    }
}

/// Puts a file in the place of `/etc/passwd`, for this process and its descendants only.
pub(super) fn replace_accounts(accounts: &Path) -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    follow_mounts()?;
    mount_accounts(accounts)
}

/// Keeps mounts of this process out of the machine's namespace. File systems that the machine
/// unmounts are unmounted here as well.
fn follow_mounts() -> nix::Result<()> {
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&Path>, "/", None::<&Path>, flags, None::<&Path>)
}

fn mount_accounts(accounts: &Path) -> nix::Result<()> {
    let none = None::<&Path>;
    mount(Some(accounts), PASSWD, none, MsFlags::MS_BIND, none)
}

/// Writes the account of this process in the format of `/etc/passwd`, readable for a group. The
/// file is replaced, so that a running program keeps the one that it sees.
fn write_account(file: &Path, group: Option<u32>) -> io::Result<()> {
    let Account { uid, gid, name } = Account::current().map_err(io::Error::other)?;
    let unfinished = file.with_extension(std::process::id().to_string());
    fs::write(&unfinished, format!("{name}:x:{uid}:{gid}::/:\n"))?;
    chown(&unfinished, None, group)?;
    // The umask applied above.
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o640))?;
    fs::rename(&unfinished, file)
}

/// Returns whether this process may create the namespaces of the programs that it starts.
pub fn namespaces_available() -> bool {
    // Only the thread that calls enters them, and it ends.
    let thread = std::thread::Builder::new().spawn(|| {
        let all = CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWNS;
        unshare(all).is_ok() && follow_mounts().is_ok()
    });
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_namespaces_are_created_only() {
        assert!(Namespaces::default().flags().is_empty());
        let service = Namespaces {
            host_name: Some("x".to_owned()),
            ..Namespaces::default()
        };
        assert_eq!(service.flags(), CloneFlags::CLONE_NEWUTS);
        let server = Namespaces {
            own_ipc: true,
            own_account: Some("/a".into()),
            ..service
        };
        assert_eq!(server.flags().iter().count(), 3);
    }

    #[test]
    fn account_is_one_line_that_the_group_may_read() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("accounts");
        for _ in 0..2 {
            write_account(&file, None).unwrap();
        }
        let text = fs::read_to_string(&file).unwrap();
        let account = Account::current().unwrap();
        assert!(text.starts_with(&format!("{}:x:{}:", account.name, account.uid)));
        assert_eq!(text.lines().count(), 1);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
