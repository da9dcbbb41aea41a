//! Selects the files that are merged.

use std::{collections::BTreeSet, ops::Range};

use super::{
    names::{self, FileName, StoredFile},
    options::Options,
};

/// Upper bound of the smallest size class in bytes. Each class is eight times larger than the
/// previous one.
const SMALLEST_CLASS_BYTES: u64 = 64 * 1024;

/// Selects adjacent files to merge, since a file name holds one range of segments. Small size
/// classes come first, so that a line is rewritten only once per size class. All files of a past
/// day are merged.
pub(super) fn merge_candidates(
    files: &[StoredFile],
    options: &Options,
    now: i64,
) -> Option<Range<usize>> {
    let first = files.first()?;
    let is_past_day = names::day(first.name.latest) < names::day(now);
    let files_min = if is_past_day {
        2
    } else {
        options.merge_files.max(2)
    };
    let classes: BTreeSet<u32> = files.iter().map(size_class).collect();
    classes
        .into_iter()
        .find_map(|class| candidates_up_to(files, class, files_min, options.merge_bytes))
}

/// Separates the sorted files of one node at damaged files. A merged file across a damaged one
/// would supersede it, and one that contains a part of its segments would make its range ambiguous.
/// Files that were merged into a damaged file form a run of their own.
pub(super) fn runs_between(files: Vec<StoredFile>, damaged: &[StoredFile]) -> Vec<Vec<StoredFile>> {
    let mut runs: Vec<(Vec<bool>, Vec<StoredFile>)> = Vec::new();
    for file in files {
        let mut place = Vec::with_capacity(2 * damaged.len());
        for damaged in damaged {
            if damaged.name.node == file.name.node {
                place.push(damaged.name.last < file.name.first);
                place.push(damaged.name.contains_range_of(&file.name));
            }
        }
        match runs.last_mut() {
            Some((last_place, run)) if *last_place == place => run.push(file),
            _ => runs.push((place, vec![file])),
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Returns the size class of a file.
fn size_class(file: &StoredFile) -> u32 {
    (file.name.bytes / SMALLEST_CLASS_BYTES).max(1).ilog(8)
}

/// Returns the first run of at least `files_min` adjacent files up to a size class, with a total
/// size of at most `bytes_max`.
fn candidates_up_to(
    files: &[StoredFile],
    class: u32,
    files_min: usize,
    bytes_max: u64,
) -> Option<Range<usize>> {
    let mut start = 0;
    let mut bytes = 0;
    for (at, file) in files.iter().enumerate() {
        bytes += file.name.bytes;
        let fits_class = size_class(file) <= class;
        if fits_class && bytes <= bytes_max {
            continue;
        }
        if at - start >= files_min {
            return Some(start..at);
        }
        if fits_class {
            start = at;
            bytes = file.name.bytes;
        } else {
            start = at + 1;
            bytes = 0;
        }
    }
    if files.len() - start >= files_min {
        return Some(start..files.len());
    }
    None
}

/// Returns the name of the file that replaces several adjacent files.
pub(super) fn merged_name(parts: &[StoredFile]) -> Option<FileName> {
    let [first, rest @ ..] = parts else {
        return None;
    };
    if rest.is_empty() {
        return None;
    }
    let mut name = first.name.clone();
    for part in rest {
        name.last = part.name.last;
        name.earliest = name.earliest.min(part.name.earliest);
        name.latest = name.latest.max(part.name.latest);
        name.rows += part.name.rows;
        name.bytes += part.name.bytes;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(sizes: &[u64]) -> Vec<StoredFile> {
        let mut files = Vec::new();
        for (at, bytes) in (0..).zip(sizes) {
            let name = FileName {
                node: "n".into(),
                first: at,
                last: at,
                earliest: 0,
                latest: 0,
                rows: 1,
                bytes: *bytes,
            };
            files.push(StoredFile {
                path: name.path("p"),
                name,
                size: 0,
            });
        }
        files
    }

    #[test]
    fn adjacent_files_of_similar_size_are_merged() {
        let options = Options {
            merge_files: 3,
            merge_bytes: 10 * SMALLEST_CLASS_BYTES,
            ..Options::new("f", "n")
        };
        let small = SMALLEST_CLASS_BYTES;
        let large = 9 * SMALLEST_CLASS_BYTES;
        for (sizes, expected) in [
            (vec![], None),
            (vec![small; 2], None),
            (vec![small; 3], Some(0..3)),
            (vec![small; 12], Some(0..10)),
            (vec![small, small, large, small, small], None),
            (vec![small, small, large, small, small, small], Some(3..6)),
            (vec![large, large, large], None),
            (
                vec![11 * SMALLEST_CLASS_BYTES, small, small, small],
                Some(1..4),
            ),
        ] {
            assert_eq!(
                merge_candidates(&files(&sizes), &options, 0),
                expected,
                "{sizes:?}"
            );
        }
        assert_eq!(
            merge_candidates(&files(&[small, small]), &options, names::DAY),
            Some(0..2),
            "files of a past day"
        );
        assert_eq!(
            merge_candidates(&files(&[small]), &options, names::DAY),
            None
        );
    }
}
