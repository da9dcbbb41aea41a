//! Parquet files of lines, sorted by source and timestamp.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::{
    arrow::{
        array::{AsArray, RecordBatch, new_null_array},
        compute::{interleave_record_batch, max, min},
        datatypes::TimestampMicrosecondType,
    },
    parquet::{
        arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
        basic::{Compression, Encoding, ZstdLevel},
        file::{metadata::SortingColumn, properties::WriterProperties},
    },
};

use super::{
    checksums,
    error::StoreError,
    names::{FileName, Volume},
};
use crate::{event::Event, layout};

/// Maximum number of rows converted at once.
const CHUNK_ROWS: usize = 8192;
/// Maximum size of rows converted at once, computed from the average row size of the file.
const CHUNK_BYTES: u64 = 8 * 1024 * 1024;
/// Maximum number of rows of a row group.
const GROUP_ROWS: usize = 64 * 1024;
/// Maximum size of a row group, computed from the average row size of the file. The average can be
/// wrong for uneven lines, but the size of the whole file is bounded too.
const GROUP_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of rows of a page, the smallest unit that a query reads of a column.
const PAGE_ROWS: usize = 8192;

/// Returns the settings of the Parquet writer.
fn properties(volume: Volume) -> WriterProperties {
    let sorting = ["source", "timestamp"].into_iter().filter_map(ascending);
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(volume.rows_within(GROUP_BYTES, GROUP_ROWS)))
        .set_data_page_row_count_limit(PAGE_ROWS)
        // Timestamps increase in small steps, and ids are unique.
        .set_column_dictionary_enabled("timestamp".into(), false)
        .set_column_encoding("timestamp".into(), Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled("id".into(), false)
        .set_sorting_columns(Some(sorting.collect()))
        .set_created_by(checksums::CREATED_BY.to_owned())
        .build()
}

/// Returns the declaration that a file is sorted by a column.
fn ascending(column: &str) -> Option<SortingColumn> {
    let index = layout::schema().index_of(column).ok()?;
    Some(SortingColumn {
        column_idx: i32::try_from(index).ok()?,
        descending: false,
        nulls_first: false,
    })
}

/// Writes lines to a file. Sorts them first, keeping the order of lines with equal source and
/// timestamp.
pub(super) fn write_sorted(events: &mut [Event], volume: Volume) -> Result<Bytes, StoreError> {
    events.sort_by(|a, b| {
        a.source_name()
            .cmp(b.source_name())
            .then(a.timestamp.cmp(&b.timestamp))
    });
    write(
        volume,
        events
            .chunks(volume.rows_within(CHUNK_BYTES, CHUNK_ROWS))
            .map(|chunk| Ok(layout::batch(chunk)?)),
    )
}

/// Merges several files into one.
pub(super) fn merge(files: Vec<Bytes>, volume: Volume) -> Result<Bytes, StoreError> {
    let mut batches = Vec::new();
    for file in files {
        for batch in ParquetRecordBatchReaderBuilder::try_new(file)?
            .with_batch_size(CHUNK_ROWS)
            .build()?
        {
            batches.push(to_current_schema(&batch?)?);
        }
    }
    write_merged(&batches, volume)
}

/// Writes batches to one file, sorted.
fn write_merged(batches: &[RecordBatch], volume: Volume) -> Result<Bytes, StoreError> {
    let mut order = Vec::new();
    for (at, batch) in batches.iter().enumerate() {
        let (Some(sources), Some(timestamps)) = (
            batch.column_by_name("source"),
            batch.column_by_name("timestamp"),
        ) else {
            continue;
        };
        let sources = sources.as_string_view();
        let timestamps = timestamps.as_primitive::<TimestampMicrosecondType>();
        for row in 0..batch.num_rows() {
            order.push((sources.value(row), timestamps.value(row), (at, row)));
        }
    }
    // The sort is stable: equal keys keep the order of their files.
    order.sort_by_key(|(source, timestamp, _)| (*source, *timestamp));
    let all: Vec<&RecordBatch> = batches.iter().collect();
    write(
        volume,
        order
            .chunks(volume.rows_within(CHUNK_BYTES, CHUNK_ROWS))
            .map(|chunk| {
                let rows: Vec<_> = chunk.iter().map(|(.., row)| *row).collect();
                Ok(interleave_record_batch(&all, &rows)?)
            }),
    )
}

