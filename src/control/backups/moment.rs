//! Moments to which a project can be restored.

use chrono::{DateTime, Utc};

use super::wal::Lsn;

/// The moment to recover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// All commits up to this time.
    Time(DateTime<Utc>),
    /// All records that end at or before this position.
    Position(Lsn),
    /// Everything in the store.
    Latest,
}

/// The moment in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedMoment {
    /// All commits up to this second since 1970.
    Second(i64),
    /// The end of the base backup of this number.
    Backup(i64),
}
