//! The arguments that all launchers have.

use clap::{ArgAction, Args};

use crate::supervisor::{account::ProcessOwner, bounds::LaunchBounds};

/// The account and the bounds of a program, and whether it is sandboxed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Confinement {
    /// User id to run under.
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// Group id to run under.
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// Control groups and resource limits.
    #[command(flatten)]
    pub bounds: LaunchBounds,
    /// Run without Landlock and seccomp.
    #[arg(long = "no-sandbox", action = ArgAction::SetFalse)]
    pub sandbox: bool,
}

impl Confinement {
    /// The account with these bounds.
    pub fn new(owner: ProcessOwner, bounds: LaunchBounds, sandbox: bool) -> Self {
        let ids = owner.ids();
        Self {
            uid: ids.map(|(uid, _)| uid),
            gid: ids.map(|(_, gid)| gid),
            bounds,
            sandbox,
        }
    }

    /// User and group id to run under. `None`: those of the launcher.
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.uid.zip(self.gid)
    }

    /// Values for tests of the command lines of launchers.
    #[cfg(test)]
    pub(crate) fn example(id: Option<u32>, sandbox: bool) -> Self {
        let groups = id.map_or_else(Vec::new, |_| vec!["/g 1".into(), "/g2".into()]);
        Self {
            uid: id,
            gid: id,
            bounds: LaunchBounds {
                groups,
                memory_max: id.map(|_| 1 << 30),
                data_max: id.map(|_| 3 << 30),
                descriptors_max: Some(100),
                processes_max: id.map(u64::from),
                file_max: Some(2 << 30),
                locked_memory_max: id.map(|_| 0),
            },
            sandbox,
        }
    }
}
