//! The SQL dialects of clients: one function table each.

mod bigquery;
mod clickhouse;

use crate::{
    answer::QueryError,
    engine::Statement,
    sql::{self, Dialect, EXTRACT, function::FunctionTable},
};

impl Dialect {
    /// Function names of the dialect with the minimum and maximum number of arguments.
    pub fn functions(self) -> impl Iterator<Item = (&'static str, (usize, usize))> {
        function_table(self)
            .iter()
            .copied()
            .flatten()
            .map(|function| {
                let name = match function.name {
                    EXTRACT => "extract",
                    name => name,
                };
                let (min, max) = function.arity;
                (name, (min, max + usize::from(function.zone_at.is_some())))
            })
    }
}

/// Translates a statement. `now` is the value of the current time in microseconds since 1970.
pub(crate) fn translate(dialect: Dialect, sql: &str, now: i64) -> Result<Statement, QueryError> {
    sql::translate(dialect, function_table(dialect), sql, now)
}

fn function_table(dialect: Dialect) -> FunctionTable {
    match dialect {
        Dialect::BigQuery => bigquery::FUNCTIONS,
        Dialect::ClickHouse => clickhouse::FUNCTIONS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::function::{FunctionKind, Translation};

    #[test]
    fn function_names_are_unique_within_a_dialect() {
        for dialect in [Dialect::BigQuery, Dialect::ClickHouse] {
            let mut names: Vec<_> = function_table(dialect)
                .iter()
                .copied()
                .flatten()
                .map(|function| function.name.to_ascii_lowercase())
                .collect();
            names.sort();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }

    #[test]
    fn templates_refer_only_to_mandatory_arguments() {
        for dialect in [Dialect::BigQuery, Dialect::ClickHouse] {
            for function in function_table(dialect).iter().copied().flatten() {
                let Translation::Template(template) = function.translation else {
                    continue;
                };
                let name = function.name;
                let (min, max) = function.arity;
                assert!(min <= max, "{name}");
                let has_filter = template.contains("{f}");
                let is_scalar = function.kind == FunctionKind::Scalar;
                assert_eq!(has_filter, !is_scalar, "{name}");
                for placeholder in template.split('{').skip(1) {
                    let placeholder = placeholder.split(['}', ':']).next().unwrap();
                    let valid = match placeholder.parse::<usize>() {
                        Ok(argument) => argument < min,
                        Err(_) => "fdnp*".contains(placeholder),
                    };
                    assert!(valid, "{name}: {placeholder}");
                }
            }
        }
    }
}
