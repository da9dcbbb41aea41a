//! Rejects U+0000, which a PostgreSQL `text` cannot store.
//!
//! Every text from a query, a JSON body or a form passes one of these checks before its handler
//! runs.

use serde_json::Value;

use crate::platform::error::Error;

/// Longest field name in an error, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Rejects a query with U+0000 in a name or value.
pub(super) fn check_query(query: &str) -> Result<(), Error> {
    if query.contains("%00") {
        check_pairs(query.as_bytes(), "query")
    } else {
        Ok(())
    }
}

/// Rejects a form with U+0000 in a name or value.
pub(crate) fn check_form(form: &[u8]) -> Result<(), Error> {
    check_pairs(form, "form")
}

fn check_pairs(text: &[u8], whole: &str) -> Result<(), Error> {
    match form_urlencoded::parse(text)
        .find(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        Some((name, _)) => Err(null_byte_error(if name.contains('\0') {
            whole
        } else {
            &name
        })),
        None => Ok(()),
    }
}

/// Rejects a JSON body with U+0000 in a string or field name.
pub(super) fn check_json(body: &[u8]) -> Result<(), Error> {
    // JSON allows the character only as an escape, which few bodies have.
    let escaped = body
        .split(|byte| *byte == b'\\')
        .skip(1)
        .any(|rest| rest.starts_with(b"u0000"));
    if !escaped {
        return Ok(());
    }
    // A deserializer that skips fields accepts invalid values in them, such as a lone surrogate.
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Err(null_byte_error("body"));
    };
    find(&value, "").map_or(Ok(()), |path| {
        Err(null_byte_error(if path.is_empty() {
            "body"
        } else {
            &path
        }))
    })
}

/// Returns the path of the first string with U+0000, in the notation of JSON errors: `a.b[0]`.
fn find(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::String(text) => text.contains('\0').then(|| path.to_owned()),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .find_map(|(index, value)| find(value, &format!("{path}[{index}]"))),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            if name.contains('\0') {
                return Some(path.to_owned());
            }
            find(
                value,
                &if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                },
            )
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

fn null_byte_error(field: &str) -> Error {
    let name: String = field
        .chars()
        .filter(|c| !c.is_control())
        .take(NAME_BYTES_MAX)
        .collect();
    Error::invalid(name, "cannot contain the character U+0000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(result: Result<(), Error>) -> Option<String> {
        result.err().map(|error| {
            error
                .to_string()
                .split_once(": cannot contain the character U+0000")
                .unwrap()
                .0
                .to_owned()
        })
    }

    #[test]
    fn null_byte_in_json_body_names_the_field() {
        for (body, expected) in [
            (r#"{"name":"a\u0000b"}"#, Some("name")),
            (r#"{"a":{"b":["x","\u0000"]}}"#, Some("a.b[1]")),
            (r#"{"a":{"x\u0000":1}}"#, Some("a")),
            (r#"{"\u0000":1}"#, Some("body")),
            (r#""\u0000""#, Some("body")),
            (r#"["\\\u0000"]"#, Some("[0]")),
            (r#"{"name":"a\\u0000b"}"#, None),
            (r#"{"name":"a\u00000"}"#, Some("name")),
            (r#"{"name":"a\u0001b\\"}"#, None),
            (r#"{"name":"\u0000""#, Some("body")),
            (r#"{"skipped":"\ud800","name":"\u0000"}"#, Some("body")),
            ("", None),
        ] {
            assert_eq!(
                field(check_json(body.as_bytes())).as_deref(),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn null_byte_in_query_or_form_names_the_field() {
        for (text, expected) in [
            ("a=1&state=x%00", Some("state")),
            ("a%00=1", Some("query")),
            ("a=%2500", None),
            ("a=%00", Some("a")),
            ("a=1", None),
            ("", None),
        ] {
            assert_eq!(field(check_query(text)).as_deref(), expected, "{text}");
        }
        assert_eq!(field(check_form(b"email=a\0")).as_deref(), Some("email"));
        assert_eq!(field(check_form(b"email=a%00")).as_deref(), Some("email"));
        assert_eq!(field(check_form(b"\0=a")).as_deref(), Some("form"));
    }
}
