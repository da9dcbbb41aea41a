//! The OpenAPI 3.0 document of the endpoints.

use std::collections::BTreeSet;

use http::StatusCode;
use schemars::{
    JsonSchema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Map, Value, json};

use super::{endpoint::Endpoint, router::placeholders};
use crate::platform::access::{Access, AnyOf};

/// The documentation of an operation, collected from the signature of its handler.
pub struct OperationDoc {
    schemas: SchemaGenerator,
    names: Vec<&'static str>,
    parameters: Vec<Value>,
    body: Option<Value>,
    /// Whether the body is a form.
    form: bool,
    /// Further media types of the body, with their schemas.
    media: Vec<(&'static str, Value)>,
    reply: Option<(StatusCode, Option<Value>)>,
    may_be_empty: bool,
}

impl OperationDoc {
    fn new(schemas: SchemaGenerator) -> Self {
        Self {
            schemas,
            names: Vec::new(),
            parameters: Vec::new(),
            body: None,
            form: false,
            media: Vec::new(),
            reply: None,
            may_be_empty: false,
        }
    }

    /// Adds a placeholder of the path that the handler reads.
    pub(super) fn names(&mut self, placeholder: &'static str) {
        self.names.push(placeholder);
    }

    pub(super) fn header(&mut self, name: &str, description: &str) {
        self.parameters
            .push(json!({"name": name, "in": "header", "required": false, "description": description, "schema": {"type": "string"}}));
    }

    /// Sets the schema of the JSON body.
    pub fn body_schema<T: JsonSchema>(&mut self) {
        self.body = Some(self.schemas.subschema_for::<T>().to_value());
    }

    /// Sets the schema of the form body.
    pub fn form_schema<T: JsonSchema>(&mut self) {
        self.body_schema::<T>();
        self.form = true;
    }

    /// Adds a media type of the body with its schema.
    pub fn body_media(&mut self, media_type: &'static str, schema: Value) {
        self.media.push((media_type, schema));
    }

    pub(super) fn reply_schema<T: JsonSchema>(&mut self, status: StatusCode) {
        self.reply = Some((status, Some(self.schemas.subschema_for::<T>().to_value())));
    }

    /// Sets the schema of a response with an optional body.
    pub(super) fn reply_schema_or_empty<T: JsonSchema>(&mut self, status: StatusCode) {
        self.reply_schema::<T>(status);
        self.may_be_empty = true;
    }

    /// Sets the status of a response without a body, or without a schema.
    pub fn reply_empty(&mut self, status: StatusCode) {
        self.reply = Some((status, None));
    }

    /// Adds query parameters.
    pub fn query_schema<T: JsonSchema>(&mut self) {
        let mut schema = T::json_schema(&mut self.schemas);
        for transform in self.schemas.transforms_mut() {
            transform.transform(&mut schema);
        }
        let schema = schema.to_value();
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let required = required.contains(&name.as_str());
            self.parameters.push(
                json!({"name": name, "in": "query", "required": required, "schema": property}),
            );
        }
    }
}

/// Links that the operator publishes with the API (specification §1).
#[derive(Debug, Clone, Default)]
pub struct PublishedLinks {
    /// The fair-use policy.
    pub terms: Option<String>,
    /// The pricing of resources that are created through the API.
    pub pricing: Option<String>,
}

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
        let (item, rest) = operation(endpoint, mounted.built, described);
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
        item["requestBody"] = json!({"required": true, "content": {kind: {"schema": body}}});
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
    let message = json!({"application/json": {"schema": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}}});
    let mut error = |status: &str, description: &str| {
        responses.insert(
            status.into(),
            json!({"description": description, "content": message}),
        );
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
