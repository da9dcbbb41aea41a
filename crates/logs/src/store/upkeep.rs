//! Background maintenance: flushes the log to files, merges small files and deletes expired ones.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use datafusion::object_store::{self, ObjectStoreExt, path::Path};
use futures_util::{StreamExt, stream};
use smol_str::SmolStr;

use super::{
    codec::LineSpan,
    disk::{LogFile, in_background},
    error::StoreError,
    files,
    index::FrameExtent,
    listing::SplitListing,
    log,
    merge_policy::{self, merge_candidates, merged_name},
    names::{self, FileName, StoredFile},
    state::{Store, StoreState, WriteJob},
    upkeep_state::{Failure, Upkeep},
    view,
};
use crate::event::Event;

/// Maximum number of unflushed segments that are sealed by age. Each segment is an open file.
const SEGMENTS_MAX: usize = 64;
/// Maximum number of damaged segments that are kept for a repair. Further ones are removed.
const SET_ASIDE_MAX: usize = 16;
/// Number of projects flushed concurrently.
const FLUSHES_MAX: usize = 4;
/// Number of files deleted concurrently.
const DELETIONS_MAX: usize = 8;
/// Maximum number of merges per call.
const MERGES_PER_CALL: usize = 4;
/// Initial and maximum delay after a failure, in microseconds.
const BACKOFF: Range<i64> = 1_000_000..60_000_000;

/// The oldest segment that is no longer written to.
struct SealedSegment {
    number: u64,
    file: Arc<dyn LogFile>,
    projects: Vec<(SmolStr, Vec<FrameExtent>)>,
}

/// The lines of a project in a sealed segment.
struct SealedLines {
    number: u64,
    file: Arc<dyn LogFile>,
    extents: Vec<FrameExtent>,
    /// Earlier days have expired.
    first_day: i64,
}

impl SealedLines {
    /// Reads the lines and writes them to one file per day. Leaves out unreadable frames.
    fn into_files(
        self,
        project: &str,
        shared: &StoreState,
    ) -> Result<Vec<(FileName, Bytes)>, StoreError> {
        let node = &shared.options.node;
        let mut events = Vec::new();
        let mut bytes = 0;
        let mut unreadable = Vec::new();
        for extent in &self.extents {
            if view::read_lines(&*self.file, *extent, &mut events)? {
                bytes += extent.length as u64;
            } else {
                unreadable.push(*extent);
            }
        }
        shared.lose(self.number, project, &unreadable);
        let row_bytes = bytes / (events.len() as u64).max(1);
        let mut days: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        for event in events {
            let day = names::day(event.timestamp);
            days.entry(day).or_default().push(event);
        }
        // Only whole days expire, so that a repetition on a later day writes identical files for
        // the other days.
        let retained = days.split_off(&self.first_day);
        let mut files = Vec::with_capacity(retained.len());
        for mut events in retained.into_values() {
            let span = LineSpan::of(&events);
            let name = FileName {
                node: node.clone(),
                first: self.number,
                last: self.number,
                earliest: span.earliest,
                latest: span.latest,
                rows: span.rows,
                bytes: span.rows * row_bytes,
            };
            let content = files::write_sorted(&mut events, name.volume())?;
            files.push((name, content));
        }
        Ok(files)
    }
}

impl Store {
    /// Performs due maintenance at `now`, in microseconds since 1970: flushes by size and age,
    /// merges and deletions. Call it about once a second and await it to the end. Concurrent calls
    /// return immediately. Failures are logged once and retried with backoff up to a minute.
    pub async fn upkeep(&self, now: i64) {
        let Ok(mut upkeep) = self.upkeep.try_lock() else {
            return;
        };
        self.shared.last_upkeep.store(now, Ordering::Relaxed);
        if let Err(error) = self.seal_old(now).await {
            tracing::debug!(%error, "segment of the log cannot be sealed");
        }
        let failure = upkeep.failure;
        if failure.is_some_and(|failure| failure.is_recent(now)) {
            return;
        }
        match self.maintain(&mut upkeep, now).await {
            Ok(()) => {
                if failure.is_some() {
                    tracing::info!("log files can be written again");
                }
                upkeep.failure = None;
            }
            Err(error) => {
                self.shared.counters.failures.add(1);
                if failure.is_none() {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(
                        error,
                        "log files cannot be written, lines stay in the log until a retry succeeds"
                    );
                }
                let backoff = match failure {
                    Some(failure) => (2 * failure.backoff).min(BACKOFF.end),
                    None => BACKOFF.start,
                };
                upkeep.failure = Some(Failure { at: now, backoff });
            }
        }
    }

