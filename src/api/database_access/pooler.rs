//! Operations on connection pooling. Without a kit of the pooler, each connection is a session.

use std::sync::Arc;

use gantry_base::ids::ProjectRef;
use gantry_node::kits::Service;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::context::ApiContext,
    control::{
        database_access, projects,
        service_settings::{DEFAULT_POOL_SIZE, MAX_CLIENT_CONN, POOL_MODE, QUERY_WAIT_TIMEOUT},
        services::{
            environment,
            pooler::{self, PoolMode, PoolerConfig},
        },
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
    proxy::postgres_proxy::PublishedAddress,
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

/// Connection settings of a database.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SupavisorConfigResponse")]
struct PoolerView {
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
    max_client_conn: Option<u32>,
    pool_mode: PoolMode,
}

/// Returns a connection string with a placeholder for the password.
fn connection_string(project: &ProjectRef, host: &str, port: u16) -> String {
    format!("postgresql://postgres.{project}:[YOUR-PASSWORD]@{host}:{port}/postgres")
}

/// The sessions that clients get at the published port.
struct ClientSessions {
    port: u16,
    pool_mode: PoolMode,
    default_pool_size: Option<u32>,
    max_client_conn: u32,
    query_wait_timeout: Option<u32>,
}

impl ClientSessions {
    /// Returns those of the pooler's port, if a pooler is installed.
    async fn of(
        context: &ApiContext,
        project: &Project,
        published: Option<&PublishedAddress>,
    ) -> Result<Self, Error> {
        let port = published.map(|published| published.port);
        let pooler_port = published.and_then(|published| published.pooler_port);
        let is_pooled = pooler::is_installed(context) && (pooler_port.is_some() || port.is_none());
        let port = port.unwrap_or_default();
        if is_pooled {
            let config = pooler::config(context, project.id).await?;
            return Ok(Self {
                port: pooler_port.unwrap_or(port),
                pool_mode: config.pool_mode,
                default_pool_size: Some(config.default_pool_size),
                max_client_conn: config.max_client_conn,
                query_wait_timeout: Some(config.query_wait_timeout),
            });
        }
        let budget = database_access::connections(context, project.id).await?;
        Ok(Self {
            port,
            pool_mode: PoolMode::Session,
            default_pool_size: None,
            max_client_conn: budget.direct,
            query_wait_timeout: None,
        })
    }
}

/// Rejects a project that was removed.
async fn ensure_exists(context: &ApiContext, project: &Project) -> Result<(), Error> {
    match projects::status(context, project.id).await? {
        projects::Status::GoingDown | projects::Status::Removed => Err(projects::removed()),
        _ => Ok(()),
    }
}

async fn get(project: Project, context: ApiContext) -> Result<Json<Vec<PoolerView>>, Error> {
    ensure_exists(&context, &project).await?;
    let published = context.control_settings.databases.as_ref();
    let sessions = ClientSessions::of(&context, &project, published).await?;
    let pooler = |published: &PublishedAddress| {
        let connection_string =
            connection_string(&project.reference, &published.host, sessions.port);
        PoolerView {
            identifier: project.reference.clone(),
            database_type: DatabaseType::Primary,
            is_using_scram_auth: true,
            db_user: format!("postgres.{}", project.reference),
            db_host: published.host.clone(),
            db_port: sessions.port,
            db_name: "postgres",
            deprecated_connection_string: connection_string.clone(),
            connection_string,
            default_pool_size: sessions.default_pool_size,
            max_client_conn: Some(sessions.max_client_conn),
            pool_mode: sessions.pool_mode,
        }
    };
    Ok(Json(published.map(pooler).into_iter().collect()))
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
    handler: || {
        mount(update)
            .answers_after_change()
            .sample(r#"{"pool_mode": "transaction"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateSupavisorConfigBody")]
#[expect(
    clippy::option_option,
    reason = "an absent value keeps the size, null restores the default"
)]
struct UpdatePoolerRequest {
    /// `null`: the size of the compute size.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<u32>", range(min = 0, max = 3000))]
    default_pool_size: Option<Option<u32>>,
    pool_mode: Option<PoolMode>,
    /// `null`: the clients of the compute size.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 3000), extend("x-gantry" = true))]
    max_client_conn: Option<Option<u32>>,
    /// Seconds that a client waits for a server connection. `null`: 120.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<u32>", range(min = 1, max = 120), extend("x-gantry" = true))]
    query_wait_timeout: Option<Option<u32>>,
}

impl UpdatePoolerRequest {
    /// Returns the settings to change, by name.
    fn change(&self) -> Map<String, Value> {
        let mode = self.pool_mode.map(|mode| (POOL_MODE, json!(mode)));
        let numbers = [
            (DEFAULT_POOL_SIZE, self.default_pool_size),
            (MAX_CLIENT_CONN, self.max_client_conn),
            (QUERY_WAIT_TIMEOUT, self.query_wait_timeout),
        ];
        let numbers = numbers
            .into_iter()
            .filter_map(|(name, value)| Some((name, json!(value?))));
        let changed = mode.into_iter().chain(numbers);
        changed
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    /// Rejects numbers that the compute size of the project has no room for.
    fn check_room(&self, config: &PoolerConfig) -> Result<(), Error> {
        let bounds = [
            (
                DEFAULT_POOL_SIZE,
                self.default_pool_size,
                config.pool_max,
                "server connections",
            ),
            (
                MAX_CLIENT_CONN,
                self.max_client_conn,
                config.client_max,
                "clients of the pooler",
            ),
        ];
        for (name, value, max, noun) in bounds {
            if value.flatten().is_some_and(|value| value > max) {
                let problem = format!("the compute size of the project has room for {max} {noun}");
                return Err(Error::invalid(name, problem));
            }
        }
        Ok(())
    }
}

/// Distinguishes `null` from an absent value.
#[expect(clippy::option_option, reason = "the type of the field")]
fn given<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(value).map(Some)
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UpdateSupavisorConfigResponse")]
struct UpdatePoolerResponse {
    default_pool_size: Option<u32>,
    pool_mode: PoolMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    max_client_conn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-gantry" = true))]
    query_wait_timeout: Option<u32>,
}

/// Changes the settings of the pooler. A running one has them when this returns.
///
/// Errors: [`Error::Invalid`] without a kit, unless the settings are those in effect, and for
/// numbers that the compute size has no room for.
async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpdatePoolerRequest>,
) -> Result<Json<UpdatePoolerResponse>, Error> {
    ensure_exists(&context, &project).await?;
    if !pooler::is_installed(&context) {
        return unpooled(&request).map(Json);
    }
    let before = pooler::config(&context, project.id).await?;
    request.check_room(&before)?;
    let change = request.change();
    environment::update(&context, &project, Service::Pooler, &change, &audit).await?;
    let after = pooler::config(&context, project.id).await?;
    Ok(Json(UpdatePoolerResponse {
        default_pool_size: Some(after.default_pool_size),
        pool_mode: after.pool_mode,
        max_client_conn: Some(after.max_client_conn),
        query_wait_timeout: Some(after.query_wait_timeout),
    }))
}

/// Accepts only the settings in effect without a pooler.
fn unpooled(request: &UpdatePoolerRequest) -> Result<UpdatePoolerResponse, Error> {
    const MISSING: &str = "no pooler is installed on this server, so every connection is a \
                           session; the operator installs one with `gantry service install pooler`";
    if request.pool_mode == Some(PoolMode::Transaction) {
        return Err(Error::invalid(POOL_MODE, MISSING));
    }
    for (name, value) in [
        (DEFAULT_POOL_SIZE, request.default_pool_size),
        (MAX_CLIENT_CONN, request.max_client_conn),
        (QUERY_WAIT_TIMEOUT, request.query_wait_timeout),
    ] {
        if value.flatten().is_some() {
            return Err(Error::invalid(name, MISSING));
        }
    }
    Ok(UpdatePoolerResponse {
        default_pool_size: None,
        pool_mode: PoolMode::Session,
        max_client_conn: None,
        query_wait_timeout: None,
    })
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
    max_client_conn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_pool_size: Option<u32>,
    /// Startup parameters that have no effect. All others are passed on, or rejected.
    ignore_startup_parameters: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    query_wait_timeout: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_string: Option<String>,
}

async fn get_pgbouncer(
    project: Project,
    context: ApiContext,
) -> Result<Json<PgBouncerConfig>, Error> {
    ensure_exists(&context, &project).await?;
    let published = context.control_settings.databases.as_ref();
    let sessions = ClientSessions::of(&context, &project, published).await?;
    Ok(Json(PgBouncerConfig {
        pool_mode: sessions.pool_mode,
        max_client_conn: sessions.max_client_conn,
        default_pool_size: sessions.default_pool_size,
        query_wait_timeout: sessions.query_wait_timeout,
        ignore_startup_parameters: if sessions.default_pool_size.is_some() {
            PoolerConfig::IGNORED_PARAMETERS
        } else {
            ""
        },
        connection_string: published
            .map(|published| connection_string(&project.reference, &published.host, sessions.port)),
    }))
}
