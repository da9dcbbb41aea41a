//! The sweep over all files: expired, superseded, mergeable and missing ones.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::object_store::path::Path;
use futures_util::StreamExt as _;

use super::{
    error::StoreError,
    listing::{Listing, SplitListing},
    merge_policy::{self, merge_candidates},
    names::{self, StoredFile, project_of},
    state::Store,
    upkeep_state::{REMEMBERED_MAX, Upkeep},
};

/// Maximum difference between the clocks of nodes, in microseconds.
const CLOCKS_APART_MAX: i64 = 3_600_000_000;

impl Store {
    /// Scans all files for expired, superseded and mergeable ones.
    pub(super) async fn sweep(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        let mut objects = self.shared.objects.list(None);
        let mut listing = Listing::default();
        let mut directory: Option<(String, String)> = None;
        let mut damaged = Vec::new();
        let mut absent = KnownDirectories::of(self.shared.known.all());
        while let Some(meta) = objects.next().await {
            let meta = meta?;
            let own_directory = directory_of(&meta.location);
            if directory != own_directory {
                let mut complete = std::mem::take(&mut listing).split(&self.shared.damaged);
                let known = self.unexpired(absent.take(directory.as_ref()), now);
                self.shared.add_missing(known, &mut complete).await?;
                damaged.extend(self.sweep_directory(upkeep, complete, now));
                directory = own_directory;
            }
            listing.add(&meta);
        }
        let mut complete = listing.split(&self.shared.damaged);
        let known = self.unexpired(absent.take(directory.as_ref()), now);
        self.shared.add_missing(known, &mut complete).await?;
        damaged.extend(self.sweep_directory(upkeep, complete, now));
        damaged.extend(self.sweep_absent(absent, now).await?);
        damaged.truncate(REMEMBERED_MAX);
        self.shared.damaged.replace_marked(damaged);
        Ok(())
    }

    /// Sets the known files of directories without any object aside. Returns them.
    async fn sweep_absent(
        &self,
        absent: KnownDirectories,
        now: i64,
    ) -> Result<Vec<StoredFile>, StoreError> {
        let mut damaged = Vec::new();
        for ((project, _), known) in absent.directories {
            let unexpired = self.unexpired(known.clone(), now);
            if absent.listed.contains(&project) {
                let mut listing = SplitListing::default();
                self.shared.add_missing(unexpired, &mut listing).await?;
                damaged.extend(listing.damaged);
            } else {
                // Another node deleted the project, or all of its files are lost.
                if !unexpired.is_empty() {
                    tracing::warn!(
                        project,
                        files = unexpired.len(),
                        "all log files of the project were removed"
                    );
                }
                for path in &known {
                    self.shared.known.remove(path);
                }
            }
        }
        Ok(damaged)
    }

    /// Schedules the deletions and merges of one directory. Returns its damaged files.
    fn sweep_directory(
        &self,
        upkeep: &mut Upkeep,
        listing: SplitListing,
        now: i64,
    ) -> Vec<StoredFile> {
        let SplitListing {
            files,
            damaged,
            orphans,
        } = listing;
        upkeep.mark_obsolete(&self.shared.pins, orphans, now);
        let Some(first) = files.first().or(damaged.first()) else {
            return Vec::new();
        };
        let project = project_of(&first.path);
        let day = names::day(first.name.latest);
        if day < self.first_day(&project, now) {
            for file in &damaged {
                let markers = [
                    names::damage_marker(&file.path),
                    names::missing_marker(&file.path),
                ];
                upkeep.mark_obsolete(&self.shared.pins, markers, now);
            }
            let files = files.into_iter().chain(damaged).map(|file| file.path);
            upkeep.mark_obsolete(&self.shared.pins, files, now);
            return Vec::new();
        }
        let (own, superseded) = self.own_files(files);
        for file in &own {
            self.shared.known.add(&file.path);
        }
        upkeep.mark_obsolete(
            &self.shared.pins,
            superseded.into_iter().map(|file| file.path),
            now,
        );
        let runs = merge_policy::runs_between(own, &damaged);
        let has_candidates =
            |files: &Vec<StoredFile>| merge_candidates(files, &self.shared.options, now).is_some();
        if runs.iter().any(has_candidates) {
            upkeep.schedule_merge(names::day_folder(&project, day));
        }
        damaged
    }

    /// Returns the files that another node cannot have deleted for their age.
    pub(super) fn unexpired(&self, mut paths: Vec<Path>, now: i64) -> Vec<Path> {
        let now = now.saturating_add(CLOCKS_APART_MAX);
        paths.retain(|path| {
            let file = StoredFile::parse(path, 0);
            let project = project_of(path);
            file.is_some_and(|file| names::day(file.name.latest) >= self.first_day(&project, now))
        });
        paths
    }
}

/// The known files by directory that a sweep has not listed yet.
struct KnownDirectories {
    directories: BTreeMap<(String, String), Vec<Path>>,
    /// Projects with a listed directory.
    listed: BTreeSet<String>,
}

impl KnownDirectories {
    fn of(paths: Vec<Path>) -> Self {
        let mut directories: BTreeMap<_, Vec<Path>> = BTreeMap::new();
        for path in paths {
            if let Some(directory) = directory_of(&path) {
                directories.entry(directory).or_default().push(path);
            }
        }
        Self {
            directories,
            listed: BTreeSet::new(),
        }
    }

    /// Removes and returns the files of a listed directory.
    fn take(&mut self, directory: Option<&(String, String)>) -> Vec<Path> {
        let Some(directory) = directory else {
            return Vec::new();
        };
        self.listed.insert(directory.0.clone());
        self.directories.remove(directory).unwrap_or_default()
    }
}

/// Returns the project and the day of a path, which are its first two components.
fn directory_of(path: &Path) -> Option<(String, String)> {
    let mut parts = path.parts();
    let project = parts.next()?;
    let day = parts.next()?;
    Some((project.as_ref().to_owned(), day.as_ref().to_owned()))
}
