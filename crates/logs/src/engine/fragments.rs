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
    parquet::file::{
        metadata::{ParquetMetaData, RowGroupMetaData},
        statistics::Statistics as ParquetStatistics,
    },
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::table::LogTable;
use crate::{
    layout,
    store::{FileEntry, TAIL_BYTES, View},
};

/// Number of concurrent metadata fetches.
const FETCHES_MAX: usize = 8;
/// Approximate maximum number of rows of a fragment. Each fragment costs the engine some tens of
/// microseconds.
const FRAGMENT_ROWS: u64 = 128 * 1024;

/// Two timestamps in microseconds. A window excludes its first and includes its last timestamp; the
/// range of a fragment includes both.
pub(super) type TimeRange = (i64, i64);

/// The position of a fragment relative to a time window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    Contained,
    Partial,
    Disjoint,
}

/// All fragments of one project.
pub(super) struct Fragments {
    recent: Vec<Fragment<RecordBatch>>,
    files: Vec<Fragment<PartitionedFile>>,
    readers: Arc<CachedParquetFileReaderFactory>,
}

struct Fragment<T> {
    rows: u64,
    range: TimeRange,
    content: T,
}

impl<T> Fragment<T> {
    fn overlap(&self, (after, until): TimeRange) -> Overlap {
        let (first, last) = self.range;
        if last <= after || until < first {
            Overlap::Disjoint
        } else if after < first && last <= until {
            Overlap::Contained
        } else {
            Overlap::Partial
        }
    }

    /// Estimates the rows within a window, assuming evenly spaced timestamps.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    fn estimate(&self, window: TimeRange) -> u64 {
        match self.overlap(window) {
            Overlap::Disjoint => 0,
            Overlap::Contained => self.rows,
            Overlap::Partial => {
                let (after, until) = window;
                let (first, last) = self.range;
                let within = last.min(until).saturating_sub(first.max(after)) as f64;
                let length = last.saturating_sub(first).max(1) as f64;
                (self.rows as f64 * within / length) as u64
            }
        }
    }
}

/// Returns the contents of the fragments with one kind of overlap.
fn contents<T: Clone>(fragments: &[Fragment<T>], window: TimeRange, overlap: Overlap) -> Vec<T> {
    fragments
        .iter()
        .filter(|fragment| fragment.overlap(window) == overlap)
        .map(|fragment| fragment.content.clone())
        .collect()
}

fn any_with<T>(fragments: &[Fragment<T>], window: TimeRange, overlap: Overlap) -> bool {
    fragments
        .iter()
        .any(|fragment| fragment.overlap(window) == overlap)
}

impl Fragments {
    #[cfg(test)]
    pub(super) fn recent(batch: RecordBatch) -> Self {
        use datafusion::{
            execution::cache::default_cache::DefaultCache, object_store::memory::InMemory,
        };
        let objects = Arc::new(InMemory::new());
        let cache = Arc::new(DefaultCache::new(0));
        let readers = Arc::new(CachedParquetFileReaderFactory::new(objects, cache));
        Self {
            recent: batch_fragment(batch).into_iter().collect(),
            files: Vec::new(),
            readers,
        }
    }

    /// Reads the Parquet metadata of all files of a view, through the cache.
    pub(super) async fn of(view: &View, cache: &Arc<FileMetadataCache>) -> Result<Self> {
        let files = stream::iter(view.files.clone())
            .map(|file| file_fragments(file, Arc::clone(&view.objects), Arc::clone(cache)));
        let files: Vec<Vec<_>> = files.buffered(FETCHES_MAX).try_collect().await?;
        let recent = view
            .recent
            .iter()
            .cloned()
            .filter_map(batch_fragment)
            .collect();
        let readers =
            CachedParquetFileReaderFactory::new(Arc::clone(&view.objects), Arc::clone(cache));
        Ok(Self {
            recent,
            files: files.into_iter().flatten().collect(),
            readers: Arc::new(readers),
        })
    }

