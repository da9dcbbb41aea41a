//! Tails: every acknowledged line is read at least once and in order, also after flushes, faults
//! and power loss.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::store::tail::{TailBatch, TailLimit};

const LIMIT: TailLimit = TailLimit {
    lines: 3,
    bytes: 1 << 20,
};

fn ids(batch: &TailBatch) -> Vec<String> {
    batch.events.iter().map(|event| event.id.clone()).collect()
}

fn is_spool(name: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, kind)| kind == "tail")
}

/// Reads to the end. Returns the ids, the next line and the number of dropped lines.
async fn drain(store: &Store, project: &str, mut from: u64) -> (Vec<String>, u64, u64) {
    let (mut all, mut dropped) = (Vec::new(), 0);
    while let Some(batch) = store.read_tail(project, from, LIMIT).await.unwrap() {
        assert!(batch.events.len() <= LIMIT.lines && batch.next > from);
        assert_eq!(batch.next - batch.first, batch.events.len() as u64);
        dropped += batch.first - from;
        from = batch.next;
        all.extend(ids(&batch));
    }
    (all, from, dropped)
}

async fn append(store: &Store, project: &str, ids: &[&str]) {
    let events = ids.iter().map(|id| event(*id, NOW)).collect();
    store.append(batch(project, events)).await.unwrap();
}

/// Flushes all lines to files.
async fn flush(store: &Store, now: i64) {
    store.upkeep(now).await;
    store.upkeep(now + 10 * SECOND).await;
    assert_eq!(store.stats(now).pending_rows, 0);
}

#[tokio::test]
async fn tail_keeps_line_numbers_across_flush_merge_and_reopen() {
    let (disk, objects) = (SimDisk::default(), Arc::default());
    let store = open_store(options("n"), &disk, &objects).await;
    append(&store, "p", &["0", "1"]).await;
    let tail = store.open_tail("p", "e1").await.unwrap();
    assert_eq!((tail.first, tail.end, tail.epoch.as_str()), (0, 2, "e1"));
    assert_eq!(store.open_tail("p", "e2").await.unwrap().epoch, "e1");
    append(&store, "other", &["x"]).await;
    append(&store, "p", &["2", "3", "4", "5"]).await;
    let expected = ["0", "1", "2", "3", "4", "5"].map(str::to_owned).to_vec();
    assert_eq!(drain(&store, "p", 0).await, (expected.clone(), 6, 0));
    for turn in 0..4 {
        flush(&store, NOW + turn * 100 * SECOND).await;
        append(&store, "other", &["y"]).await;
    }
    assert_eq!(drain(&store, "p", 0).await, (expected.clone(), 6, 0));
    drop(store);
    let store = open_store(options("n"), &disk, &objects).await;
    let tail = store.tail("p").await.unwrap();
    assert_eq!((tail.first, tail.end, tail.recovered_end), (0, 6, 6));
    append(&store, "p", &["6"]).await;
    assert_eq!(drain(&store, "p", 0).await.0.len(), 7);
    assert_eq!(
        drain(&store, "p", 5).await,
        (vec!["5".into(), "6".into()], 7, 0)
    );
    assert_eq!(store.tail("other").await, None);
}

#[tokio::test]
async fn released_lines_are_deleted_and_numbers_go_on() {
    let (disk, objects) = (SimDisk::default(), Arc::default());
    let mut store = open_store(options("n"), &disk, &objects).await;
    store.open_tail("p", "e").await.unwrap();
    for turn in 0..3_u64 {
        append(&store, "p", &["a", "b"]).await;
        flush(&store, NOW + turn.cast_signed() * 100 * SECOND).await;
        store.release_tail("p", 2 * turn + 1).await.unwrap();
        let tail = store.tail("p").await.unwrap();
        assert_eq!((tail.first, tail.end), (2 * turn, 2 * turn + 2));
        store.release_tail("p", 2 * turn + 2).await.unwrap();
        drop(store);
        store = open_store(options("n"), &disk, &objects).await;
        let tail = store.tail("p").await.unwrap();
        assert_eq!((tail.first, tail.end), (2 * turn + 2, 2 * turn + 2));
        let spooled = disk.names().iter().filter(|it| is_spool(it)).count();
        assert_eq!(spooled, 1, "the file that records the number");
    }
    store.close_tail("p").await.unwrap();
    assert!(!disk.names().iter().any(|it| is_spool(it)));
    assert_eq!(store.open_tail("p", "e2").await.unwrap().end, 0);
}

