//! The life of a request: identify the caller, count, resolve, decide, run, and write the headers, whatever happened.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    response::Response,
};
use futures_util::FutureExt;

use super::{
    endpoint::{Endpoint, Handle},
    input::{Call, Payload, RequestLine},
    respond,
    router::placeholder,
    transport::{Peer, Transport},
};
use crate::{
    access::{Caller, Reference, Standing, Subject, decide},
    app::App,
    error::Error,
    ids::{OrgSlug, ProjectRef},
    limits::{Identifier, Key, LimitKey, Quota, Scope},
    tokens,
};

/// How long any operation may take. Operations with a bound of their own stay below it.
const TIMEOUT: Duration = Duration::from_mins(2);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const USER_ID: HeaderName = HeaderName::from_static("x-gotrue-id");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// An endpoint ready to serve: its declaration, its counter's number, its handler.
pub(super) struct Guarded {
    pub(super) app: App,
    pub(super) endpoint: &'static Endpoint,
    pub(super) operation: u16,
    pub(super) handle: Handle,
}

/// What became known on the way, for the headers.
#[derive(Default)]
struct Trail {
    quota: Option<Quota>,
    refused: bool,
    user: Option<HeaderValue>,
}

/// Serves one request.
pub(super) async fn serve(guarded: Arc<Guarded>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let request_id = request_id(&guarded.app, &parts.headers);
    let peer = peer(&guarded.app, &parts);
    let path = parts.uri.path().to_owned();
    let started = guarded.app.clock.ticks();
    let mut trail = Trail::default();

    let run = AssertUnwindSafe(admit(&guarded, parts, body, peer, &mut trail)).catch_unwind();
    let outcome = match tokio::time::timeout(TIMEOUT, run).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => Err(Error::TimedOut(TIMEOUT)),
    };
    let mut response = outcome.unwrap_or_else(|error| respond::error(&error, &path, &request_id, guarded.endpoint.id));

    // Failed before it could be counted: the address pays, and the headers are there all the same.
    let quota = trail.quota.unwrap_or_else(|| {
        let key = Key { identifier: Identifier::address(peer.address), scope: Scope::User, operation: guarded.operation };
        guarded.app.limits.take(key, guarded.endpoint.limit.windows, started).quota
    });
    write_headers(response.headers_mut(), &trail, quota, &request_id);
    guarded.app.metrics.observe(guarded.operation, response.status(), guarded.app.clock.ticks() - started);
    response
}

async fn admit(guarded: &Guarded, mut parts: Parts, body: Body, peer: Peer, trail: &mut Trail) -> Result<Response, Error> {
    Transport::require_secure(peer)?;
    let caller = identify(&guarded.app, &parts.headers, peer).await?;
    trail.user = caller.user().and_then(|user| HeaderValue::from_str(user.gotrue_id.hyphenated().encode_lower(&mut [0; 36])).ok());

    let mut payload = Payload::Pending(body);
    let named = named(guarded.endpoint, &parts, &caller, &mut payload).await;
    // A body over its bound is counted like any other request, and refused after.
    let (named, unreadable) = named.map_or_else(|error| (Named::Account, Some(error)), |named| (named, None));
    let (subject, standing) = count(guarded, &caller, named, trail).await?;
    decide(&caller, &guarded.endpoint.access, standing)?;
    if let Some(error) = unreadable {
        return Err(error);
    }
    let call = Call {
        app: guarded.app.clone(),
        caller,
        subject,
        standing,
        endpoint: guarded.endpoint,
        line: RequestLine { method: parts.method.to_string(), path: parts.uri.path().to_owned() },
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: std::mem::take(&mut parts.headers),
        body: payload,
    };
    (guarded.handle)(call).await
}

/// Who sent the request. A credential that does not hold leaves nobody, who is counted by address.
async fn identify(app: &App, headers: &HeaderMap, peer: Peer) -> Result<Caller, Error> {
    let nobody = |credential| Caller::Nobody { address: peer.address, credential };
    match tokens::recognise(headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)) {
        Err(credential) => Ok(nobody(credential)),
        Ok(digest) => Ok(app.directory.user(&digest).await?.map_or_else(|| nobody(crate::error::Credential::Unknown), Caller::User)),
    }
}

/// What the request names, before anybody looked whether it exists.
enum Named {
    Account,
    Organization(OrgSlug),
    Project(ProjectRef),
    /// A text that cannot be the name of anything.
    Nothing,
}

