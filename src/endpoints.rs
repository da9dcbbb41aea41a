//! The one list of operations: routes, documents, limits and contract tests all read it.

use std::sync::LazyLock;

use crate::{
    accounts, analytics, audit, database, domains,
    error::Error,
    http::{Access, Done, Endpoint, RequestLine, Tag, Verb, mount},
    jit, keys,
    limits::{self, STANDARD},
    network, oauth, organizations, planned, projects, reference, snippets, tokens,
};

static ALL: LazyLock<Vec<&'static Endpoint>> = LazyLock::new(|| {
    [
        accounts::api::ENDPOINTS,
        organizations::api::ENDPOINTS,
        organizations::v2::ENDPOINTS,
        organizations::invited::ENDPOINTS,
        projects::api::ENDPOINTS,
        keys::api::ENDPOINTS,
        jit::api::ENDPOINTS,
        snippets::api::ENDPOINTS,
        network::api::ENDPOINTS,
        domains::api::ENDPOINTS,
        domains::hostnames::api::ENDPOINTS,
        database::migrations::api::ENDPOINTS,
        database::api::ENDPOINTS,
        database::advisors::api::ENDPOINTS,
        analytics::api::ENDPOINTS,
        analytics::ingest::api::ENDPOINTS,
        reference::api::ENDPOINTS,
        limits::api::ENDPOINTS,
        tokens::api::ENDPOINTS,
        audit::api::ENDPOINTS,
        oauth::api::ENDPOINTS,
        planned::PLANNED,
    ]
    .concat()
});

/// Every operation, built or planned. Its place is the number of its counter.
pub fn all() -> &'static [&'static Endpoint] {
    &ALL
}

/// What answers everything no operation has: counted and headed like one of them.
pub static UNKNOWN: Endpoint = Endpoint {
    id: "unknown",
    summary: "Anything else",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(unknown),
};

async fn unknown(RequestLine { method, path }: RequestLine) -> Result<Done, Error> {
    Err(Error::UnknownRoute { method, path })
}
