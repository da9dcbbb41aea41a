//! File names and the rules that decide which files are valid.
//!
//! A file contains the lines of one project and day from a range of segments of one node. The name
//! alone tells the node, whether a merged file supersedes the file, and whether a query can skip
//! it.

use chrono::DateTime;
use datafusion::object_store::path::Path;

use super::error::StoreError;

/// Maximum length of the name of a project or node, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Microseconds per day.
pub(super) const DAY: i64 = 86_400_000_000;

/// Rejects names that are unsafe as a path component.
pub(super) fn check_name(name: &str) -> Result<(), StoreError> {
    let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !is_valid {
        let excerpt = name.chars().take(NAME_BYTES_MAX).collect();
        return Err(StoreError::Name(excerpt));
    }
    Ok(())
}

/// Returns the day of a timestamp as days since 1970.
pub(super) fn day(timestamp: i64) -> i64 {
    timestamp.div_euclid(DAY)
}

/// Formats a day. Days outside of the calendar become numbers, so that every day has its own
/// directory.
fn format_day(day: i64) -> String {
    let date = day
        .checked_mul(DAY)
        .and_then(DateTime::from_timestamp_micros);
    match date {
        Some(date) => date.format("%Y-%m-%d").to_string(),
        None => format!("day{day}"),
    }
}

/// Returns the directory of a project's files.
pub(super) fn project_folder(project: &str) -> Path {
    Path::from(project)
}

/// Returns the directory of a project's files of one day.
pub(super) fn day_folder(project: &str, day: i64) -> Path {
    project_folder(project).join(format_day(day))
}

/// Returns the project of a path, which is its first component.
pub(super) fn project_of(path: &Path) -> String {
    match path.parts().next() {
        Some(project) => project.as_ref().to_owned(),
        None => String::new(),
    }
}

/// The suffix of the marker beside a damaged file.
const MARKER_SUFFIX: &str = ".damaged";

/// Returns the path of the marker that sets a file aside.
pub(super) fn damage_marker(path: &Path) -> Path {
    Path::from(format!("{path}{MARKER_SUFFIX}"))
}

/// The suffix of the marker in the place of a missing file.
const MISSING_SUFFIX: &str = ".missing";

/// Returns the path of the marker in the place of a missing file.
pub(super) fn missing_marker(path: &Path) -> Path {
    Path::from(format!("{path}{MISSING_SUFFIX}"))
}

/// Returns the file of a marker, or `None` if the path is no marker.
pub(super) fn marked_file(marker: &Path) -> Option<Path> {
    file_before(marker, MARKER_SUFFIX)
}

/// Returns the file of the marker of a missing file, or `None` if the path is none.
pub(super) fn missing_file(marker: &Path) -> Option<Path> {
    file_before(marker, MISSING_SUFFIX)
}

fn file_before(marker: &Path, suffix: &str) -> Option<Path> {
    let path = Path::from(marker.as_ref().strip_suffix(suffix)?);
    FileName::parse(&path).map(|_| path)
}

/// Number of rows and their approximate size in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Volume {
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Volume {
    /// Returns the number of average rows within both limits, at least one.
    pub(super) fn rows_within(self, bytes_max: u64, rows_max: usize) -> usize {
        let fit = bytes_max.saturating_mul(self.rows) / self.bytes.max(1);
        usize::try_from(fit).unwrap_or(rows_max).clamp(1, rows_max)
    }
}

/// The content of a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileName {
    pub(super) node: String,
    /// First segment of the lines.
    pub(super) first: u64,
    /// Last segment of the lines.
    pub(super) last: u64,
    pub(super) earliest: i64,
    pub(super) latest: i64,
    pub(super) rows: u64,
    /// Size of the lines in the log, in bytes. Approximates their size in memory.
    pub(super) bytes: u64,
}

impl FileName {
    /// Returns the path of the file.
    pub(super) fn path(&self, project: &str) -> Path {
        let Self {
            node,
            first,
            last,
            earliest,
            latest,
            rows,
            bytes,
        } = self;
        day_folder(project, day(*latest)).join(format!(
            "{node}.{first:016x}.{last:016x}.{earliest}.{latest}.{rows}.{bytes}.parquet"
        ))
    }

    pub(super) fn volume(&self) -> Volume {
        Volume {
            rows: self.rows,
            bytes: self.bytes,
        }
    }

    /// Whether the segments of another file of the same node are within those of this file.
    pub(super) fn contains_range_of(&self, other: &Self) -> bool {
        self.node == other.node && self.first <= other.first && other.last <= self.last
    }

    fn parse(path: &Path) -> Option<Self> {
        let name = path.filename()?.strip_suffix(".parquet")?;
        let parts: Vec<_> = name.split('.').collect();
        let [node, first, last, earliest, latest, rows, bytes] = parts.as_slice() else {
            return None;
        };
        Some(Self {
            node: (*node).to_owned(),
            first: u64::from_str_radix(first, 16).ok()?,
            last: u64::from_str_radix(last, 16).ok()?,
            earliest: earliest.parse().ok()?,
            latest: latest.parse().ok()?,
            rows: rows.parse().ok()?,
            bytes: bytes.parse().ok()?,
        })
    }
}

