//! Conditions of `delete` and `update`.

use pg_query::protobuf::{AExprKind, BoolExprType};

use super::SyntaxNode;

/// Returns whether a condition limits the rows: one of its parts that all must hold compares a
/// column with a value, by `=` or `in`.
///
/// `true`, `id = id`, `id is not null` and `id > 0` hold for all rows of many tables, and a
/// boolean for many rows, so they do not count.
pub(super) fn limits_rows(condition: SyntaxNode<'_>) -> bool {
    match condition.kind {
        "BoolExpr" if condition.number("boolop") == BoolExprType::AndExpr as i64 => {
            condition.children("args").any(limits_rows)
        }
        "AExpr" => compares_column_with_value(condition),
        _ => false,
    }
}

fn compares_column_with_value(comparison: SyntaxNode<'_>) -> bool {
    if comparison.name_parts("name") != ["="] {
        return false;
    }
    let sides = (comparison.child("lexpr"), comparison.child("rexpr"));
    let (Some(left), Some(right)) = sides else {
        return false;
    };
    let kind = comparison.number("kind");
    if kind == AExprKind::AexprOp as i64 {
        is_column(left) && is_value(right) || is_value(left) && is_column(right)
    } else if kind == AExprKind::AexprIn as i64 {
        is_column(left) && right.kind == "List" && right.children("items").all(is_value)
    } else if kind == AExprKind::AexprOpAny as i64 {
        is_column(left) && is_value(right)
    } else {
        false
    }
}

fn is_column(node: SyntaxNode<'_>) -> bool {
    node.kind == "ColumnRef"
}

/// Whether a node is a constant or a parameter, with or without a cast.
fn is_value(node: SyntaxNode<'_>) -> bool {
    match node.kind {
        "ParamRef" => true,
        "AConst" => !node.flag("isnull") && !is_boolean(node),
        "TypeCast" => {
            let target = node.fields.get("type_name");
            let names = target.and_then(|target| target.get("names"));
            let is_bool = names.is_some_and(|names| names.to_string().contains("\"bool"));
            !is_bool && node.child("arg").is_some_and(is_value)
        }
        "AArrayExpr" => node.children("elements").all(is_value),
        _ => false,
    }
}

fn is_boolean(constant: SyntaxNode<'_>) -> bool {
    let value = constant.fields.get("val");
    value.is_some_and(|value| value.get("Boolval").is_some())
}
