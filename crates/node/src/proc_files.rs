//! The kernel's files about processes and the machine in `/proc` (proc(5)).
//!
//! A process chooses its own name and command line: both can contain any bytes, and a command line
//! can be as long as the memory of the process. Every read is therefore bounded, and text that is
//! not UTF-8 is read as well.

use std::{
    fs::{self, ReadDir},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use gantry_base::files::read_start;
use rustix::process::Pid;

/// Largest file that is read, in bytes. The longest one is `status`, with at most 65,536 groups.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Part of a command line that is read, in bytes: the kernel's limit of one argument.
const COMMAND_LINE_BYTES_MAX: u64 = 128 << 10;
/// Part of the table of mounts that is read, in bytes: more than 50,000 mounts.
const MOUNTS_BYTES_MAX: u64 = 16 << 20;
/// Length of the kernel's unit of processor time, in milliseconds.
const CLOCK_TICK_MS: u64 = 10;

/// Returns the processes of the machine. Each may end at any time.
pub fn pids() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        found.extend(pid.and_then(Pid::from_raw));
    }
    Ok(found)
}

/// The folder of one process. The process may end at any time.
#[derive(Debug, Clone)]
pub struct ProcessFiles(PathBuf);

impl ProcessFiles {
    /// The files of the process with this id.
    pub fn of(pid: Pid) -> Self {
        Self(PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero())))
    }

    /// Reads state, parent, start time and processor time. `None` if the process has ended.
    pub fn stat(&self) -> Option<ProcessStat> {
        ProcessStat::parse(&read_text(&self.0.join("stat"), FILE_BYTES_MAX)?)
    }

    /// Reads user id and memory. `None` if the process has ended and was collected.
    pub fn status(&self) -> Option<ProcessStatus> {
        ProcessStatus::parse(&read_text(&self.0.join("status"), FILE_BYTES_MAX)?)
    }

    /// Returns the real user id, or `None` if the process has ended.
    pub fn live_uid(&self) -> Option<u32> {
        self.status()
            .filter(|status| status.is_live)
            .map(|status| status.uid)
    }

    /// Returns the proportional set size (PSS) in bytes: its memory, with a share of the pages that
    /// other processes have as well. `None` if the process has ended.
    pub fn proportional_bytes(&self) -> Option<u64> {
        let text = read_text(&self.0.join("smaps_rollup"), FILE_BYTES_MAX)?;
        kilobytes(&text, "Pss:")
    }

    /// Returns the beginning of the command line, with a NUL after each argument. Empty if the
    /// process is exiting.
    pub fn command_line(&self) -> Option<Vec<u8>> {
        read_start(&self.0.join("cmdline"), COMMAND_LINE_BYTES_MAX).ok()
    }

    /// Returns whether the program has this name, which the process can change.
    pub fn is_named(&self, name: &str) -> bool {
        let found = read_start(&self.0.join("comm"), FILE_BYTES_MAX).unwrap_or_default();
        found.strip_suffix(b"\n") == Some(name.as_bytes())
    }

    /// Returns the working directory, with the suffix ` (deleted)` if it was removed.
    pub fn working_directory(&self) -> io::Result<PathBuf> {
        fs::read_link(self.0.join("cwd"))
    }

    /// Returns the executable, with the suffix ` (deleted)` if it was removed.
    pub fn executable(&self) -> io::Result<PathBuf> {
        fs::read_link(self.0.join("exe"))
    }

    /// Lists links to the open files.
    pub fn open_files(&self) -> io::Result<ReadDir> {
        fs::read_dir(self.0.join("fd"))
    }

    /// Returns the owner of the folder: the effective user id, or root, as the process chooses.
    pub fn owner(&self) -> Option<u32> {
        Some(fs::metadata(&self.0).ok()?.uid())
    }
}

/// Fields of the file `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// Letter of the state. `Z`: the process has ended and was not collected.
    pub state: char,
    /// The parent. `None` if it is in another pid namespace.
    pub parent: Option<Pid>,
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// Processor time in user mode and in the kernel, in milliseconds.
    pub processor_ms: u64,
    /// Processor time of children that ended and were collected, in milliseconds.
    pub children_processor_ms: u64,
}

impl ProcessStat {
    fn parse(text: &str) -> Option<Self> {
        // The name can contain any character, and ends at the last parenthesis.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.trim_end().split(' ').collect();
        let number = |position: usize| fields.get(position)?.parse::<u64>().ok();
        let milliseconds = |user: usize, kernel: usize| {
            let ticks = number(user)?.saturating_add(number(kernel)?);
            Some(ticks.saturating_mul(CLOCK_TICK_MS))
        };
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: Pid::from_raw(fields.get(1)?.parse().ok()?),
            started: number(19)?,
            processor_ms: milliseconds(11, 12)?,
            children_processor_ms: milliseconds(13, 14)?,
        })
    }
}

