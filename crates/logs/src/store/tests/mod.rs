//! Tests of durability: acknowledged lines are present exactly once after any sequence of failures.

mod damage;
mod durability;
mod kill;
mod maintenance;
mod model;
mod reading;
mod recovery;
mod repair;
mod sim;
mod tail;

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use datafusion::{
    arrow::array::{AsArray, RecordBatch},
    object_store::{ObjectStore, ObjectStoreExt, memory::InMemory},
    parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
};
use futures_util::TryStreamExt;

use self::sim::{Faults, SimDisk, SimObjects};
use super::{Batch, FileEntry, Options, ReaderOffset, Store, StoreError, View};
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
        reader_offset: None,
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
            "row count in the file name"
        );
    }
    ids.sort();
    ids
}

/// Returns the sorted ids of all lines of a project.
async fn all(store: &Store, project: &str) -> Vec<String> {
    read(&store.view(project, i64::MIN, i64::MAX).await.unwrap()).await
}

fn options(node: &str) -> Options {
    Options {
        seal_after: Duration::from_secs(10),
        merge_files: 3,
        grace: Duration::from_secs(30),
        ..Options::new("unused", node)
    }
}

/// Opens a store without faults.
async fn open_store(options: Options, disk: &SimDisk, objects: &Arc<InMemory>) -> Store {
    let objects = SimObjects {
        inner: Arc::clone(objects),
        faults: Faults::default(),
    };
    Store::open_with(options, Arc::new(disk.clone()), Arc::new(objects))
        .await
        .unwrap()
}

/// Returns all valid files of a project.
async fn files(store: &Store, project: &str) -> Vec<FileEntry> {
    store.view(project, i64::MIN, i64::MAX).await.unwrap().files
}

/// Returns the names of the segments of the log, oldest first.
fn segments(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.names();
    names.retain(|name| super::log::segment_number(name).is_some());
    names
}

async fn count_objects(objects: &InMemory) -> usize {
    objects
        .list(None)
        .try_collect::<Vec<_>>()
        .await
        .unwrap()
        .len()
}
