//! A backup of a running cluster: begin, files, WAL, end.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tokio_postgres::{Row, types::FromSql};

use super::{
    copy::CopySpec,
    progress::{CopyPhase, CopyProgress},
};
use crate::{
    background::{blocking, idle},
    clusters::{
        identity,
        online_copy::copier::{Copier, CopyControl, CopyCounts},
        server::process::Server,
        superuser::{self, SqlParams, SuperuserSession, SuperuserStatement},
    },
    error::{ClusterError, Result},
    supervisor::ProcessOwner,
};

/// Bytes per second at the begin, and the bounds of adjustment.
const SPEED: u64 = 200 << 20;
const SPEED_MIN: u64 = 25 << 20;
pub(super) const SPEED_MAX: u64 = 4 << 30;
/// Interval of measuring the original's commits.
const SAMPLE: Duration = Duration::from_millis(100);
/// Latency of a commit that is never regarded as slow.
const LATENCY_MIN: Duration = Duration::from_millis(2);
/// Time limit of one sample: a commit that takes longer counts as slow.
const SAMPLE_PATIENCE: Duration = Duration::from_secs(10);
/// Size of the original's buffer cache that an immediate checkpoint writes in a moment, in bytes.
const SMALL_CACHE_BYTES: i64 = 128 << 20;
/// Age of a checkpoint after which many pages can be dirty again, in seconds.
const RECENT_SECS: i64 = 60;
/// Sizes of WAL segments that PostgreSQL permits, in bytes.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// Maximum number of WAL segments that a copy needs.
const SEGMENTS_MAX: u64 = 65_536;

/// A running backup of the original. It ends with its session.
pub(super) struct Backup {
    pub(super) session: SuperuserSession,
    data: PathBuf,
    owner: ProcessOwner,
    /// Size of all databases.
    bytes: u64,
    segment_bytes: u64,
    pub(super) timeline: u32,
    /// Settings that a server needs to recover prepared transactions and replication origins.
    needed_settings: String,
    latency: Duration,
}

impl Backup {
    /// Begins a backup of a running server.
    pub(super) async fn begin(source: &Server, progress: &CopyProgress) -> Result<Self> {
        progress.enter(CopyPhase::Checkpoint);
        let session = source.superuser().await?;
        run(&session, &superuser::LONG_STATEMENTS).await?;
        let row = one(&session, &superuser::COPY_FACTS, &[]).await?;
        if value::<i64>(&row, 4)? != 0 {
            return Err(ClusterError::Copy("it has tablespaces".to_owned()));
        }
        let (prepared, slots): (i32, i32) = (value(&row, 2)?, value(&row, 3)?);
        let segment_bytes = u64::try_from(value::<i64>(&row, 0)?).unwrap_or(0);
        if !SEGMENT_BYTES.contains(&segment_bytes) {
            return Err(ClusterError::Copy(
                "its WAL has an unknown format".to_owned(),
            ));
        }
        let timeline = value::<i32>(&row, 1)?.cast_unsigned();
        let bytes = u64::try_from(value::<i64>(&row, 5)?).unwrap_or(0);
        let mut latency = SAMPLE_PATIENCE;
        for _ in 0..3 {
            latency = latency.min(commit_latency(&session).await);
        }
        // Keeps the WAL of the copy. Without a free slot, the copy fails if a segment is missing.
        if let Err(error) = run(&session, &superuser::CREATE_COPY_SLOT).await {
            tracing::info!(%error, "copying without a replication slot");
        }
        let fast = is_fast(value(&row, 6)?, value(&row, 7)?);
        one(&session, &superuser::BEGIN_BACKUP, &[&fast]).await?;
        Ok(Self {
            session,
            data: source.data().to_owned(),
            owner: source.run_as(),
            bytes,
            segment_bytes,
            timeline,
            needed_settings: format!(
                "max_prepared_transactions = {}\nmax_replication_slots = {}\n",
                prepared.clamp(0, 10_000),
                slots.clamp(1, 10_000)
            ),
            latency,
        })
    }

