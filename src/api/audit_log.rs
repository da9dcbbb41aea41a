//! Operations on the audit log. Specific to Gantry.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    platform::{
        access::{Organization, Permission as P, pat_only},
        audit::{
            AuditEntry, Chain,
            read::{self, AuditFilter},
        },
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount, output::JsonLines},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&PAGE, &EXPORT];

static PAGE: Endpoint = Endpoint {
    id: "gantry-list-audit-entries",
    summary: "List audit log entries of an organization, newest first",
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
    /// Number of entries to return, 1 to 100.
    #[serde(default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
    /// Entries with a lower number than this.
    before: Option<i64>,
    /// Entries of this user.
    actor: Option<Uuid>,
    /// Entries of this operation.
    operation: Option<String>,
    /// Entries about this slug or ref.
    subject: Option<String>,
    /// `true`: successful requests. `false`: rejected or failed requests.
    succeeded: Option<bool>,
    /// Entries at or after this time.
    since: Option<DateTime<Utc>>,
    /// Entries before this time.
    until: Option<DateTime<Utc>>,
}

fn whole_page() -> i64 {
    100
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditPage")]
struct Page {
    entries: Vec<AuditEntry>,
    /// The value of `before` for the next page; null on the last page.
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
    let filter = AuditFilter {
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
    summary: "Export the audit log of an organization in ascending order, one line of JSON per entry",
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
    /// Number of the last entry that the client has. The response contains at most 1,000 later
    /// entries.
    #[serde(default)]
    #[schemars(range(min = 0))]
    after: i64,
}

async fn export(
    organization: Organization,
    context: ApiContext,
    Query(query): Query<ExportQuery>,
) -> Result<JsonLines, Error> {
    let (lines, _) = read::export(
        &context.db,
        Chain::Organization(organization.id),
        query.after,
    )
    .await?;
    Ok(JsonLines(lines.into()))
}
