//! The settings of a project's Data API: stored, and put into effect before they are stored.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use gantry_base::ids::ProjectId;
use gantry_node::kits::Service;
use serde_json::json;
use tokio_postgres::Transaction;

use super::{
    reload::{self, ReloadFailure},
    stored_settings::{names, stored},
};
use crate::{
    control::{
        context::ControlContext,
        projects::{self, Status},
        service_settings::{
            recorded_change,
            setting::{ServiceSetting, TextForm, ValueType, check_value},
        },
        services::{
            instance::{Instance, RunningInstance},
            instance_id::InstanceId,
            kit_choice::has_kit,
            replace,
            rest::stored_settings::{RestSettings, StoredSettings},
            start_settings::StartSettings,
            stop,
        },
    },
    platform::{
        access::Project,
        audit::Recorder,
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
    proxy::unavailable::UnavailableReason,
};

/// Longest list of schemas, in bytes.
const LIST_BYTES_MAX: usize = 4096;
/// Longest name in PostgreSQL, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// Largest limit of rows.
const ROWS_MAX: i64 = 1_000_000;
/// Most sessions of a pool.
const POOL_MAX: i64 = 1000;

/// The settings of a Data API by name.
pub static API_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let defaults = RestSettings::default().values();
    let text = ValueType::Text(TextForm::Any);
    let settings = [
        (
            "db_schema",
            text,
            "Exposed schemas, separated by commas. Empty: the Data API is off.",
        ),
        (
            "max_rows",
            ValueType::Integer(0, ROWS_MAX),
            "Largest number of rows in a response. 0: no limit.",
        ),
        (
            "db_extra_search_path",
            text,
            "Further schemas of the search path, separated by commas.",
        ),
        (
            "db_pool",
            ValueType::Integer(0, POOL_MAX),
            "Sessions with the database. Unset: chosen by the server.",
        ),
    ];
    let mut all = BTreeMap::new();
    for (name, value_type, explanation) in settings {
        let default = defaults.get(name).cloned().unwrap_or_default();
        let setting = ServiceSetting::new(value_type, default).explained(explanation);
        // Operations of the contract reject `null` for it; documents do not.
        let setting = if name == "db_pool" {
            setting.nullable()
        } else {
            setting
        };
        all.insert(name.to_owned(), setting);
    }
    all
});

/// A change of settings. Absent values stay as they are.
#[derive(Debug, Default)]
pub struct RestSettingsUpdate {
    /// Exposed schemas.
    pub db_schema: Option<String>,
    /// Largest number of rows.
    pub max_rows: Option<u32>,
    /// Further schemas of the search path.
    pub db_extra_search_path: Option<String>,
    /// Sessions with the database. `Some(None)`: chosen by Gantry.
    pub db_pool: Option<Option<u32>>,
}

impl RestSettingsUpdate {
    /// Checks the values, and returns the settings after the update.
    pub(in crate::control) fn checked(
        self,
        settings: &RestSettings,
    ) -> Result<RestSettings, Error> {
        self.check()?;
        Ok(self.apply(settings))
    }

    fn check(&self) -> Result<(), Error> {
        let numbers = [
            ("max_rows", self.max_rows),
            ("db_pool", self.db_pool.flatten()),
        ];
        for (name, number) in numbers {
            if let (Some(number), Some(setting)) = (number, API_SETTINGS.get(name)) {
                check_value(name, setting.value_type, &json!(number))?;
            }
        }
        for (field, list) in [
            ("db_schema", &self.db_schema),
            ("db_extra_search_path", &self.db_extra_search_path),
        ] {
            let Some(list) = list else { continue };
            let too_long = list.len() > LIST_BYTES_MAX
                || names(list).any(|name| name.trim_matches('"').len() > NAME_BYTES_MAX);
            if too_long {
                return Err(Error::invalid(field, "is too long"));
            }
            if list.chars().any(char::is_control) {
                return Err(Error::invalid(field, "must not contain control characters"));
            }
        }
        Ok(())
    }

