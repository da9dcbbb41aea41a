//! The reason for which a server exited, from its logs: the output of its start, and the file of
//! its logging collector. A tenant can write all files of the second.

use std::{fs::File, io, path::Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat};
use serde::Deserialize;

use crate::files;

/// Folder of the collector's files in the data directory.
const FOLDER: &str = "log";
/// The end of a file that is read, in bytes.
const TAIL_BYTES: u64 = 64 << 10;
/// Entries of the folder that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// Number of lines.
const LINES_MAX: usize = 6;
/// Length of a line, in characters.
const LINE_CHARS_MAX: usize = 300;
/// Lines by which a server announces its collector.
const COLLECTOR: [&str; 2] = [
    "redirecting log output to logging collector process",
    "Future log output will appear in directory",
];
/// Beginning of the collector's first line of each start.
const FIRST: &str = "starting PostgreSQL";
/// Processes that start and stop the server. Lines of other processes can contain statements.
const PROCESSES: [&str; 3] = ["postmaster", "startup", "checkpointer"];

/// A line of the collector's file.
#[derive(Deserialize)]
struct LogLine {
    error_severity: String,
    message: String,
    backend_type: String,
}

/// Returns the last lines of both logs, on one line and without control characters.
pub(super) fn last_lines(start_log: &Path, data: &Path) -> String {
    let mut lines = files::last_lines(start_log);
    // Without it, the newest file is that of an earlier start.
    let has_collector = lines.iter().any(|line| line.contains(COLLECTOR[0]));
    lines.retain(|line| !COLLECTOR.iter().any(|text| line.contains(text)));
    if has_collector {
        lines.extend(collected(&newest(data).unwrap_or_default()));
    }
    lines[lines.len().saturating_sub(LINES_MAX)..].join("; ")
}

/// Returns the lines of the last start, of the processes that start and stop the server.
fn collected(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<LogLine>(line).ok());
    let lines: Vec<LogLine> = lines.collect();
    let first = lines
        .iter()
        .rposition(|line| line.message.starts_with(FIRST));
    lines
        .into_iter()
        .skip(first.unwrap_or_default())
        .filter(|line| PROCESSES.contains(&line.backend_type.as_str()))
        .map(|line| {
            let text = format!("{}: {}", line.error_severity, line.message);
            let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            printable.take(LINE_CHARS_MAX).collect()
        })
        .collect()
}

/// Returns the end of the file that was changed last. Follows no link.
fn newest(data: &Path) -> io::Result<String> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let data = open(data, folder, Mode::empty())?;
    let folder = openat(&data, FOLDER, folder, Mode::empty())?;
    let mut found = None;
    for entry in Dir::read_from(&folder)?.take(ENTRIES_MAX) {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_bytes().ends_with(b".json") {
            continue;
        }
        let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let changed = (status.st_mtime, status.st_mtime_nsec);
        if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && found.as_ref().is_none_or(|(last, _)| changed > *last)
        {
            found = Some((changed, name.to_owned()));
        }
    }
    let Some((_, name)) = found else {
        return Ok(String::new());
    };
    let plain = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&folder, &name, plain, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    files::read_end(file, TAIL_BYTES)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn line(backend: &str, message: &str) -> String {
        let line = serde_json::json!({"error_severity": "FATAL", "message": message, "backend_type": backend});
        format!("{line}\n")
    }

    #[test]
    fn last_lines_are_those_of_the_collector_without_statements_of_clients() {
        let dir = tempfile::tempdir().unwrap();
        let (start, data) = (dir.path().join("start.log"), dir.path().join("data"));
        fs::create_dir_all(data.join("log")).unwrap();
        let announced = "LOG:  redirecting log output to logging collector process\n\
                         HINT:  Future log output will appear in directory \"log\".\n";
        fs::write(&start, format!("LOG:  starting\n{announced}")).unwrap();
        let text = [
            line("postmaster", "shut down before"),
            line("postmaster", "starting PostgreSQL 17"),
            line("client backend", "alter role x password 'secret'"),
            line("startup", "invalid\tcheckpoint record"),
            "not json\n".to_owned(),
            line("postmaster", "shutting down"),
        ];
        fs::write(data.join("log/postgres-1.json"), text.concat()).unwrap();
        assert_eq!(
            last_lines(&start, &data),
            "LOG:  starting; FATAL: starting PostgreSQL 17; FATAL: invalid checkpoint record; FATAL: shutting down"
        );
        // A start that ends before its collector runs.
        fs::write(&start, "FATAL:  invalid setting\n").unwrap();
        assert_eq!(last_lines(&start, &data), "FATAL:  invalid setting");
    }

    #[test]
    fn links_of_a_tenant_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (start, data) = (dir.path().join("start.log"), dir.path().join("data"));
        fs::create_dir(&data).unwrap();
        fs::write(&start, COLLECTOR[0]).unwrap();
        let secret = dir.path().join("secret.json");
        fs::write(&secret, line("startup", "secret")).unwrap();
        fs::create_dir(data.join("log")).unwrap();
        symlink(&secret, data.join("log/postgres-1.json")).unwrap();
        assert_eq!(last_lines(&start, &data), "");
        fs::remove_dir_all(data.join("log")).unwrap();
        symlink(dir.path(), data.join("log")).unwrap();
        assert_eq!(last_lines(&start, &data), "");
    }
}
