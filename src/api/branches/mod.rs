//! Branches of projects.

pub mod ledger;
