//! Makes, completes, expires and verifies base backups, one at a time.

use std::{collections::BTreeSet, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    ids::{ProjectId, ProjectRef},
    repeat,
};
use gantry_node::clusters::{ClusterSpec, RecoveredIdentity, RecoveryChecks};
use tokio_postgres::Row;

use super::{
    archive,
    archive_row::{Archive, PARTIAL, archive_columns},
    backup_events,
    base::{self, BaseRequest},
    error::BackupError,
    health,
    manifest::Manifest,
    moment::Moment,
    points::parse_daily_time,
    restore::{self, BuildOptions},
    schedule::{BaseReason, BaseSituation, DailyTime, LastBase},
    settle,
    state::{EARLIEST, LATEST, UNRECOVERABLE, WatchedProject},
    store::ProjectStore,
    wal::{Lsn, SegmentName},
    window::BackupCatalog,
};
use crate::{
    control::{
        context::ControlContext,
        projects::{self, reconciler},
    },
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// Interval of looking for work.
const LOOK: Duration = Duration::from_secs(10);
/// Age of a base backup before it is verified for the first time.
const VERIFY_AFTER: TimeDelta = TimeDelta::hours(1);
/// Pause after a failed verification.
const VERIFY_PAUSE: TimeDelta = TimeDelta::hours(6);

/// Does what is due, periodically. Returns at once if backups are switched off.
pub async fn run(context: ControlContext) {
    if !context.backups.options.enabled {
        return;
    }
    repeat::every(LOOK, || async {
        if let Err(error) = round(&context).await {
            tracing::warn!(%error, "cannot look for backups that are due");
        }
    })
    .await;
}

/// A project with the facts about its backups.
struct BackedUp {
    watched: WatchedProject,
    account: i64,
    /// Whether its server should run.
    is_awake: bool,
    daily: DailyTime,
    archive: Archive,
    last: Option<LastBase>,
    failed: Option<(DateTime<Utc>, i64)>,
    /// A base without its log in the store at the last look: number and position.
    pending: Option<(i64, Lsn)>,
    /// The last complete base, of any archive, and the last verification.
    complete: Option<i64>,
    complete_at: Option<DateTime<Utc>>,
    verified_at: Option<DateTime<Utc>>,
    is_verified: bool,
    /// The first complete base that is not removed.
    first_at: Option<DateTime<Utc>>,
}

const BACKED_UP: &str = concat!(
    "select p.id, p.ref, p.engine, coalesce(p.account, p.id),
        p.status = 'ACTIVE_HEALTHY' and not p.asleep,
        p.status in ('ACTIVE_HEALTHY', 'INACTIVE'), p.created_at,
        s.schedule_for, s.updated_at,
        l.inserted_at, l.consistent_at, l.start_lsn,
        f.at, f.count,
        w.id, w.stop_lsn,
        c.id, c.consistent_at, c.verified_at is not null or c.verify_error is not null,
        (select max(greatest(v.verified_at,
                             case when v.verify_error is not null then v.inserted_at end))
         from base_backups v where v.project_id = p.id),
        (select min(v.consistent_at) from base_backups v
         where v.project_id = p.id and v.status = 'COMPLETED'), ",
    archive_columns!("a."),
    "
    from projects p
    join archives a on a.project_id = p.id and a.ended_at is null
    left join backup_schedules s on s.project_id = p.id
    left join lateral (select inserted_at, consistent_at, start_lsn from base_backups b
                       where b.archive_id = a.id and b.status in ('COMPLETED', 'PENDING')
                         and b.consistent_at is not null order by b.id desc limit 1) l on true
    left join lateral (select max(b.inserted_at) as at, count(*) as count from base_backups b
                       where b.archive_id = a.id and b.status = 'FAILED'
                         and b.id > coalesce((select max(x.id) from base_backups x
                                              where x.archive_id = a.id
                                                and x.status = 'COMPLETED'), 0)) f on true
    left join lateral (select id, stop_lsn from base_backups b
                       where b.archive_id = a.id and b.status = 'PENDING'
                         and b.stop_lsn is not null order by b.id limit 1) w on true
    left join lateral (select id, consistent_at, verified_at, verify_error from base_backups b
                       where b.project_id = p.id and b.status = 'COMPLETED'
                       order by b.id desc limit 1) c on true
    where p.node = $1 and p.desired <> 'removed' order by p.id"
);

impl BackedUp {
    fn read(context: &ControlContext, row: &Row) -> Result<Option<Self>, Error> {
        if !row.get::<_, bool>(5) {
            return Ok(None);
        }
        let reference: ProjectRef = row
            .get::<_, &str>(1)
            .parse()
            .context("reading a project's ref")?;
        let major = projects::major(row.get(2)).unwrap_or(0);
        let mut daily = DailyTime::default_of(&reference, row.get(6));
        if let (Some(text), Some(since)) = (row.get::<_, Option<&str>>(7), row.get(8))
            && let Some(at) = parse_daily_time(text)
        {
            daily = DailyTime { at, since };
        }
        let last = match (row.get(9), row.get(10), row.get::<_, Option<i64>>(11)) {
            (Some(inserted_at), Some(consistent_at), Some(start)) => Some(LastBase {
                inserted_at,
                consistent_at,
                start: Lsn::from_column(start),
            }),
            _ => None,
        };
        let failed: Option<DateTime<Utc>> = row.get(12);
        let pending: Option<i64> = row.get(14);
        Ok(Some(Self {
            archive: Archive::read(row, 21)?,
            watched: WatchedProject {
                id: ProjectId(row.get(0)),
                reference,
                way: settle::way_of(context, major),
            },
            account: row.get(3),
            is_awake: row.get(4),
            daily,
            last,
            failed: failed.map(|at| (at, row.get(13))),
            pending: pending.map(|id| (id, Lsn::from_column(row.get(15)))),
            complete: row.get(16),
            complete_at: row.get(17),
            is_verified: row.get::<_, Option<bool>>(18).unwrap_or(false),
            verified_at: row.get(19),
            first_at: row.get(20),
        }))
    }

    fn due(&self, now: DateTime<Utc>) -> Option<BaseReason> {
        let situation = BaseSituation {
            project: &self.watched.reference,
            now,
            daily: self.daily,
            last: self.last,
            failed: self.failed,
            shipped: self.archive.shipped,
            last_commit_at: self.archive.last_commit_at,
        };
        if self.pending.is_some() {
            return None;
        }
        situation.due()
    }

    fn must_be_verified(&self, now: DateTime<Utc>, days: u16) -> bool {
        let Some(complete_at) = self.complete_at else {
            return false;
        };
        match self.verified_at {
            None => now - complete_at >= VERIFY_AFTER,
            Some(at) if self.is_verified => now - at >= TimeDelta::days(days.into()),
            Some(at) => now - at >= TimeDelta::days(days.into()).max(VERIFY_PAUSE),
        }
    }
}

/// Does everything that is due now. A failure of one project does not affect the others.
pub async fn round(context: &ControlContext) -> Result<(), Error> {
    let _alone = context.backups.upkeep.lock().await;
    if !context.lease.leads() {
        return Ok(());
    }
    complete_points(context).await?;
    remove_kept(context).await?;
    let rows = context
        .db
        .query(BACKED_UP, &[&context.settings.node])
        .await
        .context("reading backups")?;
    let mut projects = Vec::with_capacity(rows.len());
    for row in &rows {
        projects.extend(BackedUp::read(context, row)?);
    }
    measure(context, &projects);
    measure_windows(context).await?;
    let mut verified = false;
    for project in projects {
        if !context.lease.leads() {
            return Ok(());
        }
        let reference = &project.watched.reference;
        if let Err(error) = keep_up(context, &project).await {
            tracing::warn!(project = %reference, %error, "backup failed; retrying");
        }
        let now = context.clock.now();
        if !verified && project.must_be_verified(now, context.backups.options.verify_days) {
            // One a round: others get their turn.
            verified = true;
            if let Some(base) = project.complete {
                verify(context, &project, base).await?;
            }
        }
    }
    Ok(())
}

/// Completes a base backup if its log is in the store, or makes one that is due.
async fn keep_up(context: &ControlContext, project: &BackedUp) -> Result<(), BackupError> {
    let now = context.clock.now();
    if let Some((id, stop)) = project.pending {
        if project.archive.shipped >= stop {
            complete(context, project, id).await?;
        }
        return Ok(());
    }
    match project.due(now) {
        Some(reason) => back_up(context, project, reason).await.map(drop),
        None => Ok(()),
    }
}

/// Makes a base backup and, if the end of its log can be shipped at once, completes it. Returns
/// its number. `None` if the project has no archive, or the reconciler works on it.
async fn back_up(
    context: &ControlContext,
    project: &BackedUp,
    reason: BaseReason,
) -> Result<Option<i64>, BackupError> {
    let Some((archive, store)) = context.backups.opened(project.watched.id).await else {
        return Ok(None);
    };
    if archive.id != project.archive.id {
        return Ok(None);
    }
    let request = BaseRequest {
        project: &project.watched,
        archive: &archive,
        store: &store,
        reason,
    };
    let Some(id) = take(context, &request, project.is_awake).await? else {
        return Ok(None);
    };
    super::ship_all(context, &project.watched).await;
    let shipped = archive::current(context, project.watched.id).await?;
    let sql = "select stop_lsn from base_backups where id = $1";
    let rows = context.db.query(sql, &[&id]).await;
    let rows = rows.context("reading a backup")?;
    let stop = rows.first().map(|row| Lsn::from_column(row.get(0)));
    let is_complete = |shipped: &Archive| shipped.id == archive.id && Some(shipped.shipped) >= stop;
    if shipped.as_ref().is_some_and(is_complete) {
        complete(context, project, id).await?;
    }
    Ok(Some(id))
}

/// Makes a base backup of a project now, running or stopped, and returns its number. It is complete
/// when its status says so: at once, if the store answers. `None` if the project has no archive
/// yet, or the reconciler works on it.
pub async fn back_up_now(
    context: &ControlContext,
    project: &ProjectRef,
) -> Result<Option<i64>, BackupError> {
    let _alone = context.backups.upkeep.lock().await;
    match find(context, project).await? {
        Some(found) => back_up(context, &found, BaseReason::Request).await,
        None => Ok(None),
    }
}

/// Returns the facts about one project of this node.
async fn find(context: &ControlContext, project: &ProjectRef) -> Result<Option<BackedUp>, Error> {
    let rows = context.db.query(BACKED_UP, &[&context.settings.node]).await;
    for row in rows.context("reading backups")? {
        if row.get::<_, &str>(1) == project.as_str() {
            return BackedUp::read(context, &row);
        }
    }
    Ok(None)
}

/// Makes a base backup. A server that does not run must not be started meanwhile. `None` if the
/// reconciler works on the project.
async fn take(
    context: &ControlContext,
    request: &BaseRequest<'_>,
    is_awake: bool,
) -> Result<Option<i64>, BackupError> {
    let mut hold = None;
    if !is_awake {
        hold = context.reconciler.hold(request.project.id);
        if hold.is_none() {
            return Ok(None);
        }
    }
    let id = base::make(context, &context.backups, request).await?;
    drop(hold);
    tracing::info!(project = %request.project.reference, backup = id, reason = request.reason.name(), "base backup made");
    Ok(Some(id))
}

async fn complete(
    context: &ControlContext,
    project: &BackedUp,
    id: i64,
) -> Result<(), BackupError> {
    let sql = "update base_backups set status = 'COMPLETED' where id = $1 and status = 'PENDING'";
    let updated = context.db.query(sql, &[&id]).await;
    updated.context("completing a backup")?;
    let watched = &project.watched;
    let store =
        archive::store_of(context, &context.backups, watched.id, &watched.reference).await?;
    expire(context, watched.id, &store).await
}

/// Removes base backups that are not needed any more, and everything that only they need.
async fn expire(
    context: &ControlContext,
    project: ProjectId,
    store: &ProjectStore,
) -> Result<(), BackupError> {
    // Copies that a process did not finish, and those without the end of their log: no other backup
    // is being made.
    let abandoned = "update base_backups b set status = 'FAILED', error = 'interrupted'
                     where project_id = $1 and status = 'PENDING' and (stop_lsn is null or exists
                         (select from archives a where a.id = b.archive_id and a.ended_at is not null))";
    let ended = context.db.query(abandoned, &[&project.0]).await;
    ended.context("ending backups")?;
    let options = &context.backups.options;
    let catalog = BackupCatalog::read(context, project).await?;
    let (days, count) = (options.retention_days, options.retention_count);
    let expired = catalog.expired(context.clock.now(), days, count);
    // A restore may be reading one of them.
    let running = "select 1 from restores where (project_id = $1 or source_id = $1) and finished_at is null and error is null
                   union all select 1 from table_restores where project_id = $1 and finished_at is null";
    let running = context.db.query(running, &[&project.0]).await;
    if expired.is_empty() || !running.context("reading restores")?.is_empty() {
        return Ok(());
    }
    let sql = "update base_backups set status = 'REMOVED' where id = any($1)";
    let removed = context.db.query(sql, &[&expired]).await;
    removed.context("removing backups")?;
    sweep(context, project, store).await
}

/// Removes objects that no remaining base backup needs.
async fn sweep(
    context: &ControlContext,
    project: ProjectId,
    store: &ProjectStore,
) -> Result<(), BackupError> {
    let sql = "select id, status from base_backups
               where project_id = $1 and status in ('COMPLETED', 'PENDING') order by id";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading backups")?;
    if rows.iter().any(|row| row.get::<_, &str>(1) == "PENDING") {
        // Its packs are not in a manifest yet.
        return Ok(());
    }
    let mut packs = BTreeSet::new();
    let mut manifests = BTreeSet::new();
    for row in &rows {
        let id: i64 = row.get(0);
        let manifest = Manifest::get(store, id).await?;
        packs.extend(manifest.used_packs().into_iter().map(str::to_owned));
        manifests.insert(Manifest::name(id));
    }
    for (name, _) in store.list("bases").await? {
        let name = format!("bases/{name}");
        if !manifests.contains(&name) {
            store.delete(&name).await?;
        }
    }
    for (name, _) in store.list("packs").await? {
        let name = format!("packs/{name}");
        if !packs.contains(&name) {
            store.delete(&name).await?;
        }
    }
    let catalog = BackupCatalog::read(context, project).await?;
    for archive in &catalog.archives {
        let first = catalog.needed_from(archive);
        sweep_log(store, archive, first).await?;
        if first.is_none() && archive.ended_at.is_some() {
            archive::forget(context, archive.id).await?;
        }
    }
    Ok(())
}

