//! Settings of a project's server that its owner may change.
//!
//! Settings are checked three times: the name and the form of the value, the memory that they need,
//! and by PostgreSQL itself. They are then recorded in the project's row, and the reconciler
//! applies them. If the server does not start with them, it reverts them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{SETTLE_WAIT, Status, removed};
use crate::{
    base::error::{Context, Error},
    data_plane::{
        clusters::{ClusterError, ResourceLimits},
        context::DataPlaneContext,
    },
    platform::{access::Project, audit::Recorder, tables::Table},
};

/// The maximum length of a value: a number with a unit, or a word.
const VALUE_BYTES_MAX: usize = 64;
/// The maximum number of digits of a size.
const DIGITS_MAX: usize = 15;
/// Processes of a server besides sessions, workers and senders of its log.
const PROCESSES_OWN: u64 = 20;
/// Code, catalogs and stack of a session, in kB: measured, and doubled.
const SESSION_KB: u64 = 5 << 10;
/// Maximum size of the write-ahead log for one setting, in kB, regardless of the project's disk
/// space.
const WAL_KB: u64 = 4 << 20;

/// Bounds on the resources that settings may make a server use.
#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Memory of all sessions at once, in kB; a quarter of it for any one purpose.
    memory_kb: u64,
    processes: u64,
    /// Disk space of the write-ahead log for any one reason, in kB.
    wal_kb: u64,
}

