//! Commands of operators on branches. Each change is recorded with its audit entry; the runner of
//! the node carries it out.

use chrono::{DateTime, Utc};
use gantry_base::{clock::Clock, ids::ProjectRef};
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Transaction;

use super::{
    branch_row::{BranchRow, BranchStatus, select_branches},
    expiry::LIFE_MAX,
};
use crate::platform::{
    audit::{Change, Recorder},
    db::{self, Db},
    error::{Context, Error},
    events::NewEvent,
};

/// Maximum number of branches in a list.
const LIST_MAX: i64 = 10_000;
/// Maximum number of scripts of one kind of a project.
pub const SCRIPTS_MAX: usize = 100;
/// Maximum size of one script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 64 << 10;

/// A branch in the list of an operator.
#[derive(Debug, Serialize)]
pub struct OperatedBranch {
    /// Ref of its project.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Ref of the parent.
    pub parent: String,
    /// Name.
    pub name: String,
    /// Whether it has the data of its parent.
    pub with_data: bool,
    /// Whether it never ends by itself.
    pub persistent: bool,
    /// Progress of its last run.
    pub status: BranchStatus,
    /// Time at which it is deleted.
    pub ends_at: Option<DateTime<Utc>>,
}

/// Lists the branches of all projects, or of one, without default branches.
pub async fn list(db: &Db, parent: Option<&ProjectRef>) -> Result<Vec<OperatedBranch>, Error> {
    let sql = "select c.ref, p.ref, b.name, b.with_data, b.persistent, b.status, least(b.expires_at, b.deletion_scheduled_at) \
               from branches b join projects c on c.id = b.project_id \
               join projects p on p.id = b.parent_id \
               where not b.is_default and ($1::text is null or p.ref = $1) order by p.ref, b.created_at, b.id limit $2";
    let parent = parent.map(ProjectRef::as_str);
    let rows = db.query(sql, &[&parent, &LIST_MAX]).await;
    let rows = rows.context("listing branches")?;
    let branch = |row: &tokio_postgres::Row| {
        Ok(OperatedBranch {
            reference: row.get(0),
            parent: row.get(1),
            name: row.get(2),
            with_data: row.get(3),
            persistent: row.get(4),
            status: BranchStatus::read(row.get(5))?,
            ends_at: row.get(6),
        })
    };
    rows.iter().map(branch).collect()
}

/// Schedules the deletion of a branch, which the runner carries out at once.
///
/// Errors: [`Error::NotFound`]; [`Error::Unprocessable`] for a persistent branch, unless `force`.
pub async fn delete(
    db: &Db,
    reference: &ProjectRef,
    force: bool,
    clock: &Clock,
    audit: Recorder,
) -> Result<(), Error> {
    let doing = "deleting a branch";
    let now = clock.now();
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    if persistent(&transaction, reference).await? && !force {
        let text = "The branch is persistent; delete it anyway with --force";
        return Err(Error::Unprocessable(text.into()));
    }
    let sql = "update branches set persistent = false, deletion_scheduled_at = $2, updated_at = $2 \
               where project_id = (select id from projects where ref = $1)";
    let changed = transaction.execute(sql, &[&reference.as_str(), &now]).await;
    changed.context(doing)?;
    let before = json!({"ref": reference, "force": force});
    let events = [updated(&transaction, reference).await?];
    let change = Change::new((Some(before), None), events);
    audit.commit(transaction, doing, 200, change, now).await
}

/// Sets the time at which a branch is deleted.
///
/// Errors: [`Error::NotFound`]; [`Error::Unprocessable`] for a persistent branch;
/// [`Error::Invalid`] for a time that is not in the next 365 days.
pub async fn expire(
    db: &Db,
    reference: &ProjectRef,
    at: DateTime<Utc>,
    clock: &Clock,
    audit: Recorder,
) -> Result<(), Error> {
    let doing = "changing a branch";
    let now = clock.now();
    if at > now + LIFE_MAX {
        let problem = "expected a time in the next 365 days";
        return Err(Error::invalid("expires_at", problem));
    }
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    if persistent(&transaction, reference).await? {
        let text = "The branch is persistent, and does not end by itself";
        return Err(Error::Unprocessable(text.into()));
    }
    let sql = "update branches set expires_at = $2, updated_at = $3 \
               where project_id = (select id from projects where ref = $1)";
    transaction
        .execute(sql, &[&reference.as_str(), &at, &now])
        .await
        .context(doing)?;
    let after = json!({"ref": reference, "expires_at": at});
    let events = [updated(&transaction, reference).await?];
    let change = Change::new((None, Some(after)), events);
    audit.commit(transaction, doing, 200, change, now).await
}

