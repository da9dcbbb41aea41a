//! Errors of backups and restores.

use std::io;

use gantry_node::error::ClusterError;

use crate::platform::error::Error;

/// An error of a backup or a restore. Every message is one complete line.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store failed.
    #[error("{doing} {object} in the store of backups: {cause}")]
    Store {
        /// The operation, as a participle.
        doing: &'static str,
        /// Name of the object.
        object: String,
        /// Error of the store.
        cause: Box<gantry_logs::object_store::Error>,
    },
    /// An object does not exist.
    #[error("{0} is missing in the store of backups")]
    Missing(String),
    /// An object is not what was written.
    #[error("{object} is damaged: {problem}")]
    Damaged {
        /// Name of the object.
        object: String,
        /// The problem.
        problem: String,
    },
    /// A part of the write-ahead log is not in the store.
    #[error("the archived write-ahead log has a gap at {0}")]
    Gap(String),
    /// The key of a project cannot be used.
    #[error("the key of the backups cannot be used: {0}")]
    Key(String),
    /// The state of the project or of its backups forbids the operation.
    #[error("{0}")]
    Refused(String),
    /// A local file cannot be read or written.
    #[error("reading or writing a file of a cluster: {0}")]
    Files(io::Error),
    /// A cluster cannot be copied or recovered.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The control database failed.
    #[error(transparent)]
    Platform(#[from] Error),
    /// Backups are switched off.
    #[error("backups are switched off by the operator")]
    Unconfigured,
    /// The process is shutting down.
    #[error("shutting down")]
    ShuttingDown,
}
