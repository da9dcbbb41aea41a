//! Operations on the keys that sign tokens of a project's users.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    api::context::ApiContext,
    control::api_keys::rotation::{self, NewSigningKey, SigningAlgorithm, SigningKeyView},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, PathId, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
    proxy::accepted_keys::SigningKeyState,
};

/// Endpoints of signing keys.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &CREATE,
    &GET_LEGACY,
    &CREATE_LEGACY,
    &DELETE,
    &GET,
    &UPDATE,
];

static LIST: Endpoint = Endpoint {
    id: "v1-get-project-signing-keys",
    summary: "List a project's signing keys",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/signing-keys",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysRead]], S::SecretsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SigningKeysResponse")]
struct SigningKeyList {
    keys: Vec<SigningKeyView>,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<SigningKeyList>, Error> {
    let keys = rotation::signing_keys(&context, &project).await?;
    Ok(Json(SigningKeyList { keys }))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-project-signing-key",
    summary: "Create a signing key",
    tag: Tag::Auth,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/auth/signing-keys",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"algorithm": "ES256"}"#),
};

/// State of a new key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum NewSigningKeyState {
    InUse,
    #[default]
    Standby,
}

/// No `Debug`, because it may contain a private key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateSigningKeyBody")]
struct CreateSigningKeyRequest {
    algorithm: SigningAlgorithm,
    #[serde(default)]
    status: NewSigningKeyState,
    /// A private key to import (RFC 7517). Its `kid`, a UUID, becomes the id.
    #[schemars(with = "Option<std::collections::BTreeMap<String, Value>>")]
    private_jwk: Option<Value>,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateSigningKeyRequest>,
) -> Result<Created<SigningKeyView>, Error> {
    let imported = match request.private_jwk {
        None => None,
        Some(jwk) => Some((imported_id(&jwk)?, jwk)),
    };
    let new = NewSigningKey {
        algorithm: request.algorithm,
        is_in_use: request.status == NewSigningKeyState::InUse,
        imported,
    };
    audit.answer_with(|key: &SigningKeyView| Created(key).respond());
    let key = rotation::create_signing_key(&context, &project, new, &audit).await?;
    Ok(Created(key))
}

/// Returns the id of an imported key. Checks the members that say its use.
fn imported_id(jwk: &Value) -> Result<Option<Uuid>, Error> {
    let is_for_signatures = jwk.get("use").is_none_or(|usage| usage == "sig");
    let operations = jwk.get("key_ops").is_none_or(|operations| {
        operations == &json!(["sign", "verify"]) || operations == &json!(["verify", "sign"])
    });
    if !is_for_signatures || !operations {
        return Err(Error::invalid(
            "private_jwk",
            "must be a key with use sig, and key_ops sign and verify",
        ));
    }
    let Some(kid) = jwk.get("kid") else {
        return Ok(None);
    };
    let id = kid.as_str().and_then(|kid| Uuid::try_parse(kid).ok());
    let id = id.ok_or_else(|| Error::invalid("private_jwk.kid", "Invalid UUID"))?;
    Ok(Some(id))
}

static GET_LEGACY: Endpoint = Endpoint {
    id: "v1-get-legacy-signing-key",
    summary: "Get the legacy signing key",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/signing-keys/legacy",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysRead]], S::SecretsRead),
    limit: &STANDARD,
    handler: || mount(get_legacy),
};

async fn get_legacy(project: Project, context: ApiContext) -> Result<Json<SigningKeyView>, Error> {
    let key = rotation::legacy_signing_key(&context, &project).await?;
    Ok(Json(key))
}

static CREATE_LEGACY: Endpoint = Endpoint {
    id: "v1-create-legacy-signing-key",
    summary: "Create a signing key from the legacy JWT secret",
    tag: Tag::Auth,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/auth/signing-keys/legacy",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(create_legacy),
};

async fn create_legacy(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Created<SigningKeyView>, Error> {
    audit.answer_with(|key: &SigningKeyView| Created(key).respond());
    let key = rotation::create_legacy_signing_key(&context, &project, &audit).await?;
    Ok(Created(key))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-project-signing-key",
    summary: "Get a signing key",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/signing-keys/{id}",
    aliases: &[],
    access: pat_only(&[&[P::AuthSigningKeysRead]]),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<SigningKeyView>, Error> {
    let key = rotation::signing_key(&context, &project, id).await?;
    Ok(Json(key))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-project-signing-key",
    summary: "Update a signing key",
    tag: Tag::Auth,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/auth/signing-keys/{id}",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"status": "in_use"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UpdateSigningKeyBody")]
struct UpdateSigningKeyRequest {
    status: SigningKeyState,
}

async fn update(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateSigningKeyRequest>,
) -> Result<Json<SigningKeyView>, Error> {
    audit.answer_with(|key: &SigningKeyView| Json(key).respond());
    let key = rotation::update_signing_key(&context, &project, id, request.status, &audit).await?;
    Ok(Json(key))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-remove-project-signing-key",
    summary: "Remove a signing key",
    tag: Tag::Auth,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/config/auth/signing-keys/{id}",
    aliases: &[],
    access: needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<SigningKeyView>, Error> {
    audit.answer_with(|key: &SigningKeyView| Json(key).respond());
    let key = rotation::remove_signing_key(&context, &project, id, &audit).await?;
    Ok(Json(key))
}
