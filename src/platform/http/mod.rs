//! HTTP: from a request to the handler of an operation, and back. Independent of any resource.
//!
//! An [`Endpoint`] declares an operation. The [`Api`] finds the endpoint of a request, the guard
//! authenticates, limits and authorizes the request, and the handler takes [`Input`]s and returns
//! an [`Output`].

mod approval_step;
pub mod body;
mod call;
pub mod client_credentials;
pub mod client_kind;
mod dry_run;
pub mod endpoint;
pub mod event_stream;
pub mod forwarding;
mod guard;
mod guarded_endpoint;
mod idempotency_step;
pub mod input;
pub(crate) mod json;
pub mod multipart;
pub(crate) mod null_bytes;
pub mod openapi;
pub mod operation_doc;
pub mod operation_schema;
pub mod output;
pub mod path_template;
mod query;
mod rate_limit_step;
mod request_body;
mod request_target;
pub(crate) mod respond;
pub mod router;
pub mod server;
pub mod simulate;
mod standard_headers;
pub mod transport;

pub use body::{Body, Response};
pub use call::{Call, Input};
pub use endpoint::{Endpoint, Tag, Verb, mount};
pub use guarded_endpoint::RESOURCE_METADATA;
pub use input::{Json, PathId, Query};
pub use output::Output;
pub use path_template::placeholders;
pub use router::Api;
pub use transport::{Peer, Transport};
