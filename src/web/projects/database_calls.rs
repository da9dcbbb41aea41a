//! The last HTTP calls of a project's database.

use askama::Template;
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::project::ProjectResponse;
use crate::{
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

pub(in crate::web) static DATABASE_CALLS: Endpoint = page(
    "page-database-calls",
    "HTTP calls of a project's database",
    Verb::Get,
    "/projects/{project}/database-calls",
    || mount(list),
);

#[derive(Deserialize)]
struct CallEntry {
    at: DateTime<Utc>,
    method: String,
    host: String,
    path: String,
    status: Option<u16>,
    error: Option<String>,
    duration_ms: u64,
}

#[derive(Deserialize)]
struct FailingEntry {
    host: String,
    since: DateTime<Utc>,
    failures: u64,
}

#[derive(Default, Deserialize)]
struct CallsResponse {
    calls: Vec<CallEntry>,
    failing: Vec<FailingEntry>,
}

struct CallLine {
    call: CallEntry,
    at: Timestamp,
}

struct FailingLine {
    host: FailingEntry,
    since: Timestamp,
}

#[derive(Template)]
#[template(path = "project_database_calls.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_list: PermissionCheck,
    calls: Vec<CallLine>,
    failing: Vec<FailingLine>,
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let path = format!("/v1/projects/{reference}/database/calls");
    let can_list = visitor.check("GET", &path).await?;
    let CallsResponse { calls, failing } = visitor.get_if(&can_list, &path).await?;
    let now = visitor.context.clock.now();
    let line = |call: CallEntry| CallLine {
        at: Timestamp::new(call.at, now),
        call,
    };
    let failing_line = |host: FailingEntry| FailingLine {
        since: Timestamp::new(host.since, now),
        host,
    };
    PageResponse::page(&Page {
        layout: visitor.layout(),
        project,
        can_list,
        calls: calls.into_iter().map(line).collect(),
        failing: failing.into_iter().map(failing_line).collect(),
    })
}
