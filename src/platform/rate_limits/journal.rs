//! The journal: allotments of counters, written before they are used, so that the disk never has
//! less than was admitted.
//!
//! A snapshot is written once a second. In between, the first request of each step of a counter
//! appends the end of the step to a log before it is admitted; the other requests of the step need
//! no write. A step is one request for the first eight of a window, and then an eighth to a quarter
//! of the requests so far, so that 120 requests cause 24 writes. After a clean shutdown the
//! snapshot has the exact counts and there is no log. After a crash each window counts its last
//! allotment as used: exact up to eight requests, and at most a quarter more than was admitted
//! above.
//!
//! Records are written without a flush: they survive a crash of the process, not of the machine.
//! After a power failure the requests since the last snapshot, usually a second, are not counted.
//!
//! Layout, little-endian: a header of 32 bytes (magic, checksum of the seed, wall clock and ticks
//! in milliseconds, CRC-32C), then records of 32 bytes (name; used and milliseconds left; kind,
//! window and ticks; tag of the header; CRC-32C). A torn or missing record fails its checksum and
//! is skipped.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use gantry_base::clock::{Clock, Ticks};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::{
    counter::{CounterKey, LimitDecision},
    memory::{CounterRecord, Memory, Seed, allotment},
    snapshot::{self, USED_BITS, kind_byte, kind_of},
    window::{WINDOWS_MAX, Window},
};

const MAGIC: [u8; 8] = *b"gantryla";
const RECORD: usize = 32;
/// Bound of a log, in bytes. Every snapshot replaces the log long before. Requests that find it
/// full are counted, but not written.
const BYTES_MAX: u64 = 64 << 20;
/// Size of the log that triggers a snapshot.
const SNAPSHOT_AT_BYTES: u64 = BYTES_MAX / 4;

/// The counters of this process and their files.
pub struct Journal {
    memory: Arc<Memory>,
    clock: Clock,
    /// Path of the snapshot; the logs are beside it.
    path: PathBuf,
    log: RwLock<JournalLog>,
    saving: Mutex<SaveState>,
    log_grown: Notify,
    failed: AtomicBool,
}

struct JournalLog {
    file: File,
    number: u64,
    /// Checksum of the header, which its records contain.
    tag: u32,
    written: AtomicU64,
}

/// State of the snapshots.
#[derive(Default)]
struct SaveState {
    /// The last snapshot failed, so that the log must be kept.
    failed: bool,
    /// The final snapshot is written.
    closed: bool,
}

impl Journal {
    /// Opens the journal of `memory`: a snapshot at `path` and a new log beside it. Both contain
    /// what was loaded before.
    pub fn open(memory: Arc<Memory>, clock: Clock, path: PathBuf) -> io::Result<Self> {
        let number = logs(&path)?
            .into_iter()
            .map(|(number, _)| number)
            .max()
            .unwrap_or(0)
            + 1;
        let log = JournalLog::create(&path, number, &memory.seed(), &clock)?;
        let journal = Self {
            memory,
            clock,
            path,
            log: RwLock::new(log),
            saving: Mutex::default(),
            log_grown: Notify::new(),
            failed: AtomicBool::new(false),
        };
        snapshot::save(&journal.memory, &journal.clock, &journal.path, allotment)?;
        journal.remove_before(number)?;
        Ok(journal)
    }

    /// Counts one request. If it begins an allotment, writes the allotment before the request is
    /// admitted.
    pub(super) fn take(&self, key: CounterKey, windows: &[Window], now: Ticks) -> LimitDecision {
        self.memory
            .take_allotted(key, windows, now, |cells| self.write(cells, now))
    }

