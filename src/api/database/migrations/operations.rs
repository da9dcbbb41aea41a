//! Operations on the history of migrations.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Budget, Migration, NewMigration, Patch, Recorded, rehearsal, rehearsal::Rehearsal};
use crate::{
    api::{accounts, context::ApiContext, database::operations::required},
    base::error::Error,
    data_plane::projects,
    platform::{
        access::{OauthScope as S, Permission as P, Project, User, needs},
        http::{
            Call, Endpoint, Input, Json, Query, Tag, Verb, input::IdempotencyKey, mount,
            openapi::OperationDoc, output::OkEmpty,
        },
        rate_limits::{MIGRATIONS, STANDARD},
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST, &GET, &APPLY, &RECORD, &PATCH, &ROLL_BACK];

static LIST: Endpoint = Endpoint {
    id: "v1-list-migration-history",
    summary: "List applied migrations",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(project: Project, context: ApiContext) -> Result<Json<Vec<Migration>>, Error> {
    let target = projects::target(&context, &project).await?;
    Ok(Json(super::list(&target, Budget::default().limits).await?))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-a-migration",
    summary: "Get an applied migration",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/migrations/{version}",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    Version(version): Version,
    context: ApiContext,
) -> Result<Json<Recorded>, Error> {
    let target = projects::target(&context, &project).await?;
    Ok(Json(
        super::get(&target, &version, Budget::default().limits).await?,
    ))
}

static APPLY: Endpoint = Endpoint {
    id: "v1-apply-a-migration",
    summary: "Apply a migration",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsWrite]], S::DatabaseWrite),
    limit: &MIGRATIONS,
    handler: || mount(apply).audited_before().sample(SAMPLE),
};

/// A body that works.
const SAMPLE: &str = r#"{"query": "create table notes (id bigint generated always as identity primary key, body text)", "name": "create_notes"}"#;

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

impl MigrationRequest {
    async fn of(
        self,
        context: &ApiContext,
        user: &User,
        idempotency_key: Option<String>,
    ) -> Result<NewMigration, Error> {
        let Self {
            query,
            name,
            rollback,
        } = self;
        required("query", &query)?;
        let created_by = Some(accounts::by_id(&context.db, user.id).await?.email);
        Ok(NewMigration {
            query,
            name,
            rollback,
            idempotency_key,
            created_by,
        })
    }
}

/// Ours, beyond the contract.
#[derive(Debug, Deserialize, JsonSchema)]
struct How {
    /// Apply it, answer what it did, and roll it back.
    #[serde(default)]
    dry_run: bool,
    /// How long it may wait for one lock, in ms.
    #[serde(default = "How::lock_timeout_ms")]
    #[schemars(range(min = 1, max = LOCK_TIMEOUT_MS_MAX))]
    lock_timeout_ms: u64,
}

/// Whoever waits behind a migration for its lock waits as long.
const LOCK_TIMEOUT_MS_MAX: u64 = 30_000;

impl How {
    fn lock_timeout_ms() -> u64 {
        Budget::default()
            .lock_timeout
            .as_millis()
            .try_into()
            .unwrap_or(LOCK_TIMEOUT_MS_MAX)
    }

    fn budget(&self) -> Result<Budget, Error> {
        if !(1..=LOCK_TIMEOUT_MS_MAX).contains(&self.lock_timeout_ms) {
            return Err(Error::invalid(
                "lock_timeout_ms",
                format!("Invalid input: expected 1 to {LOCK_TIMEOUT_MS_MAX}"),
            ));
        }
        Ok(Budget {
            lock_timeout: Duration::from_millis(self.lock_timeout_ms),
            ..Budget::default()
        })
    }
}

async fn apply(
    project: Project,
    user: User,
    context: ApiContext,
    IdempotencyKey(key): IdempotencyKey,
    Query(how): Query<How>,
    Json(request): Json<MigrationRequest>,
) -> Result<Option<Json<Rehearsal>>, Error> {
    let (migration, budget) = (request.of(&context, &user, key).await?, how.budget()?);
    let target = projects::target(&context, &project).await?;
    if how.dry_run {
        return Ok(Some(Json(
            rehearsal::rehearse(&target, &context.clock, &migration, budget).await?,
        )));
    }
    super::apply(&target, &context.clock, &migration, budget).await?;
    Ok(None)
}

static RECORD: Endpoint = Endpoint {
    id: "v1-upsert-a-migration",
    summary: "Record a migration without applying it",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(record).audited_before().sample(SAMPLE),
};

async fn record(
    project: Project,
    user: User,
    context: ApiContext,
    IdempotencyKey(key): IdempotencyKey,
    Json(request): Json<MigrationRequest>,
) -> Result<OkEmpty, Error> {
    let migration = request.of(&context, &user, key).await?;
    let target = projects::target(&context, &project).await?;
    super::record(&target, &context.clock, &migration, Budget::default()).await?;
    Ok(OkEmpty)
}

static PATCH: Endpoint = Endpoint {
    id: "v1-patch-a-migration",
    summary: "Change a migration's name or rollback",
    tag: Tag::Database,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/database/migrations/{version}",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(patch)
            .audited_before()
            .sample(r#"{"name": "create_notes"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1PatchMigrationBody")]
struct PatchRequest {
    /// What its author calls it.
    name: Option<String>,
    /// SQL that takes it back.
    rollback: Option<String>,
}

async fn patch(
    project: Project,
    Version(version): Version,
    context: ApiContext,
    Json(request): Json<PatchRequest>,
) -> Result<OkEmpty, Error> {
    let target = projects::target(&context, &project).await?;
    let patch = Patch {
        name: request.name,
        rollback: request.rollback,
    };
    super::patch(&target, &version, &patch, Budget::default()).await?;
    Ok(OkEmpty)
}

static ROLL_BACK: Endpoint = Endpoint {
    id: "v1-rollback-migrations",
    summary: "Roll migrations back",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/database/migrations",
    aliases: &[],
    access: needs(&[&[P::DatabaseMigrationsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(roll_back)
            .audited_before()
            .sample_query("?gte=20261121091503")
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Since {
    /// The first version to take back: it and everything after it.
    #[schemars(regex(pattern = r"^\d+$"))]
    gte: String,
}

async fn roll_back(
    project: Project,
    context: ApiContext,
    Query(Since { gte }): Query<Since>,
) -> Result<OkEmpty, Error> {
    let gte = digits("gte", &gte)?;
    let target = projects::target(&context, &project).await?;
    super::roll_back(&target, &gte, Budget::default()).await?;
    Ok(OkEmpty)
}

/// `{version}` of the path.
struct Version(String);

impl Input for Version {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        digits("version", call.placeholder("version").unwrap_or_default()).map(Self)
    }
}

fn digits(field: &'static str, text: &str) -> Result<String, Error> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err(Error::invalid(field, "Invalid input: expected digits"))
    }
}
