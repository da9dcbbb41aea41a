//! Damaged and missing files. A file that does not match its checksums is set aside: a marker
//! object beside it excludes it from queries and merges on all nodes until it is repaired or
//! expires.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use datafusion::object_store::{self, ObjectMeta, ObjectStore, ObjectStoreExt as _, path::Path};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use super::{
    Store, StoreError, StoreState, checksums,
    checksums::Damage,
    files,
    names::{self, StoredFile},
    verified::is_disk_failure,
};

/// Maximum number of remembered damaged files. Markers of further ones are still respected.
const REMEMBERED_MAX: usize = 64 * 1024;
/// Maximum number of missing files that one listing reports. The next one reports further ones.
const MISSING_MAX: usize = 64;

/// The damaged files that this process knows.
#[derive(Debug, Default)]
pub(super) struct DamagedFiles(Mutex<BTreeMap<Path, DamagedFile>>);

#[derive(Debug, Clone)]
struct DamagedFile {
    file: StoredFile,
    /// Whether the marker exists.
    is_marked: bool,
}

impl DamagedFiles {
    /// Returns the number of known damaged files.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().len() as u64
    }

    /// Adds a file. Returns whether it is new.
    fn insert(&self, file: StoredFile, is_marked: bool) -> bool {
        let mut files = self.0.lock();
        let is_new = !files.contains_key(&file.path);
        if files.len() < REMEMBERED_MAX || !is_new {
            files.insert(file.path.clone(), DamagedFile { file, is_marked });
        }
        is_new
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.0.lock().contains_key(path)
    }

    pub(super) fn remove(&self, path: &Path) {
        self.0.lock().remove(path);
    }

    /// Replaces the marked files by those of a complete listing.
    pub(super) fn replace_marked(&self, marked: Vec<StoredFile>) {
        self.0.lock().retain(|_, known| !known.is_marked);
        for file in marked {
            self.insert(file, true);
        }
    }

    fn is_unmarked(&self, path: &Path) -> bool {
        self.0
            .lock()
            .get(path)
            .is_some_and(|known| !known.is_marked)
    }

    /// Whether a damaged file was merged from this file, so that its lines exist only here.
    pub(super) fn contains_range_of(&self, path: &Path) -> bool {
        let Some(part) = StoredFile::parse(path, 0) else {
            return false;
        };
        self.0.lock().values().any(|known| {
            let whole = &known.file;
            whole.path != part.path
                && whole.path.parts().take(2).eq(part.path.parts().take(2))
                && whole.name.contains_range_of(&part.name)
        })
    }
}

/// The files and markers of a listing.
#[derive(Debug, Default)]
pub(super) struct Listing {
    files: Vec<StoredFile>,
    markers: BTreeSet<Path>,
    /// Files that a marker reports as missing.
    missing: BTreeSet<Path>,
}

/// A listing, separated by markers.
#[derive(Debug, Default)]
pub(super) struct SplitListing {
    pub(super) files: Vec<StoredFile>,
    /// Damaged and missing files.
    pub(super) damaged: Vec<StoredFile>,
    /// Markers of files that no longer exist, or exist again.
    pub(super) orphans: Vec<Path>,
}

impl Listing {
    /// Adds an object. Objects of other programs are ignored.
    pub(super) fn add(&mut self, meta: &ObjectMeta) {
        if let Some(file) = StoredFile::parse(&meta.location, meta.size) {
            self.files.push(file);
        } else if names::marked_file(&meta.location).is_some() {
            self.markers.insert(meta.location.clone());
        } else if let Some(path) = names::missing_file(&meta.location) {
            self.missing.insert(path);
        }
    }

    pub(super) fn split(self, known: &DamagedFiles) -> SplitListing {
        let Self {
            files,
            mut markers,
            mut missing,
        } = self;
        let mut split = SplitListing::default();
        for file in files {
            if missing.remove(&file.path) {
                split.orphans.push(names::missing_marker(&file.path));
            }
            let is_marked = markers.remove(&names::damage_marker(&file.path));
            if is_marked || known.is_unmarked(&file.path) {
                split.damaged.push(file);
            } else {
                split.files.push(file);
            }
        }
        split.orphans.extend(markers);
        let missing = missing.iter().filter_map(|path| StoredFile::parse(path, 0));
        split.damaged.extend(missing);
        split
    }
}

