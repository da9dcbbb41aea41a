//! Operations of API v2 on things that no organization has here: connections to GitHub and
//! maintenance windows. Their lists are empty.

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Envelope, PageLinks, Paged};
use crate::{
    api::cursor_pages::{PageRequest, default_page_size},
    platform::{
        access::{OauthScope as S, Organization, Permission as P, needs},
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// An item of a list that is always empty.
type NoItem = Map<String, Value>;

pub(super) static GITHUB_CONNECTIONS: Endpoint = Endpoint {
    id: "v2-list-organization-github-connections",
    summary: "List an organization's GitHub connections, of which there are none",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/integrations/github/connections",
    aliases: &[],
    access: needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(github_connections),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct ConnectionPageQuery {
    /// Connections to return, 1 to 100.
    #[serde(rename = "page[size]", default = "default_page_size")]
    #[schemars(range(min = 1, max = 100))]
    size: i64,
    /// Returns connections of projects after this one.
    #[serde(rename = "page[after]")]
    #[schemars(with = "Option<ProjectRef>")]
    after: Option<String>,
    /// Returns connections of projects before this one.
    #[serde(rename = "page[before]")]
    #[schemars(with = "Option<ProjectRef>")]
    before: Option<String>,
    /// Only connections of this project.
    #[expect(dead_code, reason = "only checked")]
    #[serde(rename = "filter[project_ref]")]
    project: Option<ProjectRef>,
}

async fn github_connections(
    _: Organization,
    Query(query): Query<ConnectionPageQuery>,
) -> Result<Json<Paged<NoItem>>, Error> {
    let cursors = (query.after.as_deref(), query.before.as_deref());
    PageRequest::new(query.size, cursors, |text| text.parse::<ProjectRef>().ok())?;
    Ok(Json(Paged {
        data: Vec::new(),
        links: PageLinks {
            prev: None,
            next: None,
        },
    }))
}

pub(super) static MAINTENANCE_WINDOWS: Endpoint = Endpoint {
    id: "v2-list-organization-maintenance-windows",
    summary: "List an organization's maintenance windows, of which there are none",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/maintenance/windows",
    aliases: &[],
    access: needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(maintenance_windows),
};

async fn maintenance_windows(_: Organization) -> Result<Json<Envelope<Vec<NoItem>>>, Error> {
    Ok(Json(Envelope { data: Vec::new() }))
}
