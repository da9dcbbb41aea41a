//! Ships the write-ahead log of projects to the store.
//!
//! Each look compares the times of change of three folders and of the current segment, without a
//! session. Finished segments are shipped in order, then the written pages of the current one, so
//! that a commit is in the store a few seconds later, and an idle project writes nothing.

use std::collections::VecDeque;

use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;

use super::{
    archive::{self, NewArchive},
    archive_row::Archive,
    error::BackupError,
    files::{ClusterFiles, FinishedSegments, WAL},
    settle,
    ship_state::{OpenArchive, Seen},
    state::{Backups, WatchedProject},
    wal::{Lsn, ScanEnd, SegmentHeader, SegmentName, WalScanner, written_bytes},
};
use crate::{
    control::{
        backups::ship_state::{Looked, ShipState},
        context::ControlContext,
    },
    platform::error::Context as _,
};

/// Largest segment, in bytes.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Segments of a project that are shipped in one turn.
const TURN: usize = 64;
/// Digests of shipped segments that are remembered.
const REMEMBERED: usize = 512;
/// Why an archive ends if its project has a cluster with another log.
const REPLACED: &str = "the cluster was replaced, as by an upgrade of PostgreSQL";

/// Looks at a project, and ships what is new. A failure is recorded in the state, and retried after
/// a pause of up to a minute.
pub(super) async fn look(
    context: &ControlContext,
    backups: &Backups,
    project: &WatchedProject,
    state: &mut ShipState,
) -> Looked {
    let now = context.clock.ticks();
    if state.retry_at > now {
        return Looked::Waiting;
    }
    match ship(context, backups, project, state).await {
        Ok(looked) => {
            if state.failures > 0 {
                tracing::info!(project = %project.reference, "archiving works again");
            }
            state.failures = 0;
            state.problem = None;
            looked
        }
        Err(error) => {
            if state.failures == 0 {
                tracing::warn!(project = %project.reference, %error, "write-ahead log could not be archived; retrying");
            }
            backups.metrics.store_errors.increment(1);
            state.fail(now, &error);
            if let Err(error) = bound_backlog(context, backups, project, state).await {
                tracing::warn!(project = %project.reference, %error, "waiting write-ahead log could not be measured");
            }
            Looked::Waiting
        }
    }
}

async fn ship(
    context: &ControlContext,
    backups: &Backups,
    project: &WatchedProject,
    state: &mut ShipState,
) -> Result<Looked, BackupError> {
    let path = context.home.data_directory(&project.reference);
    let Some(files) = ClusterFiles::open(&path, project.way).map_err(unreadable)? else {
        return Ok(Looked::Waiting);
    };
    let looked_at = context.clock.now();
    let current = state
        .open
        .as_ref()
        .map(|open| SegmentName::of(open.archive.timeline, open.next, open.archive.segment_bytes));
    let seen = Seen {
        folders: [
            files.modified(WAL),
            files.modified(files.changing()),
            current.and_then(|name| files.modified(&format!("{WAL}/{name}"))),
        ],
    };
    if state.open.is_some() && state.seen.as_ref() == Some(&seen) {
        if state.is_quiet {
            return Ok(Looked::Quiet);
        }
        state.is_quiet = true;
    } else {
        state.is_quiet = false;
    }
    if state.open.is_none() {
        let Some(open) = open(context, backups, project, &files).await? else {
            return Ok(Looked::Waiting);
        };
        state.open = Some(open);
    }
    let Some(open) = state.open.as_mut() else {
        return Ok(Looked::Waiting);
    };
    let before = (open.archive.shipped, open.next);
    let outcome = ship_open(&files, open).await;
    let outcome = match outcome {
        Err(ShipError::Replaced) => {
            state.forget();
            return Ok(Looked::Unfinished);
        }
        Err(ShipError::Gap(reason)) => {
            tracing::warn!(project = %project.reference, reason, "archive has a gap; the next backup begins another one");
            archive::end(context, &open.archive, &reason).await?;
            state.forget();
            return Ok(Looked::Unfinished);
        }
        Err(ShipError::Backup(error)) => return Err(error),
        Ok(outcome) => outcome,
    };
    let is_complete = outcome != Looked::Unfinished;
    if is_complete {
        open.archive.shipped_at = looked_at;
    }
    if is_complete || (open.archive.shipped, open.next) != before {
        archive::record(context, &open.archive).await?;
    }
    state.waiting_bytes = 0;
    state.seen = is_complete.then_some(seen);
    Ok(outcome)
}

