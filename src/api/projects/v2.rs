//! Operation of API v2 that lists the projects of an organization.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::ids::OrganizationId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::listing::{self, Listed, ListedDatabase};
use crate::{
    api::{
        context::ApiContext,
        cursor_pages::{CursorPage, PageRequest, default_page_size},
        organizations::v2::Paged,
    },
    control::projects::Status,
    platform::{
        access::{OauthScope as S, Organization, Permission as P, needs},
        error::{Context, Error},
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

pub(super) static LIST_OF_ORGANIZATION: Endpoint = Endpoint {
    id: "v2-list-organization-projects",
    summary: "List an organization's projects",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v2/organizations/{slug}/projects",
    aliases: &[],
    access: needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_of_organization),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct ProjectPageQuery {
    /// Projects to return, 1 to 100.
    #[serde(rename = "page[size]", default = "default_page_size")]
    #[schemars(range(min = 1, max = 100))]
    size: i64,
    /// Returns projects after this cursor.
    #[serde(rename = "page[after]")]
    #[schemars(length(min = 1))]
    after: Option<String>,
    /// Returns projects before this cursor.
    #[serde(rename = "page[before]")]
    #[schemars(length(min = 1))]
    before: Option<String>,
    #[serde(default)]
    sort: ProjectSort,
    /// Part of a name, in upper or lower case.
    #[schemars(length(min = 1))]
    search: Option<String>,
}

/// Order of the list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
enum ProjectSort {
    /// By time of creation, oldest first.
    #[default]
    #[serde(rename = "inserted_at")]
    InsertedAt,
    /// By time of creation, newest first.
    #[serde(rename = "-inserted_at")]
    InsertedAtDescending,
}

impl ProjectSort {
    const fn name(self) -> &'static str {
        match self {
            Self::InsertedAt => "inserted_at",
            Self::InsertedAtDescending => "-inserted_at",
        }
    }
}

/// The only value of `type`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ProjectType {
    Project,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationProject")]
struct ListedProject {
    r#type: ProjectType,
    /// Ref of the project.
    id: String,
    attributes: ListedProjectAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationProjectAttributes")]
struct ListedProjectAttributes {
    name: String,
    status: Status,
    cloud_provider: &'static str,
    region: String,
    inserted_at: String,
    databases: [ListedDatabase; 1],
}

impl From<Listed> for ListedProject {
    fn from(listed: Listed) -> Self {
        Self {
            r#type: ProjectType::Project,
            id: listed.reference,
            attributes: ListedProjectAttributes {
                name: listed.name,
                status: listed.status,
                cloud_provider: listed.cloud_provider,
                region: listed.region,
                inserted_at: listed.inserted_at,
                databases: listed.databases,
            },
        }
    }
}

/// The position of a project in the list: the id of its row, which grows with the time of creation
/// and stays when the project is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProjectCursor(i64);

impl ProjectCursor {
    fn write(self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.to_be_bytes())
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let bytes: [u8; 8] = bytes.try_into().ok()?;
        Some(Self(i64::from_be_bytes(bytes)))
    }
}

async fn list_of_organization(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<ProjectPageQuery>,
) -> Result<Json<Paged<ListedProject>>, Error> {
    if query.search.as_ref().is_some_and(String::is_empty) {
        let problem = "Too small: expected string to have >=1 characters";
        return Err(Error::invalid("search", problem));
    }
    let cursors = (query.after.as_deref(), query.before.as_deref());
    let request = PageRequest::new(query.size, cursors, ProjectCursor::parse)?;
    let search = query.search.as_deref();
    let page = page(&context, organization.id, query.sort, search, &request).await?;
    let path = format!("/v2/organizations/{}/projects", organization.slug);
    let mut parameters = vec![("sort", query.sort.name())];
    parameters.extend(search.map(|text| ("search", text)));
    let links = page.links(&path, &parameters, |(cursor, _)| Ok(cursor.write()))?;
    let data = page
        .items
        .into_iter()
        .map(|(_, listed)| ListedProject::from(listed));
    Ok(Json(Paged {
        data: data.collect(),
        links,
    }))
}

async fn page(
    context: &ApiContext,
    organization: OrganizationId,
    sort: ProjectSort,
    search: Option<&str>,
    request: &PageRequest<ProjectCursor>,
) -> Result<CursorPage<(ProjectCursor, Listed)>, Error> {
    macro_rules! matching {
        ($after:literal, $direction:literal) => {
            concat!(
                "select ref, name, region, status, created_at, instance_size, id from projects \
                 where organization_id = $1 and desired <> 'removed' \
                 and not exists (select from branches b \
                     where b.project_id = projects.id and not b.is_default) \
                 and ($2::text is null or position(lower($2) in lower(name)) > 0) \
                 and ($3::bigint is null or id ",
                $after,
                " $3) order by id ",
                $direction,
                " limit $4"
            )
        };
    }
    let is_newest_first = sort == ProjectSort::InsertedAtDescending;
    let sql = if is_newest_first == request.is_backward() {
        matching!(">", "asc")
    } else {
        matching!("<", "desc")
    };
    let cursor = request.cursor().map(|cursor| cursor.0);
    let rows_max = request.rows_max();
    let rows = context
        .db
        .query(sql, &[&organization.0, &search, &cursor, &rows_max])
        .await
        .context("listing projects")?;
    let listed = rows
        .iter()
        .map(|row| Ok((ProjectCursor(row.get(6)), listing::listed(row)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    Ok(request.page(listed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips() {
        for id in [0, 1, i64::MAX] {
            let cursor = ProjectCursor(id);
            assert_eq!(ProjectCursor::parse(&cursor.write()), Some(cursor));
        }
        for bad in ["", "x", "AAAA", "AAAAAAAAAAAA"] {
            assert_eq!(ProjectCursor::parse(bad), None, "{bad}");
        }
    }
}
