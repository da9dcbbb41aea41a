//! Counters of a store for metrics.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{disk::Disk, index::Segment, log, recovery::RecoveredLog};

/// A monotonic counter.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) rows: Counter,
    pub(super) bytes: Counter,
    pub(super) syncs: Counter,
    pub(super) files: Counter,
    pub(super) merged: Counter,
    pub(super) removed: Counter,
    pub(super) failures: Counter,
    pub(super) damaged_segments: Counter,
    pub(super) dropped_bytes: Counter,
}

impl Counters {
    /// Counts the damage of a recovered log and the segments that were set aside earlier.
    pub(super) fn add_recovered(
        &self,
        recovered: &RecoveredLog,
        disk: &dyn Disk,
    ) -> io::Result<()> {
        let is_damaged = |segment: &&Segment| segment.is_damaged;
        let damaged = recovered.index.segments.iter().filter(is_damaged).count();
        let set_aside = log::count_set_aside(disk)?;
        self.damaged_segments.add((damaged + set_aside) as u64);
        self.dropped_bytes
            .add(recovered.damage.iter().map(|it| it.bytes).sum());
        Ok(())
    }
}
