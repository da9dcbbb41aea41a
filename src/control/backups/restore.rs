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
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::{
        ClusterSpec, RecoveredCluster, RecoveredIdentity, RecoveryChecks, RecoveryOptions,
        RecoveryTarget, UnfinishedCluster,
    },
};

use super::{
    archive_row::{PARTIAL, segment_object},
    chain::{LogChain, history_name},
    error::BackupError,
    manifest::Manifest,
    store::{Digest, ProjectStore},
    wal::{Lsn, ScanEnd, SegmentName, WalScanner},
};
use crate::control::backups::moment::Moment;

/// Maximum number of segments of one recovery.
const SEGMENTS_MAX: usize = 100_000;

/// The result of building a cluster.
#[derive(Debug)]
pub struct Restored {
    /// The cluster, stopped.
    pub cluster: UnfinishedCluster,
    /// Number of the part of the chain in which its log ends.
    pub part: usize,
    /// Position after the last record.
    pub end: Lsn,
    /// Time of the last commit after the base backup.
    pub last_commit_at: Option<DateTime<Utc>>,
    /// Result of the checks.
    pub checks: RecoveredCluster,
}

/// How to build a cluster from a base backup.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions<'a> {
    /// The log, which begins with that of the base backup's archive.
    pub chain: &'a LogChain,
    /// The moment.
    pub moment: Moment,
    /// The checks of the cluster.
    pub checks: RecoveryChecks,
    /// The log that the new cluster writes.
    pub identity: RecoveredIdentity,
}

/// Builds a cluster in a folder of its own, from a base backup and the log after it.
///
/// Errors: [`BackupError::Gap`], [`BackupError::Damaged`], [`BackupError::Missing`] if the store
/// does not have what is needed.
pub async fn build(
    driver: &Arc<dyn ClusterDriver>,
    store: &ProjectStore,
    manifest: &Manifest,
    cluster: &ClusterSpec,
    options: BuildOptions<'_>,
) -> Result<Restored, BackupError> {
    let unfinished = prepare(driver, store, manifest, cluster).await?;
    complete(driver, store, manifest, unfinished, options).await
}

/// Completes a cluster with the files of the base backup by the log after it.
///
/// Errors: like [`build`].
pub(super) async fn complete(
    driver: &Arc<dyn ClusterDriver>,
    store: &ProjectStore,
    manifest: &Manifest,
    unfinished: UnfinishedCluster,
    options: BuildOptions<'_>,
) -> Result<Restored, BackupError> {
    let (chain, moment) = (options.chain, options.moment);
    let log = fetch_log(store, manifest, chain, moment, Some(&unfinished)).await?;
    let is_later = log.last_record > manifest.start;
    let history = chain.history(log.part);
    let target = if manifest.label.is_some() || is_later {
        RecoveryTarget::Record {
            at: log.last_record.0,
            timeline: history.as_ref().map(|(timeline, _)| *timeline),
        }
    } else {
        RecoveryTarget::AsCopied
    };
    if let Some((timeline, text)) = &history {
        let path = format!("pg_wal/{}", history_name(*timeline));
        unfinished.write_file(&path, text.as_bytes())?;
    }
    if let Some(label) = &manifest.label {
        unfinished.write_file("backup_label", label.as_bytes())?;
    }
    if let Some(key) = &manifest.vault_key
        && let Ok(key) = hex::decode(key)
    {
        unfinished.write_vault_key(&key)?;
    }
    let recovered = RecoveryOptions {
        target,
        checks: options.checks,
        identity: options.identity,
    };
    let checks = driver
        .recover(&unfinished, &manifest.settings, recovered)
        .await?;
    Ok(Restored {
        cluster: unfinished,
        part: log.part,
        end: log.end,
        last_commit_at: log.last_commit_at,
        checks,
    })
}

/// Begins a cluster with the files of a base backup.
pub(super) async fn prepare(
    driver: &Arc<dyn ClusterDriver>,
    store: &ProjectStore,
    manifest: &Manifest,
    cluster: &ClusterSpec,
) -> Result<UnfinishedCluster, BackupError> {
    let unfinished = driver.begin_cluster(cluster).await?;
    fetch_files(store, manifest, &unfinished).await?;
    Ok(unfinished)
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
    /// Number of the part of the chain with the last segment.
    pub part: usize,
    /// Segments, without zeros at their end.
    pub segments: Vec<(SegmentName, Vec<u8>)>,
}

