//! What a request would get, found by the same steps as for a real one, but neither counted nor run.

use std::sync::Arc;

use super::{
    endpoint::Endpoint,
    named::{Named, Place},
    router,
};
use crate::{
    base::error::Error,
    platform::{
        access::{AnyOf, Caller, CallerRelation, RequestView, User, decide},
        context::PlatformContext,
        rate_limits::LimitKey,
    },
};

/// A request that is not sent.
#[derive(Debug, Clone, Copy)]
pub struct Imagined<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    /// Without the question mark.
    pub query: &'a str,
    /// As it would be sent.
    pub body: &'a [u8],
}

/// What it would get.
#[derive(Debug)]
pub struct Rehearsal {
    /// The operation it reaches.
    pub endpoint: &'static Endpoint,
    /// Which of the operation's cases it is in, if it tells any apart.
    pub case: Option<&'static str>,
    /// What it needs.
    pub required: AnyOf,
    /// Where the caller stands.
    pub standing: CallerRelation,
    /// Whether it is let in, and if not, why.
    pub outcome: Result<(), Error>,
}

/// What `request` would get if `user` sent it. `None` if no operation has this method and path.
pub async fn rehearse(
    context: &PlatformContext,
    endpoints: &[&'static Endpoint],
    user: Arc<User>,
    request: Imagined<'_>,
) -> Result<Option<Rehearsal>, Error> {
    let Some(endpoint) = router::find(endpoints, request.method, request.path) else {
        return Ok(None);
    };
    let named = match endpoint.limit.key {
        LimitKey::OrganizationInBody { fields } => Named::in_body(fields, request.body),
        LimitKey::Path | LimitKey::Caller | LimitKey::Uncounted => {
            Named::in_line(Place::of(endpoint), request.path, request.query)
        }
    };
    let standing = if matches!(named, Named::Account) {
        CallerRelation::Account
    } else if let Some(reference) = named.reference() {
        let known = context
            .directory
            .resolve_cached(&user, &reference, context.clock.ticks());
        let own = if known.is_some() {
            known
        } else {
            context.directory.resolve(&user, &reference).await?
        };
        own.map_or(CallerRelation::NotMember, |(_, held)| {
            CallerRelation::Member(held)
        })
    } else {
        CallerRelation::NotMember
    };
    let asked = RequestView {
        query: request.query,
        body: request.body,
    };
    let outcome = decide(&Caller::User(user), &endpoint.access, &asked, standing);
    let case = endpoint.access.case(&asked).map(|case| case.when);
    Ok(Some(Rehearsal {
        endpoint,
        case,
        required: endpoint.access.required(&asked),
        standing,
        outcome,
    }))
}
