//! Simulated requests: the decision on a request, made by the steps of a real one, without counting
//! the request and without running its handler.

use std::sync::Arc;

use super::{
    endpoint::Endpoint,
    request_target::{RequestTarget, TargetLocation},
    router,
};
use crate::platform::{
    access::{AnyOf, Caller, CallerRelation, RequestView, User, decide},
    context::PlatformContext,
    error::Error,
    rate_limits::LimitKey,
};

/// A request that is not sent.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedRequest<'a> {
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// The path without the query.
    pub path: &'a str,
    /// The query without the question mark.
    pub query: &'a str,
    /// The body.
    pub body: &'a [u8],
}

/// The decision on a simulated request.
#[derive(Debug)]
pub struct SimulatedOutcome {
    /// The operation of this method and path.
    pub endpoint: &'static Endpoint,
    /// The condition of the matching case, if the operation declares cases.
    pub case: Option<&'static str>,
    /// The permissions that the request requires.
    pub required: AnyOf,
    /// The caller's relation to the target of the request.
    pub standing: CallerRelation,
    /// `Ok` if the request is permitted.
    pub outcome: Result<(), Error>,
}

/// Decides on `request` as if `user` had sent it. Returns `None` if no operation has this method
/// and path.
pub async fn simulate(
    context: &PlatformContext,
    endpoints: &[&'static Endpoint],
    user: Arc<User>,
    request: SimulatedRequest<'_>,
) -> Result<Option<SimulatedOutcome>, Error> {
    let Some(endpoint) = router::find(endpoints, request.method, request.path) else {
        return Ok(None);
    };
    let target = match endpoint.limit.key {
        LimitKey::OrganizationInBody { fields } => RequestTarget::in_body(fields, request.body),
        LimitKey::Path | LimitKey::Caller | LimitKey::Uncounted => {
            let location = TargetLocation::of(endpoint);
            RequestTarget::in_line(location, request.path, request.query)
        }
    };
    let standing = if matches!(target, RequestTarget::Account) {
        CallerRelation::Account
    } else if let Some(reference) = target.reference() {
        let cached = context
            .directory
            .resolve_cached(&user, &reference, context.clock.ticks());
        let own = if cached.is_some() {
            cached
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
    Ok(Some(SimulatedOutcome {
        endpoint,
        case,
        required: endpoint.access.required(&asked),
        standing,
        outcome,
    }))
}
