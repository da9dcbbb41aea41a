//! Upgrades of projects to another major version of PostgreSQL (decision 0134): their rows, and
//! what is left to do after one.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::{
    clusters::{self, UpgradeBlockers, UpgradeStep, UpgradeSupport, superuser},
    engines::Engine,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{LockedProject, Status, engine_version, idle, lock, major, status_events};
use crate::{
    control::{context::ControlContext, database_session},
    platform::{
        access::Project,
        audit::{Change, Recorder},
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
};

/// The time for which the data before an upgrade is kept.
const KEPT: TimeDelta = TimeDelta::hours(24);
/// Attempts after which an upgrade that is interrupted every time is given up.
pub(super) const ATTEMPTS_MAX: i32 = 3;
/// Maximum length of a stored reason, in characters.
const DETAIL_CHARS_MAX: usize = 4000;
/// Projects that one pass of [`finish`] reads.
const BATCH: i64 = 32;

/// The progress of an upgrade, with the contract's names. Those of steps that do not exist here,
/// because data is not moved between machines, are reported with the step that has their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Serialize, JsonSchema)]
pub enum UpgradeProgress {
    /// Recorded.
    #[serde(rename = "0_requested")]
    Requested,
    /// The server was stopped.
    #[serde(rename = "1_started")]
    Started,
    /// The new, empty cluster was made.
    #[serde(rename = "2_launched_upgraded_instance")]
    NewClusterMade,
    /// Not reported.
    #[serde(rename = "3_detached_volume_from_upgraded_instance")]
    Detached,
    /// The data was copied.
    #[serde(rename = "4_attached_volume_to_original_instance")]
    Copied,
    /// The copy is being upgraded.
    #[serde(rename = "5_initiated_data_upgrade")]
    UpgradeBegun,
    /// The upgraded copy was checked.
    #[serde(rename = "6_completed_data_upgrade")]
    Upgraded,
    /// The original was moved aside.
    #[serde(rename = "7_detached_volume_from_original_instance")]
    OriginalMoved,
    /// The upgraded copy has its place.
    #[serde(rename = "8_attached_volume_to_upgraded_instance")]
    InPlace,
    /// The project runs on the new version.
    #[serde(rename = "9_completed_upgrade")]
    Completed,
    /// Not reported.
    #[serde(rename = "10_completed_post_physical_backup")]
    BackedUp,
}

/// The step that failed, with the contract's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum UpgradeError {
    /// The new cluster could not be made.
    #[serde(rename = "1_upgraded_instance_launch_failed")]
    Launch,
    /// Not reported.
    #[serde(rename = "2_volume_detachchment_from_upgraded_instance_failed")]
    Detach,
    /// Not reported.
    #[serde(rename = "3_volume_attachment_to_original_instance_failed")]
    Attach,
    /// The data could not be copied.
    #[serde(rename = "4_data_upgrade_initiation_failed")]
    Initiation,
    /// The copy could not be upgraded.
    #[serde(rename = "5_data_upgrade_completion_failed")]
    Upgrade,
    /// Not reported.
    #[serde(rename = "6_volume_detachchment_from_original_instance_failed")]
    DetachOriginal,
    /// The upgraded copy could not be put in its place.
    #[serde(rename = "7_volume_attachment_to_upgraded_instance_failed")]
    Swap,
    /// The new server did not start.
    #[serde(rename = "8_upgrade_completion_failed")]
    Completion,
    /// Not reported.
    #[serde(rename = "9_post_physical_backup_failed")]
    Backup,
}

impl UpgradeProgress {
    const ALL: [Self; 11] = [
        Self::Requested,
        Self::Started,
        Self::NewClusterMade,
        Self::Detached,
        Self::Copied,
        Self::UpgradeBegun,
        Self::Upgraded,
        Self::OriginalMoved,
        Self::InPlace,
        Self::Completed,
        Self::BackedUp,
    ];

    /// Returns the progress after a step of the cluster driver.
    pub(super) const fn after(step: UpgradeStep) -> Self {
        match step {
            UpgradeStep::Started => Self::Started,
            UpgradeStep::NewClusterMade => Self::NewClusterMade,
            UpgradeStep::Copied => Self::Copied,
            UpgradeStep::UpgradeBegun => Self::UpgradeBegun,
            UpgradeStep::Upgraded => Self::Upgraded,
            UpgradeStep::OriginalMoved => Self::OriginalMoved,
            UpgradeStep::InPlace => Self::InPlace,
        }
    }

