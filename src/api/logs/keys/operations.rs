//! Operations on the ingest keys of a project. Not part of the contract.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::Key;
use crate::{
    api::{context::ApiContext, logs::keys, path::path_parameters},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Tag, Verb, mount,
            output::{Created, NoStore, OkEmpty},
        },
        rate_limits::STANDARD,
    },
};

const KEYS: &str = "/v1/projects/{ref}/analytics/ingest-keys";

pub(in crate::api::logs) static LIST: Endpoint = Endpoint {
    id: "gantry-list-ingest-keys",
    summary: "List the keys that let others add log lines",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: KEYS,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigRead]], S::AnalyticsConfigRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(project: Project, context: ApiContext) -> Result<Json<Vec<Key>>, Error> {
    keys::list(&context.db, project.id).await.map(Json)
}

pub(in crate::api::logs) static CREATE: Endpoint = Endpoint {
    id: "gantry-create-ingest-key",
    summary: "Make a key that lets others add log lines, shown once",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: KEYS,
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"name": "Vector"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateIngestKey")]
#[serde(deny_unknown_fields)]
struct CreateRequest {
    /// Name of the key.
    #[schemars(length(min = 1, max = 100))]
    name: String,
}

/// A new ingest key.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CreatedIngestKey")]
pub struct CreatedKey {
    /// Fields that are also in the list.
    #[serde(flatten)]
    pub about: Key,
    /// The secret key. It is not shown again.
    pub key: String,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateRequest>,
) -> Result<NoStore<Created<CreatedKey>>, Error> {
    let view = |(about, secret): (Key, SecretString)| {
        NoStore(Created(CreatedKey {
            about,
            key: secret.expose_secret().to_owned(),
        }))
    };
    audit.answer_with(move |created: &(Key, _)| view(created.clone()).respond());
    let created = keys::create(
        &context.db,
        &context.entropy,
        &project,
        &request.name,
        context.clock.now(),
        &audit,
    )
    .await?;
    Ok(view(created))
}

pub(in crate::api::logs) static DELETE: Endpoint = Endpoint {
    id: "gantry-delete-ingest-key",
    summary: "Delete an ingest key",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/analytics/ingest-keys/{key_id}",
    aliases: &[],
    access: needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

path_parameters! {
    /// Id of the key in the path. The query checks that it belongs to the project.
    struct KeyId(i64) from "key_id", else Error::NotFound;
}

async fn delete(
    project: Project,
    KeyId(id): KeyId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    keys::delete(&context.db, &project, id, context.clock.now(), &audit)
        .await
        .map(|()| OkEmpty)
}
