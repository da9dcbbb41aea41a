//! Archives: the write-ahead log of one cluster in the store, without a gap, for one period in
//! which the cluster was that of the project.
//!
//! The archive of a cluster that was restored in place, or that an undo brought back, continues
//! another one: the log of its parent up to the fork, and then its own, are one log (decision
//! 0172).
//!
//! The rows are in the control database; the segments are objects `<archive>/wal/<segment>`, and
//! the unfinished one is `<segment>.partial`, which is overwritten while it grows.

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use tokio_postgres::Row;

use super::{
    BackupError, Backups,
    store::{ProjectKey, ProjectStore},
    wal::{Lsn, SegmentName},
};
use crate::{
    data_plane::context::DataPlaneContext,
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// Suffix of an unfinished segment.
pub(super) const PARTIAL: &str = ".partial";

/// The columns that [`Archive::read`] expects, each with a prefix such as `a.`.
macro_rules! archive_columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "system_id, ",
            $of,
            "part, ",
            $of,
            "timeline, ",
            $of,
            "segment_bytes, ",
            $of,
            "begin_lsn, ",
            $of,
            "shipped_lsn, ",
            $of,
            "shipped_at, ",
            $of,
            "last_commit_at, ",
            $of,
            "ended_at, ",
            $of,
            "ended_reason, ",
            $of,
            "created_at, ",
            $of,
            "parent_id, ",
            $of,
            "fork_lsn"
        )
    };
}
pub(super) use archive_columns;

/// An archive, as read from its row.
#[derive(Debug, Clone)]
pub struct Archive {
    /// Number of its row.
    pub id: i64,
    /// System identifier of the cluster.
    pub system_id: u64,
    /// Number among the archives of this cluster.
    pub part: i32,
    /// Timeline of its segments.
    pub timeline: u32,
    /// Size of a segment, in bytes.
    pub segment_bytes: u64,
    /// Position from which the log is in the store.
    pub begin: Lsn,
    /// Position up to which the log is in the store.
    pub shipped: Lsn,
    /// Time before which every commit is in the store.
    pub shipped_at: DateTime<Utc>,
    /// Time of the last commit in the store.
    pub last_commit_at: Option<DateTime<Utc>>,
    /// Time at which another archive followed.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason of its end.
    pub ended_reason: Option<String>,
    /// Time from which its cluster was that of the project.
    pub created_at: DateTime<Utc>,
    /// The archive that it continues.
    pub fork: Option<Fork>,
}

/// The point at which an archive continues another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// Number of the other archive.
    pub parent: i64,
    /// Position of the end of the common log.
    pub at: Lsn,
}

impl Archive {
    /// Reads the columns of `archive_columns!` that begin at `at`.
    pub(super) fn read(row: &Row, at: usize) -> Result<Self, Error> {
        let doing = "reading an archive";
        let fork = match (row.get(at + 12), row.get(at + 13)) {
            (Some(parent), Some(lsn)) => Some(Fork {
                parent,
                at: Lsn::from_column(lsn),
            }),
            _ => None,
        };
        Ok(Self {
            id: row.get(at),
            system_id: row.get::<_, &str>(at + 1).parse().context(doing)?,
            part: row.get(at + 2),
            timeline: u32::try_from(row.get::<_, i64>(at + 3)).context(doing)?,
            segment_bytes: u64::try_from(row.get::<_, i64>(at + 4)).context(doing)?,
            begin: Lsn::from_column(row.get(at + 5)),
            shipped: Lsn::from_column(row.get(at + 6)),
            shipped_at: row.get(at + 7),
            last_commit_at: row.get(at + 8),
            ended_at: row.get(at + 9),
            ended_reason: row.get(at + 10),
            created_at: row.get(at + 11),
            fork,
        })
    }

    /// Name of its folder in the store.
    pub fn folder(&self) -> String {
        format!("{}-{}", self.system_id, self.part)
    }

    /// Name of the object of a finished segment.
    pub(super) fn object(&self, segment: SegmentName) -> String {
        segment_object(&self.folder(), segment)
    }

    /// Name of the object of an unfinished segment.
    pub(super) fn partial(&self, segment: SegmentName) -> String {
        format!("{}{PARTIAL}", self.object(segment))
    }
}

/// Name of the object of a segment in the folder of an archive.
pub(super) fn segment_object(folder: &str, segment: SegmentName) -> String {
    format!("{folder}/wal/{segment}")
}

/// A new archive.
#[derive(Debug)]
pub(super) struct NewArchive {
    pub(super) system_id: u64,
    pub(super) timeline: u32,
    pub(super) segment_bytes: u64,
    pub(super) begin: Lsn,
}

/// Returns the archive that is being written, if any.
pub(super) async fn current(
    context: &DataPlaneContext,
    project: ProjectId,
) -> Result<Option<Archive>, Error> {
    let sql = concat!(
        "select ",
        archive_columns!(""),
        " from archives where project_id = $1 and ended_at is null"
    );
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading an archive")?;
    rows.first().map(|row| Archive::read(row, 0)).transpose()
}

