//! Operations on the secrets of a project's functions.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::services::functions::secrets::{self, NewSecret},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Tag, Verb,
            input::LargeJson,
            mount,
            output::{CreatedEmpty, OkEmpty},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of secrets.
pub(super) static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &DELETE];

/// Secrets or names in one request.
const ITEMS_MAX: usize = 100;

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-secrets",
    summary: "List secrets",
    tag: Tag::Secrets,
    method: Verb::Get,
    path: "/v1/projects/{ref}/secrets",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsSecretsRead]], S::SecretsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// A secret without its value.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SecretResponse")]
struct SecretDescription {
    name: String,
    /// SHA-256 of the value, in hex.
    value: String,
    /// Time of the last change. Variables of the platform have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
}

async fn list(
    project: Project,
    context: ApiContext,
) -> Result<Json<Vec<SecretDescription>>, Error> {
    let stored = secrets::list(&context, &project).await?;
    let describe = |secret: secrets::SecretEntry| SecretDescription {
        name: secret.name,
        value: hex::encode(secret.digest),
        updated_at: secret
            .updated_at
            .map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
    };
    Ok(Json(stored.into_iter().map(describe).collect()))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-bulk-create-secrets",
    summary: "Create secrets",
    tag: Tag::Secrets,
    method: Verb::Post,
    path: "/v1/projects/{ref}/secrets",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsSecretsWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"[{"name": "GREETING", "value": "hello"}]"#),
};

/// A secret to store. No `Debug`, because it contains the value.
#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
struct SecretBody {
    #[schemars(length(max = 256))]
    name: String,
    #[schemars(length(max = 24_576))]
    value: String,
}

/// Secrets to store.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CreateSecretBody")]
struct SecretsBody(Vec<SecretBody>);

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    body: LargeJson<SecretsBody>,
) -> Result<CreatedEmpty, Error> {
    let LargeJson { value, permit } = body;
    check_count(value.0.len())?;
    let of = |secret: SecretBody| NewSecret {
        name: secret.name,
        value: secret.value.into(),
    };
    let all: Vec<NewSecret> = value.0.into_iter().map(of).collect();
    secrets::set(&context, &project, &all, &audit).await?;
    drop(permit);
    Ok(CreatedEmpty)
}

fn check_count(count: usize) -> Result<(), Error> {
    if count > ITEMS_MAX {
        let text = format!("Too big: expected array to have <={ITEMS_MAX} items");
        return Err(Error::invalid("body", text));
    }
    Ok(())
}

static DELETE: Endpoint = Endpoint {
    id: "v1-bulk-delete-secrets",
    summary: "Delete secrets",
    tag: Tag::Secrets,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/secrets",
    aliases: &[],
    access: needs(&[&[P::EdgeFunctionsSecretsWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(delete).sample(r#"["GREETING"]"#),
};

/// Names of secrets to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DeleteSecretsBody")]
struct SecretNames(Vec<String>);

async fn delete(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(names): Json<SecretNames>,
) -> Result<OkEmpty, Error> {
    check_count(names.0.len())?;
    secrets::remove(&context, &project, &names.0, &audit).await?;
    Ok(OkEmpty)
}
