//! Operations on the audit log: Gantry's own.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    base::error::Error,
    platform::{
        access::{Organization, Permission as P, pat_only},
        audit::{Chain, Entry, read, read::Filter},
        http::{Endpoint, Json, Query, Tag, Verb, mount, output::NdJson},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&PAGE, &EXPORT];

static PAGE: Endpoint = Endpoint {
    id: "gantry-list-audit-entries",
    summary: "List who changed what in an organization, or tried to, newest first",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/audit",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead, P::MembersRead]]),
    limit: &STANDARD,
    handler: || mount(page),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    /// Entries to return, 1 to 100.
    #[serde(default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
    /// Older than the entry of this number.
    before: Option<i64>,
    /// By this user.
    actor: Option<Uuid>,
    /// Of this operation.
    operation: Option<String>,
    /// About this slug or ref.
    subject: Option<String>,
    /// `true`: what went through. `false`: what was refused or failed.
    succeeded: Option<bool>,
    /// Not before this time.
    since: Option<DateTime<Utc>>,
    /// Before this time.
    until: Option<DateTime<Utc>>,
}

fn whole_page() -> i64 {
    100
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditPage")]
struct Page {
    entries: Vec<Entry>,
    /// What to give as `before` for the entries before these, if there are any.
    before: Option<i64>,
}

async fn page(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page>, Error> {
    let PageQuery {
        limit,
        before,
        actor,
        operation,
        subject,
        succeeded,
        since,
        until,
    } = query;
    if !(1..=100).contains(&limit) {
        return Err(Error::invalid("limit", "expected 1 to 100"));
    }
    let filter = Filter {
        before,
        actor,
        operation,
        subject,
        succeeded,
        since,
        until,
        limit,
    };
    let entries = read::page(&context.db, Chain::Organization(organization.id), &filter).await?;
    let full = i64::try_from(entries.len()).is_ok_and(|found| found == limit);
    let before = entries.last().filter(|_| full).map(|entry| entry.number);
    Ok(Json(Page { entries, before }))
}

static EXPORT: Endpoint = Endpoint {
    id: "gantry-export-audit-entries",
    summary: "Export the audit log of an organization in order, a line of JSON for each entry",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/audit/export",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead, P::MembersRead]]),
    limit: &STANDARD,
    handler: || mount(export),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    /// Number of the last entry there is already. At most a thousand more are answered at once.
    #[serde(default)]
    #[schemars(range(min = 0))]
    after: i64,
}

async fn export(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<ExportQuery>,
) -> Result<NdJson, Error> {
    let (lines, _) = read::export(
        &context.db,
        Chain::Organization(organization.id),
        query.after,
    )
    .await?;
    Ok(NdJson(lines.into()))
}
