//! Views: windows, consistency and cached columns.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{super::names::DAY, *};

#[tokio::test]
async fn open_view_keeps_merged_files_readable() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(
        Options {
            grace: Duration::ZERO,
            ..options("n")
        },
        &disk,
        &inner,
    )
    .await;
    let mut reader = None;
    for turn in 0..3 {
        let now = NOW + turn * 20 * SECOND;
        store
            .append(batch("p", vec![event(format!("{turn}"), now)]))
            .await
            .unwrap();
        if turn == 2 {
            reader = Some(store.view("p", i64::MIN, i64::MAX).await.unwrap());
        }
        store.upkeep(now).await;
        store.upkeep(now + 10 * SECOND).await;
    }
    let reader = reader.unwrap();
    assert_eq!((reader.recent.len(), reader.files.len()), (1, 2));
    store.upkeep(NOW + 100 * SECOND).await;
    assert_eq!(read(&reader).await, ["0", "1", "2"]);
    assert_eq!(files(&store, "p").await.len(), 1);
    drop(reader);
    store.upkeep(NOW + 101 * SECOND).await;
    assert_eq!(count_objects(&inner).await, 1);
}

#[tokio::test]
async fn view_returns_only_lines_within_the_window() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    let days: Vec<_> = (0..3)
        .map(|day| event(format!("{day}"), NOW - day * DAY))
        .collect();
    store.append(batch("p", days)).await.unwrap();
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    store
        .append(batch("p", vec![event("new", NOW + DAY)]))
        .await
        .unwrap();
    for (after, until, ids) in [
        (i64::MIN, i64::MAX, &["0", "1", "2", "new"][..]),
        (NOW - 1, NOW, &["0"]),
        (NOW, NOW + 1, &[]),
        (NOW - 2 * DAY, NOW, &["0", "1"]),
        (NOW, NOW + DAY, &["new"]),
        (NOW, NOW + DAY - 1, &[]),
    ] {
        assert_eq!(
            read(&store.view("p", after, until).await.unwrap()).await,
            ids,
            "({after}, {until}]"
        );
    }
    assert_eq!(all(&store, "q").await, [""; 0]);
}

/// Repeated reads return each line once and combine their batches.
#[tokio::test]
async fn readers_share_cached_columns() {
    let store = open_store(options("n"), &SimDisk::default(), &Arc::default()).await;
    for count in 1..=64 {
        store
            .append(batch("p", vec![event(format!("{count:02}"), NOW + count)]))
            .await
            .unwrap();
        let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
        assert_eq!(i64::try_from(read(&view).await.len()).unwrap(), count);
        assert!(view.recent.len() <= 7, "{}", view.recent.len());
    }
    assert_eq!(
        read(&store.view("p", NOW + 10, NOW + 10_000).await.unwrap())
            .await
            .len(),
        64,
        "batches contain lines outside of the window"
    );
    assert_eq!(
        store
            .view("p", NOW + 100, NOW + 10_000)
            .await
            .unwrap()
            .recent
            .len(),
        0
    );
}

/// Reads are consistent while lines are appended, flushed, merged and deleted concurrently.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn concurrent_reader_sees_each_acknowledged_line_once() {
    const LINES: usize = 120;
    let options = Options {
        seal_bytes: 500,
        merge_files: 2,
        grace: Duration::ZERO,
        ..options("n")
    };
    let store = Arc::new(open_store(options, &SimDisk::default(), &Arc::default()).await);
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let writer = Arc::clone(&store);
    let counter = Arc::clone(&acknowledged);
    let writer = tokio::spawn(async move {
        for line in 0..LINES {
            writer
                .append(batch("p", vec![event(format!("{line:04}"), NOW)]))
                .await
                .unwrap();
            counter.store(line + 1, Ordering::SeqCst);
            writer
                .upkeep(NOW + i64::try_from(line).unwrap() * SECOND)
                .await;
        }
    });
    loop {
        let at_least = acknowledged.load(Ordering::SeqCst);
        let found = all(&store, "p").await;
        let expected: Vec<_> = (0..found.len()).map(|line| format!("{line:04}")).collect();
        assert_eq!(found, expected);
        assert!(found.len() >= at_least, "{} of {at_least}", found.len());
        if at_least == LINES {
            break;
        }
    }
    writer.await.unwrap();
    assert!(
        store.stats(NOW).merged > 20 && store.stats(NOW).removed > 20,
        "{:?}",
        store.stats(NOW)
    );
}
