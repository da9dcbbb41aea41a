//! Settings of a project's services, for instance Auth and Storage: stored per project, secrets
//! sealed.
//!
//! - `setting` has the type of one setting, and the check of its values.
//! - Each service has a [`SettingsCatalog`], which declares its settings and their dependencies.
//! - `paths` converts between nested documents and names such as `features.s3Protocol.enabled`.

mod auth;
pub mod catalog;
mod paths;
pub mod pgsodium;
mod pooler;
mod realtime;
pub mod setting;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::hmac;
use gantry_base::ids::{ProjectId, ProjectRef};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use tokio_postgres::{Row, Transaction};

pub(in crate::control) use self::paths::nest;
pub use self::{
    auth::AUTH,
    pooler::{DEFAULT_POOL_SIZE, MAX_CLIENT_CONN, POOL_MODE, POOLER, QUERY_WAIT_TIMEOUT},
    realtime::REALTIME,
    storage::STORAGE,
};
use self::{
    pgsodium::PGSODIUM,
    setting::{NullEffect, RenderedVariable, ServiceSetting, check_value},
};
use crate::{
    control::{
        context::ControlContext,
        projects,
        service_settings::{
            catalog::{EffectiveSettings, SettingsCatalog},
            setting::SettingValues,
        },
    },
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// Maximum size of the settings of one service of a project, in bytes of JSON.
const SETTINGS_BYTES_MAX: usize = 1024 * 1024;

/// Every catalog.
pub static CATALOGS: [&SettingsCatalog; 5] = [&AUTH, &STORAGE, &REALTIME, &PGSODIUM, &POOLER];

/// The settings of a service that a project has set. No `Debug`, because it contains secrets.
#[derive(Clone)]
pub struct ServiceSettings {
    catalog: &'static SettingsCatalog,
    values: BTreeMap<String, Value>,
    secrets: BTreeMap<String, SecretString>,
    generation: i64,
}

impl ServiceSettings {
    /// Returns the defaults.
    pub fn new(catalog: &'static SettingsCatalog) -> Self {
        Self {
            catalog,
            values: BTreeMap::new(),
            secrets: BTreeMap::new(),
            generation: 0,
        }
    }

    /// Returns the document of a response: every setting, secrets as digests.
    pub fn document(&self, reference: &ProjectRef) -> Map<String, Value> {
        paths::nest(self.valued(|secret| digest(reference, secret)))
    }

    /// Returns every setting by name, secrets in clear.
    fn effective(&self) -> BTreeMap<String, Value> {
        self.valued(str::to_owned)
    }

    /// Returns the number of the last change.
    pub(in crate::control) const fn generation(&self) -> i64 {
        self.generation
    }

    /// Returns the variables by which a program gets the settings, secrets in clear.
    pub(in crate::control) fn variables(&self) -> Vec<RenderedVariable> {
        let values = self.effective();
        let settings = (self.catalog.settings)().iter();
        let valued = settings.filter_map(|(name, setting)| Some((setting, values.get(name)?)));
        setting::variables(valued)
    }

    /// Returns the value of a setting that is no secret.
    pub(in crate::control) fn value(&self, name: &str) -> Value {
        let setting = (self.catalog.settings)().get(name);
        let default = setting.map_or(&Value::Null, |setting| &setting.default);
        self.values.get(name).unwrap_or(default).clone()
    }

    /// Returns a secret in clear.
    fn secret(&self, name: &str) -> Option<&SecretString> {
        self.secrets.get(name)
    }

    fn valued(&self, show: impl Fn(&str) -> String) -> BTreeMap<String, Value> {
        let mut all = BTreeMap::new();
        for (name, setting) in (self.catalog.settings)() {
            let value = match self.secrets.get(name) {
                Some(secret) => Value::String(show(secret.expose_secret())),
                None => self.values.get(name).unwrap_or(&setting.default).clone(),
            };
            all.insert(name.clone(), value);
        }
        all
    }

    /// Applies an update. Absent settings stay as they are.
    pub(in crate::control) fn update(
        &self,
        reference: &ProjectRef,
        update: &Map<String, Value>,
    ) -> Result<Self, Error> {
        let settings = (self.catalog.settings)();
        let mut update = paths::flatten(settings, update)?;
        for name in self.catalog.ignored {
            update.remove(*name);
        }
        let mut after = self.clone();
        after.generation += 1;
        for (name, value) in &update {
            let setting = settings
                .get(name)
                .filter(|setting| !setting.is_read_only)
                .ok_or_else(|| Error::invalid(name.clone(), "Unrecognized key"))?;
            after.set(reference, name, setting, value)?;
        }
        let changed: Vec<&str> = update.keys().map(String::as_str).collect();
        (self.catalog.check)(&EffectiveSettings(&after.effective()), &changed)?;
        if json!(after.effective()).to_string().len() > SETTINGS_BYTES_MAX {
            return Err(Error::Rejected(
                "The settings of a project have at most 1 MiB; shorten the templates".into(),
            ));
        }
        Ok(after)
    }

    fn set(
        &mut self,
        reference: &ProjectRef,
        name: &str,
        setting: &ServiceSetting,
        value: &Value,
    ) -> Result<(), Error> {
        if value.is_null() {
            match setting.null {
                NullEffect::Unset => self.values.insert(name.to_owned(), Value::Null),
                NullEffect::Default => self.values.remove(name),
                NullEffect::Rejected => return check_value(name, setting.value_type, value),
            };
            self.secrets.remove(name);
            return Ok(());
        }
        check_value(name, setting.value_type, value)?;
        if !setting.is_secret {
            self.values.insert(name.to_owned(), value.clone());
            return Ok(());
        }
        let secret = value.as_str().unwrap_or_default();
        // A client that writes back the document it read sends digests.
        let is_unchanged = self
            .secrets
            .get(name)
            .is_some_and(|stored| digest(reference, stored.expose_secret()) == secret);
        if !is_unchanged {
            self.values.remove(name);
            self.secrets.insert(name.to_owned(), secret.into());
        }
        Ok(())
    }

    /// Returns every setting by name, secrets as digests.
    pub(in crate::control) fn values(&self, reference: &ProjectRef) -> SettingValues {
        self.valued(|secret| digest(reference, secret))
    }

    /// Returns every setting by name for the audit log: instead of a secret, a fingerprint, which
    /// only the server can compute.
    pub(in crate::control) fn recorded(
        &self,
        context: &ControlContext,
        project: ProjectId,
    ) -> SettingValues {
        let place = seal_context(project, self.catalog);
        self.valued(|secret| {
            let mark = context.settings.sealing.mark(&format!("{place}: {secret}"));
            format!("{FINGERPRINT}{mark}")
        })
    }

    /// Returns the entries of the audit log for a change from `before`.
    pub(in crate::control) fn changes_since(
        &self,
        before: &Self,
        context: &ControlContext,
        project: ProjectId,
    ) -> RecordedChange {
        let before = before.recorded(context, project);
        let after = self.recorded(context, project);
        recorded_change(Some(self.catalog.service), &before, &after)
    }
}

/// Beginning of the value of a secret in the audit log.
pub const FINGERPRINT: &str = "fingerprint:";

/// Settings before and after a change, in the form of the audit log: `{"setting": "auth.jwt_exp",
/// "value": 3600}`.
pub(in crate::control) type RecordedChange = (Vec<Value>, Vec<Value>);

/// Returns the settings that differ: those of a section, or all by their path.
pub(in crate::control) fn recorded_change(
    section: Option<&str>,
    before: &SettingValues,
    after: &SettingValues,
) -> RecordedChange {
    let mut change = RecordedChange::default();
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let value = |values: &SettingValues| values.get(name).cloned().unwrap_or_default();
        let (from, to) = (value(before), value(after));
        if from != to {
            let setting = section.map_or_else(|| name.clone(), |it| format!("{it}.{name}"));
            change.0.push(json!({"setting": setting, "value": from}));
            change.1.push(json!({"setting": setting, "value": to}));
        }
    }
    change
}

