//! Log drains: the state of their deliveries.

use askama::Template;
use gantry_base::ids::ProjectRef;

use super::project::ProjectResponse;
use crate::{
    api::log_drains::{DrainHealth, DrainState},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::Timestamp,
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static LOG_DRAINS: Endpoint = page(
    "page-log-drains",
    "Log drains of a project",
    Verb::Get,
    "/projects/{project}/log-drains",
    || mount(list),
);

struct DrainRow {
    health: DrainHealth,
    failing: Option<Timestamp>,
}

impl DrainRow {
    /// Returns the label and style class of the state.
    fn state(&self) -> (&'static str, &'static str) {
        match self.health.state {
            DrainState::Idle => ("Waiting for lines", "idle"),
            DrainState::Healthy => ("Healthy", "good"),
            DrainState::Failing => ("Failing", "bad"),
        }
    }
}

#[derive(Template)]
#[template(path = "project_log_drains.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_list: PermissionCheck,
    rows: Vec<DrainRow>,
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference).await?)
}

async fn load(visitor: &Visitor, reference: &ProjectRef) -> Result<Page, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let operation = format!("/v1/projects/{reference}/analytics/log-drains/health");
    let can_list = visitor.check("GET", &operation).await?;
    let drains: Vec<DrainHealth> = visitor.get_if(&can_list, &operation).await?;
    let now = visitor.context.clock.now();
    let row = |health: DrainHealth| DrainRow {
        failing: health.failing_since.map(|at| Timestamp::new(at, now)),
        health,
    };
    Ok(Page {
        layout: visitor.layout(),
        project,
        can_list,
        rows: drains.into_iter().map(row).collect(),
    })
}