    fn apply(self, settings: &RestSettings) -> RestSettings {
        RestSettings {
            db_schema: self.db_schema.unwrap_or_else(|| settings.db_schema.clone()),
            max_rows: self.max_rows.unwrap_or(settings.max_rows),
            db_extra_search_path: self
                .db_extra_search_path
                .unwrap_or_else(|| settings.db_extra_search_path.clone()),
            db_pool: self.db_pool.unwrap_or(settings.db_pool),
        }
    }
}

/// Returns the settings of a project.
pub async fn get(context: &ControlContext, project: &Project) -> Result<RestSettings, Error> {
    Ok(stored(&context.db, project.id).await?.settings)
}

/// Changes the settings of a project. If its Data API can run here, it runs with the new settings
/// before they are stored.
///
/// Errors: [`Error::Rejected`] with the output of the program if it does not start with the new
/// settings. The previous settings then remain.
pub async fn update(
    context: &ControlContext,
    project: &Project,
    change: RestSettingsUpdate,
    audit: &Recorder,
) -> Result<RestSettings, Error> {
    change.check()?;
    let id = InstanceId {
        project: project.id,
        reference: project.reference.clone(),
        service: Service::Rest,
        function: None,
    };
    let instance = context.services.instance(&id);
    let _one = instance.replacing.lock().await;
    let before = stored(&context.db, project.id).await?;
    let after = StoredSettings {
        settings: change.apply(&before.settings),
        generation: before.generation + 1,
    };
    if !after.settings.is_off() && runs_here(context, project, Service::Rest).await? {
        try_out(context, &instance, &before, &after).await?;
    }
    if let Err(error) = store(context, project, &before, &after, audit).await {
        // The next request starts it with the stored settings.
        stop::stop(context, &instance).await;
        return Err(error);
    }
    if after.settings.is_off() {
        stop::stop(context, &instance).await;
    }
    instance.forget_failure();
    context.table_changed(Table::RestSettings);
    Ok(after.settings)
}

/// Returns whether this process runs a service of the project, or would at the next request,
/// without waking its database.
pub(in crate::control::services) async fn runs_here(
    context: &ControlContext,
    project: &Project,
    service: Service,
) -> Result<bool, Error> {
    let sql = "select asleep, status from projects where id = $1";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's status")?;
    let row = rows.first().ok_or_else(projects::removed)?;
    let is_awake = !row.get::<_, bool>(0) && Status::read(row, 1)? == Status::ActiveHealthy;
    let data = context.home.data_directory(&project.reference);
    Ok(is_awake && context.lease.leads() && has_kit(context, service) && data.exists())
}

/// Stores settings with their audit log entry, unless others were stored meanwhile.
async fn store(
    context: &ControlContext,
    project: &Project,
    before: &StoredSettings,
    after: &StoredSettings,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "changing the settings of a Data API";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // A removal of the project waits for this lock and then deletes the row.
    projects::lock_no_key(&transaction, project, doing).await?;
    write(&transaction, project.id, after).await?;
    let change = recorded_change(
        Some("api"),
        &before.settings.values(),
        &after.settings.values(),
    );
    let change = (Some(change.0.into()), Some(change.1.into()));
    audit.result(&after.settings);
    audit
        .commit(transaction, doing, 200, change, context.clock.now())
        .await
}

