//! Reading of appended lines in their order, independent of the files that they are flushed to.
//!
//! A *tail* numbers the lines that are appended for a project on this node. It is opened before its
//! first line is read, and covers the lines that are in the log then. Lines are read from the log
//! while they are there. Before a segment is removed, the lines of projects with a tail are copied
//! to a *spool file* beside the segments; the files are bounded in size per project and in total.
//!
//! A spool file without lines records the number of the next line of a tail. Files of segments that
//! are still in the log are remains of an interrupted flush.

use std::{collections::BTreeMap, io, sync::Arc};

use smol_str::SmolStr;
use tokio::sync::{OwnedMutexGuard, watch};

use super::{
    disk::{Disk, LogFile, in_background},
    error::StoreError,
    index::FrameExtent,
    names,
    spool::{self, SpoolFile, SpoolReader},
    state::{Store, StoreState},
    tail_state::{ProjectTail, TailMap, TailState},
    view,
};
use crate::event::{Event, Value};

/// Bounds of one read. At least one line is returned.
#[derive(Debug, Clone, Copy)]
pub struct TailLimit {
    /// Maximum number of lines.
    pub lines: usize,
    /// Approximate maximum size of the lines in memory.
    pub bytes: usize,
}

/// Lines in the order in which they were appended.
#[derive(Debug, Clone, PartialEq)]
pub struct TailBatch {
    /// The number of the first line. It exceeds the requested one if lines in between were dropped.
    pub first: u64,
    /// The number after the last line.
    pub next: u64,
    /// The lines.
    pub events: Vec<Event>,
}

/// Lines that a read takes from one place.
enum Part {
    Spool {
        file: Arc<dyn LogFile>,
        first: u64,
        end: u64,
    },
    Log {
        file: Arc<dyn LogFile>,
        first: u64,
        extent: FrameExtent,
    },
}

impl Store {
    /// Returns the name of the node in file names, which identifies the store.
    pub fn node(&self) -> &str {
        &self.shared.options.node
    }

    /// Opens the tail of a project, unless it is open, and returns it. `epoch` names a new tail and
    /// must be unique; it consists of letters, digits, - and _.
    pub async fn open_tail(&self, project: &str, epoch: &str) -> Result<TailState, StoreError> {
        names::check_name(project)?;
        names::check_name(epoch)?;
        let (project, epoch) = (SmolStr::from(project), epoch.to_owned());
        self.with_tails(move |tails, shared, disk| {
            if let Some(tail) = tails.get(&project) {
                return Ok(tail.state(&shared.index(), &project));
            }
            let segment = shared.index().first_unflushed().saturating_sub(1);
            let marker = SpoolFile::new(&project, &epoch, segment, 0, 0);
            disk.create(&marker.name)?;
            disk.sync()?;
            let tail = ProjectTail {
                epoch,
                base: 0,
                spool: BTreeMap::from([(segment, marker)]),
                recovered_end: 0,
            };
            let state = tail.state(&shared.index(), &project);
            tails.insert(project, tail);
            Ok(state)
        })
        .await
    }

    /// Closes the tail of a project and deletes its spool files.
    pub async fn close_tail(&self, project: &str) -> Result<(), StoreError> {
        self.tails.changes.lock().remove(project);
        let project = SmolStr::from(project);
        self.with_tails(move |tails, _, disk| {
            let Some(tail) = tails.remove(&project) else {
                return Ok(());
            };
            for file in tail.spool.into_values() {
                disk.remove(&file.name)?;
            }
            Ok(disk.sync()?)
        })
        .await
    }

    /// Returns the projects with an open tail.
    pub async fn tails(&self) -> Vec<String> {
        let tails = self.tails.by_project.lock().await;
        tails.keys().map(ToString::to_string).collect()
    }

    /// Returns the tail of a project, if it is open.
    pub async fn tail(&self, project: &str) -> Option<TailState> {
        let tails = self.tails.by_project.lock().await;
        let tail = tails.get(project)?;
        Some(tail.state(&self.shared.index(), project))
    }

    /// Returns a receiver that is notified after lines of a project were appended.
    pub fn tail_changes(&self, project: &str) -> watch::Receiver<u64> {
        let mut changes = self.tails.changes.lock();
        let sender = changes
            .entry(project.into())
            .or_insert_with(|| watch::channel(0).0);
        sender.subscribe()
    }

