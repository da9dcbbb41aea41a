//! The settings of a project's Realtime service.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    SettingsCatalog,
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
const INTEGERS: [(&str, i64); 8] = [
    ("connection_pool", 100),
    ("max_concurrent_users", 50_000),
    ("max_events_per_second", 50_000),
    ("max_bytes_per_second", 10_000_000),
    ("max_channels_per_client", 10_000),
    ("max_joins_per_second", 5_000),
    ("max_presence_events_per_second", 5_000),
    ("max_payload_size_in_kb", 10_000),
];

/// All settings by name.
static REALTIME_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let mut all = BTreeMap::new();
    for (name, max) in INTEGERS {
        let value_type = ValueType::Integer(1, max);
        all.insert(
            name.to_owned(),
            ServiceSetting::new(value_type, Value::Null),
        );
    }
    for (name, default) in [
        ("private_only", Value::Null),
        ("suspend", Value::Null),
        ("presence_enabled", json!(true)),
    ] {
        let setting = ServiceSetting::new(ValueType::Boolean, default);
        all.insert(name.to_owned(), setting);
    }
    all
});
