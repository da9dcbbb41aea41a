//! The files that a node has written, so that the loss of a file is noticed.
//!
//! A journal beside the log has a line for each file that was written or is about to be deleted. It
//! belongs to one object store: with another one, it starts empty. Files that it lacks, such as
//! those written just before a crash, are added by the next sweep. Losing it loses only knowledge.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path as FilePath, PathBuf},
};

use datafusion::object_store::path::Path;
use parking_lot::Mutex;

/// The file name of the journal.
const JOURNAL: &str = "files";
/// Maximum number of known files. The loss of further ones is not noticed.
const FILES_MAX: usize = 256 * 1024;
/// Number of lines beyond twice the known files at which the journal is rewritten.
const LINES_SPARE: usize = 1024;

/// The known files and their journal.
#[derive(Debug, Default)]
pub(super) struct KnownFiles(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    paths: BTreeSet<Path>,
    /// `None` in memory only.
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    /// The description of the object store, the first line of the journal.
    objects: String,
}

impl KnownFiles {
    /// Reads the journal in a folder. `objects` describes the object store.
    pub(super) fn open(folder: &FilePath, objects: &str) -> io::Result<Self> {
        let path = folder.join(JOURNAL);
        let content = match fs::read_to_string(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            // Not text: damaged.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(error),
        };
        let mut paths = BTreeSet::new();
        let mut lines = content.split_inclusive('\n');
        if lines.next().map(str::trim_end) == Some(objects) {
            for line in lines {
                // The last line may be incomplete.
                let Some(line) = line.strip_suffix('\n') else {
                    continue;
                };
                match line.split_at_checked(1) {
                    Some(("+", path)) if paths.len() < FILES_MAX => {
                        paths.insert(Path::from(path));
                    }
                    Some(("-", path)) => {
                        paths.remove(&Path::from(path));
                    }
                    _ => {}
                }
            }
        }
        let journal = rewrite(path, objects.to_owned(), &paths)?;
        Ok(Self(Mutex::new(Known {
            paths,
            journal: Some(journal),
        })))
    }

    /// Deletes the journal in a folder.
    pub(super) fn remove_journal(folder: &FilePath) -> io::Result<()> {
        match fs::remove_file(folder.join(JOURNAL)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds a file that exists.
    pub(super) fn add(&self, path: &Path) {
        let mut known = self.0.lock();
        if known.paths.len() < FILES_MAX && known.paths.insert(path.clone()) {
            known.write("+", path);
        }
    }

    /// Removes a file that is about to be deleted or no longer expected.
    pub(super) fn remove(&self, path: &Path) {
        let mut known = self.0.lock();
        if known.paths.remove(path) {
            known.write("-", path);
        }
    }

    /// Makes removals durable. Otherwise a deleted file could be expected after a power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.0.lock().journal {
            Some(journal) => journal.file.sync_data(),
            None => Ok(()),
        }
    }

    /// Removes the files of a folder.
    pub(super) fn remove_under(&self, folder: &Path) {
        for path in self.under(folder) {
            self.remove(&path);
        }
    }

    /// Returns the files below a folder.
    pub(super) fn under(&self, folder: &Path) -> Vec<Path> {
        let known = self.0.lock();
        let from = known.paths.range(folder.clone()..);
        // Paths of other folders that sort between start with the same text.
        from.take_while(|path| path.as_ref().starts_with(folder.as_ref()))
            .filter(|path| path.prefix_matches(folder))
            .cloned()
            .collect()
    }

    /// Returns all files.
    pub(super) fn all(&self) -> Vec<Path> {
        self.0.lock().paths.iter().cloned().collect()
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.0.lock().paths.contains(path)
    }
}

impl Known {
    /// Appends a line to the journal. A failure loses knowledge only.
    fn write(&mut self, sign: &str, path: &Path) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let line = format!("{sign}{path}\n");
        let mut written = journal.file.write_all(line.as_bytes());
        journal.lines += 1;
        if journal.lines > 2 * self.paths.len() + LINES_SPARE {
            let rewritten = rewrite(journal.path.clone(), journal.objects.clone(), &self.paths);
            written = rewritten.map(|new| *journal = new);
        }
        if let Err(error) = written {
            tracing::debug!(%error, "list of log files was not written");
        }
    }
}

/// Writes the journal anew, atomically.
fn rewrite(path: PathBuf, objects: String, paths: &BTreeSet<Path>) -> io::Result<Journal> {
    let mut content = format!("{objects}\n");
    for path in paths {
        content.push('+');
        content.push_str(path.as_ref());
        content.push('\n');
    }
    let unfinished = path.with_extension("new");
    fs::write(&unfinished, content)?;
    fs::rename(&unfinished, &path)?;
    let file = OpenOptions::new().append(true).open(&path)?;
    Ok(Journal {
        path,
        file,
        lines: paths.len(),
        objects,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_restores_files_of_the_same_object_store() {
        let folder = tempfile::tempdir().unwrap();
        let open = |objects| KnownFiles::open(folder.path(), objects).unwrap();
        let [one, two, other] = ["p/d/1", "p/d/2", "p/d2/1"].map(Path::from);
        let known = open("a");
        for path in [&one, &two, &other] {
            known.add(path);
        }
        known.remove(&one);
        assert_eq!(known.under(&Path::from("p/d")), std::slice::from_ref(&two));
        drop(known);
        let journal = folder.path().join(JOURNAL);
        let mut file = OpenOptions::new().append(true).open(&journal).unwrap();
        file.write_all(b"+p/d/3").unwrap();
        assert_eq!(
            open("a").all(),
            [two.clone(), other.clone()],
            "without the torn line"
        );
        let known = open("a");
        for number in 0..10 * LINES_SPARE {
            let path = Path::from(format!("p/d/{number}"));
            known.add(&path);
            known.remove(&path);
        }
        assert!(fs::read_to_string(&journal).unwrap().lines().count() < 2 * LINES_SPARE);
        assert_eq!(open("a").all(), [other]);
        assert_eq!(open("b").all(), []);
    }
}
