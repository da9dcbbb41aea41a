//! Operations on other sign-in services. A project accepts their tokens.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    api::{context::ApiContext, path::path_parameters},
    control::third_party_auth::{self, KeySource, ThirdPartyAuth},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
};

/// Endpoints of third-party auth.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &DELETE, &GET];

static LIST: Endpoint = Endpoint {
    id: "v1-list-project-tpa-integrations",
    summary: "List third-party auth integrations",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/third-party-auth",
    aliases: &[],
    access: needs(&[&[P::AuthConfigRead]], S::AuthRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(project: Project, context: ApiContext) -> Result<Json<Vec<ThirdPartyAuth>>, Error> {
    Ok(Json(third_party_auth::list(&context, &project).await?))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-project-tpa-integration",
    summary: "Create a third-party auth integration",
    tag: Tag::Auth,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/auth/third-party-auth",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"oidc_issuer_url": "https://issuer.example.com"}"#),
};

/// The place of public keys: exactly one field is set.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateThirdPartyAuthBody")]
struct CreateThirdPartyAuthRequest {
    /// An issuer with metadata at `/.well-known/openid-configuration`.
    oidc_issuer_url: Option<String>,
    /// The URL of a key set (RFC 7517 §5).
    jwks_url: Option<String>,
    /// A key set. Private keys are rejected.
    custom_jwks: Option<Value>,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateThirdPartyAuthRequest>,
) -> Result<Created<ThirdPartyAuth>, Error> {
    let source = match (
        request.oidc_issuer_url,
        request.jwks_url,
        request.custom_jwks,
    ) {
        (Some(issuer), None, None) => KeySource::Issuer(issuer),
        (None, Some(url), None) => KeySource::Url(url),
        (None, None, Some(keys)) => KeySource::Keys(keys),
        _ => {
            return Err(Error::Rejected(
                "Set exactly one of oidc_issuer_url, jwks_url and custom_jwks".into(),
            ));
        }
    };
    audit.answer_with(|made: &ThirdPartyAuth| Created(made).respond());
    let made = third_party_auth::create(&context, &project, &source, &audit).await?;
    Ok(Created(made))
}

path_parameters! {
    /// `{tpa_id}` of the path.
    struct IntegrationId(Uuid) from "tpa_id", else Error::invalid("tpa_id", "Invalid UUID");
}

static GET: Endpoint = Endpoint {
    id: "v1-get-project-tpa-integration",
    summary: "Get a third-party auth integration",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/third-party-auth/{tpa_id}",
    aliases: &[],
    access: needs(&[&[P::AuthConfigRead]], S::AuthRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    IntegrationId(id): IntegrationId,
    context: ApiContext,
) -> Result<Json<ThirdPartyAuth>, Error> {
    let found = third_party_auth::get(&context, &project, id).await?;
    Ok(Json(found))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-project-tpa-integration",
    summary: "Delete a third-party auth integration",
    tag: Tag::Auth,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/config/auth/third-party-auth/{tpa_id}",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    project: Project,
    IntegrationId(id): IntegrationId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<ThirdPartyAuth>, Error> {
    audit.answer_with(|removed: &ThirdPartyAuth| Json(removed).respond());
    let removed = third_party_auth::remove(&context, &project, id, &audit).await?;
    Ok(Json(removed))
}
