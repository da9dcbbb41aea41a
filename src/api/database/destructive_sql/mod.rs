//! The judgment of SQL for protected projects: whether its statements are known to be harmless.
//!
//! PostgreSQL's own parser reads the SQL. Statements and functions that are not in the lists of
//! harmless ones count as destructive, because their effect is not known: blocks of code, calls of
//! functions, triggers, statements of a newer PostgreSQL. Triggers and views that exist are the
//! owner's code and are not judged.

mod conditions;
mod functions;
mod statements;

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Returns the effect of SQL that is not known to be harmless. Completes "this request …".
pub(super) fn effect_of(sql: &str) -> Option<Cow<'static, str>> {
    let parsed = match pg_query::parse(sql, 0) {
        Ok(parsed) => parsed,
        Err(error) => return Some(format!("has SQL that cannot be judged: {error}").into()),
    };
    match serde_json::to_value(&parsed.protobuf) {
        Ok(tree) => effect_of_tree(&tree),
        Err(_) => Some("has SQL that cannot be judged".into()),
    }
}

/// Returns the first effect in a tree. Statements within others, as in `with` or `explain`, count
/// like their own.
fn effect_of_tree(tree: &Value) -> Option<Cow<'static, str>> {
    let mut pending = vec![tree];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items.iter().rev()),
            Value::Object(fields) => {
                for (name, value) in fields {
                    let node = value
                        .as_object()
                        .map(|fields| SyntaxNode { kind: name, fields });
                    if let Some(effect) = node.and_then(effect_of_node) {
                        return Some(effect);
                    }
                    pending.push(value);
                }
            }
            _ => {}
        }
    }
    None
}

fn effect_of_node(node: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    match node.kind {
        "FuncCall" => functions::effect_of_call(node),
        "AExpr" => functions::effect_of_operator(node),
        kind if kind.ends_with("Stmt") => statements::effect_of_statement(node),
        _ => None,
    }
}

/// A node of a parse tree.
#[derive(Clone, Copy)]
struct SyntaxNode<'a> {
    /// The type, such as `SelectStmt`. Names of fields begin with a small letter.
    kind: &'a str,
    fields: &'a Map<String, Value>,
}

impl<'a> SyntaxNode<'a> {
    /// Returns the node in a value of the form `{"node": {"<kind>": {…}}}`.
    fn of(value: &'a Value) -> Option<Self> {
        let (kind, fields) = value.get("node")?.as_object()?.iter().next()?;
        let fields = fields.as_object()?;
        Some(Self { kind, fields })
    }

    /// Returns the node in a field.
    fn child(self, field: &str) -> Option<Self> {
        Self::of(self.fields.get(field)?)
    }

    /// Returns the nodes of a list.
    fn children(self, field: &str) -> impl Iterator<Item = Self> + use<'a> {
        let list = self.fields.get(field).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Self::of)
    }

    fn text(self, field: &str) -> &'a str {
        let text = self.fields.get(field).and_then(Value::as_str);
        text.unwrap_or_default()
    }

    fn number(self, field: &str) -> i64 {
        let number = self.fields.get(field).and_then(Value::as_i64);
        number.unwrap_or_default()
    }

    fn flag(self, field: &str) -> bool {
        let flag = self.fields.get(field).and_then(Value::as_bool);
        flag.unwrap_or_default()
    }

    fn has(self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|value| !value.is_null())
    }

    /// Returns the parts of a name, such as `pg_catalog` and `count`.
    fn name_parts(self, field: &str) -> Vec<&'a str> {
        let parts = self.children(field).filter(|part| part.kind == "String");
        parts.map(|part| part.text("sval")).collect()
    }
}

#[cfg(test)]
mod tests;
