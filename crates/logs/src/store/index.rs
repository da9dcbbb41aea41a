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
    codec::{Record, Span},
    disk::LogFile,
    names,
};

/// Segments, oldest first, and current reader offsets. The last segment is the active one.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) segments: VecDeque<Segment>,
    pub(super) marks: HashMap<String, String>,
}

/// One file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<dyn LogFile>,
    /// Durable length in bytes.
    pub(super) length: u64,
    pub(super) projects: HashMap<SmolStr, Pending>,
    pub(super) frames: usize,
    pub(super) rows: u64,
    /// Upper bound on the number of files that a flush creates.
    pub(super) files: u64,
    /// The time at which upkeep first found lines in the segment.
    pub(super) since: Option<i64>,
}

/// Lines of one project in one segment.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) extents: Vec<Extent>,
    /// Columnar form of the first extents, cached by a previous query.
    pub(super) laid_out: LaidOut,
}

/// Lines converted to Arrow batches.
#[derive(Debug, Default, Clone)]
pub(super) struct LaidOut {
    /// Number of converted extents.
    pub(super) extents: usize,
    pub(super) batches: Vec<(RecordBatch, Span)>,
    /// Reserves the memory of the batches until the last clone is dropped.
    pub(super) charge: Option<Arc<Charge>>,
}

/// A reservation of memory, released on drop.
#[derive(Debug)]
pub(super) struct Charge {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// Reserves bytes. Returns `None` if the total would exceed `max`.
    pub(super) fn take(total: &Arc<AtomicU64>, bytes: u64, max: u64) -> Option<Self> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= max);
        total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .ok()?;
        Some(Self {
            total: Arc::clone(total),
            bytes,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The position of a frame's payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) span: Span,
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
            since: None,
        }
    }

    fn add(&mut self, project: &str, extent: Extent) {
        let Span {
            rows,
            earliest,
            latest,
        } = extent.span;
        let days = names::day(latest)
            .abs_diff(names::day(earliest))
            .saturating_add(1);
        let pending = self.projects.entry(project.into()).or_default();
        // Lines of the same days as the previous frame are written to the same files.
        let known = pending.extents.last().is_some_and(|before| {
            names::day(before.span.earliest) <= names::day(earliest)
                && names::day(latest) <= names::day(before.span.latest)
        });
        if !known {
            self.files = self.files.saturating_add(days.min(rows));
        }
        pending.extents.push(extent);
        self.frames += 1;
        self.rows += rows;
    }
}

impl Index {
    /// Applies a record that is durable at the end of the last segment.
    pub(super) fn apply(&mut self, record: Record, offset: u64, length: usize) {
        match record {
            Record::Lines {
                project,
                mark,
                span,
            } => {
                if let Some(segment) = self.segments.back_mut()
                    && span.rows > 0
                {
                    segment.add(
                        &project,
                        Extent {
                            offset,
                            length,
                            span,
                        },
                    );
                }
                self.remember(mark);
            }
            Record::Marks(marks) => self.remember(marks),
            Record::Forget { project } => {
                for segment in &mut self.segments {
                    let gone = segment
                        .projects
                        .remove(project.as_str())
                        .unwrap_or_default();
                    segment.rows -= gone
                        .extents
                        .iter()
                        .map(|extent| extent.span.rows)
                        .sum::<u64>();
                }
            }
        }
    }

    fn remember(&mut self, marks: impl IntoIterator<Item = super::Mark>) {
        for mark in marks {
            match mark.value.as_str() {
                "" => self.marks.remove(&mark.name),
                _ => self.marks.insert(mark.name, mark.value),
            };
        }
    }

    /// Returns the number of the first segment that is not flushed to files.
    pub(super) fn next(&self) -> u64 {
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
