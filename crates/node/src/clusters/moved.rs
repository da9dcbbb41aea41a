//! A data folder that is a copy, or that was moved.

use std::path::{Path, PathBuf};

use super::location::Location;

/// A data folder that was copied or moved since its last use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data folder {} was last used on {host}; it was copied or moved since. No server in it is \
     started, because its databases may still run there. When Gantry no longer runs there, take it over with: gantry node adopt --data-dir {}",
    dir.display(), dir.display()
)]
pub struct Moved {
    dir: PathBuf,
    host: String,
}

impl Moved {
    /// Returns the error for the folder `dir`, which was last used at `earlier`.
    pub fn new(dir: &Path, earlier: &Location) -> Self {
        Self {
            dir: dir.to_owned(),
            host: earlier.host.clone(),
        }
    }
}
