//! Check and repair of a store on disk.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;
use crate::store::repair::{RepairSource, StoreFolders};

async fn open(folder: &Path) -> Store {
    let options = Options {
        seal_after: Duration::ZERO,
        merge_files: 100,
        ..Options::new(folder, "n")
    };
    Store::open(options).await.unwrap()
}

fn folders(folder: &Path) -> StoreFolders {
    StoreFolders {
        folders: vec![folder.to_owned()],
        files: folder.join("objects"),
        objects: None,
    }
}

async fn flush(store: &Store, project: &str, events: Vec<Event>) {
    store.append(batch(project, events)).await.unwrap();
    while store.stats(NOW).pending_rows > 0 {
        store.upkeep(NOW).await;
    }
}

/// Flips a bit of a file.
fn damage(folder: &Path, path: &str, at: impl FnOnce(usize) -> usize) {
    let path = folder.join("objects").join(path);
    let mut bytes = fs::read(&path).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn verify_reports_damage_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for id in ["1", "2"] {
        flush(&store, "p", vec![event(id, NOW)]).await;
    }
    let check = folders(folder.path());
    let report = check.verify().await.unwrap();
    assert!(report.is_sound() && report.files == 2 && report.rows == 2);
    let path = files(&store, "p").await[0].path.clone();
    damage(folder.path(), path.as_ref(), |length| length / 2);
    let report = check.verify().await.unwrap();
    assert!(!report.is_sound());
    assert_eq!((report.files, report.damaged_files.len()), (1, 1));
    assert_eq!(report.damaged_files[0].path, path);
    assert_eq!(check.verify().await.unwrap(), report);
    let locked = check.repair().await;
    assert!(matches!(locked, Err(StoreError::Locked(_))), "{locked:?}");
}

#[tokio::test]
async fn repair_rebuilds_a_file_from_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let events = vec![event("1", NOW), event("2", NOW + 1)];
    store.append(batch("p", events.clone())).await.unwrap();
    let segment = folder.path().join("log/0000000000000001.log");
    let kept = fs::read(&segment).unwrap();
    while store.stats(NOW).pending_rows > 0 {
        store.upkeep(NOW).await;
    }
    let path = files(&store, "p").await[0].path.clone();
    drop(store);
    // As after a crash between the file and the removal of the segment.
    fs::write(folder.path().join("log/0000000000000001.log.damaged"), kept).unwrap();
    damage(folder.path(), path.as_ref(), |length| length - 5);
    let check = folders(folder.path());
    let repaired = check.repair().await.unwrap();
    assert_eq!(repaired.len(), 1);
    assert_eq!(
        (repaired[0].source, repaired[0].rows),
        (RepairSource::Log, 2)
    );
    assert!(check.verify().await.unwrap().is_sound());
    let store = open(folder.path()).await;
    assert_eq!(all(&store, "p").await, ["1", "2"]);
    assert_eq!(
        fs::read_dir(folder.path().join("damaged")).unwrap().count(),
        2
    );
}

#[tokio::test]
async fn repair_keeps_the_intact_row_groups_of_a_file() {
    const LINES: usize = 1200;
    let folder = tempfile::tempdir().unwrap();
    // One segment, and so one file of several row groups.
    let options = Options {
        seal_bytes: 256 << 20,
        ..Options::new(folder.path(), "n")
    };
    let store = Store::open(options).await.unwrap();
    for part in 0..LINES / 100 {
        let mut events = Vec::new();
        for number in part * 100..(part + 1) * 100 {
            let at = NOW + i64::try_from(number).unwrap();
            // Not compressible, so that a row group is larger than a block.
            let mut unique = String::new();
            for factor in 1..40_u64 {
                let seed = number as u64 + 1;
                let word = seed.wrapping_mul((factor << 40) | 0x9e37_79b9);
                unique += &word.to_string();
            }
            events.push(Event {
                message: unique + &"x".repeat(63_000),
                ..event(format!("{number:04}"), at)
            });
        }
        store.append(batch("p", events)).await.unwrap();
    }
    store.upkeep(NOW).await;
    store.upkeep(NOW + 60 * SECOND).await;
    assert_eq!(store.stats(NOW).pending_rows, 0);
    let file = files(&store, "p").await.remove(0);
    assert_eq!(file.rows, LINES as u64);
    damage(folder.path(), file.path.as_ref(), |_| 40);
    let examined = BTreeSet::from([file.path]);
    assert!(store.examine(&examined).await.unwrap());
    drop(store);
    let check = folders(folder.path());
    let repaired = check.repair().await.unwrap();
    let store = open(folder.path()).await;
    let left = all(&store, "p").await.len();
    assert_eq!(repaired[0].source, RepairSource::File);
    assert_eq!(left as u64, repaired[0].rows);
    assert!(left > 0 && left < LINES, "{left}");
    assert!(check.verify().await.unwrap().is_sound());
    assert_eq!(store.stats(NOW).damaged_files, 0);
}

#[tokio::test]
async fn lost_file_is_noticed_after_restart_and_repair_removes_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    for id in ["1", "2"] {
        flush(&store, "p", vec![event(id, NOW)]).await;
    }
    let path = files(&store, "p").await[0].path.clone();
    drop(store);
    fs::remove_file(folder.path().join("objects").join(path.as_ref())).unwrap();
    let store = open(folder.path()).await;
    let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
    assert_eq!((view.files.len(), view.damaged.len()), (1, 1));
    assert_eq!((&view.damaged[0].path, view.damaged[0].rows), (&path, 1));
    drop((view, store));
    let check = folders(folder.path());
    let report = check.verify().await.unwrap();
    assert_eq!(report.damaged_files[0].cause, "the file is missing");
    let repaired = check.repair().await.unwrap();
    assert_eq!(repaired[0].source, RepairSource::Nothing);
    assert!(check.verify().await.unwrap().is_sound());
    let store = open(folder.path()).await;
    assert_eq!(all(&store, "p").await, ["2"]);
    assert_eq!(store.stats(NOW).damaged_files, 0);
}
