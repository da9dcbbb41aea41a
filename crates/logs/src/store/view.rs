//! Consistent snapshots of one project's lines for readers.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::Ordering},
};

use datafusion::{
    arrow::{array::RecordBatch, compute::concat_batches},
    object_store::{ObjectStore, path::Path},
};

use super::{
    checksums,
    codec::{self, LineSpan},
    disk::{LogFile, in_background},
    error::{StoreError, check_limit, is_disk_failure},
    index::{ColumnarCache, FrameExtent, Index, MemoryReservation, PendingLines},
    log,
    names::{self, FileEntry, StoredFile},
    pins::ViewPin,
    state::{Store, StoreState},
    verified::{ReadFailures, VerifiedObjects},
};
use crate::{event::Event, layout};

/// Maximum number of days that are listed directory by directory. Longer windows list the whole
/// project.
const LISTED_DAYS_MAX: i64 = 4;
/// Maximum size of unflushed lines that one view converts, measured as size in the log.
const RECENT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A snapshot of one project's lines. Every line is in exactly one of `recent` and `files`. Both
/// can contain lines outside of the requested window. The files stay readable until the view is
/// dropped.
#[derive(Debug)]
pub struct View {
    /// Lines that are not in files yet, unordered, with the columns of [`layout::schema`].
    pub recent: Vec<RecordBatch>,
    /// Files sorted by source and timestamp. Older files may lack the last columns of
    /// [`layout::COLUMNS`].
    pub files: Vec<FileEntry>,
    /// Damaged files and frames of the log that overlap the window. Their lines are missing.
    pub damaged: Vec<FileEntry>,
    /// The object store of `files`. Reads are verified.
    pub objects: Arc<dyn ObjectStore>,
    /// Files that could not be verified while reading.
    pub(crate) failures: Arc<ReadFailures>,
    _pin: ViewPin,
}

/// The lines of a project in one segment.
struct SegmentLines {
    segment: u64,
    file: Arc<dyn LogFile>,
    columnar: ColumnarCache,
    /// Extents after the cached ones.
    extents: Vec<FrameExtent>,
}

impl Store {
    /// Returns the lines of a project with `after < timestamp <= until`: lines acknowledged by this
    /// node before the call, and lines of other nodes that are in files.
    pub async fn view(&self, project: &str, after: i64, until: i64) -> Result<View, StoreError> {
        names::check_name(project)?;
        let pin = self.shared.pins.pin();
        // Taken under one lock, so that each line is found either in the log or in a file.
        let (segments, first_unflushed) = {
            let index = self.shared.index();
            (unflushed_lines(&index, project), index.first_unflushed())
        };
        let window = Window { after, until };
        let recent = self.recent(project, segments, window).await?;
        let (files, mut damaged) = self.files(project, first_unflushed, window).await?;
        damaged.extend(lost_frames(&self.shared.index(), project, window));
        let failures: Arc<ReadFailures> = Arc::default();
        // The engine rejects such files without reading them.
        for file in files.iter().filter(|file| checksums::is_cut(file.size)) {
            failures.add_damaged(&file.path);
        }
        let objects = VerifiedObjects {
            inner: Arc::clone(&self.shared.objects),
            sizes: files
                .iter()
                .map(|file| (file.path.clone(), file.size))
                .collect(),
            cache: Arc::clone(&self.shared.checksums),
            failures: Arc::clone(&failures),
        };
        Ok(View {
            recent,
            files,
            damaged,
            objects: Arc::new(objects),
            failures,
            _pin: pin,
        })
    }

    /// Returns the unflushed lines as batches.
    async fn recent(
        &self,
        project: &str,
        segments: Vec<SegmentLines>,
        window: Window,
    ) -> Result<Vec<RecordBatch>, StoreError> {
        let mut bytes = 0;
        for segment in &segments {
            bytes += segment.extents.iter().map(|it| it.length).sum::<usize>();
        }
        check_limit(
            "size of unflushed log lines in bytes",
            bytes,
            RECENT_BYTES_MAX,
        )?;
        let shared = Arc::clone(&self.shared);
        let project = project.to_owned();
        let convert = move || {
            let mut recent = Vec::new();
            for lines in segments {
                for (batch, span) in columnar_lines(&shared, &project, lines, window)? {
                    if window.overlaps(&span) {
                        recent.push(batch);
                    }
                }
            }
            Ok(recent)
        };
        in_background(convert).await?
    }

