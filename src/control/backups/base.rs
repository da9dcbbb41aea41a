//! Base backups: a snapshot of the files of a cluster, in packs of the store.
//!
//! Files are split into pieces, and pieces that an earlier backup has are not stored again. Every
//! manifest names all packs that it needs, so that each backup is restored and expires by itself.

use std::{
    collections::HashMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use gantry_node::clusters::{ResourceLimits, Snapshot};
use tokio::sync::mpsc;

use super::{
    archive,
    archive_row::Archive,
    backup_events::append,
    error::BackupError,
    manifest::{FileEntry, Manifest, PIECE, PackPosition, Piece},
    schedule::BaseReason,
    state::{Backups, WatchedProject},
    store::{Digest, ProjectKey, ProjectStore},
    wal::Lsn,
};
use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::Context,
        events::payloads::{BackupFailed, BackupStarted},
    },
};

/// Size of a pack before compression, in bytes.
const PACK: usize = 8 << 20;
/// Packs that are read but not stored yet.
const PACKS_WAITING: usize = 1;
/// Maximum size of a cluster without a limit of disk space, in bytes.
const BYTES_MAX: u64 = 1 << 40;
/// Every so many backups, all data is stored again, so that old packs expire.
const FULL_EVERY: i64 = 7;

/// A base backup that is being made.
pub(super) struct BaseRequest<'a> {
    pub(super) project: &'a WatchedProject,
    pub(super) archive: &'a Archive,
    pub(super) store: &'a ProjectStore,
    pub(super) reason: BaseReason,
}

/// Makes a base backup, and returns its number. It is complete when the log up to its end is in the
/// store.
pub(super) async fn make(
    context: &ControlContext,
    backups: &Backups,
    request: &BaseRequest<'_>,
) -> Result<i64, BackupError> {
    let doing = "recording a backup";
    let sql = "insert into base_backups (project_id, archive_id, status, reason, inserted_at) values ($1, $2, 'PENDING', $3, $4) returning id";
    let params: [Param<'_>; 4] = [
        &request.project.id.0,
        &request.archive.id,
        &request.reason.name(),
        &context.clock.now(),
    ];
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let row = transaction.query_one(sql, &params).await.context(doing)?;
    let id: i64 = row.get(0);
    append(context, &transaction, request.project.id, &BackupStarted {}).await?;
    transaction.commit().await.context(doing)?;
    match copy(context, request, id).await {
        Ok(()) => Ok(id),
        Err(error) => {
            let sql = "update base_backups set status = 'FAILED', error = $2 where id = $1";
            let text = error.to_string();
            let transaction = client.transaction().await.context(doing)?;
            let recorded = transaction.execute(sql, &[&id, &text]).await;
            recorded.context(doing)?;
            let failed = BackupFailed {
                backup_id: id,
                error: text,
            };
            append(context, &transaction, request.project.id, &failed).await?;
            transaction.commit().await.context(doing)?;
            backups.metrics.failed.increment(1);
            Err(error)
        }
    }
}

async fn copy(
    context: &ControlContext,
    request: &BaseRequest<'_>,
    id: i64,
) -> Result<(), BackupError> {
    let limits = context.driver.resource_limits();
    let bytes_max = limits.map_or(BYTES_MAX, ResourceLimits::disk_stop_bytes);
    let reference = &request.project.reference;
    let snapshot = context.driver.snapshot(reference, bytes_max).await?;
    // Later than the end of the log of the copy, so that every commit before it is in the copy.
    let consistent_at = context.clock.now();
    // A restore begins another archive before the server of the new cluster starts.
    let current = archive::current(context, request.project.id).await?;
    if snapshot.system_id != request.archive.system_id
        || snapshot.timeline != request.archive.timeline
        || current.is_none_or(|current| current.id != request.archive.id)
    {
        return Err(BackupError::Refused("the cluster was replaced".to_owned()));
    }
    let previous = previous(context, request, id).await?;
    let (upload, stored) = upload(&snapshot, request.store, id, previous.as_ref()).await?;
    let manifest = Manifest {
        format: Manifest::format(),
        project: reference.to_string(),
        backup: id,
        archive: request.archive.folder(),
        system_id: snapshot.system_id,
        major: snapshot.major,
        version: snapshot.version.clone(),
        segment_bytes: request.archive.segment_bytes,
        timeline: snapshot.timeline,
        start: Lsn(snapshot.start),
        stop: Lsn(snapshot.stop),
        consistent_at,
        label: snapshot.label.clone(),
        settings: snapshot.settings.clone(),
        extensions: snapshot.extensions.clone(),
        vault_key: snapshot.vault_key.as_ref().map(hex::encode),
        files: upload.files,
        folders: upload.folders,
        packs: upload.packs,
    };
    let stored = stored + manifest.put(request.store).await?;
    let sql = "update base_backups set start_lsn = $2, stop_lsn = $3, consistent_at = $4, bytes = $5, stored_bytes = $6 where id = $1";
    let as_column = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let params: [Param<'_>; 6] = [
        &id,
        &manifest.start.to_column(),
        &manifest.stop.to_column(),
        &consistent_at,
        &as_column(manifest.bytes()),
        &as_column(stored),
    ];
    let recorded = context.db.query(sql, &params).await;
    recorded.context("recording a backup")?;
    Ok(())
}

