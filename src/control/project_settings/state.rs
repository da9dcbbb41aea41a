//! All settings of a project, and the result of a document.

use std::collections::BTreeMap;

use chrono::SubsecRound;
use gantry_base::ids::ProjectRef;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::section::Section;
use crate::{
    control::{
        context::ControlContext,
        database_access::restrictions::{self, NetworkRestrictions},
        projects::{
            InstanceSize,
            parameters::{self, ServerConfiguration},
        },
        service_settings::{
            self, AUTH, REALTIME, STORAGE, ServiceSettings, recorded_change,
            setting::{NullEffect, ServiceSetting, SettingValues, check_value, wrong_type},
        },
        services::rest::{self, RestSettingsUpdate, stored_settings::StoredSettings},
    },
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// All settings of a project. No `Debug`, because they contain secrets.
#[derive(Clone)]
pub struct ProjectSettings {
    pub(super) api: StoredSettings,
    pub(super) auth: ServiceSettings,
    pub(super) network: NetworkRestrictions,
    pub(super) server: ServerConfiguration,
    pub(super) realtime: ServiceSettings,
    pub(super) storage: ServiceSettings,
}

impl ProjectSettings {
    /// Reads the settings of a project.
    pub async fn read(context: &ControlContext, project: &Project) -> Result<Self, Error> {
        Ok(Self {
            api: rest::stored(&context.db, project.id).await?,
            auth: service_settings::get(context, project, &AUTH).await?,
            network: restrictions::get(context, project).await?,
            server: parameters::stored(context, project).await?,
            realtime: service_settings::get(context, project, &REALTIME).await?,
            storage: service_settings::get(context, project, &STORAGE).await?,
        })
    }

    /// Returns the settings of a section by name, secrets as digests.
    pub fn values(&self, reference: &ProjectRef, section: Section) -> SettingValues {
        match section {
            Section::Api => self.api.settings.values(),
            Section::Auth => self.auth.values(reference),
            Section::Realtime => self.realtime.values(reference),
            Section::Storage => self.storage.values(reference),
            Section::Compute => {
                let own = self.server.size;
                let size = if own.is_smallest() {
                    InstanceSize::Micro
                } else {
                    own
                };
                [("size".to_owned(), json!(size.code()))].into()
            }
            Section::Database => self.network.values(),
            Section::Postgres => {
                let value = |name: &String| self.server.settings.get(name).cloned();
                let names = section.settings().keys();
                names
                    .map(|name| (name.clone(), value(name).unwrap_or_default()))
                    .collect()
            }
        }
    }

    /// Returns every setting that clients can change by its path, such as `auth.jwt_exp`. Secrets
    /// are fingerprints.
    pub(super) fn recorded(&self, context: &ControlContext, project: &Project) -> SettingValues {
        let mut all = SettingValues::new();
        for section in Section::ALL {
            let values = match section {
                Section::Auth => self.auth.recorded(context, project.id),
                section => self.values(&project.reference, section),
            };
            for (name, value) in values {
                let is_own = |setting: &ServiceSetting| !setting.is_read_only;
                if section.settings().get(&name).is_some_and(is_own) {
                    all.insert(format!("{}.{name}", section.name()), value);
                }
            }
        }
        all
    }

    /// Returns the entries of the audit log for a change from `before`.
    pub(super) fn changes_since(
        &self,
        before: &Self,
        context: &ControlContext,
        project: &Project,
    ) -> (Option<Value>, Option<Value>) {
        let before = before.recorded(context, project);
        let change = recorded_change(None, &before, &self.recorded(context, project));
        (Some(change.0.into()), Some(change.1.into()))
    }

    /// Returns the document of the settings that differ from their defaults, or of all. Secrets are
    /// left out, because their values cannot be read.
    pub fn document(&self, reference: &ProjectRef, all: bool) -> Map<String, Value> {
        let mut document = Map::new();
        for section in Section::ALL {
            let settings = section.settings();
            let mut values = self.values(reference, section);
            // A group of settings is complete or absent.
            let is_changed = |values: &SettingValues, name: &str| {
                values.get(name) != settings.get(name).map(|setting| &setting.default)
            };
            let shown: Vec<String> = values
                .keys()
                .filter(|name| {
                    let group = name.rsplit_once('.').map(|(group, _)| format!("{group}."));
                    match group {
                        Some(group) => values
                            .keys()
                            .filter(|other| other.starts_with(&group))
                            .any(|other| is_changed(&values, other)),
                        None => is_changed(&values, name),
                    }
                })
                .cloned()
                .collect();
            values.retain(|name, value| {
                let Some(setting) = settings.get(name) else {
                    return false;
                };
                let is_readable = !setting.is_secret && !setting.is_read_only;
                // `null` is not accepted back for all settings, and has no form in TOML.
                is_readable && !value.is_null() && (all || shown.contains(name))
            });
            if !values.is_empty() {
                document.insert(
                    section.name().to_owned(),
                    service_settings::nest(values).into(),
                );
            }
        }
        document
    }

    /// Returns the paths of the secrets that are set.
    pub fn secrets(&self, reference: &ProjectRef) -> Vec<String> {
        let values = self.values(reference, Section::Auth);
        let settings = Section::Auth.settings();
        let is_secret = |name: &str| settings.get(name).is_some_and(|setting| setting.is_secret);
        values
            .iter()
            .filter(|(name, value)| is_secret(name) && !value.is_null())
            .map(|(name, _)| format!("{}.{name}", Section::Auth.name()))
            .collect()
    }

    /// Returns the settings after a document is applied.
    ///
    /// Errors: [`Error::Invalid`] with the path of the setting, such as `auth.jwt_exp`.
    pub(super) fn with_document(
        &self,
        context: &ControlContext,
        reference: &ProjectRef,
        document: &Map<String, Value>,
    ) -> Result<Self, Error> {
        let mut after = self.clone();
        for (name, values) in document {
            let section = Section::of_name(name)
                .ok_or_else(|| Error::invalid(name.clone(), "Unrecognized key"))?;
            let Value::Object(values) = values else {
                return Err(Error::invalid(name.clone(), wrong_type("object", values)));
            };
            after
                .change(context, reference, section, values)
                .map_err(|error| within(section, error))?;
        }
        Ok(after)
    }

    fn change(
        &mut self,
        context: &ControlContext,
        reference: &ProjectRef,
        section: Section,
        values: &Map<String, Value>,
    ) -> Result<(), Error> {
        match section {
            Section::Auth => update(&mut self.auth, reference, values),
            Section::Realtime => update(&mut self.realtime, reference, values),
            Section::Storage => update(&mut self.storage, reference, values),
            Section::Api => {
                let values = checked(section, values)?;
                let settings = api_update(&values)?.checked(&self.api.settings)?;
                if settings != self.api.settings {
                    self.api.settings = settings;
                    self.api.generation += 1;
                }
                Ok(())
            }
            Section::Compute => {
                let values = checked(section, values)?;
                let code = values.get("size").and_then(|value| value.as_str());
                let Some(size) = code.and_then(InstanceSize::of_code) else {
                    return Ok(());
                };
                let sizes = &context.control_settings.compute_sizes;
                let is_kept = size.limits_equal(self.server.size);
                if !is_kept && !sizes.offers(size) {
                    return Err(Error::invalid("size", "is not offered by this server"));
                }
                if !is_kept {
                    self.server.size = size;
                }
                Ok(())
            }
            Section::Database => self.change_network(context, &checked(section, values)?),
            Section::Postgres => {
                for (name, value) in checked(section, values)? {
                    match value {
                        Value::Null => self.server.settings.remove(&name),
                        value => self.server.settings.insert(name, value),
                    };
                }
                Ok(())
            }
        }
    }

    fn change_network(
        &mut self,
        context: &ControlContext,
        values: &SettingValues,
    ) -> Result<(), Error> {
        // PostgreSQL stores microseconds.
        let now = context.clock.now().trunc_subsecs(6);
        if let Some(required) = values.get("ssl_enforced").and_then(Value::as_bool) {
            restrictions::check_tls(context, "ssl_enforced", required)?;
            if required != self.network.tls_required {
                self.network.tls_required = required;
                self.network.updated_at = Some(now);
            }
        }
        if let Some(Value::Array(networks)) = values.get("allowed_cidrs") {
            let texts = networks.iter().filter_map(Value::as_str);
            let mut allowed: Vec<IpNet> = texts
                .map(str::parse)
                .collect::<Result<_, _>>()
                .context("reading networks")?;
            allowed.sort();
            allowed.dedup();
            if allowed != self.network.sorted() {
                self.network.allowed = allowed;
                self.network.updated_at = Some(now);
            }
        }
        Ok(())
    }
}

/// Updates the settings of a service, unless the update changes nothing.
fn update(
    settings: &mut ServiceSettings,
    reference: &ProjectRef,
    values: &Map<String, Value>,
) -> Result<(), Error> {
    let after = settings.update(reference, values)?;
    if after.values(reference) != settings.values(reference) {
        *settings = after;
    }
    Ok(())
}

/// Checks the names and values of a section without groups.
fn checked(section: Section, values: &Map<String, Value>) -> Result<SettingValues, Error> {
    let mut checked = BTreeMap::new();
    for (name, value) in values {
        let setting = section.settings().get(name);
        let setting = setting.ok_or_else(|| Error::invalid(name.clone(), "Unrecognized key"))?;
        let is_unset = value.is_null() && setting.null != NullEffect::Rejected;
        if !is_unset {
            check_value(name, setting.value_type, value)?;
        }
        checked.insert(name.clone(), value.clone());
    }
    Ok(checked)
}

/// Returns the update of a Data API with checked values.
fn api_update(values: &SettingValues) -> Result<RestSettingsUpdate, Error> {
    let text = |name: &str| values.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| {
        let number = values.get(name).and_then(Value::as_u64);
        number.map(u32::try_from).transpose()
    };
    let doing = "reading a number";
    Ok(RestSettingsUpdate {
        db_schema: text("db_schema"),
        max_rows: number("max_rows").context(doing)?,
        db_extra_search_path: text("db_extra_search_path"),
        db_pool: match values.get("db_pool") {
            None => None,
            Some(_) => Some(number("db_pool").context(doing)?),
        },
    })
}

/// Returns an error with the path of the setting in a document.
fn within(section: Section, error: Error) -> Error {
    match error {
        Error::Invalid { field, problem } => {
            Error::invalid(format!("{}.{field}", section.name()), problem)
        }
        error => error,
    }
}
