//! Restore points, schedules, and requests for restores.

use chrono::{DateTime, NaiveTime, TimeDelta, Utc};
use gantry_node::clusters::superuser;
use serde_json::json;
use tokio_postgres::Row;

use super::{
    RESTORE_RUNNING, archive,
    moment::{Moment, RequestedMoment},
    schedule::DailyTime,
    target::RestoreTarget,
    wal::Lsn,
    window::BackupCatalog,
};
use crate::{
    control::{
        context::ControlContext,
        projects::{self, Status, status_events},
    },
    platform::{
        access::Project,
        audit::{Change, Recorder},
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
};

/// Longest name of a restore point, in characters.
pub const NAME_MAX: usize = 20;
/// Changes of a schedule within 24 hours.
const CHANGES_MAX: usize = 3;
/// Answer to a request for a project without a running server.
const UNREACHABLE: &str =
    "Failed to check for major version of database. Database appears to be unreachable";

/// State of a restore point: the contract's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointState {
    /// The log up to it is in the store.
    Available,
    /// The log up to it is not in the store yet.
    Pending,
    /// The backups that it needs have expired.
    Removed,
}

/// A restore point.
#[derive(Debug, Clone)]
pub struct RestorePoint {
    /// Name.
    pub name: String,
    /// State.
    pub state: PointState,
    /// Time from which it can be used.
    pub completed_on: Option<DateTime<Utc>>,
    archive: i64,
    lsn: i64,
    restore: Option<i64>,
    /// Whether the cluster that a restore replaced is still kept.
    is_kept: bool,
}

impl RestorePoint {
    fn read(row: &Row, catalog: &BackupCatalog) -> Self {
        let completed_on: Option<DateTime<Utc>> = row.get(1);
        let (archive, lsn): (i64, i64) = (row.get(2), row.get(3));
        let is_kept: bool = row.get(5);
        let moment = Moment::Position(Lsn::from_column(lsn));
        let is_recoverable = || !catalog.plans(Some(archive), moment).is_empty();
        Self {
            name: row.get(0),
            state: match completed_on {
                None => PointState::Pending,
                Some(_) if is_kept || is_recoverable() => PointState::Available,
                // The backup that it needs is being made.
                Some(_) if row.get(6) => PointState::Pending,
                Some(_) => PointState::Removed,
            },
            completed_on,
            archive,
            lsn,
            restore: row.get(4),
            is_kept,
        }
    }
}

