//! Ingest keys: credentials of external programs that send log lines of a project.

use askama::Template;
use gantry_base::ids::ProjectRef;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::ProjectResponse;
use crate::{
    api::logs::keys::{Key, operations::CreatedKey},
    platform::{
        access::Access,
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Layout, PageResponse, SessionForm, Visitor, form::RowId, labels::Timestamp, page,
        path::PathProject, permissions::PermissionCheck,
    },
};

const PATH: &str = "/projects/{project}/ingest-keys";

pub(in crate::web) static INGEST_KEYS: Endpoint = page(
    "page-ingest-keys",
    "Ingest keys of a project",
    Verb::Get,
    PATH,
    Access::Caller,
    || mount(list),
);
pub(in crate::web) static ADD_INGEST_KEY: Endpoint = page(
    "page-add-ingest-key",
    "Create an ingest key",
    Verb::Post,
    PATH,
    Access::Caller,
    || mount(add),
);
pub(in crate::web) static DELETE_INGEST_KEY: Endpoint = page(
    "page-delete-ingest-key",
    "Delete an ingest key",
    Verb::Post,
    "/projects/{project}/ingest-keys/delete",
    Access::Caller,
    || mount(delete),
);

struct Row {
    key: Key,
    created: Timestamp,
    used: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "project_ingest_keys.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_list: PermissionCheck,
    can_change: PermissionCheck,
    origin: String,
    rows: Vec<Row>,
    /// The new key in plain text, in the response to the form only.
    created: Option<CreatedKey>,
    problem: Option<String>,
}

fn operation(reference: &ProjectRef) -> String {
    format!("/v1/projects/{reference}/analytics/ingest-keys")
}

async fn load(visitor: &Visitor, reference: &ProjectRef) -> Result<Page, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let can_list = visitor.check("GET", &operation(reference)).await?;
    let can_change = visitor
        .check_body("POST", &operation(reference), r#"{"name":"x"}"#)
        .await?;
    let keys: Vec<Key> = if can_list.is_allowed() {
        visitor.get(&operation(reference)).await?
    } else {
        Vec::new()
    };
    let now = visitor.context.clock.now();
    Ok(Page {
        layout: visitor.layout(),
        project,
        can_list,
        can_change,
        origin: visitor.origin.clone(),
        rows: keys
            .into_iter()
            .map(|key: Key| Row {
                created: Timestamp::new(key.created_at, now),
                used: key.last_used_at.map(|at| Timestamp::new(at, now)),
                key,
            })
            .collect(),
        created: None,
        problem: None,
    })
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference).await?)
}

#[derive(Deserialize)]
struct IngestKeyForm {
    name: String,
}

/// Creates a key. It is shown only in the response to the form.
async fn add(
    visitor: Visitor,
    SessionForm(form): SessionForm<IngestKeyForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let body = json!({ "name": form.name.trim() });
    let (created, problem) = match visitor
        .call::<CreatedKey>(Method::POST, &operation(&reference), Some(&body))
        .await
    {
        Ok(created) => (Some(created), None),
        Err(error @ (Error::Invalid { .. } | Error::Rejected(_))) => {
            (None, Some(error.message().into_owned()))
        }
        Err(error) => return Err(error),
    };
    PageResponse::page(&Page {
        created,
        problem,
        ..load(&visitor, &reference).await?
    })
}

async fn delete(
    visitor: Visitor,
    SessionForm(row): SessionForm<RowId>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    visitor
        .call::<()>(
            Method::DELETE,
            &format!("{}/{}", operation(&reference), row.id),
            None,
        )
        .await?;
    PageResponse::redirect(&format!("/projects/{reference}/ingest-keys?done=deleted"))
}