/// Removes the log of an archive before the first position that is needed. None is needed of an
/// archive that has ended and has no base.
async fn sweep_log(
    store: &ProjectStore,
    archive: &Archive,
    first: Option<Lsn>,
) -> Result<(), BackupError> {
    let before = match first {
        Some(first) => SegmentName::of(archive.timeline, first, archive.segment_bytes),
        None if archive.ended_at.is_some() => SegmentName::of(u32::MAX, Lsn(0), 1 << 20),
        None => return Ok(()),
    };
    let folder = format!("{}/wal", archive.folder());
    for (name, _) in store.list(&folder).await? {
        let segment = name.strip_suffix(PARTIAL).unwrap_or(&name).parse();
        if segment.is_ok_and(|segment: SegmentName| segment < before) {
            store.delete(&format!("{folder}/{name}")).await?;
        }
    }
    Ok(())
}

/// Restores a base backup with the whole log into a scratch cluster, checks it, and records the
/// result.
async fn verify(context: &ControlContext, project: &BackedUp, base: i64) -> Result<(), Error> {
    let reference = &project.watched.reference;
    let verified = async {
        let id = project.watched.id;
        let store = archive::store_of(context, &context.backups, id, reference).await?;
        let manifest = Manifest::get(&store, base).await?;
        let cluster = ClusterSpec {
            project: reference.clone(),
            uid: reconciler::plan::uid(context, project.account)?,
            major: manifest.major,
        };
        let catalog = BackupCatalog::read(context, id).await?;
        let found = catalog.bases.iter().find(|it| it.id == base);
        let expired = || BackupError::Missing(Manifest::name(base));
        let plan = catalog.latest_plan(found.ok_or_else(expired)?);
        let options = BuildOptions {
            chain: &plan.chain,
            moment: Moment::Latest,
            checks: RecoveryChecks::Full,
            identity: RecoveredIdentity::New,
        };
        restore::build(&context.driver, &store, &manifest, &cluster, options).await
    };
    match verified.await {
        Ok(restored) => {
            let checks = restored.checks;
            tracing::info!(project = %reference, backup = base, tables = checks.tables, indexes = checks.indexes, "backup verified");
            let sql = "update base_backups set verified_at = $2, verify_error = null where id = $1";
            let now = context.clock.now();
            let recorded = context.db.query(sql, &[&base, &now]).await;
            recorded.context("recording a verification").map(drop)
        }
        Err(error) if error.is_permanent() => {
            tracing::warn!(project = %reference, backup = base, %error, "backup cannot be restored");
            backup_events::record_damage(context, base, error.to_string()).await
        }
        Err(error) => {
            tracing::warn!(project = %reference, backup = base, %error, "backup could not be verified; retrying");
            Ok(())
        }
    }
}

