//! Operations on the root key of pgsodium.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::service_settings::pgsodium,
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::NoStore},
        rate_limits::STANDARD,
    },
};

/// Endpoints of pgsodium.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE];

static GET: Endpoint = Endpoint {
    id: "v1-get-pgsodium-config",
    summary: "Get the pgsodium configuration",
    tag: Tag::Secrets,
    method: Verb::Get,
    path: "/v1/projects/{ref}/pgsodium",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::SecretsRead),
    limit: &STANDARD,
    handler: || mount(get),
};

/// The root key: 32 bytes in hex. No `Debug`, because it is a secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PgsodiumConfigResponse")]
struct RootKey {
    root_key: String,
}

async fn get(project: Project, context: ApiContext) -> Result<NoStore<Json<RootKey>>, Error> {
    let key = pgsodium::root_key(&context, &project).await?;
    let root_key = key.expose_secret().to_owned();
    Ok(NoStore(Json(RootKey { root_key })))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-pgsodium-config",
    summary: "Update the pgsodium configuration",
    tag: Tag::Secrets,
    method: Verb::Put,
    path: "/v1/projects/{ref}/pgsodium",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || {
        mount(update).sample(
            r#"{"root_key": "5a7f1c0e9d3b8264aa10cf43e2b96d7881f5c2390b6e4d1c7f8a93025be46d10"}"#,
        )
    },
};

/// No `Debug`, because it is a secret.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "UpdatePgsodiumConfigBody")]
struct RootKeyUpdate {
    /// 32 bytes in hex.
    root_key: String,
}

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<RootKeyUpdate>,
) -> Result<NoStore<Json<RootKey>>, Error> {
    let view = |root_key| NoStore(Json(RootKey { root_key }));
    audit.answer(|| view(change.root_key.clone()));
    pgsodium::set_root_key(&context, &project, &change.root_key, &audit).await?;
    Ok(view(change.root_key))
}