enum ShipError {
    /// Another cluster has taken the place.
    Replaced,
    /// A segment is lost.
    Gap(String),
    Backup(BackupError),
}

impl From<BackupError> for ShipError {
    fn from(error: BackupError) -> Self {
        Self::Backup(error)
    }
}

impl From<std::io::Error> for ShipError {
    fn from(error: std::io::Error) -> Self {
        Self::Backup(unreadable(error))
    }
}

fn unreadable(cause: std::io::Error) -> BackupError {
    BackupError::Files(cause)
}

/// Opens the archive of a cluster: that of its row, or a new one. `None` if the cluster has no log
/// yet.
async fn open(
    context: &ControlContext,
    backups: &Backups,
    project: &WatchedProject,
    files: &ClusterFiles,
) -> Result<Option<OpenArchive>, BackupError> {
    let Some(control) = files.control().map_err(unreadable)? else {
        return Ok(None);
    };
    if is_exchanged(context, project).await? {
        return Ok(None);
    }
    let store = archive::store_of(context, backups, project.id, &project.reference).await?;
    let known = archive::current(context, project.id).await?;
    if let Some(archive) = known
        .as_ref()
        .filter(|known| known.system_id == control.system_id && known.timeline == control.timeline)
    {
        let segment = SegmentName::of(archive.timeline, archive.shipped, archive.segment_bytes);
        return Ok(Some(OpenArchive {
            next: segment.start(archive.segment_bytes),
            archive: archive.clone(),
            store,
            tail: None,
            shipped: VecDeque::new(),
        }));
    }
    let Some((name, header)) = first_segment(files, control.system_id).map_err(unreadable)? else {
        return Ok(None);
    };
    let new = NewArchive {
        system_id: control.system_id,
        timeline: name.timeline,
        segment_bytes: header.segment_bytes,
        begin: header.start,
    };
    let Some(archive) = archive::begin(context, project.id, &new, REPLACED).await? else {
        return Ok(None);
    };
    tracing::info!(project = %project.reference, archive = archive.folder(), "archive begun");
    Ok(Some(OpenArchive {
        next: archive.begin,
        archive,
        store,
        tail: None,
        shipped: VecDeque::new(),
    }))
}

/// Returns whether a restore has begun to exchange the clusters, and the archive of the new
/// one does not exist yet. The files cannot tell: two clusters that were restored from one backup
/// can have the same system identifier and timeline.
async fn is_exchanged(
    context: &ControlContext,
    project: &WatchedProject,
) -> Result<bool, BackupError> {
    let sql = "select id from restores r
               where project_id = $1 and finished_at is null and fork_archive_id is not null
                 and not exists (select from archives a where a.restore_id = r.id)";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a restore")?;
    let has_begun = |row: &Row| {
        let name = settle::folder_name(&project.reference, row.get(0));
        context.driver.is_replaced(&name)
    };
    Ok(rows.iter().any(has_begun))
}

/// Returns the first segment that is available: of those that the server handed over, or else the
/// current one.
fn first_segment(
    files: &ClusterFiles,
    system_id: u64,
) -> std::io::Result<Option<(SegmentName, SegmentHeader)>> {
    let is_valid = |folder: &str, name: &str| {
        let name: SegmentName = name.parse().ok()?;
        let bytes = files.read(&format!("{folder}/{name}"), SEGMENT_BYTES_MAX);
        let header = SegmentHeader::read(&bytes.ok()??)?;
        let fits =
            header.system_id == system_id && header.start == name.start(header.segment_bytes);
        fits.then_some((name, header))
    };
    for name in files.finished()? {
        if let Some(found) = is_valid(files.folder(), &name) {
            return Ok(Some(found));
        }
    }
    let names = files.names(WAL)?;
    Ok(names.iter().rev().find_map(|name| is_valid(WAL, name)))
}

/// A segment as read from the cluster.
struct ReadSegment {
    name: SegmentName,
    bytes: Vec<u8>,
}

