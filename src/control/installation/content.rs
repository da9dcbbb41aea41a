//! The documents of the store: what a snapshot and a node consist of.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    error::{Result, damaged},
    objects::InstallationStore,
};

/// Version of all documents.
pub(super) const FORMAT: u32 = 1;
/// Folder of the contents.
pub(super) const CHUNKS: &str = "chunks";
/// Folder of the snapshots.
pub(super) const SNAPSHOTS: &str = "snapshots";
/// Folder of the nodes.
pub(super) const NODES: &str = "nodes";

/// The installation, readable without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Version of the format.
    pub format: u32,
    /// Id of the control database.
    pub installation: Uuid,
    /// Fingerprint of the sealing key.
    pub key: String,
}

/// The control database at a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ControlSnapshot {
    /// Version of the format.
    pub format: u32,
    /// When its transaction began.
    pub taken_at: DateTime<Utc>,
    /// Version of Gantry.
    pub gantry: String,
    /// The node that took it.
    pub node: Uuid,
    /// Number of the last migration.
    pub schema: i32,
    /// Tables by name.
    pub tables: BTreeMap<String, TableContent>,
    /// Last values of sequences by name.
    pub sequences: BTreeMap<String, i64>,
}

/// The rows of a table, in the text format of `COPY`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableContent {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Number of rows.
    pub rows: u64,
    /// Digests of the contents in order.
    pub chunks: Vec<String>,
    /// SHA-256 of all bytes.
    pub sha256: String,
}

/// The files of a node's data folder, and the names of its programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    /// Version of the format.
    pub format: u32,
    /// Its id.
    pub node: Uuid,
    /// Host name of its machine, for messages.
    pub host: String,
    /// Folders of installed programs below the data folder, such as `engines/debian-17`.
    pub installed: Vec<String>,
    /// Folders by path below the data folder.
    pub folders: BTreeMap<String, FolderContent>,
}

/// The files of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderContent {
    /// Changes with the files.
    pub state: String,
    /// Files, folders and links in order: a folder precedes its content.
    pub entries: Vec<FolderEntry>,
    /// Digests of the contents of all files, one after the other.
    pub chunks: Vec<String>,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderEntry {
    /// Path below the folder.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// Its kind.
    pub kind: EntryKind,
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A file of this size in bytes.
    File(u64),
    /// A symbolic link with this target.
    Link(String),
}

/// Name of a snapshot, without its folder. Later ones sort behind earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// Number of recoveries before it.
    pub epoch: u64,
    /// Number in the epoch.
    pub number: u64,
    /// When it was taken, in whole seconds.
    pub taken_at: DateTime<Utc>,
}

impl SnapshotName {
    /// Name of the object.
    pub fn object(self) -> String {
        format!("{SNAPSHOTS}/{self}")
    }

    /// Parses a listed name.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let name = Self {
            epoch: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
            taken_at: DateTime::from_timestamp(parts.next()?.parse().ok()?, 0)?,
        };
        (name.to_string() == text).then_some(name)
    }

    /// Returns all snapshots of a store, oldest first.
    pub async fn all(store: &InstallationStore) -> Result<Vec<Self>> {
        let listed = store.list(SNAPSHOTS).await?;
        let mut names: Vec<Self> = listed.iter().filter_map(|name| Self::parse(name)).collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.taken_at.timestamp();
        write!(f, "{:06}-{:012}-{at:011}", self.epoch, self.number)
    }
}

impl ControlSnapshot {
    /// Reads a snapshot.
    pub async fn get(store: &InstallationStore, name: SnapshotName) -> Result<Self> {
        let object = name.object();
        let missing = || damaged(&object, "it is missing");
        let snapshot: Self = store.get_json(&object).await?.ok_or_else(missing)?;
        check_format(&object, snapshot.format)?;
        Ok(snapshot)
    }

    /// Returns whether another snapshot has the same rows.
    pub fn is_same(&self, other: &Self) -> bool {
        self.schema == other.schema
            && self.tables == other.tables
            && self.sequences == other.sequences
    }

    /// Digests of all contents.
    pub fn chunks(&self) -> impl Iterator<Item = &String> {
        self.tables.values().flat_map(|table| &table.chunks)
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.tables.values().map(|table| table.rows).sum()
    }
}

impl Node {
    /// Name of the object of a node.
    pub fn object(node: Uuid) -> String {
        format!("{NODES}/{node}")
    }

