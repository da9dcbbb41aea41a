//! The documentation of an operation.

use http::StatusCode;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::body::BYTES_MAX;

/// The documentation of an operation, collected from the signature of its handler.
pub struct OperationDoc {
    pub(super) schemas: SchemaGenerator,
    pub(super) names: Vec<&'static str>,
    pub(super) parameters: Vec<Value>,
    pub(super) body: Option<Value>,
    /// Whether the body is a form.
    pub(super) form: bool,
    /// Whether a request may have no body.
    pub(super) is_body_optional: bool,
    /// Further media types of the body, with their schemas.
    pub(super) media: Vec<(&'static str, Value)>,
    pub(super) reply: Option<(StatusCode, Option<Value>)>,
    pub(super) may_be_empty: bool,
    /// Largest body, in bytes.
    pub(super) body_bytes_max: usize,
}

impl OperationDoc {
    pub(super) fn new(schemas: SchemaGenerator) -> Self {
        Self {
            schemas,
            names: Vec::new(),
            parameters: Vec::new(),
            body: None,
            form: false,
            is_body_optional: false,
            media: Vec::new(),
            reply: None,
            may_be_empty: false,
            body_bytes_max: BYTES_MAX,
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

    /// Adds a query parameter that is true or false.
    pub(super) fn switch(&mut self, name: &str, description: &str) {
        self.parameters
            .push(json!({"name": name, "in": "query", "required": false, "description": description, "schema": {"type": "boolean", "default": false}}));
    }

    /// Sets the schema of the JSON body.
    pub fn body_schema<T: JsonSchema>(&mut self) {
        self.body = Some(self.schemas.subschema_for::<T>().to_value());
    }

    /// Sets the schema of a JSON body that may be absent.
    pub fn optional_body_schema<T: JsonSchema>(&mut self) {
        self.body_schema::<T>();
        self.is_body_optional = true;
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