/// Verifies the last backup of a project now. Returns whether it has one.
pub async fn verify_now(context: &ControlContext, project: &ProjectRef) -> Result<bool, Error> {
    let _alone = context.backups.upkeep.lock().await;
    let found = find(context, project).await?;
    let Some((found, base)) = found.and_then(|found| found.complete.map(|base| (found, base)))
    else {
        return Ok(false);
    };
    verify(context, &found, base).await?;
    Ok(true)
}

/// Marks restore points as available when their log is in the store.
async fn complete_points(context: &ControlContext) -> Result<(), Error> {
    let sql = "update restore_points p set completed_on = $1 from archives a, projects q
               where a.id = p.archive_id and q.id = p.project_id and q.node = $2 and p.completed_on is null and a.shipped_lsn >= p.lsn";
    let params: [Param<'_>; 2] = [&context.clock.now(), &context.settings.node];
    let completed = context.db.query(sql, &params).await;
    completed.context("completing restore points").map(drop)
}

/// Moves replaced clusters to the trash that are kept long enough, and restored ones if their
/// restore has ended.
async fn remove_kept(context: &ControlContext) -> Result<(), Error> {
    let kept = context.driver.kept_clusters().await;
    let kept = kept.context("listing kept clusters")?;
    if kept.is_empty() {
        return Ok(());
    }
    let sql = "select p.ref || '-' || r.id, r.finished_at is null, r.kept_until > $2 from restores r join projects p on p.id = r.project_id
               where p.node = $1 and p.desired <> 'removed' and (r.finished_at is null or r.kept_until > $2)";
    let params: [Param<'_>; 2] = [&context.settings.node, &context.clock.now()];
    let rows = context.db.query(sql, &params).await;
    let rows = rows.context("reading restores")?;
    for cluster in kept {
        let row = rows
            .iter()
            .find(|row| row.get::<_, &str>(0) == cluster.name);
        let is_needed = row.is_some_and(|row| {
            row.get::<_, bool>(1)
                || (cluster.is_replaced && row.get::<_, Option<bool>>(2) == Some(true))
        });
        if !is_needed {
            let discarded = context.driver.discard_kept(&cluster).await;
            discarded.context("removing a replaced cluster")?;
            context.reconciler.trash_filled();
        }
    }
    Ok(())
}

/// Sets the metrics of the moments to which each project can be restored.
async fn measure_windows(context: &ControlContext) -> Result<(), Error> {
    let (mut earliest, mut latest, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    #[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
    let seconds = |at: DateTime<Utc>| at.timestamp_millis() as f64 / 1000.0;
    for (reference, catalog) in BackupCatalog::of_node(context).await? {
        let Some(window) = catalog.window() else {
            continue;
        };
        let gaps = catalog.gaps().into_iter();
        let gaps: f64 = gaps
            .map(|gap| seconds(gap.before) - seconds(gap.after))
            .sum();
        earliest.push(([reference.clone()], seconds(window.earliest)));
        latest.push(([reference.clone()], seconds(window.latest)));
        missing.push(([reference], gaps));
    }
    let metrics = &context.metrics;
    metrics.replace(&EARLIEST, earliest);
    metrics.replace(&LATEST, latest);
    metrics.replace(&UNRECOVERABLE, missing);
    Ok(())
}

/// Sets the metrics to the worst of all projects.
fn measure(context: &ControlContext, projects: &[BackedUp]) {
    let now = context.clock.now();
    let age = |at: Option<DateTime<Utc>>| at.map_or(0, |at| (now - at).num_seconds().max(0));
    let oldest = |of: &dyn Fn(&BackedUp) -> i64| projects.iter().map(of).max().unwrap_or(0);
    let metrics = &context.backups.metrics;
    #[expect(clippy::cast_precision_loss, reason = "metrics are approximate")]
    {
        let last = oldest(&|project| age(project.last.map(|last| last.inserted_at)));
        metrics.last_base_age.set(last as f64);
        let verified = oldest(&|project| age(project.verified_at.or(project.complete_at)));
        metrics.verified_age.set(verified as f64);
        let days = context.backups.options.verify_days;
        let is_late = |project: &&BackedUp| {
            health::is_unverified(project.verified_at.or(project.first_at), days, now)
        };
        let late = projects.iter().filter(is_late).count();
        metrics.unverified.set(late as f64);
    }
}
