//! Restores of a project: a review of what a moment or a restore point can be used for, and the
//! restore of the project, into a new project, or of single tables.

use askama::Template;
use chrono::{DateTime, NaiveDateTime, Utc};
use gantry_base::ids::ProjectRef;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    backups::refused,
    new::{CreatedProject, suggest_password},
    project::ProjectResponse,
};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static REVIEW_RESTORE: Endpoint = page(
    "page-review-restore",
    "Review a restore",
    Verb::Post,
    "/projects/{project}/backups/review",
    || mount(review),
);
pub(in crate::web) static RESTORE_BACKUP: Endpoint = page(
    "page-restore-backup",
    "Restore a project to a moment",
    Verb::Post,
    "/projects/{project}/backups/restore",
    || mount(restore),
);
pub(in crate::web) static RESTORE_TO_NEW_PROJECT: Endpoint = page(
    "page-restore-to-new-project",
    "Restore a moment into a new project",
    Verb::Post,
    "/projects/{project}/backups/restore-to-new-project",
    || mount(restore_to_new_project),
);
pub(in crate::web) static RESTORE_TABLES: Endpoint = page(
    "page-restore-tables",
    "Restore single tables of a moment",
    Verb::Post,
    "/projects/{project}/backups/restore-tables",
    || mount(restore_tables),
);

/// Formats of the field with the moment. Browsers leave out seconds that are zero.
const FORMATS: [&str; 4] = [
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
];

/// Parses the field with the moment, in UTC.
fn moment_of(text: &str) -> Result<DateTime<Utc>, Error> {
    let text = text.trim();
    let parse = |format: &&str| NaiveDateTime::parse_from_str(text, format).ok();
    let parsed = FORMATS.iter().find_map(parse);
    parsed
        .map(|moment| moment.and_utc())
        .ok_or_else(|| Error::Rejected("Enter a time in UTC, such as 2026-01-31 12:00:00.".into()))
}

/// Returns the path of an operation on backups.
fn operation(reference: &ProjectRef, name: &str) -> String {
    format!("/v1/projects/{reference}/database/backups/{name}")
}

/// The form: a moment in UTC, or the name of a restore point.
#[derive(Deserialize)]
struct RestoreForm {
    #[serde(default)]
    moment: String,
    #[serde(default)]
    point: String,
}

/// The target of a form.
enum ChosenTarget {
    Moment(DateTime<Utc>),
    Point(String),
}

impl RestoreForm {
    fn chosen(&self) -> Result<ChosenTarget, Error> {
        if !self.point.is_empty() {
            return Ok(ChosenTarget::Point(self.point.clone()));
        }
        moment_of(&self.moment).map(ChosenTarget::Moment)
    }
}

impl ChosenTarget {
    fn text(&self) -> String {
        match self {
            Self::Moment(at) => at.format("%-d %b %Y, %H:%M:%S UTC").to_string(),
            Self::Point(name) => format!("restore point {name}"),
        }
    }

    /// Returns the operation that restores the project, and its body.
    fn request(&self) -> (&'static str, Value) {
        match self {
            Self::Moment(at) => (
                "restore-pitr",
                json!({"recovery_time_target_unix": at.timestamp()}),
            ),
            Self::Point(name) => ("undo", json!({"name": name})),
        }
    }
}

#[derive(Template)]
#[template(path = "project_backups_review.html")]
struct RestoreReviewPage {
    layout: Layout,
    project: ProjectResponse,
    can_restore: PermissionCheck,
    can_create: PermissionCheck,
    can_restore_tables: PermissionCheck,
    target: String,
    moment: String,
    point: String,
    /// Suggested password of the new project.
    password: String,
}

/// Shows what a restore does before it is requested.
async fn review(
    visitor: Visitor,
    SessionForm(form): SessionForm<RestoreForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    visitor.skip_audit();
    let chosen = match form.chosen() {
        Ok(chosen) => chosen,
        Err(error) => return refused(&visitor, &reference, form.moment, error).await,
    };
    let check = async |name: &str| visitor.check("POST", &operation(&reference, name)).await;
    let path = format!("/projects/{reference}/backups");
    PageResponse::page(&RestoreReviewPage {
        layout: visitor.layout().at_path(&path),
        project: ProjectResponse::load(&visitor, &reference).await?,
        can_restore: check("restore-pitr").await?,
        can_create: check("restore-to-new-project").await?,
        can_restore_tables: check("restore-tables").await?,
        target: chosen.text(),
        moment: form.moment,
        point: form.point,
        password: suggest_password(&visitor.context.entropy),
    })
}

async fn restore(
    visitor: Visitor,
    SessionForm(form): SessionForm<RestoreForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let called = async {
        let (name, body) = form.chosen()?.request();
        let path = operation(&reference, name);
        visitor.call_raw(Method::POST, &path, Some(&body)).await
    };
    match called.await {
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}?done=restore")),
        Err(error) => refused(&visitor, &reference, form.moment, error).await,
    }
}

#[derive(Deserialize)]
struct NewProjectForm {
    moment: String,
    name: String,
    password: String,
}

async fn restore_to_new_project(
    visitor: Visitor,
    SessionForm(form): SessionForm<NewProjectForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let called = async {
        let moment = moment_of(&form.moment)?;
        let body = json!({
            "name": form.name.trim(),
            "db_pass": form.password,
            "recovery_time_target_unix": moment.timestamp(),
        });
        let path = operation(&reference, "restore-to-new-project");
        visitor.post::<CreatedProject>(&path, &body).await
    };
    match called.await {
        Ok(created) => {
            PageResponse::redirect(&format!("/projects/{}?done=created", created.reference))
        }
        Err(error) => refused(&visitor, &reference, form.moment, error).await,
    }
}

#[derive(Deserialize)]
struct TablesForm {
    moment: String,
    tables: String,
}

impl TablesForm {
    /// Returns the names, separated by spaces or commas, with or without a schema.
    fn tables(&self) -> Vec<Value> {
        let separators = [' ', ',', '\n', '\r', '\t'];
        let names = self.tables.split(separators);
        names
            .filter(|name| !name.is_empty())
            .map(|name| match name.split_once('.') {
                Some((schema, name)) => json!({"schema": schema, "name": name}),
                None => json!({"name": name}),
            })
            .collect()
    }
}

async fn restore_tables(
    visitor: Visitor,
    SessionForm(form): SessionForm<TablesForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let called = async {
        let moment = moment_of(&form.moment)?;
        let body = json!({
            "tables": form.tables(),
            "recovery_time_target_unix": moment.timestamp(),
        });
        let path = operation(&reference, "restore-tables");
        visitor.call_raw(Method::POST, &path, Some(&body)).await
    };
    match called.await {
        // The restore is in the list there.
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}/backups")),
        Err(error) => refused(&visitor, &reference, form.moment, error).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_have_an_optional_schema() {
        let form = TablesForm {
            moment: String::new(),
            tables: " orders, app.items\r\nnotes".to_owned(),
        };
        assert_eq!(
            form.tables(),
            [
                json!({"name": "orders"}),
                json!({"schema": "app", "name": "items"}),
                json!({"name": "notes"}),
            ]
        );
    }

    #[test]
    fn moment_may_lack_seconds() {
        let moment = moment_of("2026-01-31T12:00").unwrap();
        assert_eq!(moment_of(" 2026-01-31 12:00:00 ").unwrap(), moment);
        assert!(moment_of("yesterday").is_err());
    }
}