    /// Seals the active segment if its lines are old enough.
    async fn seal_old(&self, now: i64) -> Result<(), StoreError> {
        if self.should_seal(now) {
            self.submit(|reply| WriteJob::Seal { reply }).await?;
        }
        Ok(())
    }

    fn should_seal(&self, now: i64) -> bool {
        let mut index = self.shared.index();
        let mut newest = None;
        for segment in &mut index.segments {
            if segment.frames > 0 {
                newest = Some(*segment.first_seen.get_or_insert(now));
            }
        }
        let seal_after = micros(self.shared.options.seal_after);
        index.segments.len() < SEGMENTS_MAX
            && newest.is_some_and(|first_seen| has_elapsed(now, first_seen, seal_after))
    }

    async fn maintain(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        // Bounded by the current number of segments, so that constant appends cannot starve the
        // other tasks.
        let segments = self.shared.index().segments.len();
        for _ in 0..segments {
            let Some(sealed) = self.oldest_sealed() else {
                break;
            };
            self.flush(upkeep, sealed, now).await?;
        }
        self.delete_obsolete(upkeep, now).await?;
        for _ in 0..MERGES_PER_CALL {
            let Some(directory) = upkeep.merge.pop_first() else {
                break;
            };
            self.merge(upkeep, directory, now).await?;
        }
        let sweep_every = micros(self.shared.options.sweep_every);
        let is_due = match upkeep.last_sweep {
            Some(last_sweep) => has_elapsed(now, last_sweep, sweep_every),
            None => true,
        };
        if is_due {
            self.sweep(upkeep, now).await?;
            upkeep.last_sweep = Some(now);
        }
        Ok(())
    }

    fn oldest_sealed(&self) -> Option<SealedSegment> {
        let index = self.shared.index();
        if index.segments.len() < 2 {
            return None;
        }
        let segment = index.segments.front()?;
        let mut projects: Vec<_> = segment
            .projects
            .iter()
            .map(|(project, pending)| (project.clone(), pending.extents.clone()))
            .collect();
        projects.sort_by(|(a, _), (b, _)| a.cmp(b));
        Some(SealedSegment {
            number: segment.number,
            file: Arc::clone(&segment.file),
            projects,
        })
    }

    /// Writes the files of a segment, then removes the segment. Repeating it after a crash writes
    /// the same files.
    async fn flush(
        &self,
        upkeep: &mut Upkeep,
        sealed: SealedSegment,
        now: i64,
    ) -> Result<(), StoreError> {
        let SealedSegment {
            number,
            file,
            projects,
        } = sealed;
        let failed = AtomicBool::new(false);
        let failed = &failed;
        let flushes = projects.into_iter().map(|(project, extents)| {
            let first_day = self.first_day(&project, now);
            let lines = SealedLines {
                number,
                file: Arc::clone(&file),
                extents,
                first_day,
            };
            async move {
                // After a failure no further project starts, but running ones finish, because a
                // late write could follow a merge.
                if failed.load(Ordering::Relaxed) {
                    return Ok(Vec::new());
                }
                let written = self.flush_project(&project, lines).await;
                failed.fetch_or(written.is_err(), Ordering::Relaxed);
                written
            }
        });
        let results: Vec<Result<Vec<Path>, StoreError>> = stream::iter(flushes)
            .buffer_unordered(FLUSHES_MAX)
            .collect()
            .await;
        let mut directories = Vec::new();
        for result in results {
            directories.extend(result?);
        }
        self.retire_segment(number).await?;
        for directory in directories {
            upkeep.count_new_file(directory, &self.shared.options);
        }
        Ok(())
    }

    /// Removes a flushed segment. Must be durable before its files are merged: if the segment
    /// reappeared, the files would be ignored.
    pub(super) async fn remove_oldest_segment(&self, number: u64) -> Result<(), StoreError> {
        let disk = Arc::clone(&self.disk);
        let is_damaged = self.shared.index().is_damaged(number);
        let remove = move || {
            let name = log::file_name(number);
            if is_damaged && log::count_set_aside(&*disk)? < SET_ASIDE_MAX {
                disk.rename(&name, &log::set_aside_name(number))?;
            } else {
                disk.remove(&name)?;
            }
            disk.sync()
        };
        in_background(remove).await??;
        // Dropped outside of the lock.
        let removed = self.shared.index().segments.pop_front();
        drop(removed);
        Ok(())
    }