/// Fields of the file `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The real user id, which a process without privileges cannot change.
    pub uid: u32,
    /// Whether the process has not ended.
    pub is_live: bool,
    /// Resident memory in bytes. 0 if the process has ended.
    pub resident_bytes: u64,
}

impl ProcessStatus {
    fn parse(text: &str) -> Option<Self> {
        // The kernel escapes line feeds in the name, which is in the first line.
        Some(Self {
            uid: value(text, "Uid:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()?,
            is_live: !value(text, "State:")?.starts_with(['Z', 'X']),
            resident_bytes: kilobytes(text, "VmRSS:").unwrap_or(0),
        })
    }
}

/// Memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineMemory {
    /// All memory, in bytes. Not 0.
    pub total_bytes: u64,
    /// Memory that programs can still use without swapping, in bytes.
    pub available_bytes: u64,
}

impl MachineMemory {
    /// Reads the kernel's figures. `None` if they are not available.
    pub fn read() -> Option<Self> {
        Self::parse(&read_text(Path::new("/proc/meminfo"), FILE_BYTES_MAX)?)
    }

    fn parse(text: &str) -> Option<Self> {
        Some(Self {
            total_bytes: kilobytes(text, "MemTotal:").filter(|total| *total > 0)?,
            available_bytes: kilobytes(text, "MemAvailable:")?,
        })
    }

    /// Returns the share of the memory that is available, in percent.
    pub fn available_percent(&self) -> u64 {
        self.available_bytes.saturating_mul(100) / self.total_bytes
    }
}

/// A mounted file system, as this process sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The folder of the file system that is mounted.
    pub root: &'a str,
    /// The place at which it is mounted.
    pub point: &'a str,
    /// Type of the file system.
    pub kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses `/proc/self/mountinfo`. Skips incomplete lines.
    pub fn parse_all(table: &'a str) -> impl Iterator<Item = Self> {
        table.lines().filter_map(|line| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let mut file_system = file_system.split(' ');
            Some(Self {
                root: mount.next()?,
                point: mount.next()?,
                kind: file_system.next()?,
                options: file_system.nth(1).unwrap_or_default(),
            })
        })
    }

    /// Returns whether the file system has this option.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// Reads the table of mounts for [`Mount::parse_all`]. Empty if the kernel has none.
pub fn own_mounts() -> String {
    read_text(Path::new("/proc/self/mountinfo"), MOUNTS_BYTES_MAX).unwrap_or_default()
}

/// Reads the control groups of this process for [`control_group`]. Empty if the kernel has none.
pub fn own_control_groups() -> String {
    read_text(Path::new("/proc/self/cgroup"), FILE_BYTES_MAX).unwrap_or_default()
}

/// Returns the path of a process's group in the hierarchy with this controller; an empty
/// controller selects the hierarchy of version 2. Lines have the form `number:controllers:path`.
pub fn control_group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let has_controller = controllers.split(',').any(|name| name == controller);
        has_controller.then_some(path)
    })
}

fn read_text(path: &Path, bytes_max: u64) -> Option<String> {
    let bytes = read_start(path, bytes_max).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the rest of the line that begins with the key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(rest.trim())
}

