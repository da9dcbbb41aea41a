//! The installation in the store of backups: the control database and the files that only the data
//! folder has, so that an empty machine can be recovered (decision 0145).
//!
//! ```text
//! installation/about                  which installation, and the fingerprint of its sealing key
//!              epoch                  raised by each recovery: an earlier server stops writing
//!              alive/<node>           renewed by each running server
//!              snapshots/<epoch>-<number>-<time>  the control database at a moment
//!              nodes/<node>           the files of a node's data folder
//!              chunks/<digest>        contents of both, stored once
//! ```
//!
//! - [`objects`] seals and reads objects; [`content`] describes snapshots and files.
//! - [`dump`] reads the control database, [`load`] writes it; [`files`] does both for files.
//! - [`fence`] keeps a server from writing after its installation was recovered elsewhere.
//! - [`keeper`] writes a snapshot whenever something changed, and expires earlier ones.
//! - [`recovery`] brings an installation back on an empty machine; [`verification`] reads all that
//!   one needs.

pub mod content;
pub mod dump;
pub mod fence;
pub mod files;
pub mod keeper;
pub mod load;
pub mod objects;
pub mod recovery;
pub mod verification;

use std::{io, path::PathBuf};

use gantry_node::{clusters::Location, error::sql_text};
use tokio::time::MissedTickBehavior;

use self::{keeper::KeptInstallation, objects::InstallationStore};
use crate::{
    data_plane::{backups::BackupError, context::DataPlaneContext},
    platform::{
        db::Db,
        error::{Context, Error},
    },
};

/// An error of backing up or recovering an installation. Every message is one complete line.
#[derive(Debug, thiserror::Error)]
pub enum InstallationError {
    /// The store failed, or an object is missing or damaged.
    #[error(transparent)]
    Store(#[from] BackupError),
    /// The state of the store or of the machine forbids the operation.
    #[error("{0}")]
    Refused(String),
    /// The installation was recovered from the store elsewhere.
    #[error("{0}")]
    Elsewhere(String),
    /// A file of the data folder cannot be read or written.
    #[error("cannot use {}: {cause}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The control database rejected a statement.
    #[error("{doing}: {cause}")]
    Sql {
        /// The operation, as a participle.
        doing: &'static str,
        /// Error of the server, with its message.
        cause: String,
    },
    /// The control database failed.
    #[error(transparent)]
    Platform(#[from] Error),
}

/// The result of an operation on the installation.
pub type Result<T> = std::result::Result<T, InstallationError>;

impl InstallationError {
    /// Whether the object itself is unusable, so that an earlier one should be tried.
    pub fn is_damage(&self) -> bool {
        let Self::Store(error) = self else {
            return false;
        };
        matches!(error, BackupError::Missing(_) | BackupError::Damaged { .. })
    }
}

fn damaged(object: &str, problem: impl Into<String>) -> InstallationError {
    InstallationError::Store(BackupError::Damaged {
        object: object.to_owned(),
        problem: problem.into(),
    })
}

/// Returns the error of a statement with the message of the server.
fn sql_error(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> InstallationError {
    move |error| InstallationError::Sql {
        doing,
        cause: sql_text(&error),
    }
}

/// Keeps the installation in the store of backups while this process operates the data folder.
/// Returns at once if backups are switched off.
pub async fn run(context: DataPlaneContext) {
    if !context.backups.options.enabled {
        return;
    }
    let mut tick = tokio::time::interval(keeper::LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !context.lease.leads() {
            continue;
        }
        match kept(&context) {
            Ok(kept) => {
                let looked = context.installation.look(&kept).await;
                if let Err(InstallationError::Elsewhere(reason)) = looked {
                    context.backups.end(reason);
                }
            }
            Err(error) => context.installation.fail(&error),
        }
    }
}

/// Records that this process ends, so that a recovery need not wait.
pub async fn end(context: &DataPlaneContext) {
    if context.backups.options.enabled
        && let Ok(kept) = kept(context)
    {
        context.installation.end(&kept).await;
    }
}

/// Returns the installation of this process.
fn kept(context: &DataPlaneContext) -> Result<KeptInstallation> {
    let home = context.home.dir();
    let location =
        Location::of(home).map_err(|error| InstallationError::Refused(error.to_string()))?;
    let store = context.backups.store()?;
    let store = InstallationStore::new(store.clone(), &context.settings.sealing)?;
    Ok(KeptInstallation {
        db: context.db.clone(),
        home: home.to_owned(),
        node: context.settings.node,
        host: location.host,
        clock: context.clock.clone(),
        store,
    })
}

/// Returns why the installation could not be recovered, if so. Backups in the data folder are the
/// operator's choice, of which `gantry check` warns.
pub async fn warnings(context: &DataPlaneContext) -> Vec<String> {
    let problem = context.installation.health().problem;
    let mut warnings: Vec<String> = problem
        .map(|problem| format!("the installation is not backed up: {problem}"))
        .into_iter()
        .collect();
    let is_elsewhere = context.backups.leaves_home(context.home.dir());
    if is_elsewhere && matches!(key_is_exported(&context.db).await, Ok(false)) {
        warnings.push(KEY_NOT_EXPORTED.to_owned());
    }
    warnings
}

/// Advice for backups that are lost with the data folder.
pub const IN_DATA_FOLDER: &str = "backups lie in the data folder and are lost with its disk: set --backups-url, or --backups-folder on another disk";
/// Advice for backups that cannot be read after the loss of the machine.
pub const KEY_NOT_EXPORTED: &str = "the sealing key was never exported, and backups cannot be read without it: run gantry key export --out FILE, and keep the file elsewhere";

/// Returns whether the operator exported the sealing key.
pub async fn key_is_exported(db: &Db) -> Result<bool> {
    let sql = "select exists (select from sealing where exported_at is not null)";
    let rows = db
        .query(sql, &[])
        .await
        .context("reading when the key was exported")?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