    /// Reads the files of a node. `None` if they were not stored.
    pub async fn get(store: &InstallationStore, node: Uuid) -> Result<Option<Self>> {
        let object = Self::object(node);
        let found: Option<Self> = store.get_json(&object).await?;
        if let Some(found) = &found {
            check_format(&object, found.format)?;
        }
        Ok(found)
    }

    /// Digests of all contents.
    pub fn chunks(&self) -> impl Iterator<Item = &String> {
        self.folders.values().flat_map(|folder| &folder.chunks)
    }
}

/// Rejects a document of another version.
pub(super) fn check_format(object: &str, format: u32) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    Err(super::error::InstallationError::Refused(format!(
        "{object} has format {format}, and this version of Gantry reads format {FORMAT}: use the version that wrote it"
    )))
}

/// Returns the object of a content.
pub(super) fn chunk_object(digest: &str) -> String {
    format!("{CHUNKS}/{digest}")
}

/// Reads a content, and compares it with its digest.
pub(super) async fn read_chunk(store: &InstallationStore, digest: &str) -> Result<Vec<u8>> {
    let object = chunk_object(digest);
    let content = store.get(&object).await?;
    if store.digest(&content) != digest {
        return Err(damaged(&object, "it has another content"));
    }
    Ok(content)
}

/// Snapshots that are kept in any case.
const NEWEST_KEPT: usize = 12;
/// Hours and days of which the last snapshot is kept.
const HOURS_KEPT: i64 = 24;
const DAYS_KEPT: i64 = 14;

/// Returns the snapshots that expire, of all in their order: the newest ones stay, and the last of
/// each recent hour and day.
pub(super) fn expired(all: &[SnapshotName], now: DateTime<Utc>) -> Vec<SnapshotName> {
    let mut kept_until = all.len().saturating_sub(NEWEST_KEPT);
    let mut expired = Vec::new();
    let mut later = all.get(kept_until).copied();
    while let Some(name) = kept_until.checked_sub(1).map(|index| all[index]) {
        kept_until -= 1;
        let last_of = |unit: i64, kept: i64| {
            let number = |name: SnapshotName| name.taken_at.timestamp().div_euclid(unit);
            let is_last = later.is_none_or(|later| number(later) != number(name));
            is_last && now - name.taken_at <= TimeDelta::seconds(unit * kept)
        };
        if last_of(3600, HOURS_KEPT) || last_of(86_400, DAYS_KEPT) {
            later = Some(name);
        } else {
            expired.push(name);
        }
    }
    expired
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(epoch: u64, number: u64, taken_at: DateTime<Utc>) -> SnapshotName {
        SnapshotName {
            epoch,
            number,
            taken_at,
        }
    }

    #[test]
    fn names_sort_by_epoch_then_number_and_are_parsed_exactly() {
        let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let names = [name(0, 9, at), name(0, 10, at), name(1, 1, at)];
        let texts = names.map(|name| name.to_string());
        assert!(texts.is_sorted() && names.is_sorted());
        for (name, text) in names.iter().zip(&texts) {
            assert_eq!(SnapshotName::parse(text), Some(*name));
        }
        for text in ["", "1-2", "000000-000000000009-x", "0-9-1800000000"] {
            assert_eq!(SnapshotName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn expiry_keeps_newest_and_last_of_hours_and_days() {
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let mut all = Vec::new();
        let mut now = start;
        // One every ten minutes for thirty days, expired as they come.
        for number in 0..30 * 24 * 6 {
            now = start + TimeDelta::minutes(10 * number);
            all.push(name(0, u64::try_from(number).unwrap(), now));
            let expired = expired(&all, now);
            all.retain(|name| !expired.contains(name));
        }
        let newest = &all[all.len() - NEWEST_KEPT..];
        assert_eq!(newest[0].taken_at, now - TimeDelta::minutes(110));
        let hours = all
            .iter()
            .filter(|name| now - name.taken_at < TimeDelta::hours(20));
        assert!((19..=19 + NEWEST_KEPT).contains(&hours.count()), "{all:?}");
        let oldest = now - all[0].taken_at;
        assert!((13..=15).contains(&oldest.num_days()), "{oldest}");
        assert!(all.len() < 60, "{}", all.len());
        assert_eq!(expired(&all[..3], now), []);
    }
}
