//! Recovery of a damaged log: readable lines are kept, and the rest is reported with its size.

use super::{super::log, *};

/// A log of one segment, and the end of each of its frames in bytes.
struct TestLog {
    disk: SimDisk,
    objects: Arc<InMemory>,
    segment: String,
    ends: Vec<usize>,
}

impl TestLog {
    /// Appends three frames of one line each, those of `q` between those of `p`.
    async fn new() -> Self {
        let disk = SimDisk::default();
        let objects = Arc::default();
        let store = open_store(options("n"), &disk, &objects).await;
        let mut ends = Vec::new();
        for (project, id) in [("p", "1"), ("q", "2"), ("p", "3")] {
            let appended = store.append(batch(project, vec![event(id, NOW)])).await;
            appended.unwrap();
            ends.push(usize::try_from(store.stats(NOW).log_bytes).unwrap());
        }
        drop(store);
        let segment = segments(&disk).remove(0);
        Self {
            disk,
            objects,
            segment,
            ends,
        }
    }

    async fn open(&self) -> Store {
        open_store(options("n"), &self.disk, &self.objects).await
    }

    /// Returns the lines of both projects, and the number of dropped bytes.
    async fn recover(&self) -> (Vec<String>, Vec<String>, u64) {
        let store = self.open().await;
        let dropped = store.stats(NOW).dropped_bytes;
        (all(&store, "p").await, all(&store, "q").await, dropped)
    }
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn damaged_frame_of_one_project_keeps_all_others() {
    let log = TestLog::new().await;
    let (first, second) = (log.ends[0], log.ends[1]);
    // The magic, the length, the checksum and the payload of the frame.
    for at in [first, first + 5, first + 13, second - 1] {
        log.disk.damage(&log.segment, at);
        let dropped = (second - first) as u64;
        assert_eq!(log.recover().await, (ids(&["1", "3"]), ids(&[]), dropped));
        log.disk.damage(&log.segment, at);
        let numbers = segments(&log.disk);
        for name in &numbers[1..] {
            log.disk.lose(name);
        }
        log.disk.lose("end");
    }
    assert_eq!(log.recover().await, (ids(&["1", "3"]), ids(&["2"]), 0));
}

#[tokio::test]
async fn damaged_segment_is_set_aside_after_its_lines_are_in_files() {
    let log = TestLog::new().await;
    log.disk.damage(&log.segment, log.ends[1] - 1);
    let store = log.open().await;
    assert_eq!(store.stats(NOW).damaged_segments, 1);
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    assert_eq!(files(&store, "p").await.len(), 1);
    drop(store);
    let set_aside = format!("{}.damaged", log.segment);
    assert!(log.disk.names().contains(&set_aside));
    let store = log.open().await;
    assert_eq!(store.stats(NOW).damaged_segments, 1);
    assert_eq!(all(&store, "p").await, ["1", "3"]);
}

#[tokio::test]
async fn cut_tail_is_reported_with_its_size() {
    let log = TestLog::new().await;
    let length = log.ends[2];
    log.disk
        .change(&log.segment, |bytes| bytes.truncate(length - 3));
    let (p, q, dropped) = log.recover().await;
    assert_eq!((p, q), (ids(&["1"]), ids(&["2"])));
    assert_eq!(dropped, (length - log.ends[1]) as u64);
    // Reported once: the next segment records the new end.
    let store = log.open().await;
    assert_eq!(store.stats(NOW).dropped_bytes, 0);
}

#[tokio::test]
async fn torn_write_that_was_never_acknowledged_is_not_damage() {
    let log = TestLog::new().await;
    let torn = |bytes: &mut Vec<u8>| bytes.extend([7; 100]);
    log.disk.change(&log.segment, torn);
    let (p, q, dropped) = log.recover().await;
    assert_eq!((p, q, dropped), (ids(&["1", "3"]), ids(&["2"]), 0));
}

#[tokio::test]
async fn emptied_or_missing_last_segment_is_reported_with_its_size() {
    for is_missing in [false, true] {
        let log = TestLog::new().await;
        if is_missing {
            log.disk.lose(&log.segment);
        } else {
            log.disk.change(&log.segment, Vec::clear);
        }
        let store = log.open().await;
        assert_eq!(store.stats(NOW).dropped_bytes, log.ends[2] as u64);
        // The number of the lost segment is not used again.
        store
            .append(batch("p", vec![event("4", NOW)]))
            .await
            .unwrap();
        assert_ne!(segments(&log.disk).last(), Some(&log.segment));
        drop(store);
        let store = log.open().await;
        assert_eq!(all(&store, "p").await, ["4"]);
        assert_eq!(store.stats(NOW).dropped_bytes, 0, "reported once");
    }
}

#[tokio::test]
async fn missing_segment_between_two_others_is_reported_with_its_size() {
    let log = TestLog::new().await;
    let second = {
        let store = log.open().await;
        store
            .append(batch("p", vec![event("4", NOW)]))
            .await
            .unwrap();
        store.shared.index().segments.back().unwrap().length
    };
    let third = log.open().await;
    third
        .append(batch("p", vec![event("5", NOW)]))
        .await
        .unwrap();
    drop(third);
    log.disk.lose(&segments(&log.disk)[1]);
    let (p, q, dropped) = log.recover().await;
    assert_eq!(
        (p, q, dropped),
        (ids(&["1", "3", "5"]), ids(&["2"]), second)
    );
}

#[tokio::test]
async fn frame_damaged_after_it_was_written_is_left_out_with_a_warning() {
    let log = TestLog::new().await;
    let store = log.open().await;
    log.disk.damage(&log.segment, log.ends[0] - 1);
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!(read(&view).await, ["3"]);
    assert_eq!((view.damaged.len(), view.damaged[0].rows), (1, 1));
    drop(view);
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!((read(&view).await.len(), view.damaged.len()), (1, 1));
    let other = store.view("q", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!((read(&other).await.len(), other.damaged.len()), (1, 0));
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    assert_eq!(store.stats(NOW).pending_rows, 0);
    assert_eq!(store.stats(NOW).damaged_segments, 1);
    assert_eq!(all(&store, "p").await, ["3"]);
}

/// A log line that contains a complete frame is not taken for one when the frame around it is
/// damaged.
#[tokio::test]
async fn log_line_that_imitates_a_frame_is_not_recovered_as_one() {
    let disk = SimDisk::default();
    let objects = Arc::default();
    let options = Options {
        seed: 7,
        ..options("n")
    };
    let store = open_store(options.clone(), &disk, &objects).await;
    let (_, payload) = super::super::codec::lines("q", &[event("forged", NOW)], None);
    let mut forged = Vec::new();
    log::FrameSalt(None).append_frame(&mut forged, &payload, 0);
    log::FrameSalt::derive(0, 1).append_frame(&mut forged, &payload, 0);
    // Only bytes of valid UTF-8 pass through a line, so the frame is written into the segment.
    let line = event("x".repeat(200), NOW);
    store.append(batch("p", vec![line])).await.unwrap();
    store
        .append(batch("p", vec![event("2", NOW)]))
        .await
        .unwrap();
    drop(store);
    let segment = segments(&disk).remove(0);
    disk.change(&segment, |bytes| {
        let at = bytes.iter().position(|byte| *byte == b'x').unwrap();
        bytes[at..at + forged.len()].copy_from_slice(&forged);
    });
    let store = open_store(options, &disk, &objects).await;
    assert_eq!(all(&store, "q").await, [""; 0]);
    assert_eq!(all(&store, "p").await, ["2"]);
}
