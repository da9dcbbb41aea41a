//! The settings of a project's connection pooler.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    catalog::SettingsCatalog,
    setting::{NullEffect, ServiceSetting, TextForm, ValueType},
};

/// Name of the setting with the assignment of server connections.
pub const POOL_MODE: &str = "pool_mode";
/// Name of the setting with the number of server connections of a role and database.
pub const DEFAULT_POOL_SIZE: &str = "default_pool_size";
/// Name of the setting with the number of clients.
pub const MAX_CLIENT_CONN: &str = "max_client_conn";
/// Name of the setting with the longest wait of a client for a server connection, in seconds.
pub const QUERY_WAIT_TIMEOUT: &str = "query_wait_timeout";
/// Largest pool, and most clients, that the contract knows. Those of a project have smaller bounds.
const POOL_SIZE_MAX: i64 = 3000;
/// Longest wait of a client for a server connection, in seconds. Drivers give up earlier.
const QUERY_WAIT_MAX: i64 = 120;

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
    let clients = ServiceSetting::new(ValueType::Integer(1, POOL_SIZE_MAX), Value::Null)
        .explained("Clients of the pooler. By default, those of the compute size.");
    let wait = ServiceSetting::new(ValueType::Integer(1, QUERY_WAIT_MAX), json!(QUERY_WAIT_MAX))
        .explained("Seconds that a client waits for a server connection.");
    let defaulted = |setting: ServiceSetting| ServiceSetting {
        null: NullEffect::Default,
        ..setting
    };
    BTreeMap::from([
        (POOL_MODE.to_owned(), mode),
        (DEFAULT_POOL_SIZE.to_owned(), defaulted(size)),
        (MAX_CLIENT_CONN.to_owned(), defaulted(clients)),
        (QUERY_WAIT_TIMEOUT.to_owned(), defaulted(wait)),
    ])
});
