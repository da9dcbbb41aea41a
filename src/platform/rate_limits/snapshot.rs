//! The snapshot of counters: a file that is replaced every second if anything was counted. Beside
//! it is the log of later allotments ([`Journal`]).
//!
//! While the server runs, the file has the allotments instead of the counts, so that a crash gives
//! nothing back. The new file is written beside the old one, flushed, and renamed, so that it is
//! never incomplete. An unreadable file is reported and ignored.
//!
//! Layout, little-endian: magic, version, seed, wall clock in milliseconds, number of counters; for
//! each its name, kind and window, and requests with milliseconds left; then a CRC-32C of
//! everything before. The seed keeps the names of counters valid across restarts. It is a secret,
//! so only the owner may read the file.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use gantry_base::clock::{Clock, Entropy};

use super::{
    journal::{self, Journal},
    memory::{CounterCapacity, CounterRecord, Kind, Memory, Seed},
};

/// Default interval of snapshots.
pub const EVERY: Duration = Duration::from_secs(1);

/// Upper bound of the share of time spent on writing: 1 in 20. Snapshots of a million counters are
/// thus less frequent.
const SHARE: u32 = 20;

const MAGIC: [u8; 8] = *b"gantrylm";
const VERSION: u32 = 1;
const HEADER: usize = MAGIC.len() + 4 + size_of::<Seed>() + 8 + 8;
const RECORD: usize = 8 + 1 + 8;
const CHECKSUM: usize = 4;
/// Bits of a record's last word below the milliseconds left.
pub(super) const USED_BITS: u32 = 24;

/// Reason why a file is not a usable snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum SnapshotError {
    #[error("not a snapshot of counters")]
    Foreign,
    #[error("written by another version")]
    Version,
    #[error("damaged")]
    Damaged,
}

struct Snapshot {
    seed: Seed,
    saved: DateTime<Utc>,
    cells: Vec<CounterRecord>,
}

/// Loads counters with open windows. Without a usable file the counters start empty.
pub fn open(
    path: &Path,
    capacity: CounterCapacity,
    operations: &[&str],
    clock: &Clock,
    entropy: &Entropy,
) -> Memory {
    let Some(snapshot) = load(path) else {
        return Memory::new(capacity, operations, entropy.bytes());
    };
    let limits = Memory::new(capacity, operations, snapshot.seed);
    // If the wall clock stepped back, the elapsed time is unknown and counts as zero.
    let away = u64::try_from((clock.now() - snapshot.saved).num_milliseconds()).unwrap_or(0);
    let open = snapshot.cells.into_iter().filter_map(|cell| {
        Some(CounterRecord {
            left: cell.left.checked_sub(away).filter(|left| *left > 0)?,
            ..cell
        })
    });
    limits.import(
        merge_records(open.chain(journal::read(
            path,
            &snapshot.seed,
            clock.now().timestamp_millis(),
        ))),
        clock.ticks(),
    );
    limits
}

/// Merges the records of each window: the highest use and the latest end.
fn merge_records(
    cells: impl Iterator<Item = CounterRecord>,
) -> impl Iterator<Item = CounterRecord> {
    let mut merge_records: HashMap<(Kind, u64, u8), CounterRecord> = HashMap::new();
    for cell in cells {
        let known = merge_records
            .entry((cell.kind, cell.name, cell.window))
            .or_insert(cell);
        (known.used, known.left) = (known.used.max(cell.used), known.left.max(cell.left));
    }
    merge_records.into_values()
}

fn load(path: &Path) -> Option<Snapshot> {
    let read = match fs::read(path) {
        Ok(bytes) => decode(&bytes).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
    };
    read.inspect_err(|error| tracing::warn!(path = %path.display(), error, "cannot read the snapshot of rate limits; starting empty")).ok()
}

/// Writes the snapshot once. `exported_use` maps the use of each counter.
pub(super) fn save(
    limits: &Memory,
    clock: &Clock,
    path: &Path,
    exported_use: fn(u32) -> u32,
) -> io::Result<()> {
    let bytes = encode(limits, clock, exported_use);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The rename is durable after the directory is flushed.
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Writes the snapshot in intervals of `every` if anything was counted, and when the log is large.
/// Runs until dropped.
pub async fn run(journal: Arc<Journal>, clock: Clock, every: Duration) {
    let mut unsaved = false;
    let mut failed = false;
    let mut pause = every;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = journal.log_grown() => {}
        }
        unsaved |= journal.was_changed();
        if !unsaved {
            continue;
        }
        let started = clock.ticks();
        let save = {
            let journal = journal.clone();
            tokio::task::spawn_blocking(move || journal.save())
        };
        let saved = save
            .await
            .unwrap_or_else(|panic| Err(io::Error::other(panic)));
        unsaved = saved.is_err();
        match saved {
            // Logged at the first failure and the first success, so that a full disk does not fill
            // the log too.
            Err(error) if !failed => {
                tracing::warn!(%error, "cannot write the snapshot of rate limits");
            }
            Ok(()) if failed => tracing::info!("writing snapshots of rate limits again"),
            _ => {}
        }
        failed = unsaved;
        pause = every.max(Duration::from_millis(clock.ticks() - started) * SHARE);
    }
}

