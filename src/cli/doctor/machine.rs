//! Checks of this machine: requirements, data folder, secret files, certificates, kernel.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::files::read_start;
use gantry_node::{
    clusters::{ControlGroups, Home},
    kits::shelf::KitShelf,
    proc_files::{self, ProcessFiles},
    supervisor::landlock_abi,
};
use rustix::process::{Pid, PidfdFlags};

use super::result::{CheckResult, CheckSubject};
use crate::{
    app::config::{Config, file::OTHERS},
    cli::check::{self, Requirement},
    control::{domains::hostnames::certificates, installation::status::CERTIFICATE_LIFE_MIN},
};

const FOLDER: CheckSubject = CheckSubject::new("data folder", "owner and mode of the folder");
const SPACE: CheckSubject = CheckSubject::new("disk space", "the file system of the data folder");
const INODES: CheckSubject = CheckSubject::new("inodes", "the file system of the data folder");
const SECRETS: CheckSubject = CheckSubject::new("secret files", "modes of files with secrets");
const CERTIFICATES: CheckSubject = CheckSubject::new(
    "certificate files",
    "files of certificates in the configuration",
);
const PROGRAMS: CheckSubject = CheckSubject::new("services", "programs for services of projects");
const GROUPS: CheckSubject = CheckSubject::new("control groups", "controllers of the kernel");
const PIDFD: CheckSubject = CheckSubject::new("pidfd", "a handle to this process");
const OPEN_FILES: CheckSubject =
    CheckSubject::new("open files", "limits of server processes, or of this one");

/// Free share of a file system from which it is reported, in percent.
const FREE_WARNING_PERCENT: u64 = 10;
/// Free share of a file system from which servers may fail soon, in percent.
const FREE_PROBLEM_PERCENT: u64 = 5;
/// Least number of open files for a server: 1,000 clients of databases need twice as many.
const OPEN_FILES_MIN: u64 = 4096;
/// Largest number of processes that are examined.
const PROCESSES_MAX: usize = 65_536;
/// Largest file of the kernel or of a certificate that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Requirements that only matter before a start, or that a check here examines in detail.
const EXAMINED_HERE: [&str; 2] = ["address", "data folder"];

/// Examines this machine.
pub(super) async fn examine(
    config: &Config,
    secret_files: &[PathBuf],
    now: DateTime<Utc>,
) -> Vec<CheckResult> {
    let home = config.control.home();
    let mut results: Vec<CheckResult> = check::requirements(config)
        .await
        .into_iter()
        .filter(|requirement| !EXAMINED_HERE.contains(&requirement.what))
        .map(of_requirement)
        .collect();
    results.push(programs(config));
    results.extend(folder(&home));
    results.push(secrets(secret_files));
    results.extend(certificate_files(config, now));
    results.push(groups(&ControlGroups::controllers(
        config.projects.cgroup_parent.as_deref(),
    )));
    results.push(pidfd());
    results.push(open_files(open_files_limit()));
    results
}

fn of_requirement(requirement: Requirement) -> CheckResult {
    let Requirement {
        what,
        ok,
        needed,
        detail,
    } = requirement;
    let subject = CheckSubject::new(what, "as `gantry check`");
    let remedy = match what {
        "postgresql" | "extensions" => "Install an engine with `gantry engine install 17`.",
        "account" => "Create the account `postgres`, or start Gantry without root.",
        "transport" => "Set --tls-cert and --tls-key, or --trusted-proxies.",
        "user ids" => "Run Gantry as root; if it does, run `gantry doctor` as root as well.",
        "sandbox" => "Use a kernel with Landlock (5.13 or newer, enabled at boot) and seccomp.",
        "namespaces" => "Run Gantry as root with CAP_SYS_ADMIN, or accept it.",
        "backups" => "Follow docs/operating/disaster-recovery.md.",
        _ => "Follow docs/operating/dns-and-acme.md.",
    };
    match (ok, needed) {
        (true, _) => subject.ok(detail),
        (false, true) => subject.problem(detail, remedy),
        (false, false) => subject.warning(detail, remedy),
    }
}

