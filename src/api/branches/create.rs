//! Creation of branches: the row, its project with keys and settings, and the first run, in one
//! transaction.

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    branch_row::{SchemaSource, changed, duplicate, project, read_in},
    expiry::check_expiry,
    password::GeneratedPassword,
    runs,
    runs::{NewRun, RunKind},
    space::check_space,
    view::BranchView,
};
use crate::{
    api::context::ApiContext,
    control::{
        api_keys,
        projects::{InstanceSize, Status, lock, major},
        services::functions::secrets::{self, NewSecret},
    },
    platform::{
        access::Project,
        audit::{Change, Recorder},
        db,
        error::{Context, Error},
    },
};

/// Name of the default branch that the first branch of a project creates.
const DEFAULT_NAME: &str = "main";

/// A validated request for a branch.
#[derive(Debug)]
pub(super) struct NewBranch {
    pub(super) name: String,
    pub(super) git_branch: Option<String>,
    pub(super) is_default: bool,
    pub(super) persistent: bool,
    pub(super) with_data: bool,
    pub(super) schema_source: SchemaSource,
    pub(super) size: Option<InstanceSize>,
    pub(super) engine: Option<String>,
    pub(super) notify_url: Option<String>,
    /// Time at which it ends. Absent: after the operator's default.
    pub(super) expires_at: Option<DateTime<Utc>>,
    /// Secrets of its functions.
    pub(super) secrets: Vec<NewSecret>,
}

/// The project that a branch is made of, as locked in a transaction.
pub(super) struct OriginRow {
    status: Status,
    engine: String,
    /// The parent, if the project is a branch itself.
    root: Option<Project>,
}

/// Records a new branch, its project and its first run.
///
/// A branch of a branch is a branch of the same parent, which begins as its origin.
///
/// Errors: [`Error::Conflict`] if the name or the Git branch is taken; [`Error::Rejected`] if the
/// parent has too many branches, or does not run, or its copy does not fit.
pub(super) async fn create(
    context: &ApiContext,
    origin: &Project,
    new: NewBranch,
    audit: &Recorder,
) -> Result<BranchView, Error> {
    let now = context.clock.now();
    check_expiry(new.expires_at, new.persistent, now)?;
    if new.with_data && new.schema_source == SchemaSource::Parent {
        let problem = "a branch with data always has the schema of its parent";
        return Err(Error::invalid("schema_source", problem));
    }
    if new.schema_source.is_copy(new.with_data) && !new.is_default {
        check_space(context, origin).await?;
    }
    let id = context.entropy.uuid();
    let password = GeneratedPassword::generate(context, id).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("creating a branch")?;
    let row = lock_origin(&transaction, origin).await?;
    let parent = row.root.as_ref().unwrap_or(origin);
    let mut events = Vec::new();
    let id = if new.is_default {
        insert_default(context, &transaction, parent, &new.name, now)
            .await?
            .ok_or_else(|| Error::Conflict("The project has a default branch already".into()))?
    } else {
        let default = insert_default(context, &transaction, parent, DEFAULT_NAME, now).await?;
        if let Some(default) = default {
            events.push(read_in(&transaction, default).await?.created());
        }
        check_new(context, &transaction, parent, &new, &row).await?;
        insert_branch(
            context,
            &transaction,
            (parent, origin),
            (id, &new),
            &password,
            now,
        )
        .await?;
        id
    };
    let after = json!({"id": id, "name": new.name, "with_data": new.with_data, "persistent": new.persistent, "is_default": new.is_default});
    let branch = read_in(&transaction, id).await?;
    events.push(branch.created());
    let change = Change::new((None, Some(after)), events);
    let view = branch.view(context);
    audit.result(&view);
    audit.write_in(&transaction, 201, change, now).await?;
    transaction.commit().await.context("creating a branch")?;
    changed(context);
    Ok(view)
}

/// Locks the row of a project, so that it is not removed meanwhile.
pub(super) async fn lock_origin(
    transaction: &Transaction<'_>,
    origin: &Project,
) -> Result<OriginRow, Error> {
    let doing = "creating a branch";
    let row = lock(transaction, origin, doing).await?;
    let sql = "select r.id, r.ref, r.organization_id from branches b join projects r on r.id = b.parent_id \
               where b.project_id = $1 and not b.is_default and r.desired <> 'removed'";
    let root = transaction.query_opt(sql, &[&origin.id.0]).await;
    let root = root.context(doing)?;
    Ok(OriginRow {
        status: row.status,
        engine: row.engine,
        root: root.map(|row| project(&row, 0)).transpose()?,
    })
}

async fn check_new(
    context: &ApiContext,
    transaction: &Transaction<'_>,
    parent: &Project,
    new: &NewBranch,
    row: &OriginRow,
) -> Result<(), Error> {
    // Of a branch of a branch, only the origin is locked so far.
    let doing = "creating a branch";
    lock(transaction, parent, doing).await?;
    let sql = "select count(*) from branches where parent_id = $1 and not is_default";
    let count = db::count(transaction, sql, parent.id.0, "counting branches").await?;
    let count_max = context.api_settings.branches.per_project_max;
    if count >= count_max.into() {
        return Err(Error::Rejected(
            format!("The project has {count_max} branches already; delete one first").into(),
        ));
    }
    if row.status != Status::ActiveHealthy {
        let text = "Invalid branch configuration for this project: it must be running while a branch is made of it";
        return Err(Error::Rejected(text.into()));
    }
    let same_engine = new
        .engine
        .as_deref()
        .is_none_or(|wanted| major(wanted) == major(&row.engine));
    if !same_engine {
        return Err(Error::invalid(
            "postgres_engine",
            "a branch has the version of its parent",
        ));
    }
    Ok(())
}

