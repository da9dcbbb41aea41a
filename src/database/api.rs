//! Operations inside a project's PostgreSQL.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    context::{self, Context},
    migrations::{self, Migration, NewMigration},
    query::{self, Query},
    session::Limits,
};
use crate::{
    access::{AnyOf, OauthScope as S, Permission as P, Project, User},
    accounts,
    app::App,
    error::Error,
    http::{Asked, Case, Done, Endpoint, IdempotencyKey, Json, Rows, Tag, Verb, mount, needs},
    limits::{CONTEXT, MIGRATIONS, STANDARD},
    projects,
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST_MIGRATIONS, &APPLY_MIGRATION, &GET_CONTEXT, &RUN_QUERY, &READ_ONLY_QUERY];

static LIST_MIGRATIONS: Endpoint = Endpoint {
    id: "v1-list-migration-history",
    summary: "List applied migrations",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list_migrations),
};

async fn list_migrations(project: Project, app: App) -> Result<Json<Vec<Migration>>, Error> {
    let target = projects::target(&app, &project).await?;
    Ok(Json(migrations::list(&target, Limits::default()).await?))
}

static APPLY_MIGRATION: Endpoint = Endpoint {
    id: "v1-apply-a-migration",
    summary: "Apply a migration",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsWrite]], S::DatabaseWrite),
    limit: &MIGRATIONS,
    handler: || mount(apply_migration),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1CreateMigrationBody")]
struct MigrationRequest {
    /// SQL, any number of statements.
    #[schemars(length(min = 1))]
    query: String,
    /// What its author calls it.
    name: Option<String>,
    /// SQL that takes it back.
    rollback: Option<String>,
}

async fn apply_migration(
    project: Project,
    user: User,
    app: App,
    IdempotencyKey(idempotency_key): IdempotencyKey,
    Json(request): Json<MigrationRequest>,
) -> Result<Done, Error> {
    required("query", &request.query)?;
    let MigrationRequest { query, name, rollback } = request;
    let created_by = Some(accounts::by_id(&app.db, user.id).await?.email);
    let target = projects::target(&app, &project).await?;
    let migration = NewMigration { query, name, rollback, idempotency_key, created_by };
    migrations::apply(&target, &app.clock, &migration, Limits::default()).await?;
    Ok(Done)
}

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

async fn get_context(project: Project, app: App) -> Result<Json<Context>, Error> {
    let target = projects::target(&app, &project).await?;
    Ok(Json(context::context(&target, Limits::default()).await?))
}

static RUN_QUERY: Endpoint = Endpoint {
    id: "v1-run-a-query",
    summary: "Run SQL",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/query",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead], &[P::DatabaseWrite]], S::DatabaseWrite).by_case(&[
        Case { when: "`read_only` is true", applies: asks_to_read_only, permissions: AnyOf(&[&[P::DatabaseRead]]) },
        Case::otherwise(AnyOf(&[&[P::DatabaseRead, P::DatabaseWrite]])),
    ]),
    limit: &STANDARD,
    handler: || mount(run_query),
};

fn asks_to_read_only(asked: &Asked<'_>) -> bool {
    #[derive(Deserialize)]
    struct Flag {
        read_only: bool,
    }
    asked.body().is_some_and(|Flag { read_only }| read_only)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1RunQueryBody")]
struct QueryRequest {
    /// SQL; several statements unless there are parameters.
    #[schemars(length(min = 1))]
    query: String,
    /// Values of `$1`, `$2`, …
    #[serde(default)]
    parameters: Vec<Value>,
    /// Whether it may read only.
    #[serde(default)]
    read_only: bool,
}

async fn run_query(project: Project, app: App, Json(request): Json<QueryRequest>) -> Result<Rows, Error> {
    run(&app, &project, Query { text: request.query, parameters: request.parameters, read_only: request.read_only }).await
}

static READ_ONLY_QUERY: Endpoint = Endpoint {
    id: "v1-read-only-query",
    summary: "Run SQL that may read only",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/query/read-only",
    aliases: &[],
    access: needs(&[&[P::DatabaseRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(read_only_query),
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

async fn read_only_query(project: Project, app: App, Json(request): Json<ReadOnlyRequest>) -> Result<Rows, Error> {
    run(&app, &project, Query { text: request.query, parameters: request.parameters, read_only: true }).await
}

async fn run(app: &App, project: &Project, query: Query) -> Result<Rows, Error> {
    required("query", &query.text)?;
    let target = projects::target(app, project).await?;
    Ok(Rows(query::run_query(&target, &query, Limits::default()).await?))
}

fn required(field: &'static str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() { Err(Error::invalid(field, "Required")) } else { Ok(()) }
}
