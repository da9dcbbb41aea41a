//! Operating-system accounts of Gantry and of the processes that it starts.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{chown, fchown},
    path::Path,
};

/// The lowest user id that can belong to a single server. Distributions assign lower ids to people
/// and services. The ids of projects start at 700,000 by default.
const FIRST_OWN_UID: u32 = 100_000;
const PASSWD: &str = "/etc/passwd";

/// An account could not be found.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The passwd file cannot be read.
    #[error("reading {PASSWD}: {0}")]
    Passwd(io::Error),
    /// The user id has no entry in the passwd file, so peer authentication cannot name it.
    #[error(
        "uid {0} has no entry in /etc/passwd; PostgreSQL's peer authentication needs one, so run Gantry as a named user"
    )]
    Unnamed(u32),
}

/// A named account of the operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Login name.
    pub name: String,
}

impl Account {
    /// Returns the account that Gantry runs under, as peer authentication sees it.
    ///
    /// Reads only `/etc/passwd`, because a sandboxed server can read no other source of names.
    pub fn current() -> Result<Self, AccountError> {
        let uid = rustix::process::geteuid().as_raw();
        Self::of(uid)?.ok_or(AccountError::Unnamed(uid))
    }

    /// Returns the account with this user id, if it has a name.
    pub fn of(uid: u32) -> Result<Option<Self>, AccountError> {
        find(|account| account.uid == uid)
    }

    /// Returns the account for servers of Gantry itself: as root `postgres`, or `nobody` if there
    /// is no `postgres`; otherwise the current account.
    ///
    /// PostgreSQL does not run as root, and `initdb` needs a uid with a passwd entry.
    pub fn for_servers() -> Result<Self, AccountError> {
        if !is_root() {
            return Self::current();
        }
        for name in ["postgres", "nobody"] {
            if let Some(account) = find(|account| account.name == name)? {
                return Ok(account);
            }
        }
        Err(AccountError::Unnamed(65534))
    }

    /// The ids of processes of this account.
    pub fn process_owner(&self) -> ProcessOwner {
        ProcessOwner::new(self.uid, self.gid)
    }
}

/// The user and group of a server's files and processes. Only root can assign them; without root
/// they are Gantry's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessOwner(Option<(u32, u32)>);

impl ProcessOwner {
    /// The owner with these ids. Without root, Gantry's own account.
    pub fn new(uid: u32, gid: u32) -> Self {
        Self(is_root().then_some((uid, gid)))
    }

    /// Gantry's own account.
    pub fn own_account() -> Self {
        Self(None)
    }

    /// `(uid, gid)` to switch to. `None` without root.
    pub fn ids(self) -> Option<(u32, u32)> {
        self.0
    }

    /// The effective uid of the processes and files.
    pub fn uid(self) -> u32 {
        self.0
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }

    /// The uid, if it is used by a single server: not root's, not Gantry's and not that of a named
    /// account. All processes with this uid may be killed.
    pub fn own_uid(self) -> Option<u32> {
        let (uid, _) = self.0?;
        // If the passwd file cannot be read, the uid counts as named and no process is killed.
        let is_named = Account::of(uid).map_or(true, |account| account.is_some());
        (uid >= FIRST_OWN_UID && uid != rustix::process::geteuid().as_raw() && !is_named)
            .then_some(uid)
    }

    /// Changes the owner of an open file. Does nothing without root.
    pub fn own_file(self, file: &File) -> io::Result<()> {
        match self.0 {
            Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Changes the owner of `path`. Its directory must not be writable for a tenant. Does nothing
    /// without root.
    pub fn own(self, path: &Path) -> io::Result<()> {
        match self.0 {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }
}

/// Returns whether Gantry runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn find(matches: impl Fn(&Account) -> bool) -> Result<Option<Account>, AccountError> {
    let text = fs::read_to_string(PASSWD).map_err(AccountError::Passwd)?;
    Ok(text.lines().filter_map(parse).find(matches))
}

/// Parses a line `name:password:uid:gid:…`.
fn parse(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(Account { uid, gid, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_passwd_lines_are_skipped() {
        let account =
            parse("postgres:x:101:104:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash")
                .unwrap();
        assert_eq!(
            account,
            Account {
                uid: 101,
                gid: 104,
                name: "postgres".to_owned()
            }
        );
        for bad in ["", "# comment", "+::::::", "name:x:one:2:::", "name:x:1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn own_uid_rejects_low_and_named_ids() {
        let own = |uid| ProcessOwner(Some((uid, uid))).own_uid();
        assert_eq!(own(700_001), Some(700_001));
        for other in [
            0,
            1,
            1000,
            60_000,
            65_534,
            Account::for_servers().unwrap().uid,
            rustix::process::geteuid().as_raw(),
        ] {
            assert_eq!(own(other), None, "{other}");
        }
        assert_eq!(ProcessOwner(None).own_uid(), None);
    }

    #[test]
    fn servers_never_run_as_root() {
        assert_ne!(Account::for_servers().unwrap().uid, 0);
    }
}
