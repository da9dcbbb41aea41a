//! The source files of a function: names from clients, checked, and their folder.
//!
//! ```text
//! functions/<ref>/<deployment>/source/   files as uploaded
//!                              bundle    the uploaded bundle, if it was one
//!                              cache/    packages and compiled code
//! functions/<ref>/.new-<deployment>/     being written
//! ```
//!
//! A folder is written, flushed and then renamed, so that its name stands for complete files.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    ops::Bound,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use gantry_base::{files::make_folder, ids::ProjectRef};
use gantry_node::clusters::Home;
use uuid::Uuid;

use super::{relative_path::RelativePath, type_imports::GENERATED};
use crate::platform::error::Error;

/// Largest number of files of a version.
pub const FILES_MAX: usize = 20_000;
/// Largest size of all files of a version, in bytes.
pub const SOURCE_BYTES_MAX: usize = 512 << 20;
/// Prefix of folders that are being written.
pub(super) const UNFINISHED: &str = ".new-";
/// Mode of the folder of a project: instances pass through it.
const PASSAGE: u32 = 0o711;

/// Source files by path. No path is a folder of another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    files: BTreeMap<RelativePath, Bytes>,
    bytes: usize,
}

impl Sources {
    /// Adds a file under the normalized `name`.
    ///
    /// Errors: the name is not a [`RelativePath`], is used twice or is a folder, or a bound is
    /// exceeded.
    pub fn add(&mut self, name: &str, content: Bytes) -> Result<(), Error> {
        let path = RelativePath::parse(name)
            .map_err(|problem| Error::invalid("file", format!("the name {name:?} {problem}")))?;
        self.bytes += content.len();
        if self.files.len() >= FILES_MAX || self.bytes > SOURCE_BYTES_MAX {
            return Err(Error::TooLarge {
                bytes_max: SOURCE_BYTES_MAX,
            });
        }
        let below = format!("{path}/");
        let has_children = self
            .files
            .range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded))
            .next()
            .is_some_and(|(other, _)| other.as_str().starts_with(&below));
        let text = path.as_str();
        let is_below_file = text
            .match_indices('/')
            .any(|(end, _)| self.files.contains_key(&text[..end]));
        if has_children || is_below_file || self.files.contains_key(&path) {
            return Err(Error::invalid(
                "file",
                format!("the name {name:?} is used twice"),
            ));
        }
        self.files.insert(path, content);
        Ok(())
    }

    /// Returns the stored path that a client means by `path`: this path, or a file in the root with
    /// the same last segment.
    pub fn find(&self, path: &RelativePath) -> Option<RelativePath> {
        let last = path.file_name();
        [path.as_str(), last]
            .into_iter()
            .find_map(|name| self.files.get_key_value(name))
            .map(|(stored, _)| stored.clone())
    }

    /// Returns the files by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.files
            .iter()
            .map(|(path, content)| (path.as_str(), content))
    }
}

/// The folder of a version's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionFolder {
    place: PathBuf,
}

