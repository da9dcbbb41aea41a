//! Operations of API v2 on the notebooks of a project.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    cells::NotebookCell,
    page::{NotebookCursor, NotebookSort},
    rows::{
        self, ListedNotebook, NewNotebook, Notebook, NotebookChanges, NotebookFilter, NotebookHead,
        NotebookUser,
    },
};
use crate::{
    api::{
        context::ApiContext,
        cursor_pages::{PageRequest, default_page_size},
        organizations::v2::{Envelope, Paged},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, User, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, PathId, Query, Tag, Verb, mount,
            output::{Created, NoContent, Output},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &DELETE, &GET, &UPDATE];

const NOTEBOOKS: &str = "/v2/projects/{ref}/notebooks";
const NOTEBOOK: &str = "/v2/projects/{ref}/notebooks/{id}";
/// Version of the form of `content`.
const SCHEMA_VERSION: u32 = 1;

/// The only value of `type`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum NotebookType {
    Notebook,
}

/// A notebook in a response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Notebook{A}Resource")]
struct NotebookResource<A> {
    r#type: NotebookType,
    id: Uuid,
    attributes: A,
}

/// Attributes of a notebook in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, rename = "Summary")]
struct NotebookSummary {
    name: String,
    description: Option<String>,
    /// Mark that all members of the project share.
    favorite: bool,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    /// The user that created it; null if the account was deleted.
    owner: Option<NotebookUserResource>,
    /// The user that changed it last; null if the account was deleted.
    updated_by: Option<NotebookUserResource>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NotebookUser")]
struct NotebookUserResource {
    id: i64,
    username: String,
}

/// Attributes of a notebook.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, rename = "Detail")]
struct NotebookDetail {
    #[serde(flatten)]
    summary: NotebookSummary,
    content: NotebookContent,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct NotebookContent {
    /// Version of the form of the content.
    schema_version: u32,
    cells: Vec<NotebookCell<String>>,
}

impl From<NotebookUser> for NotebookUserResource {
    fn from(user: NotebookUser) -> Self {
        Self {
            id: user.id,
            username: user.username,
        }
    }
}

impl From<NotebookHead> for NotebookSummary {
    fn from(head: NotebookHead) -> Self {
        Self {
            name: head.name,
            description: head.description,
            favorite: head.favorite,
            inserted_at: head.inserted_at,
            updated_at: head.updated_at,
            owner: head.owner.map(NotebookUserResource::from),
            updated_by: head.updated_by.map(NotebookUserResource::from),
        }
    }
}

impl From<ListedNotebook> for NotebookResource<NotebookSummary> {
    fn from(listed: ListedNotebook) -> Self {
        Self {
            r#type: NotebookType::Notebook,
            id: listed.head.id,
            attributes: listed.head.into(),
        }
    }
}

impl From<Notebook> for NotebookResource<NotebookDetail> {
    fn from(notebook: Notebook) -> Self {
        Self {
            r#type: NotebookType::Notebook,
            id: notebook.head.id,
            attributes: NotebookDetail {
                summary: notebook.head.into(),
                content: NotebookContent {
                    schema_version: SCHEMA_VERSION,
                    cells: notebook.cells,
                },
            },
        }
    }
}

/// Returns the body of a response with a notebook.
fn shown(notebook: Notebook) -> Envelope<NotebookResource<NotebookDetail>> {
    Envelope {
        data: notebook.into(),
    }
}

static LIST: Endpoint = Endpoint {
    id: "v2-list-notebooks",
    summary: "List notebooks",
    tag: Tag::Notebooks,
    method: Verb::Get,
    path: NOTEBOOKS,
    aliases: &[],
    access: needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct NotebookPageQuery {
    /// Notebooks to return, 1 to 100.
    #[serde(rename = "page[size]", default = "default_page_size")]
    #[schemars(range(min = 1, max = 100))]
    size: i64,
    /// Returns notebooks after this cursor.
    #[serde(rename = "page[after]")]
    #[schemars(length(min = 1))]
    after: Option<String>,
    /// Returns notebooks before this cursor.
    #[serde(rename = "page[before]")]
    #[schemars(length(min = 1))]
    before: Option<String>,
    /// Only notebooks with exactly this name.
    #[serde(rename = "filter[name]")]
    #[schemars(length(min = 1))]
    name: Option<String>,
    /// Order; oldest first, if absent.
    #[schemars(with = "Option<NotebookSort>")]
    sort: Option<String>,
}

async fn list(
    project: Project,
    context: ApiContext,
    Query(query): Query<NotebookPageQuery>,
) -> Result<Json<Paged<NotebookResource<NotebookSummary>>>, Error> {
    let sort = NotebookSort::parse(query.sort.as_deref())?;
    if query.name.as_ref().is_some_and(String::is_empty) {
        let problem = "Too small: expected string to have >=1 characters";
        return Err(Error::invalid("filter[name]", problem));
    }
    let cursors = (query.after.as_deref(), query.before.as_deref());
    let parse = |text: &str| NotebookCursor::parse(text, sort);
    let request = PageRequest::new(query.size, cursors, parse)?;
    let filter = NotebookFilter {
        name: query.name,
        sort,
    };
    let page = rows::list(&context, &project, &filter, &request).await?;
    let path = format!("/v2/projects/{}/notebooks", project.reference);
    let mut parameters = vec![("sort", sort.name())];
    parameters.extend(filter.name.as_deref().map(|name| ("filter[name]", name)));
    let links = page.links(&path, &parameters, |listed| listed.cursor(sort).write())?;
    let data = page.items.into_iter().map(NotebookResource::from);
    Ok(Json(Paged {
        data: data.collect(),
        links,
    }))
}

static CREATE: Endpoint = Endpoint {
    id: "v2-create-notebook",
    summary: "Create a notebook",
    tag: Tag::Notebooks,
    method: Verb::Post,
    path: NOTEBOOKS,
    aliases: &[],
    access: needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(create).sample(
            r##"{"data": {"type": "notebook", "attributes": {"name": "Orders", "content": {"cells": [{"type": "markdown", "text": "# Orders"}, {"type": "database", "sql": "select * from orders"}]}}}}"##,
        )
    },
};

/// Cells of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NotebookContentDraft")]
struct ContentDraft {
    /// Cells in their order. A cell without an id is new.
    #[schemars(length(max = 200))]
    cells: Vec<NotebookCell<Option<String>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateNotebook")]
struct CreateNotebookRequest {
    data: CreateNotebookData,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct CreateNotebookData {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: NotebookType,
    attributes: CreateNotebookAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct CreateNotebookAttributes {
    #[schemars(length(min = 1, max = 255))]
    name: String,
    #[schemars(length(max = 10_000))]
    description: Option<String>,
    #[serde(default)]
    favorite: bool,
    content: ContentDraft,
}

async fn create(
    project: Project,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
    Json(request): Json<CreateNotebookRequest>,
) -> Result<Created<Envelope<NotebookResource<NotebookDetail>>>, Error> {
    let attributes = request.data.attributes;
    let new = NewNotebook {
        name: attributes.name,
        description: attributes.description,
        favorite: attributes.favorite,
        cells: attributes.content.cells,
    };
    audit.answer_with(|created: &Notebook| Created(shown(created.clone())).respond());
    let created = rows::create(&context, &project, user.id, new, &audit).await?;
    Ok(Created(shown(created)))
}

static GET: Endpoint = Endpoint {
    id: "v2-get-notebook",
    summary: "Get a notebook",
    tag: Tag::Notebooks,
    method: Verb::Get,
    path: NOTEBOOK,
    aliases: &[],
    access: needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<Envelope<NotebookResource<NotebookDetail>>>, Error> {
    let notebook = rows::get(&context, &project, id).await?;
    Ok(Json(shown(notebook)))
}

static UPDATE: Endpoint = Endpoint {
    id: "v2-update-notebook",
    summary: "Update a notebook",
    tag: Tag::Notebooks,
    method: Verb::Patch,
    path: NOTEBOOK,
    aliases: &[],
    access: needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(update).sample(
            r#"{"data": {"type": "notebook", "attributes": {"name": "Orders of today", "favorite": true}}}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateNotebook")]
struct UpdateNotebookRequest {
    data: UpdateNotebookData,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct UpdateNotebookData {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: NotebookType,
    attributes: UpdateNotebookAttributes,
}

/// Absent attributes stay.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(
    clippy::option_option,
    reason = "an absent attribute and null are different"
)]
struct UpdateNotebookAttributes {
    #[schemars(length(min = 1, max = 255))]
    name: Option<String>,
    /// Null removes it.
    #[serde(default, deserialize_with = "crate::api::keys::present")]
    #[schemars(with = "Option<String>", length(max = 10_000))]
    description: Option<Option<String>>,
    favorite: Option<bool>,
    /// All cells; they replace the earlier ones. A cell with the id of an earlier one stays that
    /// cell.
    content: Option<ContentDraft>,
}

async fn update(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateNotebookRequest>,
) -> Result<Json<Envelope<NotebookResource<NotebookDetail>>>, Error> {
    let attributes = request.data.attributes;
    let changes = NotebookChanges {
        name: attributes.name,
        description: attributes.description,
        favorite: attributes.favorite,
        cells: attributes.content.map(|content| content.cells),
    };
    audit.answer_with(|updated: &Notebook| Json(shown(updated.clone())).respond());
    let updated = rows::update(&context, &project, (id, user.id), changes, &audit).await?;
    Ok(Json(shown(updated)))
}

static DELETE: Endpoint = Endpoint {
    id: "v2-delete-notebook",
    summary: "Delete a notebook",
    tag: Tag::Notebooks,
    method: Verb::Delete,
    path: NOTEBOOK,
    aliases: &[],
    access: needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<NoContent, Error> {
    rows::delete(&context, &project, id, &audit).await?;
    Ok(NoContent)
}
