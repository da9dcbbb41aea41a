//! Operations on the settings of a project's Data API.

use std::sync::Arc;

use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::{
        api_keys,
        services::rest::{self, RestSettings, RestSettingsUpdate},
    },
    platform::{
        access::{
            Access, Caller, CallerRelation, OauthScope as S, Permission as P, Project, RequestView,
            User, decide, needs,
        },
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the Data API's settings.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE];

/// The access that the JWT secret needs.
static SECRET: Access = needs(
    &[&[P::DataApiConfigRead, P::DataApiConfigSecretRead]],
    S::RestRead,
);

static GET: Endpoint = Endpoint {
    id: "v1-get-postgrest-service-config",
    summary: "Get the PostgREST configuration",
    tag: Tag::Rest,
    method: Verb::Get,
    path: "/v1/projects/{ref}/postgrest",
    aliases: &[],
    access: needs(
        &[
            &[P::DataApiConfigRead],
            &[P::DataApiConfigRead, P::DataApiConfigSecretRead],
        ],
        S::RestRead,
    ),
    limit: &STANDARD,
    handler: || mount(get),
};

/// Defaults of PostgREST for its sessions with the database, which no setting changes, in seconds.
pub(super) const POOL_ACQUISITION_SECS: u32 = 10;
pub(super) const POOL_LIFETIME_SECS: u32 = 1800;
pub(super) const POOL_IDLE_SECS: u32 = 30;

/// Settings of a Data API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1PostgrestConfigResponse")]
struct RestConfig {
    /// Exposed schemas, separated by commas. Empty: the Data API is off.
    db_schema: String,
    /// Largest number of rows in a response.
    max_rows: u32,
    /// Further schemas of the search path, separated by commas.
    db_extra_search_path: String,
    /// Sessions with the database. `null`: chosen by the server.
    db_pool: Option<u32>,
    /// Seconds to wait for a session.
    db_pool_acquisition_timeout: u32,
    /// Seconds after which a session ends.
    db_pool_max_lifetime: u32,
    /// Seconds without use after which a session ends.
    db_pool_max_idletime: u32,
}

impl From<RestSettings> for RestConfig {
    fn from(settings: RestSettings) -> Self {
        Self {
            db_schema: settings.db_schema,
            max_rows: settings.max_rows,
            db_extra_search_path: settings.db_extra_search_path,
            db_pool: settings.db_pool,
            db_pool_acquisition_timeout: POOL_ACQUISITION_SECS,
            db_pool_max_lifetime: POOL_LIFETIME_SECS,
            db_pool_max_idletime: POOL_IDLE_SECS,
        }
    }
}

/// Settings of a Data API, with the secret of the legacy keys. No `Debug`, because it contains the
/// secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PostgrestConfigWithJWTSecretResponse")]
struct RestConfigWithSecret {
    #[serde(flatten)]
    config: RestConfig,
    /// The secret that signs legacy keys, if the caller may read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_secret: Option<String>,
}

async fn get(
    project: Project,
    context: ApiContext,
    user: User,
    relation: CallerRelation,
) -> Result<Json<RestConfigWithSecret>, Error> {
    let config = rest::get(&context, &project).await?.into();
    let caller = Caller::User(user.into());
    let reveals = decide(&caller, &SECRET, &RequestView::default(), relation).is_ok();
    let jwt_secret = if reveals {
        let secret = api_keys::jwt_secret(&context, &project).await?;
        Some(secret.expose_secret().to_owned())
    } else {
        None
    };
    Ok(Json(RestConfigWithSecret { config, jwt_secret }))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-postgrest-service-config",
    summary: "Update the PostgREST configuration",
    tag: Tag::Rest,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/postgrest",
    aliases: &[],
    access: needs(&[&[P::DataApiConfigWrite]], S::RestWrite),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"db_schema": "public", "max_rows": 500}"#),
};

/// A change of settings. Absent fields stay as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "V1UpdatePostgrestConfigBody")]
struct RestConfigBody {
    /// Exposed schemas, separated by commas. An empty text switches the Data API off.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    db_schema: Option<String>,
    /// Largest number of rows in a response.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "u32", range(min = 0, max = 1_000_000))]
    max_rows: Option<u32>,
    /// Further schemas of the search path, separated by commas.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "String")]
    db_extra_search_path: Option<String>,
    /// Sessions with the database.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "u32", range(min = 0, max = 1000))]
    db_pool: Option<u32>,
}

/// Reads a field that may be absent, but not `null`.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(body): Json<RestConfigBody>,
) -> Result<Json<RestConfig>, Error> {
    let change = RestSettingsUpdate {
        db_schema: body.db_schema,
        max_rows: body.max_rows,
        db_extra_search_path: body.db_extra_search_path,
        db_pool: body.db_pool.map(Some),
    };
    audit.answer_with(|settings: &RestSettings| Json(RestConfig::from(settings.clone())).respond());
    let settings = rest::update(&context, &project, change, &audit).await?;
    Ok(Json(settings.into()))
}
