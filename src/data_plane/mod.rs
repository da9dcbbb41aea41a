//! Runs the clusters of projects and carries traffic to them. Declares no operations.

pub mod api_keys;
pub mod backups;
pub mod context;
pub mod database_access;
pub mod database_session;
pub mod domains;
pub mod import;
pub mod installation;
pub mod metrics;
pub mod postgres_proxy;
pub mod project_settings;
pub mod projects;
pub mod service_proxy;
pub mod service_settings;
pub mod services;
pub mod sso_providers;
pub mod temporary_access;
pub mod third_party_auth;
