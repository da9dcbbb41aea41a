//! The files of a data folder that nothing else has: sources of functions, and extensions that the
//! operator added.
//!
//! Engines, kits, templates and log lines are not stored: the first three are installed again, and
//! log lines have a store of their own.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use gantry_base::files::make_folder;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{
    content::{self, EntryKind, FolderContent, FolderEntry},
    dump::ChunkWriter,
    error::{InstallationError, Result, damaged},
    objects::{InstallationStore, blocking},
};
use crate::control::backups::error::BackupError;

/// Folder with the sources of functions, by project and deployment.
pub(super) const FUNCTIONS: &str = "functions";
/// Folder with the operator's extensions and the list of permitted ones.
const EXTENSIONS: &str = "extensions";
/// Folders that are stored.
pub(super) const FOLDERS: [&str; 2] = [FUNCTIONS, EXTENSIONS];
/// Packages of a function, which its first start fetches.
const CACHE: &str = "cache";
/// Size of a content, in bytes.
const CHUNK_BYTES: usize = 4 << 20;
/// Maximum number of entries of a folder.
const ENTRIES_MAX: usize = 200_000;
/// Maximum number of folders.
const FOLDERS_MAX: usize = 200_000;
/// Contents that are read but not stored yet.
const CHUNKS_WAITING: usize = 1;

/// A folder to store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FolderToRead {
    /// Path below the data folder.
    path: String,
    /// Changes with the files.
    state: String,
}

fn unusable(path: &Path) -> impl Fn(io::Error) -> InstallationError {
    move |cause| InstallationError::File {
        path: path.to_owned(),
        cause,
    }
}

/// Stores the folders of a data folder. Those with the state of `known` are not read again.
pub async fn store(
    home: &Path,
    known: &BTreeMap<String, FolderContent>,
    writer: &mut ChunkWriter<'_>,
) -> Result<BTreeMap<String, FolderContent>> {
    let listed = home.to_owned();
    let folders = blocking(move || folders(&listed)).await?;
    let mut stored = BTreeMap::new();
    for folder in folders {
        let content = match known.get(&folder.path) {
            Some(known) if known.state == folder.state => Some(known.clone()),
            _ => store_folder(home, &folder, writer).await?,
        };
        stored.extend(content.map(|content| (folder.path, content)));
    }
    Ok(stored)
}

/// Returns the folders with files to keep.
fn folders(home: &Path) -> Result<Vec<FolderToRead>> {
    let mut found = Vec::new();
    for project in names(&home.join(FUNCTIONS))? {
        for deployment in names(&home.join(FUNCTIONS).join(&project))? {
            // Names with a dot are folders that are being written or removed.
            if !deployment.starts_with('.') && found.len() < FOLDERS_MAX {
                found.push(FolderToRead {
                    path: format!("{FUNCTIONS}/{project}/{deployment}"),
                    // A deployment never changes.
                    state: String::new(),
                });
            }
        }
    }
    let extensions = home.join(EXTENSIONS);
    if extensions.is_dir() {
        found.push(FolderToRead {
            path: EXTENSIONS.to_owned(),
            state: state(&extensions)?,
        });
    }
    Ok(found)
}

/// Returns the installed engines and kits, as paths below the data folder.
pub(super) fn installed(home: &Path) -> Vec<String> {
    let below = |folder: &str| {
        let names = names(&home.join(folder)).unwrap_or_default();
        // Layouts are made from engines.
        let is_program = |name: &String| !name.starts_with('.') && name != "layouts";
        let names = names.into_iter().filter(is_program);
        names
            .map(|name| format!("{folder}/{name}"))
            .collect::<Vec<_>>()
    };
    let kits = below("kits").into_iter().flat_map(|kit| below(&kit));
    below("engines").into_iter().chain(kits).collect()
}

