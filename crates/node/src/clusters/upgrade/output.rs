//! Files that `pg_upgrade` leaves, with the reasons of a failure.

use std::{fs, path::Path};

use crate::files;

/// Returns what `pg_upgrade` wrote about a failure: the beginnings of its text files, which name
/// what it rejected, and the errors in its logs.
pub(super) fn details(output: &Path) -> String {
    const FILES_MAX: usize = 64;
    const TEXT_BYTES_MAX: u64 = 1024;
    const LOG_BYTES_MAX: u64 = 8 << 20;
    const ERRORS_MAX: usize = 5;
    let mut texts = Vec::new();
    let mut folders = vec![output.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            if seen > FILES_MAX {
                break;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
                continue;
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("txt") => texts.extend(files::read_untrusted(&path, TEXT_BYTES_MAX)),
                Some("log") => {
                    let log = files::read_untrusted(&path, LOG_BYTES_MAX).unwrap_or_default();
                    let errors = log.lines().filter(|line| is_error(line));
                    texts.extend(errors.take(ERRORS_MAX).map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    let words: Vec<&str> = texts
        .iter()
        .flat_map(|text| text.split_whitespace())
        .collect();
    words.join(" ").replace(|c: char| c.is_control(), " ")
}

/// Returns whether a line of a log of `pg_upgrade`, or of a program that it ran, is an error.
fn is_error(line: &str) -> bool {
    ["error: ", "ERROR: ", "FATAL: "]
        .iter()
        .any(|mark| line.contains(mark))
}
