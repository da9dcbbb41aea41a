//! Sessions of the platform's superuser in the servers of projects.
//!
//! The databases belong to tenants, which can plant code in most places: types' input functions,
//! domains, defaults, generated columns, expressions of indexes and statistics, rules, triggers in
//! all modes, policies, row filters, casts, operators and functions found by `search_path`, foreign
//! keys, partition keys, validation of constraints. In a session of the superuser, such code
//! becomes a superuser with `reset role`. Therefore a [`SuperuserSession`] executes only declared
//! [`SuperuserStatement`]s, each with the reason why it executes no code of a tenant (decision
//! 0150). Rows are changed in sessions of other logins: of the owner of the table, or of
//! [`ROWS_LOGIN`](super::platform_roles::ROWS_LOGIN); those of the superuser's own tables are the
//! exception.
//!
//! `tidy` rejects a superuser's login outside of this folder.

mod copies;
mod facts;
mod privileges;
mod roles;
mod session;
pub(in crate::clusters) mod sessions;
mod upgrades;

pub use self::{
    copies::*,
    facts::*,
    privileges::*,
    roles::*,
    session::{SqlArgument, SqlError, SqlParams, SuperuserSession, SuperuserStatement},
    upgrades::*,
};