/// Returns the event of a change of a branch.
async fn updated(transaction: &Transaction<'_>, reference: &ProjectRef) -> Result<NewEvent, Error> {
    let sql = select_branches!("where c.ref = $1 and not b.is_default");
    let row = transaction.query_one(sql, &[&reference.as_str()]).await;
    Ok(BranchRow::read(&row.context("reading a branch")?)?.updated())
}

/// Locks the row of a branch, and returns whether it is persistent.
async fn persistent(transaction: &Transaction<'_>, reference: &ProjectRef) -> Result<bool, Error> {
    let sql = "select b.persistent from branches b join projects c on c.id = b.project_id \
               where c.ref = $1 and not b.is_default and c.desired <> 'removed' for update of b";
    let row = transaction.query_opt(sql, &[&reference.as_str()]).await;
    let row = row.context("reading a branch")?;
    Ok(row.ok_or(Error::NotFound)?.get(0))
}

/// SQL that the operator stores with a project, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchScripts {
    /// Masks the data of copies, before they can be reached.
    Masking,
    /// Fills branches without data, once.
    Seed,
}

/// Statements of one kind of scripts.
struct ScriptSql {
    read: &'static str,
    write: &'static str,
    delete: &'static str,
}

impl BranchScripts {
    const fn sql(self) -> ScriptSql {
        match self {
            Self::Masking => ScriptSql {
                read: "select m.rules from branch_maskings m join projects p on p.id = m.project_id where p.ref = $1",
                write: "insert into branch_maskings (project_id, rules, updated_at) values ($1, $2, $3) \
                        on conflict (project_id) do update set rules = $2, updated_at = $3",
                delete: "delete from branch_maskings where project_id = $1",
            },
            Self::Seed => ScriptSql {
                read: "select s.scripts from branch_seeds s join projects p on p.id = s.project_id where p.ref = $1",
                write: "insert into branch_seeds (project_id, scripts, updated_at) values ($1, $2, $3) \
                        on conflict (project_id) do update set scripts = $2, updated_at = $3",
                delete: "delete from branch_seeds where project_id = $1",
            },
        }
    }
}

/// Returns scripts of a project, in order.
pub async fn scripts(
    db: &Db,
    kind: BranchScripts,
    project: &ProjectRef,
) -> Result<Vec<String>, Error> {
    let rows = db.query(kind.sql().read, &[&project.as_str()]).await;
    let rows = rows.context("reading scripts of branches")?;
    Ok(rows.first().map_or_else(Vec::new, |row| row.get(0)))
}

/// Replaces scripts of a project. They apply to branches that are made or reset later. An empty
/// list removes them.
///
/// Errors: [`Error::NotFound`]; [`Error::Invalid`] for too many or too long scripts.
pub async fn set_scripts(
    db: &Db,
    kind: BranchScripts,
    project: &ProjectRef,
    scripts: &[String],
    clock: &Clock,
    audit: Recorder,
) -> Result<(), Error> {
    let is_valid = |script: &String| {
        !script.trim().is_empty() && script.len() <= SCRIPT_BYTES_MAX && !script.contains('\0')
    };
    if scripts.len() > SCRIPTS_MAX || !scripts.iter().all(is_valid) {
        let problem = "expected at most 100 scripts of at most 64 KiB, none of them empty";
        return Err(Error::invalid("scripts", problem));
    }
    let now = clock.now();
    let doing = "changing scripts of branches";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select id from projects where ref = $1 and desired <> 'removed' for update";
    let row = transaction.query_opt(sql, &[&project.as_str()]).await;
    let id: i64 = row.context(doing)?.ok_or(Error::NotFound)?.get(0);
    let written = if scripts.is_empty() {
        transaction.execute(kind.sql().delete, &[&id]).await
    } else {
        let params: [db::Param<'_>; 3] = [&id, &scripts, &now];
        transaction.execute(kind.sql().write, &params).await
    };
    written.context(doing)?;
    let after = json!({"ref": project, "scripts": scripts.len()});
    let change = (None, Some(after));
    audit.commit(transaction, doing, 200, change, now).await
}