/// Removes the markers of a file.
pub(super) async fn remove_markers(
    objects: &dyn ObjectStore,
    path: &Path,
) -> Result<(), StoreError> {
    for marker in [names::damage_marker(path), names::missing_marker(path)] {
        match objects.delete(&marker).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads and verifies a complete file. A file without checksums is decoded instead.
pub(super) async fn read_file(
    objects: &dyn ObjectStore,
    path: &Path,
) -> Result<Result<Bytes, Damage>, StoreError> {
    let read = match objects.get(path).await {
        Ok(object) => object.bytes().await,
        Err(error) => Err(error),
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if is_disk_failure(&error) => return Ok(Err(Damage::Unreadable)),
        Err(error) => return Err(error.into()),
    };
    let verify = move || match checksums::verify_file(&bytes) {
        Ok(true) => Ok(bytes),
        Ok(false) => match files::decode(bytes.clone()) {
            Ok(()) => Ok(bytes),
            Err(_) => Err(Damage::Format),
        },
        Err(damage) => Err(damage),
    };
    // A decoder that panics found damage too.
    let verified = tokio::task::spawn_blocking(verify).await;
    Ok(verified.unwrap_or(Err(Damage::Format)))
}

impl StoreState {
    /// Lists the files of this package under a prefix.
    pub(super) async fn list(&self, under: Option<&Path>) -> Result<SplitListing, StoreError> {
        let mut found = self.objects.list(under);
        let mut listing = Listing::default();
        while let Some(meta) = found.next().await {
            listing.add(&meta?);
        }
        Ok(listing.split(&self.damaged))
    }

    /// Reads and verifies a complete file.
    pub(super) async fn read_file(&self, path: &Path) -> Result<Result<Bytes, Damage>, StoreError> {
        read_file(&*self.objects, path).await
    }

    /// Excludes a damaged file from queries and merges, and logs it.
    pub(super) async fn set_aside(&self, path: &Path, damage: Damage) {
        let Some(file) = StoredFile::parse(path, 0) else {
            return;
        };
        self.checksums.remove(path);
        let text = format!("{damage}\n");
        let marker = match damage {
            Damage::Missing => names::missing_marker(path),
            _ => names::damage_marker(path),
        };
        let marked = self.objects.put(&marker, text.into()).await;
        if let Err(error) = &marked {
            tracing::warn!(file = %path, %error, "damaged log file cannot be marked; it is left out until the next start");
        }
        let rows = file.name.rows;
        if self.damaged.insert(file, marked.is_ok()) {
            tracing::error!(file = %path, rows, error = %damage, "log file is damaged or missing; its lines are left out of answers");
        }
    }

    /// Adds known files that a listing of their folder lacks to its damaged files. `known` are the
    /// files that were known before the listing.
    pub(super) async fn add_missing(
        &self,
        known: Vec<Path>,
        listing: &mut SplitListing,
    ) -> Result<(), StoreError> {
        let first_unflushed = self.index().first_unflushed();
        let listed = listing.files.iter().chain(&listing.damaged);
        let listed: BTreeSet<Path> = listed.map(|file| file.path.clone()).collect();
        let mut absent: Vec<StoredFile> = Vec::new();
        for path in known.iter().filter(|path| !listed.contains(*path)) {
            let Some(file) = StoredFile::parse(path, 0) else {
                continue;
            };
            let is_merged = |other: &StoredFile| other.name.contains_range_of(&file.name);
            let is_unflushed = file.name.last >= first_unflushed;
            if !is_unflushed && !listing.files.iter().any(is_merged) && absent.len() < MISSING_MAX {
                absent.push(file);
            }
        }
        for file in absent {
            // A merge or the retention may have removed it since, or a flush added it again.
            let exists = match self.objects.head(&file.path).await {
                Ok(_) => true,
                Err(object_store::Error::NotFound { .. }) => false,
                Err(error) => return Err(error.into()),
            };
            if exists || !self.known.contains(&file.path) {
                continue;
            }
            self.set_aside(&file.path, Damage::Missing).await;
            // From now on, the marker reports it.
            if !self.damaged.is_unmarked(&file.path) {
                self.known.remove(&file.path);
            }
            listing.damaged.push(file);
        }
        Ok(())
    }

    /// Ends the exclusion of a file after its content was replaced.
    pub(super) async fn clear_damage(&self, path: &Path) -> Result<(), StoreError> {
        self.checksums.remove(path);
        remove_markers(&*self.objects, path).await?;
        self.damaged.remove(path);
        Ok(())
    }
}

impl Store {
    /// Verifies files that a reader failed to read and sets damaged ones aside. Returns whether
    /// there were any. Files that no longer exist are ignored.
    pub(crate) async fn examine(&self, paths: &BTreeSet<Path>) -> Result<bool, StoreError> {
        let mut found = false;
        for path in paths {
            match self.shared.read_file(path).await {
                Ok(Ok(_)) => {
                    self.shared.checksums.remove(path);
                    tracing::warn!(file = %path, "log file was read with errors once; a second read succeeded");
                }
                Ok(Err(damage)) => {
                    self.shared.set_aside(path, damage).await;
                    found = true;
                }
                Err(StoreError::Objects(object_store::Error::NotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