/// Returns the names in a folder, in order. A missing folder is empty.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unusable(folder))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unusable(folder))?.file_name();
        names.extend(name.into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns a digest of names, sizes and times of change.
fn state(folder: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    for entry in entries(folder)? {
        let path = folder.join(&entry.path);
        let about = fs::symlink_metadata(&path).map_err(unusable(&path))?;
        let line = format!(
            "{} {} {} {}.{}\n",
            entry.path,
            about.mode(),
            about.len(),
            about.mtime(),
            about.mtime_nsec()
        );
        digest.update(line);
    }
    Ok(hex::encode(digest.finalize()))
}

/// Returns the entries of a folder, except for caches.
fn entries(folder: &Path) -> Result<Vec<FolderEntry>> {
    let mut found = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(below) = waiting.pop() {
        for name in names(&folder.join(&below))? {
            let path = if below.is_empty() {
                name
            } else {
                format!("{below}/{name}")
            };
            let full = folder.join(&path);
            let about = fs::symlink_metadata(&full).map_err(unusable(&full))?;
            let kind = if about.is_dir() {
                if path == CACHE {
                    continue;
                }
                waiting.push(path.clone());
                EntryKind::Folder
            } else if about.is_symlink() {
                let target = fs::read_link(&full).map_err(unusable(&full))?;
                EntryKind::Link(target.to_string_lossy().into_owned())
            } else if about.is_file() {
                EntryKind::File(about.len())
            } else {
                continue;
            };
            if found.len() >= ENTRIES_MAX {
                let text = format!(
                    "{} has more than {ENTRIES_MAX} files and cannot be backed up",
                    folder.display()
                );
                return Err(InstallationError::Refused(text));
            }
            found.push(FolderEntry {
                path,
                mode: about.mode() & 0o777,
                kind,
            });
        }
    }
    Ok(found)
}

/// Stores a folder. `None` if it was removed meanwhile.
async fn store_folder(
    home: &Path,
    folder: &FolderToRead,
    writer: &mut ChunkWriter<'_>,
) -> Result<Option<FolderContent>> {
    let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(CHUNKS_WAITING);
    let root = home.join(&folder.path);
    let reader = tokio::task::spawn_blocking(move || read_folder(&root, &sender));
    let mut content = FolderContent {
        state: folder.state.clone(),
        entries: Vec::new(),
        chunks: Vec::new(),
    };
    while let Some(chunk) = chunks.recv().await {
        content.chunks.push(writer.put(chunk).await?);
    }
    match reader.await {
        Ok(Ok(entries)) => content.entries = entries,
        Ok(Err(InstallationError::File { cause, .. }))
            if cause.kind() == io::ErrorKind::NotFound =>
        {
            return Ok(None);
        }
        Ok(Err(error)) => return Err(error),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => return Err(BackupError::ShuttingDown.into()),
    }
    Ok(Some(content))
}

/// Reads all files of a folder one after the other.
fn read_folder(root: &Path, chunks: &mpsc::Sender<Vec<u8>>) -> Result<Vec<FolderEntry>> {
    let entries = entries(root)?;
    let mut chunk = Vec::new();
    for entry in &entries {
        let EntryKind::File(size) = entry.kind else {
            continue;
        };
        let path = root.join(&entry.path);
        let mut file = File::open(&path).map_err(unusable(&path))?;
        let mut left = size;
        while left > 0 {
            let room = (CHUNK_BYTES - chunk.len()) as u64;
            let read = (&mut file)
                .take(room.min(left))
                .read_to_end(&mut chunk)
                .map_err(unusable(&path))?;
            if read == 0 {
                let cause = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(unusable(&path)(cause));
            }
            left -= read as u64;
            if chunk.len() >= CHUNK_BYTES {
                // Closed if storing failed; that error is reported.
                let sent = chunks.blocking_send(std::mem::take(&mut chunk));
                sent.map_err(|_| BackupError::ShuttingDown)?;
            }
        }
    }
    if !chunk.is_empty() {
        let sent = chunks.blocking_send(chunk);
        sent.map_err(|_| BackupError::ShuttingDown)?;
    }
    Ok(entries)
}

/// Writes the folders into an empty data folder, which other accounts pass through to those of
/// functions.
pub async fn restore(
    home: &Path,
    store: &InstallationStore,
    folders: &BTreeMap<String, FolderContent>,
) -> Result<()> {
    for (path, folder) in folders {
        if !is_below(path) || !folder.entries.iter().all(|entry| is_below(&entry.path)) {
            return Err(damaged(path, "a path leaves the data folder"));
        }
        let mut place = home.to_owned();
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            place.push(part);
            let passage = if parts.peek().is_some() { 0o711 } else { 0o700 };
            make_folder(&place, passage).map_err(unusable(&place))?;
        }
        restore_folder(&place, store, folder).await?;
    }
    Ok(())
}

/// Whether a path has only plain names.
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

