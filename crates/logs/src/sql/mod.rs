//! Translates client SQL to SQL for the engine.
//!
//! No part of the client's text reaches the engine unchanged: the syntax tree is walked, supported
//! constructs are written anew with quoted names and literals, and everything else is rejected.
//! The function table of the dialect is passed in by the caller as a [`FunctionTable`].

mod call;
mod cast;
mod expression;
mod fill;
mod from;
pub(crate) mod function;
mod json;
mod lambda;
mod naming;
mod operator;
mod order;
mod parse;
mod predicate;
mod query;
mod scope;
mod select;
mod special;
mod sql_expr;
mod subscript;
mod time;

pub use self::parse::SQL_BYTES_MAX;
use self::{function::FunctionTable, scope::CommonTable};
pub(crate) use self::{
    parse::EXTRACT,
    sql_expr::{SqlExpr, Type},
};
use crate::{
    answer::QueryError,
    engine::{
        Fill, RelaxedSql, Statement,
        sqlparser::ast::{Expr, OrderByExpr, Query},
    },
};

/// Maximum nesting of expressions and queries after aliases are expanded.
const DEPTH_MAX: usize = 60;
/// Maximum number of expressions and queries after aliases are expanded.
const STEPS_MAX: usize = 20_000;
/// Maximum length of the translated SQL in bytes.
const TRANSLATED_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of table reads after common table expressions are expanded.
const READS_MAX: usize = 64;
/// Maximum length of a client text that an error message quotes, in characters.
const EXCERPT_CHARS_MAX: usize = 200;

type Result<T> = std::result::Result<T, QueryError>;

/// The SQL dialect of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// One table per source with `metadata` as nested records.
    BigQuery,
    /// One table `logs` with `log_attributes` as a map.
    ClickHouse,
}

/// Translates a statement. `now` is the value of the current time in microseconds since 1970.
pub(crate) fn translate(
    dialect: Dialect,
    functions: FunctionTable,
    sql: &str,
    now: i64,
) -> Result<Statement> {
    let parsed = parse::parse(dialect, sql)?;
    let mut statement = translate_query(dialect, functions, &parsed, now, false)?;
    if let Some(relaxed) = &mut statement.relaxed {
        relaxed.sql = translate_query(dialect, functions, &parsed, now, true)?.sql;
    }
    Ok(statement)
}

fn translate_query(
    dialect: Dialect,
    functions: FunctionTable,
    parsed: &Query,
    now: i64,
    assumes_records: bool,
) -> Result<Statement> {
    let mut translator = Translator {
        dialect,
        functions,
        now,
        identifiers: 0,
        depth: 0,
        steps: 0,
        reads: 0,
        common_tables: Vec::new(),
        values: Vec::new(),
        aggregates: 0,
        assumes_records,
        record_exceptions: Vec::new(),
        fill_key: None,
        fill: None,
    };
    let (query, rows) = translator.statement(parsed)?;
    let columns = query.columns.into_iter().map(|column| column.name);
    let exceptions = translator.record_exceptions;
    Ok(Statement {
        sql: query.sql,
        columns: columns.collect(),
        rows,
        timestamps_as_numbers: dialect == Dialect::BigQuery,
        relaxed: (!exceptions.is_empty()).then(|| RelaxedSql {
            sql: String::new(),
            exceptions,
        }),
        fill: translator.fill,
    })
}

/// State of the translation of one statement.
pub(crate) struct Translator<'a> {
    dialect: Dialect,
    functions: FunctionTable,
    now: i64,
    /// Number of generated identifiers.
    identifiers: usize,
    depth: usize,
    steps: usize,
    reads: usize,
    /// Common table expressions in scope, innermost last.
    common_tables: Vec<CommonTable<'a>>,
    /// Values that `WITH` names, innermost last.
    values: Vec<(&'a str, &'a Expr)>,
    /// Number of aggregates so far.
    aggregates: usize,
    /// Whether lines are assumed to have the records that grouped queries unnest.
    assumes_records: bool,
    /// Conditions that hold for every line that contradicts the assumption.
    record_exceptions: Vec<String>,
    /// The sort key with `WITH FILL` of the statement.
    fill_key: Option<&'a OrderByExpr>,
    fill: Option<Fill>,
}

impl Translator<'_> {
    /// Returns a new identifier. Client identifiers never refer to it, because they are resolved,
    /// not copied.
    fn fresh_identifier(&mut self) -> String {
        self.identifiers += 1;
        format!("\"t{}\"", self.identifiers)
    }

    /// Runs a step one nesting level deeper and enforces the limits on nesting and complexity.
    fn nested<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
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

    fn is_clickhouse(&self) -> bool {
        self.dialect == Dialect::ClickHouse
    }

    /// Compares two identifiers. They are case-insensitive in `BigQuery`.
    fn same_name(&self, one: &str, other: &str) -> bool {
        if self.is_clickhouse() {
            one == other
        } else {
            one.eq_ignore_ascii_case(other)
        }
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(QueryError::Invalid(text.into()))
}

/// Rejects translated SQL that is too long.
fn check_length(sql: String) -> Result<String> {
    if sql.len() > TRANSLATED_BYTES_MAX {
        return invalid("The query is too complex");
    }
    Ok(sql)
}

/// Shortens a client text for an error message.
fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}

/// Quotes an identifier.
fn quote_identifier(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Quotes a string literal.
fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
