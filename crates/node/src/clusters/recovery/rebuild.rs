//! Builds a cluster from a backup, checks it, and exchanges it with that of a project.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use gantry_base::ids::ProjectRef;
use tokio_postgres::Row;

use super::finish::{complete, keep_log};
use crate::{
    background::blocking,
    clusters::{
        home,
        local_driver::LocalDriver,
        online_copy::{QUARANTINE, QUARANTINE_17},
        server::process::Server,
        shutdown::ShutdownMode,
        spec::ClusterSpec,
        superuser::{self, SqlArgument, SuperuserSession},
        vault_key,
    },
    error::{At, ClusterError, Result},
    files,
    supervisor::ProcessOwner,
};

/// Time limit of replaying the write-ahead log.
pub(in crate::clusters) const REPLAY_PATIENCE: Duration = Duration::from_hours(2);
pub(in crate::clusters) const STOP_PATIENCE: Duration = Duration::from_mins(2);
/// Settings with which checkpoints remove no log.
pub(super) const KEEP_LOG: &str = "wal_keep_size = '1TB'\nfull_page_writes = on\n";
/// Maximum number of databases that are checked.
pub(super) const DATABASES_MAX: i64 = 1000;

/// A cluster in the making: its folder, which is removed on drop unless it was kept.
#[derive(Debug)]
pub struct UnfinishedCluster {
    pub(in crate::clusters) name: String,
    pub(in crate::clusters) place: PathBuf,
    /// Directory of its socket.
    sockets: PathBuf,
    pub(in crate::clusters) cluster: ClusterSpec,
    is_kept: bool,
}

impl UnfinishedCluster {
    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.place.join("data")
    }

    /// The project that gets the cluster.
    pub fn project(&self) -> &ProjectRef {
        &self.cluster.project
    }

    pub(in crate::clusters) fn owner(&self) -> ProcessOwner {
        ProcessOwner::new(self.cluster.uid, self.cluster.uid)
    }

    /// Creates a folder of the data directory.
    pub fn create_folder(&self, path: &str) -> Result<()> {
        let path = self.data().join(path);
        files::make_dir(&path, 0o700)?;
        self.owner().own(&path).at("handing over", &path)
    }

    /// Creates a file of the data directory, which must not exist.
    pub fn create_file(&self, path: &str) -> Result<fs::File> {
        let path = self.data().join(path);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .at("creating", &path)?;
        self.owner().own_file(&file).at("handing over", &path)?;
        Ok(file)
    }

    /// Creates a file of the data directory with this content.
    pub fn write_file(&self, path: &str, content: &[u8]) -> Result<()> {
        let mut file = self.create_file(path)?;
        std::io::Write::write_all(&mut file, content).at("writing", &self.data().join(path))
    }

    /// Sets the key of the vault.
    pub fn write_vault_key(&self, key: &[u8]) -> Result<()> {
        let path = vault_key::path(&self.data());
        fs::write(&path, key).at("writing", &path)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o400);
        fs::set_permissions(&path, mode).at("closing", &path)?;
        self.owner().own(&path).at("handing over", &path)
    }
}

impl Drop for UnfinishedCluster {
    fn drop(&mut self) {
        let (place, sockets, is_kept) = (self.place.clone(), self.sockets.clone(), self.is_kept);
        std::thread::spawn(move || {
            let place = if is_kept {
                Ok(())
            } else {
                files::remove_tree(&place)
            };
            if let Err(error) = place.and_then(|()| files::remove_tree(&sockets)) {
                tracing::warn!(%error, "unfinished cluster could not be removed");
            }
        });
    }
}

/// The end of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// No log is replayed: the files are those of a server that was shut down.
    AsCopied,
    /// The end of a record, which must be in the log.
    Record {
        /// Position of the record.
        at: u64,
        /// Timeline of the log there, with a history file in the folder. `None`: that of the files.
        timeline: Option<u32>,
    },
}