#[tokio::test]
async fn spooled_lines_beyond_the_limits_are_dropped_and_counted() {
    let (disk, objects) = (SimDisk::default(), Arc::default());
    let options = Options {
        tail_project_bytes: 3000,
        tail_bytes: 5000,
        ..options("n")
    };
    let store = open_store(options, &disk, &objects).await;
    for project in ["small", "large"] {
        store.open_tail(project, "e").await.unwrap();
    }
    append(&store, "small", &["s0", "s1"]).await;
    let mut appended = 0;
    for turn in 0..40 {
        append(&store, "large", &["a", "b", "c"]).await;
        appended += 3;
        flush(&store, NOW + turn * 100 * SECOND).await;
    }
    let (read, next, dropped) = drain(&store, "large", 0).await;
    assert_eq!(next, appended);
    assert_eq!(read.len() as u64 + dropped, appended);
    assert!(dropped > 0 && !read.is_empty());
    assert_eq!(drain(&store, "small", 0).await.2, 0, "others keep theirs");
}

#[tokio::test]
async fn damaged_spool_file_is_skipped_and_counted() {
    let (disk, objects) = (SimDisk::default(), Arc::default());
    let store = open_store(options("n"), &disk, &objects).await;
    store.open_tail("p", "e").await.unwrap();
    append(&store, "p", &["0", "1", "2", "3", "4", "5"]).await;
    flush(&store, NOW).await;
    append(&store, "p", &["6"]).await;
    let names = disk.names();
    let spool = names.iter().find(|it| it.ends_with(".6.tail")).unwrap();
    disk.damage(spool, 60);
    assert_eq!(drain(&store, "p", 0).await, (vec!["6".into()], 7, 6));
}

#[tokio::test]
async fn append_notifies_readers_of_the_project() {
    let store = open_store(options("n"), &SimDisk::default(), &Arc::default()).await;
    store.open_tail("p", "e").await.unwrap();
    let mut changes = store.tail_changes("p");
    changes.mark_unchanged();
    append(&store, "other", &["x"]).await;
    assert!(!changes.has_changed().unwrap());
    append(&store, "p", &["0"]).await;
    assert!(changes.has_changed().unwrap());
    store.forget("p").await.unwrap();
    assert_eq!(store.tail("p").await, None);
    assert_eq!(store.read_tail("p", 0, LIMIT).await.unwrap(), None);
}

/// A step of a history.
#[derive(Debug, Clone)]
enum TailStep {
    Append {
        rows: usize,
        other: bool,
    },
    Upkeep {
        seconds: i64,
    },
    /// Reads lines and saves the position.
    Read {
        batches: usize,
    },
    Release,
    Reopen,
}

fn step() -> impl Strategy<Value = TailStep> {
    prop_oneof![
        6 => (1..7_usize, any::<bool>()).prop_map(|(rows, other)| TailStep::Append { rows, other }),
        5 => (0..40_i64).prop_map(|seconds| TailStep::Upkeep { seconds }),
        4 => (1..4_usize).prop_map(|batches| TailStep::Read { batches }),
        2 => Just(TailStep::Release),
        1 => Just(TailStep::Reopen),
    ]
}

/// A reader with a position that survives every fault.
struct ReaderSimulation {
    disk: SimDisk,
    objects: SimObjects,
    store: Option<Store>,
    acknowledged: Vec<String>,
    delivered: Vec<String>,
    next: u64,
    now: i64,
    appends: usize,
}

