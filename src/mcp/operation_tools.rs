//! A tool for each operation, derived from its declaration.

use std::borrow::Cow;

use async_trait::async_trait;
use http::Method;
use serde_json::{Map, Value};

use super::{
    arguments::{Values, object_schema},
    client::encoded,
    selection::Feature,
    tool::{RunTool, Tool, ToolContext, ToolError, ToolHints, ToolResult},
};
use crate::{
    api::endpoints,
    platform::{
        access::Access,
        http::{Endpoint, Verb, operation_schema::OperationSchema, placeholders},
    },
};

/// Name of the argument with the body.
const BODY: &str = "body";
/// The placeholder of a project.
const PROJECT: &str = "ref";

/// The parts of the request of an operation.
struct OperationTool {
    endpoint: &'static Endpoint,
    /// Names of the parameters of the query.
    query: Vec<String>,
}

/// Returns the tools of all operations that take JSON or nothing.
pub(super) fn all() -> impl Iterator<Item = Tool> {
    let operations = endpoints::all().iter().copied();
    let operations = operations.filter(|endpoint| endpoint.access != Access::Public);
    operations.filter_map(tool)
}

fn tool(endpoint: &'static Endpoint) -> Option<Tool> {
    let described = OperationSchema::of(endpoint)?;
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for name in placeholders(endpoint.path) {
        properties.insert(name.to_owned(), serde_json::json!({"type": "string"}));
        required.push(name.to_owned());
    }
    let mut query = Vec::new();
    for parameter in &described.query {
        properties.insert(parameter.name.clone(), parameter.schema.clone());
        if parameter.is_required {
            required.push(parameter.name.clone());
        }
        query.push(parameter.name.clone());
    }
    if let Some(body) = described.body {
        properties.insert(BODY.to_owned(), body);
        if !described.is_body_optional {
            required.push(BODY.to_owned());
        }
    }
    let mut schema = object_schema(properties, &required);
    if !described.definitions.is_empty() {
        schema.insert("$defs".to_owned(), described.definitions.into());
    }
    let has_project = placeholders(endpoint.path).any(|name| name == PROJECT);
    Some(Tool {
        name: name(endpoint.id),
        description: format!(
            "{}. {} {}",
            endpoint.summary,
            endpoint.method.name(),
            endpoint.path
        ),
        feature: Feature::Operations(endpoint.tag),
        operation: endpoint,
        hints: hints(endpoint, described.may_change),
        schema,
        project_argument: has_project.then_some(PROJECT),
        branch_argument: None,
        can_be_read_only: false,
        run: Box::new(OperationTool { endpoint, query }),
    })
}

/// Returns the name of a tool: the id of its operation. The contract has ids with spaces.
fn name(id: &'static str) -> Cow<'static, str> {
    if id.contains(' ') {
        id.replace(' ', "-").to_lowercase().into()
    } else {
        id.into()
    }
}

/// Returns the hints of an operation: what may change something is destructive, unless it creates.
pub(super) fn hints(endpoint: &Endpoint, may_change: bool) -> ToolHints {
    if !may_change {
        return ToolHints::read_only();
    }
    let creates = endpoint.method == Verb::Post && endpoint.id.contains("-create-");
    ToolHints {
        is_read_only: false,
        is_destructive: !creates,
        is_idempotent: matches!(endpoint.method, Verb::Put | Verb::Delete),
    }
}

#[async_trait]
impl RunTool for OperationTool {
    async fn run(&self, context: &ToolContext, values: &Values) -> Result<ToolResult, ToolError> {
        let endpoint = self.endpoint;
        let mut path = endpoint.path.to_owned();
        for name in placeholders(endpoint.path) {
            path = path.replace(&format!("{{{name}}}"), &encoded(values.text(name)?));
        }
        let mut separator = '?';
        for name in &self.query {
            let Some(value) = values.0.get(name).filter(|value| !value.is_null()) else {
                continue;
            };
            path.push(separator);
            path.extend([&encoded(name), "=", &encoded(&query_text(value))]);
            separator = '&';
        }
        let method = Method::from_bytes(endpoint.method.name().as_bytes());
        let method = method.unwrap_or(Method::GET);
        let value = context
            .client
            .call(method, &path, values.0.get(BODY))
            .await?;
        Ok(ToolResult::Value(value))
    }
}

/// Returns a value as the query of a request has it: lists are separated by commas.
fn query_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(query_text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
