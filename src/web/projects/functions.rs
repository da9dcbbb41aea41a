//! Edge Functions of a project, and the names of their secrets.

use askama::Template;
use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use serde::Deserialize;

use super::project::{ProjectResponse, unless_rejected};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::Timestamp,
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static FUNCTIONS: Endpoint = page(
    "page-functions",
    "Functions of a project",
    Verb::Get,
    "/projects/{project}/functions",
    || mount(list),
);

#[derive(Deserialize)]
struct FunctionEntry {
    id: String,
    slug: String,
    name: String,
    version: i32,
    #[serde(with = "chrono::serde::ts_milliseconds")]
    updated_at: DateTime<Utc>,
    verify_jwt: bool,
}

/// Functions of which the page counts calls.
const COUNTED_MAX: usize = 20;

/// Counts of the calls of a function in one period.
#[derive(Deserialize)]
struct CallCounts {
    requests_count: u64,
    server_err_count: u64,
}

#[derive(Deserialize)]
struct CallStatistics {
    result: Vec<CallCounts>,
}

struct FunctionLine {
    function: FunctionEntry,
    updated: Timestamp,
    /// Calls of the last day, and those of them that failed.
    calls: Option<(u64, u64)>,
}

impl FunctionLine {
    /// Returns the query of the page of logs that selects the events of the function.
    fn logs(&self) -> String {
        self.query("function_logs")
    }

    /// Returns the query of the page of logs that selects the calls of the function.
    fn invocations(&self) -> String {
        self.query("function_edge_logs")
    }

    fn query(&self, source: &str) -> String {
        let sql = format!(
            "select timestamp, severity_text, event_message\nfrom logs\nwhere source = '{source}'\n  \
             and log_attributes['function_id'] = '{}'\norder by timestamp desc\nlimit 100",
            self.function.id
        );
        form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("preset", "own"), ("source", source), ("sql", &sql)])
            .finish()
    }
}

#[derive(Deserialize)]
struct SecretEntry {
    name: String,
    updated_at: Option<DateTime<Utc>>,
}

struct SecretLine {
    name: String,
    updated: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "project_functions.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    can_list: PermissionCheck,
    functions: Vec<FunctionLine>,
    can_list_secrets: PermissionCheck,
    secrets: Vec<SecretLine>,
}

async fn list(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}/{rest}");
    let can_list = visitor.check("GET", &at("functions")).await?;
    let can_list_secrets = visitor.check("GET", &at("secrets")).await?;
    let functions: Vec<FunctionEntry> = visitor.get_if(&can_list, &at("functions")).await?;
    let mut secrets: Vec<SecretEntry> = visitor.get_if(&can_list_secrets, &at("secrets")).await?;
    // Variables of the platform, which cannot be changed, have no time of a change.
    secrets.retain(|secret| secret.updated_at.is_some());
    let now = visitor.context.clock.now();
    let mut lines = Vec::with_capacity(functions.len());
    for function in functions {
        let calls = if lines.len() < COUNTED_MAX {
            calls(&visitor, &reference, &function.id).await?
        } else {
            None
        };
        lines.push(FunctionLine {
            updated: Timestamp::new(function.updated_at, now),
            function,
            calls,
        });
    }
    let secret = |secret: SecretEntry| SecretLine {
        name: secret.name,
        updated: secret.updated_at.map(|at| Timestamp::new(at, now)),
    };
    PageResponse::page(&Page {
        layout: visitor.layout(),
        project,
        can_list,
        functions: lines,
        can_list_secrets,
        secrets: secrets.into_iter().map(secret).collect(),
    })
}

/// Returns the number of calls of a function in the last day, and of those that failed. `None`: the
/// visitor may not count them.
async fn calls(
    visitor: &Visitor,
    reference: &ProjectRef,
    function: &str,
) -> Result<Option<(u64, u64)>, Error> {
    let path = format!(
        "/v1/projects/{reference}/analytics/endpoints/functions.combined-stats\
         ?interval=1day&function_id={function}"
    );
    let operation = path.split('?').next().unwrap_or_default();
    if !visitor.check("GET", operation).await?.is_allowed() {
        return Ok(None);
    }
    let counted = unless_rejected(visitor.get::<CallStatistics>(&path).await)?;
    Ok(counted.map(|counted| {
        let of = |count: fn(&CallCounts) -> u64| counted.result.iter().map(count).sum();
        (of(|row| row.requests_count), of(|row| row.server_err_count))
    }))
}
