//! The settings of a project's connection pooler.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    SettingsCatalog,
    setting::{NullEffect, ServiceSetting, TextForm, ValueType},
};

/// Name of the setting with the assignment of server connections.
pub const POOL_MODE: &str = "pool_mode";
/// Name of the setting with the number of server connections of a role and database.
pub const DEFAULT_POOL_SIZE: &str = "default_pool_size";
/// Largest pool that the contract knows. That of a project has a smaller bound.
const POOL_SIZE_MAX: i64 = 3000;

/// The catalog of the pooler.
pub static POOLER: SettingsCatalog = SettingsCatalog {
    service: "pooler",
    settings: || &POOLER_SETTINGS,
    ignored: &[],
    check: |_, _| Ok(()),
};

/// All settings by name.
static POOLER_SETTINGS: LazyLock<BTreeMap<String, ServiceSetting>> = LazyLock::new(|| {
    let mode = TextForm::OneOf(&["transaction", "session"]);
    let mode = ServiceSetting::new(ValueType::Text(mode), json!("transaction")).explained(
        "Whether a client has a server connection for a transaction or for its session.",
    );
    let size = ServiceSetting::new(ValueType::Integer(1, POOL_SIZE_MAX), Value::Null).explained(
        "Server connections of a role and database. By default, those of the compute size.",
    );
    let size = ServiceSetting {
        null: NullEffect::Default,
        ..size
    };
    BTreeMap::from([
        (POOL_MODE.to_owned(), mode),
        (DEFAULT_POOL_SIZE.to_owned(), size),
    ])
});
