//! Fragments of a project's lines with statistics for pruning.
//!
//! A file fragment is a run of row groups with the same source, bounded in rows so that all threads
//! get work. Its statistics let the engine skip filters: a fragment of one source needs no filter
//! on the source, and a fragment inside the time window needs no filter on the timestamp.

use std::sync::Arc;

use datafusion::{
    arrow::{
        array::{AsArray as _, RecordBatch},
        compute::{max, min},
        datatypes::TimestampMicrosecondType,
    },
    common::{ColumnStatistics, Result, ScalarValue, Statistics, stats::Precision},
    datasource::{
        ViewTable,
        listing::PartitionedFile,
        physical_plan::parquet::{CachedParquetFileReaderFactory, metadata::DFParquetMetadata},
        provider_as_source,
    },
    execution::cache::cache_manager::FileMetadataCache,
    logical_expr::{LogicalPlanBuilder, col, lit},
    object_store::ObjectStore,
    parquet::file::{metadata::RowGroupMetaData, statistics::Statistics as Bounds},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::table::Lines;
use crate::{
    layout,
    store::{FileEntry, View},
};

/// Number of files whose metadata is fetched concurrently.
const LOOKS: usize = 8;
/// Approximate maximum number of rows of a fragment. Each fragment costs the engine some tens of
/// microseconds.
const PART_ROWS: u64 = 128 * 1024;

/// Two timestamps in microseconds. A window excludes its first and includes its last timestamp; the
/// range of a fragment includes both.
pub(super) type Span = (i64, i64);

/// The position of a fragment relative to a time window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Inside,
    Across,
    Outside,
}

/// All fragments of one project.
pub(super) struct Parts {
    recent: Vec<Part<RecordBatch>>,
    files: Vec<Part<PartitionedFile>>,
    readers: Arc<CachedParquetFileReaderFactory>,
}

struct Part<T> {
    rows: u64,
    span: Span,
    of: T,
}

impl<T> Part<T> {
    fn position(&self, (after, until): Span) -> Position {
        match self.span {
            (first, last) if last <= after || until < first => Position::Outside,
            (first, last) if after < first && last <= until => Position::Inside,
            _ => Position::Across,
        }
    }

    /// Estimates the rows within a window, assuming evenly spaced timestamps.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    fn estimate(&self, (after, until): Span) -> u64 {
        match self.position((after, until)) {
            Position::Outside => 0,
            Position::Inside => self.rows,
            Position::Across => {
                let (first, last) = self.span;
                let within = last.min(until).saturating_sub(first.max(after)) as f64;
                (self.rows as f64 * within / (last.saturating_sub(first).max(1)) as f64) as u64
            }
        }
    }
}

impl Parts {
    #[cfg(test)]
    pub(super) fn recent(batch: RecordBatch) -> Self {
        use datafusion::{
            execution::cache::default_cache::DefaultCache, object_store::memory::InMemory,
        };
        let (objects, cache) = (Arc::new(InMemory::new()), Arc::new(DefaultCache::new(0)));
        let readers = Arc::new(CachedParquetFileReaderFactory::new(objects, cache));
        Self {
            recent: of_batch(batch).into_iter().collect(),
            files: Vec::new(),
            readers,
        }
    }

    /// Reads the Parquet metadata of all files of a view, through the cache.
    pub(super) async fn of(view: &View, cache: &Arc<FileMetadataCache>) -> Result<Self> {
        let files = stream::iter(view.files.clone())
            .map(|file| of_file(file, Arc::clone(&view.objects), Arc::clone(cache)));
        let files: Vec<Vec<_>> = files.buffered(LOOKS).try_collect().await?;
        let recent = view.recent.iter().cloned().filter_map(of_batch).collect();
        let readers =
            CachedParquetFileReaderFactory::new(Arc::clone(&view.objects), Arc::clone(cache));
        Ok(Self {
            recent,
            files: files.into_iter().flatten().collect(),
            readers: Arc::new(readers),
        })
    }

    /// Estimates the number of lines within a window.
    pub(super) fn estimate(&self, window: Span) -> u64 {
        let recent = self.recent.iter().map(|part| part.estimate(window));
        recent
            .chain(self.files.iter().map(|part| part.estimate(window)))
            .sum()
    }

    /// Returns a table with exactly the lines within a window.
    pub(super) fn table(&self, window: Span) -> Result<ViewTable> {
        let scan = |position| {
            LogicalPlanBuilder::scan(
                "lines",
                provider_as_source(Arc::new(self.lines(window, position))),
                None,
            )
        };
        let moment = |it| lit(ScalarValue::TimestampMicrosecond(Some(it), None));
        let (after, until) = window;
        let across = || {
            scan(Position::Across)?.filter(
                col("timestamp")
                    .gt(moment(after))
                    .and(col("timestamp").lt_eq(moment(until))),
            )
        };
        let any = |position| {
            self.recent
                .iter()
                .any(|part| part.position(window) == position)
                || self
                    .files
                    .iter()
                    .any(|part| part.position(window) == position)
        };
        let lines = match (any(Position::Inside), any(Position::Across)) {
            (_, false) => scan(Position::Inside)?,
            (false, true) => across()?,
            (true, true) => scan(Position::Inside)?.union(across()?.build()?)?,
        };
        Ok(ViewTable::new(lines.build()?, None))
    }

