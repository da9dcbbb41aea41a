//! Damaged and missing files. A file that does not match its checksums is set aside: a marker
//! object beside it excludes it from queries and merges on all nodes until it is repaired or
//! expires.

use std::collections::BTreeSet;

use bytes::Bytes;
use datafusion::object_store::{self, ObjectStore, ObjectStoreExt as _, path::Path};

use super::{
    checksums::{self, Damage},
    error::{StoreError, is_disk_failure},
    files,
    listing::{self, SplitListing},
    names::{self, StoredFile},
    state::{Store, StoreState},
};

/// Maximum number of missing files that one listing reports. The next one reports further ones.
const MISSING_MAX: usize = 64;

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
        listing::list(&*self.objects, under, &self.damaged).await
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
