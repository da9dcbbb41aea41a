//! Operations on SSO providers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    api::{context::ApiContext, path::path_parameters},
    control::sso_providers::{self, SsoProvider, SsoProviderUpdate},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
};

/// Endpoints of SSO providers.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &CREATE, &DELETE, &GET, &UPDATE];

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-sso-provider",
    summary: "List SSO providers",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/sso/providers",
    aliases: &[],
    access: needs(&[&[P::AuthConfigRead]], S::AuthRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// The SSO providers of a project.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ListProvidersResponse")]
struct SsoProviderList {
    items: Vec<SsoProvider>,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<SsoProviderList>, Error> {
    let items = sso_providers::list(&context, &project).await?;
    Ok(Json(SsoProviderList { items }))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-a-sso-provider",
    summary: "Create an SSO provider",
    tag: Tag::Auth,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/auth/sso/providers",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || {
        mount(create).announced().sample(
            r#"{"type": "saml", "metadata_url": "https://idp.example.com/metadata", "domains": ["example.com"]}"#,
        )
    },
};

/// A new SSO provider. One of `metadata_xml` and `metadata_url` is required.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateProviderBody")]
struct NewSsoProvider {
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "parsing it checks it")]
    kind: SsoProviderKind,
    #[serde(flatten)]
    properties: SsoProviderUpdate,
}

/// The protocol of an SSO provider.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SsoProviderKind {
    Saml,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(new): Json<NewSsoProvider>,
) -> Result<Created<SsoProvider>, Error> {
    let made = sso_providers::create(&context, &project, &new.properties, &audit).await?;
    Ok(Created(made))
}

path_parameters! {
    /// `{provider_id}` of the path.
    struct ProviderId(Uuid) from "provider_id", else Error::invalid("provider_id", "Invalid UUID");
}

static GET: Endpoint = Endpoint {
    id: "v1-get-a-sso-provider",
    summary: "Get an SSO provider",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}",
    aliases: &[],
    access: needs(&[&[P::AuthConfigRead]], S::AuthRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    ProviderId(id): ProviderId,
    context: ApiContext,
) -> Result<Json<SsoProvider>, Error> {
    let found = sso_providers::get(&context, &project, id).await?;
    Ok(Json(found))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-a-sso-provider",
    summary: "Update an SSO provider",
    tag: Tag::Auth,
    method: Verb::Put,
    path: "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || {
        mount(update)
            .repeatable()
            .sample(r#"{"domains": ["example.com"]}"#)
    },
};

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<SsoProviderUpdate>,
    ProviderId(id): ProviderId,
) -> Result<Json<SsoProvider>, Error> {
    let changed = sso_providers::update(&context, &project, id, &change, &audit).await?;
    Ok(Json(changed))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-a-sso-provider",
    summary: "Delete an SSO provider",
    tag: Tag::Auth,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || mount(delete).announced(),
};

async fn delete(
    project: Project,
    ProviderId(id): ProviderId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<SsoProvider>, Error> {
    let removed = sso_providers::remove(&context, &project, id, &audit).await?;
    Ok(Json(removed))
}
