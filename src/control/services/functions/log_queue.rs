//! Log events of functions that are not stored yet.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use uuid::Uuid;

use crate::platform::batch_queue::BatchQueue;

/// Rows that wait to be stored.
const QUEUE_MAX: usize = 8192;

/// Queue of rows that are not stored yet.
pub type FunctionLogQueue = BatchQueue<FunctionLogRow, QUEUE_MAX>;

/// An event of a function.
#[derive(Debug, Clone)]
pub struct FunctionLogRow {
    /// Id of the row.
    pub id: Uuid,
    /// Time of the event.
    pub at: DateTime<Utc>,
    /// The project.
    pub project: ProjectRef,
    /// Id of the function.
    pub function: Uuid,
    /// Its name in paths.
    pub slug: String,
    /// Number of the version.
    pub version: i32,
    /// Id of the process.
    pub execution: Uuid,
    /// `Boot`, `Log`, `UncaughtException` or `Shutdown`.
    pub kind: String,
    /// `Debug`, `Info`, `Warning` or `Error`.
    pub level: String,
    /// The text.
    pub text: String,
}