    fn write(&self, cells: &[CounterRecord], now: Ticks) {
        let mut bytes = [0; RECORD * WINDOWS_MAX];
        let log = self.log.read();
        for (record, cell) in bytes.chunks_exact_mut(RECORD).zip(cells) {
            record.copy_from_slice(&log.record(cell, now));
        }
        let bytes = &bytes[..RECORD * cells.len().min(WINDOWS_MAX)];
        let at = log.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if at < SNAPSHOT_AT_BYTES && at + bytes.len() as u64 >= SNAPSHOT_AT_BYTES {
            self.log_grown.notify_one();
        }
        let written = if at < BYTES_MAX {
            log.file.write_all_at(bytes, at)
        } else {
            Err(io::ErrorKind::StorageFull.into())
        };
        // Logged once until the next snapshot, so that a full disk does not fill the log too.
        if let Err(error) = written
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot write allotments of rate limits; a crash would reset them");
        }
    }

    /// Waits until the log is large enough for a snapshot.
    pub(super) async fn log_grown(&self) {
        self.log_grown.notified().await;
    }

    /// Returns whether anything was counted since the last call.
    pub(super) fn was_changed(&self) -> bool {
        self.memory.was_changed()
    }

    /// Writes a snapshot with all allotments and starts a new log. Does nothing after
    /// [`close`](Self::close).
    pub fn save(&self) -> io::Result<()> {
        let mut saving = self.saving.lock();
        if saving.closed {
            return Ok(());
        }
        // The log starts before the snapshot, so that concurrent requests are in one of them. If
        // the last snapshot failed, its log is still needed and is continued.
        let mut number = self.log.read().number;
        if !saving.failed {
            let log = JournalLog::create(&self.path, number + 1, &self.memory.seed(), &self.clock)?;
            number = log.number;
            *self.log.write() = log;
        }
        saving.failed = true;
        snapshot::save(&self.memory, &self.clock, &self.path, allotment)?;
        saving.failed = false;
        self.failed.store(false, Ordering::Relaxed);
        self.remove_before(number)
    }

    /// Writes the exact counts and removes the log. To be called after the last request.
    pub fn close(&self) -> io::Result<()> {
        let mut saving = self.saving.lock();
        saving.closed = true;
        snapshot::save(&self.memory, &self.clock, &self.path, |used| used)?;
        self.remove_before(u64::MAX)
    }

    fn remove_before(&self, number: u64) -> io::Result<()> {
        logs(&self.path)?
            .into_iter()
            .filter(|(older, _)| *older < number)
            .try_for_each(|(_, file)| fs::remove_file(file))
    }
}

impl JournalLog {
    fn create(path: &Path, number: u64, seed: &Seed, clock: &Clock) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".log.{number}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(name)?;
        let mut header = [0; RECORD];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&crc32c::crc32c(seed).to_le_bytes());
        header[12..20].copy_from_slice(&clock.now().timestamp_millis().to_le_bytes());
        header[20..28].copy_from_slice(&clock.ticks().to_le_bytes());
        let tag = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&tag.to_le_bytes());
        file.write_all_at(&header, 0)?;
        Ok(Self {
            file,
            number,
            tag,
            written: AtomicU64::new(RECORD as u64),
        })
    }

    fn record(&self, cell: &CounterRecord, now: Ticks) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&cell.name.to_le_bytes());
        record[8..16]
            .copy_from_slice(&(cell.left << USED_BITS | u64::from(cell.used)).to_le_bytes());
        let kind = kind_byte(cell.kind) << 1 | cell.window & 1;
        record[16..24].copy_from_slice(&(now << 8 | u64::from(kind)).to_le_bytes());
        record[24..28].copy_from_slice(&self.tag.to_le_bytes());
        let checksum = crc32c::crc32c(&record[..28]);
        record[28..].copy_from_slice(&checksum.to_le_bytes());
        record
    }
}

/// Reads the allotments of all logs beside the snapshot at `path` that have this seed, with the
/// time left of their windows at the wall-clock time `now` in milliseconds. An unreadable log is
/// reported.
pub(super) fn read(path: &Path, seed: &Seed, now: i64) -> Vec<CounterRecord> {
    let found = logs(path).and_then(|logs| {
        logs.into_iter()
            .map(|(_, file)| fs::read(file))
            .collect::<io::Result<Vec<_>>>()
    });
    match found {
        Ok(logs) => logs
            .iter()
            .flat_map(|bytes| cells(bytes, seed, now))
            .collect(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read allotments of rate limits; ignoring them");
            Vec::new()
        }
    }
}

