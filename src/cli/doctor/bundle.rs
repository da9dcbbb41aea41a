//! The archive of a report: every file in it is redacted.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use flate2::{Compression, write::GzEncoder};
use gantry_base::files;

use super::redaction::Redactor;

/// Mode of the archive and of its files: the report describes the installation to its operator.
const MODE: u32 = 0o600;
/// Folder of all files in the archive.
const FOLDER: &str = "gantry-doctor";
/// Level of compression, of 22.
const ZSTD_LEVEL: i32 = 9;
/// Largest part of a log, in bytes.
const LOG_BYTES_MAX: u64 = 2 << 20;
/// Largest part of a log, in lines.
const LOG_LINES_MAX: usize = 2_000;
/// Largest number of log files that are compared by their age.
const LOG_FILES_MAX: usize = 1_000;

/// File of the archive, with the compression that its name selects.
#[derive(Debug, Clone)]
pub(super) struct BundleFile {
    path: PathBuf,
    is_zstd: bool,
}

impl FromStr for BundleFile {
    type Err = &'static str;

    fn from_str(path: &str) -> Result<Self, Self::Err> {
        let is_zstd = match path {
            path if path.ends_with(".tar.zst") => true,
            path if path.ends_with(".tar.gz") => false,
            _ => return Err("the name must end with .tar.zst or .tar.gz"),
        };
        let path = path.into();
        Ok(Self { path, is_zstd })
    }
}

impl fmt::Display for BundleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl BundleFile {
    /// Writes or replaces the archive with these files: names and contents.
    pub(super) fn write(
        &self,
        files: &[(&str, String)],
        redactor: &Redactor,
        now: DateTime<Utc>,
    ) -> anyhow::Result<()> {
        let write = || {
            let archive = archive(files, redactor, now)?;
            files::replace(&self.path, self.compressed(&archive)?, MODE)
        };
        write().with_context(|| format!("cannot write {self}"))
    }

    fn compressed(&self, archive: &[u8]) -> io::Result<Vec<u8>> {
        if self.is_zstd {
            return zstd::bulk::compress(archive, ZSTD_LEVEL);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(archive)?;
        encoder.finish()
    }
}

/// Returns an archive with the redacted files.
fn archive(
    files: &[(&str, String)],
    redactor: &Redactor,
    now: DateTime<Utc>,
) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let content = redactor.redacted(content);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(now.timestamp().unsigned_abs());
        let path = format!("{FOLDER}/{name}");
        archive.append_data(&mut header, path, content.as_bytes())?;
    }
    archive.into_inner()
}

/// Returns the end of a log file: at most 2,000 lines and 2 MiB.
pub(super) fn end_of_log(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut file = File::open(path)?;
    let skipped = found.len().saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    if skipped > 0 {
        // It is the end of a line.
        lines.drain(..1.min(lines.len()));
    }
    let first = lines.len().saturating_sub(LOG_LINES_MAX);
    Ok(lines[first..].concat())
}

/// Returns the log file in a folder that was written last.
pub(super) fn newest_log(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.take(LOG_FILES_MAX).flatten();
    let written = |entry: &fs::DirEntry| entry.metadata().and_then(|found| found.modified()).ok();
    let newest = entries.max_by_key(written)?;
    Some(newest.path())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn name_selects_the_compression() {
        for (name, expected) in [
            ("a.tar.zst", Some(true)),
            ("/b/a.tar.gz", Some(false)),
            ("a.zip", None),
        ] {
            let file = BundleFile::from_str(name).ok();
            assert_eq!(file.map(|file| file.is_zstd), expected, "{name}");
        }
    }

    #[test]
    fn archive_is_private_and_redacted() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("a.txt", "key hunter2 and sbp_0123".to_owned())];
        let redactor = Redactor::new(["hunter2".to_owned()]);
        for name in ["a.tar.zst", "a.tar.gz"] {
            let path = dir.path().join(name);
            let file: BundleFile = path.to_str().unwrap().parse().unwrap();
            file.write(&files, &redactor, DateTime::UNIX_EPOCH).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let packed = fs::read(&path).unwrap();
            let mut archive = Vec::new();
            if file.is_zstd {
                archive = zstd::bulk::decompress(&packed, 1 << 20).unwrap();
            } else {
                let mut decoder = flate2::read::GzDecoder::new(&packed[..]);
                decoder.read_to_end(&mut archive).unwrap();
            }
            let mut archive = tar::Archive::new(&archive[..]);
            let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            assert_eq!(text, "key [redacted] and [redacted]");
            let name = entry.path().unwrap().display().to_string();
            assert_eq!(name, "gantry-doctor/a.txt");
        }
    }

    #[test]
    fn end_of_a_log_has_whole_lines_and_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let lines = |count: usize| {
            let lines: Vec<String> = (0..count).map(|n| format!("{n:020}\n")).collect();
            lines.concat()
        };
        for count in [0, 3, 2_001, 200_000] {
            fs::write(&path, lines(count)).unwrap();
            let end = end_of_log(&path).unwrap();
            let expected = lines(count);
            let first = expected.len().saturating_sub(2_000 * 21);
            assert_eq!(end, expected[first..], "{count} lines");
        }
        fs::write(&path, "x".repeat(5 << 20)).unwrap();
        assert_eq!(end_of_log(&path).unwrap(), "");
        assert!(end_of_log(dir.path()).is_err());
        assert_eq!(newest_log(dir.path()), Some(path));
        assert_eq!(newest_log(&dir.path().join("missing")), None);
    }
}
