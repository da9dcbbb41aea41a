//! Whether clients of single projects must send an API key: set by the operator with `gantry key-check`, or through the operator's API.

use std::{collections::HashMap, fmt};

use serde::Serialize;
use serde_json::json;

use crate::{
    base::{
        clock::Clock,
        db::Db,
        error::{Context, Error},
        ids::{OrganizationId, ProjectId, ProjectRef},
    },
    platform::audit::Recorder,
};

/// The setting of one project.
#[derive(Debug, Serialize)]
pub struct KeyCheck {
    project: String,
    enabled: bool,
}

impl fmt::Display for KeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}  {}",
            self.project,
            if self.enabled { "on" } else { "off" }
        )
    }
}

/// The setting of every project that has one.
pub(super) async fn all(db: &Db) -> Result<HashMap<ProjectId, bool>, Error> {
    let rows = db
        .query("select project_id, enabled from project_key_checks", &[])
        .await
        .context("reading key checks")?;
    Ok(rows
        .iter()
        .map(|row| (ProjectId(row.get(0)), row.get(1)))
        .collect())
}

/// The settings of all projects that have one, by ref.
pub async fn list(db: &Db) -> Result<Vec<KeyCheck>, Error> {
    let sql = "select p.ref, k.enabled from project_key_checks k join projects p on p.id = k.project_id order by 1";
    let rows = db.query(sql, &[]).await.context("listing key checks")?;
    Ok(rows
        .iter()
        .map(|row| KeyCheck {
            project: row.get(0),
            enabled: row.get(1),
        })
        .collect())
}

/// The setting of one project. None: the server's option decides.
pub async fn of(db: &Db, project: &ProjectRef) -> Result<Option<bool>, Error> {
    let sql = "select k.enabled from projects p left join project_key_checks k on k.project_id = p.id \
               where p.ref = $1 and p.desired <> 'removed'";
    let rows = db
        .query(sql, &[&project.as_str()])
        .await
        .context("reading a project's key check")?;
    rows.first().map(|row| row.get(0)).ok_or(Error::NotFound)
}

/// Sets whether clients of a project must send an API key; `None` leaves it to the server's option. Returns the setting before. Setting
/// what is already set changes nothing, and is not in the audit log.
pub async fn set(
    db: &Db,
    project: &ProjectRef,
    enabled: Option<bool>,
    clock: &Clock,
    audit: Recorder,
) -> Result<Option<bool>, Error> {
    let doing = "setting a key check";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "select id, organization_id from projects where ref = $1 and desired <> 'removed' for update";
    let found = transaction
        .query_opt(sql, &[&project.as_str()])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let (id, audit) = (
        found.get::<_, i64>(0),
        audit.about(OrganizationId(found.get(1)), project),
    );
    let sql = "delete from project_key_checks where project_id = $1 returning enabled";
    let before: Option<bool> = transaction
        .query_opt(sql, &[&id])
        .await
        .context(doing)?
        .map(|row| row.get(0));
    if before == enabled {
        // Not committed: the row stays.
        return Ok(before);
    }
    if let Some(enabled) = enabled {
        let sql = "insert into project_key_checks (project_id, enabled) values ($1, $2)";
        transaction
            .execute(sql, &[&id, &enabled])
            .await
            .context(doing)?;
    }
    let told = |enabled: bool| json!({ "check_keys": enabled });
    audit
        .write_in(
            &transaction,
            200,
            (before.map(told), enabled.map(told)),
            clock.now(),
        )
        .await?;
    transaction.commit().await.context(doing)?;
    Ok(before)
}
