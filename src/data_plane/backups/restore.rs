//! Building a cluster from a base backup and the write-ahead log after it.
//!
//! The end of the recovery is decided here, before the server starts: the log is read up to the
//! first commit after the target time, and the server is told to stop after the record before it.
//! A server that looked for a time itself would wait for ever if no commit followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::FileExt,
    sync::Arc,
};

use chrono::{DateTime, Utc};

use super::{
    BackupError,
    archive::{PARTIAL, segment_object},
    manifest::Manifest,
    store::{Digest, ProjectStore},
    wal::{Lsn, ScanEnd, SegmentName, WalScanner},
};
use crate::data_plane::{
    cluster_driver::ClusterDriver,
    clusters::{ClusterSpec, RecoveredCluster, RecoveryChecks, RecoveryTarget, UnfinishedCluster},
};

/// Maximum number of segments of one recovery.
const SEGMENTS_MAX: usize = 100_000;

/// The moment to recover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// All commits up to this time.
    Time(DateTime<Utc>),
    /// All records that end at or before this position.
    Position(Lsn),
    /// Everything in the store.
    Latest,
}

/// The result of building a cluster.
#[derive(Debug)]
pub struct Restored {
    /// The cluster, stopped, with a system identifier of its own.
    pub cluster: UnfinishedCluster,
    /// Position after the last record.
    pub end: Lsn,
    /// Time of the last commit after the base backup.
    pub last_commit_at: Option<DateTime<Utc>>,
    /// Result of the checks.
    pub checks: RecoveredCluster,
}

/// Builds a cluster in a folder of its own, from a base backup and the log of its archive.
///
/// Errors: [`BackupError::Gap`], [`BackupError::Damaged`], [`BackupError::Missing`] if the store
/// does not have what is needed.
pub async fn build(
    driver: &Arc<dyn ClusterDriver>,
    store: &ProjectStore,
    manifest: &Manifest,
    moment: Moment,
    cluster: &ClusterSpec,
    checks: RecoveryChecks,
) -> Result<Restored, BackupError> {
    let unfinished = driver.begin_cluster(cluster).await?;
    fetch_files(store, manifest, &unfinished).await?;
    let log = fetch_log(store, manifest, moment, Some(&unfinished)).await?;
    let is_later = log.last_record > manifest.start;
    let target = if manifest.label.is_some() || is_later {
        RecoveryTarget::Record(log.last_record.0)
    } else {
        RecoveryTarget::AsCopied
    };
    if let Some(label) = &manifest.label {
        unfinished.write_file("backup_label", label.as_bytes())?;
    }
    if let Some(key) = &manifest.vault_key
        && let Ok(key) = hex::decode(key)
    {
        unfinished.write_vault_key(&key)?;
    }
    let checks = driver
        .recover(&unfinished, target, &manifest.settings, checks)
        .await?;
    Ok(Restored {
        cluster: unfinished,
        end: log.end,
        last_commit_at: log.last_commit_at,
        checks,
    })
}

/// A piece of a file that lies in a pack.
struct PackedPiece {
    file: usize,
    at: u64,
    size: u32,
    digest: Digest,
    position: u32,
}

/// Writes the data directory of a base backup.
async fn fetch_files(
    store: &ProjectStore,
    manifest: &Manifest,
    unfinished: &UnfinishedCluster,
) -> Result<(), BackupError> {
    for folder in &manifest.folders {
        unfinished.create_folder(folder)?;
    }
    let mut files: Vec<Arc<File>> = Vec::with_capacity(manifest.files.len());
    let mut packs: BTreeMap<u32, Vec<PackedPiece>> = BTreeMap::new();
    for (number, entry) in manifest.files.iter().enumerate() {
        let file = unfinished.create_file(&entry.path)?;
        file.set_len(entry.size).map_err(BackupError::Files)?;
        files.push(Arc::new(file));
        let mut at = 0;
        for piece in &entry.pieces {
            if let Some((digest, place)) = piece.data {
                packs.entry(place.pack).or_default().push(PackedPiece {
                    file: number,
                    at,
                    size: piece.size,
                    digest,
                    position: place.at,
                });
            }
            at += u64::from(piece.size);
        }
    }
    for (pack, wanted) in packs {
        let name = &manifest.packs[pack as usize];
        let content = store.get(name).await?;
        for piece in wanted {
            let start = piece.position as usize;
            let data = content
                .get(start..start + piece.size as usize)
                .filter(|data| store.key.digest(data) == piece.digest);
            let data = data.ok_or_else(|| BackupError::Damaged {
                object: name.clone(),
                problem: "a piece has another content".to_owned(),
            })?;
            files[piece.file]
                .write_all_at(data, piece.at)
                .map_err(BackupError::Files)?;
        }
    }
    Ok(())
}

