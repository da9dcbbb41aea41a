//! The OpenAPI document, a page to read it, and the compatibility list.

mod assets;
pub mod events;
pub mod operations;
pub mod settings;
pub mod tables;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{api::endpoints, platform::http::Endpoint};

/// An operation and its implementation state.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Compatibility {
    operation: &'static str,
    method: &'static str,
    path: &'static str,
    aliases: &'static [&'static str],
    state: State,
    /// Why it is not implemented, and what to use instead; null if it is implemented.
    reason: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum State {
    /// Implemented as the contract describes.
    Built,
    /// Not implemented: answers 501.
    Planned,
}

/// Lists the state of every operation.
pub fn compatibility() -> Vec<Compatibility> {
    let row = |endpoint: &&'static Endpoint| {
        let mounted = (endpoint.handler)();
        Compatibility {
            operation: endpoint.id,
            method: endpoint.method.name(),
            path: endpoint.path,
            aliases: endpoint.aliases,
            state: if mounted.built {
                State::Built
            } else {
                State::Planned
            },
            reason: mounted.reason,
        }
    };
    endpoints::all().iter().map(row).collect()
}