/// A file of lines, described by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The path in [`super::View::objects`].
    pub path: Path,
    /// Size in bytes.
    pub size: u64,
    /// Number of lines.
    pub rows: u64,
    /// The earliest timestamp of a line.
    pub earliest: i64,
    /// The latest timestamp of a line.
    pub latest: i64,
}

/// A file of the object store with its parsed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredFile {
    pub(super) name: FileName,
    pub(super) path: Path,
    pub(super) size: u64,
}

impl StoredFile {
    /// Parses a path. Returns `None` if the file does not belong to this package.
    pub(super) fn parse(path: &Path, size: u64) -> Option<Self> {
        Some(Self {
            name: FileName::parse(path)?,
            path: path.clone(),
            size,
        })
    }

    /// Converts to the entry of a [`super::View`].
    pub(super) fn to_entry(&self) -> FileEntry {
        let FileName {
            earliest,
            latest,
            rows,
            ..
        } = self.name;
        FileEntry {
            path: self.path.clone(),
            size: self.size,
            rows,
            earliest,
            latest,
        }
    }
}

/// Separates the files of one directory into valid files, sorted by node and segment, and
/// superseded files. `flushed_before` returns for a node the first segment that is still read from
/// its log; files from that segment on are ignored.
pub(super) fn split_superseded(
    mut files: Vec<StoredFile>,
    flushed_before: impl Fn(&str) -> Option<u64>,
) -> (Vec<StoredFile>, Vec<StoredFile>) {
    files.retain(|file| flushed_before(&file.name.node).is_none_or(|next| file.name.last < next));
    // The segment ranges of a node are disjoint or nested. Among ranges with the same start, the
    // widest sorts first.
    files.sort_by(|a, b| {
        (a.name.node.cmp(&b.name.node))
            .then(a.name.first.cmp(&b.name.first))
            .then(b.name.last.cmp(&a.name.last))
            .then_with(|| a.path.cmp(&b.path))
    });
    let mut valid: Vec<StoredFile> = Vec::new();
    let mut superseded: Vec<StoredFile> = Vec::new();
    for file in files {
        match valid.last() {
            Some(previous)
                if previous.name.node == file.name.node && file.name.last <= previous.name.last =>
            {
                superseded.push(file);
            }
            _ => valid.push(file),
        }
    }
    (valid, superseded)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn file(node: &str, first: u64, last: u64) -> StoredFile {
        let name = FileName {
            node: node.into(),
            first,
            last,
            earliest: 1,
            latest: 2,
            rows: 3,
            bytes: 4,
        };
        StoredFile::parse(&name.path("p"), 5).unwrap()
    }

    #[test]
    fn file_name_round_trips_and_foreign_names_are_ignored() {
        let name = FileName {
            node: "n-1".into(),
            first: 10,
            last: 300,
            earliest: -5,
            latest: 1_790_000_000_000_000,
            rows: 7,
            bytes: 8,
        };
        let path = name.path("abc");
        assert_eq!(
            path.as_ref(),
            "abc/2026-09-21/n-1.000000000000000a.000000000000012c.-5.1790000000000000.7.8.parquet"
        );
        assert_eq!(StoredFile::parse(&path, 9).unwrap().name, name);
        let marker = damage_marker(&path);
        assert_eq!(marked_file(&marker), Some(path));
        assert_eq!(StoredFile::parse(&marker, 9), None);
        for foreign in [
            "a/b/c",
            "a/b/c.parquet",
            "a/b/n.x.1.1.1.1.1.parquet",
            "a/b/n.1.1.1.1.1.parquet",
        ] {
            assert_eq!(StoredFile::parse(&Path::from(foreign), 0), None);
        }
    }

    #[test]
    fn every_day_has_its_own_directory() {
        let stamps = [i64::MIN, i64::MIN + DAY, -1, 0, i64::MAX - DAY, i64::MAX];
        let folders: BTreeSet<_> = stamps
            .iter()
            .map(|timestamp| day_folder("p", day(*timestamp)))
            .collect();
        assert!(folders.iter().all(|folder| folder.parts().count() == 2));
        assert_eq!(folders.len(), stamps.len());
    }

    #[test]
    fn superseded_and_unflushed_files_are_not_valid() {
        let files = vec![
            file("a", 1, 1),
            file("b", 1, 1),
            file("a", 1, 3),
            file("a", 3, 3),
            file("a", 4, 4),
            file("a", 5, 6),
        ];
        let (valid, superseded) = split_superseded(files.clone(), |_| None);
        assert_eq!(
            valid,
            [
                file("a", 1, 3),
                file("a", 4, 4),
                file("a", 5, 6),
                file("b", 1, 1)
            ]
        );
        assert_eq!(superseded, [file("a", 1, 1), file("a", 3, 3)]);
        let (valid, superseded) = split_superseded(files, |node| (node == "a").then_some(2));
        assert_eq!(
            (valid, superseded),
            (vec![file("a", 1, 1), file("b", 1, 1)], vec![])
        );
    }

    #[test]
    fn names_that_are_unsafe_in_a_path_are_rejected() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "../x",
            "a\\b",
            "a.b",
            "a b",
            "ä",
            "a\0",
            "%2e",
            &"a".repeat(65),
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["abcdefghijklmnopqrst", "default", "A-1_b"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }
}