/// The log of a recovery.
#[derive(Debug)]
pub struct FetchedLog {
    /// Position of the last record of the recovery.
    pub last_record: Lsn,
    /// Position after it.
    pub end: Lsn,
    /// Time of the last commit.
    pub last_commit_at: Option<DateTime<Utc>>,
    /// Segments, without zeros at their end.
    pub segments: Vec<(SegmentName, Vec<u8>)>,
}

/// Reads the log from the begin of a base backup up to the moment, and writes it into the folder of
/// a cluster, or else returns it.
pub async fn fetch_log(
    store: &ProjectStore,
    manifest: &Manifest,
    moment: Moment,
    unfinished: Option<&UnfinishedCluster>,
) -> Result<FetchedLog, BackupError> {
    let folder = &manifest.archive;
    let bytes = manifest.segment_bytes;
    let listed = store.list(&format!("{folder}/wal")).await?;
    let available: BTreeSet<String> = listed.into_iter().map(|(name, _)| name).collect();
    let mut log = FetchedLog {
        last_record: Lsn(0),
        end: Lsn(0),
        last_commit_at: None,
        segments: Vec::new(),
    };
    let mut scanner = WalScanner::default();
    let mut name = SegmentName::of(manifest.timeline, manifest.start, bytes);
    let mut is_reached = false;
    for _ in 0..SEGMENTS_MAX {
        let object = segment_object(folder, name);
        let content = if available.contains(&name.to_string()) {
            store.get(&object).await?
        } else if available.contains(&format!("{name}{PARTIAL}")) {
            match store.get(&format!("{object}{PARTIAL}")).await {
                // Meanwhile it was finished.
                Err(BackupError::Missing(_)) => store.get(&object).await?,
                partial => partial?,
            }
        } else {
            break;
        };
        // The server wants whole segments.
        let mut whole = content.clone();
        whole.resize(usize::try_from(bytes).unwrap_or(0), 0);
        let scanned = scanner.scan(&whole, name.start(bytes), &mut |record| {
            let is_beyond = match moment {
                Moment::Time(time) => record.committed_at.is_some_and(|at| at > time),
                Moment::Position(end) => record.end > end,
                Moment::Latest => false,
            };
            // Before the base is consistent, nothing else can be recovered.
            if is_beyond && record.start >= manifest.stop {
                return false;
            }
            log.last_record = record.start;
            log.end = record.end;
            log.last_commit_at = record.committed_at.or(log.last_commit_at);
            true
        });
        if let Some(unfinished) = unfinished {
            unfinished.write_file(&format!("pg_wal/{name}"), &whole)?;
        } else {
            log.segments.push((name, content));
        }
        is_reached = scanned == ScanEnd::Stopped;
        if scanned != ScanEnd::Segment {
            break;
        }
        name = name.next(bytes);
    }
    let has_later = available
        .iter()
        .filter_map(|it| it.strip_suffix(PARTIAL).unwrap_or(it).parse().ok())
        .any(|it: SegmentName| it > name);
    let is_short = match moment {
        Moment::Position(end) => log.end < end,
        Moment::Time(_) | Moment::Latest => false,
    };
    if log.end < manifest.stop || is_short || (has_later && !is_reached) {
        return Err(BackupError::Gap(segment_object(folder, name)));
    }
    Ok(log)
}