async fn restore_folder(
    place: &Path,
    store: &InstallationStore,
    folder: &FolderContent,
) -> Result<()> {
    let mut chunks = folder.chunks.iter();
    let mut ready: Vec<u8> = Vec::new();
    let mut used = 0;
    for entry in &folder.entries {
        let path = place.join(&entry.path);
        let size = match &entry.kind {
            EntryKind::Folder => {
                make_folder(&path, entry.mode).map_err(unusable(&path))?;
                continue;
            }
            EntryKind::Link(target) => {
                symlink(target, &path).map_err(unusable(&path))?;
                continue;
            }
            EntryKind::File(size) => *size,
        };
        let mut file = new_file(&path, entry.mode).map_err(unusable(&path))?;
        let mut left = usize::try_from(size).unwrap_or(usize::MAX);
        while left > 0 {
            if used == ready.len() {
                let digest = chunks.next();
                let digest = digest.ok_or_else(|| damaged(&entry.path, "its end is missing"))?;
                ready = content::read_chunk(store, digest).await?;
                used = 0;
            }
            let count = left.min(ready.len() - used);
            file.write_all(&ready[used..used + count])
                .map_err(unusable(&path))?;
            used += count;
            left -= count;
        }
    }
    let flushed = File::open(place).and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
    flushed.map_err(unusable(place))
}

fn new_file(path: &PathBuf, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::objects::tests, *};

    #[tokio::test]
    async fn folders_come_back_with_modes_and_links_but_without_caches() {
        let store_of = tests::store(1);
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let version = from.path().join("functions/abc/0123");
        fs::create_dir_all(version.join("source/lib")).unwrap();
        fs::create_dir_all(version.join("cache")).unwrap();
        fs::create_dir_all(from.path().join("functions/abc/.new-1")).unwrap();
        let large: Vec<u8> = (0..251_u8).cycle().take(CHUNK_BYTES + 77).collect();
        fs::write(version.join("source/index.ts"), &large).unwrap();
        fs::write(version.join("source/lib/a.ts"), "a").unwrap();
        fs::write(version.join("source/empty"), "").unwrap();
        fs::write(version.join("cache/x"), "x").unwrap();
        let extensions = from.path().join("extensions/17");
        fs::create_dir_all(&extensions).unwrap();
        fs::write(extensions.join("x.so.1"), "so").unwrap();
        fs::set_permissions(extensions.join("x.so.1"), Permissions::from_mode(0o755)).unwrap();
        symlink("x.so.1", extensions.join("x.so")).unwrap();

        let mut known = HashSet::new();
        let mut writer = ChunkWriter::new(&store_of, &mut known);
        let stored = store(from.path(), &BTreeMap::new(), &mut writer)
            .await
            .unwrap();
        let names: Vec<_> = stored.keys().cloned().collect();
        assert_eq!(names, ["extensions", "functions/abc/0123"]);
        let written = writer.written;
        assert_eq!(
            store(from.path(), &stored, &mut writer).await.unwrap(),
            stored
        );
        assert_eq!(writer.written, written, "nothing changed");

        restore(to.path(), &store_of, &stored).await.unwrap();
        let back = to.path().join("functions/abc/0123");
        assert_eq!(fs::read(back.join("source/index.ts")).unwrap(), large);
        assert_eq!(fs::read(back.join("source/lib/a.ts")).unwrap(), b"a");
        assert_eq!(fs::read(back.join("source/empty")).unwrap(), b"");
        assert!(!back.join("cache").exists());
        let library = to.path().join("extensions/17/x.so");
        assert_eq!(fs::read_link(&library).unwrap(), Path::new("x.so.1"));
        assert_eq!(fs::metadata(&library).unwrap().mode() & 0o777, 0o755);
    }

    #[tokio::test]
    async fn path_outside_the_data_folder_is_rejected() {
        let store_of = tests::store(1);
        let to = tempfile::tempdir().unwrap();
        let folder = |path: &str| FolderContent {
            state: String::new(),
            entries: vec![FolderEntry {
                path: path.to_owned(),
                mode: 0o600,
                kind: EntryKind::File(0),
            }],
            chunks: Vec::new(),
        };
        for (place, path) in [
            ("../x", "a"),
            ("/x", "a"),
            ("x", "../a"),
            ("x", "/etc/a"),
            ("", "a"),
        ] {
            let folders = BTreeMap::from([(place.to_owned(), folder(path))]);
            let refused = restore(to.path(), &store_of, &folders).await;
            assert!(refused.unwrap_err().is_damage(), "{place} {path}");
        }
    }
}