    /// Copies the data directory to `<place>/data`, and returns the end of its WAL.
    pub(super) async fn copy(
        self,
        spec: &CopySpec,
        template: &Path,
        place: &Path,
        owner: ProcessOwner,
    ) -> Result<(String, CopyCounts)> {
        let control = CancelOnDrop::new();
        let copied = self.copy_files(place, owner, spec.bytes_max, &control.0);
        let mut copier = copied.await?;
        let BackupEnd {
            lsn,
            position,
            label,
        } = self.stop().await?;
        let segments = self.segments(&label, position)?;
        let (template, settings) = (template.to_owned(), self.needed_settings.clone());
        let (segment_bytes, major) = (self.segment_bytes, spec.cluster.major);
        let copied = blocking(move || {
            for name in &segments {
                copier.copy_segment(name, segment_bytes)?;
            }
            copier.write(c"backup_label", label.as_bytes())?;
            for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
                copier.adopt(
                    &template.join(name),
                    &CString::new(name).unwrap_or_default(),
                )?;
            }
            copier.write(c"postgresql.auto.conf", b"")?;
            let newer = if major >= 17 { QUARANTINE_17 } else { "" };
            let overrides = format!("{QUARANTINE}{newer}{settings}");
            copier.write(c"overrides.conf", overrides.as_bytes())?;
            copier.finish()
        })
        .await?;
        // Ends the slot, which kept the segments until here.
        drop(self.session);
        Ok((lsn, copied))
    }

    /// Copies the data directory to `<place>/data`, without its WAL.
    pub(super) async fn copy_files(
        &self,
        place: &Path,
        owner: ProcessOwner,
        bytes_max: u64,
        control: &Arc<CopyControl>,
    ) -> Result<Copier> {
        let target = place.join("data");
        let owners = (self.owner, owner);
        let (from, shared) = (self.data.clone(), Arc::clone(control));
        let expected = self.bytes;
        let files = idle(move || {
            let mut copier = Copier::new(&from, &target, owners, bytes_max, shared)?;
            copier.expect(expected);
            copier.copy_files()?;
            copier.copy_control()?;
            Ok(copier)
        });
        self.paced(control, files).await
    }

    /// Ends the backup.
    pub(super) async fn stop(&self) -> Result<BackupEnd> {
        let row = one(&self.session, &superuser::END_BACKUP, &[]).await?;
        if !value::<Option<String>>(&row, 2)?
            .unwrap_or_default()
            .is_empty()
        {
            return Err(ClusterError::Copy("it has tablespaces".to_owned()));
        }
        Ok(BackupEnd {
            lsn: value(&row, 0)?,
            label: value(&row, 1)?,
            position: value::<String>(&row, 3)?.parse().unwrap_or(0),
        })
    }

    /// Adjusts the speed to the original's commits while the files are copied.
    async fn paced<T>(
        &self,
        control: &CopyControl,
        files: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::pin!(files);
        let slow = (self.latency * 2).max(LATENCY_MIN);
        loop {
            if let Ok(done) = timeout(SAMPLE, &mut files).await {
                return done;
            }
            let sample = commit_latency(&self.session);
            let speed = control.bytes_per_sec();
            let next = tokio::select! {
                done = &mut files => return done,
                latency = sample => if latency <= slow { speed * 2 } else { speed / 2 },
            };
            control.set_bytes_per_sec(next.clamp(SPEED_MIN, SPEED_MAX));
        }
    }

    /// Returns the names of the segments from the begin of the backup to its end.
    fn segments(&self, label: &str, end: u64) -> Result<Vec<String>> {
        let start = start_of(label)?;
        // The last byte before the end: an end at a boundary needs no further segment.
        let last = end.saturating_sub(1) / self.segment_bytes;
        let first = start / self.segment_bytes;
        if last < first || last - first >= SEGMENTS_MAX {
            return Err(ClusterError::Copy(
                "it wrote too much during the copy".to_owned(),
            ));
        }
        let names = (first..=last).map(|number| {
            identity::segment_name(
                self.timeline,
                number * self.segment_bytes,
                self.segment_bytes,
            )
        });
        Ok(names.collect())
    }
}

