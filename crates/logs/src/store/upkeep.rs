//! Background maintenance: flushes the log to files, merges small files and deletes expired ones.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
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
    Options, Shared, Store, StoreError,
    disk::LogFile,
    files,
    index::Extent,
    log,
    names::{self, Name, Named},
    view,
    writer::Job,
};

/// Maximum number of unflushed segments that are sealed by age. Each segment is an open file.
const SEGMENTS_MAX: usize = 64;
/// Number of projects flushed concurrently.
const AT_ONCE: usize = 4;
/// Number of files deleted concurrently.
const REMOVED_AT_ONCE: usize = 8;
/// Maximum number of merges per call.
const MERGES_A_TURN: usize = 4;
/// Maximum number of remembered directories and obsolete files. The next sweep finds the others
/// again.
const REMEMBERED_MAX: usize = 64 * 1024;
/// Upper bound of the smallest size class in bytes. Each class is eight times larger than the
/// previous one.
const SMALLEST: u64 = 64 * 1024;
/// Initial and maximum delay after a failure, in microseconds.
const PAUSE: Range<i64> = 1_000_000..60_000_000;

/// State between calls of [`Store::upkeep`]. Losing it is harmless.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// The time of the last failure and the delay after it.
    failed: Option<(i64, i64)>,
    swept: Option<i64>,
    /// Superseded or expired files that are deleted after the grace period.
    unneeded: BTreeMap<Path, Unneeded>,
    /// Number of files written per directory since its last merge.
    made: HashMap<Path, usize>,
    /// Directories with files to merge.
    merge: BTreeSet<Path>,
}

#[derive(Debug, Clone, Copy)]
struct Unneeded {
    since: i64,
    /// Views up to this number may still read the file.
    moment: u64,
}

/// The oldest segment that is no longer written to.
struct Sealed {
    number: u64,
    file: Arc<dyn LogFile>,
    projects: Vec<(SmolStr, Vec<Extent>)>,
}

impl Upkeep {
    fn unneeded(&mut self, shared: &Shared, files: impl IntoIterator<Item = Named>, now: i64) {
        let moment = shared.pins.moment();
        for file in files {
            if self.unneeded.len() < REMEMBERED_MAX {
                self.unneeded
                    .entry(file.path)
                    .or_insert(Unneeded { since: now, moment });
            }
        }
    }

    fn made(&mut self, folder: Path, options: &Options) {
        if self.made.len() >= REMEMBERED_MAX {
            self.made.clear();
        }
        let made = self.made.entry(folder.clone()).or_default();
        *made += 1;
        if *made >= options.merge_files {
            self.made.remove(&folder);
            self.look_into(folder);
        }
    }

