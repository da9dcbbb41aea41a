//! The whole configuration of a project in one document.

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    api::{context::ApiContext, data_api},
    control::{
        database_access::{self, restrictions},
        projects::{engine_major, parameters},
        service_settings::{self, AUTH, REALTIME, STORAGE},
        services::{
            pooler::{self, PoolMode, PoolerConfig},
            rest,
        },
    },
    platform::{
        access::{Permission as P, Project, pat_only},
        error::{Context, Error},
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of the whole configuration.
pub static ENDPOINTS: &[&Endpoint] = &[&GET];

static GET: Endpoint = Endpoint {
    id: "v2-get-project-config",
    summary: "Get a project's configuration",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v2/projects/{ref}/config",
    aliases: &[],
    access: pat_only(&[&[
        P::DatabaseConfigRead,
        P::DatabaseRead,
        P::DatabaseSslConfigRead,
        P::DatabaseNetworkRestrictionsRead,
        P::AuthConfigRead,
        P::DataApiConfigRead,
        P::RealtimeConfigRead,
        P::StorageConfigRead,
    ]]),
    limit: &STANDARD,
    handler: || mount(get),
};

#[derive(Serialize, JsonSchema)]
struct ProjectConfigEnvelope {
    data: ProjectConfigResource,
}

#[derive(Serialize, JsonSchema)]
struct ProjectConfigResource {
    r#type: ProjectConfigType,
    id: ProjectRef,
    attributes: ProjectConfig,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ProjectConfigType {
    ProjectConfig,
}

/// Settings that are in effect, by service. Those that were never set have their default.
#[derive(Serialize, JsonSchema)]
struct ProjectConfig {
    database: DatabaseConfig,
    pooler: PoolerSection,
    /// As in `GET /v1/projects/{ref}/config/auth`, secrets as digests.
    auth: Map<String, Value>,
    api: ApiSection,
    realtime: Map<String, Value>,
    /// As in `GET /v1/projects/{ref}/config/storage`, in snake case.
    storage: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
struct DatabaseConfig {
    major_version: u16,
    ssl_enforced: bool,
    network_restrictions: NetworkSection,
    /// Only the parameters that are set.
    postgres_settings: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
struct NetworkSection {
    entitlement: &'static str,
    status: &'static str,
    allowed_cidrs: Vec<NetworkEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<chrono::DateTime<chrono::Utc>>,
}

#[derive(Serialize, JsonSchema)]
struct NetworkEntry {
    address: String,
    r#type: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct PoolerSection {
    pool_mode: PoolMode,
    ignore_startup_parameters: &'static str,
    server_idle_timeout: u32,
    server_lifetime: u32,
    query_wait_timeout: u32,
    reserve_pool_size: u32,
    default_pool_size: u32,
    max_client_conn: u32,
}

#[derive(Serialize, JsonSchema)]
struct ApiSection {
    db_schema: String,
    db_extra_search_path: String,
    max_rows: u32,
    db_pool_acquisition_timeout: u32,
    db_pool_max_lifetime: u32,
    db_pool_max_idletime: u32,
    db_pool: Option<u32>,
}

/// Realtime settings that are in effect for a project that never set them.
const REALTIME_DEFAULTS: [(&str, i64); 8] = [
    ("connection_pool", 2),
    ("max_concurrent_users", 200),
    ("max_events_per_second", 100),
    ("max_bytes_per_second", 100_000),
    ("max_channels_per_client", 100),
    ("max_joins_per_second", 100),
    ("max_presence_events_per_second", 1000),
    ("max_payload_size_in_kb", 3000),
];

async fn get(project: Project, context: ApiContext) -> Result<Json<ProjectConfigEnvelope>, Error> {
    let reference = &project.reference;
    let auth = service_settings::get(&context, &project, &AUTH).await?;
    let storage = service_settings::get(&context, &project, &STORAGE).await?;
    let realtime = service_settings::get(&context, &project, &REALTIME).await?;
    let attributes = ProjectConfig {
        database: database(&context, &project).await?,
        pooler: pooler_section(&context, &project).await?,
        auth: auth.document(reference),
        api: api(&context, &project).await?,
        realtime: in_effect(realtime.document(reference)),
        storage: storage_section(storage.document(reference)),
    };
    let data = ProjectConfigResource {
        r#type: ProjectConfigType::ProjectConfig,
        id: reference.clone(),
        attributes,
    };
    Ok(Json(ProjectConfigEnvelope { data }))
}

async fn database(context: &ApiContext, project: &Project) -> Result<DatabaseConfig, Error> {
    let rules = restrictions::get(context, project).await?;
    let parameters = parameters::get(context, project).await?;
    let parameters = serde_json::to_value(parameters).context("reading server settings")?;
    let mut postgres_settings = Map::new();
    for (name, value) in parameters.as_object().into_iter().flatten() {
        if !value.is_null() {
            postgres_settings.insert(name.replace('.', "_"), value.clone());
        }
    }
    let entry = |network: &ipnet::IpNet| NetworkEntry {
        address: network.to_string(),
        r#type: if network.addr().is_ipv4() { "v4" } else { "v6" },
    };
    Ok(DatabaseConfig {
        major_version: engine_major(context, project).await?,
        ssl_enforced: rules.tls_required,
        network_restrictions: NetworkSection {
            entitlement: "allowed",
            status: "applied",
            allowed_cidrs: rules.allowed.iter().map(entry).collect(),
            updated_at: rules.updated_at,
        },
        postgres_settings,
    })
}

/// Returns the settings of the pooler. Without one, the proxy gives each client connection a server
/// connection for its whole life.
async fn pooler_section(context: &ApiContext, project: &Project) -> Result<PoolerSection, Error> {
    if !pooler::is_installed(context) {
        let budget = database_access::connections(context, project.id).await?;
        return Ok(PoolerSection {
            pool_mode: PoolMode::Session,
            ignore_startup_parameters: "",
            server_idle_timeout: 0,
            server_lifetime: 0,
            query_wait_timeout: 0,
            reserve_pool_size: 0,
            default_pool_size: budget.direct,
            max_client_conn: budget.direct,
        });
    }
    let config = pooler::config(context, project.id).await?;
    Ok(PoolerSection {
        pool_mode: config.pool_mode,
        ignore_startup_parameters: PoolerConfig::IGNORED_PARAMETERS,
        server_idle_timeout: PoolerConfig::SERVER_IDLE_SECS,
        server_lifetime: PoolerConfig::SERVER_LIFETIME_SECS,
        query_wait_timeout: config.query_wait_timeout,
        reserve_pool_size: 0,
        default_pool_size: config.default_pool_size,
        max_client_conn: config.max_client_conn,
    })
}

async fn api(context: &ApiContext, project: &Project) -> Result<ApiSection, Error> {
    let settings = rest::get(context, project).await?;
    Ok(ApiSection {
        db_schema: settings.db_schema,
        db_extra_search_path: settings.db_extra_search_path,
        max_rows: settings.max_rows,
        db_pool_acquisition_timeout: data_api::POOL_ACQUISITION_SECS,
        db_pool_max_lifetime: data_api::POOL_LIFETIME_SECS,
        db_pool_max_idletime: data_api::POOL_IDLE_SECS,
        db_pool: settings.db_pool,
    })
}

fn in_effect(mut realtime: Map<String, Value>) -> Map<String, Value> {
    for (name, default) in REALTIME_DEFAULTS {
        if realtime[name].is_null() {
            realtime.insert(name.to_owned(), default.into());
        }
    }
    for name in ["private_only", "suspend"] {
        if realtime[name].is_null() {
            realtime.insert(name.to_owned(), false.into());
        }
    }
    realtime.insert("postgres_changes_pool".to_owned(), Value::Null);
    realtime
}

/// Converts the Storage settings of v1 to those of v2.
fn storage_section(storage: Map<String, Value>) -> Map<String, Value> {
    let mut section = snake_case(storage);
    let external = section.remove("external").unwrap_or_default();
    section.insert(
        "upstream_target".to_owned(),
        external["upstream_target"].clone(),
    );
    section.remove("database_pool_mode");
    if let Some(features) = section.get_mut("features").and_then(Value::as_object_mut) {
        features.insert("purge_cache".to_owned(), json!({"enabled": false}));
    }
    if let Some(found) = section
        .get_mut("capabilities")
        .and_then(Value::as_object_mut)
    {
        found.insert("object_versioning".to_owned(), false.into());
    }
    section
}

fn snake_case(document: Map<String, Value>) -> Map<String, Value> {
    let mut converted = Map::new();
    for (name, value) in document {
        let mut key = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() {
                key.push('_');
            }
            key.push(letter.to_ascii_lowercase());
        }
        let value = match value {
            Value::Object(inner) => snake_case(inner).into(),
            value => value,
        };
        converted.insert(key, value);
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::service_settings::ServiceSettings;

    #[test]
    fn sections_have_the_names_of_the_second_version_and_no_unset_value() {
        let reference = "abcdefghijklmnopqrst".parse().unwrap();
        let storage = ServiceSettings::new(&STORAGE).document(&reference);
        let section = storage_section(storage);
        let names: Vec<&String> = section.keys().collect();
        let expected = [
            "capabilities",
            "features",
            "file_size_limit",
            "migration_version",
            "upstream_target",
        ];
        assert_eq!(names, expected);
        assert_eq!(section["features"]["s3_protocol"]["enabled"], true);
        assert_eq!(section["features"]["iceberg_catalog"]["max_catalogs"], 2);
        assert_eq!(section["upstream_target"], "main");
        let realtime = ServiceSettings::new(&REALTIME).document(&reference);
        let realtime = in_effect(realtime);
        let unset: Vec<&String> = realtime
            .iter()
            .filter(|(_, value)| value.is_null())
            .map(|(name, _)| name)
            .collect();
        assert_eq!(unset, ["postgres_changes_pool"]);
    }
}
