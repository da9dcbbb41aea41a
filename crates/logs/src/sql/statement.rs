//! Translates client SQL to SQL for the engine.

use super::{
    dialect::Dialect, function::FunctionTable, parse, text::Result, translator::Translator,
};
use crate::engine::{RelaxedSql, Statement, sqlparser::ast::Query};

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

pub(super) fn translate_query(
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
