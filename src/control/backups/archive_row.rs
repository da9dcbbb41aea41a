//! Archives, as read from their rows.

use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::wal::{Lsn, SegmentName};
use crate::platform::error::{Context, Error};

/// Suffix of an unfinished segment.
pub(super) const PARTIAL: &str = ".partial";

/// The columns that [`Archive::read`] expects, each with a prefix such as `a.`.
macro_rules! archive_columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "system_id, ",
            $of,
            "part, ",
            $of,
            "timeline, ",
            $of,
            "segment_bytes, ",
            $of,
            "begin_lsn, ",
            $of,
            "shipped_lsn, ",
            $of,
            "shipped_at, ",
            $of,
            "last_commit_at, ",
            $of,
            "ended_at, ",
            $of,
            "ended_reason, ",
            $of,
            "created_at, ",
            $of,
            "parent_id, ",
            $of,
            "fork_lsn"
        )
    };
}
pub(super) use archive_columns;

/// An archive, as read from its row.
#[derive(Debug, Clone)]
pub struct Archive {
    /// Number of its row.
    pub id: i64,
    /// System identifier of the cluster.
    pub system_id: u64,
    /// Number among the archives of this cluster.
    pub part: i32,
    /// Timeline of its segments.
    pub timeline: u32,
    /// Size of a segment, in bytes.
    pub segment_bytes: u64,
    /// Position from which the log is in the store.
    pub begin: Lsn,
    /// Position up to which the log is in the store.
    pub shipped: Lsn,
    /// Time before which every commit is in the store.
    pub shipped_at: DateTime<Utc>,
    /// Time of the last commit in the store.
    pub last_commit_at: Option<DateTime<Utc>>,
    /// Time at which another archive followed.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason of its end.
    pub ended_reason: Option<String>,
    /// Time from which its cluster was that of the project.
    pub created_at: DateTime<Utc>,
    /// The archive that it continues.
    pub fork: Option<Fork>,
}

/// The point at which an archive continues another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// Number of the other archive.
    pub parent: i64,
    /// Position of the end of the common log.
    pub at: Lsn,
}

impl Archive {
    /// Reads the columns of `archive_columns!` that begin at `at`.
    pub(in crate::control) fn read(row: &Row, at: usize) -> Result<Self, Error> {
        let doing = "reading an archive";
        let fork = match (row.get(at + 12), row.get(at + 13)) {
            (Some(parent), Some(lsn)) => Some(Fork {
                parent,
                at: Lsn::from_column(lsn),
            }),
            _ => None,
        };
        Ok(Self {
            id: row.get(at),
            system_id: row.get::<_, &str>(at + 1).parse().context(doing)?,
            part: row.get(at + 2),
            timeline: u32::try_from(row.get::<_, i64>(at + 3)).context(doing)?,
            segment_bytes: u64::try_from(row.get::<_, i64>(at + 4)).context(doing)?,
            begin: Lsn::from_column(row.get(at + 5)),
            shipped: Lsn::from_column(row.get(at + 6)),
            shipped_at: row.get(at + 7),
            last_commit_at: row.get(at + 8),
            ended_at: row.get(at + 9),
            ended_reason: row.get(at + 10),
            created_at: row.get(at + 11),
            fork,
        })
    }

    /// Name of its folder in the store.
    pub fn folder(&self) -> String {
        format!("{}-{}", self.system_id, self.part)
    }

    /// Name of the object of a finished segment.
    pub(in crate::control) fn object(&self, segment: SegmentName) -> String {
        segment_object(&self.folder(), segment)
    }

    /// Name of the object of an unfinished segment.
    pub(in crate::control) fn partial(&self, segment: SegmentName) -> String {
        format!("{}{PARTIAL}", self.object(segment))
    }
}

/// Name of the object of a segment in the folder of an archive.
pub(super) fn segment_object(folder: &str, segment: SegmentName) -> String {
    format!("{folder}/wal/{segment}")
}
