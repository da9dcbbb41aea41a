//! Recovery of projects that have lost their clusters.

use chrono::{DateTime, Utc};
use tokio_postgres::Transaction;

/// Requests that a project is restored to the last moment in the store. The node that holds it has
/// no cluster of it. A paused project is restored when it is resumed.
///
/// `turn` is when its node begins. A restore that was interrupted goes on, without the folders that
/// it would have reused.
pub(in crate::control) async fn request_recovery(
    transaction: &Transaction<'_>,
    project: i64,
    is_active: bool,
    (turn, now): (DateTime<Utc>, DateTime<Utc>),
) -> Result<(), tokio_postgres::Error> {
    let status = if is_active { "RESTORING" } else { "INACTIVE" };
    let sql = "update projects set status = $2, asleep = false, generation = generation + 1,
                      attempts = 0, falls = 0, last_error = null, not_before = $3, updated_at = $4
               where id = $1";
    transaction
        .execute(sql, &[&project, &status, &turn, &now])
        .await?;
    request_restore(transaction, project, now).await
}

/// Requests the restore alone, for a removed project: it is carried out if that is brought back.
pub(in crate::control) async fn request_restore(
    transaction: &Transaction<'_>,
    project: i64,
    now: DateTime<Utc>,
) -> Result<(), tokio_postgres::Error> {
    let sql = "insert into restores (project_id, recovers, requested_at) values ($1, true, $2)
               on conflict (project_id) where finished_at is null
               do update set recovers = true, reuse_of = null";
    transaction.execute(sql, &[&project, &now]).await.map(drop)
}

/// Marks the restore of a project as one that continues the log of its cluster, which was stopped
/// and is in the store to its end.
pub(in crate::control) async fn continue_log(
    transaction: &Transaction<'_>,
    project: i64,
) -> Result<(), tokio_postgres::Error> {
    let sql = "update restores set continues = true, is_log_complete = true, replaced_archive_id =
                   (select a.id from archives a where a.project_id = $1 and a.ended_at is null)
               where project_id = $1 and finished_at is null";
    transaction.execute(sql, &[&project]).await.map(drop)
}
