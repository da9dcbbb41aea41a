//! Consistent copies of a cluster's files for backups, without its write-ahead log.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_base::ids::ProjectRef;

use crate::{
    background::blocking,
    clusters::{
        identity::ControlState,
        local_driver::LocalDriver,
        online_copy::{
            backup::{Backup, BackupEnd, CancelOnDrop, SPEED_MAX, one, sql_error, start_of, value},
            copier::{Copier, CopyControl},
            progress::CopyProgress,
        },
        server::process::Server,
        superuser, vault_key,
    },
    error::{ClusterError, Result},
    files,
    supervisor::ProcessOwner,
};

/// Size of the header of a WAL record: a record at a position ends at least this much later.
const RECORD_HEADER: u64 = 24;
/// Maximum size of the vault's key, in bytes.
const VAULT_KEY_BYTES_MAX: u64 = 1024;

/// A copy of a data directory that is consistent after its write-ahead log from `start` to `stop`
/// was replayed. Removed on drop.
#[derive(Debug)]
pub struct Snapshot {
    place: PathBuf,
    /// System identifier.
    pub system_id: u64,
    /// Timeline of both positions.
    pub timeline: u32,
    /// Position from which the log is replayed.
    pub start: u64,
    /// Position from which the copy is consistent.
    pub stop: u64,
    /// Content of `backup_label`. `None` if the server was stopped.
    pub label: Option<String>,
    /// Major version of PostgreSQL.
    pub major: u16,
    /// Version of PostgreSQL as text.
    pub version: String,
    /// Settings that a server needs to recover prepared transactions.
    pub settings: BTreeMap<String, String>,
    /// Extensions in database `postgres`, with their versions. Empty if the server was stopped.
    pub extensions: BTreeMap<String, String>,
    /// Key of the vault.
    pub vault_key: Option<Vec<u8>>,
}

impl Snapshot {
    /// The copied data directory.
    pub fn data(&self) -> PathBuf {
        self.place.join("data")
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let place = self.place.clone();
        // In the background: it may have thousands of files. The next start removes what is left.
        std::thread::spawn(move || {
            if let Err(error) = files::remove_tree(&place) {
                tracing::warn!(%error, "snapshot could not be removed");
            }
        });
    }
}

impl LocalDriver {
    /// Copies the files of a cluster, running or cleanly stopped. A stopped one must not be started
    /// meanwhile.
    ///
    /// Errors: [`ClusterError::Copy`] if other clusters are being copied, if the cluster has files
    /// that PostgreSQL does not make, or if it does not fit.
    pub async fn snapshot(&self, project: &ProjectRef, bytes_max: u64) -> Result<Snapshot> {
        let _permit = self.copy_permit()?;
        let source = self.existing(project)?;
        let place = self.home().tmp().join(self.copy_name());
        let folder = place.clone();
        blocking(move || files::make_dir(&folder, 0o700)).await?;
        let mut snapshot = Snapshot {
            place,
            system_id: 0,
            timeline: 0,
            start: 0,
            stop: 0,
            label: None,
            major: source.major(),
            version: source.version().to_owned(),
            settings: BTreeMap::new(),
            extensions: BTreeMap::new(),
            vault_key: None,
        };
        if source.postmaster().await?.is_some() {
            copy_running(&source, &mut snapshot, bytes_max).await?;
        } else {
            copy_stopped(&source, &mut snapshot, bytes_max).await?;
        }
        let (data, vault) = (snapshot.data(), vault_key::path(source.data()));
        let (state, key) = blocking(move || {
            let state = control_state(&data)?;
            let key = fs::metadata(&vault).is_ok_and(|found| found.len() <= VAULT_KEY_BYTES_MAX);
            // Without the file, the cluster has not been started yet.
            let key = if key { fs::read(&vault).ok() } else { None };
            files::sync_fs(&data)?;
            Ok((state, key))
        })
        .await?;
        snapshot.vault_key = key;
        snapshot.system_id = state.system_id;
        if snapshot.label.is_none() {
            if !state.is_shut_down {
                let text = "its server was not shut down cleanly; start it first";
                return Err(ClusterError::Copy(text.to_owned()));
            }
            snapshot.timeline = state.timeline;
            snapshot.start = state.checkpoint;
            snapshot.stop = state.checkpoint + RECORD_HEADER;
        }
        Ok(snapshot)
    }
}

async fn copy_running(source: &Server, snapshot: &mut Snapshot, bytes_max: u64) -> Result<()> {
    let backup = Backup::begin(source, &CopyProgress::default()).await?;
    let rows = backup
        .session
        .query(&superuser::EXTENSIONS, &[])
        .await
        .map_err(sql_error)?;
    for row in &rows {
        let (name, version) = (value(row, 0)?, value(row, 1)?);
        snapshot.extensions.insert(name, version);
    }
    let row = one(&backup.session, &superuser::RECOVERY_SETTINGS, &[]).await?;
    for (column, name) in ["max_prepared_transactions", "max_replication_slots"]
        .into_iter()
        .enumerate()
    {
        let number: u32 = value::<String>(&row, column)?.parse().unwrap_or(0);
        let number = number.min(10_000).to_string();
        snapshot.settings.insert(name.to_owned(), number);
    }
    let own = ProcessOwner::own_account();
    let control = CancelOnDrop::new();
    let copied = backup.copy_files(&snapshot.place, own, bytes_max, &control.0);
    let copier = copied.await?;
    let BackupEnd {
        position, label, ..
    } = backup.stop().await?;
    snapshot.timeline = backup.timeline;
    snapshot.start = start_of(&label)?;
    snapshot.stop = position;
    snapshot.label = Some(label);
    blocking(move || copier.finish().map(drop)).await
}

async fn copy_stopped(source: &Server, snapshot: &mut Snapshot, bytes_max: u64) -> Result<()> {
    let (from, to) = (source.data().to_owned(), snapshot.data());
    let owners = (source.run_as(), ProcessOwner::own_account());
    crate::background::idle(move || {
        let control = Arc::new(CopyControl::new(SPEED_MAX));
        let mut copier = Copier::new(&from, &to, owners, bytes_max, control)?;
        copier.copy_files()?;
        copier.copy_control()?;
        copier.finish().map(drop)
    })
    .await
}

fn control_state(data: &Path) -> Result<ControlState> {
    let path = data.join("global/pg_control");
    let state = fs::read(&path)
        .ok()
        .and_then(|bytes| ControlState::read(&bytes));
    state.ok_or_else(|| ClusterError::Copy("global/pg_control has no valid checksum".to_owned()))
}
