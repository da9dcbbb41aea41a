//! A backup as a `tar` of a data directory from which plain PostgreSQL starts.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::{sync::mpsc, time::timeout};

use super::{
    archive,
    chain::LogChain,
    error::BackupError,
    manifest::{FileEntry, Manifest},
    moment::Moment,
    restore,
    store::ProjectStore,
};
use crate::control::context::ControlContext;

/// Packs that are kept while files are read.
const PACKS_CACHED: usize = 4;
/// Size of a block of the format, in bytes.
const BLOCK: usize = 512;

/// Configuration of the exported cluster: reachable only by the account that owns the folder.
const CONFIGURATION: &str = "\
# A backup of a project. Start it with: postgres -D <this folder>
# Then connect over the socket in it: psql -h <this folder> -U supabase_admin postgres
listen_addresses = ''
unix_socket_directories = '.'
unix_socket_permissions = 0700
wal_level = logical
";
/// The folder is accessible only to its owner, and so is the socket in it.
const ACCESS: &str = "local all all trust\n";

/// A complete backup to export.
#[derive(Debug)]
pub struct ExportedBackup {
    manifest: Manifest,
    store: ProjectStore,
}

impl ExportedBackup {
    /// Opens a backup of a project.
    pub async fn open(
        context: &ControlContext,
        id: ProjectId,
        project: &ProjectRef,
        backup: i64,
    ) -> Result<Self, BackupError> {
        let store = archive::store_of(context, &context.backups, id, project).await?;
        let manifest = Manifest::get(&store, backup).await?;
        Ok(Self { manifest, store })
    }
}

/// Where the parts of an archive go.
pub type Parts = mpsc::Sender<Result<Bytes, BackupError>>;

/// Writes the archive. Fails if its reader takes nothing for as long as `patience`.
pub async fn write(
    exported: &ExportedBackup,
    parts: &Parts,
    patience: Duration,
) -> Result<(), BackupError> {
    let manifest = &exported.manifest;
    let out = Out { parts, patience };
    out.folder("").await?;
    for folder in &manifest.folders {
        out.folder(folder).await?;
    }
    let mut configuration = CONFIGURATION.to_owned();
    for (name, value) in &manifest.settings {
        let value = value.replace('\'', "''");
        configuration.extend([name, " = '", &value, "'\n"]);
    }
    out.file("postgresql.conf", configuration.as_bytes())
        .await?;
    out.file("pg_hba.conf", ACCESS.as_bytes()).await?;
    out.file("pg_ident.conf", b"").await?;
    if let Some(label) = &manifest.label {
        out.file("backup_label", label.as_bytes()).await?;
    }
    let mut packs = PackCache::default();
    for file in &manifest.files {
        write_file(exported, &out, file, &mut packs).await?;
    }
    let moment = Moment::Position(manifest.stop);
    let chain = LogChain::own(manifest);
    let log = restore::fetch_log(&exported.store, manifest, &chain, moment, None).await?;
    let bytes = usize::try_from(manifest.segment_bytes).unwrap_or(0);
    for (name, mut content) in log.segments {
        content.resize(bytes, 0);
        out.file(&format!("pg_wal/{name}"), &content).await?;
    }
    out.send(vec![0; 2 * BLOCK]).await
}

#[derive(Default)]
struct PackCache {
    packs: BTreeMap<u32, Vec<u8>>,
    order: Vec<u32>,
}

async fn write_file(
    exported: &ExportedBackup,
    out: &Out<'_>,
    file: &FileEntry,
    cache: &mut PackCache,
) -> Result<(), BackupError> {
    out.header(&file.path, file.size, tar::EntryType::Regular)
        .await?;
    for piece in &file.pieces {
        let size = piece.size as usize;
        let Some((digest, place)) = piece.data else {
            out.send(vec![0; size]).await?;
            continue;
        };
        let name = &exported.manifest.packs[place.pack as usize];
        if !cache.packs.contains_key(&place.pack) {
            if cache.order.len() >= PACKS_CACHED {
                let oldest = cache.order.remove(0);
                cache.packs.remove(&oldest);
            }
            let content = exported.store.get(name).await?;
            cache.packs.insert(place.pack, content);
            cache.order.push(place.pack);
        }
        let at = place.at as usize;
        let data = cache
            .packs
            .get(&place.pack)
            .and_then(|it| it.get(at..at + size));
        let data = data.filter(|data| exported.store.key.digest(data) == digest);
        let data = data.ok_or_else(|| BackupError::Damaged {
            object: name.clone(),
            problem: "a piece has another content".to_owned(),
        })?;
        out.send(data.to_vec()).await?;
    }
    out.pad(file.size).await
}

/// The writer of an archive.
struct Out<'a> {
    parts: &'a Parts,
    patience: Duration,
}

impl Out<'_> {
    async fn send(&self, part: Vec<u8>) -> Result<(), BackupError> {
        if part.is_empty() {
            return Ok(());
        }
        let sent = timeout(self.patience, self.parts.send(Ok(part.into()))).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            // The client is gone, or reads nothing.
            Ok(Err(_)) | Err(_) => Err(BackupError::ShuttingDown),
        }
    }

    async fn header(&self, path: &str, size: u64, kind: tar::EntryType) -> Result<(), BackupError> {
        let mut header = tar::Header::new_ustar();
        header
            .set_path(format!("data/{path}"))
            .map_err(BackupError::Files)?;
        header.set_entry_type(kind);
        header.set_size(size);
        let is_folder = kind == tar::EntryType::Directory;
        header.set_mode(if is_folder { 0o700 } else { 0o600 });
        header.set_cksum();
        self.send(header.as_bytes().to_vec()).await
    }

    async fn folder(&self, path: &str) -> Result<(), BackupError> {
        self.header(path, 0, tar::EntryType::Directory).await
    }

    async fn file(&self, path: &str, content: &[u8]) -> Result<(), BackupError> {
        let size = content.len() as u64;
        self.header(path, size, tar::EntryType::Regular).await?;
        self.send(content.to_vec()).await?;
        self.pad(size).await
    }

    async fn pad(&self, size: u64) -> Result<(), BackupError> {
        let rest = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        self.send(vec![0; (BLOCK - rest) % BLOCK]).await
    }
}
