//! Operations on the settings of a project's Auth service.

use std::sync::Arc;

use gantry_node::kits::Service;

use super::{ConfigDocument, ConfigUpdate, ConfiguredService};
use crate::{
    api::context::ApiContext,
    control::{
        service_settings::{self, AUTH, ServiceSettings, catalog::SettingsCatalog},
        services::environment,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Output, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the Auth settings.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE];

/// The Auth service.
struct AuthService;

impl ConfiguredService for AuthService {
    const CATALOG: &'static SettingsCatalog = &AUTH;
    const DOCUMENT: &'static str = "AuthConfigResponse";
    const UPDATE: &'static str = "UpdateAuthConfigBody";
}

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

async fn get(
    project: Project,
    context: ApiContext,
) -> Result<Json<ConfigDocument<AuthService>>, Error> {
    let settings = service_settings::get(&context, &project, &AUTH).await?;
    Ok(Json(ConfigDocument::new(
        settings.document(&project.reference),
    )))
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

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<ConfigUpdate<AuthService>>,
) -> Result<Json<ConfigDocument<AuthService>>, Error> {
    let change = &change.settings;
    let reference = project.reference.clone();
    let view =
        move |settings: &ServiceSettings| Json(ConfigDocument::new(settings.document(&reference)));
    let answer = view.clone();
    audit.answer_with(move |settings| answer(settings).respond());
    let settings = environment::update(&context, &project, Service::Auth, change, &audit).await?;
    Ok(view(&settings))
}
