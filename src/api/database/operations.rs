//! Operations that run SQL in a project's PostgreSQL or describe its schemas.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    catalog::Catalog, context, context::ClusterCatalog, destructive_sql, openapi, query,
    query::SqlQuery, typescript, webhooks,
};
use crate::{
    api::context::ApiContext,
    control::{database_session::session::SessionLimits, projects, services},
    platform::{
        access::{AnyOf, Case, OauthScope as S, Permission as P, Project, RequestView, needs},
        error::Error,
        http::{
            Endpoint, Json, Query as Parameters, Tag, Verb, mount,
            output::{CreatedEmpty, JsonRows},
        },
        rate_limits::{CONTEXT, STANDARD},
    },
};

/// Endpoints of queries and schemas.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET_CONTEXT,
    &RUN_QUERY,
    &READ_ONLY_QUERY,
    &TYPESCRIPT,
    &OPENAPI,
    &ENABLE_WEBHOOKS,
];

static GET_CONTEXT: Endpoint = Endpoint {
    id: "v1-get-database-metadata",
    summary: "List databases and their schemas",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/context",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::ProjectsRead),
    limit: &CONTEXT,
    handler: || mount(get_context),
};

async fn get_context(project: Project, context: ApiContext) -> Result<Json<ClusterCatalog>, Error> {
    let target = projects::target(&context, &project).await?;
    Ok(Json(
        context::context(&target, SessionLimits::default()).await?,
    ))
}

static RUN_QUERY: Endpoint = Endpoint {
    id: "v1-run-a-query",
    summary: "Run SQL",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/query",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead], &[P::DatabaseWrite]], S::DatabaseWrite).by_case(&[
        Case {
            when: "`read_only` is true",
            applies: asks_to_read_only,
            permissions: AnyOf(&[&[P::DatabaseRead]]),
        },
        Case::otherwise(AnyOf(&[&[P::DatabaseRead, P::DatabaseWrite]])),
    ]),
    limit: &STANDARD,
    handler: || {
        mount(run_query)
            .audited_before()
            .destructive_if(effect_of_query)
            .sample(SAMPLE)
    },
};

/// Returns the effect of a query that may write. An unreadable body is rejected by the handler.
fn effect_of_query(asked: &RequestView<'_>) -> Option<Cow<'static, str>> {
    let request = asked.body::<QueryRequest>()?;
    if request.read_only {
        return None;
    }
    destructive_sql::effect_of(&request.query)
}

fn asks_to_read_only(asked: &RequestView<'_>) -> bool {
    #[derive(Deserialize)]
    struct ReadOnlyFlag {
        read_only: bool,
    }
    asked
        .body()
        .is_some_and(|ReadOnlyFlag { read_only }| read_only)
}

/// A valid request body.
const SAMPLE: &str = r#"{"query": "select $1::int + 1 as answer", "parameters": [41]}"#;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1RunQueryBody")]
struct QueryRequest {
    /// SQL; several statements unless there are parameters.
    #[schemars(length(min = 1))]
    query: String,
    /// Values of `$1`, `$2`, …
    #[serde(default)]
    parameters: Vec<Value>,
    /// Whether only reading is permitted.
    #[serde(default)]
    read_only: bool,
}

async fn run_query(
    project: Project,
    context: ApiContext,
    Json(request): Json<QueryRequest>,
) -> Result<JsonRows, Error> {
    run(
        &context,
        &project,
        SqlQuery {
            text: request.query,
            parameters: request.parameters,
            read_only: request.read_only,
        },
    )
    .await
}

static READ_ONLY_QUERY: Endpoint = Endpoint {
    id: "v1-read-only-query",
    summary: "Run read-only SQL",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/query/read-only",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(read_only_query).sample(SAMPLE),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1ReadOnlyQueryBody")]