/// The end of a backup.
pub(super) struct BackupEnd {
    /// End of the WAL, as PostgreSQL prints it.
    lsn: String,
    /// This position as a number.
    pub(super) position: u64,
    /// Content of `backup_label`.
    pub(super) label: String,
}

/// Returns the position from which the WAL of a backup is replayed.
pub(super) fn start_of(label: &str) -> Result<u64> {
    let start = label
        .lines()
        .find_map(|line| line.strip_prefix("START WAL LOCATION: "))
        .and_then(|line| lsn(line.split_whitespace().next()?));
    start.ok_or_else(|| ClusterError::Copy("its backup has no begin".to_owned()))
}

/// Settings of the quarantine. Appended to those of the template.
pub(in crate::clusters) const QUARANTINE: &str = "
shared_preload_libraries = ''
session_preload_libraries = ''
local_preload_libraries = ''
max_worker_processes = 0
max_wal_senders = 0
archive_mode = off
autovacuum = off
log_statement = 'none'
log_connections = off
log_min_duration_statement = -1
log_min_error_statement = 'panic'
";

/// Settings that older servers do not know.
pub(in crate::clusters) const QUARANTINE_17: &str = "event_triggers = off\nsummarize_wal = off\n";

/// Returns whether the backup may begin with an immediate checkpoint: if the original can have few
/// dirty pages, because its cache is small or its last checkpoint recent. Otherwise the checkpoint
/// is spread over minutes, at the original's usual pace.
fn is_fast(cache_bytes: i64, checkpoint_age_secs: i64) -> bool {
    cache_bytes <= SMALL_CACHE_BYTES || checkpoint_age_secs < RECENT_SECS
}

/// Parses a position in the WAL, such as `0/3000028`.
fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let high = u64::from_str_radix(high, 16).ok()?;
    let low = u64::from_str_radix(low, 16).ok()?;
    Some((high << 32) | low)
}

/// The control of a copy. Cancels it on drop, when its result is not awaited any more.
pub(super) struct CancelOnDrop(pub(super) Arc<CopyControl>);

impl CancelOnDrop {
    pub(super) fn new() -> Self {
        Self(Arc::new(CopyControl::new(SPEED)))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Measures a small commit in the original.
async fn commit_latency(session: &SuperuserSession) -> Duration {
    let begun = Instant::now();
    let commit = run(session, &superuser::SMALL_COMMIT);
    match timeout(SAMPLE_PATIENCE, commit).await {
        Ok(Ok(())) => begun.elapsed(),
        _ => SAMPLE_PATIENCE,
    }
}

async fn run(session: &SuperuserSession, statement: &'static SuperuserStatement) -> Result<()> {
    session.run(statement).await.map_err(sql_error)
}

pub(super) async fn one(
    session: &SuperuserSession,
    statement: &'static SuperuserStatement,
    parameters: &SqlParams<'_>,
) -> Result<Row> {
    let row = session.query_one(statement, parameters).await;
    row.map_err(sql_error)
}

/// Returns a column of a row. A tenant with superuser rights can change the types of functions.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(sql_error)
}

pub(super) fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    ClusterError::Sql {
        doing: "copying a cluster",
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_is_immediate_unless_much_can_be_dirty() {
        assert!(is_fast(16 << 20, 3600));
        assert!(is_fast(1 << 33, 59));
        assert!(!is_fast(1 << 33, 60));
    }

    #[test]
    fn lsn_is_parsed_as_two_halves() {
        assert_eq!(lsn("0/3000028"), Some(0x300_0028));
        assert_eq!(lsn("A/FF"), Some(0xA_0000_00FF));
        assert_eq!(lsn("0"), None);
        assert_eq!(lsn("x/1"), None);
    }
}
