//! Upkeep: flushes, merges, retention and deletion.

use std::{collections::HashMap, sync::atomic::Ordering};

use super::{super::names::DAY, *};

#[tokio::test]
async fn upkeep_flushes_aged_lines_and_merges_small_files() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    let mut now = NOW;
    store.upkeep(now).await;
    for turn in 0..3 {
        store
            .append(batch("p", vec![event(format!("{turn}"), now)]))
            .await
            .unwrap();
        store.upkeep(now).await;
        assert_eq!(
            files(&store, "p").await.len(),
            turn,
            "lines are not old enough"
        );
        assert_eq!(store.stats(now + SECOND).lag, SECOND);
        now += 10 * SECOND;
        store.upkeep(now).await;
    }
    let listed = files(&store, "p").await;
    assert_eq!(
        (
            listed.len(),
            listed[0].rows,
            listed[0].earliest,
            listed[0].latest
        ),
        (1, 3, NOW, NOW + 20 * SECOND)
    );
    let reader = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!(count_objects(&inner).await, 4);
    store.upkeep(now + 30 * SECOND).await;
    assert_eq!(count_objects(&inner).await, 1, "merged files are deleted");
    assert_eq!(read(&reader).await, ["0", "1", "2"]);
    let stats = store.stats(now);
    assert_eq!(
        (
            stats.rows,
            stats.pending_rows,
            stats.segments,
            stats.lag,
            stats.failures
        ),
        (3, 0, 1, 0, 0)
    );
    assert_eq!((stats.files, stats.merged, stats.removed), (4, 3, 3));
}

#[tokio::test]
async fn nodes_share_files_but_not_logs() {
    let inner = Arc::default();
    let one = open_store(options("one"), &SimDisk::default(), &inner).await;
    let other = open_store(options("other"), &SimDisk::default(), &inner).await;
    one.append(batch("p", vec![event("1", NOW)])).await.unwrap();
    other
        .append(batch("p", vec![event("2", NOW)]))
        .await
        .unwrap();
    assert_eq!(
        (all(&one, "p").await, all(&other, "p").await),
        (vec!["1".to_owned()], vec!["2".to_owned()])
    );
    for store in [&one, &other] {
        store.upkeep(NOW).await;
        store.upkeep(NOW + 10 * SECOND).await;
    }
    // Each node merges only its own files, and both sweep.
    one.append(batch("p", vec![event("3", NOW)])).await.unwrap();
    for turn in 2..6 {
        one.upkeep(NOW + turn * 10 * SECOND).await;
        other.upkeep(NOW + turn * 10 * SECOND).await;
    }
    assert_eq!(all(&one, "p").await, ["1", "2", "3"]);
    assert_eq!(all(&other, "p").await, ["1", "2", "3"]);
    one.forget("p").await.unwrap();
    assert_eq!(all(&other, "p").await, [""; 0]);
}

#[tokio::test]
async fn expired_lines_are_deleted_by_the_retention_of_the_project() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    store.retain(HashMap::from([
        ("long".to_owned(), 30),
        ("none".to_owned(), 0),
    ]));
    for project in ["long", "usual", "none"] {
        store
            .append(batch(
                project,
                vec![event("now", NOW), event("then", NOW - 9 * DAY)],
            ))
            .await
            .unwrap();
    }
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    assert_eq!(all(&store, "long").await, ["now", "then"]);
    assert_eq!(
        all(&store, "usual").await,
        ["now"],
        "lines that are already expired are not flushed"
    );
    let later = NOW + 8 * DAY;
    store.upkeep(later).await;
    store.upkeep(later + 30 * SECOND).await;
    let left: Vec<_> = [
        all(&store, "long").await,
        all(&store, "usual").await,
        all(&store, "none").await,
    ]
    .concat();
    assert_eq!(left, ["now", "then"]);
}

#[tokio::test]
async fn flushed_projects_use_no_memory() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    for project in 0..500 {
        store
            .append(batch(&format!("p{project}"), vec![event("1", NOW)]))
            .await
            .unwrap();
    }
    let _ = all(&store, "p7").await;
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    assert_eq!(store.shared.columnar_memory.load(Ordering::Relaxed), 0);
    assert!(
        store
            .shared
            .index()
            .segments
            .iter()
            .all(|segment| segment.projects.is_empty())
    );
    assert_eq!(segments(&disk).len(), 1);
    assert_eq!(all(&store, "p499").await, ["1"]);
}

#[tokio::test]
async fn deleted_project_stays_deleted_after_reopening() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    store
        .append(batch("p", vec![event("filed", NOW)]))
        .await
        .unwrap();
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    store
        .append(batch("p", vec![event("logged", NOW)]))
        .await
        .unwrap();
    store
        .append(batch("q", vec![event("other", NOW)]))
        .await
        .unwrap();
    assert_eq!(all(&store, "p").await, ["filed", "logged"]);
    store.forget("p").await.unwrap();
    assert_eq!(all(&store, "p").await, [""; 0]);
    store
        .append(batch("p", vec![event("new", NOW)]))
        .await
        .unwrap();
    assert_eq!(all(&store, "p").await, ["new"]);
    drop(store);
    let store = open_store(options("n"), &disk, &inner).await;
    store.upkeep(NOW + 20 * SECOND).await;
    store.upkeep(NOW + 30 * SECOND).await;
    assert_eq!(store.stats(NOW).pending_rows, 0);
    assert_eq!(
        (all(&store, "p").await, all(&store, "q").await),
        (vec!["new".to_owned()], vec!["other".to_owned()])
    );
}
