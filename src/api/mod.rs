//! The operations, one folder for each resource.

pub mod accounts;
pub mod audit_log;
pub mod backups;
pub mod branches;
pub mod context;
pub mod data_api;
pub mod database;
pub mod database_access;
pub mod domains;
pub mod endpoints;
mod function_secrets;
mod functions;
pub mod keys;
pub mod log_drains;
pub mod logs;
pub mod oauth;
pub mod organizations;
pub mod planned;

pub mod project_config;
pub mod project_settings;
pub mod projects;
pub mod rate_limits;
pub mod reference;
pub mod service_settings;
pub mod signing_keys;
pub mod snippets;
pub mod sso_providers;
pub mod storage_buckets;
pub mod temporary_access;
pub mod third_party_auth;
pub mod tokens;