struct ReadOnlyRequest {
    /// SQL; several statements unless there are parameters.
    #[schemars(length(min = 1))]
    query: String,
    /// Values of `$1`, `$2`, …
    #[serde(default)]
    parameters: Vec<Value>,
}

async fn read_only_query(
    project: Project,
    context: ApiContext,
    Json(request): Json<ReadOnlyRequest>,
) -> Result<JsonRows, Error> {
    run(
        &context,
        &project,
        SqlQuery {
            text: request.query,
            parameters: request.parameters,
            read_only: true,
        },
    )
    .await
}

async fn run(context: &ApiContext, project: &Project, query: SqlQuery) -> Result<JsonRows, Error> {
    required("query", &query.text)?;
    let target = projects::target(context, project).await?;
    Ok(JsonRows(
        query::run_query(&target, &query, SessionLimits::default()).await?,
    ))
}

static TYPESCRIPT: Endpoint = Endpoint {
    id: "v1-generate-typescript-types",
    summary: "Generate TypeScript types",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/types/typescript",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(generate_typescript),
};

/// Maximum number of schemas in a request.
const SCHEMAS_MAX: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
struct TypeSchemasQuery {
    /// Names of schemas, separated by commas.
    #[serde(default = "TypeSchemasQuery::default_schemas")]
    included_schemas: String,
}

impl TypeSchemasQuery {
    fn default_schemas() -> String {
        "public".to_owned()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TypescriptResponse")]
struct TypescriptResponse {
    /// Content of the file.
    types: String,
}

async fn generate_typescript(
    project: Project,
    context: ApiContext,
    Parameters(included): Parameters<TypeSchemasQuery>,
) -> Result<Json<TypescriptResponse>, Error> {
    let names = included
        .included_schemas
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let schemas: Vec<_> = names.map(str::to_owned).take(SCHEMAS_MAX + 1).collect();
    if schemas.len() > SCHEMAS_MAX {
        return Err(Error::invalid(
            "included_schemas",
            format!("Invalid input: expected at most {SCHEMAS_MAX} schemas"),
        ));
    }
    let target = projects::target(&context, &project).await?;
    let catalog = Catalog::read(&target, &schemas, SessionLimits::default()).await?;
    let data_api = services::data_api_version(&context, project.id);
    Ok(Json(TypescriptResponse {
        types: typescript::generate(&catalog, &data_api),
    }))
}

static OPENAPI: Endpoint = Endpoint {
    id: "v1-get-database-openapi",
    summary: "Get the OpenAPI document of a schema's data API",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/openapi",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(describe_data_api),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct DataApiQuery {
    /// Name of the schema.
    #[serde(default = "TypeSchemasQuery::default_schemas")]
    schema: String,
}

async fn describe_data_api(
    project: Project,
    context: ApiContext,
    Parameters(DataApiQuery { schema }): Parameters<DataApiQuery>,
) -> Result<Json<Map<String, Value>>, Error> {
    let target = projects::target(&context, &project).await?;
    let catalog = Catalog::read(
        &target,
        std::slice::from_ref(&schema),
        SessionLimits::default(),
    )
    .await?;
    Ok(Json(openapi::generate(&catalog, &schema)))
}

static ENABLE_WEBHOOKS: Endpoint = Endpoint {
    id: "v1-enable-database-webhook",
    summary: "Enable database webhooks",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/webhooks/enable",
    aliases: &[],
    access: needs(&[&[P::DatabaseWebhooksConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(enable_webhooks).audited_before().repeatable(),
};

async fn enable_webhooks(project: Project, context: ApiContext) -> Result<CreatedEmpty, Error> {
    let target = projects::target(&context, &project).await?;
    webhooks::enable(&target, SessionLimits::default())
        .await
        .map(|()| CreatedEmpty)
}

/// Rejects an empty text.
pub(super) fn required(field: &'static str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() {
        Err(Error::invalid(field, "Required"))
    } else {
        Ok(())
    }
}
