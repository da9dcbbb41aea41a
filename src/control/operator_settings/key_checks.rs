//! Whether clients of single projects must send an API key, set with `gantry key-check` or through
//! the operator's API.

use std::{collections::HashMap, fmt};

use gantry_base::{
    clock::Clock,
    ids::{ProjectId, ProjectRef},
};
use serde::Serialize;
use serde_json::json;

use super::project_setting::ProjectSetting;
use crate::platform::{
    audit::Recorder,
    db::Db,
    error::{Context, Error},
};

/// The setting of one project.
#[derive(Debug, Serialize)]
pub struct KeyCheckSetting {
    project: String,
    enabled: bool,
}

impl fmt::Display for KeyCheckSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}  {}",
            self.project,
            if self.enabled { "on" } else { "off" }
        )
    }
}

/// Returns the settings of all projects that have one, by project id.
pub(in crate::control) async fn all(db: &Db) -> Result<HashMap<ProjectId, bool>, Error> {
    let rows = db
        .query("select project_id, enabled from project_key_checks", &[])
        .await
        .context("reading key checks")?;
    Ok(rows
        .iter()
        .map(|row| (ProjectId(row.get(0)), row.get(1)))
        .collect())
}

/// Returns the settings of all projects that have one, by ref.
pub async fn list(db: &Db) -> Result<Vec<KeyCheckSetting>, Error> {
    let sql = "select p.ref, k.enabled from project_key_checks k join projects p on p.id = k.project_id order by 1";
    let rows = db.query(sql, &[]).await.context("listing key checks")?;
    Ok(rows
        .iter()
        .map(|row| KeyCheckSetting {
            project: row.get(0),
            enabled: row.get(1),
        })
        .collect())
}

/// Returns the setting of a project. `None`: the server's default applies.
pub async fn of(db: &Db, project: &ProjectRef) -> Result<Option<bool>, Error> {
    let sql = "select k.enabled from projects p left join project_key_checks k on k.project_id = p.id \
               where p.ref = $1 and p.desired <> 'removed'";
    let rows = db
        .query(sql, &[&project.as_str()])
        .await
        .context("reading a project's key check")?;
    rows.first().map(|row| row.get(0)).ok_or(Error::NotFound)
}

/// Sets whether clients of a project must send an API key; `None` restores the server's default.
/// Returns the previous setting.
pub async fn set(
    db: &Db,
    project: &ProjectRef,
    enabled: Option<bool>,
    clock: &Clock,
    audit: Recorder,
) -> Result<Option<bool>, Error> {
    let setting = ProjectSetting {
        action: "setting a key check",
        delete: "delete from project_key_checks where project_id = $1 returning enabled",
        insert: "insert into project_key_checks (project_id, enabled) values ($1, $2)",
        describe: |enabled: &bool| json!({ "check_keys": enabled }),
    };
    setting.set(db, project, &[], enabled, clock, audit).await
}