/// Returns the number in the line `key   123 kB`, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let number = value(text, key)?.strip_suffix(" kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::{env, ffi::OsStr, os::unix::ffi::OsStrExt, os::unix::process::CommandExt};

    use super::*;

    #[test]
    fn name_of_a_process_does_not_change_its_stat() {
        let expected = ProcessStat {
            state: 'S',
            parent: Pid::from_raw(41),
            started: 98765,
            processor_ms: 120,
            children_processor_ms: 70,
        };
        for name in ["a b", ") Z 1 2", "((", ")\n1 (x) R 1", "\u{fffd}) "] {
            let rest = "S 41 42 42 0 -1 4194560 100 0 0 0 7 5 3 4 20 0 1 0 98765 1000 20";
            let found = ProcessStat::parse(&format!("42 ({name}) {rest}\n"));
            assert_eq!(found, Some(expected), "{name:?}");
        }
        for text in ["", "42", "42 (x)", "42 (x) S", "42 (x) S a 2 3"] {
            assert_eq!(ProcessStat::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn status_has_the_real_user_id_of_a_live_process() {
        let escaped = "x\\nUid:\t0\\nState:\tZ";
        for (name, state, ids, uid, is_live) in [
            ("x", "S (sleeping)", "700\t701\t702\t703", 700, true),
            ("x", "R (running)", "7000\t1\t1\t1", 7000, true),
            ("x", "Z (zombie)", "700\t700\t700\t700", 700, false),
            ("x", "X (dead)", "700\t700\t700\t700", 700, false),
            (escaped, "S (sleeping)", "700\t1\t1\t1", 700, true),
            ("\u{fffd}", "S (sleeping)", "700\t1\t1\t1", 700, true),
        ] {
            let head = format!("Name:\t{name}\nUmask:\t0077\nState:\t{state}\n");
            let text = format!("{head}Uid:\t{ids}\nVmHWM:\t9 kB\nVmRSS:\t   12 kB\n");
            let found = ProcessStatus::parse(&text).unwrap();
            assert_eq!((found.uid, found.is_live), (uid, is_live), "{text}");
            assert_eq!(found.resident_bytes, 12 << 10);
        }
        for text in ["", "State:\tS\n", "Uid:\t1\n", "State:\tS\nUid:\tx\n"] {
            assert_eq!(ProcessStatus::parse(text), None, "{text:?}");
        }
        let ended = ProcessStatus::parse("State:\tZ\nUid:\t1\t1\t1\t1\n").unwrap();
        assert_eq!(ended.resident_bytes, 0);
    }

    #[test]
    fn kilobytes_returns_bytes() {
        let text = "7f0-7ff ---p\nRss:      4096 kB\nPss:        1000 kB\nPss_Dirty: 5 kB\n";
        assert_eq!(kilobytes(text, "Pss:"), Some(1_024_000));
        for text in ["Rss: 1 kB", "Pss: 1", "Pss: 18446744073709551615 kB"] {
            assert_eq!(kilobytes(text, "Pss:"), None, "{text:?}");
        }
    }

    #[test]
    fn available_memory_is_a_share_of_all() {
        let text = "MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:    190 kB\n";
        let found = MachineMemory::parse(text).unwrap();
        assert_eq!(found.total_bytes, 2000 << 10);
        assert_eq!(found.available_percent(), 9);
        for text in ["MemTotal: 0 kB\nMemAvailable: 0 kB", "MemTotal: 10 kB"] {
            assert_eq!(MachineMemory::parse(text), None, "{text}");
        }
        assert!(MachineMemory::read().unwrap().available_percent() <= 100);
    }

    #[test]
    fn incomplete_mounts_are_skipped() {
        let table = "28 25 0:24 /docker/7f /sys/fs/cgroup rw shared:1 - cgroup cgroup rw,memory\n\
                     30 1 8:1 /\n31 1 8:1 / /a\\040b rw - ext4\nx - y\n";
        let found: Vec<Mount<'_>> = Mount::parse_all(table).collect();
        let points: Vec<&str> = found.iter().map(|mount| mount.point).collect();
        assert_eq!(points, ["/sys/fs/cgroup", "/a\\040b"]);
        assert_eq!((found[0].root, found[0].kind), ("/docker/7f", "cgroup"));
        assert!(found[0].has_option("memory") && !found[0].has_option("mem"));
        assert!(!own_mounts().is_empty());
    }

    #[test]
    fn control_group_is_that_of_the_controller() {
        let groups = "4:memory:/docker/7f:x\n2:cpu,cpuacct:/user\nx\n1:name=a:/\n0::/session\n";
        for (controller, path) in [
            ("memory", Some("/docker/7f:x")),
            ("cpuacct", Some("/user")),
            ("", Some("/session")),
            ("pids", None),
        ] {
            assert_eq!(control_group(groups, controller), path, "{controller}");
        }
    }

    #[test]
    fn files_of_this_process_are_read() {
        let own = rustix::process::getpid();
        assert!(pids().unwrap().contains(&own));
        let files = ProcessFiles::of(own);
        assert_eq!(files.live_uid(), Some(rustix::process::getuid().as_raw()));
        assert_eq!(files.owner(), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(files.stat().unwrap().parent, rustix::process::getppid());
        assert_eq!(files.working_directory().ok(), env::current_dir().ok());
        assert_eq!(files.executable().ok(), env::current_exe().ok());
        assert!(!files.command_line().unwrap().is_empty() && !files.is_named("no such name"));
        assert!(files.proportional_bytes().unwrap() > 1 << 20);
        assert!(files.open_files().unwrap().count() > 2);
    }

    #[test]
    fn process_with_a_hostile_name_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(OsStr::from_bytes(b"a) Z\xff1\n"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut sleep = std::process::Command::new(&program);
        let mut child = sleep.arg0("sleep").arg("60").spawn().unwrap();
        let files = ProcessFiles::of(Pid::from_raw(child.id().cast_signed()).unwrap());
        let (stat, uid) = (files.stat(), files.live_uid());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat.unwrap().parent, Some(rustix::process::getpid()));
        assert_eq!(uid, Some(rustix::process::getuid().as_raw()));
        assert_eq!((files.stat(), files.status()), (None, None));
    }
}
