//! Crash tests: an appending process is killed repeatedly.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use super::*;

/// Minimum and maximum number of rounds. Further rounds run until files were merged, which takes a
/// busy machine longer.
const ROUNDS: std::ops::Range<usize> = 12..60;

fn options() -> Options {
    Options {
        seal_bytes: 4096,
        seal_after: Duration::ZERO,
        merge_files: 3,
        grace: Duration::ZERO,
        sweep_every: Duration::ZERO,
        ..Options::new(std::env::current_dir().unwrap(), "n")
    }
}

/// Appends in the working directory until killed and prints each acknowledged append. Resumes from
/// its reader offset.
#[test]
#[ignore = "started by the test below"]
fn child() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Arc::new(Store::open(options()).await.unwrap());
        let upkeep = Arc::clone(&store);
        tokio::spawn(async move {
            for turn in 0.. {
                upkeep.upkeep(NOW + turn * SECOND).await;
                tokio::task::yield_now().await;
            }
        });
        let begin: u64 = store
            .reader_offset("m")
            .map_or(0, |reader_offset| reader_offset.value.parse().unwrap());
        for number in begin.. {
            let reader_offset = Some(ReaderOffset {
                name: "m".into(),
                value: (number + 1).to_string(),
            });
            let events = vec![
                event(format!("{number:08}-a"), NOW),
                event(format!("{number:08}-b"), NOW - 86_400 * SECOND),
            ];
            store
                .append(Batch {
                    project: "p".into(),
                    events,
                    reader_offset,
                })
                .await
                .unwrap();
            writeln!(std::io::stdout(), "acknowledged {number}").unwrap();
        }
    });
}

#[test]
fn killed_process_keeps_acknowledged_lines_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut merged = 0;
    for round in 0..ROUNDS.end {
        if round >= ROUNDS.start && merged > 0 {
            break;
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::kill::child",
                "--ignored",
                "--nocapture",
            ])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut acknowledged = None;
        let mut lines_read = 0;
        for line in lines {
            let Some(number) = line.split("acknowledged ").nth(1) else {
                continue;
            };
            acknowledged = Some(number.parse::<u64>().unwrap());
            lines_read += 1;
            // Each round kills the process at a different append. Lines printed before are read to
            // the end.
            if lines_read == 20 + 37 * round % 101 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let acknowledged = acknowledged.expect("the process appended until it was killed");
        block_on(async {
            let options = Options {
                folder: folder.path().to_owned(),
                ..options()
            };
            let store = Store::open(options).await.unwrap();
            let reader_offset: u64 = store.reader_offset("m").unwrap().value.parse().unwrap();
            assert!(
                reader_offset > acknowledged,
                "acknowledged appends are present: {reader_offset} of {acknowledged}"
            );
            let expected: Vec<_> = (0..reader_offset)
                .flat_map(|number| [format!("{number:08}-a"), format!("{number:08}-b")])
                .collect();
            assert_eq!(all(&store, "p").await, expected, "in round {round}");
            let view = store.view("p", i64::MIN, i64::MAX).await.unwrap();
            merged += view.files.iter().filter(|file| file.rows > 20).count();
        });
    }
    assert!(merged > 0, "files were merged");
}
