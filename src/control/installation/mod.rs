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
pub mod error;
pub mod fence;
pub mod files;
pub mod keeper;
pub mod load;
pub mod objects;
pub(in crate::control) mod project_files;
pub mod recovery;
pub mod status;
pub mod status_metrics;
pub mod verification;

use std::time::Duration;

use gantry_base::repeat;
use gantry_node::clusters::Location;

pub use self::error::{InstallationError, Result};
use self::{keeper::KeptInstallation, objects::InstallationStore};
use crate::{
    control::context::ControlContext,
    platform::{db::Db, error::Context},
};

/// Attempts to store the files of the node while another node writes to the store.
const KEEP_ATTEMPTS: u32 = 25;
const KEEP_PAUSE: Duration = Duration::from_millis(200);

/// Keeps the installation in the store of backups while this process operates the data folder.
/// Returns at once if backups are switched off.
pub async fn run(context: ControlContext) {
    if !context.backups.options.enabled {
        return;
    }
    repeat::every(keeper::LOOK, || async {
        if context.lease.leads() {
            look(&context).await;
        }
    })
    .await;
}

async fn look(context: &ControlContext) {
    match kept(context) {
        Ok(kept) => {
            let looked = context.installation.look(&kept).await;
            if let Err(InstallationError::Elsewhere(reason)) = looked {
                context.backups.end(reason);
            }
        }
        Err(error) => context.installation.fail(&error),
    }
}

/// Stores the files of this node now.
///
/// Errors: [`InstallationError::Refused`] if another node writes to the store all the time.
pub(in crate::control) async fn keep_now(context: &ControlContext) -> Result<()> {
    let kept = kept(context)?;
    for _ in 0..KEEP_ATTEMPTS {
        if context.installation.write_now(&kept).await?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(KEEP_PAUSE).await;
    }
    let text = "another node writes to the store of backups; try again";
    Err(InstallationError::Refused(text.to_owned()))
}

/// Records that this process ends, so that a recovery need not wait.
pub async fn end(context: &ControlContext) {
    if context.backups.options.enabled
        && let Ok(kept) = kept(context)
    {
        context.installation.end(&kept).await;
    }
}

/// Returns the installation of this process.
fn kept(context: &ControlContext) -> Result<KeptInstallation> {
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
pub async fn warnings(context: &ControlContext) -> Vec<String> {
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
