//! Settings that the operator makes for single projects instead of the server's defaults.
//!
//! A setting is a value: a `ProjectSetting` names its table's statements, and stores any of them
//! with its audit log entry.

pub mod key_checks;
mod project_setting;
pub mod upstreams;
