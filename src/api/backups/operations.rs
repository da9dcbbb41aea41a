//! Operations on backups.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::backups::{
        moment::RequestedMoment,
        points::{self, NAME_MAX, PointState, RestorePoint},
        window::{BackupCatalog, RecoveryGap, RecoveryWindow},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::{Context as _, Error},
        http::{
            Endpoint, Json, Output, Query, Tag, Verb, mount,
            output::{Created, CreatedEmpty},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of backups.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &RESTORE,
    &RESTORE_TO_TIME,
    &GET_POINT,
    &CREATE_POINT,
    &GET_SCHEDULE,
    &UPDATE_SCHEDULE,
    &UNDO,
];

/// Backups in a list.
const LISTED_MAX: i64 = 200;

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-backups",
    summary: "List backups",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/backups",
    aliases: &[],
    access: needs(&[&[P::BackupsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// Status of a backup.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum BackupStatus {
    Completed,
    Failed,
    Pending,
    Removed,
    Archived,
    Cancelled,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1BackupsResponse")]
struct BackupList {
    /// Region of the project.
    region: String,
    /// Whether backups are made.
    walg_enabled: bool,
    /// Whether the project can be restored to any time in the window.
    pitr_enabled: bool,
    /// Base backups, the last one first.
    backups: Vec<BackupView>,
    /// The window, without fields as long as there is no backup.
    physical_backup_data: WindowView,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BackupView {
    id: i64,
    is_physical_backup: bool,
    status: BackupStatus,
    /// Time of the backup (RFC 3339).
    inserted_at: String,
    /// Time at which a restore of it last passed all checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    verified_at: Option<DateTime<Utc>>,
    /// Why it cannot be restored, or could not be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    problem: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WindowView {
    /// First second to which the project can be restored, since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    earliest_physical_backup_date_unix: Option<i64>,
    /// Last second to which the project can be restored, since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_physical_backup_date_unix: Option<i64>,
    /// Moments before the window that cannot be restored. Earlier ones can.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    gaps: Option<Vec<GapView>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct GapView {
    /// The last second before the gap that can be restored, since 1970.
    after_unix: i64,
    /// The first second after the gap that can be restored, since 1970.
    before_unix: i64,
    /// Why the moments between cannot be restored.
    reason: String,
}

impl GapView {
    fn of(gap: &RecoveryGap) -> Self {
        Self {
            after_unix: gap.after.timestamp(),
            before_unix: gap.before.timestamp()
                + i64::from(gap.before.timestamp_subsec_nanos() > 0),
            reason: gap.reason.clone(),
        }
    }
}

async fn list(project: Project, context: ApiContext) -> Result<Json<BackupList>, Error> {
    let doing = "reading backups";
    let sql = "select region from projects where id = $1";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context(doing)?;
    let region: String = rows.first().ok_or(Error::NotFound)?.get(0);
    let sql = "select id, status, coalesce(consistent_at, inserted_at), verified_at, coalesce(verify_error, error) from base_backups
               where project_id = $1 order by id desc limit $2";
    let rows = context.db.query(sql, &[&project.id.0, &LISTED_MAX]).await;
    let rows = rows.context(doing)?;
    let mut backups = Vec::with_capacity(rows.len());
    for row in &rows {
        let at: DateTime<Utc> = row.get(2);
        backups.push(BackupView {
            id: row.get(0),
            is_physical_backup: true,
            status: match row.get::<_, &str>(1) {
                "COMPLETED" => BackupStatus::Completed,
                "FAILED" => BackupStatus::Failed,
                "REMOVED" => BackupStatus::Removed,
                _ => BackupStatus::Pending,
            },
            inserted_at: at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
            verified_at: row.get(3),
            problem: row.get(4),
        });
    }
    let catalog = BackupCatalog::read(&context, project.id).await?;
    let (window, gaps) = (catalog.window(), catalog.gaps());
    Ok(Json(BackupList {
        region,
        walg_enabled: context.backups.options.enabled,
        pitr_enabled: window.is_some(),
        backups,
        physical_backup_data: WindowView {
            earliest_physical_backup_date_unix: window.as_ref().map(RecoveryWindow::earliest_unix),
            latest_physical_backup_date_unix: window.as_ref().map(RecoveryWindow::latest_unix),
            gaps: (!gaps.is_empty()).then(|| gaps.iter().map(GapView::of).collect()),
        },
    }))
}

static RESTORE: Endpoint = Endpoint {
    id: "v1-restore-physical-backup",
    summary: "Restore a physical backup",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/restore",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(restore)
            .destructive("restores the database from a backup")
            .sample(r#"{"id": 1}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1RestoreBackupBody")]
struct RestoreRequest {
    /// Number of the backup in the list.
    id: i64,
}

async fn restore(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<RestoreRequest>,
) -> Result<CreatedEmpty, Error> {
    let moment = RequestedMoment::Backup(request.id);
    points::restore_to(&context, &project, moment, &audit).await?;
    Ok(CreatedEmpty)
}

static RESTORE_TO_TIME: Endpoint = Endpoint {
    id: "v1-restore-pitr-backup",
    summary: "Restore a database to a point in time",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/restore-pitr",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(restore_to_time)
            .destructive("restores the database to an earlier time")
            .sample(r#"{"recovery_time_target_unix": 1735689600}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1RestorePitrBody")]
struct PointInTimeRequest {
    /// Seconds since 1970. All commits up to this time are restored.
    #[schemars(range(min = 0))]
    recovery_time_target_unix: i64,
}

async fn restore_to_time(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<PointInTimeRequest>,
) -> Result<CreatedEmpty, Error> {
    let second = request.recovery_time_target_unix;
    if second < 0 {
        let problem = "Too small: expected number to be >=0";
        return Err(Error::invalid("recovery_time_target_unix", problem));
    }
    let moment = RequestedMoment::Second(second);
    points::restore_to(&context, &project, moment, &audit).await?;
    Ok(CreatedEmpty)
}

static GET_POINT: Endpoint = Endpoint {
    id: "v1-get-restore-point",
    summary: "Get a restore point",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/backups/restore-point",
    aliases: &[],
    access: needs(&[&[P::BackupsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_point),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct PointChoice {
    /// Name. Without it, the last restore point.
    #[schemars(length(max = 20))]
    name: Option<String>,
}

/// Status of a restore point.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum PointStatus {
    Available,
    Pending,
    Removed,
    Failed,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1RestorePointResponse")]
struct PointView {
    name: String,
    status: PointStatus,
    completed_on: Option<DateTime<Utc>>,
}

impl From<RestorePoint> for PointView {
    fn from(point: RestorePoint) -> Self {
        Self {
            name: point.name,
            status: match point.state {
                PointState::Available => PointStatus::Available,
                PointState::Pending => PointStatus::Pending,
                PointState::Removed => PointStatus::Removed,
            },
            completed_on: point.completed_on,
        }
    }
}

async fn get_point(
    project: Project,
    context: ApiContext,
    Query(choice): Query<PointChoice>,
) -> Result<Json<PointView>, Error> {
    if let Some(name) = &choice.name {
        check_name(name)?;
    }
    let point = points::find(&context, &project, choice.name.as_deref()).await?;
    let point = point.ok_or(Error::Missing("Restore point not found"))?;
    Ok(Json(point.into()))
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.chars().count() > NAME_MAX {
        let problem = "Too big: expected string to have <=20 characters";
        return Err(Error::invalid("name", problem));
    }
    Ok(())
}

static CREATE_POINT: Endpoint = Endpoint {
    id: "v1-create-restore-point",
    summary: "Create a restore point",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/restore-point",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(create_point)
            .without_dry_run()
            .sample(r#"{"name": "before-import"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1RestorePointPostBody")]
struct NewPointRequest {
    #[schemars(length(max = 20))]
    name: String,
}

async fn create_point(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<NewPointRequest>,
) -> Result<Created<PointView>, Error> {
    check_name(&request.name)?;
    let name = &request.name;
    audit.answer_with(|point: &RestorePoint| Created(PointView::from(point.clone())).respond());
    let point = points::create(&context, &project, name, Some(&audit)).await?;
    Ok(Created(point.into()))
}

static GET_SCHEDULE: Endpoint = Endpoint {
    id: "v1-get-backup-schedule",
    summary: "Get the backup schedule",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/backups/schedule",
    aliases: &[],
    access: needs(&[&[P::BackupsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_schedule),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1BackupScheduleResponse")]
struct ScheduleView {
    /// Time of the daily backup in UTC: `HH:MM:SS`.
    schedule_for: String,
    updated_at: DateTime<Utc>,
}

async fn get_schedule(project: Project, context: ApiContext) -> Result<Json<ScheduleView>, Error> {
    let (schedule_for, updated_at) = points::daily_time(&context, &project).await?;
    Ok(Json(ScheduleView {
        schedule_for,
        updated_at,
    }))
}

static UPDATE_SCHEDULE: Endpoint = Endpoint {
    id: "v1-update-backup-schedule",
    summary: "Update the backup schedule",
    tag: Tag::Database,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/database/backups/schedule",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(update_schedule).sample(r#"{"schedule_for": "03:30:00"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1UpdateBackupScheduleBody")]
struct ScheduleRequest {
    /// Time of the daily backup in UTC: `HH:MM` or `HH:MM:SS`.
    schedule_for: String,
}

async fn update_schedule(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<ScheduleRequest>,
) -> Result<Json<ScheduleView>, Error> {
    let text = &request.schedule_for;
    let view = |(schedule_for, updated_at)| {
        Json(ScheduleView {
            schedule_for,
            updated_at,
        })
    };
    audit.answer_with(move |changed: &(String, DateTime<Utc>)| view(changed.clone()).respond());
    let changed = points::set_daily_time(&context, &project, text, &audit).await?;
    Ok(view(changed))
}

static UNDO: Endpoint = Endpoint {
    id: "v1-undo",
    summary: "Undo changes since a restore point",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/undo",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(undo)
            .destructive("restores the database to a restore point")
            .sample(r#"{"name": "before-import"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1UndoBody")]
struct UndoRequest {
    #[schemars(length(max = 20))]
    name: String,
}

async fn undo(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UndoRequest>,
) -> Result<CreatedEmpty, Error> {
    check_name(&request.name)?;
    points::undo(&context, &project, &request.name, &audit).await?;
    Ok(CreatedEmpty)
}
