//! Operations on API keys.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    api::context::ApiContext,
    control::api_keys::{self, ApiKey, ApiKeyUpdate, KeyRemoval, Kind, NewApiKey},
    platform::{
        access::{AnyOf, Case, OauthScope as S, Permission as P, Project, RequestView, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, PathId, Query, Tag, Verb, mount, output::Created},
        rate_limits::STANDARD,
    },
    proxy::accepted_keys::ClaimsTemplate,
};

/// Endpoints of API keys.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &CREATE,
    &GET_LEGACY,
    &SET_LEGACY,
    &GET,
    &UPDATE,
    &DELETE,
];

fn revealed(asked: &RequestView<'_>) -> bool {
    asked.switched_on("reveal")
}

/// Permissions for reading. Without `reveal`, secret keys are masked.
const READ: &[Case] = &[
    Case {
        when: "`reveal=true`",
        applies: revealed,
        permissions: AnyOf(&[&[P::ApiGatewayKeysRead, P::ApiGatewayKeysSecretRead]]),
    },
    Case::otherwise(AnyOf(&[&[P::ApiGatewayKeysRead]])),
];

/// Permissions for changing and deleting. The response masks the key, unless the caller may read
/// secrets.
const WRITE: &[Case] = &[
    Case {
        when: "`reveal=true`",
        applies: revealed,
        permissions: AnyOf(&[&[P::ApiGatewayKeysWrite, P::ApiGatewayKeysSecretRead]]),
    },
    Case::otherwise(AnyOf(&[&[P::ApiGatewayKeysWrite]])),
];

#[derive(Debug, Deserialize, JsonSchema)]
struct RevealQuery {
    /// Whether secret keys are returned in clear text.
    #[serde(default)]
    reveal: bool,
}

