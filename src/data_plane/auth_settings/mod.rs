//! The settings of a project's Auth service: stored per project, secrets sealed.
//!
//! - `catalog` declares every setting once.
//! - `validation` has the rules of values, and dependencies between settings.

pub mod catalog;
mod validation;

use std::collections::BTreeMap;

use aws_lc_rs::hmac;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use tokio_postgres::Transaction;

use self::{
    catalog::{AUTH_SETTINGS, AuthSetting, NullEffect},
    validation::EffectiveSettings,
};
use crate::{
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{access::Project, audit::Recorder, tables::Table},
};

/// Maximum size of a project's settings, in bytes of JSON.
const SETTINGS_BYTES_MAX: usize = 1024 * 1024;
/// A field that clients send and that has no effect (contract `behaviour-2.md` §5.1).
const IGNORED: &str = "jwt_secret";

/// The settings that a project has set. No `Debug`, because it contains secrets.
#[derive(Clone, Default)]
pub struct AuthSettings {
    values: BTreeMap<String, Value>,
    secrets: BTreeMap<String, SecretString>,
    generation: i64,
}

impl AuthSettings {
    /// Returns the document of a response: every setting, secrets as digests.
    pub fn document(&self, reference: &ProjectRef) -> Map<String, Value> {
        let value = |(name, setting): (&String, &AuthSetting)| {
            let value = match self.secrets.get(name) {
                Some(secret) => Value::String(digest(reference, secret.expose_secret())),
                None => self.values.get(name).unwrap_or(&setting.default).clone(),
            };
            (name.clone(), value)
        };
        AUTH_SETTINGS.iter().map(value).collect()
    }

    /// Returns every setting, secrets in clear.
    fn effective(&self) -> BTreeMap<String, Value> {
        let value = |(name, setting): (&String, &AuthSetting)| {
            let value = match self.secrets.get(name) {
                Some(secret) => json!(secret.expose_secret()),
                None => self.values.get(name).unwrap_or(&setting.default).clone(),
            };
            (name.clone(), value)
        };
        AUTH_SETTINGS.iter().map(value).collect()
    }

    /// Applies an update. Absent settings stay as they are.
    fn update(
        &self,
        reference: &ProjectRef,
        mut update: BTreeMap<String, Value>,
    ) -> Result<Self, Error> {
        update.remove(IGNORED);
        let mut after = self.clone();
        after.generation += 1;
        for (name, value) in &update {
            let setting = AUTH_SETTINGS
                .get(name)
                .filter(|setting| !setting.is_read_only)
                .ok_or_else(|| Error::invalid(name.clone(), "Unrecognized key"))?;
            after.set(reference, name, setting, value)?;
        }
        let changed: Vec<&str> = update.keys().map(String::as_str).collect();
        EffectiveSettings(&after.effective()).check(&changed)?;
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
        setting: &AuthSetting,
        value: &Value,
    ) -> Result<(), Error> {
        if value.is_null() {
            self.secrets.remove(name);
            match setting.null {
                NullEffect::Unset => self.values.insert(name.to_owned(), Value::Null),
                NullEffect::Default => self.values.remove(name),
                NullEffect::Rejected => {
                    return validation::check_value(name, setting.value_type, value);
                }
            };
            return Ok(());
        }
        validation::check_value(name, setting.value_type, value)?;
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

    /// Returns what the audit log shows of the settings with these names.
    fn describe(&self, reference: &ProjectRef, names: &[String]) -> Value {
        let mut document = self.document(reference);
        document.retain(|name, _| names.contains(name));
        for (name, value) in &mut document {
            if AUTH_SETTINGS[name].is_secret && !value.is_null() {
                *value = json!("[redacted]");
            }
        }
        Value::Object(document)
    }
}

/// Returns the form of a secret in responses: HMAC-SHA256 with the project's ref as key, in hex.
/// Clients compare it with the digest of their own value.
fn digest(reference: &ProjectRef, secret: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, reference.as_str().as_bytes());
    hex::encode(hmac::sign(&key, secret.as_bytes()))
}

/// Returns the settings of a project.
pub async fn get(context: &DataPlaneContext, project: &Project) -> Result<AuthSettings, Error> {
    let doing = "reading the settings of an Auth service";
    let sql = "select settings, secrets, generation from auth_settings where project_id = $1";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    match rows.context(doing)?.first() {
        Some(row) => stored(context, project.id, row),
        None => Ok(AuthSettings::default()),
    }
}

fn stored(
    context: &DataPlaneContext,
    project: ProjectId,
    row: &tokio_postgres::Row,
) -> Result<AuthSettings, Error> {
    let doing = "reading the settings of an Auth service";
    let values = serde_json::from_value(row.get(0)).context(doing)?;
    let mut secrets = BTreeMap::new();
    if let Some(sealed) = row.get::<_, Option<&[u8]>>(1) {
        let sealing = &context.settings.sealing;
        let opened = sealing.open(&seal_context(project), sealed)?;
        let texts: BTreeMap<String, String> =
            serde_json::from_str(opened.expose_secret()).context(doing)?;
        for (name, secret) in texts {
            secrets.insert(name, SecretString::from(secret));
        }
    }
    Ok(AuthSettings {
        values,
        secrets,
        generation: row.get(2),
    })
}

fn seal_context(project: ProjectId) -> String {
    format!("auth settings of {}", project.0)
}

/// Changes settings of a project. Either every change is stored or none.
///
/// Errors: [`Error::Invalid`] with the name of the setting, and [`Error::SmtpRequired`].
pub async fn update(
    context: &DataPlaneContext,
    project: &Project,
    update: BTreeMap<String, Value>,
    audit: &Recorder,
) -> Result<AuthSettings, Error> {
    let doing = "changing the settings of an Auth service";
    let names: Vec<String> = update.keys().cloned().collect();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Serializes updates of one project. Its removal waits, and then deletes the row.
    let sql = "select from projects where id = $1 and desired <> 'removed' for no key update";
    let found = transaction.query_opt(sql, &[&project.id.0]).await;
    found.context(doing)?.ok_or_else(projects::removed)?;
    let sql = "select settings, secrets, generation from auth_settings where project_id = $1";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let before = match row.context(doing)? {
        Some(row) => stored(context, project.id, &row)?,
        None => AuthSettings::default(),
    };
    let after = before.update(&project.reference, update)?;
    store(context, &transaction, project.id, &after).await?;
    let change = (
        Some(before.describe(&project.reference, &names)),
        Some(after.describe(&project.reference, &names)),
    );
    let now = context.clock.now();
    audit.write_in(&transaction, 200, change, now).await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::AuthSettings);
    Ok(after)
}

async fn store(
    context: &DataPlaneContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    after: &AuthSettings,
) -> Result<(), Error> {
    let doing = "storing the settings of an Auth service";
    let texts: BTreeMap<&String, &str> = after
        .secrets
        .iter()
        .map(|(name, secret)| (name, secret.expose_secret()))
        .collect();
    let secrets = SecretString::from(serde_json::to_string(&texts).context(doing)?);
    let sealing = &context.settings.sealing;
    let sealed = sealing.seal(&context.entropy, &seal_context(project), &secrets)?;
    let sql = "insert into auth_settings (project_id, settings, secrets, generation) \
               values ($1, $2, $3, $4) on conflict (project_id) do update set \
               settings = excluded.settings, secrets = excluded.secrets, \
               generation = excluded.generation";
    let settings = json!(after.values);
    transaction
        .execute(sql, &[&project.0, &settings, &sealed, &after.generation])
        .await
        .context(doing)?;
    Ok(())
}

#[cfg(test)]
mod tests;