fn encode(limits: &Memory, clock: &Clock, exported_use: fn(u32) -> u32) -> Vec<u8> {
    // The wall clock is read first: a later time would extend the windows.
    let saved = clock.now();
    let cells: Vec<CounterRecord> = limits.export(clock.ticks()).collect();
    let mut bytes = Vec::with_capacity(HEADER + cells.len() * RECORD + CHECKSUM);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(limits.seed());
    bytes.extend(saved.timestamp_millis().to_le_bytes());
    bytes.extend((cells.len() as u64).to_le_bytes());
    for cell in cells {
        bytes.extend(cell.name.to_le_bytes());
        bytes.push(kind_byte(cell.kind) << 1 | cell.window & 1);
        bytes.extend((cell.left << USED_BITS | u64::from(exported_use(cell.used))).to_le_bytes());
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::Foreign)?;
    let (version, _) = rest.split_first_chunk().ok_or(SnapshotError::Damaged)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(SnapshotError::Version);
    }
    let (body, checksum) = bytes.split_last_chunk().ok_or(SnapshotError::Damaged)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotError::Damaged);
    }
    fields(&body[MAGIC.len() + size_of::<u32>()..]).ok_or(SnapshotError::Damaged)
}

fn fields(bytes: &[u8]) -> Option<Snapshot> {
    let (seed, bytes) = bytes.split_first_chunk()?;
    let (saved, bytes) = bytes.split_first_chunk()?;
    let (count, bytes) = bytes.split_first_chunk()?;
    let (records, rest) = bytes.as_chunks::<RECORD>();
    let whole = rest.is_empty() && u64::from_le_bytes(*count) == records.len() as u64;
    let cells = records
        .iter()
        .map(record)
        .collect::<Option<_>>()
        .filter(|_| whole)?;
    Some(Snapshot {
        seed: *seed,
        saved: DateTime::from_timestamp_millis(i64::from_le_bytes(*saved))?,
        cells,
    })
}

fn record(bytes: &[u8; RECORD]) -> Option<CounterRecord> {
    let (name, bytes) = bytes.split_first_chunk()?;
    let (&kind, bytes) = bytes.split_first()?;
    let state = u64::from_le_bytes(bytes.try_into().ok()?);
    let used = u32::try_from(state & ((1 << USED_BITS) - 1)).ok()?;
    Some(CounterRecord {
        kind: kind_of(kind >> 1)?,
        name: u64::from_le_bytes(*name),
        window: kind & 1,
        used,
        left: state >> USED_BITS,
    })
}

/// Returns the kind of a byte in the file.
pub(super) fn kind_of(byte: u8) -> Option<Kind> {
    [
        Kind::Known,
        Kind::Address,
        Kind::KnownOverflow,
        Kind::AddressOverflow,
    ]
    .into_iter()
    .find(|kind| kind_byte(*kind) == byte)
}