async fn named(endpoint: &Endpoint, parts: &Parts, caller: &Caller, payload: &mut Payload) -> Result<Named, Error> {
    match endpoint.limit.key {
        LimitKey::Path => {
            let text = |name| placeholder(endpoint, parts.uri.path(), name);
            Ok(if let Some(reference) = text("ref") {
                reference.parse().map_or(Named::Nothing, Named::Project)
            } else if let Some(slug) = text("slug") {
                slug.parse().map_or(Named::Nothing, Named::Organization)
            } else {
                Named::Account
            })
        }
        // Nobody's body is not worth reading.
        LimitKey::OrganizationInBody { .. } if caller.user().is_none() => Ok(Named::Account),
        LimitKey::OrganizationInBody { fields } => {
            let bytes = payload.read().await?;
            let body: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let slug = fields.iter().find_map(|field| body.get(field)?.as_str());
            Ok(slug.and_then(|slug| slug.parse().ok()).map_or(Named::Account, Named::Organization))
        }
    }
}

/// Counts the request and finds where the caller stands, in an order that lets nobody mint counters or queries, or learn
/// from a counter what exists: what is not known to be the caller's is charged to one counter for all such names before
/// it is looked up, and given back if it turns out to be.
async fn count(guarded: &Guarded, caller: &Caller, named: Named, trail: &mut Trail) -> Result<(Subject, Standing), Error> {
    let Guarded { app, endpoint, operation, .. } = guarded;
    let identifier = match caller {
        Caller::User(user) => Identifier::User(user.id),
        Caller::Nobody { address, .. } => Identifier::address(*address),
    };
    let now = app.clock.ticks();
    let mut take = |scope| {
        let key = Key { identifier, scope, operation: *operation };
        let verdict = app.limits.take(key, endpoint.limit.windows, now);
        trail.quota = Some(verdict.quota);
        trail.refused = !verdict.admitted;
        if verdict.admitted { Ok(key) } else { Err(Error::LimitReached) }
    };
    let reference = match named {
        Named::Account => {
            take(Scope::User)?;
            return Ok((Subject::Account, Standing::Account));
        }
        Named::Nothing => None,
        Named::Organization(slug) => Some(Reference::Organization(slug)),
        Named::Project(reference) => Some(Reference::Project(reference)),
    };
    let own = caller.user().zip(reference);
    if let Some((subject, role)) = own.as_ref().and_then(|(user, reference)| app.directory.own_cached(user.id, reference)) {
        take(scope(&subject))?;
        return Ok((subject, Standing::Member(role)));
    }
    let unresolved = take(Scope::Unresolved)?;
    let Some((user, reference)) = own else { return Ok((Subject::Account, Standing::Stranger)) };
    let Some((subject, role)) = app.directory.own(user.id, &reference).await? else { return Ok((Subject::Account, Standing::Stranger)) };
    app.limits.give_back(unresolved, endpoint.limit.windows, now);
    take(scope(&subject))?;
    Ok((subject, Standing::Member(role)))
}

fn scope(subject: &Subject) -> Scope {
    match subject {
        Subject::Account => Scope::User,
        Subject::Organization(organization) => Scope::Organization(organization.id),
        Subject::Project(project) => Scope::Project(project.id),
    }
}

/// The id the client sent, if it is fit for a log line; else a new one of 32 hex digits.
fn request_id(app: &App, headers: &HeaderMap) -> String {
    let sent = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    match sent.filter(|id| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())) {
        Some(id) => id.to_owned(),
        None => hex::encode(app.entropy.bytes::<16>()),
    }
}

fn peer(app: &App, parts: &Parts) -> Peer {
    let socket = parts.extensions.get::<ConnectInfo<SocketAddr>>().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |info| info.0.ip());
    app.settings.transport.peer(socket, &parts.headers)
}

fn write_headers(headers: &mut HeaderMap, trail: &Trail, quota: Quota, request_id: &str) {
    headers.insert(LIMIT, quota.limit.into());
    headers.insert(REMAINING, quota.remaining.into());
    headers.insert(RESET, quota.reset_secs.into());
    if trail.refused {
        headers.insert(header::RETRY_AFTER, quota.reset_secs.into());
    }
    if let Some(user) = &trail.user {
        headers.insert(USER_ID, user.clone());
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    Error::internal("running a handler that panicked", text.unwrap_or_else(|| "a panic without a message".into()))
}
