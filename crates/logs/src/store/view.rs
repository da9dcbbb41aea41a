//! Consistent snapshots of one project's lines for readers.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use datafusion::{
    arrow::{array::RecordBatch, compute::concat_batches},
    object_store::{ObjectStore, path::Path},
};
use parking_lot::Mutex;

use super::{
    Shared, Store, StoreError, bounded, codec,
    codec::Span,
    disk::LogFile,
    index::{Charge, Extent, Index, LaidOut, Pending, Segment},
    names,
};
use crate::layout;

/// Maximum number of days whose directories are listed one by one. Longer windows list the whole
/// project.
const DAYS_ONE_BY_ONE: i64 = 4;
/// Maximum size of unflushed lines that one view converts, measured as size in the log.
const RECENT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A file of lines, described by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The path in [`View::objects`].
    pub path: Path,
    /// Size in bytes.
    pub size: u64,
    /// Number of lines.
    pub rows: u64,
    /// The earliest timestamp of a line.
    pub earliest: i64,
    /// The latest timestamp of a line.
    pub latest: i64,
}

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
    /// The object store of the files.
    pub objects: Arc<dyn ObjectStore>,
    _pin: Pin,
}

/// The last view number, and the numbers of live views.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<(u64, BTreeSet<u64>)>);

/// Keeps the files of a view from being deleted.
#[derive(Debug)]
struct Pin {
    pins: Arc<Pins>,
    number: u64,
}

impl Pins {
    fn pin(self: &Arc<Self>) -> Pin {
        let mut pins = self.0.lock();
        pins.0 += 1;
        let number = pins.0;
        pins.1.insert(number);
        Pin {
            pins: Arc::clone(self),
            number,
        }
    }

    /// Returns the number of the latest view.
    pub(super) fn moment(&self) -> u64 {
        self.0.lock().0
    }

    /// Whether all views up to a number are dropped.
    pub(super) fn passed(&self, moment: u64) -> bool {
        self.0.lock().1.first().is_none_or(|first| *first > moment)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.0.lock().1.remove(&self.number);
    }
}

/// The lines of a project in one segment.
struct Part {
    segment: u64,
    file: Arc<dyn LogFile>,
    laid_out: LaidOut,
    /// Extents after the cached ones.
    extents: Vec<Extent>,
}

impl Store {
    /// Returns the lines of a project with `after < timestamp <= until`: lines acknowledged by this
    /// node before the call, and lines of other nodes that are in files.
    pub async fn view(&self, project: &str, after: i64, until: i64) -> Result<View, StoreError> {
        names::check(project)?;
        let pin = self.shared.pins.pin();
        // Taken under one lock: the unflushed lines, and the first segment whose files are ignored.
        let (parts, next) = {
            let index = self.shared.index();
            (parts(&index, project), index.next())
        };
        let bytes = parts
            .iter()
            .flat_map(|part| &part.extents)
            .map(|extent| extent.length)
            .sum();
        bounded(
            "lines that wait for their files, in bytes,",
            bytes,
            RECENT_BYTES_MAX,
        )?;
        let (shared, name) = (Arc::clone(&self.shared), project.to_owned());
        let inside = move |span: &Span| after < span.latest && span.earliest <= until;
        let read = tokio::task::spawn_blocking(move || {
            let all = parts
                .into_iter()
                .map(|part| lay_out(&shared, &name, part, inside));
            all.collect::<Result<Vec<_>, _>>()
        });
        let laid_out = read.await.map_err(io::Error::other)??;
        let recent = laid_out
            .into_iter()
            .flatten()
            .filter(|(_, span)| inside(span))
            .map(|(batch, _)| batch)
            .collect();

        let mut files = Vec::new();
        let (first, last) = (names::day(after.saturating_add(1)), names::day(until));
        let few = last.saturating_sub(first) < DAYS_ONE_BY_ONE;
        let folders = if few {
            (first..=last)
                .map(|day| names::day_folder(project, day))
                .collect()
        } else {
            vec![names::project_folder(project)]
        };
        for folder in folders {
            files.extend(self.shared.list(Some(&folder)).await?);
        }
        let mut by_day: BTreeMap<i64, Vec<_>> = BTreeMap::new();
        for file in files {
            by_day
                .entry(names::day(file.name.latest))
                .or_default()
                .push(file);
        }
        let own = &self.shared.options.node;
        let count = by_day
            .into_values()
            .flat_map(|files| names::part(files, |node| (node == own).then_some(next)).0);
        let files = count
            .filter(|file| after < file.name.latest && file.name.earliest <= until)
            .map(|file| file.entry())
            .collect();
        Ok(View {
            recent,
            files,
            objects: Arc::clone(&self.shared.objects),
            _pin: pin,
        })
    }
}