/// Returns the form of a secret in responses: HMAC-SHA256 with the project's ref as key, in hex.
/// Clients compare it with the digest of their own value.
fn digest(reference: &ProjectRef, secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, reference.as_str().as_bytes());
    hex::encode(hmac::sign(&key, secret.as_bytes()))
}

const SELECT: &str = "select settings, secrets, generation from service_settings \
                      where project_id = $1 and service = $2";

/// Returns the settings of a service of a project.
pub async fn get(
    context: &ControlContext,
    project: &Project,
    catalog: &'static SettingsCatalog,
) -> Result<ServiceSettings, Error> {
    read(context, project.id, catalog).await
}

/// Does [`get`] for a project that was found before.
pub(in crate::control) async fn read(
    context: &ControlContext,
    project: ProjectId,
    catalog: &'static SettingsCatalog,
) -> Result<ServiceSettings, Error> {
    let rows = context
        .db
        .query(SELECT, &[&project.0, &catalog.service])
        .await;
    match rows.context("reading the settings of a service")?.first() {
        Some(row) => stored(context, project, catalog, row),
        None => Ok(ServiceSettings::new(catalog)),
    }
}

fn stored(
    context: &ControlContext,
    project: ProjectId,
    catalog: &'static SettingsCatalog,
    row: &Row,
) -> Result<ServiceSettings, Error> {
    let doing = "reading the settings of a service";
    let values = serde_json::from_value(row.get(0)).context(doing)?;
    let mut secrets = BTreeMap::new();
    if let Some(sealed) = row.get::<_, Option<&[u8]>>(1) {
        let sealing = &context.settings.sealing;
        let opened = sealing.open(&seal_context(project, catalog), sealed)?;
        let texts: BTreeMap<String, String> =
            serde_json::from_str(opened.expose_secret()).context(doing)?;
        for (name, secret) in texts {
            secrets.insert(name, SecretString::from(secret));
        }
    }
    Ok(ServiceSettings {
        catalog,
        values,
        secrets,
        generation: row.get(2),
    })
}

