//! Settings that differ from the document that was applied last.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ProjectSettings, Section};
use crate::{
    control::{context::ControlContext, service_settings::setting::SettingValues},
    platform::{
        access::Project,
        audit::Recorder,
        db::Param,
        error::{Context, Error},
    },
};

/// Settings that the health of a project names.
const NAMED_MAX: usize = 5;

/// The document that was applied last, and the settings that differ from it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Time at which a document was applied. `null`: none was.
    pub applied_at: Option<DateTime<Utc>>,
    /// User name of the author.
    pub applied_by: Option<String>,
    /// Settings of the document that were changed since.
    pub settings: Vec<DriftedSetting>,
}

/// A setting that differs from the document that was applied last.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriftedSetting {
    /// Path of the setting, such as `auth.jwt_exp`.
    pub setting: String,
    /// Value of the document. A secret is a fingerprint.
    pub applied: Value,
    /// Current value. A secret is a fingerprint.
    pub current: Value,
    /// Whether the value is a secret.
    pub secret: bool,
}

/// Stores the values of the settings that a document names, secrets as fingerprints.
pub(super) async fn remember(
    context: &ControlContext,
    project: &Project,
    after: &ProjectSettings,
    named: &[String],
    audit: &Recorder,
) -> Result<(), Error> {
    let mut values = after.recorded(context, project);
    values.retain(|path, _| named.contains(path));
    let sql = "insert into applied_settings (project_id, settings, applied_at, applied_by) \
               select id, $2, $3, $4 from projects where id = $1 and desired <> 'removed' \
               on conflict (project_id) do update set \
               settings = excluded.settings, applied_at = excluded.applied_at, \
               applied_by = excluded.applied_by returning 1";
    let parameters: [Param<'_>; 4] = [
        &project.id.0,
        &json!(values),
        &context.clock.now(),
        &audit.actor(),
    ];
    let stored = context.db.query(sql, &parameters).await;
    stored.context("storing the applied settings").map(drop)
}

/// Compares the settings of a project with the document that was applied last.
pub async fn drift(context: &ControlContext, project: &Project) -> Result<Drift, Error> {
    let doing = "comparing settings";
    let sql = "select a.settings, a.applied_at, u.username from applied_settings a \
               left join users u on u.gotrue_id = a.applied_by where a.project_id = $1";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(Drift {
            applied_at: None,
            applied_by: None,
            settings: Vec::new(),
        });
    };
    let applied: BTreeMap<String, Value> = serde_json::from_value(row.get(0)).context(doing)?;
    let current = ProjectSettings::read(context, project).await?;
    Ok(Drift {
        applied_at: row.get(1),
        applied_by: row.get(2),
        settings: differences(applied, &current.recorded(context, project)),
    })
}

fn differences(applied: SettingValues, current: &SettingValues) -> Vec<DriftedSetting> {
    let differing = applied.into_iter().filter_map(|(path, applied)| {
        // A setting that this version does not have any more cannot differ.
        let now = current.get(&path)?.clone();
        let (section, name) = Section::of_setting(&path)?;
        let declared = section.settings().get(name);
        (now != applied).then(|| DriftedSetting {
            secret: declared.is_some_and(|declared| declared.is_secret),
            setting: path,
            applied,
            current: now,
        })
    });
    differing.collect()
}

/// Returns the note on changed settings for the health of a project, if there are any.
pub async fn drift_note(
    context: &ControlContext,
    project: &Project,
) -> Result<Option<String>, Error> {
    let drift = drift(context, project).await?;
    let mut names: Vec<&str> = drift
        .settings
        .iter()
        .map(|it| it.setting.as_str())
        .collect();
    let count = names.len();
    if count == 0 {
        return Ok(None);
    }
    names.truncate(NAMED_MAX);
    let more = if count > NAMED_MAX { ", …" } else { "" };
    Ok(Some(format!(
        "settings differ from the document that was applied last: {}{more}",
        names.join(", ")
    )))
}