/// Writes settings in a transaction. Errors: [`Error::Conflict`] if others were stored meanwhile.
pub(in crate::control) async fn write(
    transaction: &Transaction<'_>,
    project: ProjectId,
    after: &StoredSettings,
) -> Result<(), Error> {
    let sql = "insert into rest_settings as s \
               (project_id, db_schema, max_rows, db_extra_search_path, db_pool, generation) \
               values ($1, $2, $3, $4, $5, $6) on conflict (project_id) do update set \
               db_schema = excluded.db_schema, max_rows = excluded.max_rows, \
               db_extra_search_path = excluded.db_extra_search_path, \
               db_pool = excluded.db_pool, generation = excluded.generation \
               where s.generation = excluded.generation - 1";
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let settings = &after.settings;
    let parameters: [Param<'_>; 6] = [
        &project.0,
        &settings.db_schema,
        &number(settings.max_rows),
        &settings.db_extra_search_path,
        &settings.db_pool.map(number),
        &after.generation,
    ];
    let stored = transaction.execute(sql, &parameters).await;
    if stored.context("changing the settings of a Data API")? == 0 {
        return Err(Error::Conflict(
            "The settings were changed by another request meanwhile; try again".into(),
        ));
    }
    Ok(())
}

/// Puts settings into effect: in the running process, if it can change them without a restart and
/// confirms them, otherwise in a new one.
///
/// Errors: [`Error::Rejected`] with the message of PostgREST. The previous settings are in effect
/// then, at the latest with the next request.
pub(in crate::control::services) async fn try_out(
    context: &ControlContext,
    instance: &Arc<Instance>,
    before: &StoredSettings,
    after: &StoredSettings,
) -> Result<(), Error> {
    if let Some(running) = instance.running()
        && can_reload(&running, before, after)
    {
        match reload::reload(context, &running, after).await {
            Ok(()) => return Ok(()),
            Err(ReloadFailure::Refused(why)) => return Err(Error::Rejected(why.into())),
            Err(ReloadFailure::Unconfirmed(why)) => {
                let project = &running.id.reference;
                tracing::warn!(%project, why, "settings were not confirmed; restarting the service");
            }
        }
    }
    restart(context, instance, before, after).await
}

fn can_reload(running: &RunningInstance, before: &StoredSettings, after: &StoredSettings) -> bool {
    running.kit.manifest.needs.postgrest
        && *running.settings.lock() == *before
        && reload::is_reloadable(before, after)
}

/// Replaces the running process by one with these settings. If it does not start, the next request
/// starts one with the stored settings.
async fn restart(
    context: &ControlContext,
    instance: &Arc<Instance>,
    before: &StoredSettings,
    after: &StoredSettings,
) -> Result<(), Error> {
    let settings = StartSettings::DataApi(after.clone());
    match replace::replace(context, instance, &settings).await {
        Ok(()) => {}
        Err(failure) if failure.reason == UnavailableReason::Failed => {
            let why = format!(
                "PostgREST did not start with these settings: {}",
                failure.why
            );
            return Err(Error::Rejected(why.into()));
        }
        // The reason is not in the settings: they take effect with the next start.
        Err(_) => return Ok(()),
    }
    let Some(running) = instance.running() else {
        return Ok(());
    };
    if before.settings.db_schema != after.settings.db_schema
        && let Err(ReloadFailure::Refused(why)) = reload::check_schema(&running, after).await
    {
        stop::stop(context, instance).await;
        return Err(Error::Rejected(why.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_values_stay_as_they_are() {
        let change = RestSettingsUpdate {
            max_rows: Some(5),
            ..RestSettingsUpdate::default()
        };
        change.check().unwrap();
        let settings = change.apply(&RestSettings::default());
        assert_eq!(
            settings,
            RestSettings {
                max_rows: 5,
                ..RestSettings::default()
            }
        );
        assert!(!settings.is_off());
        for off in ["", " ", " , ,"] {
            let change = RestSettingsUpdate {
                db_schema: Some(off.to_owned()),
                ..RestSettingsUpdate::default()
            };
            assert!(change.apply(&settings).is_off(), "{off:?}");
        }
    }

    #[test]
    fn settings_that_break_the_configuration_are_rejected() {
        for bad in ["a\nb", "a\u{7}", &"a".repeat(64), &"a,".repeat(3000)] {
            let change = RestSettingsUpdate {
                db_schema: Some(bad.to_owned()),
                ..RestSettingsUpdate::default()
            };
            assert!(change.check().is_err(), "{bad:?}");
        }
    }
}