fn seal_context(project: ProjectId, catalog: &SettingsCatalog) -> String {
    format!("{} settings of {}", catalog.service, project.0)
}

/// Changes settings of a service. Either every change is stored or none.
///
/// Errors: [`Error::Invalid`] with the name of the setting, and [`Error::SmtpRequired`].
pub async fn update(
    context: &ControlContext,
    project: &Project,
    catalog: &'static SettingsCatalog,
    update: &Map<String, Value>,
    audit: &Recorder,
) -> Result<ServiceSettings, Error> {
    let doing = "changing the settings of a service";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Serializes updates of one project. Its removal waits, and then deletes the row.
    projects::lock_no_key(&transaction, project, doing).await?;
    let row = transaction
        .query_opt(SELECT, &[&project.id.0, &catalog.service])
        .await;
    let before = match row.context(doing)? {
        Some(row) => stored(context, project.id, catalog, &row)?,
        None => ServiceSettings::new(catalog),
    };
    let after = before.update(&project.reference, update)?;
    store(context, &transaction, project.id, &after).await?;
    let change = after.changes_since(&before, context, project.id);
    let change = (Some(change.0.into()), Some(change.1.into()));
    let now = context.clock.now();
    audit.result(&after);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(after)
}

/// Stores settings in a transaction.
pub(in crate::control) async fn store(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    after: &ServiceSettings,
) -> Result<(), Error> {
    let doing = "storing the settings of a service";
    let texts: BTreeMap<&String, &str> = after
        .secrets
        .iter()
        .map(|(name, secret)| (name, secret.expose_secret()))
        .collect();
    let secrets = SecretString::from(serde_json::to_string(&texts).context(doing)?);
    let sealing = &context.settings.sealing;
    let place = seal_context(project, after.catalog);
    let sealed = sealing.seal(&context.entropy, &place, &secrets)?;
    let sql = "insert into service_settings (project_id, service, settings, secrets, generation) \
               values ($1, $2, $3, $4, $5) on conflict (project_id, service) do update set \
               settings = excluded.settings, secrets = excluded.secrets, \
               generation = excluded.generation";
    let service = after.catalog.service;
    let settings = json!(after.values);
    transaction
        .execute(
            sql,
            &[&project.0, &service, &settings, &sealed, &after.generation],
        )
        .await
        .context(doing)?;
    Ok(())
}

#[cfg(test)]
mod tests;