    fn lines(&self, window: Span, position: Position) -> Lines {
        Lines {
            recent: self
                .recent
                .iter()
                .filter(|part| part.position(window) == position)
                .map(|part| part.of.clone())
                .collect(),
            files: self
                .files
                .iter()
                .filter(|part| part.position(window) == position)
                .map(|part| part.of.clone())
                .collect(),
            readers: Arc::clone(&self.readers),
        }
    }
}

/// Returns `None` for an empty batch.
fn of_batch(batch: RecordBatch) -> Option<Part<RecordBatch>> {
    let moments = batch
        .column_by_name("timestamp")?
        .as_primitive::<TimestampMicrosecondType>();
    Some(Part {
        rows: batch.num_rows() as u64,
        span: (min(moments)?, max(moments)?),
        of: batch,
    })
}

async fn of_file(
    entry: FileEntry,
    objects: Arc<dyn ObjectStore>,
    cache: Arc<FileMetadataCache>,
) -> Result<Vec<Part<PartitionedFile>>> {
    let mut file = PartitionedFile::new(entry.path.to_string(), entry.size);
    let look =
        DFParquetMetadata::new(&objects, &file.object_meta).with_file_metadata_cache(Some(cache));
    let metadata = look.fetch_metadata().await?;
    let named = metadata
        .file_metadata()
        .schema_descr()
        .root_schema()
        .get_fields()
        .iter()
        .map(|field| field.name());
    // Files with the current column names skip schema inference; older files are read with their
    // own schema.
    file.arrow_schema = Some(layout::schema())
        .filter(|today| named.eq(today.fields().iter().map(|field| field.name())));
    let mut parts: Vec<(Holds, i64)> = Vec::new();
    for group in metadata.row_groups() {
        let holds = Holds::of(group);
        match parts.last_mut() {
            Some((part, _))
                if part.source == holds.source && part.rows + holds.rows <= PART_ROWS =>
            {
                part.add(&holds)
            }
            _ => parts.push((holds, begin(group))),
        }
    }
    let ends: Vec<i64> = parts
        .iter()
        .skip(1)
        .map(|(_, begin)| *begin)
        .chain([i64::try_from(entry.size).unwrap_or(i64::MAX)])
        .collect();
    let parts = parts
        .into_iter()
        .zip(ends)
        .map(|((holds, begin), end)| Part {
            rows: holds.rows,
            span: holds.span.unwrap_or((entry.earliest, entry.latest)),
            of: file
                .clone()
                .with_range(begin, end)
                .with_statistics(Arc::new(holds.statistics())),
        });
    Ok(parts.collect())
}

/// Returns the offset at which the engine assigns a row group to a byte range.
fn begin(group: &RowGroupMetaData) -> i64 {
    let first = group.column(0);
    first
        .dictionary_page_offset()
        .unwrap_or_else(|| first.data_page_offset())
}

/// Statistics of consecutive row groups.
struct Holds {
    rows: u64,
    /// `None` if a row group has no timestamp statistics.
    span: Option<Span>,
    /// The source of all lines, if there is only one.
    source: Option<String>,
}

impl Holds {
    fn of(group: &RowGroupMetaData) -> Self {
        let bounds = |name: &str| {
            group
                .columns()
                .iter()
                .find(|column| column.column_descr().name() == name)?
                .statistics()
        };
        let span = match bounds("timestamp") {
            Some(Bounds::Int64(it)) => it.min_opt().copied().zip(it.max_opt().copied()),
            _ => None,
        };
        let source = bounds("source").filter(|it| {
            it.min_is_exact() && it.max_is_exact() && it.min_bytes_opt() == it.max_bytes_opt()
        });
        Self {
            rows: u64::try_from(group.num_rows()).unwrap_or(0),
            span,
            source: source.and_then(|it| String::from_utf8(it.min_bytes_opt()?.to_vec()).ok()),
        }
    }

    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.span = self
            .span
            .zip(other.span)
            .map(|(one, other)| (one.0.min(other.0), one.1.max(other.1)));
    }

    fn statistics(&self) -> Statistics {
        let schema = layout::schema();
        let mut statistics = Statistics::new_unknown(&schema);
        statistics.num_rows = Precision::Exact(usize::try_from(self.rows).unwrap_or(usize::MAX));
        let mut tell = |name: &str, min: ScalarValue, max: ScalarValue| {
            if let Some(column) = schema
                .index_of(name)
                .ok()
                .and_then(|at| statistics.column_statistics.get_mut(at))
            {
                *column = ColumnStatistics {
                    null_count: Precision::Exact(0),
                    min_value: Precision::Exact(min),
                    max_value: Precision::Exact(max),
                    ..ColumnStatistics::new_unknown()
                };
            }
        };
        if let Some((first, last)) = self.span {
            let moment = |it| ScalarValue::TimestampMicrosecond(Some(it), None);
            tell("timestamp", moment(first), moment(last));
        }
        if let Some(source) = &self.source {
            let source = ScalarValue::Utf8View(Some(source.clone()));
            tell("source", source.clone(), source);
        }
        statistics
    }
}
