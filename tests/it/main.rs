//! The integration tests: one binary, over a real PostgreSQL.

#![cfg(test)]

mod access;
mod advisors;
mod binary;
mod clusters;
mod contract;
mod database;
mod http;
mod lifecycle;
mod limits;
mod organizations;
mod projects;
mod sql;
mod support;
mod tidy;
mod types;
