//! The page on which a project is upgraded to another major version of PostgreSQL.

use askama::Template;
use gantry_base::ids::ProjectRef;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::project::ProjectResponse;
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

pub(in crate::web) static SHOW_UPGRADE: Endpoint = page(
    "page-ask-upgrade-project",
    "Upgrade PostgreSQL",
    Verb::Get,
    "/projects/{project}/upgrade",
    || mount(show),
);
pub(in crate::web) static UPGRADE: Endpoint = page(
    "page-upgrade-project",
    "Upgrade PostgreSQL",
    Verb::Post,
    "/projects/{project}/upgrade",
    || mount(upgrade),
);

#[derive(Deserialize)]
struct UpgradeTarget {
    postgres_version: String,
    app_version: String,
}

#[derive(Deserialize)]
struct Eligibility {
    target_upgrade_versions: Vec<UpgradeTarget>,
    objects_to_be_dropped: Vec<String>,
    unsupported_extensions: Vec<String>,
    validation_errors: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusResponse {
    database_upgrade_status: Option<UpgradeStatus>,
}

#[derive(Deserialize)]
struct UpgradeStatus {
    target_version: u16,
    status: u8,
    error: Option<String>,
}

#[derive(Template)]
#[template(path = "project_upgrade.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    permission: PermissionCheck,
    targets: Vec<UpgradeTarget>,
    /// Things to remove first.
    blockers: Vec<String>,
    last: Option<UpgradeStatus>,
    problem: Option<String>,
}

impl Page {
    /// Returns the message about the last upgrade, if it failed.
    fn failure(&self) -> Option<String> {
        let last = self.last.as_ref().filter(|last| last.status == 2)?;
        let step = last.error.as_deref().unwrap_or_default();
        let step = step.split_once('_').map_or(step, |(_, step)| step);
        Some(format!(
            "The last upgrade to PostgreSQL {} failed: {}. The project runs on its previous version.",
            last.target_version,
            step.replace('_', " ")
        ))
    }
}

async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    problem: Option<String>,
) -> Result<Page, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}{rest}");
    let permission = visitor.check("POST", &at("/upgrade")).await?;
    let mut page = Page {
        layout: visitor.layout().at_path(&format!("/projects/{reference}")),
        project,
        permission,
        targets: Vec::new(),
        blockers: Vec::new(),
        last: None,
        problem,
    };
    if page.permission.is_allowed() {
        let found: Eligibility = visitor.get(&at("/upgrade/eligibility")).await?;
        page.blockers = blockers(&found);
        page.targets = found.target_upgrade_versions;
        let status: StatusResponse = visitor.get(&at("/upgrade/status")).await?;
        page.last = status.database_upgrade_status;
    }
    Ok(page)
}

fn blockers(found: &Eligibility) -> Vec<String> {
    let extensions = found.unsupported_extensions.iter();
    let mut blockers: Vec<String> = extensions.map(|name| format!("extension {name}")).collect();
    blockers.extend(found.objects_to_be_dropped.iter().cloned());
    for error in &found.validation_errors {
        let slot = error.get("slot_name").and_then(Value::as_str);
        blockers.extend(slot.map(|name| format!("replication slot {name}")));
    }
    blockers
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference, None).await?)
}

/// The form: the major version to upgrade to.
#[derive(Deserialize)]
struct UpgradeForm {
    version: String,
}

async fn upgrade(
    visitor: Visitor,
    SessionForm(form): SessionForm<UpgradeForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let path = format!("/v1/projects/{reference}/upgrade");
    let body = json!({"target_version": form.version});
    match visitor.post::<Value>(&path, &body).await {
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}?done=upgrade")),
        Err(Error::Rejected(text)) => {
            let page = load(&visitor, &reference, Some(format!("{text}."))).await?;
            Ok(PageResponse::page(&page)?.status(StatusCode::CONFLICT))
        }
        Err(error) => Err(error),
    }
}
