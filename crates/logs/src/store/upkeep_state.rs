//! The state of the background maintenance.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datafusion::object_store::path::Path;

use super::{options::Options, pins::ViewPins};

/// Maximum number of remembered directories and obsolete files. The next sweep finds the others
/// again.
pub(super) const REMEMBERED_MAX: usize = 64 * 1024;

/// State between calls of [`super::Store::upkeep`]. Losing it is harmless.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    pub(super) failure: Option<Failure>,
    pub(super) last_sweep: Option<i64>,
    /// Superseded or expired files that are deleted after the grace period.
    pub(super) obsolete: BTreeMap<Path, ObsoleteFile>,
    /// Number of files written per directory since its last merge.
    new_files: HashMap<Path, usize>,
    /// Directories with files to merge.
    pub(super) merge: BTreeSet<Path>,
}

/// The last failure of the object store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    pub(super) at: i64,
    /// Time without further attempts, in microseconds.
    pub(super) backoff: i64,
}

impl Failure {
    pub(super) fn is_recent(self, now: i64) -> bool {
        (0..self.backoff).contains(&now.saturating_sub(self.at))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ObsoleteFile {
    pub(super) since: i64,
    /// Views up to this number may still read the file.
    pub(super) latest_view: u64,
}

impl Upkeep {
    /// Remembers files for deletion.
    pub(super) fn mark_obsolete(
        &mut self,
        pins: &ViewPins,
        paths: impl IntoIterator<Item = Path>,
        now: i64,
    ) {
        let latest_view = pins.latest();
        for path in paths {
            if self.obsolete.len() < REMEMBERED_MAX {
                self.obsolete.entry(path).or_insert(ObsoleteFile {
                    since: now,
                    latest_view,
                });
            }
        }
    }

    /// Counts a new file and schedules a merge once there are enough.
    pub(super) fn count_new_file(&mut self, directory: Path, options: &Options) {
        if self.new_files.len() >= REMEMBERED_MAX {
            self.new_files.clear();
        }
        let count = self.new_files.entry(directory.clone()).or_default();
        *count += 1;
        if *count >= options.merge_files {
            self.new_files.remove(&directory);
            self.schedule_merge(directory);
        }
    }

    pub(super) fn schedule_merge(&mut self, folder: Path) {
        if self.merge.len() < REMEMBERED_MAX {
            self.merge.insert(folder);
        }
    }
}
