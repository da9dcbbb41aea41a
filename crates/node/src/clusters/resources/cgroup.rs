//! Control groups: one per project, under Gantry's own group or under a group that the operator
//! configures.
//!
//! Version 2 has one hierarchy for all controllers, and has to be delegated. Version 1 has one
//! hierarchy per controller. Groups are named `gantry-<data folder>-<cluster>`: several Gantry
//! processes on one machine do not conflict, and a restarted process finds the groups of the
//! servers that it adopts.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{limits::ResourceLimits, usage};
use crate::proc_files::{Mount, control_group, own_control_groups, own_mounts};

/// The group of Gantry itself in version 2, which permits no processes in a group with controlled
/// children. Equals systemd's `DelegateSubgroup=supervisor`.
const SUPERVISOR: &str = "supervisor";
/// Maximum number of rounds in which the processes of a group are listed and killed. No process can
/// be added meanwhile.
const KILL_ROUNDS: usize = 200;
/// The pause between two rounds: the kernel needs a moment to end a process.
const KILL_PAUSE: Duration = Duration::from_millis(5);

/// A hierarchy of version 1, with one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    controller: &'static str,
    parent: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Version {
    /// No control groups can be created.
    None,
    /// The parent of the groups in the only hierarchy.
    V2(PathBuf),
    /// The first one is that of memory.
    V1(Vec<Hierarchy>),
}

/// The hierarchies in which control groups of projects are created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroups {
    version: Version,
    prefix: String,
}

/// Counters of the kernel for a group.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Memory that cannot be reclaimed by dropping cached files, in bytes.
    pub memory_bytes: u64,
    /// Total number of processes that the kernel killed because the group reached its memory limit.
    pub oom_kills: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Total number of forks that failed because of the limit on processes.
    pub forks_refused: u64,
    /// Processor time of all processes, in milliseconds. `None` if it cannot be read.
    pub processor_ms: Option<u64>,
}

/// Controllers of version 2 that are used if available.
const CONTROLLERS_V2: [&str; 4] = ["memory", "pids", "cpu", "io"];
/// Controllers of version 1 that are used if available. The memory controller is required.
const CONTROLLERS_V1: [&str; 4] = ["memory", "pids", "cpu", "blkio"];

impl ControlGroups {
    /// Returns no control groups: only resource limits and the watchdog limit servers.
    pub fn none() -> Self {
        Self {
            version: Version::None,
            prefix: String::new(),
        }
    }

    /// Finds a hierarchy in which groups for the servers of the data folder `home` can be created.
    /// `parent` is a path in the hierarchy, such as `/gantry.slice`; without it, groups are created
    /// under Gantry's own.
    pub fn find(home: &Path, parent: Option<&Path>) -> Self {
        let Ok(folder) = fs::metadata(home) else {
            return Self::none();
        };
        let prefix = prefix(folder.dev(), folder.ino());
        let mounts = Mounts::parse(&own_mounts(), &own_control_groups(), parent);
        let version = mounts
            .unified
            .and_then(|own| delegate(&own, std::process::id()))
            .map(Version::V2);
        let version = version.or_else(|| usable_v1(mounts.legacy, &prefix).map(Version::V1));
        Self {
            version: version.unwrap_or(Version::None),
            prefix,
        }
    }

    /// Returns the controllers of the group `parent`, by default those of the whole hierarchy.
    /// Creates and enables nothing.
    pub fn controllers(parent: Option<&Path>) -> Vec<String> {
        let parent = parent.unwrap_or(Path::new("/"));
        let mounts = Mounts::parse(&own_mounts(), &own_control_groups(), Some(parent));
        let list = mounts.unified.map(|group| group.join("cgroup.controllers"));
        let list = list.and_then(|list| fs::read_to_string(list).ok());
        let unified = list.unwrap_or_default();
        let unified = unified.split_whitespace().map(ToOwned::to_owned);
        let legacy = mounts.legacy.iter();
        unified
            .chain(legacy.map(|hierarchy| hierarchy.controller.to_owned()))
            .collect()
    }

