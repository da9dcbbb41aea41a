//! Backups of a project: the window, the time of the daily backup, base backups and restores.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::project::ProjectResponse;
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form,
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static BACKUPS: Endpoint = page(
    "page-project-backups",
    "Backups of a project",
    Verb::Get,
    "/projects/{project}/backups",
    || mount(show),
);
pub(in crate::web) static UPDATE_SCHEDULE: Endpoint = page(
    "page-update-backup-schedule",
    "Change the time of the daily backup",
    Verb::Post,
    "/projects/{project}/backups/schedule",
    || mount(update_schedule),
);

/// Base backups and restores on the page.
const SHOWN_MAX: usize = 20;

/// The response of the operation that lists backups.
#[derive(Deserialize)]
struct BackupsResponse {
    walg_enabled: bool,
    backups: Vec<BackupResponse>,
    physical_backup_data: WindowResponse,
}

#[derive(Deserialize)]
struct BackupResponse {
    status: String,
    inserted_at: DateTime<Utc>,
    verified_at: Option<DateTime<Utc>>,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct WindowResponse {
    earliest_physical_backup_date_unix: Option<i64>,
    latest_physical_backup_date_unix: Option<i64>,
    #[serde(default)]
    gaps: Vec<GapResponse>,
}

#[derive(Deserialize)]
struct GapResponse {
    after_unix: i64,
    before_unix: i64,
    reason: String,
}

/// Moments that cannot be restored.
struct GapRow {
    after: Timestamp,
    before: Timestamp,
    reason: String,
}

#[derive(Deserialize)]
struct ScheduleResponse {
    schedule_for: String,
}

#[derive(Deserialize)]
struct PointResponse {
    name: String,
    status: String,
}

impl PointResponse {
    fn is_available(&self) -> bool {
        self.status == "AVAILABLE"
    }

    /// Returns the label and style class of the state.
    fn state(&self) -> (&'static str, &'static str) {
        match self.status.as_str() {
            "AVAILABLE" => ("Available", "good"),
            "PENDING" => ("Being archived", "busy"),
            _ => ("Expired", "idle"),
        }
    }
}

#[derive(Deserialize)]
struct RestoreResponse {
    kind: String,
    status: String,
    requested_at: DateTime<Utc>,
    error: Option<String>,
    schema: Option<String>,
}

struct BackupRow {
    backup: BackupResponse,
    made: Timestamp,
    verified: Option<Timestamp>,
}

impl BackupRow {
    /// Returns the label and style class of the state.
    fn state(&self) -> (&'static str, &'static str) {
        match self.backup.status.as_str() {
            "COMPLETED" if self.backup.problem.is_some() => ("Damaged", "bad"),
            "COMPLETED" => ("Complete", "good"),
            "FAILED" => ("Failed", "bad"),
            "REMOVED" => ("Expired", "idle"),
            _ => ("In progress", "busy"),
        }
    }
}

struct RestoreRow {
    restore: RestoreResponse,
    requested: Timestamp,
}

impl RestoreRow {
    /// Returns the label and style class of the state.
    fn state(&self) -> (&'static str, &'static str) {
        match self.restore.status.as_str() {
            "COMPLETED" => ("Complete", "good"),
            "FAILED" => ("Failed", "bad"),
            _ => ("Running", "busy"),
        }
    }

    fn label(&self) -> String {
        match (self.restore.kind.as_str(), &self.restore.schema) {
            ("tables", Some(schema)) => format!("Tables into {schema}"),
            ("new_project", _) => "Creation from a backup".to_owned(),
            _ => "Restore of the project".to_owned(),
        }
    }
}

#[derive(Template)]
#[template(path = "project_backups.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_read: PermissionCheck,
    can_restore: PermissionCheck,
    can_schedule: PermissionCheck,
    is_enabled: bool,
    window: Option<(Timestamp, Timestamp)>,
    gaps: Vec<GapRow>,
    schedule: String,
    point: Option<PointResponse>,
    rows: Vec<BackupRow>,
    restores: Vec<RestoreRow>,
    /// The moment that was rejected.
    moment: String,
    problem: Option<String>,
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference, String::new(), None).await?)
}

async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    moment: String,
    problem: Option<String>,
) -> Result<Page, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}/database/backups{rest}");
    let can_read = visitor.check("GET", &at("")).await?;
    let can_restore = visitor.check("POST", &at("/restore-pitr")).await?;
    let can_schedule = visitor.check("PATCH", &at("/schedule")).await?;
    let path = format!("/projects/{reference}/backups");
    let mut page = Page {
        layout: visitor.layout().at_path(&path),
        project,
        can_read,
        can_restore,
        can_schedule,
        is_enabled: true,
        window: None,
        gaps: Vec::new(),
        schedule: String::new(),
        point: None,
        rows: Vec::new(),
        restores: Vec::new(),
        moment,
        problem,
    };
    if !page.can_read.is_allowed() {
        return Ok(page);
    }
    let now = visitor.context.clock.now();
    let found: BackupsResponse = visitor.get(&at("")).await?;
    page.is_enabled = found.walg_enabled;
    let time = |unix: Option<i64>| {
        let at = unix.and_then(|unix| DateTime::from_timestamp(unix, 0));
        at.map(|at| Timestamp::new(at, now))
    };
    let window = found.physical_backup_data;
    page.window = time(window.earliest_physical_backup_date_unix)
        .zip(time(window.latest_physical_backup_date_unix));
    for gap in window.gaps {
        if let (Some(after), Some(before)) =
            (time(Some(gap.after_unix)), time(Some(gap.before_unix)))
        {
            let reason = gap.reason;
            page.gaps.push(GapRow {
                after,
                before,
                reason,
            });
        }
    }
    for backup in found.backups.into_iter().take(SHOWN_MAX) {
        page.rows.push(BackupRow {
            made: Timestamp::new(backup.inserted_at, now),
            verified: backup.verified_at.map(|at| Timestamp::new(at, now)),
            backup,
        });
    }
    let schedule: ScheduleResponse = visitor.get(&at("/schedule")).await?;
    page.schedule = schedule.schedule_for;
    page.point = match visitor.get(&at("/restore-point")).await {
        Ok(point) => Some(point),
        Err(Error::Missing(_)) => None,
        Err(error) => return Err(error),
    };
    let restores: Vec<RestoreResponse> = visitor.get(&at("/restores")).await?;
    for restore in restores.into_iter().take(SHOWN_MAX) {
        page.restores.push(RestoreRow {
            requested: Timestamp::new(restore.requested_at, now),
            restore,
        });
    }
    Ok(page)
}

#[derive(Deserialize)]
struct ScheduleForm {
    time: String,
}

async fn update_schedule(
    visitor: Visitor,
    SessionForm(form): SessionForm<ScheduleForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let mut time = form.time.trim().to_owned();
    // Browsers leave out seconds that are zero.
    if time.len() == "03:30".len() {
        time.push_str(":00");
    }
    let path = format!("/v1/projects/{reference}/database/backups/schedule");
    let body = json!({"schedule_for": time});
    let called = visitor.call_raw(Method::PATCH, &path, Some(&body)).await;
    match called {
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}/backups")),
        Err(error) => refused(&visitor, &reference, String::new(), error).await,
    }
}

/// Shows the page again with the message of an operation that rejected a form. Other errors are
/// returned.
pub(super) async fn refused(
    visitor: &Visitor,
    reference: &ProjectRef,
    moment: String,
    error: Error,
) -> Result<PageResponse, Error> {
    let problem = Some(form::problem(error)?);
    PageResponse::form(&load(visitor, reference, moment, problem).await?, true)
}