    /// Estimates the number of lines within a window.
    pub(super) fn estimate(&self, window: TimeRange) -> u64 {
        let recent: u64 = self.recent.iter().map(|it| it.estimate(window)).sum();
        let files: u64 = self.files.iter().map(|it| it.estimate(window)).sum();
        recent + files
    }

    /// Returns a table with exactly the lines within a window.
    pub(super) fn table(&self, window: TimeRange) -> Result<ViewTable> {
        let contained = self.has(window, Overlap::Contained);
        let partial = self.has(window, Overlap::Partial);
        let lines = match (contained, partial) {
            (_, false) => self.scan(window, Overlap::Contained)?,
            (false, true) => self.filtered_scan(window)?,
            (true, true) => {
                let partial = self.filtered_scan(window)?.build()?;
                self.scan(window, Overlap::Contained)?.union(partial)?
            }
        };
        Ok(ViewTable::new(lines.build()?, None))
    }

    fn has(&self, window: TimeRange, overlap: Overlap) -> bool {
        any_with(&self.recent, window, overlap) || any_with(&self.files, window, overlap)
    }

    /// Scans the fragments with one kind of overlap.
    fn scan(&self, window: TimeRange, overlap: Overlap) -> Result<LogicalPlanBuilder> {
        let table = LogTable {
            recent: contents(&self.recent, window, overlap),
            files: contents(&self.files, window, overlap),
            readers: Arc::clone(&self.readers),
        };
        LogicalPlanBuilder::scan("lines", provider_as_source(Arc::new(table)), None)
    }

    /// Scans the lines within the window of fragments that reach beyond it.
    fn filtered_scan(&self, (after, until): TimeRange) -> Result<LogicalPlanBuilder> {
        let after_start = col("timestamp").gt(lit(timestamp(after)));
        let before_end = col("timestamp").lt_eq(lit(timestamp(until)));
        self.scan((after, until), Overlap::Partial)?
            .filter(after_start.and(before_end))
    }
}

fn timestamp(micros: i64) -> ScalarValue {
    ScalarValue::TimestampMicrosecond(Some(micros), None)
}

/// Returns `None` for an empty batch.
fn batch_fragment(batch: RecordBatch) -> Option<Fragment<RecordBatch>> {
    let timestamps = batch
        .column_by_name("timestamp")?
        .as_primitive::<TimestampMicrosecondType>();
    Some(Fragment {
        rows: batch.num_rows() as u64,
        range: (min(timestamps)?, max(timestamps)?),
        content: batch,
    })
}

async fn file_fragments(
    entry: FileEntry,
    objects: Arc<dyn ObjectStore>,
    cache: Arc<FileMetadataCache>,
) -> Result<Vec<Fragment<PartitionedFile>>> {
    let mut file = PartitionedFile::new(entry.path.to_string(), entry.size);
    let metadata = DFParquetMetadata::new(&objects, &file.object_meta)
        .with_file_metadata_cache(Some(cache))
        .with_metadata_size_hint(usize::try_from(TAIL_BYTES).ok())
        .fetch_metadata()
        .await?;
    // Files with the current columns skip schema inference; older files are read with their own
    // schema.
    if has_current_columns(&metadata) {
        file.arrow_schema = Some(layout::schema());
    }
    let mut groups: Vec<(GroupStatistics, i64)> = Vec::new();
    for row_group in metadata.row_groups() {
        let statistics = GroupStatistics::of(row_group);
        match groups.last_mut() {
            Some((group, _))
                if group.source == statistics.source
                    && group.rows + statistics.rows <= FRAGMENT_ROWS =>
            {
                group.add(&statistics);
            }
            _ => groups.push((statistics, start_offset(row_group))),
        }
    }
    // A fragment ends where the next one starts.
    let mut end = i64::try_from(entry.size).unwrap_or(i64::MAX);
    let mut fragments = Vec::with_capacity(groups.len());
    for (statistics, start) in groups.into_iter().rev() {
        fragments.push(Fragment {
            rows: statistics.rows,
            range: statistics.range.unwrap_or((entry.earliest, entry.latest)),
            content: file
                .clone()
                .with_range(start, end)
                .with_statistics(Arc::new(statistics.into_statistics())),
        });
        end = start;
    }
    fragments.reverse();
    Ok(fragments)
}

