//! Damaged files: marked, left out of merges, and replaced by a repetition of the merge.

use std::collections::BTreeSet;

use datafusion::object_store::path::Path;

use super::*;

/// Flips a bit in the middle of a stored file.
async fn damage(objects: &InMemory, path: &Path) {
    let mut bytes = objects
        .get(path)
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap()
        .to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    objects.put(path, bytes.into()).await.unwrap();
}

/// Appends a line and flushes it to a file.
async fn flush(store: &Store, id: &str, now: i64) {
    store
        .append(batch("p", vec![event(id, now)]))
        .await
        .unwrap();
    store.upkeep(now).await;
    store.upkeep(now + 10 * SECOND).await;
}

async fn paths(store: &Store) -> BTreeSet<Path> {
    files(store, "p")
        .await
        .into_iter()
        .map(|file| file.path)
        .collect()
}

#[tokio::test]
async fn merge_leaves_damaged_file_and_its_neighbours_apart() {
    let inner = Arc::default();
    let disk = SimDisk::default();
    let options = Options {
        merge_files: 4,
        ..options("n")
    };
    let store = open_store(options.clone(), &disk, &inner).await;
    let mut now = NOW;
    for id in ["1", "2", "3"] {
        flush(&store, id, now).await;
        now += 20 * SECOND;
    }
    let second = files(&store, "p").await[1].path.clone();
    damage(&inner, &second).await;
    for id in ["4", "5", "6"] {
        flush(&store, id, now).await;
        now += 20 * SECOND;
    }
    for _ in 0..5 {
        now += 60 * SECOND;
        store.upkeep(now).await;
    }
    // The lines after the damaged file are merged, those before it are too few.
    flush(&store, "7", now).await;
    now += 60 * SECOND;
    store.upkeep(now).await;
    assert_eq!(all(&store, "p").await, ["1", "3", "4", "5", "6", "7"]);
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!(view.damaged.len(), 1);
    assert_eq!(view.damaged[0].path, second);
    assert_eq!(store.stats(now).damaged_files, 1);
    drop(store);
    // The marker outlives the process, and the file its grace period.
    let store = open_store(options, &disk, &inner).await;
    store.upkeep(now).await;
    store.upkeep(now + 60 * SECOND).await;
    assert_eq!(store.stats(now).damaged_files, 1);
    assert_eq!(all(&store, "p").await, ["1", "3", "4", "5", "6", "7"]);
    assert!(inner.head(&second).await.is_ok());
    // Both expire with their day.
    store.upkeep(now + 40 * 86_400 * SECOND).await;
    store.upkeep(now + 41 * 86_400 * SECOND).await;
    assert_eq!(count_objects(&inner).await, 0);
    assert_eq!(store.stats(now).damaged_files, 0);
}

#[tokio::test]
async fn parts_of_a_damaged_merged_file_are_merged_again() {
    let inner = Arc::default();
    let store = open_store(options("n"), &SimDisk::default(), &inner).await;
    let mut now = NOW;
    for id in ["1", "2", "3"] {
        flush(&store, id, now).await;
        now += 11 * SECOND;
    }
    let merged = paths(&store).await;
    assert_eq!(merged.len(), 1, "merged once");
    assert_eq!(
        count_objects(&inner).await,
        4,
        "the parts are kept for the grace period"
    );
    let path = merged.first().unwrap();
    damage(&inner, path).await;
    assert!(store.examine(&merged).await.unwrap());
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!(read(&view).await, ["1", "2", "3"]);
    assert_eq!(view.damaged, [], "no line is missing");
    drop(view);
    // The parts stay although their grace period ends.
    now += 60 * SECOND;
    store.upkeep(now).await;
    assert_eq!(all(&store, "p").await, ["1", "2", "3"]);
    drop(store);
    let store = open_store(options("n"), &SimDisk::default(), &inner).await;
    for _ in 0..4 {
        now += 86_400 * SECOND;
        store.upkeep(now).await;
    }
    assert_eq!(all(&store, "p").await, ["1", "2", "3"]);
    assert_eq!(
        paths(&store).await,
        merged,
        "the merge replaced the damaged file"
    );
    assert_eq!(
        count_objects(&inner).await,
        1,
        "parts and marker are deleted"
    );
    assert_eq!(store.stats(now).damaged_files, 0);
}