    /// Writes the lines of a project in a segment, one file per day. Returns the directories of the
    /// files.
    async fn flush_project(
        &self,
        project: &str,
        lines: SealedLines,
    ) -> Result<Vec<Path>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let of = project.to_owned();
        let files = in_background(move || lines.into_files(&of, &shared)).await??;
        let mut directories = Vec::with_capacity(files.len());
        for (name, bytes) in files {
            self.put(&name.path(project), bytes).await?;
            directories.push(names::day_folder(project, names::day(name.latest)));
        }
        Ok(directories)
    }

    async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), StoreError> {
        self.shared.objects.put(path, bytes.into()).await?;
        self.shared.counters.files.add(1);
        self.shared.known.add(path);
        if self.shared.damaged.contains(path) {
            self.shared.clear_damage(path).await?;
        }
        Ok(())
    }

    /// Returns the first day within the retention period of a project.
    pub(super) fn first_day(&self, project: &str, now: i64) -> i64 {
        let days = self
            .retention
            .lock()
            .get(project)
            .copied()
            .unwrap_or(self.shared.options.retention_days);
        names::day(now) - i64::from(days)
    }

    /// Merges files of one directory that this node wrote, if enough of similar size exist.
    async fn merge(
        &self,
        upkeep: &mut Upkeep,
        directory: Path,
        now: i64,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        let SplitListing { files, damaged, .. } = shared.list(Some(&directory)).await?;
        let (files, superseded) = self.own_files(files);
        upkeep.mark_obsolete(
            &shared.pins,
            superseded.into_iter().map(|file| file.path),
            now,
        );
        let runs = merge_policy::runs_between(files, &damaged);
        let Some(parts) = (runs.into_iter()).find_map(|mut files| {
            let range = merge_candidates(&files, &shared.options, now)?;
            Some(files.drain(range).collect::<Vec<_>>())
        }) else {
            return Ok(());
        };
        let Some(name) = merged_name(&parts) else {
            return Ok(());
        };
        let mut contents = Vec::with_capacity(parts.len());
        for part in &parts {
            match shared.read_file(&part.path).await? {
                Ok(content) => contents.push(content),
                Err(damage) => shared.set_aside(&part.path, damage).await,
            }
        }
        if contents.len() < parts.len() {
            // The next call merges the files beside the damaged one.
            upkeep.schedule_merge(directory);
            return Ok(());
        }
        let volume = name.volume();
        let merged = in_background(move || files::merge(contents, volume)).await??;
        self.put(&name.path(&names::project_of(&directory)), merged)
            .await?;
        shared.counters.merged.add(parts.len() as u64);
        upkeep.mark_obsolete(&shared.pins, parts.into_iter().map(|part| part.path), now);
        // The directory may contain further candidates.
        upkeep.schedule_merge(directory);
        Ok(())
    }

    /// Returns the valid files of this node and the superseded files of all nodes in one directory.
    pub(super) fn own_files(&self, files: Vec<StoredFile>) -> (Vec<StoredFile>, Vec<StoredFile>) {
        let own = &self.shared.options.node;
        let first_unflushed = self.shared.index().first_unflushed();
        let (mut valid, superseded) =
            names::split_superseded(files, |node| (node == own).then_some(first_unflushed));
        valid.retain(|file| file.name.node == *own);
        (valid, superseded)
    }

    /// Deletes obsolete files that no view can reference.
    async fn delete_obsolete(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        let grace = micros(self.shared.options.grace);
        let mut deletable = Vec::new();
        for (path, file) in &upkeep.obsolete {
            if has_elapsed(now, file.since, grace)
                && !self.shared.damaged.contains_range_of(path)
                && self.shared.pins.all_dropped_up_to(file.latest_view)
            {
                deletable.push(path.clone());
            }
        }
        for path in &deletable {
            self.shared.known.remove(path);
        }
        if !deletable.is_empty() {
            self.shared.known.sync()?;
        }
        let mut deletions = stream::iter(deletable)
            .map(|path| async move {
                let result = self.shared.objects.delete(&path).await;
                (path, result)
            })
            .buffer_unordered(DELETIONS_MAX);
        while let Some((path, result)) = deletions.next().await {
            match result {
                Ok(()) => self.shared.counters.removed.add(1),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            upkeep.obsolete.remove(&path);
            self.shared.damaged.remove(&path);
        }
        Ok(())
    }
}

/// Whether an interval has passed. A clock that moved backwards counts as passed.
fn has_elapsed(now: i64, since: i64, interval: i64) -> bool {
    now < since || now - since >= interval
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