    /// Returns the error of a failure after this progress.
    pub(super) const fn failure(self) -> UpgradeError {
        match self {
            Self::Requested | Self::Started => UpgradeError::Launch,
            Self::NewClusterMade | Self::Detached | Self::Copied => UpgradeError::Initiation,
            Self::UpgradeBegun => UpgradeError::Upgrade,
            Self::Upgraded | Self::OriginalMoved => UpgradeError::Swap,
            Self::InPlace | Self::Completed | Self::BackedUp => UpgradeError::Completion,
        }
    }
}

/// Returns the name of a value on the wire, which the control database stores as well.
fn name(value: impl Serialize) -> Result<String, Error> {
    let value = serde_json::to_value(value).context("naming a step of an upgrade")?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

/// An upgrade of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectUpgrade {
    /// Identifier for clients.
    pub id: Uuid,
    /// Number among the upgrades of the project.
    pub number: i32,
    /// The version before.
    pub from_version: String,
    /// The version after it, such as `17.12`.
    pub target_version: String,
    target_channel: String,
    /// The last completed step.
    pub progress: UpgradeProgress,
    /// The failed step. `None` while it runs, and after success.
    pub error: Option<String>,
    /// The reason of the failure.
    pub detail: Option<String>,
    /// Whether it is still running.
    pub is_running: bool,
    pub(super) attempts: i32,
    /// Time of the request.
    pub initiated_at: DateTime<Utc>,
    /// Time of the last step.
    pub changed_at: DateTime<Utc>,
}

/// Selects the columns that [`ProjectUpgrade::read`] reads.
macro_rules! select_upgrades {
    ($rest:literal) => {
        concat!(
            "select id, number, from_version, target_version, target_channel, progress, error, detail, \
             status = 'running', attempts, initiated_at, changed_at from project_upgrades ",
            $rest
        )
    };
}

impl ProjectUpgrade {
    fn read(row: &Row) -> Result<Self, Error> {
        let stored: &str = row.get(5);
        let mut progress = UpgradeProgress::Requested;
        for known in UpgradeProgress::ALL {
            if name(known)? == stored {
                progress = known;
            }
        }
        Ok(Self {
            id: row.get(0),
            number: row.get(1),
            from_version: row.get(2),
            target_version: row.get(3),
            target_channel: row.get(4),
            progress,
            error: row.get(6),
            detail: row.get(7),
            is_running: row.get(8),
            attempts: row.get(9),
            initiated_at: row.get(10),
            changed_at: row.get(11),
        })
    }

    /// Major version after the upgrade.
    pub fn target_major(&self) -> u16 {
        major(&self.target_version).unwrap_or_default()
    }
}

/// Returns the newest upgrade of a project, or the one with an identifier.
pub async fn latest(
    context: &ControlContext,
    project: ProjectId,
    id: Option<Uuid>,
) -> Result<Option<ProjectUpgrade>, Error> {
    let sql = select_upgrades!(
        "where project_id = $1 and ($2::uuid is null or id = $2) order by number desc limit 1"
    );
    let rows = context.db.query(sql, &[&project.0, &id]).await;
    let rows = rows.context("reading an upgrade")?;
    rows.first().map(ProjectUpgrade::read).transpose()
}