#[tokio::test]
async fn file_that_reads_correctly_again_is_not_set_aside() {
    let inner = Arc::default();
    let store = open_store(options("n"), &SimDisk::default(), &inner).await;
    flush(&store, "1", NOW).await;
    let files = paths(&store).await;
    assert!(!store.examine(&files).await.unwrap());
    assert_eq!(count_objects(&inner).await, 1);
    let gone = BTreeSet::from([Path::from("p/2026-01-01/n.1.1.1.1.1.1.parquet")]);
    assert!(!store.examine(&gone).await.unwrap());
}

#[tokio::test]
async fn unreachable_marker_still_sets_the_file_aside() {
    let inner = Arc::default();
    let faults = Faults::default();
    let objects = SimObjects {
        inner: Arc::clone(&inner),
        faults: faults.clone(),
    };
    let disk = Arc::new(SimDisk::default());
    let store = Store::open_with(options("n"), disk, Arc::new(objects))
        .await
        .unwrap();
    flush(&store, "1", NOW).await;
    flush(&store, "2", NOW + 20 * SECOND).await;
    let first = files(&store, "p").await[0].path.clone();
    damage(&inner, &first).await;
    faults.plan(Some(0), Vec::new(), 0);
    assert!(store.examine(&BTreeSet::from([first])).await.unwrap());
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!((read(&view).await.len(), view.damaged.len()), (1, 1));
}

#[tokio::test]
async fn missing_file_is_reported_until_it_is_restored_or_expires() {
    let inner: Arc<InMemory> = Arc::default();
    let disk = SimDisk::default();
    let options = Options {
        merge_files: 100,
        ..options("n")
    };
    let store = open_store(options.clone(), &disk, &inner).await;
    let mut now = NOW;
    for id in ["1", "2", "3"] {
        flush(&store, id, now).await;
        now += 20 * SECOND;
    }
    let listed = files(&store, "p").await;
    let content = inner.get(&listed[1].path).await.unwrap();
    let content = content.bytes().await.unwrap();
    inner.delete(&listed[1].path).await.unwrap();
    let damaged = async |store: &Store| {
        let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
        let paths = view.damaged.iter().map(|file| file.path.clone());
        (paths.collect::<Vec<_>>(), read(&view).await)
    };
    let expected = (vec![listed[1].path.clone()], vec!["1".into(), "3".into()]);
    assert_eq!(damaged(&store).await, expected);
    assert_eq!(damaged(&store).await, expected);
    assert_eq!(store.stats(now).damaged_files, 1);
    drop(store);
    let store = open_store(options.clone(), &disk, &inner).await;
    assert_eq!(damaged(&store).await, expected, "by its marker");
    inner.put(&listed[1].path, content.into()).await.unwrap();
    assert_eq!(
        damaged(&store).await,
        (vec![], ["1", "2", "3"].map(str::to_owned).into())
    );
    // The first sweep of a process finds the files, and the next one that one is lost.
    store.upkeep(now).await;
    inner.delete(&listed[2].path).await.unwrap();
    now += 7200 * SECOND;
    store.upkeep(now).await;
    assert_eq!(store.stats(now).damaged_files, 1);
    now += 40 * 86_400 * SECOND;
    store.upkeep(now).await;
    store.upkeep(now + 86_400 * SECOND).await;
    assert_eq!(count_objects(&inner).await, 0);
    assert_eq!(store.stats(now).damaged_files, 0);
}

#[tokio::test]
async fn files_that_another_node_deletes_are_not_missing() {
    let inner: Arc<InMemory> = Arc::default();
    let one = open_store(options("one"), &SimDisk::default(), &inner).await;
    let other = open_store(options("other"), &SimDisk::default(), &inner).await;
    flush(&one, "1", NOW).await;
    one.upkeep(NOW).await;
    // The project is deleted in the other process.
    other.forget("p").await.unwrap();
    one.upkeep(NOW + 7200 * SECOND).await;
    assert_eq!(one.stats(NOW).damaged_files, 0);
    // Lines expire in the other process.
    let later = NOW + 7300 * SECOND;
    flush(&one, "2", later).await;
    let expired = later + 40 * 86_400 * SECOND;
    other.upkeep(expired).await;
    other.upkeep(expired + 86_400 * SECOND).await;
    one.upkeep(expired).await;
    assert_eq!(all(&one, "p").await, [""; 0]);
    assert_eq!(one.stats(expired).damaged_files, 0);
    assert_eq!(count_objects(&inner).await, 0);
}
