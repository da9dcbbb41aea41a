//! The MCP server: tools of the Model Context Protocol for agents, at `/mcp`.
//!
//! - A `tool` calls operations of the API. `operation_tools` derives one from each operation,
//!   `named_tools` has those that `@supabase/mcp-server-supabase` names, with its arguments;
//!   `catalog` has all of them.
//! - `selection` reads the parameters of the address: which tools, of which project, and whether
//!   they may change something.
//! - `client` calls operations with the rights of the caller. Access, rate limits and audit log are
//!   those of the API.
//! - `progress` reports steps of work that a tool started.
//! - `server` implements the protocol with the crate `rmcp`, without sessions; `resources` lists
//!   what can be read without a tool.

mod arguments;
mod catalog;
mod client;
mod edge_functions;
mod endpoint;
mod named_calls;
mod named_tools;
mod operation_tools;
mod progress;
mod resources;
mod selection;
mod server;
#[cfg(test)]
mod tests;
mod tool;

pub use self::{
    endpoint::ENDPOINTS,
    selection::{FEATURE_GROUPS, FeatureGroup, project_address},
};
