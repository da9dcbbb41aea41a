//! Environments of programs that get their settings as variables: those of the catalog, the
//! project's keys, and the address of the database.
//!
//! Secrets reach a program by a file that its launcher reads and deletes, never by arguments, which
//! other accounts can read.

mod auth;
pub(in crate::control::services) mod catalog;
pub mod realtime;
pub(in crate::control::services) mod service_environment;
pub(in crate::control::services) mod settings;
mod storage;
mod variables;

pub use self::settings::update;