/// Returns the byte of a kind in the file.
pub(super) const fn kind_byte(kind: Kind) -> u8 {
    match kind {
        Kind::Known => 0,
        Kind::Address => 1,
        Kind::KnownOverflow => 2,
        Kind::AddressOverflow => 3,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use chrono::TimeDelta;

    use super::*;
    use crate::platform::rate_limits::{
        CONTEXT, CounterKey, CounterScope, Identifier, STANDARD, per,
    };
    use gantry_base::ids::UserId;

    const OPERATIONS: [&str; 2] = ["v1-one", "v1-two"];

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

        fn path(&self) -> PathBuf {
            self.dir.path().join("limits")
        }

        fn start(&self) -> Memory {
            self.start_with(&OPERATIONS)
        }

        fn start_with(&self, operations: &[&str]) -> Memory {
            open(
                &self.path(),
                CounterCapacity::default(),
                operations,
                &self.clock,
                &Entropy::system(),
            )
        }

        fn save(&self, limits: &Memory) {
            save(limits, &self.clock, &self.path(), |used| used).unwrap();
        }

        fn advance(&self, millis: u64) {
            self.clock.advance(Duration::from_millis(millis));
        }

        fn left(&self, limits: &Memory, key: CounterKey) -> (u32, u32) {
            let quota = limits
                .peek(key, STANDARD.windows, self.clock.ticks())
                .binding();
            (quota.remaining, quota.reset_secs)
        }
    }

    fn key(user: i64) -> CounterKey {
        CounterKey {
            identifier: Identifier::User(UserId(user)),
            scope: CounterScope::User,
            operation: 0,
        }
    }

    #[test]
    fn restart_keeps_counts_and_window_ends() {
        let world = World::new();
        let limits = world.start();
        for _ in 0..20 {
            assert!(
                limits
                    .take(key(1), STANDARD.windows, world.clock.ticks())
                    .admitted
            );
        }
        let address = CounterKey {
            identifier: Identifier::Address(7),
            ..key(0)
        };
        limits.take(address, STANDARD.windows, world.clock.ticks());
        limits.take(key(2), CONTEXT.windows, world.clock.ticks());
        world.advance(10_000);
        world.save(&limits);
        world.advance(5_000);

        let restarted = world.start();
        assert_eq!(world.left(&restarted, key(1)), (100, 45));
        assert_eq!(world.left(&restarted, address), (119, 45));
        assert_eq!(
            restarted
                .take(key(2), CONTEXT.windows, world.clock.ticks())
                .quota()
                .remaining,
            0
        );
        world.advance(45_000);
        assert_eq!(
            world.left(&restarted, key(1)),
            (120, 60),
            "the window ended when it would have"
        );
    }

    #[test]
    fn operations_are_identified_by_id() {
        let world = World::new();
        let limits = world.start();
        limits.take(key(1), STANDARD.windows, 0);
        world.save(&limits);
        let restarted = world.start_with(&["v1-new", "v1-two", "v1-one"]);
        assert_eq!(world.left(&restarted, key(1)), (120, 60));
        assert_eq!(
            world.left(
                &restarted,
                CounterKey {
                    operation: 2,
                    ..key(1)
                }
            ),
            (119, 60)
        );
    }

    #[test]
    fn wall_clock_steps_never_lengthen_a_window() {
        let world = World::new();
        let limits = world.start();
        limits.take(key(1), STANDARD.windows, 0);
        world.save(&limits);
        world.clock.step_wall(TimeDelta::days(-1));
        let restarted = world.start();
        assert_eq!(world.left(&restarted, key(1)), (119, 60));
        world.clock.step_wall(TimeDelta::days(2));
        assert_eq!(
            world.left(&world.start(), key(1)),
            (120, 60),
            "away for longer than the window"
        );
    }

    #[test]
    fn truncated_or_changed_file_is_ignored() {
        let world = World::new();
        let limits = world.start();
        limits.take(key(1), CONTEXT.windows, 0);
        world.save(&limits);
        let whole = fs::read(world.path()).unwrap();
        assert_eq!(decode(&whole).unwrap().cells.len(), 2);
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "cut at {length}");
            let mut changed = whole.clone();
            changed[length] ^= 0x10;
            assert!(decode(&changed).is_err(), "changed at {length}");
        }
        fs::write(world.path(), &whole[..whole.len() / 2]).unwrap();
        assert_eq!(world.left(&world.start(), key(1)), (120, 60));
    }

    /// After a crash during a write the temporary file is incomplete and the snapshot is intact.
    #[test]
    fn crash_while_saving_keeps_the_previous_snapshot() {
        let world = World::new();
        let limits = world.start();
        limits.take(key(1), STANDARD.windows, 0);
        world.save(&limits);
        let whole = fs::read(world.path()).unwrap();
        for length in 0..whole.len() {
            fs::write(world.dir.path().join("limits.new"), &whole[..length]).unwrap();
            assert_eq!(world.left(&world.start(), key(1)), (119, 60));
        }
        world.save(&limits);
        assert_eq!(fs::read(world.path()).unwrap(), whole);
    }

    #[test]
    fn count_that_contradicts_the_length_is_damaged() {
        let world = World::new();
        let limits = world.start();
        limits.take(key(1), STANDARD.windows, 0);
        let mut bytes = encode(&limits, &world.clock, |used| used);
        bytes[HEADER - 8] = 2;
        let body = bytes.len() - CHECKSUM;
        let checksum = crc32c::crc32c(&bytes[..body]).to_le_bytes();
        bytes[body..].copy_from_slice(&checksum);
        assert_eq!(decode(&bytes).err(), Some(SnapshotError::Damaged));
    }

    #[tokio::test]
    async fn file_is_written_only_after_changes() {
        let world = World::new();
        let limits = Arc::new(world.start());
        let every = Duration::from_millis(5);
        let journal =
            Arc::new(Journal::open(limits.clone(), world.clock.clone(), world.path()).unwrap());
        fs::remove_file(world.path()).unwrap();
        let task = tokio::spawn(run(journal, world.clock.clone(), every));
        let appears = async || {
            while !world.path().exists() {
                tokio::time::sleep(every).await;
            }
        };
        let windows = &[per(1, 60)];
        limits.take(key(1), windows, 0);
        appears().await;
        fs::remove_file(world.path()).unwrap();
        assert!(!limits.take(key(1), windows, 0).admitted);
        tokio::time::sleep(every * 10).await;
        assert!(!world.path().exists(), "a refused request changes nothing");
        limits.take(key(2), windows, 0);
        appears().await;
        task.abort();
    }
}
