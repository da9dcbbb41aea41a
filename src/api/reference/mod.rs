//! The API about itself: the OpenAPI document, a page to read it, and what is built.

mod assets;
pub mod operations;
pub mod tables;

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::endpoints;

/// One operation and whether it does what the contract says.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Compatibility {
    operation: &'static str,
    method: &'static str,
    path: &'static str,
    aliases: &'static [&'static str],
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum State {
    /// Does what the contract says.
    Built,
    /// Answers 501.
    Planned,
}

/// Every operation, in the order of the list.
pub fn compatibility() -> Vec<Compatibility> {
    let row = |endpoint: &&'static crate::platform::http::Endpoint| Compatibility {
        operation: endpoint.id,
        method: endpoint.method.name(),
        path: endpoint.path,
        aliases: endpoint.aliases,
        state: if (endpoint.handler)().built {
            State::Built
        } else {
            State::Planned
        },
    };
    endpoints::all().iter().map(row).collect()
}
