//! Conversion of PostgreSQL text values to JSON and back. Writes directly into the response body,
//! because a result may have millions of values.

use std::borrow::Cow;

use serde_json::Value;

use super::session::{ResultRows, SessionLimits, too_large};
use crate::{
    control::database_session::types::{ScalarFormat, ValueFormat},
    platform::error::Error,
};

/// Returns the rows as a JSON array of objects. `kinds` has one format per column.
///
/// Of columns with equal names, the value of the last one is used, as in clients that read a row
/// into a map.
pub(crate) fn rows(
    rows: &ResultRows,
    kinds: &[ValueFormat],
    limits: &SessionLimits,
) -> Result<Vec<u8>, Error> {
    let names: Vec<&str> = rows
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    let keys: Vec<Option<Vec<u8>>> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (!names[at + 1..].contains(name)).then(|| key(name)))
        .collect();
    let mut out = Vec::with_capacity(rows.bytes().min(limits.bytes_max));
    let mut cells = rows.cells();
    out.push(b'[');
    for row in 0..rows.len() {
        out.extend_from_slice(if row == 0 { b"{" } else { b",{" });
        let mut empty = true;
        for ((key, kind), cell) in keys.iter().zip(kinds).zip(&mut cells) {
            let Some(key) = key else { continue };
            if !empty {
                out.push(b',');
            }
            empty = false;
            out.extend_from_slice(key);
            match cell {
                Some(text) => value(text, *kind, &mut out),
                None => out.extend_from_slice(b"null"),
            }
            if out.len() > limits.bytes_max {
                return Err(too_large(limits));
            }
        }
        out.push(b'}');
    }
    out.push(b']');
    Ok(out)
}

fn key(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 3);
    string(name.as_bytes(), &mut key);
    key.push(b':');
    key
}

fn value(text: &[u8], kind: ValueFormat, out: &mut Vec<u8>) {
    match kind {
        ValueFormat::Scalar(kind) => scalar(text, kind, out),
        ValueFormat::Array { element, delimiter } => {
            let start = out.len();
            if array(text, element, delimiter, out).is_none() {
                out.truncate(start);
                string(text, out);
            }
        }
    }
}

fn scalar(text: &[u8], kind: ScalarFormat, out: &mut Vec<u8>) {
    match kind {
        ScalarFormat::Bool => out.extend_from_slice(if text == b"t" { b"true" } else { b"false" }),
        ScalarFormat::Number if text.last().is_some_and(u8::is_ascii_digit) => {
            out.extend_from_slice(text);
        }
        ScalarFormat::Timestamp => string(&iso(text), out),
        // With the server encoding `SQL_ASCII`, the bytes may be invalid UTF-8.
        ScalarFormat::Json if std::str::from_utf8(text).is_ok() => out.extend_from_slice(text),
        _ => string(text, out),
    }
}

/// Converts `2026-01-02 03:04:05.6+00` to `2026-01-02T03:04:05.6+00:00`, like `to_json`. Other
/// values of `DateStyle` and `infinity` are returned unchanged.
fn iso(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(space) = text
        .iter()
        .position(|byte| *byte == b' ')
        .filter(|at| text[..*at].iter().all(|b| b.is_ascii_digit() || *b == b'-'))
    else {
        return Cow::Borrowed(text);
    };
    let mut iso = text.to_vec();
    iso[space] = b'T';
    let end = text
        .iter()
        .skip(space + 1)
        .position(|byte| *byte == b' ')
        .map_or(text.len(), |at| space + 1 + at);
    if let Some(sign) = text[space..end]
        .iter()
        .rposition(|byte| matches!(byte, b'+' | b'-'))
        && !text[space + sign..end].contains(&b':')
    {
        iso.splice(end..end, *b":00");
    }
    Cow::Owned(iso)
}

