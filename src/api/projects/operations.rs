//! Operations on projects.

use std::{sync::Arc, time::Duration};

use gantry_base::ids::OrgSlug;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize};

use super::{ProjectDetail, ProjectRefResponse, ProjectSummary, health};
use crate::{
    api::{context::ApiContext, projects},
    control::{
        fleet::placement,
        projects::{
            Command, InstanceSize, held,
            lifecycle::{self, RestoreVersions},
            parameters::{self, Change, How, Settings},
            regions::{Continent, RegionsInfo},
            request::{CreateRequest, secret},
        },
    },
    platform::{
        access::{OauthScope as S, Organization, Permission as P, Project, User, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Query, Tag, Verb,
            input::QueryWithLists,
            mount,
            output::{Created, OkEmpty, PrerenderedJson},
        },
        names,
        rate_limits::{STANDARD, STANDARD_BY_BODY},
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &CREATE,
    &REGIONS,
    &GET,
    &UPDATE,
    &DELETE,
    &PAUSE,
    &RESTORE_VERSIONS,
    &RESTORE,
    &CANCEL_RESTORE,
    &RESTART,
    &HEALTH,
    &UPDATE_PASSWORD,
    &GET_SETTINGS,
    &REPLACE_SETTINGS,
    &CHANGE_SETTINGS,
    &super::listing::LIST_OF_ORGANIZATION,
    &super::v2::LIST_OF_ORGANIZATION,
];

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-projects",
    summary: "List all projects",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects",
    aliases: &[],
    access: needs(&[&[P::ProjectsRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(
    user: User,
    context: ApiContext,
) -> Result<PrerenderedJson<Vec<ProjectDetail>>, Error> {
    projects::list(&context, &user).await
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-a-project",
    summary: "Create a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects",
    aliases: &[],
    access: needs(&[&[P::OrganizationProjectsCreate]], S::ProjectsWrite),
    limit: &STANDARD_BY_BODY,
    handler: || {
        mount(create).sample(r#"{"name": "first", "organization_slug": "{{GANTRY_ORG}}", "db_pass": "correct horse battery staple"}"#)
    },
};

async fn create(
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateRequest>,
    organization: Organization,
) -> Result<Created<ProjectSummary>, Error> {
    let new = request.check(
        context.driver.engines(),
        context.control_settings.new_table_grants,
        &placement::available_regions(&context.fleet.nodes()),
    )?;
    Ok(Created(
        projects::create(&context, &organization, new, &audit).await?,
    ))
}

static REGIONS: Endpoint = Endpoint {
    id: "v1-get-available-regions",
    summary: "List the regions a project can be created in",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/available-regions",
    aliases: &[],
    access: needs(&[], S::OrganizationsRead),
    limit: &STANDARD,
    handler: || mount(available_regions).sample_query("?organization_slug={{GANTRY_ORG}}"),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct RegionsQuery {
    #[expect(
        dead_code,
        reason = "required by the contract; every organization has the same regions here"
    )]
    organization_slug: OrgSlug,
    continent: Option<Continent>,
    #[expect(dead_code, reason = "every region has every size here")]
    desired_instance_size: Option<InstanceSize>,
}

async fn available_regions(
    context: ApiContext,
    Query(query): Query<RegionsQuery>,
) -> Result<Json<RegionsInfo>, Error> {
    let regions = placement::available_regions(&context.fleet.nodes());
    Ok(Json(regions.info(query.continent)))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-project",
    summary: "Get a project",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(project: Project, context: ApiContext) -> Result<Json<ProjectDetail>, Error> {
    Ok(Json(projects::get(&context, &project).await?))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-a-project",
    summary: "Rename a project",
    tag: Tag::Projects,
    method: Verb::Patch,
    path: "/v1/projects/{ref}",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"name": "renamed"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1UpdateProjectBody")]
struct UpdateRequest {
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateRequest>,
) -> Result<Json<ProjectRefResponse>, Error> {
    names::check("name", &request.name, 256)?;
    Ok(Json(
        projects::rename(&context, &project, &request.name, &audit).await?,
    ))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-a-project",
    summary: "Delete a project",
    tag: Tag::Projects,
    method: Verb::Delete,
    path: "/v1/projects/{ref}",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(delete).destructive("deletes the project"),
};

async fn delete(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<ProjectRefResponse>, Error> {
    Ok(Json(projects::remove(&context, &project, &audit).await?))
}

static PAUSE: Endpoint = Endpoint {
    id: "v1-pause-a-project",
    summary: "Pause a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/pause",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(pause).destructive("pauses the project"),
};

async fn pause(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    lifecycle::command(&context, &project, Command::Pause, &audit)
        .await
        .map(|()| OkEmpty)
}

static RESTORE_VERSIONS: Endpoint = Endpoint {
    id: "v1-list-available-restore-versions",
    summary: "List what a paused project can be restored with",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/restore",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(restore_versions),
};

async fn restore_versions(
    project: Project,
    context: ApiContext,
) -> Result<Json<RestoreVersions>, Error> {
    Ok(Json(lifecycle::restore_versions(&context, &project).await?))
}

static RESTORE: Endpoint = Endpoint {
    id: "v1-restore-a-project",
    summary: "Restore a paused or removed project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/restore",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(restore),
};

async fn restore(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    if held::is_held(&context, project.id).await? {
        held::restore(&context, &project, &audit).await?;
    } else {
        lifecycle::command(&context, &project, Command::Restore, &audit).await?;
    }
    Ok(OkEmpty)
}

static CANCEL_RESTORE: Endpoint = Endpoint {
    id: "v1-cancel-a-project-restoration",
    summary: "Cancel the restoration of a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/restore/cancel",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(cancel_restore),
};

async fn cancel_restore(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    lifecycle::command(&context, &project, Command::CancelRestore, &audit)
        .await
        .map(|()| OkEmpty)
}

static RESTART: Endpoint = Endpoint {
    id: "v1-restart-a-project",
    summary: "Restart a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/restart",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(restart),
};

async fn restart(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    lifecycle::command(&context, &project, Command::Restart, &audit)
        .await
        .map(|()| OkEmpty)
}

static HEALTH: Endpoint = Endpoint {
    id: "v1-get-services-health",
    summary: "Get the health of a project's services",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/health",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(services_health).sample_query("?services=db"),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct HealthQuery {
    /// Services to ask: comma separated, or once for each.
    #[serde(deserialize_with = "comma_separated")]
    services: Vec<health::Service>,
    /// How long to wait, in milliseconds.
    #[serde(default = "one_second")]
    #[schemars(range(min = 0, max = 10_000))]
    timeout_ms: u64,
}

fn one_second() -> u64 {
    1000
}

/// Services at most in one question: the contract has eight.
const SERVICES_MAX: usize = 8;

fn comma_separated<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<health::Service>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .take(SERVICES_MAX + 1);
    names
        .map(|name| health::Service::deserialize(serde::de::value::StrDeserializer::new(name)))
        .collect()
}

async fn services_health(
    project: Project,
    context: ApiContext,
    QueryWithLists(query): QueryWithLists<HealthQuery>,
) -> Result<Json<Vec<health::ServiceHealth>>, Error> {
    if !(1..=SERVICES_MAX).contains(&query.services.len()) {
        return Err(Error::invalid(
            "services",
            "expected one to eight of the services",
        ));
    }
    if query.timeout_ms > 10_000 {
        return Err(Error::invalid("timeout_ms", "expected 0 to 10000"));
    }
    Ok(Json(
        health::check(
            &context,
            &project,
            &query.services,
            Duration::from_millis(query.timeout_ms),
        )
        .await?,
    ))
}

static UPDATE_PASSWORD: Endpoint = Endpoint {
    id: "v1-update-database-password",
    summary: "Change the database password",
    tag: Tag::Database,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/database/password",
    aliases: &[],
    access: needs(&[&[P::DatabaseConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(update_password)
            .destructive("sets the password of the database")
            .without_dry_run()
            .sample(r#"{"password": "another horse battery staple"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1UpdatePasswordBody")]
struct PasswordRequest {
    /// The new password of the role `postgres`.
    #[serde(deserialize_with = "secret")]
    #[schemars(with = "String", length(min = 4))]
    password: SecretString,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1UpdatePasswordResponse")]
struct PasswordChanged {
    message: &'static str,
}

async fn update_password(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<PasswordRequest>,
) -> Result<Json<PasswordChanged>, Error> {
    let bytes = request.password.expose_secret();
    if bytes.chars().count() < 4 || bytes.len() > 256 {
        return Err(Error::invalid(
            "password",
            "expected at least 4 characters, at most 256 bytes",
        ));
    }
    let done = || {
        Json(PasswordChanged {
            message: "The password was changed",
        })
    };
    audit.answer(done);
    lifecycle::set_password(&context, &project, request.password, &audit).await?;
    Ok(done())
}

static GET_SETTINGS: Endpoint = Endpoint {
    id: "v1-get-postgres-config",
    summary: "Get the settings of a project's server",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/database/postgres",
    aliases: &[],
    access: needs(&[&[P::DatabaseConfigRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_settings),
};

async fn get_settings(project: Project, context: ApiContext) -> Result<Json<Settings>, Error> {
    Ok(Json(parameters::get(&context, &project).await?))
}

static REPLACE_SETTINGS: Endpoint = Endpoint {
    id: "v1-update-postgres-config",
    summary: "Replace the settings of a project's server",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/config/database/postgres",
    aliases: &[],
    access: needs(&[&[P::DatabaseConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(replace_settings)
            .answers_after_change()
            .sample(r#"{"work_mem": "8MB"}"#)
    },
};

async fn replace_settings(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<Change>,
) -> Result<Json<Settings>, Error> {
    Ok(Json(
        parameters::change(&context, &project, change, How::Replace, &audit).await?,
    ))
}

static CHANGE_SETTINGS: Endpoint = Endpoint {
    id: "v1-patch-postgres-config",
    summary: "Change some settings of a project's server",
    tag: Tag::Database,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/database/postgres",
    aliases: &[],
    access: needs(&[&[P::DatabaseConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(change_settings)
            .answers_after_change()
            .sample(r#"{"statement_timeout": "30s"}"#)
    },
};

async fn change_settings(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(change): Json<Change>,
) -> Result<Json<Settings>, Error> {
    Ok(Json(
        parameters::change(&context, &project, change, How::Merge, &audit).await?,
    ))
}
