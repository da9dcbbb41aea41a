//! Earlier versions of a project's settings.

use askama::Template;
use serde_json::Value;

use super::fields;
use crate::{
    control::project_settings::{PlannedChange, SettingsVersion},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::Timestamp,
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
        projects::project::ProjectResponse,
    },
};

pub(in crate::web) static VERSIONS: Endpoint = page(
    "page-project-settings-versions",
    "Earlier versions of settings",
    Verb::Get,
    "/projects/{project}/settings/versions",
    || mount(show),
);

struct VersionLine {
    version: SettingsVersion,
    at: Timestamp,
}

#[derive(Template)]
#[template(path = "project_settings_versions.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_read: PermissionCheck,
    versions: Vec<VersionLine>,
}

impl Page {
    fn text(change: &PlannedChange, value: &Value) -> String {
        fields::text(value, change.secret)
    }
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let operation = format!("/v1/projects/{reference}/config/versions");
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let can_read = visitor.check("GET", &operation).await?;
    let versions: Vec<SettingsVersion> = visitor.get_if(&can_read, &operation).await?;
    let now = visitor.context.clock.now();
    let line = |version: SettingsVersion| VersionLine {
        at: Timestamp::new(version.at, now),
        version,
    };
    PageResponse::page(&Page {
        layout: visitor
            .layout()
            .at_path(&format!("/projects/{reference}/settings")),
        project,
        can_read,
        versions: versions.into_iter().map(line).collect(),
    })
}