    /// Returns the valid and the damaged files that overlap the window.
    async fn files(
        &self,
        project: &str,
        first_unflushed: u64,
        window: Window,
    ) -> Result<(Vec<FileEntry>, Vec<FileEntry>), StoreError> {
        let first = names::day(window.after.saturating_add(1));
        let last = names::day(window.until);
        let directories = if last.saturating_sub(first) < LISTED_DAYS_MAX {
            (first..=last)
                .map(|day| names::day_folder(project, day))
                .collect()
        } else {
            vec![names::project_folder(project)]
        };
        let mut by_day: BTreeMap<i64, DayFiles> = BTreeMap::new();
        for directory in directories {
            let known = self.shared.known.under(&directory);
            let mut listing = self.shared.list(Some(&directory)).await?;
            let known = self.unexpired(known, self.shared.last_upkeep.load(Ordering::Relaxed));
            self.shared.add_missing(known, &mut listing).await?;
            for file in listing.files {
                let day = by_day.entry(names::day(file.name.latest)).or_default();
                day.files.push(file);
            }
            for file in listing.damaged {
                let day = by_day.entry(names::day(file.name.latest)).or_default();
                day.damaged.push(file);
            }
        }
        let own = &self.shared.options.node;
        let flushed_before = |node: &str| (node == own).then_some(first_unflushed);
        let mut entries = Vec::new();
        let mut damaged_entries = Vec::new();
        for DayFiles { files, damaged } in by_day.into_values() {
            let (valid, _) = names::split_superseded(files, flushed_before);
            let (damaged, _) = names::split_superseded(damaged, flushed_before);
            let missing = damaged.into_iter().filter(|file| is_missing(file, &valid));
            let overlapping = missing.filter(|file| window.contains_part_of(file));
            damaged_entries.extend(overlapping.map(|file| file.to_entry()));
            let overlapping = valid.iter().filter(|file| window.contains_part_of(file));
            entries.extend(overlapping.map(StoredFile::to_entry));
        }
        Ok((entries, damaged_entries))
    }
}

/// The files of one day.
#[derive(Debug, Default)]
struct DayFiles {
    files: Vec<StoredFile>,
    damaged: Vec<StoredFile>,
}

/// A time window that excludes `after` and includes `until`.
#[derive(Debug, Clone, Copy)]
struct Window {
    after: i64,
    until: i64,
}

impl Window {
    fn overlaps(self, span: &LineSpan) -> bool {
        self.after < span.latest && span.earliest <= self.until
    }

    fn contains_part_of(self, file: &StoredFile) -> bool {
        self.after < file.name.latest && file.name.earliest <= self.until
    }
}

/// Whether lines of a damaged file are in no valid file: neither in one that it was merged into,
/// nor in those that it was merged from.
fn is_missing(damaged: &StoredFile, valid: &[StoredFile]) -> bool {
    let is_merged = |file: &StoredFile| file.name.contains_range_of(&damaged.name);
    let parts = valid
        .iter()
        .filter(|file| damaged.name.contains_range_of(&file.name));
    let rows: u64 = parts.map(|part| part.name.rows).sum();
    !valid.iter().any(is_merged) && rows < damaged.name.rows
}

fn unflushed_lines(index: &Index, project: &str) -> Vec<SegmentLines> {
    let mut segments = Vec::new();
    for segment in &index.segments {
        if let Some(pending) = segment.projects.get(project) {
            segments.push(SegmentLines {
                segment: segment.number,
                file: Arc::clone(&segment.file),
                columnar: pending.columnar.clone(),
                extents: pending.extents[pending.columnar.extents..].to_vec(),
            });
        }
    }
    segments
}

