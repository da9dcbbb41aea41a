//! Errors of backing up and recovering an installation.

use std::{io, path::PathBuf};

use gantry_node::error::sql_text;

use crate::{control::backups::error::BackupError, platform::error::Error};

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

pub(super) fn damaged(object: &str, problem: impl Into<String>) -> InstallationError {
    InstallationError::Store(BackupError::Damaged {
        object: object.to_owned(),
        problem: problem.into(),
    })
}

/// Returns the error of a statement with the message of the server.
pub(super) fn sql_error(
    doing: &'static str,
) -> impl Fn(tokio_postgres::Error) -> InstallationError {
    move |error| InstallationError::Sql {
        doing,
        cause: sql_text(&error),
    }
}
