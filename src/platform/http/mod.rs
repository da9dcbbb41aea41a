//! How a request becomes a call. Knows nothing about any resource.

mod body;
pub mod endpoint;
mod face;
mod guard;
pub mod input;
mod named;
pub(crate) mod nul;
mod openapi;
pub mod output;
mod rehearse;
pub(crate) mod respond;
mod router;
pub mod server;
mod standard_headers;
mod transport;

pub use body::{Body, Broken, Response, read};
pub use endpoint::{Endpoint, Mounted, Tag, Verb, mount};
pub use face::{Asking, Face, OnBehalf, Refused};
pub use guard::RESOURCE_METADATA;
pub use input::{Basic, Call, IdempotencyKey, Input, Json, Lists, PathId, Query, RequestLine};
pub use openapi::{Described, Links, asked_for, document};
pub use output::{Begun, Created, Done, Lines, Nothing, Onward, Output, Rows, Unkept, Written};
pub use rehearse::{Imagined, Rehearsal, rehearse};
pub use router::{Api, Served, placeholders};
pub use transport::{ClientHeader, Peer, Transport};
