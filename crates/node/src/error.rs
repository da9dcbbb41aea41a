//! The error of work with clusters on this machine.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_postgres::error::SqlState;

use crate::{clusters::moved::Moved, engines::engine_error::EngineError, supervisor::AccountError};

/// An error of a cluster operation. Every message is one complete line for a terminal.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file operation failed.
    #[error("{doing} {}: {cause}", path.display())]
    Io {
        /// The operation, as a participle: "copying".
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// No usable PostgreSQL installation.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The account for servers cannot be determined.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// Another process manages this data directory.
    #[error("{} is in use by another gantry{holder}; stop it, or choose another data directory", dir.display())]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// ` (pid 123)`, or nothing if unknown.
        holder: String,
    },
    /// The data folder is a copy, or was moved.
    #[error(transparent)]
    Moved(Moved),
    /// Servers run unprivileged, and may not enter this directory.
    #[error("servers run as {account} and cannot enter {}: {} has mode {mode:04o}; choose a directory such as /var/lib/gantry", dir.display(), ancestor.display())]
    Unreachable {
        /// The data directory.
        dir: PathBuf,
        /// The parent directory that denies access.
        ancestor: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The account that cannot pass.
        account: String,
    },
    /// The short directory for sockets belongs to another account.
    #[error("{} belongs to another user; remove it, or choose a data directory with a shorter path", .0.display())]
    SocketsTaken(PathBuf),
    /// `initdb` failed.
    #[error("initdb failed: {0}")]
    Initdb(String),
    /// A template could not be made.
    #[error("cannot create the platform's schemas: {0}")]
    Template(String),
    /// Another PostgreSQL could not be installed.
    #[error("{0}")]
    NotInstalled(String),
    /// The version of a project is not installed any more.
    #[error("PostgreSQL {0} is not installed; install it with: gantry engine install {0}")]
    NoEngine(u16),
    /// A data directory was created by another major version of PostgreSQL.
    #[error("cluster {name} was made by PostgreSQL {made_by}, but {} is PostgreSQL {engine}", bin_dir.display())]
    WrongMajor {
        /// The cluster.
        name: String,
        /// Content of its `PG_VERSION`.
        made_by: String,
        /// The engine's major version.
        engine: u16,
        /// The engine's directory.
        bin_dir: PathBuf,
    },
    /// A server exited before it accepted connections.
    #[error("cluster {name} did not start: {log}")]
    NotStarted {
        /// The cluster.
        name: String,
        /// The last lines of its logs.
        log: String,
    },
    /// A server runs but did not accept a connection in time.
    #[error("cluster {name} was not ready after {} ms: {last}", waited.as_millis())]
    NotReady {
        /// The cluster.
        name: String,
        /// The timeout.
        waited: Duration,
        /// The last error.
        last: String,
    },
    /// Processes of a cluster outlived SIGKILL.
    #[error("cluster {0} still has processes after SIGKILL")]
    NotStopped(String),
    /// Another process is starting or stopping the server.
    #[error("another process is starting or stopping cluster {0}")]
    Held(String),
    /// The template has not been prepared, or a cluster does not exist.
    #[error("{0} does not exist; prepare it first")]
    Missing(String),
    /// A data directory could not be given its own system identifier.
    #[error("giving the cluster an identity: {0}")]
    Identity(#[from] crate::clusters::identity::IdentityError),
    /// PostgreSQL rejected a statement or a connection.
    #[error("{doing}: {}", sql_text(cause))]
    Sql {
        /// The operation, as a participle.
        doing: &'static str,
        /// The error of the driver or the server.
        cause: tokio_postgres::Error,
    },
    /// Connecting to a server's socket failed, or the socket is not the server's.
    #[error("cluster {name} cannot be reached: {cause}")]
    Unreached {
        /// The cluster.
        name: String,
        /// The error of the operating system, or [`NotTheServer`].
        ///
        /// [`NotTheServer`]: crate::clusters::socket::NotTheServer
        cause: io::Error,
    },
    /// A connection attempt exceeded its time limit.
    #[error("cluster {0} did not answer a connection attempt in time")]
    ConnectTimeout(String),
    /// PostgreSQL rejects a setting, with this message.
    #[error("{0}")]
    Setting(String),
    /// Not a SCRAM-SHA-256 verifier. The value itself is not repeated: it may be a password.
    #[error("expected a SCRAM-SHA-256 verifier")]
    NotAVerifier,
    /// A running cluster could not be copied.
    #[error("the cluster cannot be copied: {0}")]
    Copy(String),
    /// A cluster could not be upgraded, with the reason of `pg_upgrade` or of a check.
    #[error("the cluster cannot be upgraded: {0}")]
    Upgrade(String),
    /// As many clusters are being copied as may be at the same time.
    #[error("other clusters are being copied")]
    CopiesBusy,
    /// A copied cluster could not be isolated from its original.
    #[error("the copy cannot be isolated: {0}")]
    Isolation(String),
    /// A recovered cluster failed a check.
    #[error("the recovered cluster is not usable: {0}")]
    Recovery(String),
    /// The driver does not support this operation.
    #[error("this cluster driver does not support {0}")]
    Unsupported(&'static str),
    /// The process is shutting down and accepts no new work.
    #[error("shutting down")]
    ShuttingDown,
}

/// The result of a cluster operation.
pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

impl ClusterError {
    /// Returns whether the database accepts no connections: it is closed, renamed or dropped.
    pub(crate) fn is_closed_database(&self) -> bool {
        let closed = [
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            SqlState::UNDEFINED_DATABASE,
        ];
        matches!(self, Self::Sql { cause, .. } if cause.code().is_some_and(|code| closed.contains(code)))
    }

    /// Returns whether the server rejected the role itself, so that a retry cannot help.
    pub(crate) fn is_refused_role(&self) -> bool {
        matches!(self, Self::Sql { cause, .. } if cause.code().is_some_and(|code| code.code().starts_with("28")))
    }
}

/// Returns the server's message if there is one. The driver's `Display` is only "db error".
pub fn sql_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(refusal) => format!("{} ({})", refusal.message(), refusal.code().code()),
        None => std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
    }
}

/// Adds the operation and the path to an I/O error.
pub trait At<T> {
    /// Converts the error. `doing` is a participle: "copying".
    fn at(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> At<T> for std::result::Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|cause| ClusterError::Io {
            doing,
            path: path.to_owned(),
            cause: cause.into(),
        })
    }
}
