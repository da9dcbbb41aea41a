//! The page of a project: status, connection strings, API keys, actions.

use askama::Template;
use gantry_base::ids::ProjectRef;
use serde::Deserialize;

use super::{
    hostname::HostnameResponse,
    live::{self, Followed},
    project::{ProjectResponse, unless_rejected},
};
use crate::{
    control::projects::{Command, Status},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::NoFields,
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

pub(in crate::web) static SHOW: Endpoint = page(
    "page-project",
    "Project",
    Verb::Get,
    "/projects/{project}",
    || mount(show),
);
pub(in crate::web) static REVEAL_KEYS: Endpoint = page(
    "page-show-keys",
    "Reveal API keys",
    Verb::Post,
    "/projects/{project}/keys",
    || mount(reveal_keys),
);

/// The address of the PostgreSQL proxy.
#[derive(Deserialize)]
struct ProxyAddress {
    db_host: String,
    db_port: u16,
    pool_mode: String,
    connection_string: String,
}

struct ConnectionStrings {
    direct: String,
    shared: String,
    /// That of the pooler, if connections are pooled.
    pooled: Option<String>,
}

impl ConnectionStrings {
    /// Returns the connection strings of a project. Its server has the name `host`. `session_port`
    /// is the port for sessions with the server.
    fn new(project: &str, host: &str, session_port: u16, pooler: ProxyAddress) -> Self {
        let pooled = pooler.db_port != session_port && pooler.pool_mode == "transaction";
        Self {
            direct: format!("postgresql://postgres:[YOUR-PASSWORD]@{host}:{session_port}/postgres"),
            shared: format!(
                "postgresql://postgres.{project}:[YOUR-PASSWORD]@{}:{session_port}/postgres",
                pooler.db_host
            ),
            pooled: pooled.then_some(pooler.connection_string),
        }
    }
}

/// An API key, in plain text only if `reveal=true` was requested.
#[derive(Deserialize)]
struct ApiKeyEntry {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "api_key")]
    text: String,
}

/// Services on the page, and their labels.
const SERVICES: [(&str, &str); 4] = [
    ("rest", "Data API"),
    ("auth", "Auth"),
    ("storage", "Storage"),
    ("realtime", "Realtime"),
];

#[derive(Deserialize)]
struct HealthEntry {
    name: String,
    status: String,
    error: Option<String>,
}

/// A service behind the project's address.
struct ServiceLine {
    label: &'static str,
    health: HealthEntry,
}

impl ServiceLine {
    /// Returns the label and style class of the state.
    fn state(&self) -> (&'static str, &'static str) {
        match self.health.status.as_str() {
            "ACTIVE_HEALTHY" => ("Available", "good"),
            "COMING_UP" => ("Starting", "busy"),
            _ => ("Not available", "idle"),
        }
    }
}

#[derive(Template)]
#[template(path = "project.html")]
pub(super) struct Page {
    layout: Layout,
    /// Address of the stream of changes.
    changes: String,
    project: ProjectResponse,
    created: Timestamp,
    /// The error of an unhealthy project.
    cause: Option<String>,
    can_connect: PermissionCheck,
    strings: Option<ConnectionStrings>,
    can_list_keys: PermissionCheck,
    can_reveal_keys: PermissionCheck,
    keys: Vec<ApiKeyEntry>,
    revealed: bool,
    services: Vec<ServiceLine>,
    /// Permitted pages on settings, branches and functions: last segment of the path, and label.
    development: Vec<(&'static str, &'static str)>,
    /// Permitted monitoring pages: last segment of the path, and label.
    monitoring: Vec<(&'static str, &'static str)>,
    hostname: Option<HostnameResponse>,
    permission: PermissionCheck,
    problem: Option<String>,
}

impl Page {
    /// Returns whether the status is changing, so that the page reloads.
    fn is_changing(&self) -> bool {
        !self.project.status.is_settled()
    }

    fn can(&self, action: &str) -> bool {
        let command = match action {
            "pause" => Command::Pause,
            "restore" => Command::Restore,
            "cancel" => Command::CancelRestore,
            _ => Command::Restart,
        };
        command.fits(self.project.status)
    }

    fn can_be_deleted(&self) -> bool {
        !matches!(
            self.project.status,
            Status::Pausing | Status::GoingDown | Status::Removed
        )
    }

    fn is_deleted(&self) -> bool {
        matches!(self.project.status, Status::GoingDown | Status::Removed)
    }
}

async fn show(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    PageResponse::page(&load(&visitor, &reference, false, None).await?)
}

/// Shows the API keys in plain text. They are only in the response to the form.
async fn reveal_keys(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    let mut page = load(&visitor, &reference, true, None).await?;
    page.layout = page.layout.at_path(&format!("/projects/{reference}"));
    PageResponse::page(&page)
}

