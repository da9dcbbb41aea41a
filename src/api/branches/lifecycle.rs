//! Creation, change and removal of branches. Each is recorded with its audit entry in one
//! transaction; the reconciler and the runner carry it out, also after a crash.

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::SecretString;
use serde_json::json;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    BRANCHES_MAX, BranchRow, BranchStatus, BranchView, duplicate,
    expiry::check_expiry,
    find, ledger, runs,
    runs::{NewRun, RunKind},
    select_branches,
    target::BranchTarget,
};
use crate::{
    api::{branches::runner, context::ApiContext, projects},
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{
        api_keys,
        projects::{InstanceSize, Status, major, removed, verifier},
        services::functions::secrets::{self, NewSecret},
    },
    platform::{access::Project, audit::Recorder, tables::Table},
};

/// Time between scheduling a deletion and the deletion.
const GRACE: TimeDelta = TimeDelta::hours(1);
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
    pub(super) size: Option<InstanceSize>,
    pub(super) engine: Option<String>,
    pub(super) notify_url: Option<String>,
    /// Time at which it ends. Absent: after the operator's default.
    pub(super) expires_at: Option<DateTime<Utc>>,
    /// Secrets of its functions.
    pub(super) secrets: Vec<NewSecret>,
}

/// Properties of a branch to change. `None` keeps a property.
#[derive(Debug, Default)]
pub(super) struct BranchPatch {
    pub(super) name: Option<String>,
    /// An empty text detaches the branch.
    pub(super) git_branch: Option<String>,
    pub(super) persistent: Option<bool>,
    pub(super) status: Option<BranchStatus>,
    pub(super) request_review: Option<bool>,
    /// An empty text removes it.
    pub(super) notify_url: Option<String>,
    pub(super) expires_at: Option<DateTime<Utc>>,
}

/// The parent of a new branch, as locked in a transaction.
struct ParentRow {
    status: Status,
    engine: String,
}

/// Records a new branch, its project and its first run.
///
/// Errors: [`Error::Conflict`] if the name or the Git branch is taken; [`Error::Rejected`] if the
/// parent has too many branches, or does not run and its data is requested;
/// [`Error::Unprocessable`] if the parent is a branch.
pub(super) async fn create(
    context: &ApiContext,
    parent: &Project,
    new: NewBranch,
    audit: &Recorder,
) -> Result<BranchView, Error> {
    let now = context.clock.now();
    check_expiry(new.expires_at, new.persistent, now)?;
    let password = SecretString::from(context.entropy.letters(40));
    let verifier = verifier(password).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("creating a branch")?;
    let row = lock_parent(&transaction, parent).await?;
    let id = if new.is_default {
        insert_default(context, &transaction, parent, &new.name, now)
            .await?
            .ok_or_else(|| Error::Conflict("The project has a default branch already".into()))?
    } else {
        insert_default(context, &transaction, parent, DEFAULT_NAME, now).await?;
        check_new(&transaction, parent, &new, &row).await?;
        insert_branch(context, &transaction, parent, &new, &verifier, now).await?
    };
    let after = json!({"id": id, "name": new.name, "with_data": new.with_data, "persistent": new.persistent, "is_default": new.is_default});
    audit
        .write_in(&transaction, 201, (None, Some(after)), now)
        .await?;
    let view = read_in(&transaction, id).await?.view();
    transaction.commit().await.context("creating a branch")?;
    changed(context);
    Ok(view)
}

/// Locks the row of the parent, so that it is not removed meanwhile.
async fn lock_parent(transaction: &Transaction<'_>, parent: &Project) -> Result<ParentRow, Error> {
    let sql = "select status, engine, exists (select from branches b where b.project_id = p.id and not b.is_default) \
               from projects p where id = $1 and desired <> 'removed' for update";
    let row = transaction
        .query_opt(sql, &[&parent.id.0])
        .await
        .context("creating a branch")?
        .ok_or_else(removed)?;
    if row.get(2) {
        let text = "A branch cannot have branches; create it from the parent project";
        return Err(Error::Unprocessable(text.into()));
    }
    Ok(ParentRow {
        status: Status::read(&row, 0)?,
        engine: row.get(1),
    })
}