/// Begins an archive, and ends the one before.
pub(super) async fn begin(
    context: &DataPlaneContext,
    project: ProjectId,
    new: &NewArchive,
    reason: &str,
) -> Result<Archive, Error> {
    let doing = "beginning an archive";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    transaction
        .execute(
            "update archives set ended_at = $2, ended_reason = $3 where project_id = $1 and ended_at is null",
            &[&project.0, &now, &reason],
        )
        .await
        .context(doing)?;
    let sql = concat!(
        "insert into archives (project_id, system_id, part, timeline, segment_bytes, begin_lsn, shipped_lsn, shipped_at, created_at)
         select $1, $2, count(*)::int + 1, $3, $4, $5, $5, $6, $6 from archives
         where project_id = $1 and system_id = $2
         returning ",
        archive_columns!("")
    );
    let (timeline, bytes) = (
        i64::from(new.timeline),
        i64::try_from(new.segment_bytes).context(doing)?,
    );
    let row = transaction
        .query_one(
            sql,
            &[
                &project.0,
                &new.system_id.to_string(),
                &timeline,
                &bytes,
                &new.begin.to_column(),
                &now,
            ],
        )
        .await
        .context(doing)?;
    transaction.commit().await.context(doing)?;
    Archive::read(&row, 0)
}

/// The begin of the archive of a cluster that took the place of another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Continuation {
    /// The restore that exchanged the clusters.
    pub(super) restore: i64,
    /// The archive of the replaced cluster.
    pub(super) replaced: Option<i64>,
    /// Whether the log of the replaced cluster is in the store to its end.
    pub(super) is_log_complete: bool,
    pub(super) fork: Fork,
    /// Timeline of the cluster.
    pub(super) timeline: u32,
}

/// Begins the archive of a cluster that took the place of another one, and ends that of the other
/// one at the same time. Does nothing if it has begun.
pub(super) async fn continue_from(
    context: &DataPlaneContext,
    project: ProjectId,
    new: &Continuation,
) -> Result<(), Error> {
    let doing = "continuing an archive";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select 1 from archives where restore_id = $1";
    let begun = transaction.query_opt(sql, &[&new.restore]).await;
    if begun.context(doing)?.is_some() {
        return Ok(());
    }
    let sql =
        "update archives set ended_at = $2, ended_reason = 'a restore replaced the cluster', \
               shipped_at = case when id = $3 and $4 then greatest(shipped_at, $2)
                             else shipped_at end
               where project_id = $1 and ended_at is null";
    let params: [Param<'_>; 4] = [&project.0, &now, &new.replaced, &new.is_log_complete];
    transaction.execute(sql, &params).await.context(doing)?;
    // The first segment has the end of the common log as well.
    let sql = "insert into archives (project_id, system_id, part, timeline, segment_bytes, begin_lsn, shipped_lsn, \
                                     shipped_at, created_at, parent_id, fork_lsn, restore_id)
               select project_id, system_id,
                      (select count(*)::int + 1 from archives o
                       where o.project_id = p.project_id and o.system_id = p.system_id),
                      $2, segment_bytes, $3 - $3 % segment_bytes, $3, $4, $4, id, $3, $5
               from archives p where id = $1";
    let params: [Param<'_>; 5] = [
        &new.fork.parent,
        &i64::from(new.timeline),
        &new.fork.at.to_column(),
        &now,
        &new.restore,
    ];
    transaction.execute(sql, &params).await.context(doing)?;
    transaction.commit().await.context(doing)
}

/// Records how far an archive came.
pub(super) async fn record(context: &DataPlaneContext, archive: &Archive) -> Result<(), Error> {
    let sql = "update archives set shipped_lsn = $2, shipped_at = greatest(shipped_at, $3), last_commit_at = greatest(last_commit_at, $4)
               where id = $1 and ended_at is null";
    context
        .db
        .query(
            sql,
            &[
                &archive.id,
                &archive.shipped.to_column(),
                &archive.shipped_at,
                &archive.last_commit_at,
            ],
        )
        .await
        .context("recording an archive")
        .map(drop)
}

/// Records that all of the log before `end` is in the store, so that every moment until then can be
/// recovered.
pub(super) async fn record_end(
    context: &DataPlaneContext,
    project: ProjectId,
    end: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update archives set shipped_at = greatest(shipped_at, $2) where project_id = $1 and ended_at is null";
    let params: [Param<'_>; 2] = [&project.0, &end];
    let recorded = context.db.query(sql, &params).await;
    recorded.context("recording an archive").map(drop)
}

/// Ends an archive that has a gap.
pub(super) async fn end(
    context: &DataPlaneContext,
    archive: &Archive,
    reason: &str,
) -> Result<(), Error> {
    let sql =
        "update archives set ended_at = $2, ended_reason = $3 where id = $1 and ended_at is null";
    context
        .db
        .query(sql, &[&archive.id, &context.clock.now(), &reason])
        .await
        .context("ending an archive")
        .map(drop)
}

/// Returns the store of a project, with its key. A project without a key gets one.
pub(super) async fn store_of(
    context: &DataPlaneContext,
    backups: &Backups,
    id: ProjectId,
    project: &ProjectRef,
) -> Result<ProjectStore, BackupError> {
    let doing = "reading the key of a project's backups";
    let store = backups.store()?;
    let sealing = &context.settings.sealing;
    let read = "select sealed from backup_keys where project_id = $1";
    let rows = context.db.query(read, &[&id.0]).await.context(doing)?;
    let sealed: Vec<u8> = if let Some(row) = rows.first() {
        row.get(0)
    } else {
        let key = ProjectKey::generate(&context.entropy)?;
        let sealed = key.seal(sealing, &context.entropy, project)?;
        // In the store first: without its key, an object there could never be read.
        store.put_key(project, &sealed).await?;
        let sql = "insert into backup_keys (project_id, sealed, created_at) values ($1, $2, $3) on conflict do nothing";
        let inserted = context
            .db
            .query(sql, &[&id.0, &sealed, &context.clock.now()])
            .await;
        inserted.context(doing)?;
        sealed
    };
    let key = ProjectKey::open(sealing, project, &sealed)?;
    Ok(store.project(project, key))
}
