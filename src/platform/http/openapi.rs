//! The OpenAPI 3.0 document of the endpoints.

use std::collections::BTreeSet;

use http::StatusCode;
use schemars::{
    SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Map, Value, json};

use super::{
    dry_run,
    endpoint::{Destructive, Endpoint},
    operation_doc::OperationDoc,
    path_template::placeholders,
};
use crate::platform::{
    access::{Access, AnyOf},
    context::PublishedLinks,
    idempotency::Idempotency,
};

/// The description of the header with the key.
const KEY_DESCRIPTION: &str = "Carries the request out once: for 24 hours, the same request with the same key gets the first answer, \
                               with `Idempotency-Replayed: true`. 1 to 255 printable characters.";
/// The description of status 409.
const KEY_CONFLICT: &str = "Something else exists or runs; or the Idempotency-Key was sent with another request, or the first request \
                            with it is not finished";

/// Returns the document of `endpoints`.
pub fn document(endpoints: &[&'static Endpoint], links: &PublishedLinks) -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.push(Box::new(WithoutUnsigned));
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let mut described = OperationDoc::new(schemas);
        let mounted = (endpoint.handler)();
        (mounted.describe)(&mut described);
        let idempotency = endpoint.idempotency(&mounted);
        if idempotency != Idempotency::Ignored {
            described.header("Idempotency-Key", KEY_DESCRIPTION);
        }
        if dry_run::can_be_tried(idempotency, mounted.dry_runs) {
            described.switch(dry_run::DRY_RUN, dry_run::DESCRIPTION);
        }
        let (mut item, rest) = operation(endpoint, mounted.built, described);
        if let Some(name) = idempotency.name() {
            item["x-idempotency"] = name.into();
            item["responses"]["409"] = error_response(KEY_CONFLICT);
        }
        match mounted.destructive {
            Destructive::Never => {}
            Destructive::Always(_) => item["x-approval"] = "always".into(),
            Destructive::If(_) => item["x-approval"] = "if destructive".into(),
        }
        schemas = rest;
        for (spelling, path) in std::iter::once(&endpoint.path)
            .chain(endpoint.aliases)
            .enumerate()
        {
            let mut item = item.clone();
            if spelling > 0 {
                item["operationId"] = format!("{}-alias-{spelling}", endpoint.id).into();
                item["description"] = format!(
                    "The same operation as `{}`: one handler, one permission, one counter.",
                    endpoint.path
                )
                .into();
            }
            let methods = paths.entry(*path).or_insert_with(|| json!({}));
            methods[endpoint.method.name().to_lowercase()] = item;
        }
    }
    let mut info = json!({
        "title": "Gantry Management API",
        "description": "Manages organizations and projects. Every answer carries the three X-RateLimit headers, and the RateLimit fields of draft-ietf-httpapi-ratelimit-headers-10.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": {"name": "Apache-2.0"},
    });
    if let Some(terms) = &links.terms {
        info["termsOfService"] = terms.clone().into();
    }
    let mut document = json!({
        "openapi": "3.0.3",
        "info": info,
        "servers": [{"url": "/"}],
        "tags": endpoints.iter().map(|endpoint| endpoint.tag).collect::<BTreeSet<_>>().iter().map(|tag| json!({"name": tag.title()})).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "A personal access token, or an OAuth 2.0 access token."}},
        },
    });
    if let Some(pricing) = &links.pricing {
        document["externalDocs"] = json!({"description": "Published pricing", "url": pricing});
    }
    document
}

