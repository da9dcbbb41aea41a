//! Casts between the types of the dialects.

use super::{
    sql_expr::{SqlExpr, Type},
    text::{Result, excerpt, invalid},
    translator::Translator,
};

impl Translator<'_> {
    /// Casts a value to a type of the dialect. A safe cast returns null for invalid values.
    pub(super) fn cast(&self, value: SqlExpr, to: &str, safe: bool) -> Result<SqlExpr> {
        let cast = if safe { "TRY_CAST" } else { "CAST" };
        let lower = to.to_ascii_lowercase();
        let expr = match base_type(&lower) {
            "int64" | "int" | "integer" | "bigint" | "smallint" | "tinyint" | "int8" | "int16"
            | "int32" | "uint8" | "uint16" | "uint32" | "uint64" => {
                let sql = match value.ty {
                    Type::Text => value.sql,
                    Type::Float => format!("trunc({})", value.sql),
                    _ => value.integer(),
                };
                SqlExpr::new(format!("{cast}({sql} AS BIGINT)"), Type::Integer)
            }
            "float64" | "float32" | "float" | "double" | "numeric" | "decimal" | "bignumeric" => {
                let sql = match value.ty {
                    Type::Text => format!("{cast}({} AS DOUBLE)", value.sql),
                    _ => value.float(),
                };
                SqlExpr::new(sql, Type::Float)
            }
            "string" | "varchar" | "text" | "char" | "fixedstring" => {
                SqlExpr::new(value.text(), Type::Text)
            }
            "bool" | "boolean" => {
                SqlExpr::new(format!("{cast}({} AS BOOLEAN)", value.sql), Type::Boolean)
            }
            "date" => SqlExpr::new(format!("{cast}({} AS DATE)", value.sql), Type::Date),
            "timestamp" | "datetime64" => {
                SqlExpr::new(value.timestamp(self.dialect), Type::Timestamp)
            }
            "datetime" => self.cast_to_datetime(&value),
            _ => return invalid(format!("Type {} is not supported", excerpt(to))),
        };
        Ok(expr)
    }

    /// `DATETIME` is a timestamp in seconds in `ClickHouse` and a civil date-time in `BigQuery`.
    fn cast_to_datetime(&self, value: &SqlExpr) -> SqlExpr {
        let timestamp = value.timestamp(self.dialect);
        if self.is_clickhouse() {
            SqlExpr::new(
                format!("arrow_cast({timestamp}, 'Timestamp(Second, None)')"),
                Type::Seconds,
            )
        } else {
            SqlExpr::new(
                format!("arrow_cast({timestamp}, 'Timestamp(Nanosecond, None)')"),
                Type::DateTime,
            )
        }
    }
}

/// Returns the name of a type without `Nullable`, `LowCardinality` and parameters.
fn base_type(lower: &str) -> &str {
    let inner = lower
        .strip_prefix("nullable(")
        .or_else(|| lower.strip_prefix("lowcardinality("))
        .unwrap_or(lower);
    inner.split(['(', ')', ' ']).next().unwrap_or_default()
}
