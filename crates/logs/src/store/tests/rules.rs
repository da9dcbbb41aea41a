//! Properties of the store, one test each.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use datafusion::object_store::memory::InMemory;
use futures_util::TryStreamExt;

use super::{
    super::{names::DAY, view::FileEntry},
    sim::{Luck, SimDisk, SimObjects},
    *,
};

fn options(node: &str) -> Options {
    Options {
        seal_after: Duration::from_secs(10),
        merge_files: 3,
        grace: Duration::from_secs(30),
        ..Options::new("unused", node)
    }
}

async fn over(options: Options, disk: &SimDisk, objects: &Arc<InMemory>) -> Store {
    let objects = SimObjects {
        inner: Arc::clone(objects),
        luck: Luck::default(),
    };
    Store::over(options, Arc::new(disk.clone()), Arc::new(objects))
        .await
        .unwrap()
}

async fn files(store: &Store, project: &str) -> Vec<FileEntry> {
    store.view(project, i64::MIN, i64::MAX).await.unwrap().files
}

async fn objects(objects: &InMemory) -> usize {
    objects
        .list(None)
        .try_collect::<Vec<_>>()
        .await
        .unwrap()
        .len()
}

#[tokio::test]
async fn lines_age_into_files_and_small_files_merge() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
    let mut now = NOW;
    store.upkeep(now).await;
    for turn in 0..3 {
        store
            .append(batch("p", vec![event(format!("{turn}"), now)]))
            .await
            .unwrap();
        store.upkeep(now).await;
        assert_eq!(files(&store, "p").await.len(), turn, "not old enough");
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
    assert_eq!(objects(&inner).await, 4);
    store.upkeep(now + 30 * SECOND).await;
    assert_eq!(objects(&inner).await, 1, "those that were merged are gone");
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
async fn what_a_reader_was_given_stays() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(
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
    assert_eq!(objects(&inner).await, 1);
}

#[tokio::test]
async fn a_window_skips_what_lies_outside() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
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

#[tokio::test]
async fn nodes_share_files_and_not_logs() {
    let inner = Arc::default();
    let (one, other) = (
        over(options("one"), &SimDisk::default(), &inner).await,
        over(options("other"), &SimDisk::default(), &inner).await,
    );
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
async fn a_folder_that_is_lost_does_not_hide_what_it_made() {
    let inner = Arc::default();
    let store = over(options("n"), &SimDisk::default(), &inner).await;
    store
        .append(batch("p", vec![event("1", NOW)]))
        .await
        .unwrap();
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    drop(store);
    let store = over(options("n"), &SimDisk::default(), &inner).await;
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
async fn old_lines_go_each_project_by_its_own_days() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
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
        "what is too old on arrival gets no file"
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
async fn the_log_takes_lines_while_the_object_store_is_away_until_it_is_full() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let luck = Luck::default();
    let away = SimObjects {
        inner: Arc::clone(&inner),
        luck: luck.clone(),
    };
    let options = Options {
        log_bytes: 20_000,
        seal_bytes: 1000,
        ..options("n")
    };
    let store = Store::over(options, Arc::new(disk.clone()), Arc::new(away))
        .await
        .unwrap();
    luck.plan(Some(0), Vec::new(), 0);
    let (mut kept, mut now) = (Vec::new(), NOW);
    let refused = loop {
        let id = format!("{:04}", kept.len());
        match store.append(batch("p", vec![event(id.clone(), NOW)])).await {
            Ok(()) => kept.push(id),
            Err(error) => break error,
        }
        assert!(kept.len() < 1000);
        now += SECOND;
        store.upkeep(now).await;
    };
    assert!(
        matches!(refused, StoreError::Full { bytes: 20_000 }),
        "{refused:?}"
    );
    assert!(kept.len() > 50, "{}", kept.len());
    let failures = store.stats(NOW).failures;
    assert!((3..20).contains(&failures), "pauses grow: {failures}");
    assert_eq!(all(&store, "p").await, kept);
    luck.plan(None, Vec::new(), 0);
    store.upkeep(NOW + 1000 * SECOND).await;
    store
        .append(batch("p", vec![event("more", NOW)]))
        .await
        .unwrap();
    kept.push("more".to_owned());
    assert_eq!(all(&store, "p").await, kept);
}

#[tokio::test]
async fn damage_is_told_from_a_torn_end() {
    let inner = Arc::default();
    let disk = SimDisk::default();
    let store = over(options("n"), &disk, &inner).await;
    let mut ends = Vec::new();
    for id in ["1", "2", "3"] {
        store
            .append(batch("p", vec![event(id, NOW)]))
            .await
            .unwrap();
        ends.push(usize::try_from(store.stats(NOW).log_bytes).unwrap());
    }
    drop(store);
    let names = disk.names();
    // The last frame was possibly never acknowledged, so damage there is a torn write.
    disk.damage(&names[0], ends[2] - 1);
    let store = over(options("n"), &disk, &inner).await;
    assert_eq!(all(&store, "p").await, ["1", "2"]);
    drop(store);
    disk.damage(&names[0], ends[1] - 1);
    let opened = Store::over(options("n"), Arc::new(disk.clone()), inner).await;
    let Err(StoreError::Corrupt { file, offset }) = opened else {
        panic!("{opened:?}")
    };
    assert_eq!((file, offset), (names[0].clone(), ends[0] as u64));
}

#[tokio::test]
async fn damage_before_what_was_known_as_durable_is_no_torn_end() {
    let disk = SimDisk::default();
    let store = over(options("n"), &disk, &Arc::default()).await;
    for id in ["1", "2", "3"] {
        store
            .append(batch("p", vec![event(id, NOW)]))
            .await
            .unwrap();
    }
    drop(store);
    // The header and the first frame.
    for at in [20, 80] {
        disk.damage(&disk.names()[0], at);
        let opened = Store::over(
            options("n"),
            Arc::new(disk.clone()),
            Arc::new(InMemory::new()),
        )
        .await;
        assert!(
            matches!(opened, Err(StoreError::Corrupt { .. })),
            "{opened:?}"
        );
        disk.damage(&disk.names()[0], at);
    }
    assert_eq!(
        all(&over(options("n"), &disk, &Arc::default()).await, "p").await,
        ["1", "2", "3"]
    );
}

#[tokio::test]
async fn marks_outlive_the_segments_they_were_written_in() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
    let mark = |name: &str, value: &str| Mark {
        name: name.into(),
        value: value.into(),
    };
    for (name, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("b", "")] {
        store
            .append(Batch {
                project: "p".into(),
                events: vec![event(name, NOW)],
                mark: Some(mark(name, value)),
            })
            .await
            .unwrap();
    }
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    drop(store);
    assert_eq!(disk.names().len(), 1);
    let store = over(options("n"), &disk, &inner).await;
    assert_eq!(
        (store.mark("a"), store.mark("b")),
        (Some(mark("a", "2")), None)
    );
}

#[tokio::test]
async fn idle_projects_leave_nothing_in_memory() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
    for project in 0..500 {
        store
            .append(batch(&format!("p{project}"), vec![event("1", NOW)]))
            .await
            .unwrap();
    }
    let _ = all(&store, "p7").await;
    store.upkeep(NOW).await;
    store.upkeep(NOW + 10 * SECOND).await;
    assert_eq!(store.shared.laid_out.load(Ordering::Relaxed), 0);
    assert!(
        store
            .shared
            .index()
            .segments
            .iter()
            .all(|segment| segment.projects.is_empty())
    );
    assert_eq!(disk.names().len(), 1);
    assert_eq!(all(&store, "p499").await, ["1"]);
}

