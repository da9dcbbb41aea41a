//! Statements in the dialect of the engine.

use super::fill::Fill;

/// The name of the only table.
pub(crate) const TABLE: &str = "logs";

/// A translated statement and the rendering of its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// SQL in the engine's dialect over the table [`TABLE`].
    pub(crate) sql: String,
    /// Column names that the client sees.
    pub(crate) columns: Vec<String>,
    /// Requested number of rows. The statement selects one more to detect truncation.
    pub(crate) rows: usize,
    /// The statement under an assumption that the engine checks first.
    pub(crate) relaxed: Option<RelaxedSql>,
    /// Rows for gaps in the result.
    pub(crate) fill: Option<Fill>,
    /// Whether timestamps are rendered as microseconds since 1970 instead of text.
    pub(crate) timestamps_as_numbers: bool,
}

/// A form of a statement that is faster and valid if no line matches an exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelaxedSql {
    pub(crate) sql: String,
    /// Conditions for lines of the table [`TABLE`].
    pub(crate) exceptions: Vec<String>,
}
