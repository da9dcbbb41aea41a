//! Durability: recovery, damage, reader offsets, outages and limits.

use super::*;

#[tokio::test]
async fn lost_log_directory_keeps_files_of_the_node_valid() {
    let inner = Arc::default();
    let store = open_store(options("n"), &SimDisk::default(), &inner).await;
    store
        .append(batch("p", vec![event("1", NOW)]))
        .await
        .unwrap();
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    drop(store);
    let store = open_store(options("n"), &SimDisk::default(), &inner).await;
    store
        .append(batch("p", vec![event("2", NOW)]))
        .await
        .unwrap();
    assert_eq!(all(&store, "p").await, ["1", "2"]);
    store.upkeep(NOW + 20 * SECOND).await;
    store.upkeep(NOW + 30 * SECOND).await;
    assert_eq!(all(&store, "p").await, ["1", "2"]);
}

#[tokio::test]
async fn append_during_object_store_outage_succeeds_until_the_log_is_full() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let faults = Faults::default();
    let unavailable = SimObjects {
        inner: Arc::clone(&inner),
        faults: faults.clone(),
    };
    let options = Options {
        log_bytes: 20_000,
        seal_bytes: 1000,
        ..options("n")
    };
    let store = Store::open_with(options, Arc::new(disk.clone()), Arc::new(unavailable))
        .await
        .unwrap();
    faults.plan(Some(0), Vec::new(), 0);
    let mut acknowledged = Vec::new();
    let mut now = NOW;
    let rejected = loop {
        let id = format!("{:04}", acknowledged.len());
        match store.append(batch("p", vec![event(id.clone(), NOW)])).await {
            Ok(()) => acknowledged.push(id),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1000);
        now += SECOND;
        store.upkeep(now).await;
    };
    assert!(
        matches!(rejected, StoreError::Full { bytes: 20_000 }),
        "{rejected:?}"
    );
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    let failures = store.stats(NOW).failures;
    assert!((3..20).contains(&failures), "backoff grows: {failures}");
    assert_eq!(all(&store, "p").await, acknowledged);
    faults.plan(None, Vec::new(), 0);
    store.upkeep(NOW + 1000 * SECOND).await;
    store
        .append(batch("p", vec![event("more", NOW)]))
        .await
        .unwrap();
    acknowledged.push("more".to_owned());
    assert_eq!(all(&store, "p").await, acknowledged);
}

#[tokio::test]
async fn reader_offsets_survive_the_removal_of_their_segment() {
    let disk = SimDisk::default();
    let inner = Arc::default();
    let store = open_store(options("n"), &disk, &inner).await;
    let reader_offset = |name: &str, value: &str| ReaderOffset {
        name: name.into(),
        value: value.into(),
    };
    for (name, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("b", "")] {
        store
            .append(Batch {
                project: "p".into(),
                events: vec![event(name, NOW)],
                reader_offset: Some(reader_offset(name, value)),
            })
            .await
            .unwrap();
    }
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    drop(store);
    assert_eq!(segments(&disk).len(), 1);
    let store = open_store(options("n"), &disk, &inner).await;
    assert_eq!(
        (store.reader_offset("a"), store.reader_offset("b")),
        (Some(reader_offset("a", "2")), None)
    );
}

#[tokio::test]
async fn invalid_names_and_oversized_arguments_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(folder.path(), "n")).await.unwrap();
    for project in ["", "..", "../other", "a/b", "/etc", "a\0b"] {
        let rejected = store.append(batch(project, vec![event("1", NOW)])).await;
        assert!(matches!(rejected, Err(StoreError::Name(_))), "{project:?}");
        assert!(
            store.view(project, 0, 1).await.is_err() && store.forget(project).await.is_err(),
            "{project:?}"
        );
    }
    let large = (0..200)
        .map(|id| Event {
            message: "x".repeat(64 * 1024),
            ..event(id.to_string(), NOW)
        })
        .collect();
    assert!(matches!(
        store.append(batch("p", large)).await,
        Err(StoreError::TooLarge { .. })
    ));
    let reader_offset = Some(ReaderOffset {
        name: "m".into(),
        value: "x".repeat(5000),
    });
    let rejected = store
        .append(Batch {
            project: "p".into(),
            events: Vec::new(),
            reader_offset,
        })
        .await;
    assert!(
        matches!(rejected, Err(StoreError::TooLarge { .. })),
        "{rejected:?}"
    );
    assert!(
        Store::open(Options::new(folder.path(), "a/b"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn data_directory_is_locked_and_survives_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        seal_after: Duration::ZERO,
        ..Options::new(folder.path(), "n")
    };
    let store = Store::open(options.clone()).await.unwrap();
    assert!(matches!(
        Store::open(options.clone()).await,
        Err(StoreError::Locked(_))
    ));
    let appends = (0..50).map(|id| store.append(batch("p", vec![event(format!("{id:02}"), NOW)])));
    futures_util::future::try_join_all(appends).await.unwrap();
    assert!(
        store.stats(NOW).syncs < 50,
        "appends share disk flushes: {:?}",
        store.stats(NOW)
    );
    store.upkeep(NOW).await;
    let before = all(&store, "p").await;
    assert_eq!((before.len(), files(&store, "p").await.len()), (50, 1));
    drop(store);
    let store = Store::open(options).await.unwrap();
    assert_eq!(all(&store, "p").await, before);
    store.forget("p").await.unwrap();
    assert_eq!(all(&store, "p").await, [""; 0]);
    assert_eq!(
        std::fs::read_dir(folder.path().join("objects"))
            .unwrap()
            .count(),
        0,
        "empty directories are removed"
    );
}
