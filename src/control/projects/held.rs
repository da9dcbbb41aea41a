//! Removed projects that can be restored (decision 0136).
//!
//! A removed project keeps its ref and its stopped cluster until `held_until`. Its rows in other
//! tables are moved to one JSON value, in the transaction that removes the project, and back when
//! it is restored. A restored project gets back its keys as they were, so clients need no change.

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Clock,
    ids::{OrganizationId, ProjectId, ProjectRef},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_postgres::{Row, Transaction};

use super::{Status, removed, status_events};
use crate::{
    control::{context::ControlContext, domains::vanity},
    platform::{
        access::Project,
        audit::{Change, Recorder},
        db::{self, Db},
        error::{Context, Error},
        events::{EventPayload, NewEvent, payloads::ProjectRestored},
        tables::{ProjectRemoval, Table},
    },
};

/// Maximum number of removed projects in a listing.
const LISTED_MAX: i64 = 1000;
/// Projects that one pass of [`purge_expired`] ends the hold of.
const BATCH: i64 = 64;

/// Returns the condition on the rows of a project in a table. `None` if its rows are not moved.
fn condition(table: Table) -> Option<&'static str> {
    match (table, table.on_project_removed()) {
        (Table::FunctionVersions, _) => {
            Some("function_id in (select id from functions where project_id = $1)")
        }
        (Table::HostnameCertificates, _) => {
            Some("hostname_id in (select id from custom_hostnames where project_id = $1)")
        }
        (_, ProjectRemoval::Delete | ProjectRemoval::Cascade) => Some("project_id = $1"),
        (_, ProjectRemoval::Unrelated | ProjectRemoval::Keep(_)) => None,
    }
}

/// Copies the rows of a project aside, before they are deleted, and holds the project.
pub async fn hold_in(
    transaction: &Transaction<'_>,
    project: ProjectId,
    vanity: Option<&str>,
    until: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "holding a removed project";
    let mut rows = Map::new();
    for table in Table::ALL {
        let Some(condition) = condition(*table) else {
            continue;
        };
        let name = table.name();
        let sql = format!("select jsonb_agg(to_jsonb(t)) from {name} t where {condition}");
        let row = transaction.query_one(&sql, &[&project.0]).await;
        if let Some(found) = row.context(doing)?.get::<_, Option<Value>>(0) {
            rows.insert(name.to_owned(), found);
        }
    }
    let sql = "insert into removed_project_rows (project_id, removed_at, vanity, rows) values ($1, $2, $3, $4)";
    let rows = Value::Object(rows);
    transaction
        .execute(sql, &[&project.0, &now, &vanity, &rows])
        .await
        .context(doing)?;
    let sql = "update projects set held_until = $2 where id = $1";
    let held = transaction.execute(sql, &[&project.0, &until]).await;
    held.context(doing).map(drop)
}

/// Returns whether a project is removed and can be restored.
pub async fn is_held(context: &ControlContext, project: ProjectId) -> Result<bool, Error> {
    let sql = "select held_until > $2 from projects where id = $1";
    let rows = context
        .db
        .query(sql, &[&project.0, &context.clock.now()])
        .await
        .context("reading a removed project")?;
    Ok(rows.first().and_then(|row| row.get(0)) == Some(true))
}

/// Brings a removed project back, with the rows that it had, and wakes the reconciler.
///
/// Rows that conflict with newer ones, such as a hostname that another project has now, stay away
/// and are named in the audit log.
///
/// Errors: [`Error::Rejected`] if it is not held any more, or another project has its name.
pub async fn restore(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "restoring a removed project";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let mut transaction = client.transaction().await.context(doing)?;
    let sql = "select name from projects where id = $1 and held_until > $2 for update";
    let row = transaction.query_opt(sql, &[&project.id.0, &now]).await;
    let name: String = row.context(doing)?.ok_or_else(removed)?.get(0);
    let sql = "update projects set desired = 'active', status = 'RESTORING', generation = generation + 1, attempts = 0, falls = 0, \
               last_error = null, asleep = false, held_until = null, not_before = $2, updated_at = $2 where id = $1";
    transaction
        .execute(sql, &[&project.id.0, &now])
        .await
        .map_err(|error| match db::violated(&error) {
            Some("projects_name_key") => Error::Rejected(
                format!("Project with name {name} already exists in this organization; rename or delete it first").into(),
            ),
            _ => Error::internal(doing, error),
        })?;
    let sql = "delete from removed_project_rows where project_id = $1 returning vanity, rows";
    let row = transaction.query_one(sql, &[&project.id.0]).await;
    let row = row.context(doing)?;
    let (vanity, rows): (Option<String>, Value) = (row.get(0), row.get(1));
    let mut missing = Vec::new();
    // The order in which rows are deleted, reversed: referenced rows come first.
    for table in Table::ALL.iter().rev() {
        let stored = rows.get(table.name()).and_then(Value::as_array);
        for stored in stored.into_iter().flatten() {
            if !put_back(&mut transaction, *table, stored).await? {
                missing.push(table.name());
            }
        }
    }
    if let Some(name) = &vanity
        && !vanity::return_to(&transaction, project, name, now).await?
    {
        missing.push(Table::VanitySubdomains.name());
    }
    missing.dedup();
    let states = (
        Some(json!({"status": Status::Removed})),
        Some(json!({"status": Status::Restoring, "not_restored": missing})),
    );
    let mut events = vec![ProjectRestored {}.about(project)];
    events.extend(status_events::changed(&transaction, &[project.id]).await?);
    let change = Change::new(states, events);
    audit.commit(transaction, doing, 200, change, now).await?;
    for table in Table::ALL {
        if condition(*table).is_some() {
            context.table_changed(*table);
        }
    }
    context.table_changed(Table::VanitySubdomains);
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(())
}