fn parts(index: &Index, project: &str) -> Vec<Part> {
    let with = index
        .segments
        .iter()
        .filter_map(|segment| Some((segment, segment.projects.get(project)?)));
    let part = |(segment, pending): (&Segment, &Pending)| Part {
        segment: segment.number,
        file: Arc::clone(&segment.file),
        laid_out: pending.laid_out.clone(),
        extents: pending.extents[pending.laid_out.extents..].to_vec(),
    };
    with.map(part).collect()
}

/// Converts uncached extents that overlap the window, and caches them if memory permits.
fn lay_out(
    shared: &Shared,
    project: &str,
    part: Part,
    inside: impl Fn(&Span) -> bool,
) -> Result<Vec<(RecordBatch, Span)>, StoreError> {
    let Part {
        segment,
        file,
        mut laid_out,
        extents,
    } = part;
    let before = laid_out.extents;
    let asked = extents.iter().any(|extent| inside(&extent.span));
    let Some(span) = extents
        .iter()
        .map(|extent| extent.span)
        .reduce(both)
        .filter(|_| asked)
    else {
        return Ok(laid_out.batches);
    };
    let mut events = Vec::new();
    extents
        .iter()
        .try_for_each(|extent| read(&*file, *extent, &mut events))?;
    laid_out.batches.push((layout::batch(&events)?, span));
    laid_out.extents += extents.len();
    // Merges adjacent batches of similar size, which keeps the number of batches logarithmic and
    // copies each row a few times only.
    while let [.., (a, a_span), (b, b_span)] = laid_out.batches.as_slice()
        && a.num_rows() <= 2 * b.num_rows()
    {
        let merged = (
            concat_batches(&layout::schema(), [a, b])?,
            both(*a_span, *b_span),
        );
        laid_out.batches.truncate(laid_out.batches.len() - 2);
        laid_out.batches.push(merged);
    }
    let bytes = laid_out
        .batches
        .iter()
        .map(|(batch, _)| batch.get_array_memory_size() as u64)
        .sum();
    let mut index = shared.index();
    let there = index
        .segments
        .iter_mut()
        .find(|it| it.number == segment)
        .and_then(|it| it.projects.get_mut(project));
    // The cache is unchanged unless another reader was faster, or the project was deleted and
    // written again.
    let same = |pending: &Pending| {
        let last = pending.extents.get(laid_out.extents - 1);
        pending.laid_out.extents == before
            && last.map(|it| it.offset) == extents.last().map(|it| it.offset)
    };
    if let Some(pending) = there
        && same(pending)
        && let Some(charge) = Charge::take(&shared.laid_out, bytes, shared.options.laid_out_bytes)
    {
        laid_out.charge = Some(Arc::new(charge));
        pending.laid_out = laid_out.clone();
    }
    Ok(laid_out.batches)
}

/// Reads the lines of a frame.
pub(super) fn read(
    file: &dyn LogFile,
    extent: Extent,
    into: &mut Vec<crate::event::Event>,
) -> Result<(), StoreError> {
    let payload = file.read(extent.offset, extent.length)?;
    let read = codec::events(&payload, into);
    read.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the log of lines changed on disk",
        )
        .into()
    })
}

fn both(a: Span, b: Span) -> Span {
    Span {
        rows: a.rows + b.rows,
        earliest: a.earliest.min(b.earliest),
        latest: a.latest.max(b.latest),
    }
}
