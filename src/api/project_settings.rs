//! Operations on all settings of a project as one document. Specific to Gantry.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    api::context::ApiContext,
    control::project_settings::{
        self, ApplyRequest, Drift, ProjectSettings, RequestedSettings, SettingsPlan,
        SettingsVersion,
    },
    platform::{
        access::{Permission as P, Project, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of documents with the settings of a project.
pub static ENDPOINTS: &[&Endpoint] = &[&EXPORT, &PLAN, &APPLY, &VERSIONS, &DRIFT];

/// Permissions to read every section.
const READ: &[P] = &[
    P::AuthConfigRead,
    P::DataApiConfigRead,
    P::DatabaseConfigRead,
    P::DatabaseNetworkRestrictionsRead,
    P::DatabaseSslConfigRead,
    P::InfraAddOnsRead,
    P::RealtimeConfigRead,
    P::StorageConfigRead,
];
/// Permissions to change every section.
const WRITE: &[P] = &[
    P::AuthConfigWrite,
    P::DataApiConfigWrite,
    P::DatabaseConfigWrite,
    P::DatabaseNetworkRestrictionsWrite,
    P::DatabaseSslConfigWrite,
    P::InfraAddOnsWrite,
    P::ProjectAdminWrite,
    P::RealtimeConfigWrite,
    P::StorageConfigWrite,
];

static EXPORT: Endpoint = Endpoint {
    id: "gantry-export-project-config",
    summary: "Export the settings of a project as a document",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/document",
    aliases: &[],
    access: pat_only(&[READ]),
    limit: &STANDARD,
    handler: || mount(export),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    /// Whether settings with their default are included.
    #[serde(default)]
    all: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ExportedSettings {
    /// Settings by section: `api`, `auth`, `compute`, `database`, `postgres`, `realtime`,
    /// `storage`. Secrets are left out.
    document: Map<String, Value>,
    /// Paths of the secrets that are set.
    secrets: Vec<String>,
}

async fn export(
    project: Project,
    context: ApiContext,
    Query(query): Query<ExportQuery>,
) -> Result<Json<ExportedSettings>, Error> {
    let settings = ProjectSettings::read(&context, &project).await?;
    Ok(Json(ExportedSettings {
        document: settings.document(&project.reference, query.all),
        secrets: settings.secrets(&project.reference),
    }))
}

static PLAN: Endpoint = Endpoint {
    id: "gantry-plan-project-config",
    summary: "Show what a document of settings changes",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/plan",
    aliases: &[],
    access: pat_only(&[READ]),
    limit: &STANDARD,
    handler: || {
        mount(plan)
            .read_only()
            .sample(r#"{"document": {"auth": {"site_url": "https://app.example.com"}}}"#)
    },
};

/// The requested settings. No `Debug`, because they may contain secrets.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PlanProjectConfigBody")]
struct PlanBody {
    /// Settings by section. Those that it does not name stay as they are.
    document: Option<Map<String, Value>>,
    /// Instead of a document: number of the version to return to.
    version: Option<i64>,
}

impl PlanBody {
    fn requested(self) -> Result<RequestedSettings, Error> {
        match (self.document, self.version) {
            (Some(document), None) => Ok(RequestedSettings::Document(document)),
            (None, Some(version)) => Ok(RequestedSettings::Version(version)),
            _ => Err(Error::invalid(
                "document",
                "expected either document or version",
            )),
        }
    }
}

async fn plan(
    project: Project,
    context: ApiContext,
    Json(body): Json<PlanBody>,
) -> Result<Json<SettingsPlan>, Error> {
    let requested = body.requested()?;
    Ok(Json(
        project_settings::plan(&context, &project, &requested).await?,
    ))
}

static APPLY: Endpoint = Endpoint {
    id: "gantry-apply-project-config",
    summary: "Apply a document of settings as a whole",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/apply",
    aliases: &[],
    access: pat_only(&[WRITE]),
    limit: &STANDARD,
    handler: || {
        mount(apply).answers_after_change().without_dry_run().sample(
            r#"{"document": {"auth": {"site_url": "https://app.example.com"}}, "hash": "0f1e2d"}"#,
        )
    },
};

/// The requested settings with the hash of their plan. No `Debug`, because they may contain
/// secrets.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApplyProjectConfigBody")]
struct ApplyBody {
    /// Settings by section. Those that it does not name stay as they are.
    document: Option<Map<String, Value>>,
    /// Instead of a document: number of the version to return to.
    version: Option<i64>,
    /// The hash in the plan of these settings.
    hash: String,
    /// Whether drift is measured from this document from now on.
    #[serde(default)]
    baseline: bool,
}

/// Answers 409 if the settings changed since the plan.
async fn apply(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(body): Json<ApplyBody>,
) -> Result<Json<SettingsPlan>, Error> {
    let ApplyBody {
        document,
        version,
        hash,
        baseline,
    } = body;
    let request = ApplyRequest {
        requested: PlanBody { document, version }.requested()?,
        hash,
        is_baseline: baseline,
    };
    let applied = Box::pin(project_settings::apply(
        &context, &project, &request, &audit,
    ))
    .await?;
    Ok(Json(applied))
}

static VERSIONS: Endpoint = Endpoint {
    id: "gantry-list-project-config-versions",
    summary: "List the changes of a project's settings, newest first",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/versions",
    aliases: &[],
    access: pat_only(&[READ]),
    limit: &STANDARD,
    handler: || mount(versions),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct VersionsQuery {
    /// Number of changes to return, 1 to 100.
    #[serde(default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
    /// Changes with a lower number than this.
    before: Option<i64>,
}

fn whole_page() -> i64 {
    100
}

async fn versions(
    project: Project,
    context: ApiContext,
    Query(query): Query<VersionsQuery>,
) -> Result<Json<Vec<SettingsVersion>>, Error> {
    if !(1..=100).contains(&query.limit) {
        return Err(Error::invalid("limit", "expected 1 to 100"));
    }
    let versions = project_settings::versions(&context, &project, query.before, query.limit);
    Ok(Json(versions.await?))
}

static DRIFT: Endpoint = Endpoint {
    id: "gantry-get-project-config-drift",
    summary: "Compare a project's settings with the document that was applied last",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/drift",
    aliases: &[],
    access: pat_only(&[READ]),
    limit: &STANDARD,
    handler: || mount(drift),
};

async fn drift(project: Project, context: ApiContext) -> Result<Json<Drift>, Error> {
    Ok(Json(project_settings::drift(&context, &project).await?))
}
