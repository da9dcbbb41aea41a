//! Parsing of JSON bodies.

use http::{HeaderMap, header};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::null_bytes;
use crate::platform::error::Error;

/// Rejects a body with another `Content-Type` than JSON (RFC 9110 §15.5.16). A body without a
/// content type is read as JSON.
pub(super) fn require_json(headers: &HeaderMap, body: &[u8]) -> Result<(), Error> {
    let all_json = headers
        .get_all(header::CONTENT_TYPE)
        .iter()
        .all(|line| line.to_str().is_ok_and(is_json));
    if body.is_empty() || all_json {
        Ok(())
    } else {
        Err(Error::UnsupportedMediaType {
            expected: "application/json",
        })
    }
}

/// Whether a media type is JSON in UTF-8: `application/json`, or `application/<name>+json` (RFC
/// 6839 §3.1).
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_json = essence
        .strip_prefix("application/")
        .is_some_and(|name| name == "json" || name.ends_with("+json"));
    let in_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        // Other parameters do not change the encoding.
        _ => true,
    };
    is_json && parts.all(in_utf8)
}

/// Parses a JSON body. The error names the invalid field.
pub(crate) fn parse<T: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<T, Error> {
    // Serde also reads a struct from an array of its fields; the contract does not allow it.
    if bytes.trim_ascii_start().starts_with(b"[") && is_object::<T>() {
        return Err(Error::invalid("body", "Invalid input: expected an object"));
    }
    null_bytes::check_json(bytes)?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        invalid_json(&path, error.inner())
    })?;
    reader.end().map_err(|error| invalid_json(".", &error))?;
    Ok(value)
}

/// Whether the document describes `T` as an object.
fn is_object<T: JsonSchema>() -> bool {
    schemars::schema_for!(T)
        .get("type")
        .is_some_and(|kind| kind == "object")
}

/// Converts an error of `serde_json`. Missing and unknown fields are named only in its text.
fn invalid_json(path: &str, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let problem = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(problem, _)| problem);
    let quoted = || problem.split('`').nth(1).unwrap_or_default().to_owned();
    if problem.starts_with("missing field") {
        return Error::invalid(within(path, &quoted()), "Required");
    }
    if problem.starts_with("unknown field") {
        return Error::invalid(within(path, &quoted()), "is not a field of this request");
    }
    let field = if path == "." || path == "?" {
        "body".to_owned()
    } else {
        path.to_owned()
    };
    Error::invalid(field, format!("Invalid input: {problem}"))
}

fn within(path: &str, field: &str) -> String {
    match path {
        "." | "?" | "" => field.to_owned(),
        path if path.ends_with(field) => path.to_owned(),
        path => format!("{path}.{field}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Body {
        name: String,
        size: Option<u8>,
    }

    fn message(json: &str) -> String {
        let mut reader = serde_json::Deserializer::from_str(json);
        let error = serde_path_to_error::deserialize::<_, Body>(&mut reader).unwrap_err();
        invalid_json(&error.path().to_string(), error.inner())
            .message()
            .into_owned()
    }

    #[test]
    fn media_types_other_than_json_in_utf8_are_rejected() {
        let json = [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/merge-patch+json",
            "application/json; v=1",
        ];
        for media_type in json {
            assert!(is_json(media_type), "{media_type}");
        }
        let others = [
            "",
            "json",
            "text/json",
            "text/plain",
            "application/jsonp",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json; charset=latin1",
            "text/plain; a=application/json",
            "application/json, text/plain",
        ];
        for media_type in others {
            assert!(!is_json(media_type), "{media_type}");
        }
    }

    #[test]
    fn invalid_json_names_the_field() {
        assert_eq!(message("{}"), "name: Required");
        assert_eq!(
            message(r#"{"name":"x","colour":1}"#),
            "colour: is not a field of this request"
        );
        assert_eq!(
            message(r#"{"name":7}"#),
            "name: Invalid input: invalid type: integer `7`, expected a string"
        );
        assert_eq!(
            message(r#"{"name":"x","size":300}"#),
            "size: Invalid input: invalid value: integer `300`, expected u8"
        );
        assert_eq!(message("nonsense"), "body: Invalid input: expected ident");
    }
}