impl ReaderSimulation {
    async fn open(&mut self) {
        let options = Options {
            seal_bytes: 600,
            ..options("n")
        };
        let disk = Arc::new(self.disk.clone());
        let objects = Arc::new(self.objects.clone());
        self.store = None;
        self.store = match Store::open_with(options, disk, objects).await {
            Ok(store) => Some(store),
            Err(StoreError::Io(_)) => None,
            Err(error) => panic!("{error:?}"),
        };
    }

    async fn restart(&mut self) {
        self.store = None;
        self.disk.restart();
        self.disk
            .faults
            .plan(None, Vec::new(), self.now.unsigned_abs());
        self.open().await;
        let tail = self.store.as_ref().unwrap().tail("p").await.unwrap();
        assert!(tail.recovered_end >= self.next, "read lines are durable");
    }

    async fn read(&mut self, batches: usize) {
        let store = self.store.as_ref().unwrap();
        for _ in 0..batches {
            let Ok(Some(batch)) = store.read_tail("p", self.next, LIMIT).await else {
                return;
            };
            assert_eq!(batch.first, self.next, "nothing is dropped");
            self.next = batch.next;
            self.delivered.extend(ids(&batch));
        }
    }

    async fn run(&mut self, step: TailStep) {
        let Some(store) = &self.store else {
            return self.open().await;
        };
        match step {
            TailStep::Append { rows, other } => {
                let project = if other { "other" } else { "p" };
                let new: Vec<_> = (0..rows)
                    .map(|row| format!("{:05}-{row}", self.appends))
                    .collect();
                self.appends += 1;
                let events = new.iter().map(|id| event(id.clone(), NOW)).collect();
                let result = store.append(batch(project, events)).await;
                if result.is_ok() && !other {
                    self.acknowledged.extend(new);
                }
            }
            TailStep::Upkeep { seconds } => {
                self.now += seconds * SECOND;
                store.upkeep(self.now).await;
            }
            TailStep::Read { batches } => self.read(batches).await,
            TailStep::Release => {
                let _ = store.release_tail("p", self.next).await;
            }
            TailStep::Reopen => self.open().await,
        }
    }
}

async fn history(
    steps: Vec<TailStep>,
    power_loss: Option<u64>,
    failing_steps: Vec<u64>,
    random: u64,
) {
    let faults = Faults::default();
    let mut simulation = ReaderSimulation {
        disk: SimDisk::new(faults.clone()),
        objects: SimObjects {
            inner: Arc::default(),
            faults: faults.clone(),
        },
        store: None,
        acknowledged: Vec::new(),
        delivered: Vec::new(),
        next: 0,
        now: NOW,
        appends: 0,
    };
    simulation.open().await;
    let store = simulation.store.as_ref().unwrap();
    store.open_tail("p", "e").await.unwrap();
    faults.plan(power_loss, failing_steps, random);
    for step in steps {
        if faults.has_lost_power() {
            simulation.restart().await;
            faults.plan(power_loss, Vec::new(), random);
        }
        simulation.run(step).await;
    }
    simulation.restart().await;
    simulation.read(usize::MAX).await;
    let delivered: BTreeSet<_> = simulation.delivered.iter().collect();
    for id in &simulation.acknowledged {
        assert!(delivered.contains(id), "{id} was not read");
    }
    let order: Vec<_> = simulation
        .delivered
        .iter()
        .filter(|id| simulation.acknowledged.contains(id))
        .collect();
    assert_eq!(order, simulation.acknowledged.iter().collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn tail_delivers_acknowledged_lines_in_order_despite_faults(
        steps in proptest::collection::vec(step(), 1..60),
        power_loss in proptest::option::of(0..80_u64),
        failing_steps in proptest::collection::vec(0..120_u64, 0..6),
        random: u64,
    ) {
        block_on(history(steps, power_loss, failing_steps, random));
    }
}
