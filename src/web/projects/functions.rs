//! Edge Functions of a project, and the names of their secrets.

use askama::Template;
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::ProjectResponse;
use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Layout, PageResponse, Visitor, labels::Timestamp, page, path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static FUNCTIONS: Endpoint = page(
    "page-functions",
    "Functions of a project",
    Verb::Get,
    "/projects/{project}/functions",
    Access::Caller,
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

struct FunctionLine {
    function: FunctionEntry,
    updated: Timestamp,
}

impl FunctionLine {
    /// Returns the query of the page of logs that selects the events of the function.
    fn logs(&self) -> String {
        let sql = format!(
            "select timestamp, severity_text, event_message\nfrom logs\nwhere source = 'function_logs'\n  \
             and log_attributes['function_id'] = '{}'\norder by timestamp desc\nlimit 100",
            self.function.id
        );
        form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("preset", "own"),
                ("source", "function_logs"),
                ("sql", &sql),
            ])
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
    let functions: Vec<FunctionEntry> = if can_list.is_allowed() {
        visitor.get(&at("functions")).await?
    } else {
        Vec::new()
    };
    let secrets: Vec<SecretEntry> = if can_list_secrets.is_allowed() {
        visitor.get(&at("secrets")).await?
    } else {
        Vec::new()
    };
    let now = visitor.context.clock.now();
    let function = |function: FunctionEntry| FunctionLine {
        updated: Timestamp::new(function.updated_at, now),
        function,
    };
    let secret = |secret: SecretEntry| SecretLine {
        name: secret.name,
        updated: secret.updated_at.map(|at| Timestamp::new(at, now)),
    };
    PageResponse::page(&Page {
        layout: visitor.layout(),
        project,
        can_list,
        functions: functions.into_iter().map(function).collect(),
        can_list_secrets,
        secrets: secrets.into_iter().map(secret).collect(),
    })
}
