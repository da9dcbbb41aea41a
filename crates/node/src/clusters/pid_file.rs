//! The file in which a postmaster publishes its pid and status.

use std::path::Path;

use rustix::process::Pid;

use crate::files;

/// The pid and status in a `postmaster.pid`. Only a hint: the file survives a crash, and the tenant
/// may be able to write it.
pub(super) struct PidFile {
    pub(super) pid: Option<Pid>,
    pub(super) ready: bool,
    /// Whether the server is being stopped.
    pub(super) is_stopping: bool,
}

impl PidFile {
    pub(super) const NAME: &str = "postmaster.pid";
    /// Line of the status, counted from 0.
    const STATUS: usize = 7;

    pub(super) fn read(data: &Path) -> Option<Self> {
        files::read_untrusted(&data.join(Self::NAME), 4096)
            .ok()
            .map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let pid = lines
            .next()
            .and_then(|line| line.trim().parse().ok())
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw);
        let status = lines.nth(Self::STATUS - 1).unwrap_or_default().trim();
        Self {
            pid,
            ready: status == "ready",
            is_stopping: status == "stopping",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_and_readiness_are_parsed() {
        let text =
            |status| format!("4711\n/data\n1763730000\n5432\n/run/x\n\n  12345   6\n{status}\n");
        let ready = PidFile::parse(&text("ready   "));
        assert_eq!((ready.pid, ready.ready), (Pid::from_raw(4711), true));
        assert!(!PidFile::parse(&text("starting")).ready);
        assert!(PidFile::parse(&text("stopping")).is_stopping && !ready.is_stopping);
        for junk in ["", "0\n", "-1\n", "ready\n", "99999999999\n"] {
            let file = PidFile::parse(junk);
            assert!(file.pid.is_none() && !file.ready, "{junk:?}");
        }
    }
}
