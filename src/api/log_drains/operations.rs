//! Operations of API v2 on the log drains of a project.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    config,
    drains::{self, DrainDraft, LogDrain},
    progress::{self, DrainHealth},
    settings::{BackendType, Settings},
};
use crate::{
    api::{context::ApiContext, organizations::v2::Envelope},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Tag, Verb,
            input::PathId,
            mount,
            output::{Created, NoContent},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &DELETE, &UPDATE, &HEALTH];

const DRAINS: &str = "/v2/projects/{ref}/analytics/log-drains";
const DRAIN: &str = "/v2/projects/{ref}/analytics/log-drains/{id}";

/// A drain in a response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogDrain")]
struct DrainResource {
    r#type: ResourceType,
    id: Uuid,
    attributes: DrainAttributes,
}

/// The only value of `type`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LogDrainResourceType")]
enum ResourceType {
    LogDrain,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogDrainAttributes")]
struct DrainAttributes {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Settings of the type. Secrets are replaced by `[redacted]`.
    config: Settings,
    backend_type: BackendType,
}

impl From<LogDrain> for DrainResource {
    fn from(drain: LogDrain) -> Self {
        Self {
            r#type: ResourceType::LogDrain,
            id: drain.id,
            attributes: DrainAttributes {
                config: config::redact(drain.backend, &drain.settings),
                name: drain.name,
                description: drain.description,
                backend_type: drain.backend,
            },
        }
    }
}

static LIST: Endpoint = Endpoint {
    id: "v2-list-log-drains",
    summary: "List log drains",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: DRAINS,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigRead]], S::AnalyticsConfigRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(
    project: Project,
    context: ApiContext,
) -> Result<Json<Envelope<Vec<DrainResource>>>, Error> {
    let drains = drains::list(&context.db, &context.settings.sealing, &project).await?;
    Ok(Json(Envelope {
        data: drains.into_iter().map(DrainResource::from).collect(),
    }))
}

static CREATE: Endpoint = Endpoint {
    id: "v2-create-log-drain",
    summary: "Create a log drain",
    tag: Tag::Analytics,
    method: Verb::Post,
    path: DRAINS,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite),
    limit: &STANDARD,
    handler: || {
        mount(create).sample(
            r#"{"data": {"type": "log_drain", "attributes": {"name": "Collector", "backend_type": "webhook", "config": {"url": "https://logs.example.com/ingest", "gzip": true, "headers": {"x-api-key": "abc"}}}}}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateLogDrain")]
struct CreateDrainRequest {
    data: CreateDrainResource,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateLogDrainData")]
struct CreateDrainResource {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: ResourceType,
    attributes: CreateDrainAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateLogDrainAttributes")]
struct CreateDrainAttributes {
    #[schemars(length(min = 1, max = 100))]
    name: String,
    description: Option<String>,
    /// Settings of the type.
    config: Settings,
    backend_type: BackendType,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateDrainRequest>,
) -> Result<Created<Envelope<DrainResource>>, Error> {
    let attributes = request.data.attributes;
    let draft = DrainDraft {
        name: Some(attributes.name),
        description: attributes.description,
        settings: Some(attributes.config),
    };
    let backend = attributes.backend_type;
    let view = |drain: LogDrain| Created(Envelope { data: drain.into() });
    audit.answer_with(move |drain: &LogDrain| view(drain.clone()).respond());
    let drain = drains::create(&context, &project, backend, draft, &audit).await?;
    Ok(view(drain))
}

static UPDATE: Endpoint = Endpoint {
    id: "v2-update-log-drain",
    summary: "Update a log drain",
    tag: Tag::Analytics,
    method: Verb::Put,
    path: DRAIN,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite),
    limit: &STANDARD,
    handler: || {
        mount(update).sample(
            r#"{"data": {"type": "log_drain", "attributes": {"name": "Collector", "backend_type": "webhook"}}}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateLogDrain")]
struct UpdateDrainRequest {
    data: UpdateDrainResource,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateLogDrainData")]
struct UpdateDrainResource {
    #[expect(dead_code, reason = "there is one kind")]
    r#type: ResourceType,
    attributes: UpdateDrainAttributes,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateLogDrainAttributes")]
struct UpdateDrainAttributes {
    #[schemars(length(min = 1, max = 100))]
    name: Option<String>,
    description: Option<String>,
    /// Settings of the type; they replace the earlier ones. `[redacted]` keeps a stored secret, as
    /// long as the destination stays.
    config: Option<Settings>,
    backend_type: BackendType,
}

async fn update(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateDrainRequest>,
) -> Result<Json<Envelope<DrainResource>>, Error> {
    let attributes = request.data.attributes;
    let draft = DrainDraft {
        name: attributes.name,
        description: attributes.description,
        settings: attributes.config,
    };
    let change = (attributes.backend_type, draft);
    let view = |drain: LogDrain| Json(Envelope { data: drain.into() });
    audit.answer_with(move |drain: &LogDrain| view(drain.clone()).respond());
    let drain = drains::update(&context, &project, id, change, &audit).await?;
    Ok(view(drain))
}

static DELETE: Endpoint = Endpoint {
    id: "v2-delete-log-drain",
    summary: "Delete a log drain",
    tag: Tag::Analytics,
    method: Verb::Delete,
    path: DRAIN,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<NoContent, Error> {
    drains::delete(&context, &project, id, &audit).await?;
    Ok(NoContent)
}

static HEALTH: Endpoint = Endpoint {
    id: "gantry-list-log-drain-health",
    summary: "List the state of the deliveries of log drains",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/projects/{ref}/analytics/log-drains/health",
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigRead]], S::AnalyticsConfigRead),
    limit: &STANDARD,
    handler: || mount(health),
};

async fn health(project: Project, context: ApiContext) -> Result<Json<Vec<DrainHealth>>, Error> {
    progress::health(&context.db, &project, context.clock.now())
        .await
        .map(Json)
}
