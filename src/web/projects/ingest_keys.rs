//! Keys with which others add log lines of a project.

use askama::Template;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::Detail;
use crate::{
    api::logs::keys::{Key, operations::CreatedKey},
    base::{error::Error, ids::ProjectRef},
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, may::May, named::InProject, page, words::Moment},
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
    "Make an ingest key",
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
    made: Moment,
    used: Option<Moment>,
}

#[derive(Template)]
#[template(path = "project_ingest_keys.html")]
struct Page {
    frame: Frame,
    project: Detail,
    may_see: May,
    may_change: May,
    origin: String,
    rows: Vec<Row>,
    /// In clear, in this answer only.
    made: Option<CreatedKey>,
    wrong: Option<String>,
}

fn operation(reference: &ProjectRef) -> String {
    format!("/v1/projects/{reference}/analytics/ingest-keys")
}

async fn load(visitor: &Visitor, reference: &ProjectRef) -> Result<Page, Error> {
    let project = Detail::of(visitor, reference).await?;
    let may_see = visitor.may("GET", &operation(reference)).await?;
    let may_change = visitor
        .may_send("POST", &operation(reference), r#"{"name":"x"}"#)
        .await?;
    let keys: Vec<Key> = if may_see.yes() {
        visitor.get(&operation(reference)).await?
    } else {
        Vec::new()
    };
    let now = visitor.context.clock.now();
    let row = |key: Key| Row {
        made: Moment::new(key.created_at, now),
        used: key.last_used_at.map(|at| Moment::new(at, now)),
        key,
    };
    Ok(Page {
        frame: visitor.frame(),
        project,
        may_see,
        may_change,
        origin: visitor.origin.clone(),
        rows: keys.into_iter().map(row).collect(),
        made: None,
        wrong: None,
    })
}

async fn list(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    Answer::page(&load(&visitor, &reference).await?)
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
}

/// The key is in the answer to the form, which has no address of its own.
async fn add(
    visitor: Visitor,
    Form(wanted): Form<Wanted>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    let body = json!({ "name": wanted.name.trim() });
    let (made, wrong) = match visitor
        .ask::<CreatedKey>(Method::POST, &operation(&reference), Some(&body))
        .await
    {
        Ok(made) => (Some(made), None),
        Err(error @ (Error::Invalid { .. } | Error::Rejected(_))) => {
            (None, Some(error.message().into_owned()))
        }
        Err(error) => return Err(error),
    };
    Answer::page(&Page {
        made,
        wrong,
        ..load(&visitor, &reference).await?
    })
}

#[derive(Deserialize)]
struct Which {
    id: i64,
}

async fn delete(
    visitor: Visitor,
    Form(which): Form<Which>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    visitor
        .ask::<()>(
            Method::DELETE,
            &format!("{}/{}", operation(&reference), which.id),
            None,
        )
        .await?;
    Answer::to(&format!("/projects/{reference}/ingest-keys?done=deleted"))
}
