//! Operations on the settings of a project's Realtime service.

use std::sync::Arc;

use gantry_node::kits::Service;

use super::{ConfigDocument, ConfigUpdate, ConfiguredService};
use crate::{
    api::context::ApiContext,
    control::{
        service_settings::{self, REALTIME, catalog::SettingsCatalog},
        services::environment::{self, realtime},
    },
    platform::{
        access::{Permission as P, Project, pat_only},
        audit::Recorder,
        error::{Context, Error},
        http::{Endpoint, Json, Tag, Verb, mount, output::NoContent},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the Realtime settings.
pub static ENDPOINTS: &[&Endpoint] = &[&GET, &UPDATE, &SHUT_DOWN];

/// The Realtime service.
struct RealtimeService;

impl ConfiguredService for RealtimeService {
    const CATALOG: &'static SettingsCatalog = &REALTIME;
    const DOCUMENT: &'static str = "RealtimeConfigResponse";
    const UPDATE: &'static str = "UpdateRealtimeConfigBody";
}

static GET: Endpoint = Endpoint {
    id: "v1-get-realtime-config",
    summary: "Get a project's Realtime configuration",
    tag: Tag::Realtime,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/realtime",
    aliases: &[],
    access: pat_only(&[&[P::RealtimeConfigRead]]),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    context: ApiContext,
) -> Result<Json<ConfigDocument<RealtimeService>>, Error> {
    let settings = service_settings::get(&context, &project, &REALTIME).await?;
    Ok(Json(ConfigDocument::new(
        settings.document(&project.reference),
    )))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-realtime-config",
    summary: "Update a project's Realtime configuration",
    tag: Tag::Realtime,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/realtime",
    aliases: &[],
    access: pat_only(&[&[P::RealtimeConfigWrite]]),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"max_concurrent_users": 500}"#),
};

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<ConfigUpdate<RealtimeService>>,
) -> Result<NoContent, Error> {
    let change = &change.settings;
    environment::update(&context, &project, Service::Realtime, change, &audit).await?;
    Ok(NoContent)
}

static SHUT_DOWN: Endpoint = Endpoint {
    id: "v1-shutdown-realtime",
    summary: "Shut down a project's Realtime connections",
    tag: Tag::Realtime,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/realtime/shutdown",
    aliases: &[],
    access: pat_only(&[&[P::RealtimeConfigWrite]]),
    limit: &STANDARD,
    handler: || mount(shut_down).without_dry_run(),
};

/// Closes the connections of clients, which then connect again. Without a running service, none is
/// open.
async fn shut_down(project: Project, context: ApiContext) -> Result<NoContent, Error> {
    let doing = "shutting Realtime down";
    let sql = "select 1 from project_upstreams where project_id = $1 and service = 'realtime'";
    let own = context.db.query(sql, &[&project.id.0]).await;
    let upstreams = &context.control_settings.service_proxy.upstreams;
    if upstreams.get(Service::Realtime).is_some() || !own.context(doing)?.is_empty() {
        return Err(Error::Rejected(
            "Realtime runs outside of Gantry; ask its operator to close the connections".into(),
        ));
    }
    realtime::shut_down(&context, &project).await?;
    Ok(NoContent)
}