fn programs(config: &Config) -> CheckResult {
    let kits = Home::kits_of(&config.control.home());
    let all = match KitShelf::new(config.services.services_dir.clone(), kits).list() {
        Ok(all) => all,
        Err(error) => {
            let remedy = "Correct the mode of the folder, or --services-dir.";
            return PROGRAMS.warning(error.to_string(), remedy);
        }
    };
    let unusable = all.iter().find_map(|version| {
        let error = version.kit.as_ref().err()?;
        Some((version.service.name(), &version.version, error))
    });
    match unusable {
        Some((service, version, error)) => PROGRAMS.warning(
            format!("{service} {version} cannot be used: {error}"),
            format!("Install it again with `gantry service install {service}`."),
        ),
        None => PROGRAMS.ok(format!("{} programs are installed", all.len())),
    }
}

/// Examines the data folder and its file system.
fn folder(home: &Path) -> Vec<CheckResult> {
    let found = match fs::metadata(home) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => {
            let finding = format!("{} is not a folder", home.display());
            return vec![FOLDER.problem(finding, "Correct --data-dir.")];
        }
        Err(error) => {
            let finding = format!("cannot open {}: {error}", home.display());
            let remedy = "Correct --data-dir, or start the server once, which creates it.";
            return vec![FOLDER.problem(finding, remedy)];
        }
    };
    let mut results = vec![owner_and_mode(home, found.uid(), found.mode())];
    if let Ok(space) = rustix::fs::statvfs(home) {
        results.push(free_share(SPACE, space.f_bavail, space.f_blocks));
        results.push(free_share(INODES, space.f_favail, space.f_files));
    }
    results
}

fn owner_and_mode(home: &Path, owner: u32, mode: u32) -> CheckResult {
    let own = rustix::process::geteuid().as_raw();
    let shown = home.display();
    if mode & 0o002 != 0 {
        FOLDER.problem(
            format!("every account can write to {shown}"),
            format!("Run: chmod o-w {shown}"),
        )
    } else if !Home::reachable(home) {
        FOLDER.problem(
            format!("{shown} is closed to the accounts of servers"),
            "Choose a folder such as /var/lib/gantry with --data-dir.",
        )
    } else if own != owner && own != 0 {
        FOLDER.warning(
            format!("{shown} belongs to user id {owner}, and this process has {own}"),
            "Run `gantry doctor` as the account of the server, which can read more.",
        )
    } else {
        FOLDER.ok(format!("{shown} belongs to user id {owner}"))
    }
}

/// Examines the free share of a file system: its blocks or its inodes. Some file systems have no
/// fixed number of inodes, and report 0.
fn free_share(subject: CheckSubject, free: u64, all: u64) -> CheckResult {
    let percent = match all {
        0 => return subject.ok("not limited"),
        all => free.saturating_mul(100) / all,
    };
    let finding = format!("{percent} % are free");
    let remedy = "Delete or move files, or enlarge the file system.";
    if percent < FREE_PROBLEM_PERCENT {
        subject.problem(finding, remedy)
    } else if percent < FREE_WARNING_PERCENT {
        subject.warning(finding, remedy)
    } else {
        subject.ok(finding)
    }
}

/// Returns the files with secrets that the server reads. Those of the data folder may not exist.
pub(super) fn secret_files(config: &Config) -> Vec<PathBuf> {
    let home = config.control.home();
    let in_home = ["sealing-key", "dev.env"].map(|name| home.join(name));
    let given = [
        &config.sealing_key,
        &config.api.tls_key,
        &config.databases.db_tls_key,
        &config.edge.edge_tls_key,
        &config.sign_in.oidc_client_secret,
        &config.acme.acme_dns_key,
    ];
    let given = given.into_iter().flatten().cloned();
    let in_home = in_home.into_iter().filter(|file| file.exists());
    given.chain(in_home).collect()
}

fn secrets(files: &[PathBuf]) -> CheckResult {
    for file in files {
        let shown = file.display();
        match fs::metadata(file) {
            Ok(found) if found.permissions().mode() & OTHERS != 0 => {
                return SECRETS.problem(
                    format!("every account can read {shown}"),
                    format!("Run: chmod o= {shown}"),
                );
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return SECRETS.warning(
                    format!("cannot examine {shown}: {error}"),
                    "Run `gantry doctor` as the account of the server.",
                );
            }
            Err(error) => {
                let remedy = "Restore the file, or correct its setting.";
                return SECRETS.problem(format!("cannot examine {shown}: {error}"), remedy);
            }
        }
    }
    SECRETS.ok(format!("no other account can read {} files", files.len()))
}

