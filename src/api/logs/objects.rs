//! Opening the object store of the logs, if one is configured.
//!
//! A misconfigured store is rejected at startup. A store that worked before and is temporarily
//! unreachable is retried: lines stay in the local log meanwhile.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_base::clock::{Clock, Entropy};
use gantry_logs::object_store::ObjectStore;

use crate::platform::object_store::{Failure, Place, RequestTimeouts, S3};

/// File in the folder of a node's log that records the last store that worked.
const MARKER: &str = "store";

/// The object store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreProblem {
    /// The test of the object store failed.
    #[error("log files cannot be stored in {store}: {failure}")]
    Tried {
        /// URL of the store.
        store: String,
        /// Cause of the failure.
        failure: Failure,
    },
    /// A local file cannot be read or written.
    #[error("preparing the object store of the logs failed")]
    Io(#[from] io::Error),
}

/// Parameters for opening a store.
pub(super) struct StoreParameters {
    pub(super) place: Place,
    /// Node id, which prefixes object names.
    pub(super) node: String,
    /// Folder of the node's log.
    pub(super) folder: PathBuf,
    /// Folder of log files when no object store is configured.
    pub(super) local: PathBuf,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
}

/// Tests the object store before it is used.
pub(super) async fn open(opening: StoreParameters) -> Result<Arc<dyn ObjectStore>, StoreProblem> {
    let StoreParameters {
        place,
        node,
        folder,
        local,
        clock,
        entropy,
    } = opening;
    let s3 = S3::new(place, clock, entropy, RequestTimeouts::default())?;
    let store = s3.to_string();
    let marker = folder.join(MARKER);
    let before = fs::read_to_string(&marker).ok();
    let known = before.as_ref().is_some_and(|before| before.trim() == store);
    match s3.probe(&node).await {
        Ok(()) => {}
        Err(failure) if known && failure.passes() => {
            tracing::warn!(%failure, "log object store unreachable; lines stay in the local log until it is reachable");
        }
        Err(failure) => return Err(StoreProblem::Tried { store, failure }),
    }
    if !known {
        match before {
            Some(before) => tracing::warn!(
                from = before.trim(),
                to = store,
                "log files in the previous object store are not read; copy them to the new one"
            ),
            None if has_files(&local) => {
                tracing::warn!(from = %local.display(), to = store, "log files in the local folder are not read; copy them to the object store");
            }
            None => {}
        }
        fs::create_dir_all(&folder)?;
        fs::write(&marker, format!("{store}\n"))?;
    }
    Ok(Arc::new(s3))
}

fn has_files(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