/// Returns the earlier manifest, of which unchanged data is not stored again. Every seventh backup
/// has none.
async fn previous(
    context: &ControlContext,
    request: &BaseRequest<'_>,
    id: i64,
) -> Result<Option<Manifest>, BackupError> {
    let sql = "select max(id), count(*) from base_backups where project_id = $1 and status = 'COMPLETED' and id < $2";
    let rows = context
        .db
        .query(sql, &[&request.project.id.0, &id])
        .await
        .context("reading backups")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let (last, count): (Option<i64>, i64) = (row.get(0), row.get(1));
    let Some(last) = last.filter(|_| count % FULL_EVERY != 0) else {
        return Ok(None);
    };
    match Manifest::get(request.store, last).await {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error @ (BackupError::Missing(_) | BackupError::Damaged { .. })) => {
            tracing::warn!(backup = last, %error, "earlier backup cannot be used; storing all data again");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The stored data directory.
#[derive(Default)]
struct Upload {
    files: Vec<FileEntry>,
    folders: Vec<String>,
    packs: Vec<String>,
}

struct NewPack {
    name: String,
    content: Vec<u8>,
}

/// Stores the data of a snapshot. Returns the list of its files, and the stored bytes.
async fn upload(
    snapshot: &Snapshot,
    store: &ProjectStore,
    id: i64,
    previous: Option<&Manifest>,
) -> Result<(Upload, u64), BackupError> {
    let (sender, mut packs) = mpsc::channel::<NewPack>(PACKS_WAITING);
    let mut packer = Packer {
        prefix: format!("packs/{id:012}"),
        key: store.key.clone(),
        known: previous.map(Manifest::index).unwrap_or_default(),
        numbers: HashMap::new(),
        upload: Upload::default(),
        pack: Vec::with_capacity(PACK),
        sent: 0,
        sender,
    };
    let data = snapshot.data();
    let reader = tokio::task::spawn_blocking(move || {
        packer.add_folder(&data, "")?;
        packer.finish()
    });
    let mut stored = 0;
    while let Some(pack) = packs.recv().await {
        stored += store.put(&pack.name, pack.content).await?;
    }
    match reader.await {
        Ok(upload) => Ok((upload?, stored)),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(BackupError::ShuttingDown),
    }
}

/// Splits files into pieces, and collects new ones into packs.
struct Packer {
    prefix: String,
    key: ProjectKey,
    /// Stored pieces: name of the pack, and position.
    known: HashMap<(Digest, u32), (String, u32)>,
    /// Numbers of packs by name.
    numbers: HashMap<String, u32>,
    upload: Upload,
    pack: Vec<u8>,
    sent: u32,
    sender: mpsc::Sender<NewPack>,
}

impl Packer {
    fn add_folder(&mut self, folder: &Path, path: &str) -> Result<(), BackupError> {
        let mut entries: Vec<fs::DirEntry> = fs::read_dir(folder)
            .and_then(Iterator::collect)
            .map_err(BackupError::Files)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let below = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            if entry.file_type().map_err(BackupError::Files)?.is_dir() {
                self.upload.folders.push(below.clone());
                self.add_folder(&entry.path(), &below)?;
            } else {
                self.add_file(entry.path(), below)?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, from: PathBuf, path: String) -> Result<(), BackupError> {
        let mut file = fs::File::open(from).map_err(BackupError::Files)?;
        let mut entry = FileEntry {
            path,
            size: 0,
            pieces: Vec::new(),
        };
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            piece.clear();
            let limit = PIECE as u64;
            let read = (&mut file).take(limit).read_to_end(&mut piece);
            let read = read.map_err(BackupError::Files)?;
            if read == 0 {
                break;
            }
            entry.size += read as u64;
            let piece = self.add_piece(&piece)?;
            entry.pieces.push(piece);
        }
        self.upload.files.push(entry);
        Ok(())
    }

    fn add_piece(&mut self, data: &[u8]) -> Result<Piece, BackupError> {
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if data.iter().all(|byte| *byte == 0) {
            return Ok(Piece { data: None, size });
        }
        let digest = self.key.digest(data);
        if let Some((pack, at)) = self.known.get(&(digest, size)).cloned() {
            let pack = self.number(&pack);
            let place = PackPosition { pack, at };
            return Ok(Piece {
                data: Some((digest, place)),
                size,
            });
        }
        if self.pack.len() + data.len() > PACK {
            self.send()?;
        }
        let name = format!("{}-{:06}", self.prefix, self.sent);
        let at = u32::try_from(self.pack.len()).unwrap_or(u32::MAX);
        self.pack.extend_from_slice(data);
        let pack = self.number(&name);
        self.known.insert((digest, size), (name, at));
        let place = PackPosition { pack, at };
        Ok(Piece {
            data: Some((digest, place)),
            size,
        })
    }

    fn number(&mut self, pack: &str) -> u32 {
        if let Some(number) = self.numbers.get(pack) {
            return *number;
        }
        let number = u32::try_from(self.upload.packs.len()).unwrap_or(u32::MAX);
        self.upload.packs.push(pack.to_owned());
        self.numbers.insert(pack.to_owned(), number);
        number
    }

    fn send(&mut self) -> Result<(), BackupError> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let pack = NewPack {
            name: format!("{}-{:06}", self.prefix, self.sent),
            content: std::mem::replace(&mut self.pack, Vec::with_capacity(PACK)),
        };
        self.sent += 1;
        // Closed if storing failed; that error is reported.
        let sent = self.sender.blocking_send(pack);
        sent.map_err(|_| BackupError::ShuttingDown)
    }

    fn finish(mut self) -> Result<Upload, BackupError> {
        self.send()?;
        Ok(self.upload)
    }
}