impl From<&ResourceLimits> for Budget {
    fn from(limits: &ResourceLimits) -> Self {
        // Half of the disk space is for data.
        let wal_kb = WAL_KB.min((limits.disk_hard_bytes >> 10) / 2);
        Self {
            memory_kb: limits.memory_bytes >> 10,
            processes: limits.processes,
            wal_kb,
        }
    }
}

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
pub async fn get(context: &DataPlaneContext, project: &Project) -> Result<Settings, Error> {
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
    context: &DataPlaneContext,
    project: &Project,
    change: Change,
    how: How,
    audit: &Recorder,
) -> Result<Settings, Error> {
    let may_restart = change.restart_database != Some(false);
    let before = to_map(&get(context, project).await?)?;
    let mut wanted = to_map(&change.settings())?;
    if how == How::Merge {
        let mut merged = before.clone();
        merged.append(&mut wanted);
        wanted = merged;
    }
    if wanted == before {
        return from_row(Value::Object(wanted));
    }
    let budget = context
        .driver
        .resource_limits()
        .map_or_else(|| Budget::from(&ResourceLimits::default()), Budget::from);
    check(&wanted, budget)?;
    let written: Vec<(String, String)> = wanted
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
        })?;
    let mut changes = context.reconciler.changes();
    let generation = write(context, project, &wanted, may_restart, audit).await?;
    let in_force = async {
        loop {
            let sql = "select settings, settings_before is null or generation <> $2, last_error from projects where id = $1";
            let rows = context
                .db
                .query(sql, &[&project.id.0, &generation])
                .await
                .context("reading a project's settings")?;
            let row = rows.first().ok_or_else(removed)?;
            if row.get(1) {
                let now: Value = row.get(0);
                let refused = now != Value::Object(wanted.clone());
                let why = row.get::<_, Option<String>>(2).filter(|_| refused);
                return why.map_or_else(|| from_row(now), |why| Err(Error::Rejected(why.into())));
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
    context: &DataPlaneContext,
    project: &Project,
    wanted: &Map<String, Value>,
    may_restart: bool,
    audit: &Recorder,
) -> Result<i64, Error> {
    let now = context.clock.now();
    let doing = "changing a project's settings";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql =
        "select status, settings from projects where id = $1 and desired <> 'removed' for update";
    let row = transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context(doing)?
        .ok_or_else(removed)?;
    if Status::read(&row, 0)? != Status::ActiveHealthy {
        return Err(Error::Rejected(
            "Cannot change the settings of non-active projects".into(),
        ));
    }
    let before: Value = row.get(1);
    let restart = may_restart
        && AT_START
            .iter()
            .any(|name| before.get(name) != wanted.get(*name));
    let status = if restart {
        Status::Restarting
    } else {
        Status::ActiveHealthy
    };
    let sql = "update projects set settings = $2, settings_before = coalesce(settings_before, settings), status = $3, asleep = false, \
               generation = generation + 1, attempts = 0, not_before = $4, updated_at = $4, last_error = null where id = $1 \
               returning generation";
    let wanted = Value::Object(wanted.clone());
    let row = transaction
        .query_one(sql, &[&project.id.0, &wanted, &status.name(), &now])
        .await
        .context(doing)?;
    audit
        .write_in(
            &transaction,
            200,
            (
                Some(json!({"settings": before})),
                Some(json!({"settings": wanted})),
            ),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(row.get(0))
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

/// Checks what PostgreSQL does not check: that a value cannot inject other settings, and its
/// resource usage.
fn check(wanted: &Map<String, Value>, budget: Budget) -> Result<(), Error> {
    for (name, value) in wanted {
        let value = text(value);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" .-_".contains(&byte);
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || !value.bytes().all(plain) {
            return Err(Error::invalid(
                name.clone(),
                "expected a number with a unit, such as 64MB or 30s",
            ));
        }
    }
    let kb = |name: &str, unit_kb: u64, ours: u64| {
        let Some(value) = wanted.get(name) else {
            return Ok(ours);
        };
        kilobytes(&text(value), unit_kb)
            .ok_or_else(|| Error::invalid(name.to_owned(), "expected a size, such as 64MB"))
    };
    let sessions = wanted
        .get("max_connections")
        .and_then(Value::as_u64)
        .unwrap_or(30);
    let each = kb("work_mem", 1, 4 << 10)?;
    let buffers = kb("shared_buffers", 8, 16 << 10)?;
    let purposes = [
        ("work_mem", each),
        (
            "maintenance_work_mem",
            kb("maintenance_work_mem", 1, 32 << 10)?,
        ),
        ("shared_buffers", buffers),
    ];
    let purposes = purposes.into_iter().chain([(
        "logical_decoding_work_mem",
        kb("logical_decoding_work_mem", 1, 64 << 10)?,
    )]);
    for (name, size) in purposes {
        if size > budget.memory_kb / 4 {
            let most = (budget.memory_kb / 4) >> 10;
            return Err(Error::invalid(
                name,
                format!("is more than this project's memory allows: at most {most} MB"),
            ));
        }
    }
    // All sessions count, although few of them sort at the same time.
    let needed = sessions
        .saturating_mul(SESSION_KB)
        .saturating_add(buffers)
        .saturating_add(sessions.saturating_mul(each) / 4);
    if needed > budget.memory_kb {
        let text = format!(
            "together with shared_buffers and work_mem needs {} MB, and the project has {}",
            needed >> 10,
            budget.memory_kb >> 10
        );
        return Err(Error::invalid("max_connections", text));
    }
    let count = |name: &str, ours: u64| wanted.get(name).and_then(Value::as_u64).unwrap_or(ours);
    let processes = [
        sessions,
        count("max_worker_processes", 8),
        count("max_wal_senders", 5),
        PROCESSES_OWN,
    ];
    let processes = processes.into_iter().fold(0, u64::saturating_add);
    if ["max_connections", "max_worker_processes", "max_wal_senders"]
        .iter()
        .any(|name| wanted.contains_key(*name))
        && processes > budget.processes
    {
        let text = format!(
            "together with workers needs {processes} processes, and the project has {}",
            budget.processes
        );
        return Err(Error::invalid("max_connections", text));
    }
    // Tables of the lock manager and of workers are shared memory, too.
    for (name, most) in [
        ("max_locks_per_transaction", 4096),
        ("max_worker_processes", 64),
        ("max_wal_senders", 64),
        ("max_replication_slots", 64),
    ] {
        if wanted
            .get(name)
            .and_then(Value::as_u64)
            .is_some_and(|count| count > most)
        {
            return Err(Error::invalid(
                name,
                format!("is more than this project's memory allows: at most {most}"),
            ));
        }
    }
    for name in ["max_wal_size", "wal_keep_size", "max_slot_wal_keep_size"] {
        // A negative size means unlimited, which is not permitted here.
        if kb(name, 1 << 10, 0)? > budget.wal_kb {
            return Err(Error::invalid(
                name,
                format!(
                    "is more than this project's disk allows: at most {} MB",
                    budget.wal_kb >> 10
                ),
            ));
        }
    }
    Ok(())
}

/// Parses a size to kB, rounded up: `64MB`, `1.5 GB`, or a number in the setting's own unit.
fn kilobytes(text: &str, unit_kb: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (whole, fraction) = text[..digits]
        .split_once('.')
        .unwrap_or((&text[..digits], ""));
    let bytes: u128 = match text[digits..].trim() {
        "" => u128::from(unit_kb) << 10,
        "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    // The number of digits excludes overflows below.
    if whole.is_empty() || text[..digits].len() > DIGITS_MAX || fraction.contains('.') {
        return None;
    }
    let number: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from((number * bytes).div_ceil(scale << 10)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_in_postgresql() {
        for (text, unit_kb, kb) in [
            ("64MB", 1, 64 << 10),
            ("1.5GB", 1, 1536 << 10),
            ("128", 8, 1024),
            ("128", 1, 128),
            ("1 TB", 1, 1 << 30),
            ("1B", 1, 1),
        ] {
            assert_eq!(kilobytes(text, unit_kb), Some(kb), "{text}");
        }
        for bad in [
            "",
            "MB",
            "64mb",
            "-1",
            "1..2GB",
            "9e9GB",
            "64 M B",
            "99999999999999TB",
        ] {
            assert_eq!(kilobytes(bad, 1), None, "{bad}");
        }
    }

    #[test]
    fn excessive_parameter_is_named() {
        let problem = |settings: Value| match settings {
            Value::Object(map) => check(&map, Budget::from(&ResourceLimits::default()))
                .err()
                .map(|error| error.message().into_owned()),
            _ => None,
        };
        for fits in [
            json!({}),
            json!({"max_connections": 100, "shared_buffers": "64MB", "work_mem": "8MB", "statement_timeout": "30s"}),
            json!({"max_wal_size": "1GB", "hot_standby_feedback": true}),
        ] {
            assert_eq!(problem(fits.clone()), None, "{fits}");
        }
        for (settings, named) in [
            (json!({"shared_buffers": "900GB"}), "shared_buffers: "),
            (json!({"max_connections": 10_000}), "max_connections: "),
            (
                json!({"max_connections": 100, "work_mem": "200MB"}),
                "max_connections: ",
            ),
            (json!({"work_mem": "1GB"}), "work_mem: "),
            (
                json!({"max_slot_wal_keep_size": "-1"}),
                "max_slot_wal_keep_size: ",
            ),
            (
                json!({"max_locks_per_transaction": 2_000_000_000}),
                "max_locks_per_transaction: ",
            ),
            (
                json!({"work_mem": "4MB'\nlog_directory = '/tmp"}),
                "work_mem: ",
            ),
            (json!({"statement_timeout": ""}), "statement_timeout: "),
            (json!({"max_wal_size": "5GB"}), "max_wal_size: "),
            (
                json!({"max_connections": 200, "work_mem": "64kB", "max_worker_processes": 64}),
                "max_connections: together with workers needs 289",
            ),
        ] {
            let problem = problem(settings.clone()).unwrap_or_default();
            assert!(problem.starts_with(named), "{settings}: {problem}");
        }
    }
}
