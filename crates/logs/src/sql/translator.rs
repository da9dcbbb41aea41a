//! The state of the translation of one statement.

use super::{function::FunctionTable, scope::CommonTable, text::Result};
use crate::{
    engine::{
        Fill,
        sqlparser::ast::{Expr, OrderByExpr},
    },
    sql::{dialect::Dialect, text::invalid},
};

/// Maximum nesting of expressions and queries after aliases are expanded.
pub(super) const DEPTH_MAX: usize = 60;
/// Maximum number of expressions and queries after aliases are expanded.
pub(super) const STEPS_MAX: usize = 20_000;

/// Maximum number of table reads after common table expressions are expanded.
pub(super) const READS_MAX: usize = 64;

/// State of the translation of one statement.
pub(crate) struct Translator<'a> {
    pub(super) dialect: Dialect,
    pub(super) functions: FunctionTable,
    pub(super) now: i64,
    /// Number of generated identifiers.
    pub(super) identifiers: usize,
    pub(super) depth: usize,
    pub(super) steps: usize,
    pub(super) reads: usize,
    /// Common table expressions in scope, innermost last.
    pub(super) common_tables: Vec<CommonTable<'a>>,
    /// Values that `WITH` names, innermost last.
    pub(super) values: Vec<(&'a str, &'a Expr)>,
    /// Number of aggregates so far.
    pub(super) aggregates: usize,
    /// Whether lines are assumed to have the records that grouped queries unnest.
    pub(super) assumes_records: bool,
    /// Conditions that hold for every line that contradicts the assumption.
    pub(super) record_exceptions: Vec<String>,
    /// The sort key with `WITH FILL` of the statement.
    pub(super) fill_key: Option<&'a OrderByExpr>,
    pub(super) fill: Option<Fill>,
}

impl Translator<'_> {
    /// Returns a new identifier. Client identifiers never refer to it, because they are resolved,
    /// not copied.
    pub(super) fn fresh_identifier(&mut self) -> String {
        self.identifiers += 1;
        format!("\"t{}\"", self.identifiers)
    }

    /// Runs a step one nesting level deeper and enforces the limits on nesting and complexity.
    pub(super) fn nested<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.steps += 1;
        if self.depth >= DEPTH_MAX {
            return invalid("The query is nested too deeply");
        }
        if self.steps > STEPS_MAX {
            return invalid("The query is too complex");
        }
        self.depth += 1;
        let result = step(self);
        self.depth -= 1;
        result
    }

    pub(super) fn is_clickhouse(&self) -> bool {
        self.dialect == Dialect::ClickHouse
    }

    /// Compares two identifiers. They are case-insensitive in `BigQuery`.
    pub(super) fn same_name(&self, one: &str, other: &str) -> bool {
        if self.is_clickhouse() {
            one == other
        } else {
            one.eq_ignore_ascii_case(other)
        }
    }
}
