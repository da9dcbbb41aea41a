//! Names of result columns without an alias, as `ClickHouse` writes them: every operator is a
//! function call.

use super::parse::EXTRACT;
use crate::engine::sqlparser::ast::{
    AccessExpr, BinaryOperator, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Subscript, UnaryOperator, Value,
};

/// Maximum nesting of an expression that is named.
const DEPTH_MAX: usize = 40;

/// Returns the name of an expression, `None` for rare forms.
pub(super) fn clickhouse_name(expr: &Expr) -> Option<String> {
    name(expr, DEPTH_MAX)
}

fn name(expr: &Expr, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    Some(match expr {
        Expr::Identifier(ident) => ident.value.clone(),
        Expr::CompoundIdentifier(idents) => idents.last()?.value.clone(),
        Expr::Nested(inner) => name(inner, depth)?,
        Expr::Value(value) => literal(&value.value)?,
        Expr::UnaryOp { op, expr } => {
            let function = match op {
                UnaryOperator::Not => "not",
                UnaryOperator::Minus => {
                    if let Expr::Value(_) = expr.as_ref() {
                        return Some(format!("-{}", name(expr, depth)?));
                    }
                    "negate"
                }
                _ => return None,
            };
            format!("{function}({})", name(expr, depth)?)
        }
        Expr::BinaryOp { left, op, right } => {
            let function = operator(op)?;
            format!(
                "{function}({}, {})",
                name(left, depth)?,
                name(right, depth)?
            )
        }
        Expr::IsNull(inner) => format!("isNull({})", name(inner, depth)?),
        Expr::IsNotNull(inner) => format!("isNotNull({})", name(inner, depth)?),
        Expr::Function(function) => call(function, depth)?,
        Expr::Tuple(items) => format!("({})", list(items, depth)?),
        Expr::Array(array) => format!("[{}]", list(&array.elem, depth)?),
        Expr::InList {
            expr,
            list: items,
            negated,
        } => {
            let function = if *negated { "notIn" } else { "in" };
            format!(
                "{function}({}, ({}))",
                name(expr, depth)?,
                list(items, depth)?
            )
        }
        Expr::Like {
            negated,
            expr,
            pattern,
            ..
        } => {
            let function = if *negated { "notLike" } else { "like" };
            format!(
                "{function}({}, {})",
                name(expr, depth)?,
                name(pattern, depth)?
            )
        }
        Expr::CompoundFieldAccess { root, access_chain } => {
            let mut text = name(root, depth)?;
            for access in access_chain {
                text = match access {
                    AccessExpr::Dot(Expr::Identifier(ident)) => ident.value.clone(),
                    AccessExpr::Dot(index) => {
                        format!("tupleElement({text}, {})", name(index, depth)?)
                    }
                    AccessExpr::Subscript(Subscript::Index { index }) => {
                        format!("arrayElement({text}, {})", name(index, depth)?)
                    }
                    AccessExpr::Subscript(_) => return None,
                };
            }
            text
        }
        _ => return None,
    })
}

fn list(items: &[Expr], depth: usize) -> Option<String> {
    let names: Option<Vec<_>> = items.iter().map(|item| name(item, depth)).collect();
    Some(names?.join(", "))
}

fn call(function: &Function, depth: usize) -> Option<String> {
    if function.over.is_some() {
        return None;
    }
    let mut text = match function.name.to_string() {
        name if name == EXTRACT => "extract".to_owned(),
        name => name,
    };
    if let FunctionArguments::List(parameters) = &function.parameters {
        text = format!("{text}({})", arguments(&parameters.args, depth)?);
    }
    let FunctionArguments::List(args) = &function.args else {
        return None;
    };
    if args.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
        text.push_str("Distinct");
    }
    Some(format!("{text}({})", arguments(&args.args, depth)?))
}

fn arguments(args: &[FunctionArg], depth: usize) -> Option<String> {
    let mut names = Vec::with_capacity(args.len());
    for arg in args {
        match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => names.push(name(expr, depth)?),
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => {}
            _ => return None,
        }
    }
    Some(names.join(", "))
}

fn literal(value: &Value) -> Option<String> {
    Some(match value {
        Value::Number(digits, _) => match digits.parse::<i64>() {
            Ok(number) => number.to_string(),
            Err(_) => digits.parse::<f64>().ok()?.to_string(),
        },
        Value::SingleQuotedString(text) => {
            let text = text.replace('\\', "\\\\").replace('\'', "\\'");
            format!("'{text}'")
        }
        Value::Boolean(value) => value.to_string(),
        Value::Null => "NULL".to_owned(),
        _ => return None,
    })
}

fn operator(op: &BinaryOperator) -> Option<&'static str> {
    Some(match op {
        BinaryOperator::Plus => "plus",
        BinaryOperator::Minus => "minus",
        BinaryOperator::Multiply => "multiply",
        BinaryOperator::Divide => "divide",
        BinaryOperator::Modulo => "modulo",
        BinaryOperator::Eq => "equals",
        BinaryOperator::NotEq => "notEquals",
        BinaryOperator::Lt => "less",
        BinaryOperator::LtEq => "lessOrEquals",
        BinaryOperator::Gt => "greater",
        BinaryOperator::GtEq => "greaterOrEquals",
        BinaryOperator::And => "and",
        BinaryOperator::Or => "or",
        BinaryOperator::StringConcat => "concat",
        _ => return None,
    })
}
