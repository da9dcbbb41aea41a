//! Gantry: a self-hosted Management API for organizations and projects of a hosted backend
//! platform.
//!
//! The wings, from the outside in. Each imports only wings below it, which a test checks.
//!
//! - [`cli`]: the command line
//! - [`app`]: configuration, start-up, background tasks and the operator's API
//! - [`web`]: the account pages
//! - [`api`]: the operations, one folder for each resource
//! - [`control`]: the state of projects: their clusters, keys, names, settings and backups
//! - [`proxy`]: the proxies through which clients reach databases and services
//! - [`platform`]: the services of every operation: HTTP, access, rate limits, audit log,
//!   notifications, telemetry, errors, the control database, object storage
//!
//! Below them are two packages: `gantry-node` works with the files, processes and sockets of one
//! machine, and `gantry-base` has time, identifiers and network.

pub mod api;
pub mod app;
pub mod cli;
pub mod control;
pub mod mcp;
pub mod platform;
pub mod proxy;
pub mod web;