fn certificate_files(config: &Config, now: DateTime<Utc>) -> Vec<CheckResult> {
    let given = [
        &config.api.tls_cert,
        &config.databases.db_tls_cert,
        &config.edge.edge_tls_cert,
    ];
    let given = given.into_iter().flatten();
    given.map(|file| certificate_file(file, now)).collect()
}

fn certificate_file(file: &Path, now: DateTime<Utc>) -> CheckResult {
    let shown = file.display();
    let text = match read_start(file, FILE_BYTES_MAX) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => {
            let remedy = "Restore the file, or correct its setting.";
            return CERTIFICATES.problem(format!("cannot read {shown}: {error}"), remedy);
        }
    };
    match certificates::life(&text) {
        Ok(life) => certificate(&shown.to_string(), life.until, now),
        Err(error) => {
            let remedy = "Replace it by a certificate chain in PEM.";
            CERTIFICATES.problem(format!("{shown}: {error}"), remedy)
        }
    }
}

fn certificate(file: &str, until: DateTime<Utc>, now: DateTime<Utc>) -> CheckResult {
    let left: TimeDelta = until - now;
    let remedy = "Renew it; the server reads the new file without a restart.";
    let day = until.format("%Y-%m-%d %H:%M UTC");
    if left <= TimeDelta::zero() {
        CERTIFICATES.problem(format!("{file} ended at {day}"), remedy)
    } else if left < CERTIFICATE_LIFE_MIN {
        CERTIFICATES.warning(format!("{file} ends at {day}"), remedy)
    } else {
        CERTIFICATES.ok(format!("{file} ends at {day}"))
    }
}

fn groups(controllers: &[String]) -> CheckResult {
    let has = |name: &str| controllers.iter().any(|controller| controller == name);
    if has("memory") && has("pids") {
        GROUPS.ok(format!("the kernel offers {}", controllers.join(", ")))
    } else {
        GROUPS.warning(
            "the kernel offers no control groups for memory and processes",
            "Boot with control groups of version 2, or delegate one with --cgroup-parent.",
        )
    }
}

fn pidfd() -> CheckResult {
    match rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
        Ok(_) => PIDFD.ok("the kernel has handles to processes"),
        Err(error) => PIDFD.problem(
            format!("the kernel has no handles to processes: {error}"),
            "Use Linux 5.3 or newer, and a container that permits pidfd_open.",
        ),
    }
}

/// Returns the lowest limit of open files of the servers on this machine, or else of this process.
fn open_files_limit() -> Option<u64> {
    let own = rustix::process::getpid();
    let is_server = |pid: &Pid| {
        let process = ProcessFiles::of(*pid);
        let line = || process.command_line().unwrap_or_default();
        *pid != own
            && process.is_named("gantry")
            && line()
                .split(|byte| *byte == 0)
                .any(|word| word == b"serve" || word == b"dev")
    };
    let limit = |pid: Pid| {
        let file = format!("/proc/{}/limits", pid.as_raw_nonzero());
        parsed_limit(&read(Path::new(&file))?)
    };
    let pids = proc_files::pids().unwrap_or_default();
    let servers = pids.into_iter().take(PROCESSES_MAX).filter(is_server);
    servers.filter_map(limit).min().or_else(|| limit(own))
}

