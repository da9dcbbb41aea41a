//! Operations on the settings of a project's Storage service.

use std::sync::Arc;

use gantry_node::kits::Service;

use super::{ConfigDocument, ConfigUpdate, ConfiguredService};
use crate::{
    api::context::ApiContext,
    control::{
        service_settings::{self, STORAGE, catalog::SettingsCatalog},
        services::environment,
    },
    platform::{
        access::{Permission as P, Project, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the Storage settings.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE];

/// The Storage service.
struct StorageService;

impl ConfiguredService for StorageService {
    const CATALOG: &'static SettingsCatalog = &STORAGE;
    const DOCUMENT: &'static str = "StorageConfigResponse";
    const UPDATE: &'static str = "UpdateStorageConfigBody";
}

static GET: Endpoint = Endpoint {
    id: "v1-get-storage-config",
    summary: "Get a project's Storage configuration",
    tag: Tag::Storage,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/storage",
    aliases: &[],
    access: pat_only(&[&[P::StorageConfigRead]]),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    context: ApiContext,
) -> Result<Json<ConfigDocument<StorageService>>, Error> {
    let settings = service_settings::get(&context, &project, &STORAGE).await?;
    Ok(Json(ConfigDocument::new(
        settings.document(&project.reference),
    )))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-storage-config",
    summary: "Update a project's Storage configuration",
    tag: Tag::Storage,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/storage",
    aliases: &[],
    access: pat_only(&[&[P::StorageConfigWrite]]),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"fileSizeLimit": 104857600}"#),
};

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<ConfigUpdate<StorageService>>,
) -> Result<OkEmpty, Error> {
    let change = &change.settings;
    environment::update(&context, &project, Service::Storage, change, &audit).await?;
    Ok(OkEmpty)
}
