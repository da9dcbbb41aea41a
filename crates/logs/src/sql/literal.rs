//! Literals in client SQL.

use crate::engine::sqlparser::ast::{Expr, UnaryOperator, Value};

/// Returns the value of a literal with an optional minus sign.
pub(super) fn index_literal(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => digits.parse().ok(),
            _ => None,
        },
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => Some(-index_literal(expr)?),
        Expr::Nested(inner) => index_literal(inner),
        _ => None,
    }
}
