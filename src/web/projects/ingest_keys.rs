//! Ingest keys: credentials of external programs that send log lines of a project.

use askama::Template;
use gantry_base::ids::ProjectRef;
use serde::Deserialize;
use serde_json::json;

use super::project::ProjectResponse;
use crate::{
    api::logs::keys::{Key, operations::CreatedKey},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::{self, RowId},
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

const PATH: &str = "/projects/{project}/ingest-keys";

pub(in crate::web) static INGEST_KEYS: Endpoint = page(
    "page-ingest-keys",
    "Ingest keys of a project",
    Verb::Get,
    PATH,
    || mount(list),
);
pub(in crate::web) static ADD_INGEST_KEY: Endpoint = page(
    "page-add-ingest-key",
    "Create an ingest key",
    Verb::Post,
    PATH,
    || mount(add),
);
pub(in crate::web) static DELETE_INGEST_KEY: Endpoint = page(
    "page-delete-ingest-key",
    "Delete an ingest key",
    Verb::Post,
    "/projects/{project}/ingest-keys/delete",
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
    let keys: Vec<Key> = visitor.get_if(&can_list, &operation(reference)).await?;
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
        .post::<CreatedKey>(&operation(&reference), &body)
        .await
    {
        Ok(created) => (Some(created), None),
        Err(error) => (None, Some(form::problem(error)?)),
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
        .delete(&format!("{}/{}", operation(&reference), row.id))
        .await?;
    PageResponse::redirect(&format!("/projects/{reference}/ingest-keys?done=deleted"))
}
