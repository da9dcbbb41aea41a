//! The description of a base backup: everything that a restore needs besides the objects that it
//! names. It is stored with them, so that an empty machine can recover.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{
    error::BackupError,
    store::{CONTENT_BYTES_MAX, Digest, ProjectStore},
    wal::Lsn,
};

/// Version of the format.
const FORMAT: u32 = 1;

/// Size of the pieces in which data is compared with earlier backups, in bytes.
pub(super) const PIECE: usize = 64 << 10;

/// A base backup.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// The project.
    pub project: String,
    /// Number of the backup in the control database that made it.
    pub backup: i64,
    /// Folder of the write-ahead log that follows.
    pub archive: String,
    /// System identifier of the cluster.
    pub system_id: u64,
    /// Major version of PostgreSQL, and the version as text.
    pub major: u16,
    /// Version of PostgreSQL, such as `15.18`.
    pub version: String,
    /// Size of a segment of the log, in bytes.
    pub segment_bytes: u64,
    /// Timeline.
    pub timeline: u32,
    /// Position from which the log is replayed.
    pub start: Lsn,
    /// Position from which the cluster is consistent.
    pub stop: Lsn,
    /// Time of that position.
    pub consistent_at: DateTime<Utc>,
    /// Content of `backup_label`; `None` for a cluster that was stopped.
    pub label: Option<String>,
    /// Settings that the server needs for its recovery.
    pub settings: BTreeMap<String, String>,
    /// Extensions of all databases, with their versions.
    pub extensions: BTreeMap<String, String>,
    /// Key of the vault, in hexadecimal digits. The manifest is encrypted.
    pub vault_key: Option<String>,
    /// Files by path below the data directory.
    pub files: Vec<FileEntry>,
    /// Folders below the data directory, parents first.
    pub folders: Vec<String>,
    /// Objects with the data.
    pub packs: Vec<String>,
}

/// A file of the data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the data directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Pieces in order. A piece without data has no pack.
    pub pieces: Vec<Piece>,
}

/// A part of a file, at most `PIECE` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredPiece", into = "StoredPiece")]
pub struct Piece {
    /// Digest of the data. `None`: zeros.
    pub data: Option<(Digest, PackPosition)>,
    /// Size in bytes.
    pub size: u32,
}

/// Place of a piece in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackPosition {
    /// Number of the pack in [`Manifest::packs`].
    pub pack: u32,
    /// Position in the pack, in bytes.
    pub at: u32,
}

/// Size, then for data: pack, position, digest.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredPiece {
    Zeros(u32),
    Data(u32, u32, u32, String),
}

impl From<Piece> for StoredPiece {
    fn from(piece: Piece) -> Self {
        match piece.data {
            None => Self::Zeros(piece.size),
            Some((Digest(digest), place)) => {
                Self::Data(piece.size, place.pack, place.at, hex::encode(digest))
            }
        }
    }
}

impl From<StoredPiece> for Piece {
    fn from(stored: StoredPiece) -> Self {
        match stored {
            StoredPiece::Zeros(size) => Self { data: None, size },
            StoredPiece::Data(size, pack, at, digest) => {
                let mut bytes = [0; 16];
                // A wrong digest matches no data, so that the piece counts as damaged.
                let _ = hex::decode_to_slice(&digest, &mut bytes);
                Self {
                    data: Some((Digest(bytes), PackPosition { pack, at })),
                    size,
                }
            }
        }
    }
}

impl Manifest {
    /// Name of the manifest of a backup.
    pub fn name(backup: i64) -> String {
        format!("bases/{backup:012}.manifest")
    }

    /// Stores the manifest, and reads it back.
    pub async fn put(&self, store: &ProjectStore) -> Result<u64, BackupError> {
        let name = Self::name(self.backup);
        let text = serde_json::to_vec(self).map_err(|error| BackupError::Damaged {
            object: name.clone(),
            problem: error.to_string(),
        })?;
        if text.len() > CONTENT_BYTES_MAX {
            return Err(BackupError::Damaged {
                object: name,
                problem: "the cluster has too many files".to_owned(),
            });
        }
        let size = store.put(&name, text).await?;
        Self::get(store, self.backup).await?;
        Ok(size)
    }

