//! Platform webhooks: endpoints of organizations and projects, and their deliveries.
//!
//! Each operation exists for both scopes, with one handler in [`operations`]. `endpoints` has the
//! rules and rows of endpoints, `deliveries` those of tests and retries, `checks` the rules for
//! single attributes, and `resources` the types of requests and responses.

mod checks;
mod deliveries;
mod endpoints;
pub mod operations;
mod resources;
