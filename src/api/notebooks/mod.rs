//! Notebooks of projects: documents of text and queries that all members of the project share.
//! Queries are stored, not executed.
//!
//! Names are not unique: the contract has no error for a name that is taken, and clients that match
//! notebooks by name check for duplicates themselves.
//!
//! `cells` has the content and its rules, `rows` the rows of the table, `page` the order of lists
//! and its cursors.

mod cells;
pub mod operations;
mod page;
mod rows;
