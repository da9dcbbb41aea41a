//! Listings of the object store, and the damaged files that they contain.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::object_store::{ObjectMeta, ObjectStore, path::Path};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use super::{
    error::StoreError,
    names::{self, StoredFile},
};

/// Maximum number of remembered damaged files. Markers of further ones are still respected.
const REMEMBERED_MAX: usize = 64 * 1024;

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
    pub(super) fn insert(&self, file: StoredFile, is_marked: bool) -> bool {
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

    pub(super) fn is_unmarked(&self, path: &Path) -> bool {
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

/// Lists the files of this package under a prefix.
pub(super) async fn list(
    objects: &dyn ObjectStore,
    under: Option<&Path>,
    known: &DamagedFiles,
) -> Result<SplitListing, StoreError> {
    let mut found = objects.list(under);
    let mut listing = Listing::default();
    while let Some(meta) = found.next().await {
        listing.add(&meta?);
    }
    Ok(listing.split(known))
}
