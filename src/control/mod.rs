//! Decides what runs: the state of projects, their keys, names, settings and backups. Declares no
//! operations.

pub mod api_keys;
pub mod backups;
pub mod context;
pub mod database_access;
pub mod database_calls;
pub mod database_session;
pub mod domains;
pub mod fleet;
pub mod import;
pub mod installation;
pub mod metrics;
pub mod operator_settings;
pub mod platform_webhooks;
pub mod project_settings;
pub mod projects;
pub mod proxies;
pub mod service_settings;
pub mod services;
pub mod sso_providers;
pub mod temporary_access;
pub mod third_party_auth;