/// Inserts the default branch, unless the project has one.
async fn insert_default(
    context: &ApiContext,
    transaction: &Transaction<'_>,
    parent: &Project,
    name: &str,
    now: DateTime<Utc>,
) -> Result<Option<Uuid>, Error> {
    let id = context.entropy.uuid();
    let sql = "insert into branches (id, project_id, parent_id, name, is_default, persistent, status, created_at, updated_at) \
               values ($1, $2, $2, $3, true, true, 'FUNCTIONS_DEPLOYED', $4, $4) on conflict (project_id) do nothing returning id";
    let row = transaction
        .query_opt(sql, &[&id, &parent.id.0, &name, &now])
        .await
        .map_err(|error| duplicate(error, name))?;
    Ok(row.map(|row| row.get(0)))
}

/// Inserts the project of a branch, its keys, its row and its first run.
async fn insert_branch(
    context: &ApiContext,
    transaction: &Transaction<'_>,
    (parent, origin): (&Project, &Project),
    (id, new): (Uuid, &NewBranch),
    password: &GeneratedPassword,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let verifier = &password.verifier;
    let project = insert_project(context, transaction, origin, new, verifier, now).await?;
    api_keys::create_initial(context, transaction, project, now).await?;
    for sql in FOLLOWING {
        transaction
            .execute(*sql, &[&origin.id.0, &project.0])
            .await
            .context("copying settings to a branch")?;
    }
    let life = context.api_settings.branches.life;
    let expires = (!new.persistent).then(|| new.expires_at.unwrap_or(now + life));
    let source = (origin.id != parent.id).then_some(origin.id.0);
    let sql = "insert into branches (id, project_id, parent_id, name, git_branch, persistent, with_data, status, notify_url, expires_at, \
               schema_source, source_id, drift, sealed_password, created_at, updated_at) \
               values ($1, $2, $3, $4, $5, $6, $7, 'CREATING_PROJECT', $8, $9, $11, $12, \
               coalesce((select o.drift from branches o where o.project_id = $13), '{}'), $14, $10, $10)";
    transaction
        .execute(
            sql,
            &[
                &id,
                &project.0,
                &parent.id.0,
                &new.name,
                &new.git_branch,
                &new.persistent,
                &new.with_data,
                &new.notify_url,
                &expires,
                &now,
                &new.schema_source.name(),
                &source,
                &origin.id.0,
                &password.sealed,
            ],
        )
        .await
        .map_err(|error| duplicate(error, &new.name))?;
    secrets::set_in(context, transaction, project, &new.secrets, now).await?;
    let run = NewRun {
        kind: RunKind::Create,
        project,
        branch: id,
        migration_version: None,
    };
    runs::begin(transaction, &context.entropy, run, now).await?;
    Ok(())
}

/// Inserts the project of a branch, on the node of its origin, where the origin's files are.
async fn insert_project(
    context: &ApiContext,
    transaction: &Transaction<'_>,
    origin: &Project,
    new: &NewBranch,
    verifier: &str,
    now: DateTime<Utc>,
) -> Result<ProjectId, Error> {
    let reference = ProjectRef::generate(&context.entropy);
    let name = format!("{} ({reference})", new.name);
    let size = new.size.map(InstanceSize::code);
    // Roles of a copy are repaired at its start.
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, \
               password_verifier, not_before, created_at, updated_at, grants, new_table_grants, \
               settings, copy_of, outdated) \
               select $2, organization_id, $3, region, coalesce($4, instance_size), engine, \
               release_channel, node, 'active', 'COMING_UP', \
               $5, $6, $6, $6, $7, new_table_grants, settings, case when $8 then id end, $8 from projects where id = $1 returning id";
    let row = transaction
        .query_one(
            sql,
            &[
                &origin.id.0,
                &reference.as_str(),
                &name,
                &size,
                &verifier,
                &now,
                &context.driver.platform_version(),
                &new.schema_source.is_copy(new.with_data),
            ],
        )
        .await
        .context("creating the project of a branch")?;
    Ok(ProjectId(row.get(0)))
}

/// Settings of the origin (`$1`) that a branch (`$2`) begins with. Network restrictions are among
/// them: a copy of the data is not reachable from more places than the original. Settings of Auth
/// that reach people or other systems are left out, and so are all secrets.
pub(in crate::api) const FOLLOWING: &[&str] = &[
    "insert into project_networks (project_id, tls_required, allowed, updated_at) \
     select $2, tls_required, allowed, updated_at from project_networks where project_id = $1",
    "insert into rest_settings (project_id, db_schema, max_rows, db_extra_search_path, db_pool, generation) \
     select $2, db_schema, max_rows, db_extra_search_path, db_pool, 1 from rest_settings where project_id = $1",
    "insert into service_settings (project_id, service, settings, generation) \
     select $2, service, settings, 1 from service_settings \
     where project_id = $1 and service in ('storage', 'realtime')",
    "insert into service_settings (project_id, service, settings, generation) \
     select $2, service, coalesce((select jsonb_object_agg(key, value) from jsonb_each(settings) \
     where lower(key) ~ ('^(jwt_exp|disable_signup|site_url|uri_allow_list|password_|mfa_|' \
                         || 'rate_limit_|sessions_|refresh_token_)') \
     and value <> 'null'), '{}'), 1 \
     from service_settings where project_id = $1 and service = 'auth'",
];
