//! Operations on TLS enforcement.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::database_access::restrictions::{self, NetworkRestrictions},
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

pub(super) static GET_SSL: Endpoint = Endpoint {
    id: "v1-get-ssl-enforcement-config",
    summary: "Get whether connections to the database must be encrypted",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/ssl-enforcement",
    aliases: &[],
    access: needs(&[&[P::DatabaseSslConfigRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_ssl),
};

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct SslConfig {
    /// Whether connections to the database must be encrypted.
    database: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SslEnforcementResponse")]
struct SslResponse {
    current_config: SslConfig,
    applied_successfully: bool,
}

impl SslResponse {
    fn new(rules: &NetworkRestrictions) -> Self {
        Self {
            current_config: SslConfig {
                database: rules.tls_required,
            },
            applied_successfully: true,
        }
    }
}

async fn get_ssl(project: Project, context: ApiContext) -> Result<Json<SslResponse>, Error> {
    Ok(Json(SslResponse::new(
        &restrictions::get(&context, &project).await?,
    )))
}

pub(super) static SET_SSL: Endpoint = Endpoint {
    id: "v1-update-ssl-enforcement-config",
    summary: "Set whether connections to the database must be encrypted",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/ssl-enforcement",
    aliases: &[],
    access: needs(&[&[P::DatabaseSslConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(set_ssl).sample(r#"{"requestedConfig": {"database": true}}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "SslEnforcementRequest")]
struct SslRequest {
    requested_config: SslConfig,
}

async fn set_ssl(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<SslRequest>,
) -> Result<Json<SslResponse>, Error> {
    let required = request.requested_config.database;
    restrictions::check_tls(&context, "requestedConfig.database", required)?;
    let alter = |rules: &mut NetworkRestrictions| {
        rules.tls_required = required;
        Ok(())
    };
    let view = |after: &NetworkRestrictions| Json(SslResponse::new(after));
    audit.answer_with(move |change: &(NetworkRestrictions, _)| view(&change.1).respond());
    let (_, after) = restrictions::change(&context, &project, 200, &audit, alter).await?;
    Ok(view(&after))
}