/// Converts uncached extents that overlap the window, and caches them if memory permits.
fn columnar_lines(
    shared: &StoreState,
    project: &str,
    lines: SegmentLines,
    window: Window,
) -> Result<Vec<(RecordBatch, LineSpan)>, StoreError> {
    let SegmentLines {
        segment,
        file,
        mut columnar,
        extents,
    } = lines;
    let spans = extents.iter().map(|extent| extent.span);
    let Some(span) = spans.reduce(LineSpan::union) else {
        return Ok(columnar.batches);
    };
    if !extents.iter().any(|extent| window.overlaps(&extent.span)) {
        return Ok(columnar.batches);
    }
    let mut events = Vec::new();
    let mut unreadable = Vec::new();
    for extent in &extents {
        if !read_lines(&*file, *extent, &mut events)? {
            unreadable.push(*extent);
        }
    }
    if !unreadable.is_empty() {
        shared.lose(segment, project, &unreadable);
        // Not cached: the cache refers to the extents by their number.
        columnar.batches.push((layout::batch(&events)?, span));
        return Ok(columnar.batches);
    }
    let cached_before = columnar.extents;
    columnar.batches.push((layout::batch(&events)?, span));
    columnar.extents += extents.len();
    merge_small_batches(&mut columnar.batches)?;

    let mut index = shared.index();
    let pending = index
        .segments
        .iter_mut()
        .find(|it| it.number == segment)
        .and_then(|it| it.projects.get_mut(project));
    if let Some(pending) = pending
        && is_unchanged(pending, cached_before, &columnar, &extents)
    {
        let bytes = memory_of(&columnar.batches);
        let max = shared.options.columnar_bytes;
        if let Some(reservation) = MemoryReservation::new(&shared.columnar_memory, bytes, max) {
            columnar.reservation = Some(Arc::new(reservation));
            pending.columnar = columnar.clone();
        }
    }
    Ok(columnar.batches)
}

/// Merges adjacent batches of similar size, which keeps the number of batches logarithmic and
/// copies each row a few times only.
fn merge_small_batches(batches: &mut Vec<(RecordBatch, LineSpan)>) -> Result<(), StoreError> {
    while let [.., (a, a_span), (b, b_span)] = batches.as_slice()
        && a.num_rows() <= 2 * b.num_rows()
    {
        let batch = concat_batches(&layout::schema(), [a, b])?;
        let span = a_span.union(*b_span);
        batches.truncate(batches.len() - 2);
        batches.push((batch, span));
    }
    Ok(())
}

/// Whether the extents of a project are those that were converted. They differ if another reader
/// was faster, or if the project was deleted and written again.
fn is_unchanged(
    pending: &PendingLines,
    cached_before: usize,
    columnar: &ColumnarCache,
    extents: &[FrameExtent],
) -> bool {
    let last = pending.extents.get(columnar.extents - 1);
    pending.columnar.extents == cached_before
        && last.map(|extent| extent.offset) == extents.last().map(|extent| extent.offset)
}

fn memory_of(batches: &[(RecordBatch, LineSpan)]) -> u64 {
    batches
        .iter()
        .map(|(batch, _)| batch.get_array_memory_size() as u64)
        .sum()
}

/// Returns the unreadable frames of a project that overlap the window, as files without content.
fn lost_frames(index: &Index, project: &str, window: Window) -> Vec<FileEntry> {
    let mut entries = Vec::new();
    for segment in &index.segments {
        for (of, extent) in &segment.lost {
            if of == project && window.overlaps(&extent.span) {
                entries.push(FileEntry {
                    path: Path::from(log::file_name(segment.number)),
                    size: extent.length as u64,
                    rows: extent.span.rows,
                    earliest: extent.span.earliest,
                    latest: extent.span.latest,
                });
            }
        }
    }
    entries
}

impl StoreState {
    /// Excludes frames that cannot be read, and reports them once.
    pub(super) fn lose(&self, segment: u64, project: &str, unreadable: &[FrameExtent]) {
        let was_damaged = self.index().is_damaged(segment);
        let lost = self.index().lose(segment, project, unreadable);
        let file = log::file_name(segment);
        for FrameExtent {
            offset,
            length: bytes,
            span,
            ..
        } in &lost
        {
            let rows = span.rows;
            tracing::error!(
                file,
                offset,
                bytes,
                project,
                rows,
                "frame of the log is damaged; its lines are left out of answers"
            );
            self.counters.dropped_bytes.add(*bytes as u64);
        }
        if !was_damaged && !lost.is_empty() {
            self.counters.damaged_segments.add(1);
        }
    }
}

/// Reads the lines of a frame. Returns whether it is readable.
pub(super) fn read_lines(
    file: &dyn LogFile,
    extent: FrameExtent,
    into: &mut Vec<Event>,
) -> Result<bool, StoreError> {
    let payload = match file.read(extent.offset, extent.length) {
        Ok(payload) => payload,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) if is_disk_failure(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if crc32c::crc32c(&payload) != extent.checksum {
        return Ok(false);
    }
    let before = into.len();
    if codec::events(&payload, into).is_none() {
        into.truncate(before);
        return Ok(false);
    }
    Ok(true)
}