    /// Reads lines of a project from the line `from` on. Returns `None` if there are none, or if
    /// the project has no tail.
    pub async fn read_tail(
        &self,
        project: &str,
        from: u64,
        limit: TailLimit,
    ) -> Result<Option<TailBatch>, StoreError> {
        let name = SmolStr::from(project);
        let parts = self
            .with_tails(move |tails, shared, disk| match tails.get(&name) {
                Some(tail) => Ok(parts(tail, shared, disk, &name, (from, limit.lines))?),
                None => Ok(Vec::new()),
            })
            .await?;
        in_background(move || read_parts(&parts, from, limit)).await?
    }

    /// Deletes the spool files before `line`.
    pub async fn release_tail(&self, project: &str, line: u64) -> Result<(), StoreError> {
        let project = SmolStr::from(project);
        self.with_tails(move |tails, _, disk| {
            let Some(tail) = tails.get_mut(&project) else {
                return Ok(());
            };
            while let Some(oldest) = tail.spool.values().find(|file| file.rows > 0)
                && oldest.end() <= line
            {
                tail.remove_oldest(disk, &project)?;
            }
            Ok(())
        })
        .await
    }

    /// Removes the oldest segment after it was flushed. Its lines of projects with a tail are
    /// spooled before.
    pub(super) async fn retire_segment(&self, number: u64) -> Result<(), StoreError> {
        let mut tails = self.tails.by_project.clone().lock_owned().await;
        let shared = Arc::clone(&self.shared);
        let disk = Arc::clone(&self.disk);
        let spool = move || {
            let spooled = spool_segment(&tails, &shared, &*disk, number)?;
            Ok::<_, StoreError>((tails, spooled))
        };
        let (owned, spooled) = in_background(spool).await??;
        tails = owned;
        self.remove_oldest_segment(number).await?;
        for (project, file) in spooled {
            if let Some(tail) = tails.get_mut(&project) {
                tail.base = file.end();
                tail.spool.insert(number, file);
            }
        }
        self.enforce_tail_limits(tails).await
    }

    /// Drops the oldest spooled lines beyond the limits, first of projects with too many, then of
    /// those with the most.
    async fn enforce_tail_limits(&self, mut tails: TailsGuard) -> Result<(), StoreError> {
        let disk = Arc::clone(&self.disk);
        let per_project = self.shared.options.tail_project_bytes;
        let in_total = self.shared.options.tail_bytes;
        let enforce = move || {
            for (project, tail) in &mut *tails {
                while tail.bytes() > per_project {
                    tail.remove_oldest(&*disk, project)?;
                }
            }
            while tails.values().map(ProjectTail::bytes).sum::<u64>() > in_total {
                let largest = tails.iter_mut().max_by_key(|(_, tail)| tail.bytes());
                let Some((project, tail)) = largest else {
                    break;
                };
                tail.remove_oldest(&*disk, project)?;
            }
            Ok(())
        };
        in_background(enforce).await?
    }

    /// Runs an action on the tails, on a thread that may block.
    async fn with_tails<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut TailMap, &StoreState, &dyn Disk) -> Result<T, StoreError>
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        let mut tails = self.tails.by_project.clone().lock_owned().await;
        let shared = Arc::clone(&self.shared);
        let disk = Arc::clone(&self.disk);
        in_background(move || action(&mut tails, &shared, &*disk)).await?
    }
}

type TailsGuard = OwnedMutexGuard<TailMap>;

/// Copies the lines of projects with a tail from the oldest segment to spool files.
fn spool_segment(
    tails: &TailMap,
    shared: &StoreState,
    disk: &dyn Disk,
    number: u64,
) -> Result<Vec<(SmolStr, SpoolFile)>, StoreError> {
    let mut pending = Vec::new();
    let segment_file = {
        let index = shared.index();
        let Some(segment) = index.segments.front().filter(|it| it.number == number) else {
            return Ok(Vec::new());
        };
        for project in tails.keys() {
            if let Some(lines) = segment.projects.get(project) {
                pending.push((project.clone(), lines.extents.clone()));
            }
        }
        Arc::clone(&segment.file)
    };
    let mut spooled = Vec::with_capacity(pending.len());
    for (project, extents) in pending {
        let tail = &tails[&project];
        let rows = extents.iter().map(|extent| extent.span.rows).sum();
        let mut file = SpoolFile::new(&project, &tail.epoch, number, tail.base, rows);
        file.bytes = spool::write(disk, &file.name, &*segment_file, &extents)?;
        spooled.push((project, file));
    }
    if !spooled.is_empty() {
        disk.sync()?;
    }
    Ok(spooled)
}