impl VersionFolder {
    /// The folder of a deployment, which need not exist.
    pub fn of(home: &Home, project: &ProjectRef, deployment: Uuid) -> Self {
        let project = home.functions().join(project.as_str());
        Self {
            place: project.join(deployment.simple().to_string()),
        }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// The folder of the sources.
    pub fn source(&self) -> PathBuf {
        self.place.join("source")
    }

    /// The folder of packages and compiled code.
    pub fn cache(&self) -> PathBuf {
        self.place.join("cache")
    }

    fn bundle(&self) -> PathBuf {
        self.place.join("bundle")
    }

    /// Writes all files durably. The folder exists only when it is complete.
    pub fn write(&self, sources: &Sources, bundle: Option<&[u8]>) -> io::Result<()> {
        let project = self.place.parent().unwrap_or(&self.place);
        make_folder(project, PASSAGE)?;
        let name = self.place.file_name().unwrap_or_default();
        let stage = Self {
            place: project.join(format!("{UNFINISHED}{}", name.to_string_lossy())),
        };
        let written = stage.fill(sources, bundle).and_then(|()| {
            let folder = fs::File::open(&stage.place)?;
            // One call for all files, and faster than a call for each.
            rustix::fs::syncfs(&folder)?;
            fs::rename(&stage.place, &self.place)?;
            fs::File::open(project)?.sync_all()
        });
        if written.is_err() {
            // Removed later otherwise, with other unfinished folders.
            let _ = fs::remove_dir_all(&stage.place);
        }
        written
    }

    fn fill(&self, sources: &Sources, bundle: Option<&[u8]>) -> io::Result<()> {
        make_folder(&self.place, 0o700)?;
        let root = self.source();
        make_folder(&root, 0o700)?;
        for (path, content) in sources.iter() {
            let file = root.join(path);
            if let Some(folder) = file.parent() {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(folder)?;
            }
            write_file(&file, content)?;
        }
        bundle.map_or(Ok(()), |bundle| write_file(&self.bundle(), bundle))
    }

    /// Reads the files as uploaded.
    pub fn read(&self) -> io::Result<Sources> {
        let mut sources = Sources::default();
        let root = self.source();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let path = entry.path();
                let name = entry.file_name();
                if name.to_string_lossy().starts_with(GENERATED) {
                    continue;
                }
                let name = path.strip_prefix(&root).map_err(io::Error::other)?;
                let content = Bytes::from(fs::read(&path)?);
                sources
                    .add(&name.to_string_lossy(), content)
                    .map_err(|_| io::Error::other("unexpected file"))?;
            }
        }
        Ok(sources)
    }

    /// Reads the uploaded bundle, if there is one.
    pub fn read_bundle(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.bundle()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Deletes the folder. It is renamed first, so that no partial folder has its name.
    pub fn remove(&self) -> io::Result<()> {
        let name = self.place.file_name().unwrap_or_default();
        let gone = self
            .place
            .with_file_name(format!("{UNFINISHED}{}", name.to_string_lossy()));
        match fs::rename(&self.place, &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.and_then(|()| fs::remove_dir_all(gone)),
        }
    }
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_root_are_rejected() {
        for name in [
            "../b.ts",
            "/etc/passwd",
            "%2e%2e/b.ts",
            "C:/b.ts",
            "a/",
            "a\\b",
        ] {
            let mut sources = Sources::default();
            assert!(sources.add(name, Bytes::new()).is_err(), "{name}");
            assert_eq!(sources, Sources::default());
        }
    }

    #[test]
    fn file_and_folder_cannot_share_a_name() {
        for (first, second) in [("a", "a/b"), ("a/b", "a"), ("a", "./a"), ("a/b/c", "a/b")] {
            let mut sources = Sources::default();
            sources.add(first, Bytes::new()).unwrap();
            assert!(
                sources.add(second, Bytes::new()).is_err(),
                "{first} {second}"
            );
        }
        let mut sources = Sources::default();
        for name in ["a/b", "a.ts", "a/c", "ab"] {
            sources.add(name, Bytes::new()).unwrap();
        }
    }

    #[test]
    fn entry_is_found_by_path_or_by_its_last_segment_in_the_root() {
        let mut sources = Sources::default();
        sources.add("index.ts", Bytes::new()).unwrap();
        sources.add("lib/x.ts", Bytes::new()).unwrap();
        for (name, found) in [
            ("index.ts", Some("index.ts")),
            ("./index.ts", Some("index.ts")),
            ("supabase/functions/hello/index.ts", Some("index.ts")),
            ("lib/x.ts", Some("lib/x.ts")),
            ("x.ts", None),
        ] {
            let path = sources.find(&RelativePath::parse(name).unwrap());
            assert_eq!(path.as_ref().map(RelativePath::as_str), found, "{name}");
        }
    }

    #[test]
    fn folder_appears_complete_and_round_trips() {
        let place = tempfile::tempdir().unwrap();
        let folder = VersionFolder {
            place: place.path().join("p").join("1"),
        };
        let mut sources = Sources::default();
        sources.add("a/b.ts", Bytes::from_static(b"1")).unwrap();
        sources.add("index.ts", Bytes::from_static(b"2")).unwrap();
        folder.write(&sources, Some(b"z")).unwrap();
        assert_eq!(folder.read().unwrap(), sources);
        assert_eq!(folder.read_bundle().unwrap().unwrap(), b"z");
        assert!(folder.write(&sources, None).is_err(), "never overwritten");
        assert_eq!(fs::read_dir(place.path().join("p")).unwrap().count(), 1);
        folder.remove().unwrap();
        folder.remove().unwrap();
        assert_eq!(fs::read_dir(place.path().join("p")).unwrap().count(), 0);
    }
}
