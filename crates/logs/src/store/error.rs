//! The errors of a store.

use std::{io, path::PathBuf};

use datafusion::{arrow::error::ArrowError, object_store, parquet::errors::ParquetError};

/// The reason why lines could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed. The lines of the append are not stored.
    #[error("the disk that stores log lines failed")]
    Io(#[from] io::Error),
    /// The object store failed.
    #[error("the object store of log lines failed")]
    Objects(#[from] object_store::Error),
    /// Lines could not be converted to columns.
    #[error("log lines cannot be converted to columns")]
    Layout(#[from] ArrowError),
    /// A Parquet file could not be written or read.
    #[error("a Parquet file of log lines cannot be written or read")]
    Parquet(#[from] ParquetError),
    /// Another process uses the directory.
    #[error("another process uses the log directory {0}: stop it or use another directory")]
    Locked(PathBuf),
    /// The log is full because the object store was unavailable for too long. The append can be
    /// retried.
    #[error(
        "the log is full: {bytes} bytes of log lines wait for the object store, retry when it is \
         available"
    )]
    Full {
        /// The limit in bytes.
        bytes: u64,
    },
    /// An argument exceeds its limit.
    #[error("{what} is {size}, the limit is {max}")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The actual value.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// The name of a project or node contains invalid characters.
    #[error("{0:?} is not a valid name of a project or node: use letters, digits, - and _")]
    Name(String),
    /// The store is shutting down.
    #[error("the store of log lines is closed")]
    Closed,
}

/// Returns an error if a quantity exceeds its limit.
pub(super) fn check_limit(what: &'static str, size: usize, max: usize) -> Result<(), StoreError> {
    if size <= max {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, size, max })
    }
}

/// Iterates over an error and its sources, outermost first.
pub(crate) fn error_chain<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Whether an error is a failure of the disk to read a file.
pub(super) fn is_disk_failure(error: &(dyn std::error::Error + 'static)) -> bool {
    /// The number of the error `EIO`.
    const INPUT_OUTPUT_ERROR: i32 = 5;
    error_chain(error).any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.raw_os_error() == Some(INPUT_OUTPUT_ERROR))
    })
}