/// Returns the upgrade of a project that is running.
pub(super) async fn running(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Option<ProjectUpgrade>, Error> {
    let found = latest(context, project, None).await?;
    Ok(found.filter(|upgrade| upgrade.is_running))
}

/// Returns the engine of a project, and those that it can be upgraded to, by version.
pub async fn targets(
    context: &ControlContext,
    project: &Project,
) -> Result<(String, Vec<Engine>), Error> {
    let version = engine_version(context, project).await?;
    let engines = context.driver.engines();
    let own = major(&version).unwrap_or_default();
    let Some(current) = engines.of_major(own) else {
        return Ok((version, Vec::new()));
    };
    let mut targets = Vec::new();
    for engine in engines.offered() {
        if engine.major() > own && UpgradeSupport::of(current, engine) == UpgradeSupport::Complete {
            targets.push(engine.clone());
        }
    }
    targets.sort_by_key(Engine::major);
    Ok((current.text().to_owned(), targets))
}

/// Returns what prevents an upgrade of a running project. Starts a server that sleeps.
pub async fn blockers(
    context: &ControlContext,
    project: &Project,
    target: &Engine,
) -> Result<UpgradeBlockers, Error> {
    idle::wake(context, project.id, &project.reference).await?;
    context
        .driver
        .check_upgrade(&project.reference, target.major())
        .await
        .context("checking an upgrade")
}

/// Records an upgrade, and wakes the reconciler. Returns the identifier for clients.
///
/// Errors: [`Error::Rejected`] unless the project is healthy.
pub async fn begin(
    context: &ControlContext,
    project: &Project,
    target: &Engine,
    audit: &Recorder,
) -> Result<Uuid, Error> {
    let doing = "beginning an upgrade";
    let now = context.clock.now();
    let id = context.entropy.uuid();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let LockedProject { status, engine, .. } = lock(&transaction, project, doing).await?;
    if status != Status::ActiveHealthy {
        return Err(Error::Rejected(
            format!(
                "This project cannot be upgraded, it is {}; upgrade it when it is ACTIVE_HEALTHY",
                status.name()
            )
            .into(),
        ));
    }
    let sql = "insert into project_upgrades (id, project_id, number, from_version, target_version, target_channel, progress, status, \
                                             initiated_at, changed_at) \
               select $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5, $6, 'running', $7, $7 from project_upgrades where project_id = $2";
    let progress = name(UpgradeProgress::Requested)?;
    transaction
        .execute(
            sql,
            &[
                &id,
                &project.id.0,
                &engine,
                &target.text(),
                &target.channel(),
                &progress,
                &now,
            ],
        )
        .await
        .context(doing)?;
    // The platform's schemas and grants are applied again after the upgrade.
    let sql = "update projects set status = 'UPGRADING', generation = generation + 1, attempts = 0, falls = 0, last_error = null, \
               outdated = true, asleep = false, not_before = $2, updated_at = $2 where id = $1";
    transaction
        .execute(sql, &[&project.id.0, &now])
        .await
        .context(doing)?;
    let states = (
        Some(json!({"version": engine})),
        Some(json!({"version": target.text(), "tracking_id": id})),
    );
    let events = status_events::changed(&transaction, &[project.id]).await?;
    let change = Change::new(states, events);
    audit.result(&id);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(id)
}

/// Counts an attempt.
pub(super) async fn count_attempt(
    context: &ControlContext,
    upgrade: &ProjectUpgrade,
) -> Result<(), Error> {
    let sql = "update project_upgrades set attempts = attempts + 1 where id = $1";
    let counted = context.db.query(sql, &[&upgrade.id]).await;
    counted.context("counting an attempt").map(drop)
}

/// Records the progress of a running upgrade.
pub(super) async fn record_progress(
    context: &ControlContext,
    upgrade: &ProjectUpgrade,
    progress: UpgradeProgress,
) -> Result<(), Error> {
    let sql = "update project_upgrades set progress = $2, changed_at = $3 where id = $1 and status = 'running'";
    let progress = name(progress)?;
    let written = context
        .db
        .query(sql, &[&upgrade.id, &progress, &context.clock.now()])
        .await;
    written
        .context("recording the progress of an upgrade")
        .map(drop)
}

/// Records the version of a project after a restore, which may have brought back an earlier one.
pub(crate) async fn record_version(
    context: &ControlContext,
    project: ProjectId,
    engine: &Engine,
) -> Result<(), Error> {
    let sql = "select engine from projects where id = $1";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("reading a project's version")?;
    let recorded = rows.first().and_then(|row| major(row.get(0)));
    if recorded == Some(engine.major()) {
        return Ok(());
    }
    context.lease.check()?;
    let sql =
        "update projects set engine = $2, release_channel = $3, updated_at = $4 where id = $1";
    let params: [Param<'_>; 4] = [
        &project.0,
        &engine.text(),
        &engine.channel(),
        &context.clock.now(),
    ];
    let written = context.db.query(sql, &params).await;
    written.context("recording a project's version").map(drop)
}

/// Records the success of an upgrade, and the new version of the project.
pub(super) async fn record_success(
    context: &ControlContext,
    upgrade: &ProjectUpgrade,
) -> Result<(), Error> {
    context.lease.check()?;
    let now = context.clock.now();
    let sql = "with done as (
                   update project_upgrades
                   set status = 'done', progress = $2, changed_at = $3, kept_until = $4
                   where id = $1 and status = 'running' returning project_id
               )
               update projects set engine = $5, release_channel = $6, updated_at = $3 where id in (select project_id from done)";
    let progress = name(UpgradeProgress::Completed)?;
    let written = context
        .db
        .query(
            sql,
            &[
                &upgrade.id,
                &progress,
                &now,
                &(now + KEPT),
                &upgrade.target_version,
                &upgrade.target_channel,
            ],
        )
        .await;
    written.context("recording an upgrade").map(drop)
}

