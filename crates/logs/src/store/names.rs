//! File names and the rules that decide which files are valid.
//!
//! A file contains the lines of one project and day from a range of segments of one node. The name
//! alone tells the node, whether a merged file supersedes the file, and whether a query can skip
//! it.

use chrono::DateTime;
use datafusion::object_store::path::Path;

use super::{FileEntry, StoreError};

/// Maximum length of the name of a project or node, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Microseconds per day.
pub(super) const DAY: i64 = 86_400_000_000;

/// Rejects names that are unsafe as a path component.
pub(super) fn check(name: &str) -> Result<(), StoreError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    {
        Ok(())
    } else {
        Err(StoreError::Name(
            name.chars().take(NAME_BYTES_MAX).collect(),
        ))
    }
}

/// Returns the day of a timestamp as days since 1970.
pub(super) fn day(timestamp: i64) -> i64 {
    timestamp.div_euclid(DAY)
}

/// Formats a day. Days outside of the calendar become numbers, so that every day has its own
/// directory.
fn day_text(day: i64) -> String {
    let date = day
        .checked_mul(DAY)
        .and_then(DateTime::from_timestamp_micros);
    date.map_or_else(
        || format!("day{day}"),
        |at| at.format("%Y-%m-%d").to_string(),
    )
}

/// Returns the directory of a project's files.
pub(super) fn project_folder(project: &str) -> Path {
    Path::from(project)
}

/// Returns the directory of a project's files of one day.
pub(super) fn day_folder(project: &str, day: i64) -> Path {
    project_folder(project).join(day_text(day))
}

/// The content of a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
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

impl Name {
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

/// A file of the object store with its parsed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Name,
    pub(super) path: Path,
    pub(super) size: u64,
}

impl Named {
    /// Parses a path. Returns `None` if the file does not belong to this package.
    pub(super) fn parse(path: &Path, size: u64) -> Option<Self> {
        Some(Self {
            name: Name::parse(path)?,
            path: path.clone(),
            size,
        })
    }

    /// Converts to the entry of a [`super::View`].
    pub(super) fn entry(&self) -> FileEntry {
        let Name {
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
pub(super) fn part(
    mut files: Vec<Named>,
    written: impl Fn(&str) -> Option<u64>,
) -> (Vec<Named>, Vec<Named>) {
    files.retain(|file| written(&file.name.node).is_none_or(|next| file.name.last < next));
    // The segment ranges of a node are disjoint or nested. Among ranges with the same start, the
    // widest sorts first.
    files.sort_by(|a, b| {
        let key = |file: &Named| (file.name.first, std::cmp::Reverse(file.name.last));
        a.name
            .node
            .cmp(&b.name.node)
            .then_with(|| key(a).cmp(&key(b)))
            .then_with(|| a.path.cmp(&b.path))
    });
    let (mut count, mut over): (Vec<Named>, Vec<Named>) = (Vec::new(), Vec::new());
    for file in files {
        match count.last() {
            Some(wide) if wide.name.node == file.name.node && file.name.last <= wide.name.last => {
                over.push(file)
            }
            _ => count.push(file),
        }
    }
    (count, over)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn file(node: &str, first: u64, last: u64) -> Named {
        let name = Name {
            node: node.into(),
            first,
            last,
            earliest: 1,
            latest: 2,
            rows: 3,
            bytes: 4,
        };
        Named::parse(&name.path("p"), 5).unwrap()
    }

    #[test]
    fn a_name_says_what_it_was_made_of() {
        let name = Name {
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
        assert_eq!(Named::parse(&path, 9).unwrap().name, name);
        for strange in [
            "a/b/c",
            "a/b/c.parquet",
            "a/b/n.x.1.1.1.1.1.parquet",
            "a/b/n.1.1.1.1.1.parquet",
        ] {
            assert_eq!(Named::parse(&Path::from(strange), 0), None);
        }
    }

    #[test]
    fn any_day_has_a_folder_of_its_own() {
        let stamps = [i64::MIN, i64::MIN + DAY, -1, 0, i64::MAX - DAY, i64::MAX];
        let folders: BTreeSet<_> = stamps
            .iter()
            .map(|timestamp| day_folder("p", day(*timestamp)))
            .collect();
        assert!(folders.iter().all(|folder| folder.parts().count() == 2));
        assert_eq!(folders.len(), stamps.len());
    }

    #[test]
    fn what_others_took_over_does_not_count() {
        let files = vec![
            file("a", 1, 1),
            file("b", 1, 1),
            file("a", 1, 3),
            file("a", 3, 3),
            file("a", 4, 4),
            file("a", 5, 6),
        ];
        let (count, over) = part(files.clone(), |_| None);
        assert_eq!(
            count,
            [
                file("a", 1, 3),
                file("a", 4, 4),
                file("a", 5, 6),
                file("b", 1, 1)
            ]
        );
        assert_eq!(over, [file("a", 1, 1), file("a", 3, 3)]);
        let (count, over) = part(files, |node| (node == "a").then_some(2));
        assert_eq!(
            (count, over),
            (vec![file("a", 1, 1), file("b", 1, 1)], vec![])
        );
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
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
            assert!(check(name).is_err(), "{name:?}");
        }
        for name in ["abcdefghijklmnopqrst", "default", "A-1_b"] {
            assert!(check(name).is_ok(), "{name:?}");
        }
    }
}