    /// Description of the mechanism, for the log.
    pub fn name(&self) -> &'static str {
        match self.version {
            Version::None => "resource limits and the watchdog",
            Version::V2(_) => "control groups of version 2",
            Version::V1(_) => "control groups of version 1",
        }
    }

    /// Whether the kernel limits servers as a whole.
    pub fn enforced(&self) -> bool {
        self.version != Version::None
    }

    /// Returns the folders of a cluster's group, one per hierarchy, whether they exist or not. The
    /// first is that of the memory controller.
    pub fn folders(&self, cluster: &str) -> Vec<PathBuf> {
        let name = format!("{}{cluster}", self.prefix);
        self.parents()
            .into_iter()
            .map(|parent| parent.join(&name))
            .collect()
    }

    fn parents(&self) -> Vec<&Path> {
        match &self.version {
            Version::None => Vec::new(),
            Version::V2(parent) => vec![parent],
            Version::V1(hierarchies) => hierarchies
                .iter()
                .map(|hierarchy| hierarchy.parent.as_path())
                .collect(),
        }
    }

    /// Creates the group of a cluster, or updates the limits of an existing one. Returns its
    /// folders.
    pub fn make(&self, cluster: &str, limits: &ResourceLimits) -> io::Result<Vec<PathBuf>> {
        let folders = self.folders(cluster);
        for folder in &folders {
            absorb(fs::create_dir(folder), io::ErrorKind::AlreadyExists)?;
        }
        match &self.version {
            Version::None => {}
            Version::V2(_) => folders
                .iter()
                .try_for_each(|folder| limit_v2(folder, limits))?,
            Version::V1(hierarchies) => {
                for (hierarchy, folder) in hierarchies.iter().zip(&folders) {
                    limit_v1(hierarchy.controller, folder, limits)?;
                }
            }
        }
        Ok(folders)
    }

    /// Returns the processes in a cluster's group, or `None` without a group.
    pub(super) fn members(&self, cluster: &str) -> io::Result<Option<Vec<Pid>>> {
        match self.folders(cluster).first() {
            Some(folder) => members(folder),
            None => Ok(None),
        }
    }

    /// Returns the kernel's counters of a cluster's group, or `None` without a group.
    pub fn counts(&self, cluster: &str) -> Option<Counts> {
        let folders = self.folders(cluster);
        let memory = folders.first().filter(|folder| folder.exists())?;
        let at = |folder: &Path, file: &str, key: &str| {
            field(
                &fs::read_to_string(folder.join(file)).unwrap_or_default(),
                key,
            )
        };
        let number = |folder: &Path, file: &str| {
            fs::read_to_string(folder.join(file))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let of_controller = |controller| match &self.version {
            Version::V1(hierarchies) => hierarchies
                .iter()
                .zip(&folders)
                .find(|(hierarchy, _)| hierarchy.controller == controller)
                .map(|(_, folder)| folder),
            _ => Some(memory),
        };
        let pids = of_controller("pids");
        let processor_ms = of_controller("cpu").and_then(|folder| {
            if matches!(self.version, Version::V1(_)) {
                // In nanoseconds. Most systems mount this controller together with that of shares.
                return Some(number(folder, "cpuacct.usage")? / 1_000_000);
            }
            let stat = fs::read_to_string(folder.join("cpu.stat")).ok()?;
            Some(field(&stat, "usage_usec") / 1000)
        });
        let (anonymous, events, oom) = match self.version {
            Version::V1(_) => (
                ["total_rss", "total_shmem"],
                "memory.oom_control",
                "oom_kill",
            ),
            _ => (["anon", "shmem"], "memory.events", "oom_kill"),
        };
        Some(Counts {
            memory_bytes: anonymous
                .iter()
                .map(|key| at(memory, "memory.stat", key))
                .sum(),
            oom_kills: at(memory, events, oom),
            processes: pids
                .and_then(|folder| number(folder, "pids.current"))
                .unwrap_or(0),
            forks_refused: pids.map_or(0, |folder| at(folder, "pids.events", "max")),
            processor_ms: processor_ms.or_else(|| self.processor_ms_of_members(cluster)),
        })
    }

    /// Returns the processor time of the processes in a cluster's group, in milliseconds, with that
    /// of their children that ended.
    fn processor_ms_of_members(&self, cluster: &str) -> Option<u64> {
        let members = self.members(cluster).ok()??;
        Some(members.into_iter().map(usage::processor_ms).sum())
    }

    /// Moves running processes into a cluster's group. Ignores processes that have ended.
    pub fn adopt(
        &self,
        cluster: &str,
        limits: &ResourceLimits,
        processes: &[Pid],
    ) -> io::Result<()> {
        for folder in self.make(cluster, limits)? {
            for pid in processes {
                match fs::write(
                    folder.join("cgroup.procs"),
                    pid.as_raw_nonzero().to_string(),
                ) {
                    Err(error)
                        if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                    }
                    other => other?,
                }
            }
        }
        Ok(())
    }

    /// Prevents the processes of a cluster's group from forking.
    pub(super) fn forbid_forks(&self, cluster: &str) {
        for folder in self.folders(cluster) {
            forbid_forks(&folder);
        }
    }

    /// Removes the group of a cluster. Fails if it contains live processes.
    pub fn remove(&self, cluster: &str) -> io::Result<()> {
        self.folders(cluster)
            .iter()
            .try_for_each(|folder| remove(folder))
    }

    /// Removes groups of this data folder without a `known` cluster, and kills their processes.
    pub fn remove_stale(&self, known: &dyn Fn(&str) -> bool) -> io::Result<()> {
        for parent in self.parents() {
            for entry in fs::read_dir(parent)? {
                let entry = entry?;
                let name = entry.file_name();
                let cluster = name
                    .to_str()
                    .and_then(|name| name.strip_prefix(&self.prefix));
                if cluster.is_some_and(|cluster| !known(cluster)) {
                    tracing::info!(group = %entry.path().display(), "removing the control group of a cluster that does not exist");
                    clear(&entry.path())?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the prefix of the group names of one data folder, which is kept when the folder is
/// renamed.
fn prefix(device: u64, inode: u64) -> String {
    use sha2::{Digest, Sha256};

    let digest = Sha256::new()
        .chain_update(device.to_le_bytes())
        .chain_update(inode.to_le_bytes())
        .finalize();
    format!("gantry-{}-", hex::encode(&digest[..4]))
}

/// Parents of the new groups, by hierarchy.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    unified: Option<PathBuf>,
    legacy: Vec<Hierarchy>,
}

impl Mounts {
    /// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
    fn parse(mounts: &str, own: &str, parent: Option<&Path>) -> Self {
        let mut found = Self::default();
        for mount in Mount::parse_all(mounts) {
            let place = |controller: &str| {
                let own = control_group(own, controller)?;
                let group = parent.map_or(own, |parent| parent.to_str().unwrap_or(own));
                place(mount.root, mount.point, group, parent.is_some())
            };
            let mut controllers = CONTROLLERS_V1.into_iter();
            let controller = controllers.find(|name| mount.has_option(name));
            if mount.kind == "cgroup2" {
                found.unified = found.unified.or_else(|| place(""));
            } else if mount.kind == "cgroup"
                && let Some(controller) = controller
                && let Some(parent) = place(controller)
            {
                found.legacy.push(Hierarchy { controller, parent });
            }
        }
        found.legacy.sort_by_key(|hierarchy| {
            CONTROLLERS_V1
                .iter()
                .position(|name| *name == hierarchy.controller)
        });
        found.legacy.dedup_by_key(|hierarchy| hierarchy.controller);
        found
    }
}

/// Returns the folder of the group `own` in a mount with the group `root` at its top. A group that
/// the operator configured is always below the mount.
fn place(root: &str, point: &str, own: &str, named: bool) -> Option<PathBuf> {
    let below = match Path::new(own).strip_prefix(root) {
        Ok(below) => below,
        Err(_) if named => Path::new(own).strip_prefix("/").ok()?,
        Err(_) => return None,
    };
    Some(Path::new(point).join(below))
}

/// Returns the parent of groups in a hierarchy of version 2, after enabling its controllers for
/// children. `own` is the group of Gantry, the process `pid`. `None` if that is not permitted.
fn delegate(own: &Path, pid: u32) -> Option<PathBuf> {
    let parent = if own.file_name().is_some_and(|name| name == SUPERVISOR) {
        own.parent()?
    } else {
        own
    };
    let there = fs::read_to_string(parent.join("cgroup.controllers")).ok()?;
    let wanted: Vec<&str> = CONTROLLERS_V2
        .into_iter()
        .filter(|name| there.split_whitespace().any(|other| other == *name))
        .collect();
    // Without these two, a group adds no limits to those of the processes.
    if !wanted.contains(&"memory") || !wanted.contains(&"pids") {
        return None;
    }
    let control = parent.join("cgroup.subtree_control");
    let handed_on = fs::read_to_string(&control).ok()?;
    if wanted
        .iter()
        .all(|name| handed_on.split_whitespace().any(|other| other == *name))
    {
        return Some(parent.to_owned());
    }
    let request: Vec<String> = wanted.iter().map(|name| format!("+{name}")).collect();
    let enable = || fs::write(&control, request.join(" "));
    if enable().is_ok() {
        return Some(parent.to_owned());
    }
    // The group contains processes, usually only this one.
    let supervisor = parent.join(SUPERVISOR);
    absorb(fs::create_dir(&supervisor), io::ErrorKind::AlreadyExists).ok()?;
    let moved = fs::write(supervisor.join("cgroup.procs"), pid.to_string()).is_ok();
    if moved && enable().is_ok() {
        // Gantry must answer requests while every project is busy.
        let _ = fs::write(supervisor.join("cpu.weight"), "1000");
        return Some(parent.to_owned());
    }
    let _ = fs::write(parent.join("cgroup.procs"), pid.to_string());
    let _ = fs::remove_dir(&supervisor);
    None
}

/// Returns the hierarchies of version 1 in which groups can be created. `None` without the memory
/// controller.
fn usable_v1(hierarchies: Vec<Hierarchy>, prefix: &str) -> Option<Vec<Hierarchy>> {
    let usable = |hierarchy: &Hierarchy| {
        let probe = hierarchy
            .parent
            .join(format!("{prefix}probe-{}", std::process::id()));
        fs::create_dir(&probe)
            .and_then(|()| fs::remove_dir(&probe))
            .is_ok()
    };
    let usable: Vec<Hierarchy> = hierarchies.into_iter().filter(usable).collect();
    usable
        .first()
        .is_some_and(|first| first.controller == "memory")
        .then_some(usable)
}

fn limit_v2(folder: &Path, limits: &ResourceLimits) -> io::Result<()> {
    fs::write(folder.join("memory.max"), limits.memory_bytes.to_string())?;
    // Kernels without swap have no such file.
    absorb(
        fs::write(folder.join("memory.swap.max"), "0"),
        io::ErrorKind::NotFound,
    )?;
    // PostgreSQL restarts after the loss of any process, because all of them share memory. Killing
    // the whole group makes it restart at once.
    fs::write(folder.join("memory.oom.group"), "1")?;
    fs::write(folder.join("pids.max"), limits.processes.to_string())?;
    weigh(folder, "cpu.weight", limits.cpu_weight);
    weigh(folder, "io.weight", limits.io_weight);
    Ok(())
}

fn limit_v1(controller: &str, folder: &Path, limits: &ResourceLimits) -> io::Result<()> {
    match controller {
        "memory" => {
            let bytes = limits.memory_bytes.to_string();
            // The limit of memory with swap must not be below that of memory, so the order of the
            // writes depends on the old limit.
            let first = fs::write(folder.join("memory.limit_in_bytes"), &bytes);
            absorb(
                fs::write(folder.join("memory.memsw.limit_in_bytes"), &bytes),
                io::ErrorKind::NotFound,
            )?;
            first.or_else(|_| fs::write(folder.join("memory.limit_in_bytes"), &bytes))?;
        }
        "pids" => fs::write(folder.join("pids.max"), limits.processes.to_string())?,
        // A group of version 1 starts with 1024 shares, one of version 2 with a weight of 100.
        "cpu" => weigh(
            folder,
            "cpu.shares",
            (limits.cpu_weight.saturating_mul(1024) / 100).max(2),
        ),
        _ => {
            weigh(folder, "blkio.weight", limits.io_weight.clamp(10, 1000));
            weigh(folder, "blkio.bfq.weight", limits.io_weight.clamp(1, 1000));
        }
    }
    Ok(())
}

/// Sets a share. Schedulers without shares have no such file; all projects then have equal shares.
fn weigh(folder: &Path, file: &str, weight: u32) {
    let file = folder.join(file);
    if file.exists()
        && let Err(error) = fs::write(&file, weight.to_string())
    {
        tracing::debug!(file = %file.display(), %error, "failed to set the share of a control group");
    }
}

/// Returns the live processes of the group in this folder, or `None` if the group does not exist.
fn members(folder: &Path) -> io::Result<Option<Vec<Pid>>> {
    match fs::read_to_string(folder.join("cgroup.procs")) {
        // A process of another pid namespace reads as 0.
        Ok(list) => Ok(Some(
            list.lines()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .collect(),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The group was removed while it was read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn forbid_forks(folder: &Path) {
    let file = folder.join("pids.max");
    if file.exists() {
        // A failure is harmless: killing is repeated, and only needs more rounds.
        let _ = fs::write(file, "0");
    }
}

/// Kills every process in a group, and removes the group.
fn clear(folder: &Path) -> io::Result<()> {
    forbid_forks(folder);
    for _ in 0..KILL_ROUNDS {
        // Version 2 kills all processes with one write.
        if folder.join("cgroup.kill").exists() {
            fs::write(folder.join("cgroup.kill"), "1")?;
        }
        let left = members(folder)?.unwrap_or_default();
        if left.is_empty() {
            break;
        }
        for pid in left {
            let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            // The pid may have passed to another process before the descriptor was opened.
            if members(folder)?.is_some_and(|members| members.contains(&pid)) {
                let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            }
        }
        std::thread::sleep(KILL_PAUSE);
    }
    remove(folder)
}

/// Removes an empty group, if it exists. Retries, because a group is busy for a moment after its
/// last process ended.
fn remove(folder: &Path) -> io::Result<()> {
    for _ in 1..KILL_ROUNDS {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(KILL_PAUSE);
            }
            other => return absorb(other, io::ErrorKind::NotFound),
        }
    }
    absorb(fs::remove_dir(folder), io::ErrorKind::NotFound)
}

/// Returns the number in the line `key number`, or 0 without such a line.
fn field(text: &str, key: &str) -> u64 {
    let value = |line: &str| {
        line.split_once(' ')
            .filter(|(name, _)| *name == key)?
            .1
            .trim()
            .parse()
            .ok()
    };
    text.lines().find_map(value).unwrap_or(0)
}

fn absorb(result: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