/// Records the failure of an upgrade. The project runs on its previous version.
pub(super) async fn record_failure(
    context: &ControlContext,
    upgrade: &ProjectUpgrade,
    failed: UpgradeError,
    detail: &str,
) -> Result<(), Error> {
    context.lease.check()?;
    let sql = "update project_upgrades set status = 'failed', error = $2, detail = $3, changed_at = $4 where id = $1 and status = 'running'";
    let detail: String = detail.chars().take(DETAIL_CHARS_MAX).collect();
    let error = name(failed)?;
    let now = context.clock.now();
    let written = context
        .db
        .query(sql, &[&upgrade.id, &error, &detail, &now])
        .await;
    written.context("recording a failed upgrade").map(drop)
}

/// Does what is left after upgrades: collects the planner's statistics, and deletes the data from
/// before an upgrade when its time is over.
pub async fn finish(context: &ControlContext) -> Result<(), Error> {
    let sql = "select u.id, u.number, u.analyzed, u.kept_until <= $2, p.id, p.ref, p.status = 'ACTIVE_HEALTHY' and not p.asleep
               from project_upgrades u join projects p on p.id = u.project_id
               where p.node = $1 and u.status = 'done' and (u.kept_until <= $2 or not u.analyzed) order by u.id limit $3";
    let now = context.clock.now();
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH])
        .await
        .context("reading upgrades")?;
    for row in &rows {
        let reference: ProjectRef = row
            .get::<_, &str>(5)
            .parse()
            .context("reading a project's ref")?;
        if let Err(error) = finish_one(context, row, &reference).await {
            tracing::warn!(project = %reference, %error, "work after an upgrade failed; retrying");
        }
    }
    Ok(())
}

async fn finish_one(
    context: &ControlContext,
    row: &Row,
    project: &ProjectRef,
) -> Result<(), Error> {
    let doing = "recording the end of an upgrade";
    let id: Uuid = row.get(0);
    if row.get::<_, Option<bool>>(3) == Some(true) {
        // Excludes the reconciler, which may be making the next upgrade.
        let Some(_hold) = context.reconciler.hold(ProjectId(row.get(4))) else {
            return Ok(());
        };
        context
            .driver
            .discard_original(project, row.get(1))
            .await
            .context("deleting the data from before an upgrade")?;
        let sql = "update project_upgrades set kept_until = null where id = $1";
        context.db.query(sql, &[&id]).await.context(doing)?;
    }
    let (analyzed, is_awake): (bool, bool) = (row.get(2), row.get(6));
    if !analyzed && is_awake {
        analyze(context, project).await?;
        let sql = "update project_upgrades set analyzed = true where id = $1";
        context.db.query(sql, &[&id]).await.context(doing)?;
    }
    Ok(())
}

/// Collects the planner's statistics of all databases: of the tables of the owner and of the
/// platform's services. Those of other roles have a rough estimate, and PostgreSQL analyzes them
/// when they change. An upgrade keeps none of extended statistics and, before version 18, none at
/// all.
async fn analyze(context: &ControlContext, project: &ProjectRef) -> Result<(), Error> {
    /// Maximum number of databases.
    const DATABASES_MAX: i64 = 64;
    const SQL: &str = "set client_min_messages = error; set statement_timeout = '1h'; analyze";
    let doing = "collecting statistics after an upgrade";
    let driver = &context.driver;
    let admin = driver.superuser_session(project).await.context(doing)?;
    let rows = admin.query(&superuser::OPEN_DATABASES, &[&DATABASES_MAX]);
    for row in rows.await.context(doing)? {
        let database: String = row.try_get(0).context(doing)?;
        for role in [database_session::OWNER, clusters::ROWS_LOGIN] {
            let session = driver.session_as(project, role, &database).await;
            let session = session.context(doing)?;
            session.batch_execute(SQL).await.context(doing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract_in_order() {
        for (number, progress) in UpgradeProgress::ALL.into_iter().enumerate() {
            let text = name(progress).unwrap();
            assert!(text.starts_with(&format!("{number}_")), "{text}");
            let error = name(progress.failure()).unwrap();
            assert!(error.ends_with("_failed"), "{error}");
        }
        assert_eq!(
            name(UpgradeProgress::UpgradeBegun.failure()).unwrap(),
            "5_data_upgrade_completion_failed"
        );
    }
}
