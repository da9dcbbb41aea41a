//! Operations on connection pooling. Connections are not pooled: each one is a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    base::{error::Error, ids::ProjectRef},
    data_plane::{
        postgres_proxy::{PROJECT_CONNECTIONS_MAX, PublishedAddress},
        projects,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

pub(super) static GET: Endpoint = Endpoint {
    id: "v1-get-pooler-config",
    summary: "Get the connection settings of the database",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/database/pooler",
    aliases: &[],
    access: needs(&[&[P::DatabasePoolingConfigRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum DatabaseType {
    Primary,
}

/// Assignment of server connections to client sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum PoolMode {
    /// A server connection serves transactions of several clients. Not supported.
    Transaction,
    /// A server connection serves one client session.
    Session,
}

/// Connection settings of a database.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SupavisorConfigResponse")]
struct PoolerConfig {
    identifier: ProjectRef,
    database_type: DatabaseType,
    is_using_scram_auth: bool,
    db_user: String,
    db_host: String,
    db_port: u16,
    db_name: &'static str,
    connection_string: String,
    /// Deprecated spelling of `connection_string`.
    #[serde(rename = "connectionString")]
    deprecated_connection_string: String,
    default_pool_size: Option<u32>,
    max_client_conn: Option<usize>,
    pool_mode: PoolMode,
}

/// Returns a connection string with a placeholder for the password.
fn connection_string(project: &ProjectRef, published: &PublishedAddress) -> String {
    let PublishedAddress { host, port, .. } = published;
    format!("postgresql://postgres.{project}:[YOUR-PASSWORD]@{host}:{port}/postgres")
}

/// Rejects a project that was removed.
async fn ensure_exists(context: &ApiContext, project: &Project) -> Result<(), Error> {
    match projects::status(context, project.id).await? {
        projects::Status::GoingDown | projects::Status::Removed => Err(projects::removed()),
        _ => Ok(()),
    }
}

async fn get(project: Project, context: ApiContext) -> Result<Json<Vec<PoolerConfig>>, Error> {
    ensure_exists(&context, &project).await?;
    let pooler = |published: &PublishedAddress| {
        let connection_string = connection_string(&project.reference, published);
        PoolerConfig {
            identifier: project.reference.clone(),
            database_type: DatabaseType::Primary,
            is_using_scram_auth: true,
            db_user: format!("postgres.{}", project.reference),
            db_host: published.host.clone(),
            db_port: published.port,
            db_name: "postgres",
            deprecated_connection_string: connection_string.clone(),
            connection_string,
            default_pool_size: None,
            max_client_conn: Some(PROJECT_CONNECTIONS_MAX),
            pool_mode: PoolMode::Session,
        }
    };
    Ok(Json(
        context
            .data_plane_settings
            .databases
            .as_ref()
            .map(pooler)
            .into_iter()
            .collect(),
    ))
}

pub(super) static UPDATE: Endpoint = Endpoint {
    id: "v1-update-pooler-config",
    summary: "Change how connections to the database are pooled",
    tag: Tag::Database,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/config/database/pooler",
    aliases: &[],
    access: needs(&[&[P::DatabasePoolingConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"pool_mode": "session"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateSupavisorConfigBody")]
struct UpdatePoolerRequest {
    #[schemars(range(min = 0, max = 3000))]
    default_pool_size: Option<u32>,
    pool_mode: Option<PoolMode>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UpdateSupavisorConfigResponse")]
struct UpdatePoolerResponse {
    default_pool_size: Option<u32>,
    pool_mode: PoolMode,
}

/// Validates the request. Only the settings in effect are accepted, so nothing is changed.
async fn update(
    project: Project,
    context: ApiContext,
    Json(request): Json<UpdatePoolerRequest>,
) -> Result<Json<UpdatePoolerResponse>, Error> {
    ensure_exists(&context, &project).await?;
    if request.pool_mode == Some(PoolMode::Transaction) {
        return Err(Error::invalid(
            "pool_mode",
            "transaction is not available on this server; every connection is a session",
        ));
    }
    if request.default_pool_size.is_some() {
        return Err(Error::invalid(
            "default_pool_size",
            "connections are not pooled on this server; leave it out, or send null",
        ));
    }
    Ok(Json(UpdatePoolerResponse {
        default_pool_size: None,
        pool_mode: PoolMode::Session,
    }))
}

pub(super) static GET_PGBOUNCER: Endpoint = Endpoint {
    id: "v1-get-project-pgbouncer-config",
    summary: "Get the connection settings of the database in the format of PgBouncer",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/database/pgbouncer",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_pgbouncer),
};

/// Connection settings in terms of `PgBouncer`'s configuration.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1PgbouncerConfigResponse")]
struct PgBouncerConfig {
    pool_mode: PoolMode,
    max_client_conn: usize,
    /// Empty, because every startup parameter is passed on.
    ignore_startup_parameters: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_string: Option<String>,
}

async fn get_pgbouncer(
    project: Project,
    context: ApiContext,
) -> Result<Json<PgBouncerConfig>, Error> {
    ensure_exists(&context, &project).await?;
    Ok(Json(PgBouncerConfig {
        pool_mode: PoolMode::Session,
        max_client_conn: PROJECT_CONNECTIONS_MAX,
        ignore_startup_parameters: "",
        connection_string: context
            .data_plane_settings
            .databases
            .as_ref()
            .map(|published| connection_string(&project.reference, published)),
    }))
}