/// Writes a JSON string. Invalid UTF-8 is replaced.
fn string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        let text = chunk.valid().as_bytes();
        let mut copied = 0;
        for (at, byte) in text
            .iter()
            .enumerate()
            .filter(|(_, byte)| matches!(byte, 0..0x20 | b'"' | b'\\'))
        {
            out.extend_from_slice(&text[copied..at]);
            escape(*byte, out);
            copied = at + 1;
        }
        out.extend_from_slice(&text[copied..]);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        _ => {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Converts a PostgreSQL array literal to JSON arrays. Returns `None` for other text; the caller
/// then truncates `out`.
fn array(text: &[u8], element: ScalarFormat, delimiter: u8, out: &mut Vec<u8>) -> Option<()> {
    // Lower bounds other than 1 precede the array: `[0:1]={a,b}`.
    let mut rest = match text.first()? {
        b'[' => &text[text.iter().position(|byte| *byte == b'=')? + 1..],
        _ => text,
    };
    let mut depth = 0_usize;
    let mut unescaped = Vec::new();
    loop {
        // The next token starts a value: an array, a quoted element or an unquoted one.
        match rest.split_first()? {
            (b'{', after) => {
                out.push(b'[');
                depth += 1;
                rest = after;
                if rest.first() != Some(&b'}') {
                    continue;
                }
            }
            _ if depth == 0 => return None,
            (b'"', after) => {
                rest = unquote(after, &mut unescaped)?;
                scalar(&unescaped, element, out);
            }
            _ => {
                let end = rest
                    .iter()
                    .position(|byte| *byte == delimiter || *byte == b'}')?;
                match rest.split_at(end) {
                    (b"", _) => return None,
                    (b"NULL", _) => out.extend_from_slice(b"null"),
                    (bare, _) => scalar(bare, element, out),
                }
                rest = &rest[end..];
            }
        }
        while let Some((b'}', after)) = rest.split_first() {
            out.push(b']');
            depth = depth.checked_sub(1)?;
            rest = after;
        }
        match rest.split_first() {
            None => return (depth == 0).then_some(()),
            Some((byte, after)) if *byte == delimiter && depth > 0 => {
                out.push(b',');
                rest = after;
            }
            Some(_) => return None,
        }
    }
}

/// Reads a quoted element after its opening quote. Returns the text after the closing quote.
fn unquote<'a>(text: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    into.clear();
    let mut rest = text;
    loop {
        match rest.split_first()? {
            (b'"', after) => return Some(after),
            (b'\\', after) => {
                let (byte, after) = after.split_first()?;
                into.push(*byte);
                rest = after;
            }
            (byte, after) => {
                into.push(*byte);
                rest = after;
            }
        }
    }
}

/// Converts a parameter to the text format of its type. `None` is null.
///
/// A JSON array becomes an array literal if the type is an array, otherwise JSON text.
pub(crate) fn parameter(value: &Value, kind: ValueFormat) -> Option<String> {
    match (value, kind) {
        (Value::Null, _) => None,
        (Value::String(text), _) => Some(text.clone()),
        (Value::Array(items), ValueFormat::Array { element, delimiter }) => {
            let mut literal = String::new();
            array_literal(items, element, char::from(delimiter), &mut literal);
            Some(literal)
        }
        _ => Some(value.to_string()),
    }
}