async fn ship_open(files: &ClusterFiles, open: &mut OpenArchive) -> Result<Looked, ShipError> {
    let finished = files.finished()?;
    let bytes = open.archive.segment_bytes;
    let mut outcome = Looked::Shipped;
    for turn in 0.. {
        if turn >= TURN {
            outcome = Looked::Unfinished;
            break;
        }
        let name = SegmentName::of(open.archive.timeline, open.next, bytes);
        let handed_over = finished.binary_search(&name.to_string()).is_ok();
        // Before the segment itself is read: what is read then is complete.
        let is_last = handed_over || is_begun(files, &open.archive, name.next(bytes))?;
        let folder = if handed_over { files.folder() } else { WAL };
        let mut segment = read_segment(files, &open.archive, folder, name)?;
        if segment.is_none() && is_last {
            // Handed over and recycled since the names were read.
            segment = read_segment(files, &open.archive, files.folder(), name)?;
        }
        match segment {
            Some(segment) if is_last => ship_finished(open, segment).await?,
            Some(segment) => {
                ship_tail(open, segment).await?;
                break;
            }
            None if is_replaced(files, &open.archive)? => return Err(ShipError::Replaced),
            None if is_last || has_later(&finished, name) => {
                return Err(ShipError::Gap(format!(
                    "segment {name} was removed before it was archived"
                )));
            }
            // The server has not begun it yet.
            None => break,
        }
    }
    release(files, open, &finished).await?;
    Ok(outcome)
}

/// Returns whether a later segment of the timeline was handed over.
fn has_later(finished: &[String], name: SegmentName) -> bool {
    let later = |other: SegmentName| other.timeline == name.timeline && other > name;
    finished.iter().any(|other| other.parse().is_ok_and(later))
}

