//! Earlier versions of a project's settings.

use askama::Template;
use serde_json::Value;

use super::fields;
use crate::{
    data_plane::project_settings::{PlannedChange, SettingsVersion},
    platform::{
        access::Access,
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Layout, PageResponse, Visitor, labels::Timestamp, page, path::PathProject,
        permissions::PermissionCheck, projects::ProjectResponse,
    },
};

pub(in crate::web) static VERSIONS: Endpoint = page(
    "page-project-settings-versions",
    "Earlier versions of settings",
    Verb::Get,
    "/projects/{project}/settings/versions",
    Access::Caller,
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
    let versions: Vec<SettingsVersion> = if can_read.is_allowed() {
        visitor.get(&operation).await?
    } else {
        Vec::new()
    };
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
