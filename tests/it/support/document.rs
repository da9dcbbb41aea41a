//! The committed `generated/openapi.json`, and checks of responses against it.

use std::sync::LazyLock;

use gantry::{api::endpoints, platform::http::Endpoint};
use http::{Method, StatusCode};
use jsonschema::{Draft, Validator};
use serde_json::{Map, Value, json};

/// The committed document.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../generated/openapi.json")).unwrap()
});

/// The schemas of the document as JSON Schema, without additional properties.
static SCHEMAS: LazyLock<Value> =
    LazyLock::new(|| to_json_schema(&DOCUMENT["components"]["schemas"]));

/// Returns the operation of a method and path.
pub(crate) fn operation(method: &str, path: &str) -> Option<&'static Endpoint> {
    let named = |endpoint: &&&'static Endpoint| {
        std::iter::once(&endpoint.path)
            .chain(endpoint.aliases)
            .any(|template| matches(template, path))
    };
    let of = |method: &str| {
        let candidates = endpoints::all()
            .iter()
            .filter(|endpoint| endpoint.method.name() == method)
            .filter(named);
        candidates
            .min_by_key(|endpoint| endpoint.path.matches('{').count())
            .copied()
    };
    of(method).or_else(|| if method == "HEAD" { of("GET") } else { None })
}

fn matches(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) =
        (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template
            .iter()
            .zip(path)
            .all(|(wanted, part)| wanted.starts_with('{') && !part.is_empty() || *wanted == part)
}

/// Returns the documented responses of an operation.
pub(crate) fn responses(endpoint: &Endpoint) -> &'static Map<String, Value> {
    let method = endpoint.method.name().to_lowercase();
    DOCUMENT["paths"][endpoint.path][method]["responses"]
        .as_object()
        .unwrap()
}

/// Panics if a successful response differs from the document.
pub(crate) fn check(
    method: &Method,
    path: &str,
    status: StatusCode,
    content_type: Option<&str>,
    body: &[u8],
) {
    // Messages of another protocol, which its own suites check.
    if path == "/mcp" {
        return;
    }
    let endpoint = operation(method.as_str(), path)
        .unwrap_or_else(|| panic!("{method} {path} answered {status}, but is not declared"));
    let id = endpoint.id;
    let response = responses(endpoint)
        .get(status.as_str())
        .unwrap_or_else(|| panic!("{id}: {status} is not documented"));
    match response["content"].as_object() {
        None if !body.is_empty()
            && content_type.is_none_or(|kind| kind.starts_with("application/json")) =>
        {
            panic!(
                "{id}: documented as empty, but answered {}",
                String::from_utf8_lossy(body)
            )
        }
        None => assert!(
            !body.is_empty() || content_type.is_none_or(|kind| kind.starts_with("text/plain")),
            "{id}: an empty body has no content type but that of a text"
        ),
        Some(_) if response["x-may-be-empty"] == true && body.is_empty() => {
            assert!(content_type.is_none(), "{id}: {content_type:?}");
        }
        Some(content) => {
            assert!(
                content_type.is_some_and(|kind| kind.starts_with("application/json")),
                "{id}: {content_type:?}"
            );
            let body: Value =
                serde_json::from_slice(body).unwrap_or_else(|error| panic!("{id}: {error}"));
            let errors: Vec<_> = validator(&content["application/json"]["schema"])
                .iter_errors(&body)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(
                errors.is_empty(),
                "{id} answered what openapi.json does not allow: {errors:#?}\n{body:#}"
            );
        }
    }
}

/// A validator of one schema of the document.
pub(crate) fn validator(schema: &Value) -> Validator {
    let mut schema = to_json_schema(schema);
    schema["components"] = json!({"schemas": *SCHEMAS});
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .build(&schema)
        .unwrap()
}

/// OpenAPI 3.0 says `nullable` where JSON Schema has a type of its own.
fn to_json_schema(schema: &Value) -> Value {
    let fields = match schema {
        Value::Array(schemas) => return schemas.iter().map(to_json_schema).collect(),
        Value::Object(fields) => fields,
        other => return other.clone(),
    };
    let mut converted: Map<String, Value> = fields
        .iter()
        .map(|(name, value)| (name.clone(), to_json_schema(value)))
        .collect();
    if converted.get("properties").is_some_and(Value::is_object)
        && !converted.contains_key("additionalProperties")
    {
        converted.insert("additionalProperties".to_owned(), false.into());
    }
    if converted.remove("nullable") == Some(true.into()) {
        json!({"anyOf": [converted, {"type": "null"}]})
    } else {
        converted.into()
    }
}