/// Inserts a row as it was. Returns `false` if it conflicts with another one, or refers to one that
/// does not exist any more.
async fn put_back(
    transaction: &mut Transaction<'_>,
    table: Table,
    row: &Value,
) -> Result<bool, Error> {
    let doing = "restoring a row of a removed project";
    let name = table.name();
    // Columns that were added since keep their defaults.
    let stored: Vec<&String> = row
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
        .collect();
    let sql = "select string_agg(quote_ident(attname), ', ') from pg_attribute
               where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = '' and attname = any ($2)";
    let columns = transaction.query_one(sql, &[&name, &stored]).await;
    let Some(columns) = columns.context(doing)?.get::<_, Option<String>>(0) else {
        return Ok(false);
    };
    let savepoint = transaction.savepoint("row").await.context(doing)?;
    let sql = format!(
        "insert into {name} ({columns}) overriding system value select {columns} from jsonb_populate_record(null::{name}, $1)"
    );
    match savepoint.execute(&sql, &[&row]).await {
        Ok(_) => savepoint.commit().await.context(doing).map(|()| true),
        // 23: integrity constraint violation.
        Err(error)
            if error
                .code()
                .is_some_and(|code| code.code().starts_with("23")) =>
        {
            savepoint.rollback().await.context(doing).map(|()| false)
        }
        Err(error) => Err(Error::internal(doing, error)),
    }
}

/// A removed project that can be restored.
#[derive(Debug, Serialize)]
pub struct HeldProject {
    /// Its reference.
    #[serde(rename = "ref")]
    pub reference: ProjectRef,
    /// Its name, which another project may have by now.
    pub name: String,
    /// Slug of its organization.
    pub organization: String,
    /// Time of the removal.
    pub removed_at: DateTime<Utc>,
    /// End of the hold.
    pub held_until: DateTime<Utc>,
}

/// Lists the removed projects that can be restored, of one organization or of all, oldest first.
pub async fn list(db: &Db, organization: Option<i64>) -> Result<Vec<HeldProject>, Error> {
    let sql = "select p.ref, p.name, o.slug, r.removed_at, p.held_until from projects p
               join organizations o on o.id = p.organization_id
               join removed_project_rows r on r.project_id = p.id
               where p.held_until is not null and ($1::bigint is null or o.id = $1) order by p.held_until, p.id limit $2";
    let rows = db
        .query(sql, &[&organization, &LISTED_MAX])
        .await
        .context("listing removed projects")?;
    rows.iter()
        .map(|row: &Row| {
            let reference = row.get::<_, &str>(0).parse();
            Ok(HeldProject {
                reference: reference.context("reading a project's ref")?,
                name: row.get(1),
                organization: row.get(2),
                removed_at: row.get(3),
                held_until: row.get(4),
            })
        })
        .collect()
}

/// Ends the hold of a removed project. The reconciler of its node then deletes its data.
///
/// Errors: [`Error::NotFound`] if no removed project with this ref is held.
pub async fn purge(
    db: &Db,
    project: &ProjectRef,
    clock: &Clock,
    audit: Recorder,
) -> Result<(), Error> {
    let doing = "purging a removed project";
    let now = clock.now();
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select id, organization_id, name from projects where ref = $1 and held_until is not null for update";
    let row = transaction.query_opt(sql, &[&project.as_str()]).await;
    let row = row.context(doing)?.ok_or(Error::NotFound)?;
    let events = end_hold(&transaction, ProjectId(row.get(0)), now).await?;
    let audit = audit.about(OrganizationId(row.get(1)), project);
    let states = (Some(json!({"name": row.get::<_, &str>(2)})), None);
    let change = Change::new(states, events);
    audit.commit(transaction, doing, 200, change, now).await
}

/// Ends the hold of a project. Returns the events of the change.
async fn end_hold(
    transaction: &Transaction<'_>,
    project: ProjectId,
    now: DateTime<Utc>,
) -> Result<Vec<NewEvent>, Error> {
    let doing = "ending the hold of a removed project";
    let sql = "update projects set held_until = null, status = 'GOING_DOWN', generation = generation + 1, attempts = 0, not_before = $2, \
               updated_at = $2 where id = $1 and held_until is not null";
    let ended = transaction.execute(sql, &[&project.0, &now]).await;
    ended.context(doing)?;
    let sql = "delete from removed_project_rows where project_id = $1";
    let deleted = transaction.execute(sql, &[&project.0]).await;
    deleted.context(doing)?;
    status_events::changed(transaction, &[project]).await
}

/// Ends the holds that have expired.
pub async fn purge_expired(context: &ControlContext) -> Result<(), Error> {
    let doing = "ending the hold of a removed project";
    let now = context.clock.now();
    let sql = "select id, ref from projects where node = $1 and held_until <= $2 order by held_until limit $3";
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &now, &BATCH])
        .await
        .context(doing)?;
    if rows.is_empty() {
        return Ok(());
    }
    let mut client = context.db.client().await?;
    for row in &rows {
        let transaction = client.transaction().await.context(doing)?;
        let events = end_hold(&transaction, ProjectId(row.get(0)), now).await?;
        status_events::append(context, &transaction, &events).await?;
        transaction.commit().await.context(doing)?;
        tracing::info!(
            project = row.get::<_, &str>(1),
            "the hold of a removed project ended; deleting its data"
        );
    }
    context.reconciler.notify();
    Ok(())
}
