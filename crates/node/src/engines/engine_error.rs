//! Errors of finding and checking installations.

use std::path::PathBuf;

pub(super) const INSTALL: &str = "apt-get install -y postgresql";

/// The oldest major version that the templates support.
pub(super) const OLDEST_MAJOR: u16 = 15;

/// An error of finding an engine. Each message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No installation in the searched directories.
    #[error(
        "PostgreSQL's server programs were not found in {looked}; install them with: {INSTALL}"
    )]
    NotFound {
        /// The searched directories.
        looked: String,
    },
    /// The installation is older than the templates require.
    #[error("{} is PostgreSQL {version}, and at least {OLDEST_MAJOR} is needed; install it with: {INSTALL}", path.display())]
    TooOld {
        /// The `postgres` program.
        path: PathBuf,
        /// Its version, as `14.9`.
        version: String,
    },
    /// Only versions that are not offered to new projects.
    #[error(
        "no PostgreSQL 16 or newer was found for projects, only {found}; install one with `gantry engine install 17`, or accept with \
         --allow-postgres-15 that only the sandbox keeps a project on it from the rest of this machine"
    )]
    NoneForProjects {
        /// The version found first, as `15.18`.
        found: String,
    },
    /// The program failed, or printed no version.
    #[error("{} --version failed: {problem}", path.display())]
    Broken {
        /// The `postgres` program.
        path: PathBuf,
        /// The error message.
        problem: String,
    },
}
