//! Log drains: delivery of a project's log lines to systems of its owner.
//!
//! `config` checks the settings of a drain, [`operations`] are its operations, and a worker for
//! each drain delivers lines to its target.

mod config;
mod drains;
mod fields;
mod manager;
mod metrics;
pub mod operations;
mod positions;
mod progress;
mod settings;
pub(super) mod state;
mod target;
mod worker;

pub(in crate::api) use self::drains::count;
pub(crate) use self::metrics::METRICS;
pub use self::{
    manager::run,
    progress::{DrainHealth, DrainState},
    settings::BackendType,
    state::Options,
};