static LIST: Endpoint = Endpoint {
    id: "v1-get-project-api-keys",
    summary: "List the API keys of a project",
    tag: Tag::Secrets,
    method: Verb::Get,
    path: "/v1/projects/{ref}/api-keys",
    aliases: &[],
    access: needs(
        &[
            &[P::ApiGatewayKeysRead],
            &[P::ApiGatewayKeysRead, P::ApiGatewayKeysSecretRead],
        ],
        S::SecretsRead,
    )
    .by_case(READ),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(
    project: Project,
    context: ApiContext,
    Query(query): Query<RevealQuery>,
) -> Result<Json<Vec<ApiKey>>, Error> {
    Ok(Json(
        api_keys::list(&context, &project, query.reveal).await?,
    ))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-project-api-key",
    summary: "Create an API key",
    tag: Tag::Secrets,
    method: Verb::Post,
    path: "/v1/projects/{ref}/api-keys",
    aliases: &[],
    access: needs(&[&[P::ApiGatewayKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"type": "secret", "name": "worker"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateApiKeyBody")]
struct CreateApiKeyRequest {
    #[serde(rename = "type")]
    kind: Kind,
    #[schemars(length(min = 4, max = 64), regex(pattern = r"^[a-z_][a-z0-9_]+$"))]
    name: String,
    #[schemars(length(max = 1024))]
    description: Option<String>,
    secret_jwt_template: Option<ClaimsTemplate>,
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<RevealQuery>,
    Json(request): Json<CreateApiKeyRequest>,
) -> Result<Created<ApiKey>, Error> {
    let CreateApiKeyRequest {
        kind,
        name,
        description,
        secret_jwt_template: template,
    } = request;
    check(Some(&name), description.as_deref(), template.as_ref())?;
    audit.answer_with(|key: &ApiKey| Created(key).respond());
    Ok(Created(
        api_keys::create(
            &context,
            &project,
            NewApiKey {
                kind,
                name,
                description,
                template,
            },
            query.reveal,
            &audit,
        )
        .await?,
    ))
}

/// Maximum characters of a description.
const DESCRIPTION_MAX: usize = 1024;
/// Maximum bytes of a template as JSON. It is sent in a header.
const TEMPLATE_BYTES_MAX: usize = 4096;

fn check(
    name: Option<&str>,
    description: Option<&str>,
    template: Option<&ClaimsTemplate>,
) -> Result<(), Error> {
    let plain = |b: u8| b.is_ascii_lowercase() || b == b'_';
    let named = |name: &str| {
        (4..=64).contains(&name.len())
            && name.bytes().next().is_some_and(plain)
            && name.bytes().all(|b| plain(b) || b.is_ascii_digit())
    };
    if !name.is_none_or(named) {
        return Err(Error::invalid(
            "name",
            "expected 4 to 64 lowercase letters, digits and _, and no digit first",
        ));
    }
    if description.is_some_and(|text| text.chars().count() > DESCRIPTION_MAX) {
        return Err(Error::invalid(
            "description",
            "expected at most 1024 characters",
        ));
    }
    let size = |template: &ClaimsTemplate| {
        serde_json::to_vec(template).map_or(usize::MAX, |json| json.len())
    };
    if template.is_some_and(|template| size(template) > TEMPLATE_BYTES_MAX) {
        return Err(Error::invalid(
            "secret_jwt_template",
            "expected at most 4096 bytes of JSON",
        ));
    }
    Ok(())
}

static GET: Endpoint = Endpoint {
    id: "v1-get-project-api-key",
    summary: "Get an API key",
    tag: Tag::Secrets,
    method: Verb::Get,
    path: "/v1/projects/{ref}/api-keys/{id}",
    aliases: &[],
    access: needs(
        &[
            &[P::ApiGatewayKeysRead],
            &[P::ApiGatewayKeysRead, P::ApiGatewayKeysSecretRead],
        ],
        S::SecretsRead,
    )
    .by_case(READ),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    Query(query): Query<RevealQuery>,
) -> Result<Json<ApiKey>, Error> {
    Ok(Json(
        api_keys::get(&context, &project, id, query.reveal).await?,
    ))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-project-api-key",
    summary: "Update an API key",
    tag: Tag::Secrets,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/api-keys/{id}",
    aliases: &[],
    access: needs(&[&[P::ApiGatewayKeysWrite]], S::SecretsWrite).by_case(WRITE),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"description": "Of the nightly job"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateApiKeyBody")]
#[expect(
    clippy::option_option,
    reason = "an absent field and null are different"
)]
struct UpdateApiKeyRequest {
    #[schemars(length(min = 4, max = 64), regex(pattern = r"^[a-z_][a-z0-9_]+$"))]
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(length(max = 1024), with = "Option<String>")]
    description: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<ClaimsTemplate>")]
    secret_jwt_template: Option<Option<ClaimsTemplate>>,
}

/// Deserializes a present field, even if it is null.
#[expect(
    clippy::option_option,
    reason = "an absent field and null are different"
)]
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

async fn update(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<RevealQuery>,
    Json(request): Json<UpdateApiKeyRequest>,
) -> Result<Json<ApiKey>, Error> {
    let UpdateApiKeyRequest {
        name,
        description,
        secret_jwt_template: template,
    } = request;
    let text = description.as_ref().and_then(Option::as_deref);
    check(
        name.as_deref(),
        text,
        template.as_ref().and_then(Option::as_ref),
    )?;
    audit.answer_with(|key: &ApiKey| Json(key).respond());
    Ok(Json(
        api_keys::update(
            &context,
            &project,
            id,
            ApiKeyUpdate {
                name,
                description,
                template,
            },
            query.reveal,
            &audit,
        )
        .await?,
    ))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-project-api-key",
    summary: "Delete an API key",
    tag: Tag::Secrets,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/api-keys/{id}",
    aliases: &[],
    access: needs(&[&[P::ApiGatewayKeysWrite]], S::SecretsWrite).by_case(WRITE),
    limit: &STANDARD,
    handler: || mount(delete),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct DeleteApiKeyQuery {
    /// Whether the key is returned in clear text.
    #[serde(default)]
    reveal: bool,
    /// Whether the key may be known to a third party. Recorded in the audit log.
    was_compromised: Option<bool>,
    /// Reason for the deletion. Recorded in the audit log.
    #[schemars(length(max = 1024))]
    reason: Option<String>,
}

async fn delete(
    project: Project,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<DeleteApiKeyQuery>,
) -> Result<Json<ApiKey>, Error> {
    let DeleteApiKeyQuery {
        reveal,
        was_compromised,
        reason,
    } = query;
    if reason
        .as_ref()
        .is_some_and(|reason| reason.chars().count() > DESCRIPTION_MAX)
    {
        return Err(Error::invalid("reason", "expected at most 1024 characters"));
    }
    audit.answer_with(|key: &ApiKey| Json(key).respond());
    Ok(Json(
        api_keys::remove(
            &context,
            &project,
            id,
            KeyRemoval {
                was_compromised,
                reason,
            },
            reveal,
            &audit,
        )
        .await?,
    ))
}

/// Whether the legacy keys are enabled.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyApiKeysResponse")]
struct LegacyKeysResponse {
    enabled: bool,
}

static GET_LEGACY: Endpoint = Endpoint {
    id: "v1-get-project-legacy-api-keys",
    summary: "Get whether the legacy API keys are enabled",
    tag: Tag::Secrets,
    method: Verb::Get,
    path: "/v1/projects/{ref}/api-keys/legacy",
    aliases: &[],
    access: needs(&[&[P::ApiGatewayKeysRead]], S::SecretsRead),
    limit: &STANDARD,
    handler: || mount(get_legacy),
};

async fn get_legacy(
    project: Project,
    context: ApiContext,
) -> Result<Json<LegacyKeysResponse>, Error> {
    Ok(Json(LegacyKeysResponse {
        enabled: api_keys::legacy_enabled(&context, &project).await?,
    }))
}

static SET_LEGACY: Endpoint = Endpoint {
    id: "v1-update-project-legacy-api-keys",
    summary: "Enable or disable the legacy API keys",
    tag: Tag::Secrets,
    method: Verb::Put,
    path: "/v1/projects/{ref}/api-keys/legacy",
    aliases: &[],
    access: needs(&[&[P::ApiGatewayKeysWrite]], S::SecretsWrite),
    limit: &STANDARD,
    handler: || mount(set_legacy).sample_query("?enabled=true"),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct SetLegacyQuery {
    /// Whether the legacy keys are to be enabled.
    enabled: bool,
}

async fn set_legacy(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Query(query): Query<SetLegacyQuery>,
) -> Result<Json<LegacyKeysResponse>, Error> {
    let enabled = query.enabled;
    let view = || Json(LegacyKeysResponse { enabled });
    audit.answer(view);
    api_keys::enable_legacy(&context, &project, enabled, &audit).await?;
    Ok(view())
}
