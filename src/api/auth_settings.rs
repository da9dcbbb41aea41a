//! Operations on the settings of a project's Auth service.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::context::ApiContext,
    base::error::Error,
    data_plane::{
        auth_settings,
        auth_settings::catalog::{AUTH_SETTINGS, AuthSetting, NullEffect, TextForm, ValueType},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the Auth settings.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE];

static GET: Endpoint = Endpoint {
    id: "v1-get-auth-service-config",
    summary: "Get a project's Auth configuration",
    tag: Tag::Auth,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/auth",
    aliases: &[],
    access: needs(&[&[P::AuthConfigRead]], S::AuthRead),
    limit: &STANDARD,
    handler: || mount(get),
};

/// Every setting. Secrets are HMAC-SHA256 digests with the project's ref as key.
#[derive(Serialize)]
struct AuthConfig(Map<String, Value>);

impl JsonSchema for AuthConfig {
    fn schema_name() -> Cow<'static, str> {
        "AuthConfigResponse".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for (name, setting) in AUTH_SETTINGS.iter() {
            let is_nullable = setting.null == NullEffect::Unset;
            properties.insert(name.clone(), property(setting, is_nullable));
        }
        let required: Vec<&String> = AUTH_SETTINGS.keys().collect();
        object(&json!({"type": "object", "properties": properties, "required": required}))
    }
}

/// Returns the schema of one setting.
fn property(setting: &AuthSetting, is_nullable: bool) -> Value {
    let mut schema = match setting.value_type {
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::Integer(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        ValueType::Number => json!({"type": "number", "minimum": 0}),
        ValueType::Text(TextForm::OneOf(options)) => json!({"type": "string", "enum": options}),
        ValueType::Text(TextForm::Email) => json!({"type": "string", "format": "email"}),
        ValueType::Text(TextForm::Time) => json!({"type": "string", "format": "date-time"}),
        ValueType::Text(_) => json!({"type": "string"}),
    };
    if is_nullable {
        schema["nullable"] = json!(true);
    }
    schema
}

fn object(schema: &Value) -> Schema {
    Schema::try_from(schema.clone()).unwrap_or_default()
}

async fn get(project: Project, context: ApiContext) -> Result<Json<AuthConfig>, Error> {
    let settings = auth_settings::get(&context, &project).await?;
    Ok(Json(AuthConfig(settings.document(&project.reference))))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-auth-service-config",
    summary: "Update a project's Auth configuration",
    tag: Tag::Auth,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/auth",
    aliases: &[],
    access: needs(&[&[P::AuthConfigWrite, P::ProjectAdminWrite]], S::AuthWrite),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"site_url": "https://app.example.com", "jwt_exp": 3600}"#),
};

/// A change of settings. Absent settings stay as they are. No `Debug`, because it contains secrets.
#[derive(Deserialize)]
struct AuthConfigBody(BTreeMap<String, Value>);

impl JsonSchema for AuthConfigBody {
    fn schema_name() -> Cow<'static, str> {
        "UpdateAuthConfigBody".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for (name, setting) in AUTH_SETTINGS.iter() {
            let is_nullable = setting.null != NullEffect::Rejected;
            if !setting.is_read_only {
                properties.insert(name.clone(), property(setting, is_nullable));
            }
        }
        object(&json!({"type": "object", "properties": properties}))
    }
}

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(body): Json<AuthConfigBody>,
) -> Result<Json<AuthConfig>, Error> {
    let settings = auth_settings::update(&context, &project, body.0, &audit).await?;
    Ok(Json(AuthConfig(settings.document(&project.reference))))
}
