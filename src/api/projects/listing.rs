//! Operation that lists the projects of an organization in pages.

use gantry_base::ids::OrganizationId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use super::timestamp;
use crate::{
    api::context::ApiContext,
    control::projects::Status,
    platform::{
        access::{OauthScope as S, Organization, Permission as P, needs},
        error::{Context, Error},
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

pub(super) static LIST_OF_ORGANIZATION: Endpoint = Endpoint {
    id: "v1-get-all-projects-for-organization",
    summary: "List the projects of an organization",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/projects",
    aliases: &[],
    access: needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_of_organization),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct PageQuery {
    /// Projects to skip.
    #[serde(default)]
    offset: u32,
    /// Projects to return, 1 to 100.
    #[serde(default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    limit: u32,
    /// Part of a name or a ref.
    search: Option<String>,
    #[serde(default)]
    sort: Sort,
    /// States to keep, comma separated.
    statuses: Option<String>,
}

fn whole_page() -> u32 {
    100
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    NameAsc,
    NameDesc,
    CreatedAsc,
    CreatedDesc,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationProjectsResponse")]
struct Page {
    projects: Vec<Listed>,
    pagination: Pagination,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Pagination {
    count: i64,
    limit: i64,
    offset: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    #[serde(rename = "ref")]
    pub(super) reference: String,
    pub(super) name: String,
    pub(super) cloud_provider: &'static str,
    pub(super) region: String,
    is_branch: bool,
    pub(super) status: Status,
    pub(super) inserted_at: String,
    pub(super) databases: [ListedDatabase; 1],
}

/// State of a project's database server: the contract's names that a server of this platform can be
/// in. The list has no names for pauses.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schemars(inline)]
enum DatabaseStatus {
    ActiveHealthy,
    ActiveUnhealthy,
    ComingUp,
    GoingDown,
    InitFailed,
    Removed,
    Restoring,
    Restarting,
    Unknown,
}

impl DatabaseStatus {
    /// Returns the state of the server of a project in this state.
    const fn of(project: Status) -> Self {
        match project {
            Status::ComingUp => Self::ComingUp,
            Status::ActiveHealthy => Self::ActiveHealthy,
            Status::ActiveUnhealthy | Status::RestoreFailed => Self::ActiveUnhealthy,
            Status::InitFailed => Self::InitFailed,
            Status::Pausing | Status::PauseFailed | Status::GoingDown => Self::GoingDown,
            Status::Restoring => Self::Restoring,
            // The contract has no state for a stopped server with data, and none for an upgrade.
            // `REMOVED` would mean that the data is gone.
            Status::Inactive | Status::Upgrading => Self::Unknown,
            Status::Restarting => Self::Restarting,
            Status::Removed => Self::Removed,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedDatabase {
    infra_compute_size: String,
    region: String,
    status: DatabaseStatus,
    cloud_provider: &'static str,
    identifier: String,
    r#type: &'static str,
}

/// Where every project runs, for clients that want one of the contract's providers.
const PROVIDER: &str = "AWS";

async fn list_of_organization(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page>, Error> {
    if !(1..=100).contains(&query.limit) {
        return Err(Error::invalid("limit", "expected 1 to 100"));
    }
    let offset = i64::from(query.offset);
    let limit = i64::from(query.limit);
    let statuses = query.statuses.as_deref().map(|list| {
        list.split(',')
            .map(str::trim)
            .take(32)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let search = query
        .search
        .filter(|text| !text.is_empty())
        .map(|text| text.to_lowercase());

    let (count, projects) = page(
        &context,
        organization.id,
        search,
        statuses,
        query.sort,
        offset,
        limit,
    )
    .await?;
    Ok(Json(Page {
        projects,
        pagination: Pagination {
            count,
            limit,
            offset,
        },
    }))
}

async fn page(
    context: &ApiContext,
    organization: OrganizationId,
    search: Option<String>,
    statuses: Option<Vec<String>>,
    sort: Sort,
    offset: i64,
    limit: i64,
) -> Result<(i64, Vec<Listed>), Error> {
    macro_rules! matching {
        ($what:literal, $rest:literal) => {
            concat!(
                "select ",
                $what,
                " from projects where organization_id = $1 and desired <> 'removed' \
                 and not exists (select from branches b where b.project_id = projects.id and not \
                 b.is_default) \
                 and ($2::text is null or position($2 in lower(name)) > 0 or position($2 in ref) > 0) \
                 and ($3::text[] is null or status = any($3))",
                $rest
            )
        };
    }
    let id = organization.0;
    let count = context
        .db
        .query(matching!("count(*)", ""), &[&id, &search, &statuses])
        .await
        .context("counting projects")?;
    let sql = match sort {
        Sort::NameAsc => matching!(
            "ref, name, region, status, created_at, instance_size",
            " order by lower(name), id limit $4 offset $5"
        ),
        Sort::NameDesc => {
            matching!(
                "ref, name, region, status, created_at, instance_size",
                " order by lower(name) desc, id limit $4 offset $5"
            )
        }
        Sort::CreatedAsc => matching!(
            "ref, name, region, status, created_at, instance_size",
            " order by id limit $4 offset $5"
        ),
        Sort::CreatedDesc => matching!(
            "ref, name, region, status, created_at, instance_size",
            " order by id desc limit $4 offset $5"
        ),
    };
    let rows = context
        .db
        .query(sql, &[&id, &search, &statuses, &limit, &offset])
        .await
        .context("listing projects")?;
    let projects = rows.iter().map(listed).collect::<Result<_, _>>()?;
    Ok((count.first().map_or(0, |row| row.get(0)), projects))
}

/// Reads a project from the columns `ref`, `name`, `region`, `status`, `created_at` and
/// `instance_size`.
pub(super) fn listed(row: &Row) -> Result<Listed, Error> {
    let (reference, region, status): (String, String, _) =
        (row.get(0), row.get(2), Status::read(row, 3)?);
    let database = ListedDatabase {
        infra_compute_size: row.get(5),
        region: region.clone(),
        status: DatabaseStatus::of(status),
        cloud_provider: PROVIDER,
        identifier: reference.clone(),
        r#type: "PRIMARY",
    };
    Ok(Listed {
        reference,
        name: row.get(1),
        cloud_provider: PROVIDER,
        region,
        is_branch: false,
        status,
        inserted_at: timestamp(row.get(4)),
        databases: [database],
    })
}