fn cells(bytes: &[u8], seed: &Seed, now: i64) -> Vec<CounterRecord> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    let Some((header, records)) = records.split_first() else {
        return Vec::new();
    };
    let tag = crc32c::crc32c(&header[..28]);
    if header[..8] != MAGIC
        || header[8..12] != crc32c::crc32c(seed).to_le_bytes()
        || header[28..] != tag.to_le_bytes()
    {
        return Vec::new();
    }
    let wall = word(header, 12);
    let ticks = word(header, 20);
    let cell = |record: &[u8; RECORD]| {
        let whole = record[24..28] == tag.to_le_bytes()
            && record[28..] == crc32c::crc32c(&record[..28]).to_le_bytes();
        let state = word(record, 8);
        let stamp = word(record, 16);
        let written = wall
            .saturating_add((stamp >> 8).saturating_sub(ticks))
            .cast_signed();
        // If the wall clock stepped back, the elapsed time is unknown and counts as zero.
        let away = u64::try_from(now.saturating_sub(written)).unwrap_or(0);
        let left = (state >> USED_BITS)
            .checked_sub(away)
            .filter(|left| *left > 0)?;
        let used = u32::try_from(state & ((1 << USED_BITS) - 1)).ok()?;
        let kind = kind_of((stamp & 0xff) as u8 >> 1)?;
        whole.then(|| CounterRecord {
            kind,
            name: word(record, 0),
            window: (stamp & 1) as u8,
            used,
            left,
        })
    };
    records.iter().filter_map(cell).collect()
}

