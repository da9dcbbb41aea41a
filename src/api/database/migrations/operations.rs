//! Operations on the history of migrations.

use std::{borrow::Cow, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Migration, MigrationLimits, MigrationPatch, MigrationRecord, NewMigration, rehearsal,
    rehearsal::MigrationRehearsal,
};
use crate::{
    api::{
        accounts,
        context::ApiContext,
        database::{destructive_sql, operations::required},
    },
    control::projects,
    platform::{
        access::{OauthScope as S, Permission as P, Project, RequestView, User, needs},
        error::Error,
        http::{
            Call, Endpoint, Input, Json, Query, Tag, Verb,
            input::{IdempotencyKey, LargeJson},
            mount,
            operation_doc::OperationDoc,
            output::OkEmpty,
        },
        rate_limits::{MIGRATIONS, STANDARD},
    },
};

/// Endpoints of migrations.
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
    Ok(Json(
        super::list(&target, MigrationLimits::default().session).await?,
    ))
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
    VersionPath(version): VersionPath,
    context: ApiContext,
) -> Result<Json<MigrationRecord>, Error> {
    let target = projects::target(&context, &project).await?;
    Ok(Json(
        super::get(&target, &version, MigrationLimits::default().session).await?,
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
    handler: || {
        mount(apply)
            .audited_before()
            .destructive_if(effect_of_migration)
            .with_own_dry_run()
            .keeps_own_keys()
            .sample(SAMPLE)
    },
};

/// Returns the effect of the SQL of a migration. An unreadable body is rejected by the handler.
fn effect_of_migration(asked: &RequestView<'_>) -> Option<Cow<'static, str>> {
    destructive_sql::effect_of(&asked.body::<MigrationRequest>()?.query)
}

/// A valid request body.
const SAMPLE: &str = r#"{"query": "create table notes (id bigint generated always as identity primary key, body text)", "name": "create_notes"}"#;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1CreateMigrationBody")]
struct MigrationRequest {
    /// SQL, any number of statements.
    #[schemars(length(min = 1))]
    query: String,
    /// Name given by the author.
    name: Option<String>,
    /// SQL that reverts the migration.
    rollback: Option<String>,
}

/// Maximum size of the SQL of a migration, and of its rollback, in bytes.
const SQL_BYTES_MAX: usize = 8 << 20;

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
        for text in [Some(&query), rollback.as_ref()].into_iter().flatten() {
            if text.len() > SQL_BYTES_MAX {
                return Err(Error::TooLarge {
                    bytes_max: SQL_BYTES_MAX,
                });
            }
        }
        let created_by = Some(accounts::by_id(&context.db, user.id).await?.email);
        Ok(NewMigration {
            query,
            name,
            rollback,
            idempotency_key,
            created_by,
            ..NewMigration::default()
        })
    }
}

/// Query parameters beyond the contract.
#[derive(Debug, Deserialize, JsonSchema)]
struct ApplyQuery {
    /// Apply the migration, return its effects, and roll it back.
    #[serde(default)]
    dry_run: bool,
    /// Maximum wait for one lock, in ms.
    #[serde(default = "ApplyQuery::lock_timeout_ms")]
    #[schemars(range(min = 1, max = LOCK_TIMEOUT_MS_MAX))]
    lock_timeout_ms: u64,
}

/// Maximum of `lock_timeout_ms`. Transactions queued behind a migration wait as long.
const LOCK_TIMEOUT_MS_MAX: u64 = 30_000;

impl ApplyQuery {
    fn lock_timeout_ms() -> u64 {
        MigrationLimits::default()
            .lock_timeout
            .as_millis()
            .try_into()
            .unwrap_or(LOCK_TIMEOUT_MS_MAX)
    }

    fn limits(&self) -> Result<MigrationLimits, Error> {
        if !(1..=LOCK_TIMEOUT_MS_MAX).contains(&self.lock_timeout_ms) {
            return Err(Error::invalid(
                "lock_timeout_ms",
                format!("Invalid input: expected 1 to {LOCK_TIMEOUT_MS_MAX}"),
            ));
        }
        Ok(MigrationLimits {
            lock_timeout: Duration::from_millis(self.lock_timeout_ms),
            ..MigrationLimits::default()
        })
    }
}

async fn apply(
    project: Project,
    user: User,
    context: ApiContext,
    IdempotencyKey(key): IdempotencyKey,
    Query(how): Query<ApplyQuery>,
    LargeJson {
        value: request,
        permit: _permit,
    }: LargeJson<MigrationRequest>,
) -> Result<Option<Json<MigrationRehearsal>>, Error> {
    let migration = request.of(&context, &user, key).await?;
    let limits = how.limits()?;
    let target = projects::target(&context, &project).await?;
    if how.dry_run {
        return Ok(Some(Json(
            rehearsal::rehearse(&target, &context.clock, &migration, limits).await?,
        )));
    }
    super::apply(&target, &context.clock, &migration, limits).await?;
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
    handler: || {
        mount(record)
            .audited_before()
            .keeps_own_keys()
            .sample(SAMPLE)
    },
};

async fn record(
    project: Project,
    user: User,
    context: ApiContext,
    IdempotencyKey(key): IdempotencyKey,
    LargeJson {
        value: request,
        permit: _permit,
    }: LargeJson<MigrationRequest>,
) -> Result<OkEmpty, Error> {
    let migration = request.of(&context, &user, key).await?;
    let target = projects::target(&context, &project).await?;
    super::record(
        &target,
        &context.clock,
        &migration,
        MigrationLimits::default(),
    )
    .await?;
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
            .repeatable()
            .sample(r#"{"name": "create_notes"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V1PatchMigrationBody")]
struct PatchMigrationRequest {
    /// Name given by the author.
    name: Option<String>,
    /// SQL that reverts the migration.
    rollback: Option<String>,
}

async fn patch(
    project: Project,
    VersionPath(version): VersionPath,
    context: ApiContext,
    Json(request): Json<PatchMigrationRequest>,
) -> Result<OkEmpty, Error> {
    let target = projects::target(&context, &project).await?;
    let patch = MigrationPatch {
        name: request.name,
        rollback: request.rollback,
    };
    super::patch(&target, &version, &patch, MigrationLimits::default()).await?;
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
            .destructive("rolls migrations back")
            .repeatable()
            .sample_query("?gte=20261121091503")
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
struct RollbackQuery {
    /// First version to revert. Later versions are reverted as well.
    #[schemars(regex(pattern = r"^\d+$"))]
    gte: String,
}

async fn roll_back(
    project: Project,
    context: ApiContext,
    Query(RollbackQuery { gte }): Query<RollbackQuery>,
) -> Result<OkEmpty, Error> {
    let gte = digits("gte", &gte)?;
    let target = projects::target(&context, &project).await?;
    super::roll_back(&target, &gte, MigrationLimits::default()).await?;
    Ok(OkEmpty)
}

/// `{version}` of the path.
struct VersionPath(String);

impl Input for VersionPath {
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
