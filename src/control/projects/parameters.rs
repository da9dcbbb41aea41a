//! Settings of a project's server that its owner may change.
//!
//! `catalog` has them as values, for documents of all settings; `budget` bounds their resources.
//!
//! Settings are checked three times: the name and the form of the value, the memory that they need,
//! and by PostgreSQL itself. They are then recorded in the project's row, and the reconciler
//! applies them. If the server does not start with them, it reverts them.

mod budget;
mod catalog;
pub(in crate::control) mod fallback;
mod resize;

use std::collections::BTreeMap;

use gantry_node::{clusters::ResourceLimits, error::ClusterError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_postgres::Transaction;

use self::budget::{Budget, check};
pub use self::catalog::POSTGRES_SETTINGS;
pub(crate) use self::resize::resize;
use super::{InstanceSize, SETTLE_WAIT, Status, removed, status_events};
use crate::{
    control::{context::ControlContext, service_settings::recorded_change},
    platform::{
        access::Project,
        audit::{Change as RecordedChange, Recorder},
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
};

macro_rules! settings {
    ($($name:ident: $kind:ty $(, $schema:meta)?;)*) => {
        /// Settings that differ from this server's own.
        #[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
        #[schemars(rename = "PostgresConfigResponse")]
        pub struct Settings { $(#[serde(skip_serializing_if = "Option::is_none")] $(#[$schema])? $name: Option<$kind>),* }

        /// The body of a change: settings, and whether the server may be restarted for them.
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        #[schemars(rename = "UpdatePostgresConfigBody")]
        pub(crate) struct Change {
            $($(#[$schema])? $name: Option<$kind>,)*
            /// Restart the server if a setting needs it: otherwise such a setting waits for the
            /// next restart.
            restart_database: Option<bool>,
        }

        impl Change {
            fn settings(self) -> Settings {
                Settings { $($name: self.$name),* }
            }
        }
    };
}

settings! {
    effective_cache_size: String;
    logical_decoding_work_mem: String;
    maintenance_work_mem: String;
    track_activity_query_size: String;
    max_connections: u32, schemars(range(min = 1, max = 262_143));
    max_locks_per_transaction: u32, schemars(range(min = 10, max = 2_147_483_640));
    max_parallel_maintenance_workers: u32, schemars(range(min = 0, max = 1024));
    max_parallel_workers: u32, schemars(range(min = 0, max = 1024));
    max_parallel_workers_per_gather: u32, schemars(range(min = 0, max = 1024));
    max_replication_slots: u32;
    max_slot_wal_keep_size: String;
    max_standby_archive_delay: String;
    max_standby_streaming_delay: String;
    max_wal_size: String;
    max_wal_senders: u32;
    max_worker_processes: u32, schemars(range(min = 0, max = 262_143));
    session_replication_role: Role;
    shared_buffers: String;
    statement_timeout: String, schemars(regex(pattern = r"^(-?[0-9]+(?:\.[0-9]+)?)(us|ms|s|min|h|d)?$"));
    track_commit_timestamp: bool;
    wal_keep_size: String;
    wal_sender_timeout: String, schemars(regex(pattern = r"^(-?[0-9]+(?:\.[0-9]+)?)(us|ms|s|min|h|d)?$"));
    work_mem: String;
    checkpoint_timeout: String, schemars(regex(pattern = r"^(-?[0-9]+(?:\.[0-9]+)?)(us|ms|s|min|h|d)?$"));
    hot_standby_feedback: bool;
}

/// Value of `session_replication_role`: the triggers that a session fires.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    Origin,
    Replica,
    Local,
}

/// Settings that a server reads only when it starts.
const AT_START: [&str; 8] = [
    "max_connections",
    "max_locks_per_transaction",
    "max_replication_slots",
    "max_wal_senders",
    "max_worker_processes",
    "shared_buffers",
    "track_activity_query_size",
    "track_commit_timestamp",
];

/// How a change combines with existing settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Parameters that are not named return to their defaults.
    Replace,
    /// Parameters that are not named keep their values.
    Merge,
}

/// Returns the parameters that are set.
pub async fn get(context: &ControlContext, project: &Project) -> Result<Settings, Error> {
    let sql = "select settings from projects where id = $1 and desired <> 'removed'";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading a project's settings")?;
    from_row(rows.first().ok_or_else(removed)?.get(0))
}

/// Changes settings, and returns when the server runs with them or has reverted them.
pub(crate) async fn change(
    context: &ControlContext,
    project: &Project,
    change: Change,
    how: How,
    audit: &Recorder,
) -> Result<Settings, Error> {
    let may_restart = change.restart_database != Some(false);
    let stored = stored(context, project).await?;
    let mut wanted = to_map(&change.settings())?;
    if how == How::Merge {
        let mut merged = stored.settings.clone();
        merged.append(&mut wanted);
        wanted = merged;
    }
    if wanted == stored.settings {
        return from_row(Value::Object(wanted));
    }
    let wanted = ServerConfiguration {
        settings: wanted,
        size: stored.size,
    };
    validate(context, project, &wanted).await?;
    let generation = write(context, project, &wanted, may_restart, audit).await?;
    outcome(context, project, generation, &wanted).await?;
    from_row(Value::Object(wanted.settings))
}

/// The compute size of a project, and the settings that its owner chose.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::control) struct ServerConfiguration {
    pub(in crate::control) settings: Map<String, Value>,
    pub(in crate::control) size: InstanceSize,
}

/// Reads the configuration of a project's server.
pub(in crate::control) async fn stored(
    context: &ControlContext,
    project: &Project,
) -> Result<ServerConfiguration, Error> {
    let sql = "select settings, instance_size from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's settings")?;
    let row = rows.first().ok_or_else(removed)?;
    Ok(ServerConfiguration {
        settings: to_map(&from_row(row.get(0))?)?,
        size: InstanceSize::of_code(row.get(1)).unwrap_or(InstanceSize::Micro),
    })
}

/// Returns the settings of a compute size by name.
pub(in crate::control) fn of_size(
    context: &ControlContext,
    size: InstanceSize,
) -> BTreeMap<String, String> {
    let parameters = size.parameters(&limits(context, size)).into_iter();
    parameters
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn limits(context: &ControlContext, size: InstanceSize) -> ResourceLimits {
    let smallest = context.driver.resource_limits().copied();
    size.limits(&smallest.unwrap_or_default())
}

/// Checks a configuration: its form, the resources that it needs, and by PostgreSQL itself.
pub(in crate::control) async fn validate(
    context: &ControlContext,
    project: &Project,
    wanted: &ServerConfiguration,
) -> Result<(), Error> {
    let all = with_size(context, wanted);
    check(&all, Budget::from(&limits(context, wanted.size)))?;
    let written: Vec<(String, String)> = all
        .iter()
        .map(|(name, value)| (name.clone(), text(value)))
        .collect();
    context
        .driver
        .check_settings(&project.reference, &written)
        .await
        .map_err(|problem| match problem {
            ClusterError::Setting(why) => Error::Rejected(why.into()),
            ClusterError::Missing(_) => Error::DatabaseUnreachable,
            other => Error::internal("checking settings", other),
        })
}

/// Returns the settings of a compute size, and those that the owner chose instead.
fn with_size(context: &ControlContext, wanted: &ServerConfiguration) -> Map<String, Value> {
    let typed = |text: String| {
        text.parse::<u64>()
            .map_or_else(|_| json!(text), Value::from)
    };
    let mut all = Map::new();
    for (name, text) in of_size(context, wanted.size) {
        all.insert(name, typed(text));
    }
    all.extend(wanted.settings.clone());
    all
}

/// Waits until the server runs with a configuration. Errors: [`Error::Rejected`] with the message
/// of PostgreSQL if it did not start and runs with the previous one.
pub(in crate::control) async fn outcome(
    context: &ControlContext,
    project: &Project,
    generation: i64,
    wanted: &ServerConfiguration,
) -> Result<(), Error> {
    let mut changes = context.reconciler.changes();
    let in_force = async {
        loop {
            let sql = "select settings, settings_before is null or generation <> $2, last_error, instance_size, \
                       status from projects where id = $1";
            let rows = context
                .db
                .query(sql, &[&project.id.0, &generation])
                .await
                .context("reading a project's settings")?;
            let row = rows.first().ok_or_else(removed)?;
            if row.get(1) {
                let now: Value = row.get(0);
                let is_refused = now != Value::Object(wanted.settings.clone())
                    || row.get::<_, &str>(3) != wanted.size.code();
                let why = row.get::<_, Option<String>>(2).filter(|_| is_refused);
                return why.map_or(Ok(()), |why| Err(Error::Rejected(why.into())));
            }
            changes.changed().await.context("waiting for settings")?;
        }
    };
    tokio::time::timeout(SETTLE_WAIT * 2, in_force)
        .await
        .unwrap_or(Err(Error::DatabaseUnreachable))
}

/// Records the desired settings, and returns their generation.
async fn write(
    context: &ControlContext,
    project: &Project,
    wanted: &ServerConfiguration,
    may_restart: bool,
    audit: &Recorder,
) -> Result<i64, Error> {
    let doing = "changing a project's settings";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let (before, generation) =
        write_in(context, &transaction, project, wanted, may_restart).await?;
    let change = recorded_change(
        Some("postgres"),
        &before.settings.into_iter().collect(),
        &wanted.settings.clone().into_iter().collect(),
    );
    let events = status_events::changed(&transaction, &[project.id]).await?;
    let change = RecordedChange::new((Some(change.0.into()), Some(change.1.into())), events);
    let now = context.clock.now();
    audit.commit(transaction, doing, 200, change, now).await?;
    announce(context);
    Ok(generation)
}

/// Starts the work on a configuration that was committed.
pub(in crate::control) fn announce(context: &ControlContext) {
    context.table_changed(Table::Projects);
    context.reconciler.wake();
}

/// Writes the desired configuration of an active project. Returns the previous one and the
/// generation. After the commit, [`announce`] has to be called.
pub(in crate::control) async fn write_in(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: &Project,
    wanted: &ServerConfiguration,
    may_restart: bool,
) -> Result<(ServerConfiguration, i64), Error> {
    let doing = "changing a project's settings";
    let sql = "select status, settings, instance_size from projects \
               where id = $1 and desired <> 'removed' for update";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?.ok_or_else(removed)?;
    if Status::read(&row, 0)? != Status::ActiveHealthy {
        return Err(Error::Rejected(
            "Cannot change the settings of non-active projects".into(),
        ));
    }
    let before: Map<String, Value> = serde_json::from_value(row.get(1)).context(doing)?;
    let size = InstanceSize::of_code(row.get(2)).unwrap_or(InstanceSize::Micro);
    let is_read_at_start = |name: &&str| before.get(*name) != wanted.settings.get(*name);
    let restarts = may_restart && (size != wanted.size || AT_START.iter().any(is_read_at_start));
    let status = if restarts {
        Status::Restarting
    } else {
        Status::ActiveHealthy
    };
    let sql = "update projects set settings = $2, settings_before = coalesce(settings_before, settings), status = $3, asleep = false, \
               generation = generation + 1, attempts = 0, not_before = $4, updated_at = $4, last_error = null, instance_size = $5 \
               where id = $1 returning generation";
    let now = context.clock.now();
    let settings = Value::Object(wanted.settings.clone());
    let parameters: [Param<'_>; 5] = [
        &project.id.0,
        &settings,
        &status.name(),
        &now,
        &wanted.size.code(),
    ];
    let written = transaction.query_one(sql, &parameters).await;
    let before = ServerConfiguration {
        settings: before,
        size,
    };
    Ok((before, written.context(doing)?.get(0)))
}

fn to_map(settings: &Settings) -> Result<Map<String, Value>, Error> {
    match serde_json::to_value(settings).context("writing settings")? {
        Value::Object(map) => Ok(map),
        _ => Ok(Map::new()),
    }
}

fn from_row(settings: Value) -> Result<Settings, Error> {
    serde_json::from_value(settings).context("reading a project's settings")
}

/// Returns whether a setting is read only when a server starts.
pub(in crate::control) fn is_read_at_start(name: &str) -> bool {
    AT_START.contains(&name)
}

/// Returns whether a change of settings requires a restart.
pub(crate) fn wait(started: &[(String, String)], wanted: &[(String, String)]) -> bool {
    fn value<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
        settings
            .iter()
            .find(|(named, _)| named == name)
            .map(|(_, value)| value.as_str())
    }
    AT_START
        .iter()
        .any(|name| value(started, name) != value(wanted, name))
}

/// Formats a value for PostgreSQL.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        other => other.to_string(),
    }
}