    fn look_into(&mut self, folder: Path) {
        if self.merge.len() < REMEMBERED_MAX {
            self.merge.insert(folder);
        }
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
        if let Err(error) = self.seal_old(now).await {
            tracing::debug!(%error, "a segment of the log cannot be ended");
        }
        if upkeep
            .failed
            .is_some_and(|(at, pause)| (0..pause).contains(&now.saturating_sub(at)))
        {
            return;
        }
        match (self.work(&mut upkeep, now).await, upkeep.failed) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("files of log lines are made again");
                upkeep.failed = None;
            }
            (Err(error), before) => {
                self.shared.counters.failures.add(1);
                if before.is_none() {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(
                        error,
                        "files of log lines cannot be made: lines stay in the log, and it is tried again"
                    );
                }
                let pause = before.map_or(PAUSE.start, |(_, pause)| (2 * pause).min(PAUSE.end));
                upkeep.failed = Some((now, pause));
            }
        }
    }

    /// Seals the active segment if its lines are old enough.
    async fn seal_old(&self, now: i64) -> Result<(), StoreError> {
        let after = micros(self.shared.options.seal_after);
        let old = {
            let mut index = self.shared.index();
            let held = index
                .segments
                .iter_mut()
                .filter(|segment| segment.frames > 0);
            let since = held.map(|segment| *segment.since.get_or_insert(now)).last();
            index.segments.len() < SEGMENTS_MAX
                && since.is_some_and(|since| passed(now, since, after))
        };
        if old {
            self.ask(|done| Job::Seal { done }).await
        } else {
            Ok(())
        }
    }

    async fn work(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        // Bounded by the current number of segments, so that constant appends cannot starve the
        // other tasks.
        let there = self.shared.index().segments.len();
        for _ in 0..there {
            let Some(sealed) = self.oldest_sealed() else {
                break;
            };
            self.flush(upkeep, sealed, now).await?;
        }
        self.remove_unneeded(upkeep, now).await?;
        for _ in 0..MERGES_A_TURN {
            let Some(folder) = upkeep.merge.pop_first() else {
                break;
            };
            self.merge(upkeep, folder, now).await?;
        }
        if upkeep
            .swept
            .is_none_or(|swept| passed(now, swept, micros(self.shared.options.sweep_every)))
        {
            self.sweep(upkeep, now).await?;
            upkeep.swept = Some(now);
        }
        Ok(())
    }

    fn oldest_sealed(&self) -> Option<Sealed> {
        let index = self.shared.index();
        let segment = index
            .segments
            .front()
            .filter(|_| index.segments.len() > 1)?;
        let mut projects: Vec<_> = segment
            .projects
            .iter()
            .map(|(project, pending)| (project.clone(), pending.extents.clone()))
            .collect();
        projects.sort_by(|(a, _), (b, _)| a.cmp(b));
        Some(Sealed {
            number: segment.number,
            file: Arc::clone(&segment.file),
            projects,
        })
    }

    /// Writes the files of a segment, then removes the segment. Repeating it after a crash writes
    /// the same files.
    async fn flush(&self, upkeep: &mut Upkeep, sealed: Sealed, now: i64) -> Result<(), StoreError> {
        let Sealed {
            number,
            file,
            projects,
        } = sealed;
        let failed = AtomicBool::new(false);
        let made: Vec<Result<Vec<Path>, StoreError>> = stream::iter(projects)
            .map(|(project, extents)| {
                let (first_day, file, failed) =
                    (self.first_day(&project, now), Arc::clone(&file), &failed);
                async move {
                    // After a failure no further project starts, but running ones finish, because a
                    // late write could follow a merge.
                    if failed.load(Ordering::Relaxed) {
                        return Ok(Vec::new());
                    }
                    let made = self
                        .flush_project(number, file, project, extents, first_day)
                        .await;
                    failed.fetch_or(made.is_err(), Ordering::Relaxed);
                    made
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
        // Must be durable before the files are merged: if the segment reappeared, its files would
        // be ignored.
        let disk = Arc::clone(&self.disk);
        let remove = move || {
            disk.remove(&log::file_name(number))
                .and_then(|()| disk.sync())
        };
        tokio::task::spawn_blocking(remove)
            .await
            .map_err(io::Error::other)??;
        let gone = self.shared.index().segments.pop_front();
        drop(gone);
        made.into_iter()
            .flatten()
            .for_each(|folder| upkeep.made(folder, &self.shared.options));
        Ok(())
    }

    /// Writes the lines of a project in a segment, one file per day. Returns the directories of the
    /// files.
    async fn flush_project(
        &self,
        number: u64,
        file: Arc<dyn LogFile>,
        project: SmolStr,
        extents: Vec<Extent>,
        first_day: i64,
    ) -> Result<Vec<Path>, StoreError> {
        let node = self.shared.options.node.clone();
        let make = move || {
            let mut events = Vec::new();
            extents
                .iter()
                .try_for_each(|extent| view::read(&*file, *extent, &mut events))?;
            let bytes: u64 = extents.iter().map(|extent| extent.length as u64).sum();
            let average = bytes / (events.len() as u64).max(1);
            let mut days: BTreeMap<i64, Vec<_>> = BTreeMap::new();
            for event in events {
                days.entry(names::day(event.timestamp))
                    .or_default()
                    .push(event);
            }
            // Only whole days expire, so that a repetition on a later day writes identical files
            // for the other days.
            let kept = days.split_off(&first_day);
            let files = kept.into_values().map(|mut events| {
                let rows = events.len() as u64;
                let stamps = || events.iter().map(|event| event.timestamp);
                let (earliest, latest) = (stamps().min().unwrap_or(0), stamps().max().unwrap_or(0));
                let name = Name {
                    node: node.clone(),
                    first: number,
                    last: number,
                    earliest,
                    latest,
                    rows,
                    bytes: rows * average,
                };
                let of = files::Extent {
                    rows,
                    bytes: name.bytes,
                };
                Ok((name, files::of_events(&mut events, of)?))
            });
            files.collect::<Result<Vec<_>, StoreError>>()
        };
        let made = tokio::task::spawn_blocking(make)
            .await
            .map_err(io::Error::other)??;
        let mut folders = Vec::with_capacity(made.len());
        for (name, bytes) in made {
            self.put(&name.path(&project), bytes).await?;
            folders.push(names::day_folder(&project, names::day(name.latest)));
        }
        Ok(folders)
    }

    async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), StoreError> {
        self.shared.objects.put(path, bytes.into()).await?;
        self.shared.counters.files.add(1);
        Ok(())
    }

    /// Returns the first day within the retention period of a project.
    fn first_day(&self, project: &str, now: i64) -> i64 {
        let days = self
            .retention
            .lock()
            .get(project)
            .copied()
            .unwrap_or(self.shared.options.retention_days);
        names::day(now) - i64::from(days)
    }

    /// Merges files of one directory that this node wrote, if enough of similar size exist.
    async fn merge(&self, upkeep: &mut Upkeep, folder: Path, now: i64) -> Result<(), StoreError> {
        let shared = &self.shared;
        let listed = shared.list(Some(&folder)).await?;
        let (files, over) = self.own(listed);
        upkeep.unneeded(shared, over, now);
        let Some(run) = run(&files, &shared.options, now) else {
            return Ok(());
        };
        let parts = files[run].to_vec();
        let [first, .., last] = parts.as_slice() else {
            return Ok(());
        };
        let sum = |of: fn(&Name) -> u64| parts.iter().map(|file| of(&file.name)).sum();
        let name = Name {
            node: shared.options.node.clone(),
            first: first.name.first,
            last: last.name.last,
            earliest: parts
                .iter()
                .map(|file| file.name.earliest)
                .min()
                .unwrap_or(0),
            latest: parts.iter().map(|file| file.name.latest).max().unwrap_or(0),
            rows: sum(|name| name.rows),
            bytes: sum(|name| name.bytes),
        };
        let mut contents = Vec::with_capacity(parts.len());
        for part in &parts {
            contents.push(shared.objects.get(&part.path).await?.bytes().await?);
        }
        let of = files::Extent {
            rows: name.rows,
            bytes: name.bytes,
        };
        let merged = tokio::task::spawn_blocking(move || files::merge(contents, of))
            .await
            .map_err(io::Error::other)??;
        let project = folder
            .parts()
            .next()
            .map(|part| part.as_ref().to_owned())
            .unwrap_or_default();
        self.put(&name.path(&project), merged).await?;
        shared.counters.merged.add(parts.len() as u64);
        upkeep.unneeded(shared, parts, now);
        // The directory may contain further candidates.
        upkeep.look_into(folder);
        Ok(())
    }

    /// Returns the valid files of this node and the superseded files of all nodes in one directory.
    fn own(&self, files: Vec<Named>) -> (Vec<Named>, Vec<Named>) {
        let (own, next) = (&self.shared.options.node, self.shared.index().next());
        let (mut count, over) = names::part(files, |node| (node == own).then_some(next));
        count.retain(|file| file.name.node == *own);
        (count, over)
    }

    /// Scans all files for expired, superseded and mergeable ones.
    async fn sweep(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        let mut found = self.shared.objects.list(None);
        let mut folder: Vec<Named> = Vec::new();
        while let Some(meta) = found.next().await {
            let meta = meta?;
            let Some(file) = Named::parse(&meta.location, meta.size) else {
                continue;
            };
            let same = folder
                .first()
                .is_none_or(|first| first.path.parts().take(2).eq(file.path.parts().take(2)));
            if !same {
                self.sweep_folder(upkeep, std::mem::take(&mut folder), now);
            }
            folder.push(file);
        }
        self.sweep_folder(upkeep, folder, now);
        Ok(())
    }

    fn sweep_folder(&self, upkeep: &mut Upkeep, files: Vec<Named>, now: i64) {
        let Some(first) = files.first() else { return };
        let project = first
            .path
            .parts()
            .next()
            .map(|part| part.as_ref().to_owned())
            .unwrap_or_default();
        let day = names::day(first.name.latest);
        if day < self.first_day(&project, now) {
            return upkeep.unneeded(&self.shared, files, now);
        }
        let (own, over) = self.own(files);
        upkeep.unneeded(&self.shared, over, now);
        if run(&own, &self.shared.options, now).is_some() {
            upkeep.look_into(names::day_folder(&project, day));
        }
    }

    /// Deletes obsolete files that no view can reference.
    async fn remove_unneeded(&self, upkeep: &mut Upkeep, now: i64) -> Result<(), StoreError> {
        let grace = micros(self.shared.options.grace);
        let ripe =
            |it: &Unneeded| passed(now, it.since, grace) && self.shared.pins.passed(it.moment);
        let ripe: Vec<Path> = upkeep
            .unneeded
            .iter()
            .filter(|(_, it)| ripe(it))
            .map(|(path, _)| path.clone())
            .collect();
        let mut removals = stream::iter(ripe)
            .map(|path| async move {
                let done = self.shared.objects.delete(&path).await;
                (path, done)
            })
            .buffer_unordered(REMOVED_AT_ONCE);
        while let Some((path, done)) = removals.next().await {
            match done {
                Ok(()) => self.shared.counters.removed.add(1),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            upkeep.unneeded.remove(&path);
        }
        Ok(())
    }
}

/// Selects adjacent files to merge, since a file name holds one range of segments. Small size
/// classes come first, so that a line is rewritten only once per size class. All files of a past
/// day are merged.
fn run(files: &[Named], options: &Options, now: i64) -> Option<Range<usize>> {
    let size = |file: &Named| (file.name.bytes / SMALLEST).max(1).ilog(8);
    let over = files
        .first()
        .is_some_and(|file| names::day(file.name.latest) < names::day(now));
    let enough = if over { 2 } else { options.merge_files.max(2) };
    let sizes: BTreeSet<u32> = files.iter().map(size).collect();
    sizes.into_iter().find_map(|largest| {
        let (mut start, mut bytes) = (0, 0);
        for (at, file) in files.iter().enumerate() {
            bytes += file.name.bytes;
            if size(file) > largest || bytes > options.merge_bytes {
                if at - start >= enough {
                    return Some(start..at);
                }
                let begins = size(file) <= largest;
                (start, bytes) = if begins {
                    (at, file.name.bytes)
                } else {
                    (at + 1, 0)
                };
            }
        }
        (files.len() - start >= enough).then_some(start..files.len())
    })
}

/// Whether an interval has passed. A clock that moved backwards counts as passed.
fn passed(now: i64, since: i64, long: i64) -> bool {
    now < since || now - since >= long
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(sizes: &[u64]) -> Vec<Named> {
        let named = |(at, bytes): (usize, &u64)| {
            let at = at as u64;
            let name = Name {
                node: "n".into(),
                first: at,
                last: at,
                earliest: 0,
                latest: 0,
                rows: 1,
                bytes: *bytes,
            };
            Named {
                path: name.path("p"),
                name,
                size: 0,
            }
        };
        sizes.iter().enumerate().map(named).collect()
    }

    #[test]
    fn neighbours_of_a_size_are_merged() {
        let options = Options {
            merge_files: 3,
            merge_bytes: 10 * SMALLEST,
            ..Options::new("f", "n")
        };
        let (small, large) = (SMALLEST, 9 * SMALLEST);
        for (sizes, expected) in [
            (vec![], None),
            (vec![small; 2], None),
            (vec![small; 3], Some(0..3)),
            (vec![small; 12], Some(0..10)),
            (vec![small, small, large, small, small], None),
            (vec![small, small, large, small, small, small], Some(3..6)),
            (vec![large, large, large], None),
            (vec![11 * SMALLEST, small, small, small], Some(1..4)),
        ] {
            assert_eq!(run(&files(&sizes), &options, 0), expected, "{sizes:?}");
        }
        assert_eq!(
            run(&files(&[small, small]), &options, names::DAY),
            Some(0..2),
            "the day is over"
        );
        assert_eq!(run(&files(&[small]), &options, names::DAY), None);
    }
}
