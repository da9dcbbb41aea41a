//! What a reader is given: the lines of one project at one moment.

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

/// Days of a window whose folders are looked into one by one; for more, all of a project's are.
const DAYS_ONE_BY_ONE: i64 = 4;
/// What a reader may ask to have laid out, as it is in the log, in bytes.
const RECENT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// One file of lines, as its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Where it is in [`View::objects`].
    pub path: Path,
    /// Its size in bytes.
    pub size: u64,
    /// How many lines it holds.
    pub rows: u64,
    /// The timestamp of its earliest line.
    pub earliest: i64,
    /// The timestamp of its latest line.
    pub latest: i64,
}

/// Lines of one project as they were at one moment. Every line is in exactly one of `recent` and `files`; both may hold some
/// that lie outside of the window that was asked for. What is listed stays readable until this is dropped.
#[derive(Debug)]
pub struct View {
    /// Lines that are in no file yet, in no order, laid out as [`layout::schema`] says.
    pub recent: Vec<RecordBatch>,
    /// Files, each sorted by source, then timestamp. Older ones may lack columns that [`layout::COLUMNS`] has at its end.
    pub files: Vec<FileEntry>,
    /// Where the files are.
    pub objects: Arc<dyn ObjectStore>,
    _pin: Pin,
}

/// The views that live, by the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<(u64, BTreeSet<u64>)>);

/// As long as this lives, files that were there when it began stay.
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

    /// A moment: views that begin later have higher numbers.
    pub(super) fn moment(&self) -> u64 {
        self.0.lock().0
    }

    /// Whether all views that had begun by a moment are gone.
    pub(super) fn passed(&self, moment: u64) -> bool {
        self.0.lock().1.first().is_none_or(|first| *first > moment)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.0.lock().1.remove(&self.number);
    }
}

/// Lines of one segment that are asked for.
struct Part {
    segment: u64,
    file: Arc<dyn LogFile>,
    laid_out: LaidOut,
    /// Those that were not laid out yet.
    extents: Vec<Extent>,
}

impl Store {
    /// The lines of a project with `after < timestamp <= until`: those that were acknowledged on this node before this was called,
    /// and those that other nodes had made files of.
    pub async fn view(&self, project: &str, after: i64, until: i64) -> Result<View, StoreError> {
        names::check(project)?;
        let pin = self.shared.pins.pin();
        // At one moment: what is in the log, and from which segment on files do not count.
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

/// Lays out what was not yet, and keeps it for the next reader if there is room.
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
    // Few batches, each row copied a few times: like digits of a number that is counted up.
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
    // Unless another reader was faster, or the project was removed meanwhile and other lines came.
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