/// Reads a segment of this archive. `None` if it does not exist, or has not been begun.
fn read_segment(
    files: &ClusterFiles,
    archive: &Archive,
    folder: &str,
    name: SegmentName,
) -> Result<Option<ReadSegment>, ShipError> {
    let read = match files.read(&format!("{folder}/{name}"), archive.segment_bytes) {
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(ShipError::Gap(format!(
                "segment {name} is not a plain file"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let Some(mut bytes) = read else {
        return Ok(None);
    };
    let Some(header) = SegmentHeader::read(&bytes) else {
        return Ok(None);
    };
    if header.start != name.start(archive.segment_bytes) {
        return Ok(None);
    }
    if header.system_id != archive.system_id {
        return Err(ShipError::Replaced);
    }
    if header.segment_bytes != archive.segment_bytes {
        return Err(ShipError::Gap(format!("segment {name} has another size")));
    }
    // Pages of an earlier use compress badly, and mean nothing.
    bytes.truncate(written_bytes(&bytes, header.start));
    Ok(Some(ReadSegment { name, bytes }))
}

/// Returns whether the server has written to a segment.
fn is_begun(files: &ClusterFiles, archive: &Archive, name: SegmentName) -> Result<bool, ShipError> {
    Ok(read_segment(files, archive, WAL, name)?.is_some())
}

/// Returns whether another cluster has taken the place of the one of this archive.
fn is_replaced(files: &ClusterFiles, archive: &Archive) -> Result<bool, ShipError> {
    let control = files.control()?;
    Ok(control.is_some_and(|control| {
        control.system_id != archive.system_id || control.timeline != archive.timeline
    }))
}

async fn ship_finished(open: &mut OpenArchive, segment: ReadSegment) -> Result<(), ShipError> {
    let digest = Sha256::digest(&segment.bytes).into();
    let name = segment.name;
    scan(&mut open.archive, &segment);
    let object = open.archive.object(name);
    open.store.put(&object, segment.bytes).await?;
    open.next = name.end(open.archive.segment_bytes);
    open.archive.shipped = open.next;
    if open.shipped.len() >= REMEMBERED {
        open.shipped.pop_front();
    }
    open.shipped.push_back((name, digest));
    if open.tail.take().is_some_and(|(tail, _)| tail == name) {
        open.store.delete(&open.archive.partial(name)).await?;
    }
    Ok(())
}

/// Ships the written pages of the current segment if they changed.
async fn ship_tail(open: &mut OpenArchive, segment: ReadSegment) -> Result<(), ShipError> {
    let digest: [u8; 32] = Sha256::digest(&segment.bytes).into();
    let name = segment.name;
    if open.tail == Some((name, digest)) {
        return Ok(());
    }
    let shipped = scan(&mut open.archive, &segment);
    let object = open.archive.partial(name);
    open.store.put(&object, segment.bytes).await?;
    open.tail = Some((name, digest));
    open.archive.shipped = open.archive.shipped.max(shipped);
    Ok(())
}

/// Notes the last commit of a segment, and returns the end of its last record.
fn scan(archive: &mut Archive, segment: &ReadSegment) -> Lsn {
    let start = segment.name.start(archive.segment_bytes);
    let mut end = start;
    let mut scanner = WalScanner::default();
    let scanned = scanner.scan(&segment.bytes, start, &mut |record| {
        end = record.end;
        archive.last_commit_at = archive.last_commit_at.max(record.committed_at);
        true
    });
    debug_assert_ne!(scanned, ScanEnd::Stopped);
    end
}

/// Lets the server forget the segments that are in the store.
async fn release(
    files: &ClusterFiles,
    open: &mut OpenArchive,
    finished: &[String],
) -> Result<(), ShipError> {
    let bytes = open.archive.segment_bytes;
    for name in finished {
        let Ok(segment) = name.parse::<SegmentName>() else {
            // Timelines and labels of backups: an archive has one timeline.
            files.release(name)?;
            continue;
        };
        if segment.timeline == open.archive.timeline && segment.end(bytes) > open.next {
            continue;
        }
        if segment.timeline == open.archive.timeline && segment.start(bytes) >= open.archive.begin {
            check_shipped(files, open, segment).await?;
        }
        files.release(name)?;
    }
    Ok(())
}

/// Compares a segment with the object of its name. An object is never replaced.
async fn check_shipped(
    files: &ClusterFiles,
    open: &OpenArchive,
    name: SegmentName,
) -> Result<(), ShipError> {
    let folder = files.folder();
    let Some(segment) = read_segment(files, &open.archive, folder, name)? else {
        return Ok(());
    };
    let digest: [u8; 32] = Sha256::digest(&segment.bytes).into();
    let known = open.shipped.iter().find(|(shipped, _)| *shipped == name);
    let is_same = if let Some((_, shipped)) = known {
        *shipped == digest
    } else {
        match open.store.get(&open.archive.object(name)).await {
            Ok(stored) => stored == segment.bytes,
            // It has expired.
            Err(BackupError::Missing(_)) => true,
            Err(error) => return Err(error.into()),
        }
    };
    if is_same {
        Ok(())
    } else {
        Err(ShipError::Gap(format!(
            "segment {name} was archived before with another content"
        )))
    }
}

/// Drops the waiting log of a project if the store does not take it and the bound is reached. The
/// archive ends, and the next backup begins another one: other projects must not run out of space.
async fn bound_backlog(
    context: &ControlContext,
    backups: &Backups,
    project: &WatchedProject,
    state: &mut ShipState,
) -> Result<(), BackupError> {
    let path = context.home.data_directory(&project.reference);
    let Some(files) = ClusterFiles::open(&path, project.way).map_err(unreadable)? else {
        return Ok(());
    };
    let finished = files.finished().map_err(unreadable)?;
    let segment_bytes = state
        .archive()
        .map_or(1 << 20, |archive| archive.segment_bytes);
    state.waiting_bytes = (finished.len() as u64).saturating_mul(segment_bytes);
    let free = context
        .driver
        .free_space()
        .map_or(u64::MAX, |(bytes, _)| bytes);
    let bound = backups.options.backlog_bytes_max.min(free / 10);
    if state.waiting_bytes <= bound {
        return Ok(());
    }
    let reason = format!(
        "the store was not available, and {} MB were waiting",
        state.waiting_bytes >> 20
    );
    tracing::warn!(project = %project.reference, reason, "archive ended; the next backup begins another one");
    for name in &finished {
        files.release(name).map_err(unreadable)?;
    }
    if let Some(archive) = state.archive() {
        archive::end(context, archive, &reason).await?;
    }
    let (retry_at, failures, problem) = (state.retry_at, state.failures, state.problem.take());
    state.forget();
    state.retry_at = retry_at;
    state.failures = failures;
    state.problem = problem;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_after_failures_doubles_up_to_a_minute() {
        let mut state = ShipState::default();
        let pauses = [0; 9].map(|now| {
            state.fail(now, &BackupError::ShuttingDown);
            state.retry_at / 1000
        });
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(state.problem.is_some());
    }
}