/// The log that a recovered cluster writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveredIdentity {
    /// A new one: the cluster gets another system identifier, and keeps no log.
    New,
    /// That of the backup: the cluster keeps its system identifier, and its log from the end of the
    /// recovery on, which is a new timeline.
    Kept,
}

/// How to recover a cluster.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryOptions {
    /// The end.
    pub target: RecoveryTarget,
    /// The checks.
    pub checks: RecoveryChecks,
    /// The log that it writes.
    pub identity: RecoveredIdentity,
}

/// The begin of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineFork {
    /// The timeline.
    pub timeline: u32,
    /// Position at which it leaves the timeline before.
    pub at: u64,
}

/// The thoroughness of the checks after a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryChecks {
    /// Every database accepts a connection, and its catalog is readable.
    Quick,
    /// Every page of every table is read, and indexes are compared with `amcheck`, if it is
    /// installed.
    Full,
}

/// The result of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredCluster {
    /// Databases that were checked.
    pub databases: u64,
    /// Tables that were read.
    pub tables: u64,
    /// Indexes that were compared.
    pub indexes: u64,
    /// Whether the pages have checksums.
    pub has_checksums: bool,
    /// The begin of its timeline, if its log continues that of the backup.
    pub fork: Option<TimelineFork>,
}

impl LocalDriver {
    /// Creates the folder of a cluster in the making.
    pub async fn begin_cluster(&self, cluster: &ClusterSpec) -> Result<UnfinishedCluster> {
        let name = self.copy_name();
        let unfinished = UnfinishedCluster {
            place: self.home().tmp().join(&name),
            sockets: self.home().socket_dir(&name),
            name,
            cluster: cluster.clone(),
            is_kept: false,
        };
        blocking(move || {
            files::make_dir(&unfinished.place, 0o711)?;
            let data = unfinished.data();
            files::make_dir(&data, 0o700)?;
            unfinished.owner().own(&data).at("handing over", &data)?;
            Ok(unfinished)
        })
        .await
    }

    /// Starts the server of a cluster in the making in quarantine, waits until it has replayed its
    /// log, checks it and stops it. A cluster without a replayed log gets a new identity in any
    /// case.
    ///
    /// Errors: [`ClusterError::NotStarted`] with the reason, among others if the log ends before
    /// the target; [`ClusterError::Recovery`] if a check fails.
    pub async fn recover(
        &self,
        unfinished: &UnfinishedCluster,
        settings: &BTreeMap<String, String>,
        options: RecoveryOptions,
    ) -> Result<RecoveredCluster> {
        let major = unfinished.cluster.major;
        let template = self.template_of(major).await?;
        let server = self.quarantined(
            major,
            &unfinished.name,
            &unfinished.place,
            unfinished.owner(),
        )?;
        configure(
            unfinished,
            &template,
            &recovery_settings(major, options, settings),
            options.target,
        )?;
        let recovered = run(&server, options.checks).await;
        if recovered.is_err() {
            // Errors are ignored: the next start ends remaining processes.
            let _ = server.stop(ShutdownMode::Immediate, STOP_PATIENCE).await;
        }
        let mut recovered = recovered?;
        let is_kept = options.identity == RecoveredIdentity::Kept
            && options.target != RecoveryTarget::AsCopied;
        if is_kept {
            let place = unfinished.place.clone();
            recovered.fork = Some(blocking(move || keep_log(&place)).await?);
        } else {
            complete(&unfinished.place, self.entropy()).await?;
        }
        Ok(recovered)
    }

    /// Moves a recovered cluster durably to `restored/<name>`.
    pub async fn keep_restored(&self, mut unfinished: UnfinishedCluster, name: &str) -> Result<()> {
        let (from, to) = (unfinished.place.clone(), self.home().restored().join(name));
        blocking(move || {
            files::remove_tree(&to)?;
            files::commit(&from, &to)
        })
        .await?;
        unfinished.is_kept = true;
        Ok(())
    }