fn operation(
    endpoint: &Endpoint,
    built: bool,
    described: OperationDoc,
) -> (Value, SchemaGenerator) {
    let path_parameter = |name| {
        let schema = match name {
            "ref" => {
                json!({"type": "string", "minLength": 20, "maxLength": 20, "pattern": "^[a-z]+$"})
            }
            "slug" => json!({"type": "string", "pattern": r"^[\w-]+$"}),
            _ => json!({"type": "string"}),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    };
    let mut parameters: Vec<Value> = placeholders(endpoint.path).map(path_parameter).collect();
    parameters.extend(described.parameters);
    let mut item = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "tags": [endpoint.tag.title()],
        "parameters": parameters,
        "responses": responses(endpoint, built, described.reply, (described.may_be_empty, described.body.is_some() && !described.form)),
        "x-rate-limits": endpoint.limit.counted().iter().map(|w| json!({"requests": w.requests, "seconds": w.secs})).collect::<Vec<_>>(),
    });
    if endpoint.access != Access::Public {
        item["security"] = json!([{"bearer": []}]);
    }
    if !endpoint.access.permissions().0.is_empty() {
        item["x-permissions"] = endpoint
            .access
            .permissions()
            .0
            .iter()
            .map(|g| g.iter().map(|p| p.name()).collect::<Vec<_>>())
            .collect();
    }
    if !endpoint.access.cases().is_empty() {
        let names = |groups: AnyOf| {
            groups
                .0
                .iter()
                .map(|group| group.iter().map(|p| p.name()).collect())
                .collect::<Vec<Vec<_>>>()
        };
        let cases = endpoint
            .access
            .cases()
            .iter()
            .map(|case| json!({"when": case.when, "permissions": names(case.permissions)}));
        item["x-permissions-by-case"] = cases.collect();
    }
    if let Some(scope) = endpoint.access.oauth() {
        item["x-oauth-scope"] = scope.name().into();
    }
    if let Some(body) = described.body {
        let kind = if described.form {
            "application/x-www-form-urlencoded"
        } else {
            "application/json"
        };
        item["requestBody"] =
            json!({"required": !described.is_body_optional, "content": {kind: {"schema": body}}});
    }
    for (media_type, schema) in described.media {
        item["requestBody"]["required"] = true.into();
        item["requestBody"]["content"][media_type] = json!({ "schema": schema });
    }
    (item, described.schemas)
}

fn responses(
    endpoint: &Endpoint,
    built: bool,
    reply: Option<(StatusCode, Option<Value>)>,
    (may_be_empty, reads_json): (bool, bool),
) -> Value {
    let mut responses = Map::new();
    match reply {
        Some((status, Some(schema))) => {
            let description = if may_be_empty {
                "Done; the body is empty unless the request asks for one"
            } else {
                "Done"
            };
            let mut response = json!({"description": description, "content": {"application/json": {"schema": schema}}});
            if may_be_empty {
                response["x-may-be-empty"] = true.into();
            }
            responses.insert(status.as_str().into(), response);
        }
        Some((status, None)) => {
            responses.insert(
                status.as_str().into(),
                json!({"description": "Done; the body is empty"}),
            );
        }
        None => {}
    }
    let mut error = |status: &str, description: &str| {
        responses.insert(status.into(), error_response(description));
    };
    if endpoint.access != Access::Public {
        error("401", "No live token");
        error("403", "Not permitted");
    }
    if reads_json {
        error("415", "The body is not JSON");
    }
    error("429", "The quota is used up until its window ends");
    if !built {
        error("501", "Not built yet");
    }
    responses.into()
}

/// The response of an error.
fn error_response(description: &str) -> Value {
    let message = json!({"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}});
    json!({"description": description, "content": {"application/json": {"schema": message}}})
}

/// Removes `format: uint32` and the like, which schemars emits and OpenAPI does not define.
#[derive(Clone)]
struct WithoutUnsigned;

impl Transform for WithoutUnsigned {
    fn transform(&mut self, schema: &mut schemars::Schema) {
        if schema
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| format.starts_with("uint"))
        {
            schema.remove("format");
        }
        transform_subschemas(self, schema);
    }
}

/// Returns the placeholders that the arguments of a handler read. A test compares them with the
/// path.
pub fn required_placeholders(endpoint: &Endpoint) -> Vec<&'static str> {
    let mut described = OperationDoc::new(SchemaGenerator::default());
    ((endpoint.handler)().describe)(&mut described);
    described.names
}
