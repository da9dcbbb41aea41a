//! The result of a query.

use std::time::Duration;

use datafusion::object_store;
use serde_json::{Map, Value as Json};

use crate::store::{FileEntry, error_chain};

/// Maximum number of rows in an answer.
pub const ROWS_MAX: usize = 1_000;
/// Maximum number of files that a warning names.
const NAMED_FILES_MAX: usize = 3;

/// The result of a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Column names in the order of the select list.
    pub columns: Vec<String>,
    /// Rows as JSON objects keyed by column name.
    pub rows: Vec<Map<String, Json>>,
    /// Whether more rows matched than the answer contains.
    pub truncated: bool,
    /// Number of lines scanned.
    pub scanned_rows: u64,
    /// Number of bytes read by the scan.
    pub scanned_bytes: u64,
    /// Damaged files that overlap the time window. Their lines are missing.
    pub damaged: Vec<FileEntry>,
}

impl Answer {
    /// Returns a text for the client if lines are missing because files are damaged. It names
    /// `NAMED_FILES_MAX` files at most.
    pub fn warning(&self) -> Option<String> {
        let rows: u64 = self.damaged.iter().map(|file| file.rows).sum();
        let names: Vec<_> = self
            .damaged
            .iter()
            .take(NAMED_FILES_MAX)
            .filter_map(|file| file.path.filename())
            .collect();
        let count = self.damaged.len();
        let (files, further) = match count {
            0 => return None,
            1 => ("file", ""),
            _ if count > NAMED_FILES_MAX => ("files", ", …"),
            _ => ("files", ""),
        };
        Some(format!(
            "The result is incomplete: {count} damaged {files} with {rows} lines left out ({}{further})",
            names.join(", ")
        ))
    }
}

/// The reason why a query failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The statement is invalid or unsupported. The text is safe to show to the client.
    #[error("{0}")]
    Invalid(String),
    /// The query exceeded [`crate::engine::Bounds::timeout`].
    #[error("Query timed out. Retry your query or reduce the time range.")]
    TimedOut,
    /// The query waited for the given time without getting its turn, or too many queries waited.
    #[error("Too many queries are running. Retry your query in a few seconds.")]
    Busy(Duration),
    /// The object store could not be read. The text is for the operator's log, not for the client.
    #[error("The files of the logs cannot be read at the moment. Retry your query.")]
    Unavailable(String),
    /// An internal error. The text is for the operator's log, not for the client.
    #[error("Backend error! Retry your query. Please contact support if this continues.")]
    Backend(String),
}

impl QueryError {
    /// Classifies an error as [`Self::Unavailable`] if an object-store error caused it, otherwise
    /// as [`Self::Backend`].
    pub(crate) fn from_source(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = String::new();
        let mut unavailable = false;
        for cause in error_chain(error) {
            unavailable |= cause.is::<object_store::Error>();
            let cause = cause.to_string();
            // Many errors already contain the text of their source.
            if !text.contains(&cause) {
                let separator = if text.is_empty() { "" } else { ": " };
                text = format!("{text}{separator}{cause}");
            }
        }
        if unavailable {
            Self::Unavailable(text)
        } else {
            Self::Backend(text)
        }
    }
}
