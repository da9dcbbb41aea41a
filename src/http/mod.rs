//! How a request becomes a call. Knows nothing about any resource.

mod body;
pub mod endpoint;
mod guard;
pub mod input;
mod limit_fields;
mod openapi;
pub mod output;
mod respond;
mod router;
mod transport;

pub use endpoint::{Access, Endpoint, Mounted, Tag, Verb, mount, needs, pat_only};
pub use input::{Call, IdempotencyKey, Input, Json, Permits, Query, RequestLine};
pub use openapi::{Described, Links, asked_for, document};
pub use output::{Created, Done, Output, Rows, Written};
pub use router::{Api, placeholders};
pub use transport::{ClientHeader, Peer, Transport};