/// Reads eight bytes at `at`.
fn word(bytes: &[u8; RECORD], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Returns the numbers and paths of the logs beside the snapshot at `path`.
fn logs(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let prefix = format!(
        "{}.log.",
        path.file_name().unwrap_or_default().to_string_lossy()
    );
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        found.extend(number.map(|number| (number, entry.path())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::{DateTime, TimeDelta};

    use super::*;
    use crate::platform::rate_limits::{
        CONTEXT, CounterCapacity, CounterScope, Identifier, STANDARD, per,
    };
    use gantry_base::{clock::Entropy, ids::UserId};

    const OPERATIONS: [&str; 1] = ["v1-one"];

    struct World {
        clock: Clock,
        dir: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            Self {
                clock: Clock::manual(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
                dir: tempfile::tempdir().unwrap(),
            }
        }

        /// Opens the journal over the files of the last run, as a start does.
        fn start(&self) -> Journal {
            let memory = snapshot::open(
                &self.path(),
                CounterCapacity::default(),
                &OPERATIONS,
                &self.clock,
                &Entropy::system(),
            );
            Journal::open(Arc::new(memory), self.clock.clone(), self.path()).unwrap()
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("limits")
        }

        fn take(&self, journal: &Journal, user: i64, windows: &[Window]) -> bool {
            journal
                .take(key(user), windows, self.clock.ticks())
                .admitted
        }

        fn only_log(&self) -> PathBuf {
            let [(_, log)] = logs(&self.path()).unwrap().try_into().unwrap();
            log
        }
    }

    fn key(user: i64) -> CounterKey {
        CounterKey {
            identifier: Identifier::User(UserId(user)),
            scope: CounterScope::User,
            operation: 0,
        }
    }

    /// Crashes after each number of requests, with and without snapshots in between.
    #[test]
    fn repeated_crashes_never_exceed_the_limit() {
        for limit in [1, 3, 10, 30, 120] {
            for lives in [1, 2, 7, 11, 23] {
                let world = World::new();
                let windows = &[per(limit, 60)];
                let mut admitted = 0;
                let mut starts = 0;
                while starts < 40 {
                    let journal = world.start();
                    starts += 1;
                    for request in 0..lives {
                        admitted += u32::from(world.take(&journal, 1, windows));
                        if request % 3 == 1 {
                            journal.save().unwrap();
                        }
                        world.clock.advance(Duration::from_millis(1));
                    }
                    // Dropped without a clean shutdown: counters in memory are lost.
                }
                assert!(
                    admitted <= limit,
                    "{admitted} of {limit}, {lives} requests a life"
                );
                assert!(
                    limit > 8 || admitted == limit,
                    "{admitted} of {limit}: small limits lose nothing"
                );
            }
        }
    }

    #[test]
    fn crash_counts_at_most_a_quarter_more() {
        for requests in 1..=200_u32 {
            let world = World::new();
            let windows = &[per(8_000_000, 60)];
            let journal = world.start();
            for _ in 0..requests {
                assert!(world.take(&journal, 1, windows));
            }
            let quota = world
                .start()
                .memory
                .peek(key(1), windows, world.clock.ticks())
                .binding();
            let used = quota.limit - quota.remaining;
            assert!(
                (requests..=requests + requests / 4).contains(&used),
                "{used} after {requests}"
            );
        }
    }

    #[test]
    fn clean_shutdown_keeps_all_counts_and_removes_the_log() {
        let world = World::new();
        let journal = world.start();
        for _ in 0..100 {
            assert!(world.take(&journal, 1, STANDARD.windows));
        }
        journal.close().unwrap();
        // A snapshot that started earlier must have no effect.
        journal.save().unwrap();
        assert!(logs(&world.path()).unwrap().is_empty());
        let quota = world
            .start()
            .memory
            .peek(key(1), STANDARD.windows, world.clock.ticks())
            .binding();
        assert_eq!(quota.remaining, 20);
    }

    #[test]
    fn replayed_window_ends_on_time_despite_clock_steps() {
        let world = World::new();
        let journal = world.start();
        world.clock.advance(Duration::from_secs(5));
        assert!(world.take(&journal, 1, STANDARD.windows));
        assert!(world.take(&journal, 2, CONTEXT.windows));
        world.clock.advance(Duration::from_secs(10));
        let left = |user, windows| {
            let quota = world
                .start()
                .memory
                .peek(key(user), windows, world.clock.ticks())
                .binding();
            (quota.remaining, quota.reset_secs)
        };
        assert_eq!(left(1, STANDARD.windows), (119, 50));
        assert_eq!(left(2, &CONTEXT.windows[..1]), (9, 50));
        world.clock.step_wall(TimeDelta::days(-1));
        let (remaining, secs) = left(1, STANDARD.windows);
        assert!(remaining == 119 && secs <= 60, "{secs}");
        world.clock.step_wall(TimeDelta::days(2));
        assert_eq!(
            left(1, STANDARD.windows),
            (120, 60),
            "away for longer than the window"
        );
    }

    #[test]
    fn corrupt_record_is_skipped_and_others_are_replayed() {
        let world = World::new();
        let journal = world.start();
        for user in 0..3 {
            assert!(world.take(&journal, user, STANDARD.windows));
        }
        let seed = journal.memory.seed();
        let now = world.clock.now().timestamp_millis();
        let whole = fs::read(world.only_log()).unwrap();
        assert_eq!(
            (whole.len(), cells(&whole, &seed, now).len()),
            (4 * RECORD, 3)
        );
        for length in 0..whole.len() {
            assert_eq!(
                cells(&whole[..length], &seed, now).len(),
                (length / RECORD).saturating_sub(1),
                "cut at {length}"
            );
            let mut changed = whole.clone();
            changed[length] ^= 0x10;
            assert_eq!(
                cells(&changed, &seed, now).len(),
                if length < RECORD { 0 } else { 2 },
                "changed at {length}"
            );
        }
        assert!(
            cells(&whole, &[0; 32], now).is_empty(),
            "names of another seed"
        );
    }

    #[test]
    fn log_is_deleted_after_the_next_snapshot() {
        let world = World::new();
        let journal = world.start();
        let first = world.only_log();
        assert!(world.take(&journal, 1, STANDARD.windows));
        journal.save().unwrap();
        let second = world.only_log();
        assert_ne!(first, second);
        assert_eq!(
            fs::metadata(&second).unwrap().len(),
            RECORD as u64,
            "empty again"
        );
        // A snapshot that cannot be written keeps every log.
        fs::create_dir(world.dir.path().join("limits.new")).unwrap();
        assert!(journal.save().is_err() && journal.save().is_err());
        assert!(world.take(&journal, 2, STANDARD.windows));
        assert_eq!(logs(&world.path()).unwrap().len(), 2);
        fs::remove_dir(world.dir.path().join("limits.new")).unwrap();
        let quota = world
            .start()
            .memory
            .peek(key(2), STANDARD.windows, world.clock.ticks())
            .binding();
        assert_eq!(quota.remaining, 119);
    }

    #[test]
    fn concurrent_counts_survive_snapshots() {
        let world = World::new();
        let journal = world.start();
        let windows = &[per(1_000_000, 60)];
        std::thread::scope(|scope| {
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        (0..20_000)
                            .filter(|n| world.take(&journal, n % 7, windows))
                            .count()
                    })
                })
                .collect();
            for _ in 0..20 {
                journal.save().unwrap();
            }
            assert_eq!(
                takers
                    .into_iter()
                    .map(|taker| taker.join().unwrap())
                    .sum::<usize>(),
                40_000
            );
        });
        let restarted = world.start();
        let used = |user| {
            let quota = restarted
                .memory
                .peek(key(user), windows, world.clock.ticks())
                .binding();
            quota.limit - quota.remaining
        };
        assert!((0..7).map(used).sum::<u32>() >= 40_000);
    }
}
