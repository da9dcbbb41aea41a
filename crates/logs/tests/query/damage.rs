//! Queries over damaged files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;

/// Number of positions at which a bit of a file is flipped.
const POSITIONS: usize = 48;
const LINES: u64 = 400;

/// Writes two files and two lines that are only in the log.
async fn write(folder: &Path) {
    let store = open(folder).await;
    for half in [0, 1] {
        append(&store, half * LINES / 2..(half + 1) * LINES / 2).await;
        while store.stats(DAY).pending_rows > 0 {
            store.upkeep(DAY).await;
        }
    }
    append(&store, LINES..LINES + 2).await;
}

async fn open(folder: &Path) -> Arc<Store> {
    let options = Options {
        retention_days: u32::MAX,
        seal_after: Duration::ZERO,
        merge_files: 100,
        ..Options::new(folder, "a")
    };
    Arc::new(Store::open(options).await.unwrap())
}

async fn append(store: &Store, numbers: std::ops::Range<u64>) {
    let events = numbers.map(|number| {
        let mut attributes = gantry_logs::event::Attributes::default();
        let path = format!("/rest/v1/{}", number % 17);
        attributes.add("request.path", gantry_logs::event::Value::Text(path));
        let at = DAY + HOUR + i64::try_from(number).unwrap();
        let source = gantry_logs::event::Source::Edge;
        Event::new(format!("{number}"), at, source, "m".into(), attributes)
    });
    let batch = Batch {
        project: "own".into(),
        events: events.collect(),
        reader_offset: None,
    };
    store.append(batch).await.unwrap();
}

/// Returns the Parquet files of the project, oldest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let days = fs::read_dir(folder.join("objects/own")).unwrap();
    let day = days.map(|day| day.unwrap().path()).next().unwrap();
    let mut files: Vec<_> = fs::read_dir(day)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "parquet"))
        .collect();
    files.sort();
    files
}

async fn query(store: &Arc<Store>, sql: &str) -> Result<Answer, QueryError> {
    let bounds = Bounds {
        threads: 2,
        ..Bounds::default()
    };
    let question = Question {
        project: "own".into(),
        dialect: Dialect::ClickHouse,
        sql: sql.into(),
        after: DAY,
        until: DAY + 24 * HOUR,
        now: DAY + 12 * HOUR,
    };
    let logs = Logs::new(Arc::clone(store), bounds).unwrap();
    logs.query(question).await
}

const SQL: &str = "select log_attributes['request.path'] as path, count() as lines, \
     max(timestamp) as newest, min(id) as least from logs group by path order by path";

#[tokio::test]
async fn query_over_file_with_a_flipped_bit_is_right_or_warns() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    let path = files(folder.path()).remove(0);
    let original = fs::read(&path).unwrap();
    let expected = query(&open(folder.path()).await, SQL).await.unwrap();
    assert_eq!(expected.warning(), None);
    fs::remove_file(&path).unwrap();
    let without = query(&open(folder.path()).await, SQL).await.unwrap().rows;
    let mut warnings = 0;
    for position in 0..POSITIONS {
        let at = (original.len() - 1) * position / (POSITIONS - 1);
        let mut damaged = original.clone();
        damaged[at] ^= 1 << (position % 8);
        fs::write(&path, &damaged).unwrap();
        let store = open(folder.path()).await;
        for _ in 0..2 {
            let answer = query(&store, SQL).await.unwrap();
            match answer.warning() {
                None => assert_eq!(answer.rows, expected.rows, "byte {at}"),
                Some(warning) => {
                    warnings += 1;
                    assert_eq!(answer.rows, without, "byte {at}");
                    let name = path.file_name().unwrap().to_str().unwrap();
                    assert!(warning.contains(name), "{warning}");
                    assert!(warning.contains("200 lines"), "{warning}");
                    assert_eq!(store.stats(DAY).damaged_files, 1);
                }
            }
        }
        let _ = fs::remove_file(path.with_extension("parquet.damaged"));
    }
    assert!(warnings > POSITIONS, "{warnings}");
    fs::write(&path, &original).unwrap();
    let repaired = query(&open(folder.path()).await, SQL).await.unwrap();
    assert_eq!(repaired, expected);
}

#[tokio::test]
async fn query_over_cut_or_emptied_file_warns() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    let all = files(folder.path());
    let original = fs::read(&all[0]).unwrap();
    for length in [0, 3, 100, original.len() - 1] {
        fs::write(&all[0], &original[..length]).unwrap();
        let store = open(folder.path()).await;
        let answer = query(&store, "select count() as lines from logs")
            .await
            .unwrap();
        assert_eq!(answer.rows[0]["lines"], LINES / 2 + 2, "{length}");
        assert!(answer.warning().is_some());
        fs::remove_file(all[0].with_extension("parquet.damaged")).unwrap();
    }
}

/// Files of earlier versions have no checksums. Their damage is found when decoding fails.
#[tokio::test]
async fn query_over_damaged_file_without_checksums_warns() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    let path = files(folder.path()).remove(1);
    let mut content = fs::read(&path).unwrap();
    // Without the creator and the magic, the file looks like one of an earlier version.
    for text in [&b"gantry with checksums"[..], b"gantry\x01c"] {
        let at = content
            .windows(text.len())
            .position(|it| it == text)
            .unwrap();
        content[at] ^= 1;
    }
    fs::write(&path, &content).unwrap();
    let store = open(folder.path()).await;
    let answer = query(&store, SQL).await.unwrap();
    assert_eq!(answer.warning(), None);
    drop(store);
    content[4..400].fill(0xff);
    fs::write(&path, &content).unwrap();
    let store = open(folder.path()).await;
    let answer = query(
        &store,
        "select id, event_message from logs order by id limit 1000",
    )
    .await
    .unwrap();
    assert_eq!(answer.rows.len() as u64, LINES / 2 + 2);
    assert!(answer.warning().is_some());
}
