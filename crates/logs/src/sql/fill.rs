//! `ORDER BY … WITH FILL` of a statement.

use super::{
    naming::clickhouse_name,
    scope::{OutputColumn, Scope},
    sql_expr::{SqlExpr, Type},
    text::{Result, excerpt, invalid},
    translator::Translator,
};
use crate::engine::{
    Fill, FillUnit,
    sqlparser::ast::{Expr, OrderByExpr, Value},
};

/// Rejects `WITH FILL` in a subquery.
pub(super) fn reject_fill(order: &[OrderByExpr]) -> Result<()> {
    if order.iter().any(|item| item.with_fill.is_some()) {
        return invalid("WITH FILL is not supported in a subquery");
    }
    Ok(())
}

impl<'a> Translator<'a> {
    /// Remembers the sort key with `WITH FILL` of the statement.
    pub(super) fn take_fill(
        &mut self,
        order: &'a [OrderByExpr],
        offset: &str,
        limit_by: bool,
    ) -> Result<()> {
        if order.iter().all(|item| item.with_fill.is_none()) {
            return Ok(());
        }
        let [key] = order else {
            return invalid("WITH FILL is supported for the only sort key");
        };
        if !offset.is_empty() || limit_by {
            return invalid("WITH FILL does not support OFFSET and LIMIT BY");
        }
        self.fill_key = Some(key);
        Ok(())
    }

    /// Describes the filling of the result columns.
    pub(super) fn finish_fill(&mut self, columns: &[OutputColumn]) -> Result<()> {
        let Some(key) = self.fill_key.take() else {
            return Ok(());
        };
        let Some(fill) = &key.with_fill else {
            return Ok(());
        };
        let Some(column) = filled_column(&key.expr, columns) else {
            return invalid("WITH FILL requires a column of the result");
        };
        let unit = match columns[column].ty {
            Type::Integer => FillUnit::Number,
            Type::Seconds | Type::Local => FillUnit::Second,
            Type::Date => FillUnit::Day,
            Type::Timestamp => FillUnit::Microsecond,
            _ => return invalid("WITH FILL requires an integer or a time"),
        };
        let descending = key.options.asc == Some(false);
        let step = match &fill.step {
            Some(step) => self.fill_step(step, unit)?,
            None if descending => -1,
            None => 1,
        };
        if step == 0 || (step < 0) != descending {
            return invalid("The STEP of WITH FILL must have the direction of the order");
        }
        let from = self.fill_bound(fill.from.as_ref(), unit)?;
        let to = self.fill_bound(fill.to.as_ref(), unit)?;
        self.fill = Some(Fill {
            column,
            unit,
            step,
            bounds: format!("SELECT {from} AS \"from\", {to} AS \"to\""),
            defaults: columns.iter().map(default_json).collect(),
        });
        Ok(())
    }

    /// Returns the step in a unit.
    fn fill_step(&mut self, step: &'a Expr, unit: FillUnit) -> Result<i64> {
        let SqlExpr { ty, literal, .. } = self.expression(step, &mut Scope::default())?;
        let number = match super::literal::index_literal(step) {
            Some(number) if unit != FillUnit::Microsecond => return Ok(number),
            number => number.map(|number| format!("{number} second")),
        };
        let literal = number.or(literal.filter(|_| ty == Type::Interval));
        let Some(literal) = literal else {
            return invalid("The STEP of WITH FILL must be a number or an INTERVAL");
        };
        let Some((count, name)) = literal.split_once(' ') else {
            return invalid("The STEP of WITH FILL must be a number or an INTERVAL");
        };
        let micros = super::time::unit_micros(name);
        let step = micros.zip(count.parse::<i64>().ok());
        let step = step.and_then(|(micros, count)| micros.checked_mul(count));
        let length = unit.micros();
        match step {
            Some(step) if length > 0 && step % length == 0 => Ok(step / length),
            _ => invalid(format!(
                "The STEP {} of WITH FILL is not supported for this column",
                excerpt(&literal)
            )),
        }
    }

    /// Translates a bound to an integer in a unit.
    fn fill_bound(&mut self, bound: Option<&'a Expr>, unit: FillUnit) -> Result<String> {
        let Some(bound) = bound else {
            return Ok("NULL".into());
        };
        let bound = self.expression(bound, &mut Scope::default())?;
        if unit == FillUnit::Number {
            return Ok(bound.integer());
        }
        let timestamp = bound.timestamp(self.dialect);
        let length = unit.micros();
        Ok(format!(
            "(CAST(arrow_cast({timestamp}, 'Timestamp(Microsecond, None)') AS BIGINT) / {length})"
        ))
    }
}

/// Returns the value of a column in a row that fills a gap.
fn default_json(column: &OutputColumn) -> serde_json::Value {
    if column.nullable {
        return serde_json::Value::Null;
    }
    match column.ty {
        Type::Integer | Type::Float => 0.into(),
        Type::Text => "".into(),
        Type::Boolean => false.into(),
        Type::Seconds | Type::Local => "1970-01-01T00:00:00".into(),
        Type::Timestamp => "1970-01-01T00:00:00.000000".into(),
        Type::Date => "1970-01-01".into(),
        Type::List(_) => serde_json::Value::Array(Vec::new()),
        Type::Map => serde_json::Value::Object(serde_json::Map::new()),
        _ => serde_json::Value::Null,
    }
}

/// Returns the index of the column that is the sort key.
fn filled_column(key: &Expr, columns: &[OutputColumn]) -> Option<usize> {
    if let Expr::Value(value) = key
        && let Value::Number(digits, _) = &value.value
    {
        let position: usize = digits.parse().ok()?;
        return position.checked_sub(1).filter(|at| *at < columns.len());
    }
    let name = clickhouse_name(key)?;
    columns.iter().position(|column| column.name == name)
}
