//! Progress of deliveries: one row for each drain and store of lines.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::ProjectId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::settings::BackendType;
use crate::platform::{
    access::Project,
    db::Db,
    error::{Context, Error},
};

/// Age of a report of a failure from which on it is ignored. Exceeds the delay between attempts.
const STALE: TimeDelta = TimeDelta::minutes(15);

/// The progress of a drain in one store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// The numbering of lines.
    pub(super) epoch: String,
    /// The process that saved the progress.
    pub(super) process: Uuid,
    /// Number of the first line that is not delivered.
    pub(super) next_line: u64,
    /// Lines that were delivered.
    pub(super) delivered: u64,
    /// Lines that were dropped.
    pub(super) dropped: u64,
    /// Lines that wait.
    pub(super) lag: u64,
    /// Text of the last error, and the time of the first one since the last success.
    pub(super) failing: Option<(String, DateTime<Utc>)>,
}

/// Reads the progress of a drain.
pub(super) async fn load(db: &Db, drain: Uuid, store: &str) -> Result<Option<Progress>, Error> {
    let sql = "select epoch, process, next_line, delivered, dropped, lag, error, failing_since \
               from log_drain_progress where drain_id = $1 and store = $2";
    let rows = db
        .query(sql, &[&drain, &store])
        .await
        .context("reading the progress of a log drain")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let number = |column| row.get::<_, i64>(column).cast_unsigned();
    let error: Option<String> = row.get(6);
    Ok(Some(Progress {
        epoch: row.get(0),
        process: row.get(1),
        next_line: number(2),
        delivered: number(3),
        dropped: number(4),
        lag: number(5),
        failing: error.zip(row.get(7)),
    }))
}

/// Saves the progress. Does nothing if the drain was deleted.
pub(super) async fn save(
    db: &Db,
    drain: Uuid,
    store: &str,
    progress: &Progress,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    // An aborted task may have sent its statement late: the position never moves back in an epoch.
    let sql = "insert into log_drain_progress as p (drain_id, store, epoch, process, next_line, \
               delivered, dropped, lag, error, failing_since, updated_at) \
               select id, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 from log_drains where id = $1 \
               on conflict (drain_id, store) do update set \
               epoch = excluded.epoch, process = excluded.process, \
               next_line = excluded.next_line, delivered = excluded.delivered, \
               dropped = excluded.dropped, lag = excluded.lag, error = excluded.error, \
               failing_since = excluded.failing_since, updated_at = excluded.updated_at \
               where p.epoch <> excluded.epoch or p.process <> excluded.process \
               or p.next_line <= excluded.next_line";
    let (error, since) = progress.failing.clone().unzip();
    db.query(
        sql,
        &[
            &drain,
            &store,
            &progress.epoch,
            &progress.process,
            &progress.next_line.cast_signed(),
            &progress.delivered.cast_signed(),
            &progress.dropped.cast_signed(),
            &progress.lag.cast_signed(),
            &error,
            &since,
            &now,
        ],
    )
    .await
    .context("saving the progress of a log drain")
    .map(drop)
}

/// Inserts the position from which a new drain starts. The drain counts as idle until its first
/// delivery.
pub(super) async fn insert(
    transaction: &Transaction<'_>,
    drain: Uuid,
    store: &str,
    start: &Progress,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "insert into log_drain_progress (drain_id, store, epoch, process, next_line, updated_at) \
               values ($1, $2, $3, $4, $5, $6)";
    let next_line = start.next_line.cast_signed();
    transaction
        .execute(
            sql,
            &[
                &drain,
                &store,
                &start.epoch,
                &start.process,
                &next_line,
                &now,
            ],
        )
        .await
        .context("saving the start of a log drain")
        .map(drop)
}

/// State of the deliveries of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LogDrainState")]
pub enum DrainState {
    /// Nothing was delivered yet.
    Idle,
    /// The last delivery of each server succeeded.
    Healthy,
    /// The last delivery of a server failed. It is repeated.
    Failing,
}

/// Deliveries of a drain, of all servers together.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LogDrainHealth")]
pub struct DrainHealth {
    /// Id of the drain.
    pub id: Uuid,
    /// Name of the drain.
    pub name: String,
    /// Type of the target.
    pub backend_type: BackendType,
    /// State.
    pub state: DrainState,
    /// Text of the last error, while deliveries fail.
    pub error: Option<String>,
    /// Time of the first of these failures.
    pub failing_since: Option<DateTime<Utc>>,
    /// Lines that the target confirmed.
    pub delivered: i64,
    /// Lines that were dropped because the target was unavailable for too long or rejects them.
    pub dropped: i64,
    /// Lines that wait for delivery, as of `updated_at`.
    pub lag: i64,
    /// Time of the last report.
    pub updated_at: Option<DateTime<Utc>>,
}

/// Lists the health of a project's drains, oldest drain first.
pub(super) async fn health(
    db: &Db,
    project: &Project,
    now: DateTime<Utc>,
) -> Result<Vec<DrainHealth>, Error> {
    let ProjectId(project) = project.id;
    // A failing drain reports at each attempt. Later, its server is gone.
    let since = now - STALE;
    let sql = "select d.id, d.name, d.backend_type, \
               count(p.store) filter (where p.delivered > 0), \
               (array_agg(p.error order by p.failing_since) \
               filter (where p.error is not null and p.updated_at > $2))[1], \
               min(p.failing_since) filter (where p.updated_at > $2), \
               coalesce(sum(p.delivered), 0)::int8, coalesce(sum(p.dropped), 0)::int8, \
               coalesce(sum(p.lag), 0)::int8, max(p.updated_at) \
               from log_drains d left join log_drain_progress p on p.drain_id = d.id \
               where d.project_id = $1 group by d.id order by d.created_at, d.id";
    let rows = db
        .query(sql, &[&project, &since])
        .await
        .context("reading the health of log drains")?;
    let mut health = Vec::with_capacity(rows.len());
    for row in &rows {
        let error: Option<String> = row.get(4);
        let backend_type = BackendType::from_name(row.get(2))
            .ok_or("unknown type")
            .context("reading the health of log drains")?;
        health.push(DrainHealth {
            id: row.get(0),
            name: row.get(1),
            backend_type,
            state: match (&error, row.get::<_, i64>(3)) {
                (Some(_), _) => DrainState::Failing,
                (None, 0) => DrainState::Idle,
                (None, _) => DrainState::Healthy,
            },
            error,
            failing_since: row.get(5),
            delivered: row.get(6),
            dropped: row.get(7),
            lag: row.get(8),
            updated_at: row.get(9),
        });
    }
    Ok(health)
}
