//! The in-memory index of the log: positions of frames, without the lines.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use datafusion::arrow::array::RecordBatch;
use smol_str::SmolStr;

use super::{
    batch::ReaderOffset,
    batch_keys::{self, BatchKeys},
    codec::{LineSpan, Record},
    disk::LogFile,
    names,
};

/// Segments, oldest first, and current reader offsets. The last segment is the active one.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) segments: VecDeque<Segment>,
    pub(super) reader_offsets: HashMap<String, String>,
    pub(super) batch_keys: BatchKeys,
}

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<dyn LogFile>,
    /// Durable length in bytes.
    pub(super) length: u64,
    pub(super) projects: HashMap<SmolStr, PendingLines>,
    pub(super) frames: usize,
    pub(super) rows: u64,
    /// Upper bound on the number of files that a flush creates.
    pub(super) files: u64,
    /// The time at which upkeep first found lines in the segment.
    pub(super) first_seen: Option<i64>,
    /// Whether acknowledged frames are unreadable.
    pub(super) is_damaged: bool,
    /// Frames that became unreadable after they were written.
    pub(super) lost: Vec<(SmolStr, FrameExtent)>,
}

/// Lines of one project in one segment.
#[derive(Debug, Default)]
pub(super) struct PendingLines {
    pub(super) extents: Vec<FrameExtent>,
    /// Columnar form of the first extents, cached by a previous query.
    pub(super) columnar: ColumnarCache,
}

/// Lines converted to Arrow batches.
#[derive(Debug, Default, Clone)]
pub(super) struct ColumnarCache {
    /// Number of converted extents.
    pub(super) extents: usize,
    pub(super) batches: Vec<(RecordBatch, LineSpan)>,
    /// Reserves the memory of the batches until the last clone is dropped.
    pub(super) reservation: Option<Arc<MemoryReservation>>,
}

/// A reservation of memory, released on drop.
#[derive(Debug)]
pub(super) struct MemoryReservation {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl MemoryReservation {
    /// Reserves bytes. Returns `None` if the total would exceed `max`.
    pub(super) fn new(total: &Arc<AtomicU64>, bytes: u64, max: u64) -> Option<Self> {
        let reserve = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= max);
        total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .ok()?;
        Some(Self {
            total: Arc::clone(total),
            bytes,
        })
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The position of a frame's payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameExtent {
    pub(super) offset: u64,
    pub(super) length: usize,
    /// CRC-32C of the payload.
    pub(super) checksum: u32,
    pub(super) span: LineSpan,
}

impl Segment {
    pub(super) fn new(number: u64, file: Arc<dyn LogFile>, length: u64) -> Self {
        Self {
            number,
            file,
            length,
            projects: HashMap::new(),
            frames: 0,
            rows: 0,
            files: 0,
            first_seen: None,
            is_damaged: false,
            lost: Vec::new(),
        }
    }

    fn add(&mut self, project: &str, extent: FrameExtent) {
        let span = extent.span;
        let first_day = names::day(span.earliest);
        let last_day = names::day(span.latest);
        let pending = self.projects.entry(project.into()).or_default();
        // Lines of the same days as the previous frame are written to the same files.
        let same_days = pending.extents.last().is_some_and(|previous| {
            names::day(previous.span.earliest) <= first_day
                && last_day <= names::day(previous.span.latest)
        });
        if !same_days {
            let days = last_day.abs_diff(first_day).saturating_add(1);
            self.files = self.files.saturating_add(days.min(span.rows));
        }
        pending.extents.push(extent);
        self.frames += 1;
        self.rows += span.rows;
    }
}

impl Index {
    /// Applies a record that is durable at the end of the last segment.
    pub(super) fn apply(&mut self, record: Record, offset: u64, payload: &[u8]) {
        match record {
            Record::Lines {
                project,
                reader_offset,
                span,
            } => {
                if let Some(segment) = self.segments.back_mut()
                    && span.rows > 0
                {
                    segment.add(
                        &project,
                        FrameExtent {
                            offset,
                            length: payload.len(),
                            checksum: crc32c::crc32c(payload),
                            span,
                        },
                    );
                }
                self.store_reader_offsets(reader_offset);
            }
            Record::ReaderOffsets(reader_offsets) => self.store_reader_offsets(reader_offsets),
            Record::Forget { project } => {
                self.batch_keys.forget(&project);
                for segment in &mut self.segments {
                    segment.lost.retain(|(of, _)| *of != project.as_str());
                    let removed = segment.projects.remove(project.as_str());
                    for extent in removed.unwrap_or_default().extents {
                        segment.rows -= extent.span.rows;
                    }
                }
            }
        }
    }

    fn store_reader_offsets(&mut self, reader_offsets: impl IntoIterator<Item = ReaderOffset>) {
        for reader_offset in reader_offsets {
            if batch_keys::is_batch_key(&reader_offset) {
                self.batch_keys.insert(&reader_offset);
                continue;
            }
            match reader_offset.value.as_str() {
                "" => self.reader_offsets.remove(&reader_offset.name),
                _ => self
                    .reader_offsets
                    .insert(reader_offset.name, reader_offset.value),
            };
        }
    }

    /// Returns the reader offsets that a new segment starts with.
    pub(super) fn carried_offsets(&self) -> HashMap<String, String> {
        let mut carried = self.reader_offsets.clone();
        let keys = self.batch_keys.reader_offsets();
        carried.extend(keys.map(|offset| (offset.name, offset.value)));
        carried
    }

    pub(super) fn is_damaged(&self, number: u64) -> bool {
        let segment = self.segments.iter().find(|it| it.number == number);
        segment.is_some_and(|segment| segment.is_damaged)
    }

    /// Moves frames that cannot be read out of a project's lines. Returns those that were still
    /// there.
    pub(super) fn lose(
        &mut self,
        number: u64,
        project: &str,
        unreadable: &[FrameExtent],
    ) -> Vec<FrameExtent> {
        let mut lost = Vec::new();
        let Some(segment) = self.segments.iter_mut().find(|it| it.number == number) else {
            return lost;
        };
        let Some(pending) = segment.projects.get_mut(project) else {
            return lost;
        };
        for extent in unreadable {
            let known = pending
                .extents
                .iter()
                .position(|it| it.offset == extent.offset);
            // Converted frames were read before.
            if let Some(at) = known.filter(|at| *at >= pending.columnar.extents) {
                pending.extents.remove(at);
                lost.push(*extent);
            }
        }
        for extent in &lost {
            segment.is_damaged = true;
            segment.rows -= extent.span.rows;
            segment.lost.push((project.into(), *extent));
        }
        lost
    }

    /// Returns the number of the first segment that is not flushed to files.
    pub(super) fn first_unflushed(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.number)
    }

    /// Returns the size of the log in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Returns the number of frames with lines.
    pub(super) fn frames(&self) -> usize {
        self.segments.iter().map(|segment| segment.frames).sum()
    }
}
