//! Branches of projects: projects that are made from another and can be merged back (decision
//! 0099).
//!
//! A branch is a project of its own, with ref, keys and host. Its row in `branches` names the
//! parent. The default branch stands for the parent itself. All changes that take a while are
//! [`runs`], which the [`runner`] drives.

pub mod action_runs;
mod branch_events;
mod branch_row;
mod create;
mod creation_run;
pub mod diff;
mod drift;
mod expiry;
mod expiry_notice;
pub mod ledger;
pub mod lifecycle;
mod notify;
pub mod operations;
pub mod operator;
mod password;
mod rehearsal;
mod run_outcome;
pub mod runner;
pub mod runs;
mod space;
pub(super) mod state;
mod target;
mod text;
mod transfer;
mod unapplied_drift;
pub mod v2;
mod view;

pub(in crate::api) use self::{branch_events::removal, create::FOLLOWING};
pub use self::{
    branch_row::{BranchStatus, SchemaSource},
    state::BranchOptions,
};
