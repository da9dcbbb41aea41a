//! Versions of a project's settings, from the audit log.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_postgres::Row;

use super::{PlannedChange, ProjectSettings, Section, plan::effect};
use crate::{
    control::{
        context::ControlContext,
        service_settings::{self, FINGERPRINT},
    },
    platform::{
        access::Project,
        audit::Chain,
        db::Param,
        error::{Context, Error},
    },
};

/// Most changes between the current settings and a version that can be restored.
const CHANGES_MAX: i64 = 1000;

/// A change of the settings of a project.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct SettingsVersion {
    /// Number of the version: that of its entry in the audit log of the organization.
    pub version: i64,
    /// Time of the change.
    pub at: DateTime<Utc>,
    /// User name of the author. `null`: an account that does not exist any more, or the operator.
    pub author: Option<String>,
    /// Operation that changed the settings.
    pub operation: String,
    /// The changed settings. A secret is a fingerprint.
    pub changes: Vec<PlannedChange>,
}

/// A value of a setting in the audit log.
#[derive(Deserialize)]
struct RecordedValue {
    setting: String,
    value: Value,
}

/// Selects the changes of a project's settings. The index `audit_entries_settings_idx` has the same
/// condition.
macro_rules! changes {
    ($rest:literal) => {
        concat!(
            "select e.number, e.at, u.username, e.operation, e.before, e.after from audit_entries e \
             left join users u on u.gotrue_id = e.actor \
             where e.chain = $1 and e.subject = $2 and e.status < 400 and e.after like '[{\"setting\":%' and ",
            $rest
        )
    };
}

/// Returns the changes of a project's settings, newest first: at most `limit` before a version.
pub async fn versions(
    context: &ControlContext,
    project: &Project,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<SettingsVersion>, Error> {
    let sql = changes!("e.number < $3 order by e.number desc limit $4");
    let before = before.unwrap_or(i64::MAX);
    let chain = Chain::Organization(project.organization).to_string();
    let reference = project.reference.as_str();
    let parameters: [Param<'_>; 4] = [&chain, &reference, &before, &limit];
    let rows = context.db.query(sql, &parameters).await;
    let rows = rows.context("reading versions of settings")?;
    rows.iter().map(read).collect()
}

fn read(row: &Row) -> Result<SettingsVersion, Error> {
    let doing = "reading a version of settings";
    let values = |column| -> Result<Vec<RecordedValue>, Error> {
        let text: Option<&str> = row.get(column);
        serde_json::from_str(text.unwrap_or("[]")).context(doing)
    };
    let mut after: BTreeMap<String, Value> = values(5)?
        .into_iter()
        .map(|recorded| (recorded.setting, recorded.value))
        .collect();
    let mut changes = Vec::new();
    for RecordedValue { setting, value } in values(4)? {
        let Some((section, name)) = Section::of_setting(&setting) else {
            continue;
        };
        let declared = section.settings().get(name);
        let secret = declared.is_some_and(|declared| declared.is_secret);
        changes.push(PlannedChange {
            before: value,
            after: after.remove(&setting).unwrap_or_default(),
            secret,
            effect: effect(section, name),
            setting,
        });
    }
    Ok(SettingsVersion {
        version: row.get(0),
        at: row.get(1),
        author: row.get(2),
        operation: row.get(3),
        changes,
    })
}

/// The settings of an earlier version.
pub(super) struct PastSettings {
    /// The settings that were changed since, with their values of that version.
    pub(super) document: Map<String, Value>,
    /// Paths of secrets that were changed since.
    pub(super) unavailable: Vec<String>,
}

/// Returns the settings of a version that were changed since.
pub(super) async fn document_of(
    context: &ControlContext,
    project: &Project,
    version: i64,
    current: &ProjectSettings,
) -> Result<PastSettings, Error> {
    let doing = "reading versions of settings";
    let chain = Chain::Organization(project.organization).to_string();
    let reference = project.reference.as_str();
    let sql = changes!("e.number = $3");
    let found = context.db.query(sql, &[&chain, &reference, &version]).await;
    if found.context(doing)?.is_empty() {
        return Err(Error::invalid("version", "is no version of these settings"));
    }
    let sql = changes!("e.number > $3 order by e.number desc limit $4");
    let limit = CHANGES_MAX + 1;
    let parameters: [Param<'_>; 4] = [&chain, &reference, &version, &limit];
    let rows = context.db.query(sql, &parameters).await;
    let rows = rows.context(doing)?;
    if i64::try_from(rows.len()).is_ok_and(|count| count > CHANGES_MAX) {
        return Err(Error::invalid(
            "version",
            "has more than 1000 later changes",
        ));
    }
    let changes: Vec<SettingsVersion> = rows.iter().map(read).collect::<Result<_, _>>()?;
    Ok(past(changes, &current.recorded(context, project)))
}

/// Undoes changes, the newest first.
fn past(changes: Vec<SettingsVersion>, current: &BTreeMap<String, Value>) -> PastSettings {
    let mut values = BTreeMap::new();
    for change in changes.into_iter().flat_map(|version| version.changes) {
        values.insert(change.setting, change.before);
    }
    let mut unavailable = Vec::new();
    let mut sections: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    for (path, value) in &values {
        let Some((section, name)) = Section::of_setting(path) else {
            continue;
        };
        let is_sealed = value
            .as_str()
            .is_some_and(|text| text.starts_with(FINGERPRINT));
        if current.get(path) == Some(value) {
            continue;
        }
        if is_sealed {
            unavailable.push(path.clone());
            continue;
        }
        let own = sections.entry(section.name()).or_default();
        own.insert(name.to_owned(), value.clone());
        // A group of settings is complete or absent.
        if let Some((group, _)) = path.rsplit_once('.').filter(|_| name.contains('.')) {
            let group = format!("{group}.");
            for (other, now) in current
                .iter()
                .filter(|(other, _)| other.starts_with(&group))
            {
                let value = values.get(other).unwrap_or(now);
                let name = other
                    .split_once('.')
                    .map_or(other.as_str(), |(_, name)| name);
                own.entry(name.to_owned()).or_insert_with(|| value.clone());
            }
        }
    }
    let document = sections
        .into_iter()
        .map(|(section, values)| (section.to_owned(), service_settings::nest(values).into()))
        .collect();
    PastSettings {
        document,
        unavailable,
    }
}
