//! Gantry: a self-hosted Management API for organizations and projects of a hosted backend platform.
//!
//! `ARCHITECTURE.md` has the map and the life of a request. The modules, from the outside in:
//!
//! - [`cli`]: what a person types; [`config`]: the server's options
//! - [`http`]: how a request becomes a call; [`endpoints`]: the one list of operations; [`planned`]: those not built yet
//! - [`access`]: who calls and what they may do; [`limits`]: how often; [`tokens`], [`accounts`]: with what
//! - [`organizations`], [`projects`], [`keys`], [`snippets`], [`database`], [`jit`],
//!   [`mod@reference`]: the operations
//! - [`web`]: the account pages, which are clients of the operations
//! - [`clusters`]: the real PostgreSQL behind a project; [`router`]: the way in for its clients, [`network`]: who may take it
//! - [`edge`]: the way in to its services, by [`domains`]: the names under which it is reached
//! - [`analytics`]: what projects log, kept and asked for through the package `gantry-logs`
//! - [`app`], [`db`], [`sealing`], [`cache`], [`places`], [`tls`], [`listener`], [`telemetry`], [`error`], [`ids`], [`names`],
//!   [`clock`]: what they share

pub mod accepting;
pub mod access;
pub mod accounts;
pub mod analytics;
pub mod app;
pub mod audit;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod clusters;
pub mod config;
pub mod database;
pub mod db;
pub mod domains;
pub mod edge;
pub mod endpoints;
pub mod error;
pub mod http;
pub mod ids;
pub mod jit;
pub mod keys;
pub mod limits;
pub mod listener;
pub mod names;
pub mod network;
pub mod oauth;
pub mod operator;
pub mod organizations;
pub mod places;
pub mod planned;
pub mod projects;
pub mod queue;
pub mod reference;
pub mod router;
pub mod sealing;
pub mod snippets;
pub mod telemetry;
pub mod tls;
pub mod tokens;
pub mod web;
pub mod wire;
