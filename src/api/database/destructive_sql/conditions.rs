//! Conditions of `delete` and `update`.

use pg_query::protobuf::{AExprKind, BoolExprType};
use serde_json::Value;

use super::SyntaxNode;

/// Columns that every table has. Some have one value in all rows.
const SYSTEM_COLUMNS: &[&str] = &["cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"];

/// The table of a `delete` or `update`.
pub(super) struct UpdatedTable<'a> {
    /// Its alias, or its name without the schema.
    name: &'a str,
    /// Whether the statement names other tables, so that a column may be one of theirs.
    has_others: bool,
}

impl<'a> UpdatedTable<'a> {
    /// Returns the table of a statement.
    pub(super) fn of(statement: SyntaxNode<'a>) -> Self {
        let relation = statement.fields.get("relation");
        let text = |value: &'a Value, field: &str| value.get(field).and_then(Value::as_str);
        let alias = relation.and_then(|relation| text(relation.get("alias")?, "aliasname"));
        let name = relation.and_then(|relation| text(relation, "relname"));
        let has_others = ["from_clause", "using_clause"]
            .iter()
            .any(|clause| statement.children(clause).next().is_some());
        Self {
            name: alias.or(name).unwrap_or_default(),
            has_others,
        }
    }

    /// Returns whether a condition limits the rows: one of its parts that all must hold compares a
    /// column of the table with a value, by `=` or `in`.
    ///
    /// `true`, `id = id`, `id is not null` and `id > 0` hold for all rows of many tables, and a
    /// boolean for many rows, so they do not count.
    pub(super) fn limits_rows(&self, condition: SyntaxNode<'_>) -> bool {
        match condition.kind {
            "BoolExpr" if condition.number("boolop") == BoolExprType::AndExpr as i64 => condition
                .children("args")
                .any(|part| self.limits_rows(part)),
            "AExpr" => self.compares_column_with_value(condition),
            _ => false,
        }
    }

    fn compares_column_with_value(&self, comparison: SyntaxNode<'_>) -> bool {
        if comparison.name_parts("name") != ["="] {
            return false;
        }
        let sides = (comparison.child("lexpr"), comparison.child("rexpr"));
        let (Some(left), Some(right)) = sides else {
            return false;
        };
        let kind = comparison.number("kind");
        if kind == AExprKind::AexprOp as i64 {
            self.has_column(left) && is_value(right) || is_value(left) && self.has_column(right)
        } else if kind == AExprKind::AexprIn as i64 {
            let is_list = right.kind == "List" && right.children("items").all(is_value);
            self.has_column(left) && is_list
        } else if kind == AExprKind::AexprOpAny as i64 {
            self.has_column(left) && is_value(right)
        } else {
            false
        }
    }

    /// Whether a node is a column of the table, also if other tables have one of its name.
    fn has_column(&self, node: SyntaxNode<'_>) -> bool {
        if node.kind != "ColumnRef" {
            return false;
        }
        let name = node.name_parts("fields");
        let (is_own, column) = match name[..] {
            [column] => (!self.has_others, column),
            [.., table, column] => (table == self.name, column),
            [] => return false,
        };
        is_own && !SYSTEM_COLUMNS.contains(&column)
    }
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