    /// Returns whether `restored/<name>` exists.
    pub fn is_restored(&self, name: &str) -> bool {
        self.home().restored().join(name).exists()
    }

    /// Returns whether `replaced/<name>` exists.
    pub fn is_replaced(&self, name: &str) -> bool {
        self.home().replaced().join(name).exists()
    }

    /// Stops the project's server and exchanges its cluster with `restored/<name>`; the earlier
    /// one becomes `replaced/<name>`. Completes an interrupted exchange, and does nothing if it is
    /// complete.
    pub async fn exchange(&self, project: &ProjectRef, name: &str) -> Result<()> {
        let restored = self.home().restored().join(name);
        let replaced = self.home().replaced().join(name);
        let place = self.home().project(project);
        if !restored.exists() {
            return Ok(());
        }
        let mut held = None;
        if place.exists() {
            let server = self.existing(project)?;
            held = Some(server.hold().await?);
            server.halt(ShutdownMode::Fast, STOP_PATIENCE).await?;
        }
        blocking(move || {
            if place.exists() {
                files::commit(&place, &replaced)?;
            } else if !replaced.exists() {
                // The folder tells that the exchange has happened.
                files::make_dir(&replaced, 0o700)?;
            }
            files::commit(&restored, &place)?;
            drop(held);
            Ok(())
        })
        .await
    }

    /// Moves `replaced/<name>` back to `restored/<name>`, so that an exchange brings it back.
    pub async fn reuse_replaced(&self, name: &str, as_name: &str) -> Result<()> {
        let from = self.home().replaced().join(name);
        let to = self.home().restored().join(as_name);
        blocking(move || {
            if to.exists() && !from.exists() {
                return Ok(());
            }
            files::commit(&from, &to)
        })
        .await
    }

