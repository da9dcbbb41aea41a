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

use super::{
    error::BackupError,
    state::Backups,
    store::{ProjectKey, ProjectStore},
    wal::Lsn,
};
use crate::{
    control::{
        backups::archive_row::{Archive, Fork, archive_columns},
        context::ControlContext,
    },
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

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
    context: &ControlContext,
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

/// Begins an archive, and ends the one before. `None` for a removed project: its rows are kept
/// aside until it is brought back, and another archive would hide them.
pub(super) async fn begin(
    context: &ControlContext,
    project: ProjectId,
    new: &NewArchive,
    reason: &str,
) -> Result<Option<Archive>, Error> {
    let doing = "beginning an archive";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select from projects where id = $1 and desired <> 'removed' for share";
    let live = transaction.query_opt(sql, &[&project.0]).await;
    if live.context(doing)?.is_none() {
        return Ok(None);
    }
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
    Archive::read(&row, 0).map(Some)
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

/// Finds the archive of a restored cluster.
const OF_RESTORE: &str = "select 1 from archives where restore_id = $1";

/// Returns whether the archive of a restored cluster has begun: it is in its place.
pub(super) async fn is_continued(context: &ControlContext, restore: i64) -> Result<bool, Error> {
    let rows = context.db.query(OF_RESTORE, &[&restore]).await;
    Ok(!rows.context("reading an archive")?.is_empty())
}

/// Begins the archive of a cluster that took the place of another one, and ends that of the other
/// one at the same time. Does nothing if it has begun.
pub(super) async fn continue_from(
    context: &ControlContext,
    project: ProjectId,
    new: &Continuation,
) -> Result<(), Error> {
    let doing = "continuing an archive";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let begun = transaction.query_opt(OF_RESTORE, &[&new.restore]).await;
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
pub(super) async fn record(context: &ControlContext, archive: &Archive) -> Result<(), Error> {
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
    context: &ControlContext,
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
    context: &ControlContext,
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
    context: &ControlContext,
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

/// Deletes the row of an archive without objects. Those that continue it have base backups of
/// their own, or cannot be recovered either.
pub(super) async fn forget(context: &ControlContext, archive: i64) -> Result<(), Error> {
    let doing = "deleting an archive";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    for sql in [
        "update archives set parent_id = null, fork_lsn = null where parent_id = $1",
        "delete from archives where id = $1 and ended_at is not null",
    ] {
        let done = transaction.execute(sql, &[&archive]).await;
        done.context(doing)?;
    }
    transaction.commit().await.context(doing)
}
