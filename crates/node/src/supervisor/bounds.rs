//! Control groups and resource limits that the launcher applies to itself before it becomes the
//! server.

use std::{fs, io, path::PathBuf};

use clap::Args;
use rustix::process::{Resource, Rlimit, setrlimit};

/// The OOM score adjustment of a bounded process, -1000 to 1000. When the machine runs out of
/// memory, the kernel kills it before Gantry and other programs, whose adjustment is 0.
const OOM_SCORE: &str = "300";

/// Control groups and resource limits of a server, as arguments of the hidden subcommand `launch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct LaunchBounds {
    /// Folder of a control group to enter. Once for each hierarchy.
    #[arg(long = "group", value_name = "DIR")]
    pub groups: Vec<PathBuf>,
    /// Address space of each process, in bytes.
    #[arg(long)]
    pub memory_max: Option<u64>,
    /// Data segment and private mappings of each process, in bytes.
    #[arg(long)]
    pub data_max: Option<u64>,
    /// Open descriptors of each process.
    #[arg(long)]
    pub descriptors_max: Option<u64>,
    /// Processes and threads of the user id.
    #[arg(long)]
    pub processes_max: Option<u64>,
    /// Size of one file, in bytes.
    #[arg(long)]
    pub file_max: Option<u64>,
    /// Locked memory of each process, in bytes.
    #[arg(long)]
    pub locked_memory_max: Option<u64>,
}

impl LaunchBounds {
    /// Applies the bounds to this process, which must still have its privileges.
    ///
    /// Errors: the failed step and its cause.
    pub(super) fn apply(&self) -> Result<(), (&'static str, io::Error)> {
        for group in &self.groups {
            // 0 stands for the writing process.
            fs::write(group.join("cgroup.procs"), "0")
                .map_err(|error| ("entering a control group", error))?;
        }
        if *self != Self::default() {
            // Containers may forbid it. The other bounds do not depend on it.
            let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        }
        let limits = [
            // An allocation beyond the limit fails without ending the server.
            (Resource::As, self.memory_max),
            (Resource::Data, self.data_max),
            (Resource::Nofile, self.descriptors_max),
            (Resource::Nproc, self.processes_max),
            (Resource::Fsize, self.file_max),
            (Resource::Memlock, self.locked_memory_max),
            // POSIX message queues would outlive the process.
            (Resource::Msgqueue, self.file_max.map(|_| 0)),
        ];
        for (resource, value) in limits.into_iter().filter(|(_, value)| value.is_some()) {
            setrlimit(
                resource,
                Rlimit {
                    current: value,
                    maximum: value,
                },
            )
            .map_err(|error| ("setrlimit", error.into()))?;
        }
        Ok(())
    }
}