/// Returns the last restore point of this name, or of any name.
pub async fn find(
    context: &ControlContext,
    project: &Project,
    name: Option<&str>,
) -> Result<Option<RestorePoint>, Error> {
    let sql = "select p.name, p.completed_on, p.archive_id, p.lsn, p.restore_id,
                      exists (select from restores r
                              where r.id = p.restore_id and r.kept_until > $3),
                      exists (select from base_backups b
                              where b.project_id = $1 and b.status = 'PENDING')
               from restore_points p where p.project_id = $1 and ($2::text is null or p.name = $2) order by p.id desc limit 1";
    let params: [Param<'_>; 3] = [&project.id.0, &name, &context.clock.now()];
    let rows = context.db.query(sql, &params).await;
    let rows = rows.context("reading a restore point")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let catalog = BackupCatalog::read(context, project.id).await?;
    Ok(Some(RestorePoint::read(row, &catalog)))
}

/// Marks a point in the log of a running project.
///
/// Errors: [`Error::Rejected`] if its log is not archived.
pub async fn create(
    context: &ControlContext,
    project: &Project,
    name: &str,
    audit: Option<&Recorder>,
) -> Result<RestorePoint, Error> {
    let doing = "creating a restore point";
    projects::target(context, project).await?;
    let before = archive::current(context, project.id).await?;
    let session = context.driver.superuser_session(&project.reference).await;
    let session = session.context(doing)?;
    // The server accepts names of up to 63 bytes.
    let short: String = name.chars().take(15).collect();
    let row = session
        .query_one(&superuser::CREATE_RESTORE_POINT, &[&short])
        .await;
    let row = row.context(doing)?;
    let lsn: u64 = row.get::<_, &str>(0).parse().context(doing)?;
    let system: String = row.get::<_, &str>(1).to_owned();
    let current = archive::current(context, project.id).await?;
    // A restore may have replaced the cluster meanwhile.
    let current = current.filter(|archive| {
        archive.system_id.to_string() == system
            && before.is_some_and(|before| before.id == archive.id)
    });
    let Some(current) = current else {
        let text = "The write-ahead log of this project is not archived yet. Try again in a minute";
        return Err(Error::Rejected(text.into()));
    };
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let lsn = Lsn(lsn).to_column();
    let sql = "insert into restore_points (project_id, archive_id, name, lsn, created_at) values ($1, $2, $3, $4, $5)";
    let params: [Param<'_>; 5] = [&project.id.0, &current.id, &name, &lsn, &now];
    transaction.execute(sql, &params).await.context(doing)?;
    let point = RestorePoint {
        name: name.to_owned(),
        state: PointState::Pending,
        completed_on: None,
        archive: current.id,
        lsn,
        restore: None,
        is_kept: false,
    };
    if let Some(audit) = audit {
        let after = Some(json!({"name": name}));
        audit.result(&point);
        audit
            .write_in(&transaction, 201, (None, after), now)
            .await?;
    }
    transaction.commit().await.context(doing)?;
    Ok(point)
}

/// Requests a restore of the project to a restore point. The cluster that a restore replaced comes
/// back as it was, while it is kept.
pub async fn undo(
    context: &ControlContext,
    project: &Project,
    name: &str,
    audit: &Recorder,
) -> Result<(), Error> {
    let point = find(context, project, Some(name)).await?;
    let point = point.ok_or(Error::Missing("Restore point not found"))?;
    match point.state {
        PointState::Available => {}
        PointState::Pending => {
            let text = "The restore point is not available yet. Try again in a minute";
            return Err(Error::Rejected(text.into()));
        }
        PointState::Removed => {
            let text = "The backups that the restore point needs have expired";
            return Err(Error::Rejected(text.into()));
        }
    }
    let wanted = Wanted {
        moment: Moment::Position(Lsn::from_column(point.lsn)),
        archive: Some(point.archive),
        reuse_of: point.restore.filter(|_| point.is_kept),
    };
    request(context, project, &wanted, audit).await
}

/// Requests a restore to a moment in the window, or to the end of a base backup.
pub async fn restore_to(
    context: &ControlContext,
    project: &Project,
    moment: RequestedMoment,
    audit: &Recorder,
) -> Result<(), Error> {
    let target = RestoreTarget::find(context, project, moment).await?;
    let wanted = Wanted {
        moment: target.moment,
        archive: target.archive,
        reuse_of: None,
    };
    request(context, project, &wanted, audit).await
}

struct Wanted {
    moment: Moment,
    archive: Option<i64>,
    reuse_of: Option<i64>,
}

/// Records a restore, and wakes the reconciler.
async fn request(
    context: &ControlContext,
    project: &Project,
    wanted: &Wanted,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "requesting a restore";
    if !context.backups.options.enabled {
        return Err(Error::Unconfigured(super::SWITCHED_OFF));
    }
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select status, exists (select from restores r where r.project_id = $1 and r.finished_at is null)
               from projects where id = $1 and desired <> 'removed' for update";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?.ok_or_else(projects::removed)?;
    let before = Status::read(&row, 0)?;
    if row.get(1) {
        return Err(Error::Conflict(RESTORE_RUNNING.into()));
    }
    if !matches!(before, Status::ActiveHealthy | Status::ActiveUnhealthy) {
        return Err(Error::Rejected(UNREACHABLE.into()));
    }
    let (time, position) = match wanted.moment {
        Moment::Time(time) => (Some(time), None),
        Moment::Position(position) => (None, Some(position.to_column())),
        Moment::Latest => (Some(now), None),
    };
    let sql = "insert into restores (project_id, target_time, archive_id, target_lsn, reuse_of, requested_at) values ($1, $2, $3, $4, $5, $6)";
    let params: [Param<'_>; 6] = [
        &project.id.0,
        &time,
        &wanted.archive,
        &position,
        &wanted.reuse_of,
        &now,
    ];
    transaction.execute(sql, &params).await.context(doing)?;
    // The schemas of the platform may be older in the restored cluster.
    let sql = "update projects set status = 'RESTORING', desired = 'active', asleep = false, outdated = true, generation = generation + 1,
               attempts = 0, falls = 0, last_error = null, not_before = $2, updated_at = $2 where id = $1";
    let changed = transaction.execute(sql, &[&project.id.0, &now]).await;
    changed.context(doing)?;
    let states = (
        Some(json!({"status": before})),
        Some(json!({"status": Status::Restoring, "restored_to": time, "position": position})),
    );
    let events = status_events::changed(&transaction, &[project.id]).await?;
    let change = Change::new(states, events);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(())
}

/// Returns the daily time of a project's backup, and the time at which it was set.
pub async fn daily_time(
    context: &ControlContext,
    project: &Project,
) -> Result<(String, DateTime<Utc>), Error> {
    let sql = "select p.created_at, s.schedule_for, s.updated_at from projects p
               left join backup_schedules s on s.project_id = p.id where p.id = $1 and p.desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a schedule")?;
    let row = rows.first();
    let row = row.ok_or(Error::Missing("Project or backup schedule not found"))?;
    let created: DateTime<Utc> = row.get(0);
    if let (Some(text), Some(updated)) = (row.get(1), row.get(2)) {
        return Ok((text, updated));
    }
    let daily = DailyTime::default_of(&project.reference, created);
    Ok((daily.at.format("%H:%M:%S").to_string(), created))
}

/// Parses the daily time of a schedule: `HH:MM`, `HH:MM:SS` or with a fraction.
pub fn parse_daily_time(text: &str) -> Option<NaiveTime> {
    let form = |text: &str, at: usize, digits: &[u8]| {
        text.as_bytes()
            .get(at)
            .is_some_and(|it| digits.contains(it))
    };
    let two = |at| form(text, at, b"0123456789") && form(text, at + 1, b"0123456789");
    let shape = match text.len() {
        5 => two(0) && two(3) && form(text, 2, b":"),
        8.. => two(0) && two(3) && two(6) && form(text, 2, b":") && form(text, 5, b":"),
        _ => false,
    };
    if !shape {
        return None;
    }
    let parsed = NaiveTime::parse_from_str(text, "%H:%M:%S%.f")
        .or_else(|_| NaiveTime::parse_from_str(text, "%H:%M"))
        .ok()?;
    // Leap seconds are accepted by the parser.
    let is_leap = text.get(6..8).is_some_and(|secs| secs == "60");
    (!is_leap).then_some(parsed)
}

/// Sets the daily time of a project's backup. At most three changes in 24 hours are permitted.
pub async fn set_daily_time(
    context: &ControlContext,
    project: &Project,
    text: &str,
    audit: &Recorder,
) -> Result<(String, DateTime<Utc>), Error> {
    let doing = "changing a schedule";
    parse_daily_time(text).ok_or(Error::Rejected("Invalid schedule_for format".into()))?;
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select 1 from projects where id = $1 and desired <> 'removed' for update";
    let found = transaction.query_opt(sql, &[&project.id.0]).await;
    let missing = Error::Missing("Project or backup schedule not found");
    found.context(doing)?.ok_or(missing)?;
    let sql = "select changes, schedule_for from backup_schedules where project_id = $1";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?;
    let mut changes: Vec<DateTime<Utc>> = row.as_ref().map(|row| row.get(0)).unwrap_or_default();
    let before: Option<String> = row.as_ref().map(|row| row.get(1));
    changes.retain(|at| *at > now - TimeDelta::hours(24));
    if changes.len() >= CHANGES_MAX {
        return Err(Error::LimitReached);
    }
    changes.push(now);
    let sql = "insert into backup_schedules (project_id, schedule_for, updated_at, changes) values ($1, $2, $3, $4)
               on conflict (project_id) do update set schedule_for = excluded.schedule_for, updated_at = excluded.updated_at, changes = excluded.changes";
    let params: [Param<'_>; 4] = [&project.id.0, &text, &now, &changes];
    transaction.execute(sql, &params).await.context(doing)?;
    let change = (
        before.map(|before| json!({"schedule_for": before})),
        Some(json!({"schedule_for": text})),
    );
    let changed = (text.to_owned(), now);
    audit.result(&changed);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daily_time_is_parsed_as_in_the_contract() {
        for text in ["00:00", "23:59", "03:04:05", "03:04:05.123"] {
            assert!(parse_daily_time(text).is_some(), "{text}");
        }
        for text in [
            "", "24:00", "3:04", "03:60", "03:04:60", "03:04:5", "03-04-05", "03:04 ", "é3:04",
        ] {
            assert!(parse_daily_time(text).is_none(), "{text}");
        }
    }
}
