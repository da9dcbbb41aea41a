//! The audit log of an organization: filter, list and export.

use std::collections::HashMap;

use askama::Template;
use gantry_base::ids::OrgSlug;
use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::header::OrganizationHeader;
use crate::{
    api::endpoints,
    platform::{
        audit::{AuditEntry, read::EXPORT_MAX},
        error::{Context, Error},
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        labels::Timestamp,
        page::{Layout, PageResponse, Visitor, page},
        pages,
        path::PathOrganization,
    },
};

pub(in crate::web) static AUDIT_LOG: Endpoint = page(
    "page-audit",
    "Audit log",
    Verb::Get,
    "/organizations/{organization}/audit",
    || mount(list),
);
pub(in crate::web) static EXPORT_AUDIT_LOG: Endpoint = page(
    "page-audit-export",
    "Export the audit log",
    Verb::Get,
    "/organizations/{organization}/audit/export",
    || mount(export),
);

/// Entries per page.
const PAGE_ENTRIES: usize = 50;
/// Maximum number of calls for one export file, of 1,000 entries each.
const EXPORT_CALLS_MAX: usize = 50;

/// The filter form. Browsers send empty fields as well.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct AuditFilter {
    before: String,
    actor: String,
    operation: String,
    subject: String,
    outcome: String,
}

impl AuditFilter {
    /// Returns the query of the operation.
    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE_ENTRIES.to_string());
        let succeeded = match self.outcome.as_str() {
            "done" => "true",
            "refused" => "false",
            _ => "",
        };
        let fields = [
            ("before", &*self.before),
            ("actor", &*self.actor),
            ("operation", &*self.operation),
            ("subject", &*self.subject),
            ("succeeded", succeeded),
        ];
        for (name, value) in fields {
            if !value.trim().is_empty() {
                query.append_pair(name, value.trim());
            }
        }
        query.finish()
    }

    /// Returns the query of this page for the entries before `before`.
    fn page_query(&self, before: i64) -> String {
        let before = before.to_string();
        let fields = [
            ("actor", &*self.actor),
            ("operation", &*self.operation),
            ("subject", &*self.subject),
            ("outcome", &*self.outcome),
            ("before", &*before),
        ];
        form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()))
            .finish()
    }

    fn is_set(&self) -> bool {
        [&self.actor, &self.operation, &self.subject, &self.outcome]
            .iter()
            .any(|field| !field.is_empty())
    }
}

#[derive(Deserialize)]
struct AuditPage {
    entries: Vec<AuditEntry>,
    before: Option<i64>,
}

#[derive(Deserialize)]
struct MemberEmail {
    user_id: String,
    email: String,
}

/// An entry with its labels.
struct Row {
    entry: AuditEntry,
    at: Timestamp,
    actor: String,
    summary: &'static str,
}

impl Row {
    fn new(entry: AuditEntry, emails: &HashMap<&str, &str>, at: Timestamp) -> Self {
        let id = entry.actor.to_string();
        let actor = match emails.get(id.as_str()) {
            Some(email) => (*email).to_owned(),
            None if entry.actor.is_nil() => "Operator".to_owned(),
            None => format!("Former member {id}"),
        };
        let summary = endpoints::all()
            .iter()
            .chain(pages())
            .find(|it| it.id == entry.operation)
            .map_or("", |it| it.summary);
        Self {
            entry,
            at,
            actor,
            summary,
        }
    }

    /// Returns the label and style class of the outcome.
    fn outcome(&self) -> (&'static str, &'static str) {
        match self.entry.status {
            102 => ("Started", "idle"),
            ..400 => ("Succeeded", "good"),
            400..500 => ("Denied", "bad"),
            _ => ("Failed", "bad"),
        }
    }

    /// Returns the credential of the request.
    fn credential(&self) -> String {
        match self.entry.token {
            0 => "Browser session".to_owned(),
            token => format!("Token {token}"),
        }
    }
}

/// Returns indented JSON.
fn pretty_json(json: &RawValue) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json.get());
    value
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| json.get().to_owned())
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Page {
    layout: Layout,
    head: OrganizationHeader,
    /// The reason that the visitor may not read the log.
    hidden: Option<String>,
    members: Vec<MemberEmail>,
    filter: AuditFilter,
    rows: Vec<Row>,
    older: Option<String>,
}

impl Page {
    fn pretty_json(json: &RawValue) -> String {
        pretty_json(json)
    }
}

async fn list(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
    Query(filter): Query<AuditFilter>,
) -> Result<PageResponse, Error> {
    let head = OrganizationHeader::load(&visitor, slug).await?;
    let path = format!("/v1/organizations/{}/audit", head.slug);
    let now = visitor.context.clock.now();
    let permission = visitor.check("GET", &path).await?;
    let layout = visitor.layout();
    if !permission.is_allowed() {
        let hidden = Some(permission.reason().to_owned());
        return PageResponse::page(&Page {
            layout,
            head,
            hidden,
            members: Vec::new(),
            filter,
            rows: Vec::new(),
            older: None,
        });
    }
    let members: Vec<MemberEmail> = visitor
        .get(&format!("/v1/organizations/{}/members", head.slug))
        .await?;
    let AuditPage { entries, before } = visitor.get(&format!("{path}?{}", filter.query())).await?;
    let emails: HashMap<_, _> = members
        .iter()
        .map(|member| (member.user_id.as_str(), member.email.as_str()))
        .collect();
    let rows = entries
        .into_iter()
        .map(|entry: AuditEntry| {
            let at = Timestamp::new(entry.at, now);
            Row::new(entry, &emails, at)
        })
        .collect();
    let older = before.map(|before| {
        format!(
            "/organizations/{}/audit?{}",
            head.slug,
            filter.page_query(before)
        )
    });
    PageResponse::page(&Page {
        layout,
        head,
        hidden: None,
        members,
        filter,
        rows,
        older,
    })
}

/// Returns the log from its first entry as NDJSON, the input of `gantry audit verify`. Limited to
/// [`EXPORT_CALLS_MAX`] calls.
async fn export(
    visitor: Visitor,
    PathOrganization(slug): PathOrganization,
) -> Result<PageResponse, Error> {
    let mut lines = Vec::new();
    let mut after = 0;
    for _ in 0..EXPORT_CALLS_MAX {
        let part = export_part(&visitor, &slug, after).await?;
        lines.extend_from_slice(&part);
        let Some(last) = last_number(&part)? else {
            break;
        };
        if last - after < EXPORT_MAX {
            break;
        }
        after = last;
    }
    PageResponse::file(
        &format!("audit-{slug}.ndjson"),
        "application/x-ndjson",
        lines,
    )
}

async fn export_part(visitor: &Visitor, slug: &OrgSlug, after: i64) -> Result<bytes::Bytes, Error> {
    visitor
        .call_raw(
            Method::GET,
            &format!("/v1/organizations/{slug}/audit/export?after={after}"),
            None,
        )
        .await
}

fn last_number(lines: &[u8]) -> Result<Option<i64>, Error> {
    #[derive(Deserialize)]
    struct EntryNumber {
        number: i64,
    }
    let Some(last) = lines
        .split(|byte| *byte == b'\n')
        .rfind(|line| !line.is_empty())
    else {
        return Ok(None);
    };
    serde_json::from_slice::<EntryNumber>(last)
        .map(|entry| Some(entry.number))
        .context("reading an exported entry")
}