fn write(
    volume: Volume,
    batches: impl Iterator<Item = Result<RecordBatch, StoreError>>,
) -> Result<Bytes, StoreError> {
    let mut writer = ArrowWriter::try_new(Vec::new(), layout::schema(), Some(properties(volume)))?;
    for batch in batches {
        writer.write(&batch?)?;
    }
    Ok(checksums::seal(writer.into_inner()?).into())
}

/// Writes the intact row groups of a damaged file to a new one. Returns `None` if there are none.
pub(super) fn salvage(file: &Bytes, name: &FileName) -> Option<(FileName, Bytes)> {
    let metadata = ParquetRecordBatchReaderBuilder::try_new(file.clone()).ok()?;
    let mut batches = Vec::new();
    for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
        let mut ranges = group.columns().iter().map(|column| {
            let (start, length) = column.byte_range();
            start..start + length
        });
        if !ranges.all(|range| checksums::is_intact(file, &range)) {
            continue;
        }
        let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).ok()?;
        let Ok(reader) = builder.with_row_groups(vec![number]).build() else {
            continue;
        };
        if let Ok(intact) = reader.collect::<Result<Vec<_>, _>>() {
            batches.extend(intact);
        }
    }
    let mut batches: Vec<_> = (batches.iter())
        .map(to_current_schema)
        .collect::<Result<_, _>>()
        .ok()?;
    batches.retain(|batch| batch.num_rows() > 0);
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let mut salvaged = name.clone();
    salvaged.bytes = name.bytes.saturating_mul(rows) / name.rows.max(1);
    salvaged.rows = rows;
    let mut earliest = Vec::new();
    let mut latest = Vec::new();
    for batch in &batches {
        let timestamps = batch.column_by_name("timestamp")?;
        let timestamps = timestamps.as_primitive::<TimestampMicrosecondType>();
        earliest.extend(min(timestamps));
        latest.extend(max(timestamps));
    }
    salvaged.earliest = earliest.into_iter().min()?;
    salvaged.latest = latest.into_iter().max()?;
    let content = write_merged(&batches, salvaged.volume()).ok()?;
    Some((salvaged, content))
}

/// Decodes a complete file, which finds damage in files without checksums.
pub(super) fn decode(file: Bytes) -> Result<(), StoreError> {
    for batch in ParquetRecordBatchReaderBuilder::try_new(file)?.build()? {
        batch?;
    }
    Ok(())
}