fn has_current_columns(metadata: &ParquetMetaData) -> bool {
    let file_schema = metadata.file_metadata().schema_descr();
    let columns = file_schema.root_schema().get_fields().iter();
    let current = layout::schema();
    let current = current.fields().iter().map(|field| field.name());
    columns.map(|field| field.name()).eq(current)
}

/// Returns the offset at which the engine assigns a row group to a byte range.
fn start_offset(group: &RowGroupMetaData) -> i64 {
    let first = group.column(0);
    first
        .dictionary_page_offset()
        .unwrap_or_else(|| first.data_page_offset())
}

/// Statistics of consecutive row groups.
struct GroupStatistics {
    rows: u64,
    /// `None` if a row group has no timestamp statistics.
    range: Option<TimeRange>,
    /// The source of all lines, if there is only one.
    source: Option<String>,
}

impl GroupStatistics {
    fn of(group: &RowGroupMetaData) -> Self {
        let range = match column_statistics(group, "timestamp") {
            Some(ParquetStatistics::Int64(it)) => it.min_opt().copied().zip(it.max_opt().copied()),
            _ => None,
        };
        Self {
            rows: u64::try_from(group.num_rows()).unwrap_or(0),
            range,
            source: column_statistics(group, "source").and_then(single_text),
        }
    }

    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.range = match (self.range, other.range) {
            (Some((first, last)), Some((other_first, other_last))) => {
                Some((first.min(other_first), last.max(other_last)))
            }
            _ => None,
        };
    }

    fn into_statistics(self) -> Statistics {
        let schema = layout::schema();
        let mut statistics = Statistics::new_unknown(&schema);
        statistics.num_rows = Precision::Exact(usize::try_from(self.rows).unwrap_or(usize::MAX));
        if let Some((first, last)) = self.range {
            let bounds = exact_bounds(timestamp(first), timestamp(last));
            set_column(&mut statistics, "timestamp", bounds);
        }
        if let Some(source) = self.source {
            let source = ScalarValue::Utf8View(Some(source));
            set_column(
                &mut statistics,
                "source",
                exact_bounds(source.clone(), source),
            );
        }
        statistics
    }
}

fn exact_bounds(min: ScalarValue, max: ScalarValue) -> ColumnStatistics {
    ColumnStatistics {
        null_count: Precision::Exact(0),
        min_value: Precision::Exact(min),
        max_value: Precision::Exact(max),
        ..ColumnStatistics::new_unknown()
    }
}

fn set_column(statistics: &mut Statistics, name: &str, column: ColumnStatistics) {
    if let Ok(at) = layout::schema().index_of(name)
        && let Some(entry) = statistics.column_statistics.get_mut(at)
    {
        *entry = column;
    }
}

fn column_statistics<'a>(group: &'a RowGroupMetaData, name: &str) -> Option<&'a ParquetStatistics> {
    group
        .columns()
        .iter()
        .find(|column| column.column_descr().name() == name)?
        .statistics()
}

/// Returns the text of a column if all rows have the same value.
fn single_text(statistics: &ParquetStatistics) -> Option<String> {
    let is_single = statistics.min_is_exact()
        && statistics.max_is_exact()
        && statistics.min_bytes_opt() == statistics.max_bytes_opt();
    if !is_single {
        return None;
    }
    String::from_utf8(statistics.min_bytes_opt()?.to_vec()).ok()
}