/// Reads the log from the begin of a base backup up to the moment, and writes it into the folder of
/// a cluster, or else returns it.
///
/// Before the first segment of a part is in the store, the log ends at its fork: the begin of that
/// segment is a copy of the log of the part before.
pub async fn fetch_log(
    store: &ProjectStore,
    manifest: &Manifest,
    chain: &LogChain,
    moment: Moment,
    unfinished: Option<&UnfinishedCluster>,
) -> Result<FetchedLog, BackupError> {
    let bytes = manifest.segment_bytes;
    let available = AvailableLog::list(store, chain, bytes).await?;
    let mut log = FetchedLog {
        last_record: Lsn(0),
        end: Lsn(0),
        last_commit_at: None,
        part: 0,
        segments: Vec::new(),
    };
    let fork = chain.parts().last().map_or(Lsn(0), |part| part.fork);
    let mut scanner = WalScanner::default();
    let mut position = SegmentName::of(manifest.timeline, manifest.start, bytes).start(bytes);
    let mut is_reached = false;
    for _ in 0..SEGMENTS_MAX {
        let Some((part, segment)) = available.find(log.part, position) else {
            break;
        };
        let end = chain.end_of(part);
        if position >= end {
            break;
        }
        log.part = part;
        let content = segment.get(store).await?;
        // The server wants whole segments.
        let mut whole = content.clone();
        whole.resize(usize::try_from(bytes).unwrap_or(0), 0);
        let scanned = scanner.scan(&whole, position, &mut |record| {
            // All of the common log is earlier than a moment of the last part.
            let is_beyond = match moment {
                Moment::Time(time) => {
                    record.end > fork && record.committed_at.is_some_and(|at| at > time)
                }
                Moment::Position(end) => record.end > end,
                Moment::Latest => false,
            };
            // Before the base is consistent, nothing else can be recovered.
            if record.end > end || (is_beyond && record.start >= manifest.stop) {
                is_reached = is_beyond;
                return false;
            }
            log.last_record = record.start;
            log.end = record.end;
            log.last_commit_at = record.committed_at.or(log.last_commit_at);
            true
        });
        let name = segment.name;
        if let Some(unfinished) = unfinished {
            unfinished.write_file(&format!("pg_wal/{name}"), &whole)?;
        } else {
            log.segments.push((name, content));
        }
        if scanned != ScanEnd::Segment {
            break;
        }
        position = name.end(bytes);
    }
    let is_short = match moment {
        Moment::Position(end) => log.end < end,
        Moment::Time(_) | Moment::Latest => false,
    };
    let has_later = available.has_later(log.part, position);
    if log.end < manifest.stop || is_short || (has_later && !is_reached) {
        return Err(BackupError::Gap(available.object(log.part, position)));
    }
    Ok(log)
}

/// The segments of a chain that are in the store.
struct AvailableLog<'a> {
    chain: &'a LogChain,
    segment_bytes: u64,
    /// Names of the objects of each part.
    names: Vec<BTreeSet<String>>,
}

/// A segment in the store.
struct AvailableSegment {
    name: SegmentName,
    object: String,
    is_finished: bool,
}

impl AvailableSegment {
    async fn get(&self, store: &ProjectStore) -> Result<Vec<u8>, BackupError> {
        if self.is_finished {
            return store.get(&self.object).await;
        }
        match store.get(&format!("{}{PARTIAL}", self.object)).await {
            // Meanwhile it was finished.
            Err(BackupError::Missing(_)) => store.get(&self.object).await,
            partial => partial,
        }
    }
}

impl<'a> AvailableLog<'a> {
    async fn list(
        store: &ProjectStore,
        chain: &'a LogChain,
        segment_bytes: u64,
    ) -> Result<Self, BackupError> {
        let mut names = Vec::with_capacity(chain.parts().len());
        for part in chain.parts() {
            let listed = store.list(&format!("{}/wal", part.folder)).await?;
            names.push(listed.into_iter().map(|(name, _)| name).collect());
        }
        Ok(Self {
            chain,
            segment_bytes,
            names,
        })
    }

    /// Returns the segment at a position of the last part that has it, and the number of the part.
    /// Parts before `from` are not considered.
    fn find(&self, from: usize, position: Lsn) -> Option<(usize, AvailableSegment)> {
        let parts = self.chain.parts().iter().enumerate().rev();
        let mut parts = parts.filter(|(number, part)| *number >= from && part.begin <= position);
        parts.find_map(|(number, part)| {
            let name = SegmentName::of(part.timeline, position, self.segment_bytes);
            let is_finished = self.names[number].contains(&name.to_string());
            let is_partial = || self.names[number].contains(&format!("{name}{PARTIAL}"));
            (is_finished || is_partial()).then(|| {
                let object = segment_object(&part.folder, name);
                let segment = AvailableSegment {
                    name,
                    object,
                    is_finished,
                };
                (number, segment)
            })
        })
    }

    /// Returns whether the chain has a segment after a position, of this part or a later one.
    fn has_later(&self, from: usize, position: Lsn) -> bool {
        (from..self.names.len()).any(|number| {
            let mut names = self.names[number].iter();
            names.any(|name| {
                let name = name.strip_suffix(PARTIAL).unwrap_or(name);
                let start = name
                    .parse()
                    .map(|it: SegmentName| it.start(self.segment_bytes));
                start.is_ok_and(|start| start > position && start < self.chain.end_of(number))
            })
        })
    }

    /// Name of the object of the segment at a position.
    fn object(&self, part: usize, position: Lsn) -> String {
        let part = &self.chain.parts()[part];
        let name = SegmentName::of(part.timeline, position, self.segment_bytes);
        segment_object(&part.folder, name)
    }
}
