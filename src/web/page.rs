//! Declarations of pages, and the types that most pages use.

pub(super) use super::{
    form::SessionForm,
    response::PageResponse,
    visitor::{Layout, Visitor},
};
use crate::platform::{
    access::Access,
    http::{Endpoint, Tag, Verb, endpoint::MountedHandler},
    rate_limits::STANDARD,
};

/// Declares a page or the target of a form, for every signed-in user.
pub(super) const fn page(
    id: &'static str,
    summary: &'static str,
    method: Verb,
    path: &'static str,
    handler: fn() -> MountedHandler,
) -> Endpoint {
    Endpoint {
        id,
        summary,
        tag: Tag::Gantry,
        method,
        path,
        aliases: &[],
        access: Access::Caller,
        limit: &STANDARD,
        handler,
    }
}

/// Declares a page or the target of a form, for all clients, signed in or not.
pub(super) const fn public_page(
    id: &'static str,
    summary: &'static str,
    method: Verb,
    path: &'static str,
    handler: fn() -> MountedHandler,
) -> Endpoint {
    Endpoint {
        access: Access::Public,
        ..page(id, summary, method, path, handler)
    }
}