/// Converts a batch to the current schema. Columns added since are null.
fn to_current_schema(batch: &RecordBatch) -> Result<RecordBatch, StoreError> {
    let schema = layout::schema();
    if batch.schema().fields() == schema.fields() {
        return Ok(batch.clone());
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let column = batch
            .column_by_name(field.name())
            .filter(|column| column.data_type() == field.data_type());
        columns.push(match column {
            Some(column) => Arc::clone(column),
            None => new_null_array(field.data_type(), batch.num_rows()),
        });
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}

#[cfg(test)]
mod tests {
    use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

    use super::*;
    use crate::event::{Attributes, Source, Value};

    fn event(id: usize, timestamp: i64, source: Source) -> Event {
        let mut attributes = Attributes::default();
        attributes.add("request.path", Value::Text(format!("/{id}")));
        attributes.add("unknown", Value::Integer(7));
        Event::new(id.to_string(), timestamp, source, "m".into(), attributes)
    }

    const SMALL: Volume = Volume {
        rows: 3,
        bytes: 300,
    };

    fn metadata(file: &Bytes) -> Arc<ParquetMetaData> {
        Arc::clone(
            ParquetRecordBatchReaderBuilder::try_new(file.clone())
                .unwrap()
                .metadata(),
        )
    }

    fn read(file: Bytes) -> Vec<RecordBatch> {
        ParquetRecordBatchReaderBuilder::try_new(file)
            .unwrap()
            .build()
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    fn ids(file: Bytes) -> Vec<String> {
        read(file)
            .iter()
            .flat_map(|batch| {
                batch
                    .column(0)
                    .as_string_view()
                    .iter()
                    .flatten()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn written_and_merged_files_are_sorted() {
        let mut one = vec![
            event(1, 30, Source::Edge),
            event(2, 10, Source::Auth),
            event(3, 20, Source::Edge),
        ];
        let mut other = vec![
            event(4, 25, Source::Edge),
            event(5, 5, Source::Auth),
            event(6, 20, Source::Edge),
        ];
        let one = write_sorted(&mut one, SMALL).unwrap();
        let other = write_sorted(&mut other, SMALL).unwrap();
        assert_eq!(ids(one.clone()), ["2", "3", "1"]);
        let merged = merge(vec![one, other], SMALL).unwrap();
        assert_eq!(
            read(merged.clone())[0].schema().fields(),
            layout::schema().fields()
        );
        assert_eq!(ids(merged), ["5", "2", "3", "6", "4", "1"]);
    }

    #[test]
    fn merge_accepts_files_without_the_newest_columns() {
        let schema = layout::schema();
        let added = schema.index_of("@external_id").unwrap();
        let batch = layout::batch(&[event(1, 1, Source::Edge)]).unwrap();
        let old = batch
            .project(
                &(0..schema.fields().len())
                    .filter(|at| *at != added)
                    .collect::<Vec<_>>(),
            )
            .unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), old.schema(), None).unwrap();
        writer.write(&old).unwrap();
        let newer = write_sorted(&mut [event(2, 0, Source::Edge)], SMALL).unwrap();
        let merged = merge(vec![writer.into_inner().unwrap().into(), newer], SMALL).unwrap();
        assert_eq!(ids(merged), ["2", "1"]);
    }

    #[test]
    fn row_groups_are_limited_in_rows_and_bytes() {
        const ROWS: usize = 1100;
        let mut long: Vec<_> = (0..ROWS)
            .map(|id| Event {
                message: format!("{id:032x}").repeat(2000),
                ..event(id, 0, Source::Edge)
            })
            .collect();
        let volume = Volume {
            rows: ROWS as u64,
            bytes: ROWS as u64 * 64_000,
        };
        let file = write_sorted(&mut long, volume).unwrap();
        let merged = merge(
            vec![file.clone(), write_sorted(&mut long[..1], volume).unwrap()],
            volume,
        )
        .unwrap();
        for file in [file, merged] {
            let groups: Vec<_> = metadata(&file)
                .row_groups()
                .iter()
                .map(|group| (group.num_rows(), group.total_byte_size()))
                .collect();
            assert!(
                groups.len() >= 2
                    && groups
                        .iter()
                        .all(|(rows, _)| rows * 64_000 <= i64::try_from(GROUP_BYTES).unwrap()),
                "{groups:?}"
            );
        }
        let mut short: Vec<_> = (0..GROUP_ROWS + 10)
            .map(|id| event(id, 0, Source::Edge))
            .collect();
        let file = write_sorted(&mut short, Volume { rows: 1, bytes: 0 }).unwrap();
        let groups: Vec<_> = metadata(&file)
            .row_groups()
            .iter()
            .map(RowGroupMetaData::num_rows)
            .collect();
        assert_eq!(groups, [i64::try_from(GROUP_ROWS).unwrap(), 10]);
    }
}