    /// Reads the manifest of a backup.
    pub async fn get(store: &ProjectStore, backup: i64) -> Result<Self, BackupError> {
        let name = Self::name(backup);
        let text = store.get(&name).await?;
        let damaged = |problem: String| BackupError::Damaged {
            object: name.clone(),
            problem,
        };
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            return Err(damaged(format!("it has format {format}, not {FORMAT}")));
        }
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// The current version of the format.
    pub const fn format() -> u32 {
        FORMAT
    }

    /// Checks that paths stay below the data directory, and that pieces lie in packs.
    fn check(&self) -> Result<(), String> {
        let paths = self.files.iter().map(|file| &file.path);
        for path in paths.chain(&self.folders) {
            let parts = || path.split('/');
            if parts().any(|part| part.is_empty() || part == "." || part == "..") {
                return Err(format!("the path {path:?} leaves the data directory"));
            }
        }
        let packs = self.packs.len();
        for file in &self.files {
            let total: u64 = file.pieces.iter().map(|piece| u64::from(piece.size)).sum();
            let in_packs = |piece: &Piece| {
                let place = piece.data.map(|(_, place)| place.pack as usize);
                place.is_none_or(|pack| pack < packs) && piece.size as usize <= PIECE
            };
            if total != file.size || !file.pieces.iter().all(in_packs) {
                return Err(format!("the file {} is not complete", file.path));
            }
        }
        Ok(())
    }

    /// Returns the places of all pieces by digest, and size.
    pub(super) fn index(&self) -> HashMap<(Digest, u32), (String, u32)> {
        let mut index = HashMap::new();
        for piece in self.files.iter().flat_map(|file| &file.pieces) {
            if let Some((digest, place)) = piece.data
                && let Some(pack) = self.packs.get(place.pack as usize)
            {
                index.insert((digest, piece.size), (pack.clone(), place.at));
            }
        }
        index
    }

    /// Returns the packs that are in use.
    pub(super) fn used_packs(&self) -> BTreeSet<&str> {
        self.packs.iter().map(String::as_str).collect()
    }

    /// Size of the data directory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(path: &str, pieces: Vec<Piece>) -> Manifest {
        Manifest {
            format: FORMAT,
            project: "p".to_owned(),
            backup: 1,
            archive: "a".to_owned(),
            system_id: u64::MAX,
            major: 15,
            version: "15.18".to_owned(),
            segment_bytes: 1 << 20,
            timeline: 1,
            start: Lsn(1),
            stop: Lsn(2),
            consistent_at: DateTime::UNIX_EPOCH,
            label: None,
            settings: BTreeMap::new(),
            extensions: BTreeMap::new(),
            vault_key: None,
            files: vec![FileEntry {
                path: path.to_owned(),
                size: 30,
                pieces,
            }],
            folders: vec!["base/1".to_owned()],
            packs: vec!["packs/a".to_owned()],
        }
    }

    fn piece(size: u32, pack: u32) -> Piece {
        let place = PackPosition { pack, at: 7 };
        Piece {
            data: Some((Digest([9; 16]), place)),
            size,
        }
    }

    const ZEROS: Piece = Piece {
        data: None,
        size: 20,
    };

    #[test]
    fn manifest_round_trips_as_json() {
        let manifest = manifest("base/1/2", vec![ZEROS, piece(10, 0)]);
        let text = serde_json::to_string(&manifest).unwrap();
        let read: Manifest = serde_json::from_str(&text).unwrap();
        assert_eq!(read.files, manifest.files);
        assert_eq!(read.system_id, u64::MAX);
        assert_eq!(read.check(), Ok(()));
        let index = read.index();
        assert_eq!(
            index[&(Digest([9; 16]), 10)],
            ("packs/a".to_owned(), 7),
            "{index:?}"
        );
    }

    #[test]
    fn manifest_that_leaves_the_folder_or_is_incomplete_is_rejected() {
        for (path, pieces) in [
            ("../x", vec![ZEROS, piece(10, 0)]),
            ("/etc/passwd", vec![ZEROS, piece(10, 0)]),
            ("base/./x", vec![ZEROS, piece(10, 0)]),
            ("base/1/2", vec![ZEROS]),
            ("base/1/2", vec![ZEROS, piece(10, 1)]),
        ] {
            assert!(manifest(path, pieces).check().is_err(), "{path}");
        }
    }
}
