//! Operations in a project's PostgreSQL: queries, migrations, types, advisors and schemas.

pub mod advisors;
pub mod catalog;
pub mod context;
mod destructive_sql;
pub mod migrations;
pub mod openapi;
pub mod operations;
pub mod query;
pub mod typescript;
pub mod webhooks;
