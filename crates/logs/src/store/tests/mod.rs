//! Tests of durability: acknowledged lines are present exactly once after any sequence of failures.

mod kill;
mod model;
mod rules;
mod sim;

use std::{collections::BTreeMap, future::Future, sync::Arc};

use datafusion::{
    arrow::array::{AsArray, RecordBatch},
    object_store::{ObjectStore, ObjectStoreExt},
    parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
};

use super::{Batch, Mark, Options, Store, StoreError, View};
use crate::event::{Attributes, Event, Source, Value};

/// Microseconds per second.
const SECOND: i64 = 1_000_000;
/// The start time of the tests.
const NOW: i64 = 1_790_000_000 * SECOND;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn event(id: impl Into<String>, timestamp: i64) -> Event {
    let mut attributes = Attributes::default();
    attributes.add("request.path", Value::Text("/rest/v1/t".into()));
    attributes.add("colo", Value::Text("FRA".into()));
    Event::new(
        id.into(),
        timestamp,
        Source::Edge,
        "GET | 200".into(),
        attributes,
    )
}

fn batch(project: &str, events: Vec<Event>) -> Batch {
    Batch {
        project: project.into(),
        events,
        mark: None,
    }
}

fn ids_of(batch: &RecordBatch) -> impl Iterator<Item = String> {
    let ids: Vec<_> = batch
        .column_by_name("id")
        .unwrap()
        .as_string_view()
        .iter()
        .flatten()
        .map(str::to_owned)
        .collect();
    ids.into_iter()
}

/// Returns the sorted ids of the lines of a view.
async fn read(view: &View) -> Vec<String> {
    let mut ids: Vec<_> = view.recent.iter().flat_map(ids_of).collect();
    for file in &view.files {
        let bytes = view
            .objects
            .get(&file.path)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        assert_eq!(bytes.len() as u64, file.size);
        let before = ids.len();
        for batch in ParquetRecordBatchReaderBuilder::try_new(bytes)
            .unwrap()
            .build()
            .unwrap()
        {
            ids.extend(ids_of(&batch.unwrap()));
        }
        assert_eq!(
            (ids.len() - before) as u64,
            file.rows,
            "the name says how many"
        );
    }
    ids.sort();
    ids
}

/// Returns the sorted ids of all lines of a project.
async fn all(store: &Store, project: &str) -> Vec<String> {
    read(&store.view(project, i64::MIN, i64::MAX).await.unwrap()).await
}
