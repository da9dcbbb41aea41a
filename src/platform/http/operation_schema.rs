//! The arguments of an operation as JSON Schema (draft 2020-12), for tools of agents.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{endpoint::Endpoint, operation_doc::OperationDoc};
use crate::platform::access::RequestView;

/// The arguments of an operation.
#[derive(Debug)]
pub struct OperationSchema {
    /// Parameters of the query.
    pub query: Vec<QueryParameter>,
    /// Schema of the JSON body, if the operation takes one.
    pub body: Option<Value>,
    /// Whether a request may have no body.
    pub is_body_optional: bool,
    /// Schemas that the others refer to, in `#/$defs`.
    pub definitions: Map<String, Value>,
    /// Whether a request may change something.
    pub may_change: bool,
}

/// A parameter of the query.
#[derive(Debug)]
pub struct QueryParameter {
    /// The name.
    pub name: String,
    /// Schema of the value.
    pub schema: Value,
    /// Whether a request must have it.
    pub is_required: bool,
}

impl OperationSchema {
    /// Returns the arguments of an operation. `None` if it is not implemented, or takes a body that
    /// is not JSON.
    pub fn of(endpoint: &Endpoint) -> Option<Self> {
        let mounted = (endpoint.handler)();
        let generator = SchemaSettings::draft2020_12().into_generator();
        let mut described = OperationDoc::new(generator);
        (mounted.describe)(&mut described);
        let takes_no_json = described.body.is_none() && !described.media.is_empty();
        let takes_other = described.form || takes_no_json;
        if !mounted.built || takes_other {
            return None;
        }
        let parameters = described.parameters.iter();
        let query = parameters.filter(|parameter| parameter["in"] == "query");
        let query = query.map(|parameter| QueryParameter {
            name: parameter["name"].as_str().unwrap_or_default().to_owned(),
            schema: parameter["schema"].clone(),
            is_required: parameter["required"] == true,
        });
        Some(Self {
            query: query.collect(),
            body: described.body,
            is_body_optional: described.is_body_optional,
            definitions: described.schemas.take_definitions(true),
            may_change: endpoint.may_change(mounted.audit_rule, &RequestView::default()),
        })
    }
}