/// Returns the soft limit of open files in `/proc/<pid>/limits` (proc(5)).
fn parsed_limit(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let values = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    match values.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn open_files(limit: Option<u64>) -> CheckResult {
    match limit {
        Some(limit) if limit < OPEN_FILES_MIN => OPEN_FILES.warning(
            format!("a process may open {limit} files, fewer than {OPEN_FILES_MIN}"),
            "Set LimitNOFILE=65536 in the unit of the server.",
        ),
        Some(limit) => OPEN_FILES.ok(format!("a process may open {limit} files")),
        None => OPEN_FILES.warning(
            "the limit of open files is not known",
            "Mount /proc, which Gantry needs.",
        ),
    }
}

/// Describes the kernel: its release, and the features that isolate projects.
pub(super) fn kernel() -> String {
    let name = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let abi = landlock_abi().map_or("none".to_owned(), |abi| abi.to_string());
    let mut lines = vec![
        format!("{} {}", text(name.sysname()), text(name.release())),
        format!("{} {}", text(name.machine()), text(name.version())),
        format!("Landlock ABI: {abi}"),
        format!(
            "Controllers: {}",
            ControlGroups::controllers(None).join(" ")
        ),
    ];
    for (label, file) in [
        ("seccomp actions", "/proc/sys/kernel/seccomp/actions_avail"),
        ("User namespaces", "/proc/sys/user/max_user_namespaces"),
        (
            "Clock source",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        ("Control groups of this process", "/proc/self/cgroup"),
        ("Limits of this process", "/proc/self/limits"),
        ("Memory", "/proc/meminfo"),
    ] {
        let content = read(Path::new(file)).unwrap_or_else(|| "not readable".to_owned());
        lines.push(format!("{label}: {}", content.trim_end()));
    }
    lines.join("\n") + "\n"
}

fn read(file: &Path) -> Option<String> {
    let bytes = read_start(file, FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::{super::result::CheckOutcome, *};

    #[test]
    fn free_share_is_judged_by_its_percentage() {
        for (free, all, expected) in [
            (0, 0, CheckOutcome::Ok),
            (10, 100, CheckOutcome::Ok),
            (99, 1000, CheckOutcome::Warning),
            (50, 1000, CheckOutcome::Warning),
            (49, 1000, CheckOutcome::Problem),
            (0, 7, CheckOutcome::Problem),
        ] {
            let result = free_share(SPACE, free, all);
            assert_eq!(result.outcome, expected, "{free} of {all}");
        }
    }

    #[test]
    fn certificate_is_judged_by_its_remaining_life() {
        let now = DateTime::UNIX_EPOCH;
        for (days, expected) in [
            (-1, CheckOutcome::Problem),
            (0, CheckOutcome::Problem),
            (13, CheckOutcome::Warning),
            (14, CheckOutcome::Ok),
        ] {
            let result = certificate("cert.pem", now + TimeDelta::days(days), now);
            assert_eq!(result.outcome, expected, "{days} days");
        }
    }

    #[test]
    fn secret_file_that_others_can_read_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(&file, "secret").unwrap();
        for (mode, expected) in [
            (0o640, CheckOutcome::Ok),
            (0o644, CheckOutcome::Problem),
            (0o602, CheckOutcome::Problem),
        ] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let result = secrets(std::slice::from_ref(&file));
            assert_eq!(result.outcome, expected, "{mode:o}");
        }
        let missing = secrets(&[dir.path().join("missing")]);
        assert_eq!(missing.outcome, CheckOutcome::Problem);
    }

    #[test]
    fn limit_of_open_files_is_parsed_and_judged() {
        let text = "Limit  Soft Limit  Hard Limit  Units\n\
                    Max processes      5    6    processes\n\
                    Max open files     1024 524288 files\n";
        assert_eq!(parsed_limit(text), Some(1024));
        assert_eq!(
            parsed_limit("Max open files unlimited unlimited files"),
            Some(u64::MAX)
        );
        assert_eq!(parsed_limit(""), None);
        assert_eq!(open_files(Some(1024)).outcome, CheckOutcome::Warning);
        assert_eq!(open_files(Some(4096)).outcome, CheckOutcome::Ok);
    }

    #[test]
    fn data_folder_that_everyone_can_write_to_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let results = folder(&dir.path().join("missing"));
        assert_eq!(results[0].outcome, CheckOutcome::Problem);
        let own = rustix::process::geteuid().as_raw();
        let result = owner_and_mode(dir.path(), own, 0o40_777);
        assert_eq!(result.outcome, CheckOutcome::Problem);
        assert_eq!(folder(Path::new("/proc/version")).len(), 1);
    }

    #[test]
    fn control_groups_need_memory_and_processes() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = groups(&list(&["memory", "pids"]));
        assert_eq!(all.outcome, CheckOutcome::Ok);
        let less = groups(&list(&["cpu", "pids"]));
        assert_eq!(less.outcome, CheckOutcome::Warning);
    }
}