/// Loads the page. `problem` is the message of a rejected action.
pub(super) async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    reveal: bool,
    problem: Option<String>,
) -> Result<Page, Error> {
    let changes = live::address(visitor, reference, Followed::Project).await?;
    let project = ProjectResponse::load(visitor, reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}{rest}");
    let can_connect = visitor.check("GET", &at("/config/database/pooler")).await?;
    let can_list_keys = visitor.check("GET", &at("/api-keys")).await?;
    let can_reveal_keys = visitor
        .check_query("GET", &at("/api-keys"), "reveal=true")
        .await?;
    let permission = visitor.check("DELETE", &at("")).await?;
    let created = Timestamp::new(project.created_at, visitor.context.clock.now());
    let mut page = Page {
        layout: visitor.layout(),
        changes,
        created,
        cause: None,
        can_connect,
        strings: None,
        can_list_keys,
        can_reveal_keys,
        keys: Vec::new(),
        revealed: reveal,
        services: Vec::new(),
        development: permitted_pages(visitor, reference, &DEVELOPMENT).await?,
        monitoring: permitted_pages(visitor, reference, &MONITORING).await?,
        hostname: None,
        permission,
        problem,
        project,
    };
    if page.is_deleted() {
        return Ok(page);
    }
    if visitor.check("GET", &at("/health")).await?.is_allowed() {
        let path = at("/health?services=db,rest,auth,storage,realtime&timeout_ms=500");
        let health = unless_rejected(visitor.get::<Vec<HealthEntry>>(&path).await)?;
        for health in health.unwrap_or_default() {
            let service = SERVICES.iter().find(|(name, _)| *name == health.name);
            match service {
                Some((_, label)) => page.services.push(ServiceLine { label, health }),
                None => page.cause = health.error,
            }
        }
    }
    if page.can_connect.is_allowed() {
        let poolers = unless_rejected(
            visitor
                .get::<Vec<ProxyAddress>>(&at("/config/database/pooler"))
                .await,
        )?
        .unwrap_or_default();
        let published = visitor.context.control_settings.databases.as_ref();
        let strings = |pooler: ProxyAddress| {
            let port = published.map_or(pooler.db_port, |published| published.port);
            let host = &page.project.database.host;
            ConnectionStrings::new(reference.as_str(), host, port, pooler)
        };
        page.strings = poolers.into_iter().next().map(strings);
    }
    if page.can_list_keys.is_allowed() {
        let path = at(if reveal {
            "/api-keys?reveal=true"
        } else {
            "/api-keys"
        });
        page.keys = unless_rejected(visitor.get(&path).await)?.unwrap_or_default();
    }
    let path = at("/config/custom-hostname");
    if visitor.check("GET", &path).await?.is_allowed() {
        page.hostname = unless_rejected(visitor.get(&path).await)?;
    }
    Ok(page)
}

/// A page: last segment of its path, label, and the operation that it needs.
type LinkedPage = (&'static str, &'static str, &'static str);

/// Pages on settings, backups, branches, functions, approvals and agents.
const DEVELOPMENT: [LinkedPage; 6] = [
    ("settings", "Settings", "/v1/projects/{ref}/config/document"),
    ("backups", "Backups", "/v1/projects/{ref}/database/backups"),
    ("branches", "Branches", "/v1/projects/{ref}/branches"),
    ("functions", "Functions", "/v1/projects/{ref}/functions"),
    ("approvals", "Approvals", "/v1/projects/{ref}/approvals"),
    ("agents", "Connect an agent", "/v1/projects/{ref}"),
];

/// Pages on logs and events.
const MONITORING: [LinkedPage; 6] = [
    (
        "logs",
        "Logs",
        "/v1/projects/{ref}/analytics/endpoints/logs",
    ),
    (
        "usage",
        "Usage",
        "/v1/projects/{ref}/analytics/endpoints/usage.api-counts",
    ),
    (
        "ingest-keys",
        "Ingest keys",
        "/v1/projects/{ref}/analytics/ingest-keys",
    ),
    (
        "log-drains",
        "Log drains",
        "/v1/projects/{ref}/analytics/log-drains/health",
    ),
    (
        "webhooks",
        "Webhooks",
        "/v2/projects/{ref}/webhooks/endpoints",
    ),
    (
        "database-calls",
        "Database calls",
        "/v1/projects/{ref}/database/calls",
    ),
];

/// Returns path and label of the pages that the visitor may see.
async fn permitted_pages(
    visitor: &Visitor,
    reference: &ProjectRef,
    pages: &[LinkedPage],
) -> Result<Vec<(&'static str, &'static str)>, Error> {
    let mut permitted = Vec::new();
    for (page, label, operation) in pages {
        let path = operation.replace("{ref}", reference.as_str());
        if visitor.check("GET", &path).await?.is_allowed() {
            permitted.push((*page, *label));
        }
    }
    Ok(permitted)
}
