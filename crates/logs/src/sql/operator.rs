//! Operators with implicit conversions of their operands.

use super::{
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::{Result, invalid},
    translator::Translator,
};
use crate::engine::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};

impl<'a> Translator<'a> {
    pub(super) fn unary_operation(
        &mut self,
        op: UnaryOperator,
        expr: &'a Expr,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let operand = self.expression(expr, scope)?;
        match op {
            UnaryOperator::Not => Ok(SqlExpr::new(
                format!("(NOT {})", operand.condition()),
                Type::Boolean,
            )),
            UnaryOperator::Minus if operand.ty == Type::Interval => {
                invalid("INTERVAL requires a whole number of units")
            }
            UnaryOperator::Minus => {
                let ty = match operand.ty {
                    Type::Text => Type::Float,
                    ty => ty,
                };
                Ok(SqlExpr::new(format!("(- {})", operand.numeric()), ty))
            }
            UnaryOperator::Plus => Ok(operand),
            other => invalid(format!("Operator {other} is not supported")),
        }
    }
}

impl Translator<'_> {
    pub(super) fn binary_operation(
        &self,
        left: &SqlExpr,
        op: &BinaryOperator,
        right: &SqlExpr,
    ) -> Result<SqlExpr> {
        let result = self.operation(left, op, right)?;
        Ok(result.nullable(left.nullable || right.nullable))
    }

    fn operation(&self, left: &SqlExpr, op: &BinaryOperator, right: &SqlExpr) -> Result<SqlExpr> {
        let is_instant = |ty: Type| ty.is_time() && ty != Type::Local;
        if (left.ty == Type::Local && is_instant(right.ty))
            || (right.ty == Type::Local && is_instant(left.ty))
        {
            return invalid("A time in a time zone is comparable only in the same time zone");
        }
        match op {
            BinaryOperator::Eq => Ok(self.comparison(left, "=", right)),
            BinaryOperator::NotEq => Ok(self.comparison(left, "<>", right)),
            BinaryOperator::Lt => Ok(self.comparison(left, "<", right)),
            BinaryOperator::LtEq => Ok(self.comparison(left, "<=", right)),
            BinaryOperator::Gt => Ok(self.comparison(left, ">", right)),
            BinaryOperator::GtEq => Ok(self.comparison(left, ">=", right)),
            BinaryOperator::Plus if left.ty.is_time() => time_arithmetic(left, "+", right),
            BinaryOperator::Minus if left.ty.is_time() => time_arithmetic(left, "-", right),
            BinaryOperator::Plus => Ok(arithmetic(left, "+", right)),
            BinaryOperator::Minus => Ok(arithmetic(left, "-", right)),
            BinaryOperator::Multiply => Ok(arithmetic(left, "*", right)),
            BinaryOperator::Modulo => Ok(arithmetic(left, "%", right)),
            BinaryOperator::Divide => Ok(SqlExpr::new(
                format!("({} / {})", left.float(), right.float()),
                Type::Float,
            )),
            BinaryOperator::StringConcat => Ok(SqlExpr::new(
                format!("join_texts({}, {})", left.text(), right.text()),
                Type::Text,
            )),
            other => invalid(format!("Operator {other} is not supported")),
        }
    }

    fn comparison(&self, left: &SqlExpr, operator: &str, right: &SqlExpr) -> SqlExpr {
        let (left, right) = self.comparable(left, right);
        SqlExpr::new(format!("({left} {operator} {right})"), Type::Boolean)
    }

    /// Converts two values to a type in which they can be compared.
    pub(super) fn comparable(&self, left: &SqlExpr, right: &SqlExpr) -> (String, String) {
        let mut left_sql = left.sql.clone();
        let mut right_sql = right.sql.clone();
        match (left.ty, right.ty) {
            (Type::Text, ty) if ty.is_number() => left_sql = left.float(),
            (ty, Type::Text) if ty.is_number() => right_sql = right.float(),
            (Type::Boolean, Type::Integer) => left_sql = left.integer(),
            (Type::Integer, Type::Boolean) => right_sql = right.integer(),
            (Type::Date, Type::Text) => right_sql = format!("CAST({right_sql} AS DATE)"),
            (ty, Type::Text | Type::Integer) if ty.is_time() => {
                right_sql = right.timestamp(self.dialect);
            }
            (Type::Text | Type::Integer, ty) if ty.is_time() => {
                left_sql = left.timestamp(self.dialect);
            }
            _ => {}
        }
        (left_sql, right_sql)
    }
}

fn arithmetic(left: &SqlExpr, operator: &str, right: &SqlExpr) -> SqlExpr {
    let types = [left.ty, right.ty].map(|ty| match ty {
        Type::Boolean => Type::Integer,
        Type::Text => Type::Float,
        ty => ty,
    });
    SqlExpr::new(
        format!("({} {operator} {})", left.numeric(), right.numeric()),
        Type::common(&types),
    )
}

/// Adds an interval to a timestamp, or subtracts an interval or a timestamp. An integer literal is
/// a number of seconds.
fn time_arithmetic(left: &SqlExpr, operator: &str, right: &SqlExpr) -> Result<SqlExpr> {
    match (right.ty, &right.literal) {
        (Type::Interval, _) => Ok(SqlExpr::new(
            format!("({} {operator} {})", left.sql, right.sql),
            left.ty,
        )),
        (Type::Integer, Some(seconds)) if seconds.len() < 10 => Ok(SqlExpr::new(
            format!("({} {operator} INTERVAL '{seconds} second')", left.sql),
            left.ty,
        )),
        (ty, _) if ty.is_time() && operator == "-" => Ok(SqlExpr::new(
            format!("({} - {})", left.integer(), right.integer()),
            Type::Integer,
        )),
        _ => invalid("Only an INTERVAL can be added to a timestamp"),
    }
}
