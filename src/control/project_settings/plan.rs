//! The difference between the settings of a project and those after a document.

use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ProjectSettings, RequestedSettings, Section, history};
use crate::{
    control::{context::ControlContext, projects::parameters},
    platform::{access::Project, error::Error},
};

/// The effect of a change on a running service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeEffect {
    /// The next use reads the setting.
    Immediate,
    /// The service reads the setting again, without an interruption.
    Reload,
    /// The service is restarted.
    Restart,
}

/// A setting that a document changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedChange {
    /// Path of the setting, such as `auth.jwt_exp`.
    pub setting: String,
    /// Current value. A secret is a digest.
    pub before: Value,
    /// Value afterwards. A secret is a digest.
    pub after: Value,
    /// Whether the value is a secret.
    pub secret: bool,
    /// Effect on the service.
    pub effect: ChangeEffect,
}

/// The difference that a document makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsPlan {
    /// Identifies the current settings of the project and those afterwards.
    pub hash: String,
    /// The settings that change, by path.
    pub changes: Vec<PlannedChange>,
    /// Services that are restarted: `auth`, `database`, `rest`.
    pub restarts: Vec<String>,
    /// Paths of settings of the requested version that cannot be restored, because they are
    /// secrets.
    pub unavailable: Vec<String>,
}

/// A plan with the settings that it leads from and to.
pub(super) struct PreparedPlan {
    pub(super) plan: SettingsPlan,
    pub(super) before: ProjectSettings,
    pub(super) after: ProjectSettings,
    /// Paths of the settings that the document names.
    pub(super) named: Vec<String>,
}

/// Returns what the requested settings change. Nothing is stored.
///
/// Errors: [`Error::Invalid`] with the path of a setting, and [`Error::Rejected`] with the message
/// of PostgreSQL.
pub async fn plan(
    context: &ControlContext,
    project: &Project,
    requested: &RequestedSettings,
) -> Result<SettingsPlan, Error> {
    Ok(prepare(context, project, requested).await?.plan)
}

/// Validates the requested settings.
pub(super) async fn prepare(
    context: &ControlContext,
    project: &Project,
    requested: &RequestedSettings,
) -> Result<PreparedPlan, Error> {
    let before = ProjectSettings::read(context, project).await?;
    let (document, unavailable) = match requested {
        RequestedSettings::Document(document) => (document.clone(), Vec::new()),
        RequestedSettings::Version(version) => {
            let past = history::document_of(context, project, *version, &before).await?;
            (past.document, past.unavailable)
        }
    };
    let after = before.with_document(context, &project.reference, &document)?;
    if after.server != before.server {
        parameters::validate(context, project, &after.server).await?;
    }
    let changes = changes(&project.reference, &before, &after);
    let plan = SettingsPlan {
        hash: hash(&project.reference, &before, &after),
        restarts: restarts(&changes),
        changes,
        unavailable,
    };
    Ok(PreparedPlan {
        plan,
        before,
        after,
        named: named(&document),
    })
}

/// Returns the paths of the settings that a valid document names.
fn named(document: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in document {
        match value {
            Value::Object(inner) => {
                names.extend(
                    named(inner)
                        .into_iter()
                        .map(|rest| format!("{name}.{rest}")),
                );
            }
            _ => names.push(name.clone()),
        }
    }
    names
}

fn changes(
    reference: &ProjectRef,
    before: &ProjectSettings,
    after: &ProjectSettings,
) -> Vec<PlannedChange> {
    let mut changes = Vec::new();
    for section in Section::ALL {
        let current = before.values(reference, section);
        for (name, value) in after.values(reference, section) {
            let previous = current.get(&name).cloned().unwrap_or_default();
            if previous == value {
                continue;
            }
            let setting = section.settings().get(&name);
            changes.push(PlannedChange {
                setting: format!("{}.{name}", section.name()),
                before: previous,
                after: value,
                secret: setting.is_some_and(|setting| setting.is_secret),
                effect: effect(section, &name),
            });
        }
    }
    changes
}

pub(super) fn effect(section: Section, name: &str) -> ChangeEffect {
    match section {
        Section::Auth | Section::Compute => ChangeEffect::Restart,
        Section::Postgres if parameters::is_read_at_start(name) => ChangeEffect::Restart,
        // The pool of PostgREST is made at the start.
        Section::Api if name == "db_pool" => ChangeEffect::Restart,
        Section::Api | Section::Postgres => ChangeEffect::Reload,
        Section::Database | Section::Realtime | Section::Storage => ChangeEffect::Immediate,
    }
}

fn restarts(changes: &[PlannedChange]) -> Vec<String> {
    let mut services: Vec<String> = changes
        .iter()
        .filter(|change| change.effect == ChangeEffect::Restart)
        .filter_map(|change| Section::of_setting(&change.setting))
        .map(|(section, _)| match section {
            Section::Api => "rest".to_owned(),
            Section::Compute | Section::Postgres => "database".to_owned(),
            section => section.name().to_owned(),
        })
        .collect();
    services.sort();
    services.dedup();
    services
}

/// Returns the hash of a change of a project's settings.
pub(super) fn hash(
    reference: &ProjectRef,
    before: &ProjectSettings,
    after: &ProjectSettings,
) -> String {
    let all = |settings: &ProjectSettings| -> Vec<Value> {
        let values = |section| json!(settings.values(reference, section));
        Section::ALL.into_iter().map(values).collect()
    };
    let text = json!([reference.as_str(), all(before), all(after)]).to_string();
    hex::encode(Sha256::digest(text))
}
