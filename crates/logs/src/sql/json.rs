//! Functions of JSON texts.

use std::fmt::Write as _;

use super::{
    call::Call,
    scope::Scope,
    sql_expr::{SqlExpr, Type},
    text::{Result, check_length, invalid, quote_literal},
    translator::Translator,
};
use crate::sql::literal::index_literal;

impl<'a> Translator<'a> {
    /// `JSONExtract…(text, place…)`: the engine's function over the text and the place, which is a
    /// list of keys and one-based indices. `form` is the second argument of the engine's function.
    pub(crate) fn json_extract(
        &mut self,
        function: &str,
        form: Option<&str>,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<String> {
        let (text, _) = self.argument(call, 0, "t", scope)?;
        let mut sql = format!("{function}({text}");
        if let Some(form) = form {
            let _ = write!(sql, ", {}", quote_literal(form));
        }
        for place in &call.args[1..] {
            let segment = match index_literal(place) {
                Some(index) => format!("i{index}"),
                None => match self.expression(place, scope)?.literal {
                    Some(key) => format!("k{key}"),
                    None => return invalid("A place in JSON consists of literals"),
                },
            };
            let _ = write!(sql, ", {}", quote_literal(&segment));
        }
        sql.push(')');
        check_length(sql)
    }

    /// `JSONExtract…` with a default for a missing value.
    pub(crate) fn json_value_or(
        &mut self,
        function: &str,
        form: Option<&str>,
        (ty, default): (Type, &str),
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let sql = self.json_extract(function, form, call, scope)?;
        Ok(SqlExpr::new(format!("coalesce({sql}, {default})"), ty))
    }

    /// The value at a path such as `$.a[0]` in a form of the engine's function, by default the
    /// whole document.
    pub(crate) fn json_path(
        &mut self,
        form: &str,
        call: &Call<'a>,
        scope: &mut Scope<'a>,
    ) -> Result<SqlExpr> {
        let (text, _) = self.argument(call, 0, "t", scope)?;
        let path = if call.args.len() > 1 {
            self.literal(call, 1, scope)?
        } else {
            "$".into()
        };
        let mut sql = format!("json_text({text}, {}", quote_literal(form));
        for segment in path_segments(&path)? {
            let _ = write!(sql, ", {}", quote_literal(&segment));
        }
        sql.push(')');
        Ok(SqlExpr::new(check_length(sql)?, Type::Text))
    }

    /// `to_json_string(value)`.
    pub(crate) fn json_text(&mut self, call: &Call<'a>, scope: &mut Scope<'a>) -> Result<SqlExpr> {
        let Some(value) = call.args.first() else {
            return invalid("TO_JSON_STRING takes a value");
        };
        let value = self.expression(value, scope)?;
        let function = match value.ty {
            // A record is JSON text already.
            Type::Record => "join_texts",
            _ => "to_json",
        };
        Ok(SqlExpr::new(
            format!("{function}({})", value.sql),
            Type::Text,
        ))
    }
}

/// Parses a path of keys and zero-based indices.
fn path_segments(path: &str) -> Result<Vec<String>> {
    let mut segments = Vec::new();
    let Some(mut rest) = path.trim().strip_prefix('$') else {
        return invalid("A JSON path starts with $");
    };
    while !rest.is_empty() {
        let (segment, after) = path_segment(rest)?;
        segments.push(segment);
        rest = after;
    }
    Ok(segments)
}

/// Parses the first segment of a path. Returns the rest.
fn path_segment(path: &str) -> Result<(String, &str)> {
    if let Some(bracket) = path.strip_prefix('[') {
        for quote in ['\'', '"'] {
            if let Some(key) = bracket.strip_prefix(quote)
                && let Some((key, after)) = key.split_once(quote)
                && let Some(after) = after.strip_prefix(']')
            {
                return Ok((format!("k{key}"), after));
            }
        }
        if let Some((index, after)) = bracket.split_once(']')
            && let Ok(index) = index.trim().parse::<u32>()
        {
            return Ok((format!("i{}", u64::from(index) + 1), after));
        }
        return invalid("An index in a JSON path is a number or a quoted key");
    }
    let Some(key) = path.strip_prefix('.') else {
        return invalid("A key in a JSON path follows a dot");
    };
    if let Some(quoted) = key.strip_prefix('"') {
        return match quoted.split_once('"') {
            Some((key, after)) => Ok((format!("k{key}"), after)),
            None => invalid("A key in a JSON path is not closed"),
        };
    }
    let end = key.find(['.', '[']).unwrap_or(key.len());
    match &key[..end] {
        "" | "*" => invalid("A key in a JSON path is empty"),
        name => Ok((format!("k{name}"), &key[end..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_into_keys_and_indices() {
        let segments = path_segments(r#"$.a."b.c"[0]['d e'].f"#).unwrap();
        assert_eq!(segments, ["ka", "kb.c", "i1", "kd e", "kf"]);
        assert!(path_segments("$").unwrap().is_empty());
        for path in ["a", "$a", "$.", "$[x]", "$.*", "$.\"a"] {
            assert!(path_segments(path).is_err(), "{path}");
        }
    }
}