// The recursion depth is bounded by the JSON parser.
fn array_literal(items: &[Value], element: ScalarFormat, delimiter: char, out: &mut String) {
    out.push('{');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(delimiter);
        }
        match item {
            Value::Null => out.push_str("NULL"),
            Value::Array(items) if element != ScalarFormat::Json => {
                array_literal(items, element, delimiter, out);
            }
            Value::String(text) => quote(text, out),
            _ => quote(&item.to_string(), out),
        }
    }
    out.push('}');
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn print(text: &str, kind: ValueFormat) -> String {
        let mut out = Vec::new();
        value(text.as_bytes(), kind, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn print_array(text: &str, element: ScalarFormat) -> String {
        print(
            text,
            ValueFormat::Array {
                element,
                delimiter: b',',
            },
        )
    }

    #[test]
    fn scalars() {
        let table = [
            ("t", ScalarFormat::Bool, "true"),
            ("f", ScalarFormat::Bool, "false"),
            ("-1", ScalarFormat::Number, "-1"),
            (
                "-9223372036854775808",
                ScalarFormat::Number,
                "-9223372036854775808",
            ),
            ("1e+20", ScalarFormat::Number, "1e+20"),
            (
                "2026-01-02 03:04:05.6",
                ScalarFormat::Timestamp,
                r#""2026-01-02T03:04:05.6""#,
            ),
            (
                "2026-01-02 03:04:05+00",
                ScalarFormat::Timestamp,
                r#""2026-01-02T03:04:05+00:00""#,
            ),
            (
                "2026-01-02 03:04:05-03:30",
                ScalarFormat::Timestamp,
                r#""2026-01-02T03:04:05-03:30""#,
            ),
            (
                "0044-03-15 00:00:00+00 BC",
                ScalarFormat::Timestamp,
                r#""0044-03-15T00:00:00+00:00 BC""#,
            ),
            ("infinity", ScalarFormat::Timestamp, r#""infinity""#),
            (
                "Fri Jan 02 03:04:05 2026",
                ScalarFormat::Timestamp,
                r#""Fri Jan 02 03:04:05 2026""#,
            ),
            ("NaN", ScalarFormat::Number, r#""NaN""#),
            ("-Infinity", ScalarFormat::Number, r#""-Infinity""#),
            (r#"{"a": 1}"#, ScalarFormat::Json, r#"{"a": 1}"#),
            (
                "a\"\\\n\u{1}\u{2028}é",
                ScalarFormat::Text,
                "\"a\\\"\\\\\\n\\u0001\u{2028}é\"",
            ),
        ];
        for (text, kind, expected) in table {
            assert_eq!(print(text, ValueFormat::Scalar(kind)), expected);
        }
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let mut out = Vec::new();
        scalar(b"a\xffb", ScalarFormat::Text, &mut out);
        scalar(b"\"\xff\"", ScalarFormat::Json, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\"a\u{fffd}b\"\"\\\"\u{fffd}\\\"\""
        );
    }

    #[test]
    fn arrays() {
        let table = [
            ("{}", ScalarFormat::Number, "[]"),
            ("{1,2,NULL}", ScalarFormat::Number, "[1,2,null]"),
            ("{{1,2},{3,4}}", ScalarFormat::Number, "[[1,2],[3,4]]"),
            ("{{{a}}}", ScalarFormat::Text, r#"[[["a"]]]"#),
            ("[0:1]={1,2}", ScalarFormat::Number, "[1,2]"),
            ("[0:0][-1:0]={{1,2}}", ScalarFormat::Number, "[[1,2]]"),
            (
                r#"{"NULL",NULL,""}"#,
                ScalarFormat::Text,
                r#"["NULL",null,""]"#,
            ),
            (
                r#"{"a\"b\\c","{}","a,b"}"#,
                ScalarFormat::Text,
                r#"["a\"b\\c","{}","a,b"]"#,
            ),
            (
                r#"{"{\"a\": [1, 2]}",3}"#,
                ScalarFormat::Json,
                r#"[{"a": [1, 2]},3]"#,
            ),
            ("{t,f}", ScalarFormat::Bool, "[true,false]"),
        ];
        for (text, element, expected) in table {
            assert_eq!(print_array(text, element), expected, "{text}");
        }
        let boxes = ValueFormat::Array {
            element: ScalarFormat::Text,
            delimiter: b';',
        };
        assert_eq!(
            print("{(1,1),(0,0);(2,2),(1,1)}", boxes),
            r#"["(1,1),(0,0)","(2,2),(1,1)"]"#
        );
    }

    #[test]
    fn invalid_array_literal_is_printed_as_text() {
        for text in [
            "", "a", "1,2", "{", "}", "{1", "{1,}", "{,1}", "{1}2", "{1}}", "{\"a", "{\"a\\",
            "[0:1]", "{}{}", "{1}{2}",
        ] {
            let printed = print_array(text, ScalarFormat::Text);
            assert_eq!(
                serde_json::from_str::<Value>(&printed).unwrap(),
                json!(text)
            );
        }
    }

    #[test]
    fn parameters() {
        let text = ValueFormat::Scalar(ScalarFormat::Text);
        let array = |element| ValueFormat::Array {
            element,
            delimiter: b',',
        };
        let table = [
            (json!(null), text, None),
            (json!("a'b"), text, Some("a'b")),
            (json!(1.5), text, Some("1.5")),
            (json!(true), text, Some("true")),
            (json!({"a": [1]}), text, Some(r#"{"a":[1]}"#)),
            (json!([1, "a"]), text, Some(r#"[1,"a"]"#)),
            (
                json!([1, null, "a\"\\"]),
                array(ScalarFormat::Text),
                Some(r#"{"1",NULL,"a\"\\"}"#),
            ),
            (
                json!([[1], [2]]),
                array(ScalarFormat::Number),
                Some(r#"{{"1"},{"2"}}"#),
            ),
            (
                json!([[1], {"a": 2}]),
                array(ScalarFormat::Json),
                Some(r#"{"[1]","{\"a\":2}"}"#),
            ),
            (json!("{1,2}"), array(ScalarFormat::Number), Some("{1,2}")),
        ];
        for (value, kind, expected) in table {
            assert_eq!(parameter(&value, kind).as_deref(), expected, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_valid_json(text in any::<Vec<u8>>()) {
            let mut out = Vec::new();
            value(&text, ValueFormat::Array { element: ScalarFormat::Text, delimiter: b',' }, &mut out);
            prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
        }

        #[test]
        fn braces_and_quotes_are_valid_json(text in r#"[{},"\\aN]{0,12}"#) {
            prop_assert!(serde_json::from_str::<Value>(&print_array(&text, ScalarFormat::Text)).is_ok());
        }

        #[test]
        fn array_parameter_round_trips(items in proptest::collection::vec(proptest::option::of(".*"), 1..8)) {
            let sent = json!(items);
            let literal = parameter(&sent, ValueFormat::Array { element: ScalarFormat::Text, delimiter: b',' }).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&print_array(&literal, ScalarFormat::Text)).unwrap(), sent);
        }
    }
}