    /// Returns the names in `restored/` and `replaced/`.
    pub async fn kept_clusters(&self) -> Result<Vec<KeptCluster>> {
        let folders = [self.home().restored(), self.home().replaced()];
        blocking(move || {
            let mut found = Vec::new();
            for (folder, is_replaced) in folders.iter().zip([false, true]) {
                for entry in fs::read_dir(folder).at("listing", folder)? {
                    let entry = entry.at("listing", folder)?;
                    if let Ok(name) = entry.file_name().into_string() {
                        found.push(KeptCluster { name, is_replaced });
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    /// Moves a kept cluster to the trash.
    pub async fn discard_kept(&self, kept: &KeptCluster) -> Result<()> {
        let folder = if kept.is_replaced {
            self.home().replaced()
        } else {
            self.home().restored()
        };
        let from = folder.join(&kept.name);
        let random = self.entropy().letters(8);
        let to = self.home().trash().join(format!("{}-{random}", kept.name));
        blocking(move || files::commit(&from, &to)).await
    }
}

/// A cluster without a server, in `restored/` or `replaced/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptCluster {
    /// Name of its folder.
    pub name: String,
    /// Whether a restored cluster took its place.
    pub is_replaced: bool,
}

/// Returns the last settings of the configuration in quarantine.
pub(in crate::clusters) fn quarantine_settings(
    major: u16,
    needed: &BTreeMap<String, String>,
) -> String {
    let newer = if major >= 17 { QUARANTINE_17 } else { "" };
    let mut text = format!("{QUARANTINE}{newer}");
    for (name, value) in needed {
        let value = value.replace('\'', "''");
        text.extend([name, " = '", &value, "'\n"]);
    }
    text
}

/// Returns the last settings of the configuration during a recovery.
pub(super) fn recovery_settings(
    major: u16,
    options: RecoveryOptions,
    needed: &BTreeMap<String, String>,
) -> String {
    let mut text = quarantine_settings(major, needed);
    if options.identity == RecoveredIdentity::Kept {
        // Everything since the end of the recovery is archived later.
        text.push_str(KEEP_LOG);
    }
    if let RecoveryTarget::Record { at, timeline } = options.target {
        let (high, low) = (at >> 32, at & 0xFFFF_FFFF);
        let at = format!("recovery_target_lsn = '{high:X}/{low:X}'\n");
        text.push_str(&at);
        let timeline = timeline.map_or_else(|| "current".to_owned(), |it| it.to_string());
        text.extend(["recovery_target_timeline = '", &timeline, "'\n"]);
        text.push_str(
            "hot_standby = off\nrecovery_target_inclusive = on\n\
             recovery_target_action = 'promote'\n",
        );
    }
    text
}

pub(super) fn configure(
    unfinished: &UnfinishedCluster,
    template: &Path,
    settings: &str,
    target: RecoveryTarget,
) -> Result<()> {
    for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
        let path = template.join(name);
        let content = fs::read(&path).at("reading", &path)?;
        unfinished.write_file(name, &content)?;
    }
    unfinished.write_file("postgresql.auto.conf", b"")?;
    unfinished.write_file(home::OVERRIDES, settings.as_bytes())?;
    if target != RecoveryTarget::AsCopied {
        // The mode of a standby: without a command that would need a shell, the server reads the
        // segments in its folder.
        unfinished.write_file("standby.signal", b"")?;
    }
    Ok(())
}

pub(super) async fn run(server: &Server, checks: RecoveryChecks) -> Result<RecoveredCluster> {
    server.start_ready(REPLAY_PATIENCE).await?;
    let admin = server.superuser().await?;
    let recovered = check(server, &admin, checks).await?;
    // Nothing of the recovery stays in the segment of the last checkpoint.
    for statement in [&superuser::CHECKPOINT, &superuser::SWITCH_SEGMENT] {
        admin.run(statement).await.map_err(sql_error)?;
    }
    drop(admin);
    server.stop(ShutdownMode::Fast, STOP_PATIENCE).await?;
    Ok(recovered)
}

/// Checks every database.
pub(super) async fn check(
    server: &Server,
    admin: &SuperuserSession,
    checks: RecoveryChecks,
) -> Result<RecoveredCluster> {
    let row = admin.query_one(&superuser::RECOVERY_STATE, &[]).await;
    let row = row.map_err(sql_error)?;
    if row.get(0) {
        return Err(ClusterError::Recovery("it is still in recovery".to_owned()));
    }
    let mut recovered = RecoveredCluster {
        databases: 0,
        tables: 0,
        indexes: 0,
        has_checksums: row.get(1),
        fork: None,
    };
    let rows = admin.query(&superuser::OPEN_DATABASES, &[&DATABASES_MAX]);
    for row in rows.await.map_err(sql_error)? {
        let database: String = row.try_get(0).map_err(sql_error)?;
        let session = server.superuser_in(&database).await?;
        recovered.databases += 1;
        match checks {
            RecoveryChecks::Quick => {
                let read = session.query_one(&superuser::READ_CATALOGS, &[]).await;
                read.map_err(sql_error)?;
            }
            RecoveryChecks::Full => check_database(&session, &mut recovered).await?,
        }
    }
    Ok(recovered)
}

/// Reads every table, and compares every B-tree index with its order.
pub(super) async fn check_database(
    session: &SuperuserSession,
    recovered: &mut RecoveredCluster,
) -> Result<()> {
    let unbounded = session.run(&superuser::UNBOUNDED_STATEMENTS).await;
    unbounded.map_err(sql_error)?;
    let Some([tree, table]) = amcheck(session).await? else {
        return Ok(());
    };
    let tables = session.query(&superuser::TABLES_WITH_PAGES, &[]).await;
    for row in tables.map_err(sql_error)? {
        let (number, name) = numbered(&row)?;
        let arguments = [SqlArgument::Quoted(&table), SqlArgument::Literal(&number)];
        let read = session
            .query_with(&superuser::CHECK_TABLE, &arguments)
            .await;
        let damage = read.map_err(|error| damaged(&name, &crate::error::sql_text(&error)))?;
        if let Some(damage) = damage.first() {
            let text: String = damage.try_get(0).map_err(sql_error)?;
            return Err(damaged(&name, &text));
        }
        recovered.tables += 1;
    }
    let trees = session.query(&superuser::TREES, &[]).await;
    for row in trees.map_err(sql_error)? {
        let (number, name) = numbered(&row)?;
        let arguments = [SqlArgument::Quoted(&tree), SqlArgument::Literal(&number)];
        let checked = session.query_with(&superuser::CHECK_TREE, &arguments).await;
        checked.map_err(|error| damaged(&name, &crate::error::sql_text(&error)))?;
        recovered.indexes += 1;
    }
    Ok(())
}

/// Returns the quoted names of the functions that check a B-tree index and a table. `None` in
/// databases that users cannot change, which need no check, and if the extension is not installed.
pub(super) async fn amcheck(session: &SuperuserSession) -> Result<Option<[String; 2]>> {
    let there = session.query_opt(&superuser::HAS_AMCHECK, &[]).await;
    if there.map_err(sql_error)?.is_none() {
        let taken = session.query_opt(&superuser::HAS_CHECK_SCHEMA, &[]).await;
        if taken.map_err(sql_error)?.is_some() {
            let text = "schema gantry_check is in the way of the checks; rename it";
            return Err(ClusterError::Recovery(text.to_owned()));
        }
        if session.run(&superuser::CREATE_AMCHECK).await.is_err() {
            session.roll_back().await.map_err(sql_error)?;
            return Ok(None);
        }
    }
    let functions = session.query(&superuser::AMCHECK_FUNCTIONS, &[]).await;
    let names: std::result::Result<Vec<String>, _> = functions
        .map_err(sql_error)?
        .iter()
        .map(|row| row.try_get(0))
        .collect();
    Ok(names.map_err(sql_error)?.try_into().ok())
}

pub(super) fn numbered(row: &Row) -> Result<(String, String)> {
    let number: u32 = row.try_get(0).map_err(sql_error)?;
    Ok((number.to_string(), row.try_get(1).map_err(sql_error)?))
}

pub(super) fn damaged(relation: &str, text: &str) -> ClusterError {
    ClusterError::Recovery(format!("{relation} is damaged: {text}"))
}

pub(super) fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    ClusterError::Sql {
        doing: "checking a recovered cluster",
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_the_target_and_what_the_cluster_needs() {
        let needed = BTreeMap::from([("max_prepared_transactions".to_owned(), "5".to_owned())]);
        let at = 0xA_0300_0028;
        let options = |target, identity| RecoveryOptions {
            target,
            checks: RecoveryChecks::Quick,
            identity,
        };
        let target = RecoveryTarget::Record { at, timeline: None };
        let text = recovery_settings(15, options(target, RecoveredIdentity::New), &needed);
        assert!(text.contains("recovery_target_lsn = 'A/3000028'\n"));
        assert!(text.contains("recovery_target_timeline = 'current'\n"));
        assert!(!text.contains("wal_keep_size"));
        assert!(text.contains("max_prepared_transactions = '5'\n"));
        assert!(text.contains("archive_mode = off\n") && !text.contains("event_triggers"));
        let target = RecoveryTarget::AsCopied;
        let text = recovery_settings(17, options(target, RecoveredIdentity::New), &needed);
        assert!(text.contains("event_triggers = off\n") && !text.contains("recovery_target"));
        let timeline = Some(11);
        let target = RecoveryTarget::Record { at, timeline };
        let text = recovery_settings(17, options(target, RecoveredIdentity::Kept), &needed);
        assert!(text.contains("recovery_target_timeline = '11'\n"));
        assert!(text.contains("wal_keep_size"));
    }
}
