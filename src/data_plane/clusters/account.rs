//! Operating-system accounts: who Gantry is, and who its servers run as.

use std::{
    fs::{self, File},
    os::unix::fs::{chown, fchown},
    path::Path,
};

use super::{At, ClusterError, Result};

/// Lower ids belong to people and services, by the conventions of every distribution. Projects' start at 700,000 by default.
const FIRST_OWN_UID: u32 = 100_000;
const PASSWD: &str = "/etc/passwd";

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
    /// The account Gantry runs under, which peer authentication will see.
    ///
    /// Only `/etc/passwd` is asked: it is also all that a sandboxed server can read when it looks the name up.
    pub fn current() -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        Self::of(uid)?.ok_or(ClusterError::NoAccount(uid))
    }

    /// The account with this user id, if it has a name.
    pub fn of(uid: u32) -> Result<Option<Self>> {
        find(|account| account.uid == uid)
    }

    /// The account for `initdb` and the control cluster: `postgres`, else `nobody`, when root; ourselves otherwise.
    ///
    /// PostgreSQL refuses to run as root, and `initdb` refuses a uid without a passwd entry.
    pub fn for_servers() -> Result<Self> {
        if !is_root() {
            return Self::current();
        }
        for name in ["postgres", "nobody"] {
            if let Some(account) = find(|account| account.name == name)? {
                return Ok(account);
            }
        }
        Err(ClusterError::NoAccount(65534))
    }

    pub(super) fn run_as(&self) -> RunAs {
        RunAs::new(self.uid, self.gid)
    }
}

/// The ids a server's files and processes get: none but our own unless we are root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunAs(Option<(u32, u32)>);

impl RunAs {
    pub(super) fn new(uid: u32, gid: u32) -> Self {
        Self(is_root().then_some((uid, gid)))
    }

    /// `(uid, gid)` to switch to, if any.
    pub(super) fn ids(self) -> Option<(u32, u32)> {
        self.0
    }

    /// The uid that processes and files end up with.
    pub(super) fn uid(self) -> u32 {
        self.0
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }

    /// The uid, if it is one that only a project has: no named account's, not Gantry's, and never root's. Everything that runs
    /// under it may be ended.
    pub(super) fn own_uid(self) -> Option<u32> {
        let (uid, _) = self.0?;
        // A passwd file that cannot be read says nothing about anybody, so nothing is ended.
        let is_named = Account::of(uid).map_or(true, |account| account.is_some());
        (uid >= FIRST_OWN_UID && uid != rustix::process::geteuid().as_raw() && !is_named)
            .then_some(uid)
    }

    /// Hands an open file over, whatever `path` leads to by now. Does nothing unless we are root.
    pub(super) fn own_file(self, file: &File, path: &Path) -> Result<()> {
        match self.0 {
            Some((uid, gid)) => fchown(file, Some(uid), Some(gid)).at("handing over", path),
            None => Ok(()),
        }
    }

    /// Hands `path` over, which must be in a directory that no tenant can write. Does nothing unless we are root.
    pub(super) fn own(self, path: &Path) -> Result<()> {
        match self.0 {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)).at("handing over", path),
            None => Ok(()),
        }
    }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn find(wanted: impl Fn(&Account) -> bool) -> Result<Option<Account>> {
    let text = fs::read_to_string(PASSWD).at("reading", Path::new(PASSWD))?;
    Ok(text.lines().filter_map(parse).find(wanted))
}

/// `name:password:uid:gid:…`
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
    fn passwd_lines_parse_and_others_are_skipped() {
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
    fn only_an_unnamed_account_of_its_own_is_a_projects() {
        let own = |uid| RunAs(Some((uid, uid))).own_uid();
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
        assert_eq!(RunAs(None).own_uid(), None);
    }

    #[test]
    fn servers_never_run_as_root() {
        assert_ne!(Account::for_servers().unwrap().uid, 0);
    }
}