/// Returns where the next lines are: at least `lines`, if there are as many.
fn parts(
    tail: &ProjectTail,
    shared: &StoreState,
    disk: &dyn Disk,
    project: &str,
    (from, lines): (u64, usize),
) -> io::Result<Vec<Part>> {
    let mut parts = Vec::new();
    let spooled = tail.spool.values().filter(|file| file.rows > 0);
    let available = spooled.clone().next().map_or(tail.base, |file| file.first);
    let until = from.max(available).saturating_add(lines as u64);
    for spool in spooled.filter(|file| file.end() > from && file.first < until) {
        // Opened under the lock, so that the lines can be read even if the file is removed.
        parts.push(Part::Spool {
            file: disk.open(&spool.name)?,
            first: spool.first,
            end: spool.end(),
        });
    }
    let index = shared.index();
    let mut first = tail.base;
    for segment in &index.segments {
        let Some(pending) = segment.projects.get(project) else {
            continue;
        };
        for extent in &pending.extents {
            let end = first + extent.span.rows;
            if end > from && first < until {
                parts.push(Part::Log {
                    file: Arc::clone(&segment.file),
                    first,
                    extent: *extent,
                });
            }
            first = end;
        }
    }
    Ok(parts)
}

fn read_parts(
    parts: &[Part],
    from: u64,
    limit: TailLimit,
) -> Result<Option<TailBatch>, StoreError> {
    let mut reader = TailReader {
        from,
        limit,
        bytes: 0,
        batch: None,
    };
    for part in parts {
        if reader.is_full() {
            break;
        }
        match part {
            Part::Log {
                file,
                first,
                extent,
            } => {
                let mut events = Vec::new();
                view::read_lines(&**file, *extent, &mut events)?;
                if !reader.take(*first, events) {
                    break;
                }
            }
            Part::Spool { file, first, end } => {
                if let Err(error) = reader.take_spool(&**file, *first) {
                    tracing::error!(%error, "spooled log lines are damaged; skipping the file");
                    let skipped = TailBatch {
                        first: *end,
                        next: *end,
                        events: Vec::new(),
                    };
                    return Ok(Some(reader.batch.unwrap_or(skipped)));
                }
            }
        }
    }
    Ok(reader.batch)
}

/// Collects lines up to the limits.
struct TailReader {
    from: u64,
    limit: TailLimit,
    bytes: usize,
    batch: Option<TailBatch>,
}

impl TailReader {
    fn is_full(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| {
            batch.events.len() >= self.limit.lines || self.bytes >= self.limit.bytes
        })
    }

    /// Takes the lines of a frame that are not read yet. Returns false if lines are missing before
    /// it: they end the batch, so that each batch has consecutive numbers.
    fn take(&mut self, first: u64, events: Vec<Event>) -> bool {
        let end = first + events.len() as u64;
        let next = self.batch.as_ref().map_or(self.from, |batch| batch.next);
        if end <= next {
            return true;
        }
        if first > next && self.batch.is_some() {
            return false;
        }
        let skip = next.saturating_sub(first);
        let start = first + skip;
        for event in events
            .into_iter()
            .skip(usize::try_from(skip).unwrap_or(usize::MAX))
        {
            if self.is_full() {
                break;
            }
            self.bytes += size_of(&event);
            let batch = self.batch.get_or_insert_with(|| TailBatch {
                first: start,
                next: start,
                events: Vec::new(),
            });
            batch.events.push(event);
            batch.next += 1;
        }
        true
    }

    fn take_spool(&mut self, file: &dyn LogFile, first: u64) -> io::Result<()> {
        let mut frames = SpoolReader::open(file, first)?;
        while !self.is_full() {
            let next = self.batch.as_ref().map_or(self.from, |batch| batch.next);
            let Some((line, events)) = frames.next(next)? else {
                break;
            };
            if !self.take(line, events) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the approximate size of a line in memory.
fn size_of(event: &Event) -> usize {
    let mut bytes = 128 + event.message.len();
    for (key, value) in event.attributes.iter() {
        bytes += key.len() + 16;
        if let Value::Text(text) = value {
            bytes += text.len();
        }
    }
    bytes
}
