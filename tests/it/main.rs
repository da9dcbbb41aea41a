//! The integration tests: one binary, over a real PostgreSQL.

#![cfg(test)]

mod access;
mod addons;
mod advisors;
mod analytics;
mod audit;
mod auth_settings;
mod backups;
mod binary;
mod branches;
mod clusters;
mod contract;
mod database;
mod docs;
mod domains;
mod edge;
mod engines;
mod extensions;
mod functions;
#[path = "../fuzz/mod.rs"]
mod fuzz;
mod http;
mod keys;
mod lifecycle;
mod limits;
mod matrix;
mod members;
mod model;
mod oauth;
mod organizations;
mod pausing;
mod platform_database;
mod pool;
mod projects;
mod recovery;
mod resources;
mod router;
mod service_settings;
mod services;
mod settings;
mod signing_keys;
mod snippets;
mod sql;
mod sso_providers;
mod storage_buckets;
mod support;
mod temporary_access;
mod tidy;
mod tokens;
mod types;
mod walls;
mod web;
mod webhooks;
