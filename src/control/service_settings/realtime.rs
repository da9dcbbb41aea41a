//! The settings of a project's Realtime service.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    catalog::SettingsCatalog,
    setting::{ServiceSetting, ValueType},
};

/// The catalog of the Realtime service.
pub static REALTIME: SettingsCatalog = SettingsCatalog {
    service: "realtime",
    settings: || &REALTIME_SETTINGS,
    ignored: &[],
    check: |_, _| Ok(()),
};

/// Settings with their upper bounds. They are `null` unless they are set.
const INTEGERS: [(&str, i64, &str); 8] = [
    ("connection_pool", 100, "Sessions with the database."),
    ("max_concurrent_users", 50_000, "Most connected clients."),
    ("max_events_per_second", 50_000, "Most messages a second."),
    ("max_bytes_per_second", 10_000_000, "Most bytes a second."),
    (
        "max_channels_per_client",
        10_000,
        "Most channels of a client.",
    ),
    (
        "max_joins_per_second",
        5_000,
        "Most joined channels a second.",
    ),
    (
        "max_presence_events_per_second",
        5_000,
        "Most presence messages a second.",
    ),
    ("max_payload_size_in_kb", 10_000, "Largest message, in KB."),
];

/// All settings by name.
static REALTIME_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let mut all = BTreeMap::new();
    for (name, max, explanation) in INTEGERS {
        let setting = ServiceSetting::new(ValueType::Integer(1, max), Value::Null);
        all.insert(name.to_owned(), setting.explained(explanation));
    }
    for (name, default, explanation) in [
        (
            "private_only",
            Value::Null,
            "Whether public channels are rejected.",
        ),
        ("suspend", Value::Null, "Whether all clients are rejected."),
        (
            "presence_enabled",
            json!(true),
            "Whether clients can track presence.",
        ),
    ] {
        let setting = ServiceSetting::new(ValueType::Boolean, default).explained(explanation);
        all.insert(name.to_owned(), setting);
    }
    all
});
