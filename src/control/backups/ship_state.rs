//! The state in which the log of a project is shipped.

use std::{collections::VecDeque, time::Duration};

use gantry_base::{
    clock::{Ticks, ticks_of},
    repeat::Backoff,
};

use super::{
    archive_row::Archive,
    error::BackupError,
    files::Modified,
    store::ProjectStore,
    wal::{Lsn, SegmentName},
};

/// Pauses after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// The state of a project between two looks.
#[derive(Debug, Default)]
pub(in crate::control) struct ShipState {
    pub(super) open: Option<OpenArchive>,
    /// The times of change at the last look.
    pub(super) seen: Option<Seen>,
    /// Whether the look before saw the same: a change within the resolution of the times would be
    /// missed otherwise.
    pub(super) is_quiet: bool,
    pub(super) failures: u32,
    pub(super) retry_at: Ticks,
    /// The last failure.
    pub(super) problem: Option<String>,
    /// Bytes that wait in the spool.
    pub(super) waiting_bytes: u64,
}

#[derive(Debug)]
pub(super) struct OpenArchive {
    pub(super) archive: Archive,
    pub(super) store: ProjectStore,
    /// Position of the next finished segment.
    pub(super) next: Lsn,
    /// The segment and digest of the pages shipped last.
    pub(super) tail: Option<(SegmentName, [u8; 32])>,
    pub(super) shipped: VecDeque<(SegmentName, [u8; 32])>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) folders: [Option<Modified>; 3],
}

/// The outcome of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// Nothing changed: every commit before the look is in the store.
    Quiet,
    /// Everything was shipped.
    Shipped,
    /// More is waiting.
    Unfinished,
    /// The cluster cannot be archived now.
    Waiting,
}

impl ShipState {
    /// The archive that is being written.
    pub(super) fn archive(&self) -> Option<&Archive> {
        Some(&self.open.as_ref()?.archive)
    }

    /// The archive and its objects.
    pub(super) fn opened(&self) -> Option<(&Archive, &ProjectStore)> {
        let open = self.open.as_ref()?;
        Some((&open.archive, &open.store))
    }

    /// Forgets the archive: it is read again at the next look.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(super) fn fail(&mut self, now: Ticks, error: &BackupError) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.saturating_add(ticks_of(BACKOFF.pause(self.failures)));
        self.problem = Some(error.to_string());
        self.seen = None;
    }
}