async fn check_new(
    transaction: &Transaction<'_>,
    parent: &Project,
    new: &NewBranch,
    row: &ParentRow,
) -> Result<(), Error> {
    let sql = "select count(*) from branches where parent_id = $1 and not is_default";
    let count: i64 = transaction
        .query_one(sql, &[&parent.id.0])
        .await
        .context("counting branches")?
        .get(0);
    if count >= BRANCHES_MAX {
        return Err(Error::Rejected(
            format!("The project has {BRANCHES_MAX} branches already; delete one first").into(),
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
    parent: &Project,
    new: &NewBranch,
    verifier: &str,
    now: DateTime<Utc>,
) -> Result<Uuid, Error> {
    let id = context.entropy.uuid();
    let reference = ProjectRef::generate(&context.entropy);
    let name = format!("{} ({reference})", new.name);
    let size = new.size.map(InstanceSize::code);
    // On the node of the parent, where its files are. Roles of a copy are repaired at its start.
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
                &parent.id.0,
                &reference.as_str(),
                &name,
                &size,
                &verifier,
                &now,
                &context.driver.platform_version(),
                &new.with_data,
            ],
        )
        .await
        .context("creating the project of a branch")?;
    let project = ProjectId(row.get(0));
    api_keys::create_initial(context, transaction, project, now).await?;
    for sql in FOLLOWING {
        transaction
            .execute(*sql, &[&parent.id.0, &project.0])
            .await
            .context("copying settings to a branch")?;
    }
    let life = context.api_settings.branch_life;
    let expires = (!new.persistent).then(|| new.expires_at.unwrap_or(now + life));
    let sql = "insert into branches (id, project_id, parent_id, name, git_branch, persistent, with_data, status, notify_url, expires_at, \
               created_at, updated_at) values ($1, $2, $3, $4, $5, $6, $7, 'CREATING_PROJECT', $8, $9, $10, $10)";
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
    Ok(id)
}

/// Settings of the parent (`$1`) that a branch (`$2`) begins with. Network restrictions are among
/// them: a copy of the data is not reachable from more places than the original.
const FOLLOWING: &[&str] = &[
    "insert into project_networks (project_id, tls_required, allowed, updated_at) \
     select $2, tls_required, allowed, updated_at from project_networks where project_id = $1",
    "insert into rest_settings (project_id, db_schema, max_rows, db_extra_search_path, db_pool, generation) \
     select $2, db_schema, max_rows, db_extra_search_path, db_pool, 1 from rest_settings where project_id = $1",
];

async fn read_in(transaction: &Transaction<'_>, id: Uuid) -> Result<BranchRow, Error> {
    let sql = select_branches!("where b.id = $1");
    let row = transaction.query_one(sql, &[&id]).await;
    BranchRow::read(&row.context("reading a branch")?)
}

fn changed(context: &ApiContext) {
    context.table_changed(Table::Branches);
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    context.branch_runner.wake();
}

/// Changes a branch.
pub(super) async fn update(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
    patch: BranchPatch,
    audit: &Recorder,
) -> Result<BranchView, Error> {
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default && patch.persistent == Some(false) {
        let text = "The default branch is always persistent";
        return Err(Error::Unprocessable(text.into()));
    }
    let persistent = patch.persistent.unwrap_or(branch.persistent);
    check_expiry(patch.expires_at, persistent, now)?;
    let name = patch.name.as_deref().unwrap_or(&branch.name);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("changing a branch")?;
    let sql = "update branches set name = $2, git_branch = case when $3::text is null then git_branch else nullif($3, '') end, \
               persistent = coalesce($4, persistent), status = coalesce($5, status), notify_url = \
               nullif(coalesce($6, notify_url), ''), \
               review_requested_at = case when $7::boolean is null then review_requested_at when \
               $7 then $8 end, \
               expires_at = case when is_default or coalesce($4, persistent) then null else \
               coalesce($10, expires_at, $9) end, \
               updated_at = $8 where id = $1";
    let status = patch.status.map(BranchStatus::name);
    transaction
        .execute(
            sql,
            &[
                &branch.id,
                &name,
                &patch.git_branch,
                &patch.persistent,
                &status,
                &patch.notify_url,
                &patch.request_review,
                &now,
                &(now + context.api_settings.branch_life),
                &patch.expires_at,
            ],
        )
        .await
        .map_err(|error| duplicate(error, name))?;
    let view = read_in(&transaction, branch.id).await?.view();
    let (before, after) = (json!({"name": branch.name}), json!({"name": name}));
    audit
        .write_in(&transaction, 200, (Some(before), Some(after)), now)
        .await?;
    transaction.commit().await.context("changing a branch")?;
    context.table_changed(Table::Branches);
    Ok(view)
}

/// Deletes a branch, at once or after an hour.
///
/// Errors: [`Error::Unprocessable`] for a persistent or the default branch.
pub(super) async fn delete(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
    at_once: bool,
    audit: &Recorder,
) -> Result<(), Error> {
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default {
        let text = "Cannot delete the default branch; disable preview branching instead";
        return Err(Error::Unprocessable(text.into()));
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("deleting a branch")?;
    let sql = "select persistent from branches where id = $1 for update";
    let row = transaction
        .query_opt(sql, &[&branch.id])
        .await
        .context("deleting a branch")?
        .ok_or(Error::NotFound)?;
    if row.get(0) {
        return Err(Error::Unprocessable(
            "Cannot delete persistent branch".into(),
        ));
    }
    if at_once {
        projects::remove_in(&transaction, &branch.project, now).await?;
    } else {
        let sql = "update branches set deletion_scheduled_at = coalesce(deletion_scheduled_at, $2), updated_at = $3 where id = $1";
        transaction
            .execute(sql, &[&branch.id, &(now + GRACE), &now])
            .await
            .context("deleting a branch")?;
    }
    let before = json!({"id": branch.id, "name": branch.name, "at_once": at_once});
    audit
        .write_in(&transaction, 200, (Some(before), None), now)
        .await?;
    transaction.commit().await.context("deleting a branch")?;
    changed(context);
    Ok(())
}

/// Cancels the scheduled deletion of a branch.
///
/// Errors: [`Error::Rejected`] if none is scheduled.
pub(super) async fn restore(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
    audit: &Recorder,
) -> Result<(), Error> {
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("restoring a branch")?;
    let sql = "update branches set deletion_scheduled_at = null, updated_at = $2 where id = $1 and deletion_scheduled_at is not null";
    let restored = transaction.execute(sql, &[&branch.id, &now]).await;
    if restored.context("restoring a branch")? == 0 {
        let text = "The branch is not scheduled for deletion";
        return Err(Error::Rejected(text.into()));
    }
    let after = json!({"id": branch.id, "name": branch.name});
    audit
        .write_in(&transaction, 200, (None, Some(after)), now)
        .await?;
    transaction.commit().await.context("restoring a branch")?;
    changed(context);
    Ok(())
}

/// Removes all branches of a project.
///
/// Errors: [`Error::Unprocessable`] if the project has none, or is a branch.
pub(super) async fn disable(
    context: &ApiContext,
    parent: &Project,
    audit: &Recorder,
) -> Result<(), Error> {
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("disabling branches")?;
    lock_parent(&transaction, parent).await?;
    let sql = select_branches!("where b.parent_id = $1 order by b.id");
    let rows = transaction.query(sql, &[&parent.id.0]).await;
    let rows = rows.context("disabling branches")?;
    if rows.is_empty() {
        return Err(Error::Unprocessable(super::DISABLED.into()));
    }
    let mut names = Vec::new();
    for row in &rows {
        let branch = BranchRow::read(row)?;
        if !branch.is_default {
            projects::remove_in(&transaction, &branch.project, now).await?;
            names.push(branch.name);
        }
    }
    let sql = "delete from branches where project_id = $1";
    let deleted = transaction.execute(sql, &[&parent.id.0]).await;
    deleted.context("disabling branches")?;
    audit
        .write_in(
            &transaction,
            200,
            (Some(json!({"branches": names})), None),
            now,
        )
        .await?;
    transaction.commit().await.context("disabling branches")?;
    changed(context);
    Ok(())
}

/// Begins a merge, a push or a reset, and returns the id of its run.
///
/// Errors: [`Error::Conflict`] while another run changes the same project, or naming the first
/// migration that both have with different SQL; [`Error::Invalid`] for an unknown version;
/// [`Error::Unprocessable`] for the default branch.
pub(super) async fn begin_run(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
    kind: RunKind,
    migration_version: Option<String>,
    audit: &Recorder,
) -> Result<String, Error> {
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default {
        let text = "The default branch is the project itself; choose another branch";
        return Err(Error::Unprocessable(text.into()));
    }
    check_ledgers(context, &branch, kind, migration_version.as_deref()).await?;
    let verifier = match kind {
        RunKind::Reset => Some(current_verifier(context, &branch).await?),
        RunKind::Create | RunKind::Merge | RunKind::Push => None,
    };
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context("beginning a run")?;
    let changed_project = match kind {
        RunKind::Merge => branch.parent.id,
        RunKind::Create | RunKind::Push | RunKind::Reset => branch.project.id,
    };
    let new = NewRun {
        kind,
        project: changed_project,
        branch: branch.id,
        migration_version: migration_version.as_deref(),
    };
    let run = runs::begin(&transaction, &context.entropy, new, now).await?;
    if let Some(verifier) = verifier {
        rebuild(&transaction, &branch, &verifier, now).await?;
    }
    let after = json!({"run": run, "kind": kind.name(), "branch": branch.name, "migration_version": migration_version});
    audit
        .write_in(&transaction, 201, (None, Some(after)), now)
        .await?;
    transaction.commit().await.context("beginning a run")?;
    changed(context);
    Ok(run)
}

/// Compares the ledgers before a run is accepted.
async fn check_ledgers(
    context: &ApiContext,
    branch: &BranchRow,
    kind: RunKind,
    last: Option<&str>,
) -> Result<(), Error> {
    let parent = runner::read_ledger(context, &branch.parent).await?;
    let own = match kind {
        RunKind::Merge | RunKind::Push => runner::read_ledger(context, &branch.project).await?,
        RunKind::Create | RunKind::Reset => Vec::new(),
    };
    let source = if kind == RunKind::Merge {
        &own
    } else {
        &parent
    };
    let target = if kind == RunKind::Merge {
        &parent
    } else {
        &own
    };
    if let Some(last) = last
        && !source.iter().any(|entry| entry.version == last)
    {
        return Err(Error::invalid("migration_version", "no such migration"));
    }
    let fork = branch.fork.iter().cloned().collect();
    let plan = ledger::plan(source, target, &fork);
    match plan.conflicts.first() {
        Some(version) => Err(Error::Conflict(
            format!("Migration {version} differs between the branch and its parent; rename one of the two").into(),
        )),
        None => Ok(()),
    }
}

/// Returns the verifier of the password of `postgres`, which a reset keeps.
async fn current_verifier(context: &ApiContext, branch: &BranchRow) -> Result<String, Error> {
    crate::data_plane::projects::target(context, &branch.project).await?;
    let admin = context
        .driver
        .admin_session(&branch.project.reference)
        .await
        .context("connecting to a cluster")?;
    let sql = "select rolpassword from pg_catalog.pg_authid where rolname = 'postgres' and rolpassword like 'SCRAM-SHA-256$%'";
    let row = admin
        .query_opt(sql, &[])
        .await
        .context("reading a password's verifier")?;
    match row {
        Some(row) => Ok(row.get(0)),
        None => verifier(SecretString::from(context.entropy.letters(40))).await,
    }
}

/// Requests a new cluster under the same ref and keys.
async fn rebuild(
    transaction: &Transaction<'_>,
    branch: &BranchRow,
    verifier: &str,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update projects set rebuild = true, status = 'COMING_UP', generation = generation + 1, attempts = 0, not_before = $3, \
               updated_at = $3, password_verifier = $2, asleep = false, copy_of = case when $4 \
               then $5::bigint end, outdated = outdated or $4 \
               where id = $1 and desired = 'active' and status = 'ACTIVE_HEALTHY'";
    let parent = branch.parent.id.0;
    let changed = transaction
        .execute(
            sql,
            &[
                &branch.project.id.0,
                &verifier,
                &now,
                &branch.with_data,
                &parent,
            ],
        )
        .await
        .context("resetting a branch")?;
    if changed == 0 {
        let text = "The branch must be running to be reset";
        return Err(Error::Rejected(text.into()));
    }
    let sql = "update branches set status = 'CREATING_PROJECT', fork = '{}', copy_report = null, updated_at = $2 where id = $1";
    transaction
        .execute(sql, &[&branch.id, &now])
        .await
        .context("resetting a branch")
        .map(drop)
}
