//! The settings of a project's server as values, derived from the schema of the operation that
//! changes them.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;

use super::Settings;
use crate::control::service_settings::setting::{ServiceSetting, TextForm, ValueType};

/// The settings by name. Unset: the server's own value.
pub static POSTGRES_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let schema = schemars::schema_for!(Settings).to_value();
    let mut all = BTreeMap::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let explanation = EXPLANATIONS.iter().find(|(setting, _)| setting == name);
        let setting = ServiceSetting::new(value_type(property), Value::Null)
            .nullable()
            .explained(explanation.map_or("", |(_, text)| text));
        all.insert(name.clone(), setting);
    }
    all
});

/// Values of `session_replication_role`.
const ROLES: &[&str] = &["origin", "replica", "local"];

fn value_type(property: &Value) -> ValueType {
    let kinds = &property["type"];
    let is = |kind: &str| {
        kinds == kind
            || kinds
                .as_array()
                .is_some_and(|all| all.contains(&kind.into()))
    };
    if is("boolean") {
        ValueType::Boolean
    } else if is("integer") {
        let bound = |name: &str| property[name].as_i64();
        let max = bound("maximum").unwrap_or(i64::from(u32::MAX));
        ValueType::Integer(bound("minimum").unwrap_or(0), max)
    } else if is("string") {
        ValueType::Text(TextForm::Any)
    } else {
        ValueType::Text(TextForm::OneOf(ROLES))
    }
}

const EXPLANATIONS: [(&str, &str); 25] = [
    (
        "checkpoint_timeout",
        "Longest time between automatic checkpoints.",
    ),
    (
        "effective_cache_size",
        "The planner's assumption about the size of the disk cache.",
    ),
    (
        "hot_standby_feedback",
        "Whether a standby reports its queries, so that rows they need are kept.",
    ),
    (
        "logical_decoding_work_mem",
        "Memory for logical decoding before changes are written to disk.",
    ),
    (
        "maintenance_work_mem",
        "Memory for maintenance such as VACUUM and CREATE INDEX.",
    ),
    ("max_connections", "Most concurrent sessions."),
    (
        "max_locks_per_transaction",
        "Average number of object locks for each transaction.",
    ),
    (
        "max_parallel_maintenance_workers",
        "Most workers of one maintenance command.",
    ),
    (
        "max_parallel_workers",
        "Most workers of all parallel queries.",
    ),
    (
        "max_parallel_workers_per_gather",
        "Most workers of one node of a query plan.",
    ),
    ("max_replication_slots", "Most replication slots."),
    (
        "max_slot_wal_keep_size",
        "Most write-ahead log that replication slots keep.",
    ),
    (
        "max_standby_archive_delay",
        "Longest delay of archived changes for queries on a standby.",
    ),
    (
        "max_standby_streaming_delay",
        "Longest delay of streamed changes for queries on a standby.",
    ),
    (
        "max_wal_senders",
        "Most processes that send write-ahead log.",
    ),
    (
        "max_wal_size",
        "Size of the write-ahead log that starts a checkpoint.",
    ),
    ("max_worker_processes", "Most background processes."),
    (
        "session_replication_role",
        "The triggers and rules that sessions fire.",
    ),
    ("shared_buffers", "Memory for shared buffers."),
    ("statement_timeout", "Longest time of a statement."),
    (
        "track_activity_query_size",
        "Memory for the text of the current statement of each session.",
    ),
    (
        "track_commit_timestamp",
        "Whether commit times of transactions are recorded.",
    ),
    (
        "wal_keep_size",
        "Write-ahead log that is kept for standbys.",
    ),
    (
        "wal_sender_timeout",
        "Time without an answer after which replication connections end.",
    ),
    (
        "work_mem",
        "Memory for a sort or hash before temporary files are used.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_type_and_an_explanation() {
        assert_eq!(POSTGRES_SETTINGS.len(), EXPLANATIONS.len());
        for (name, setting) in POSTGRES_SETTINGS.iter() {
            assert!(!setting.explanation.is_empty(), "{name}");
        }
        let kind = |name: &str| POSTGRES_SETTINGS[name].value_type;
        assert_eq!(kind("max_connections"), ValueType::Integer(1, 262_143));
        assert_eq!(kind("hot_standby_feedback"), ValueType::Boolean);
        assert_eq!(kind("work_mem"), ValueType::Text(TextForm::Any));
        let role = ValueType::Text(TextForm::OneOf(ROLES));
        assert_eq!(kind("session_replication_role"), role);
    }
}
