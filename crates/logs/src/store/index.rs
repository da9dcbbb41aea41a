//! What stands in the log, and where: kept in memory, without the lines themselves.

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

/// The segments of the log, oldest first, and the marks that stand. The last segment is the one that is written to.
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
    /// How much of it is durable.
    pub(super) length: u64,
    pub(super) projects: HashMap<SmolStr, Pending>,
    pub(super) frames: usize,
    pub(super) rows: u64,
    /// How many files it becomes at most.
    pub(super) files: u64,
    /// When upkeep first saw lines in it.
    pub(super) since: Option<i64>,
}

/// Lines of one project in one segment.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) extents: Vec<Extent>,
    /// The first of the extents, laid out as they were once asked for.
    pub(super) laid_out: LaidOut,
}

/// Lines that were laid out.
#[derive(Debug, Default, Clone)]
pub(super) struct LaidOut {
    /// How many extents these are.
    pub(super) extents: usize,
    pub(super) batches: Vec<(RecordBatch, Span)>,
    /// The memory they take, until the last copy of this is gone.
    pub(super) charge: Option<Arc<Charge>>,
}

/// Memory that is accounted for while this lives.
#[derive(Debug)]
pub(super) struct Charge {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// Takes so much if the total stays within a bound.
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

/// Where one frame's payload stands.
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
        // Lines of the days that the frame before had go into the same files.
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
    /// Takes in a record that is durable at the end of the last segment.
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

    /// The first segment whose lines are not in files yet.
    pub(super) fn next(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.number)
    }

    /// How much disk the log takes.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// How many frames of lines there are.
    pub(super) fn frames(&self) -> usize {
        self.segments.iter().map(|segment| segment.frames).sum()
    }
}