#[tokio::test]
async fn what_is_forgotten_is_not_read_and_does_not_come_back() {
    let (disk, inner) = (SimDisk::default(), Arc::default());
    let store = over(options("n"), &disk, &inner).await;
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
    let store = over(options("n"), &disk, &inner).await;
    store.upkeep(NOW + 20 * SECOND).await;
    store.upkeep(NOW + 30 * SECOND).await;
    assert_eq!(store.stats(NOW).pending_rows, 0);
    assert_eq!(
        (all(&store, "p").await, all(&store, "q").await),
        (vec!["new".to_owned()], vec!["other".to_owned()])
    );
}

/// Repeated reads return each line once and combine their batches.
#[tokio::test]
async fn readers_share_what_was_laid_out() {
    let store = over(options("n"), &SimDisk::default(), &Arc::default()).await;
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
        "not cut, but not lost"
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
async fn readers_see_one_moment() {
    const LINES: usize = 120;
    let options = Options {
        seal_bytes: 500,
        merge_files: 2,
        grace: Duration::ZERO,
        ..options("n")
    };
    let store = Arc::new(over(options, &SimDisk::default(), &Arc::default()).await);
    let kept = Arc::new(AtomicUsize::new(0));
    let (writer, counter) = (Arc::clone(&store), Arc::clone(&kept));
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
        let at_least = kept.load(Ordering::SeqCst);
        let found = all(&store, "p").await;
        let wanted: Vec<_> = (0..found.len()).map(|line| format!("{line:04}")).collect();
        assert_eq!(found, wanted);
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

#[tokio::test]
async fn names_that_lead_elsewhere_and_what_is_too_large_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(folder.path(), "n")).await.unwrap();
    for project in ["", "..", "../other", "a/b", "/etc", "a\0b"] {
        let refused = store.append(batch(project, vec![event("1", NOW)])).await;
        assert!(matches!(refused, Err(StoreError::Name(_))), "{project:?}");
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
    let mark = Some(Mark {
        name: "m".into(),
        value: "x".repeat(5000),
    });
    let refused = store
        .append(Batch {
            project: "p".into(),
            events: Vec::new(),
            mark,
        })
        .await;
    assert!(
        matches!(refused, Err(StoreError::TooLarge { .. })),
        "{refused:?}"
    );
    assert!(
        Store::open(Options::new(folder.path(), "a/b"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_folder_belongs_to_one_store_and_is_durable() {
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
        "those that wait are made durable together: {:?}",
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
        "no empty folder stays"
    );
}
