//! Change and removal of branches. Each is recorded with its audit entry in one
//! transaction; the reconciler and the runner carry it out, also after a crash.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_node::clusters::superuser;
use serde_json::json;
use tokio_postgres::Transaction;

use super::{
    branch_row::{
        BranchRow, BranchStatus, DISABLED, SchemaSource, changed, duplicate, find, read_in,
        select_branches,
    },
    create::lock_origin,
    drift,
    expiry::check_expiry,
    ledger::{self, read_ledger},
    password::GeneratedPassword,
    runs,
    runs::{NewRun, RunKind},
    space::check_space,
    target::BranchTarget,
    view::BranchView,
};
use crate::{
    api::{context::ApiContext, projects},
    control::projects::{Status, status_events},
    platform::{
        access::Project,
        audit::{Change, Recorder},
        error::{Context, Error},
        http::Json,
        tables::Table,
    },
};

/// Time between scheduling a deletion and the deletion.
const GRACE: TimeDelta = TimeDelta::hours(1);

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
    /// Takes effect with the next reset.
    pub(super) schema_source: Option<SchemaSource>,
}

/// Changes a branch.
pub(super) async fn update(
    context: &ApiContext,
    parent: &Project,
    target: &BranchTarget,
    patch: BranchPatch,
    audit: &Recorder,
) -> Result<BranchView, Error> {
    let doing = "changing a branch";
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default && patch.persistent == Some(false) {
        let text = "The default branch is always persistent";
        return Err(Error::Unprocessable(text.into()));
    }
    if branch.with_data && patch.schema_source == Some(SchemaSource::Parent) {
        let problem = "a branch with data always has the schema of its parent";
        return Err(Error::invalid("schema_source", problem));
    }
    let persistent = patch.persistent.unwrap_or(branch.persistent);
    check_expiry(patch.expires_at, persistent, now)?;
    let name = patch.name.as_deref().unwrap_or(&branch.name);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update branches set name = $2, git_branch = case when $3::text is null then git_branch else nullif($3, '') end, \
               persistent = coalesce($4, persistent), status = coalesce($5, status), notify_url = \
               nullif(coalesce($6, notify_url), ''), \
               review_requested_at = case when $7::boolean is null then review_requested_at when \
               $7 then $8 end, \
               expires_at = case when is_default or coalesce($4, persistent) then null else \
               coalesce($10, expires_at, $9) end, \
               schema_source = coalesce($11, schema_source), \
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
                &(now + context.api_settings.branches.life),
                &patch.expires_at,
                &patch.schema_source.map(SchemaSource::name),
            ],
        )
        .await
        .map_err(|error| duplicate(error, name))?;
    let (before, after) = (json!({"name": branch.name}), json!({"name": name}));
    let branch = read_in(&transaction, branch.id).await?;
    let change = Change::new((Some(before), Some(after)), [branch.updated()]);
    let view = branch.view(context);
    audit.answer(|| Json(&view));
    audit.commit(transaction, doing, 200, change, now).await?;
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
    let doing = "deleting a branch";
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default {
        let text = "Cannot delete the default branch; disable preview branching instead";
        return Err(Error::Unprocessable(text.into()));
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select persistent from branches where id = $1 for update";
    let row = transaction
        .query_opt(sql, &[&branch.id])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    if row.get(0) {
        return Err(Error::Unprocessable(
            "Cannot delete persistent branch".into(),
        ));
    }
    let mut events = Vec::new();
    if at_once {
        projects::remove_in(&transaction, &branch.project, now).await?;
        events.push(branch.removed());
        events.extend(status_events::changed(&transaction, &[branch.project.id]).await?);
    } else {
        let sql = "update branches set deletion_scheduled_at = coalesce(deletion_scheduled_at, $2), updated_at = $3 where id = $1";
        transaction
            .execute(sql, &[&branch.id, &(now + GRACE), &now])
            .await
            .context(doing)?;
        events.push(branch.updated());
    }
    let before = json!({"id": branch.id, "name": branch.name, "at_once": at_once});
    let change = Change::new((Some(before), None), events);
    audit.commit(transaction, doing, 200, change, now).await?;
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
    let doing = "restoring a branch";
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update branches set deletion_scheduled_at = null, updated_at = $2 where id = $1 and deletion_scheduled_at is not null";
    let restored = transaction.execute(sql, &[&branch.id, &now]).await;
    if restored.context(doing)? == 0 {
        let text = "The branch is not scheduled for deletion";
        return Err(Error::Rejected(text.into()));
    }
    let after = json!({"id": branch.id, "name": branch.name});
    let change = Change::new((None, Some(after)), [branch.updated()]);
    audit.commit(transaction, doing, 200, change, now).await?;
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
    let doing = "disabling branches";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock_origin(&transaction, parent).await?;
    let sql = select_branches!("where b.parent_id = $1 order by b.id");
    let rows = transaction.query(sql, &[&parent.id.0]).await;
    let rows = rows.context(doing)?;
    if rows.is_empty() {
        return Err(Error::Unprocessable(DISABLED.into()));
    }
    let mut names = Vec::new();
    let mut events = Vec::new();
    let mut removed = Vec::new();
    for row in &rows {
        let branch = BranchRow::read(row)?;
        events.push(branch.removed());
        if !branch.is_default {
            projects::remove_in(&transaction, &branch.project, now).await?;
            removed.push(branch.project.id);
            names.push(branch.name);
        }
    }
    events.extend(status_events::changed(&transaction, &removed).await?);
    let sql = "delete from branches where project_id = $1";
    let deleted = transaction.execute(sql, &[&parent.id.0]).await;
    deleted.context(doing)?;
    let change = Change::new((Some(json!({"branches": names})), None), events);
    audit.commit(transaction, doing, 200, change, now).await?;
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
    let doing = "beginning a run";
    let now = context.clock.now();
    let branch = find(context, parent, target).await?;
    if branch.is_default {
        let text = "The default branch is the project itself; choose another branch";
        return Err(Error::Unprocessable(text.into()));
    }
    check_ledgers(context, &branch, kind, migration_version.as_deref()).await?;
    let mut password = ResetPassword::Unchanged;
    if kind == RunKind::Reset {
        if branch.is_copy() {
            if migration_version.is_some() {
                let problem = "a branch that is a copy is reset to the state of its original";
                return Err(Error::invalid("migration_version", problem));
            }
            check_space(context, &branch.origin).await?;
        }
        password = reset_password(context, &branch).await?;
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
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
    if kind == RunKind::Reset {
        rebuild(&transaction, &branch, &password, now).await?;
    }
    let after = json!({"run": run, "kind": kind.name(), "branch": branch.name, "migration_version": migration_version});
    let events = status_events::changed(&transaction, &[branch.project.id]).await?;
    let change = Change::new((None, Some(after)), events);
    audit.result(&run);
    audit.commit(transaction, doing, 201, change, now).await?;
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
    let (source, target) = match kind {
        RunKind::Merge => (
            read_ledger(context, &branch.project).await?,
            read_ledger(context, &branch.parent).await?,
        ),
        RunKind::Push => (
            read_ledger(context, &branch.parent).await?,
            read_ledger(context, &branch.project).await?,
        ),
        RunKind::Create | RunKind::Reset => {
            (read_ledger(context, &branch.origin).await?, Vec::new())
        }
    };
    let (source, target) = (
        drift::without(branch, source),
        drift::without(branch, target),
    );
    if let Some(last) = last
        && !source.iter().any(|entry| entry.version == last)
    {
        return Err(Error::invalid("migration_version", "no such migration"));
    }
    let fork = branch.fork.iter().cloned().collect();
    let plan = ledger::plan(&source, &target, &fork);
    match plan.conflicts.first() {
        Some(version) => Err(Error::Conflict(
            format!("Migration {version} differs between the branch and its parent; rename one of the two").into(),
        )),
        None => Ok(()),
    }
}

/// The password of `postgres` in the new cluster of a branch that is reset.
enum ResetPassword {
    /// The branch could not be created yet: its row has the verifier.
    Unchanged,
    /// The password of the present cluster, by its verifier.
    Kept(String),
    /// A new one, because the present cluster has none.
    New(GeneratedPassword),
}

impl ResetPassword {
    fn verifier(&self) -> Option<&str> {
        match self {
            Self::Unchanged => None,
            Self::Kept(verifier) => Some(verifier),
            Self::New(password) => Some(&password.verifier),
        }
    }

    /// Returns the sealed password to store, if it is another one than before.
    fn sealed(&self) -> Option<&[u8]> {
        match self {
            Self::Unchanged | Self::Kept(_) => None,
            Self::New(password) => Some(&password.sealed),
        }
    }
}

/// Returns the password that the branch has after a reset.
async fn reset_password(context: &ApiContext, branch: &BranchRow) -> Result<ResetPassword, Error> {
    if branch.project_status == Status::InitFailed {
        return Ok(ResetPassword::Unchanged);
    }
    crate::control::projects::target(context, &branch.project).await?;
    let admin = context
        .driver
        .superuser_session(&branch.project.reference)
        .await
        .context("connecting to a cluster")?;
    let row = admin
        .query_opt(&superuser::OWNER_VERIFIER, &[])
        .await
        .context("reading a password's verifier")?;
    match row {
        Some(row) => Ok(ResetPassword::Kept(row.get(0))),
        None => GeneratedPassword::generate(context, branch.id)
            .await
            .map(ResetPassword::New),
    }
}

/// Requests a new cluster under the same ref and keys. A copy replaces the present cluster when it
/// is complete.
async fn rebuild(
    transaction: &Transaction<'_>,
    branch: &BranchRow,
    password: &ResetPassword,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update projects set rebuild = true, status = 'COMING_UP', generation = generation + 1, attempts = 0, not_before = $3, \
               updated_at = $3, password_verifier = coalesce($2, password_verifier), \
               asleep = false, copy_of = case when $4 then $5::bigint end, \
               outdated = outdated or $4 \
               where id = $1 and desired = 'active' and status in ('ACTIVE_HEALTHY', 'INIT_FAILED')";
    let changed = transaction
        .execute(
            sql,
            &[
                &branch.project.id.0,
                &password.verifier(),
                &now,
                &branch.is_copy(),
                &branch.origin.id.0,
            ],
        )
        .await
        .context("resetting a branch")?;
    if changed == 0 {
        let text = "The branch must be running to be reset";
        return Err(Error::Rejected(text.into()));
    }
    // What a failed copy leaves in place keeps its history.
    let sql = "update branches set status = 'CREATING_PROJECT', copy_phase = null, updated_at = $2, \
               fork = case when $3 then fork else '{}' end, \
               drift = case when $3 then drift else coalesce( \
                   (select o.drift from branches o where o.project_id = $4), '{}') end, \
               copy_report = case when $3 then copy_report end, \
               unapplied_drift = null, sealed_password = coalesce($5, sealed_password) where id = $1";
    transaction
        .execute(
            sql,
            &[
                &branch.id,
                &now,
                &branch.is_copy(),
                &branch.origin.id.0,
                &password.sealed(),
            ],
        )
        .await
        .context("resetting a branch")
        .map(drop)
}
