//! Opens the object store of the logs, if the operator named one.
//!
//! What cannot work is refused when the server starts. A store that worked before and is merely away by then is waited for instead: lines
//! stay in the log meanwhile.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_logs::object_store::ObjectStore;

use crate::base::{
    clock::{Clock, Entropy},
    object_store::{Failure, Patience, Place, S3},
};

/// In the folder of a node's log: which store worked.
const MARKER: &str = "store";

/// The store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreProblem {
    /// It was tried, and did not work.
    #[error("files of log lines cannot be kept in {store}: {failure}")]
    Tried {
        /// Which one.
        store: String,
        /// Why not.
        failure: Failure,
    },
    /// Something here cannot be read or written.
    #[error("preparing for the object store of the logs")]
    Io(#[from] io::Error),
}

/// What a node opens a store with.
pub(super) struct Opening {
    pub(super) place: Place,
    /// Whose name it writes under.
    pub(super) node: String,
    /// The folder of its log.
    pub(super) folder: PathBuf,
    /// Where files were, or would be, without the store.
    pub(super) local: PathBuf,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
}

/// Tries a store before anything is built on it.
pub(super) async fn open(opening: Opening) -> Result<Arc<dyn ObjectStore>, StoreProblem> {
    let Opening {
        place,
        node,
        folder,
        local,
        clock,
        entropy,
    } = opening;
    let s3 = S3::new(place, clock, entropy, Patience::default())?;
    let (store, marker) = (s3.to_string(), folder.join(MARKER));
    let before = fs::read_to_string(&marker).ok();
    let known = before.as_ref().is_some_and(|before| before.trim() == store);
    match s3.probe(&node).await {
        Ok(()) => {}
        Err(failure) if known && failure.passes() => {
            tracing::warn!(%failure, "the object store of the logs is away: lines stay in the log of this server until it is back");
        }
        Err(failure) => return Err(StoreProblem::Tried { store, failure }),
    }
    if !known {
        match before {
            Some(before) => tracing::warn!(
                from = before.trim(),
                to = store,
                "files of log lines in another store are not read: copy them"
            ),
            None if has_files(&local) => {
                tracing::warn!(from = %local.display(), to = store, "files of log lines in the folder are not read: copy them");
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
