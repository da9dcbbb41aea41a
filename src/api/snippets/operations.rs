//! Operations on SQL snippets. They are created with `gantry snippet add`, because the contract has
//! no operation for it.

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ListOrder, Page, SnippetDetail, SortDirection, SortKey};
use crate::{
    api::{context::ApiContext, snippets},
    platform::{
        access::{OauthScope as S, Permission as P, User, needs},
        error::Error,
        http::{Endpoint, Json, PathId, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &GET];

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-snippets",
    summary: "List SQL snippets",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/snippets",
    aliases: &[],
    access: needs(&[&[P::SnippetsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// Maximum number of snippets per page.
const PAGE_MAX: u32 = 100;

#[derive(Debug, Deserialize, JsonSchema)]
struct ListQuery {
    /// Only snippets of this project.
    project_ref: Option<ProjectRef>,
    /// Cursor of the previous page.
    cursor: Option<String>,
    #[serde(default = "page_size_default")]
    #[schemars(range(min = 1, max = 100))]
    limit: u32,
    #[serde(default)]
    sort_by: SortKey,
    #[serde(default)]
    sort_order: SortDirection,
}

fn page_size_default() -> u32 {
    PAGE_MAX
}

async fn list(
    user: User,
    context: ApiContext,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page>, Error> {
    if !(1..=PAGE_MAX).contains(&query.limit) {
        return Err(Error::invalid("limit", format!("expected 1 to {PAGE_MAX}")));
    }
    let order = ListOrder {
        by: query.sort_by,
        direction: query.sort_order,
    };
    Ok(Json(
        snippets::list(
            &context,
            &user,
            query.project_ref.as_ref(),
            order,
            (query.cursor.as_deref(), query.limit),
        )
        .await?,
    ))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-a-snippet",
    summary: "Get an SQL snippet",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/snippets/{id}",
    aliases: &[],
    access: needs(&[&[P::SnippetsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    PathId(id): PathId,
    user: User,
    context: ApiContext,
) -> Result<Json<SnippetDetail>, Error> {
    Ok(Json(snippets::get(&context, &user, id).await?))
}
