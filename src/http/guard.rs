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
    asked::Asked,
    endpoint::{Access, Endpoint, Handle, Verb},
    input::{Call, Payload, RequestLine},
    limit_fields,
    named::Named,
    respond,
    transport::{Peer, Transport},
};
use crate::{
    access::{AnyOf, Caller, Standing, Subject, decide},
    app::App,
    audit::Recorder,
    clock::Ticks,
    error::{Credential, Denial, Error},
    limits::{Identifier, Key, LimitKey, Place, Policy, Quotas, Scope, Verdict},
    tokens,
};

/// How long any operation may take. Operations with a bound of their own stay below it.
const TIMEOUT: Duration = Duration::from_mins(2);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const USER_ID: HeaderName = HeaderName::from_static("x-gotrue-id");
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-permissions");

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
    standing: Option<(Policy, Quotas)>,
    refused: bool,
    user: Option<HeaderValue>,
    /// Which permissions would have done, where they did not.
    accepted: Option<AnyOf>,
    /// Writes the audit log, if the request may change something.
    recorder: Option<Arc<Recorder>>,
}

/// Serves one request.
pub(super) async fn serve(guarded: Arc<Guarded>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let request_id = request_id(&guarded.app, &parts.headers);
    let peer = peer(&guarded.app, &parts);
    let path = parts.uri.path().to_owned();
    let started = guarded.app.clock.ticks();
    let mut trail = Trail::default();

    let run = AssertUnwindSafe(admit(&guarded, parts, body, (peer, &request_id), &mut trail)).catch_unwind();
    let outcome = match tokio::time::timeout(TIMEOUT, run).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => Err(Error::TimedOut(TIMEOUT)),
    };
    let mut response = outcome.unwrap_or_else(|error| respond::error(&error, &path, &request_id, guarded.endpoint.id));

    if let Some(recorder) = trail.recorder.take()
        && let Err(error) = recorder.finish(&guarded.app.db, response.status().as_u16(), guarded.app.clock.now()).await
    {
        tracing::error!(request_id, operation = guarded.endpoint.id, %error, "the audit log was not written");
    }

    // Failed before it could be counted: the address pays, and the headers are there all the same.
    let (policy, quotas) = if let Some(standing) = trail.standing.take() {
        standing
    } else {
        let policy = guarded.app.limits.policy(guarded.operation, Place::default());
        let key = Key { identifier: Identifier::address(peer.address), scope: Scope::User, operation: guarded.operation };
        let verdict = guarded.app.limits.take(key, policy.windows(), started).await;
        (policy, verdict.quotas)
    };
    limit_fields::write(response.headers_mut(), &policy, &quotas, trail.refused);
    write_headers(response.headers_mut(), &trail, &request_id);
    guarded.app.metrics.observe(guarded.operation, response.status(), guarded.app.clock.ticks() - started);
    response
}

async fn admit(
    guarded: &Guarded,
    mut parts: Parts,
    body: Body,
    (peer, request_id): (Peer, &str),
    trail: &mut Trail,
) -> Result<Response, Error> {
    Transport::require_secure(peer)?;
    let caller = identify(&guarded.app, &parts.headers, peer).await?;
    trail.user = caller.user().and_then(|user| HeaderValue::from_str(user.gotrue_id.hyphenated().encode_lower(&mut [0; 36])).ok());

    let mut payload = Payload::Pending(body);
    let named = named(guarded.endpoint, &parts, &caller, &mut payload).await;
    // A body over its bound is counted like any other request, and refused after.
    let (named, unreadable) = named.map_or_else(|error| (Named::Account, Some(error)), |named| (named, None));
    let (subject, standing) = count(guarded, &caller, named, guarded.app.clock.ticks(), trail).await?;
    // Nobody's body, and a stranger's, is not worth reading.
    let looked_into =
        if caller.user().is_some() && standing != Standing::Stranger { look_into(guarded.endpoint, &mut payload).await } else { Ok(()) };
    let unreadable = unreadable.or(looked_into.err());
    let asked = Asked { query: parts.uri.query().unwrap_or_default(), body: payload.seen() };
    if let Some(user) = caller.user().filter(|_| may_change(guarded.endpoint, &asked)) {
        let recorder = Recorder::new(user, &subject, peer.address, request_id, guarded.endpoint.id);
        trail.recorder = Some(Arc::new(recorder));
    }
    decide(&caller, &guarded.endpoint.access, &asked, standing).inspect_err(|error| {
        let refused = matches!(error, Error::Forbidden(Denial::Role | Denial::Permissions(_)));
        trail.accepted = refused.then(|| guarded.endpoint.access.required(&asked));
    })?;
    if let Some(error) = unreadable {
        return Err(error);
    }
    if let Some(user) = caller.user().filter(|_| guarded.endpoint.access != Access::Public) {
        guarded.app.directory.note_call(user, guarded.operation, guarded.endpoint.access.case_number(&asked));
    }
    let call = Call {
        app: guarded.app.clone(),
        caller,
        subject,
        standing,
        recorder: trail.recorder.clone(),
        endpoint: guarded.endpoint,
        line: RequestLine { method: parts.method.to_string(), path: parts.uri.path().to_owned() },
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: std::mem::take(&mut parts.headers),
        body: payload,
    };
    (guarded.handle)(call).await
}

/// Whether the request is one for the audit log: not a GET, and not permitted by permissions that only let see.
fn may_change(endpoint: &Endpoint, asked: &Asked<'_>) -> bool {
    let required = endpoint.access.required(asked);
    let sees = !required.0.is_empty() && required.0.iter().all(|group| group.iter().all(|permission| permission.only_reads()));
    !matches!(endpoint.method, Verb::Get | Verb::Head) && endpoint.access != Access::Public && !sees
}

/// Who sent the request. A credential that does not hold leaves nobody, who is counted by address.
async fn identify(app: &App, headers: &HeaderMap, peer: Peer) -> Result<Caller, Error> {
    let nobody = |credential| Caller::Nobody { address: peer.address, credential };
    match tokens::recognise(headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)) {
        Err(credential) => Ok(nobody(credential)),
        Ok(digest) => {
            let user = app.directory.user(&digest, peer.address).await?;
            Ok(user.map_or_else(|| nobody(Credential::Unknown), Caller::User))
        }
    }
}

/// Reads the body if what the request needs depends on it. One that cannot be read counts as empty, and is refused after
/// the decision.
async fn look_into(endpoint: &Endpoint, payload: &mut Payload) -> Result<(), Error> {
    if !endpoint.access.cases().is_empty() && endpoint.method.has_body() { payload.read().await.map(drop) } else { Ok(()) }
}

/// What the request names. The one operation whose body says is asked for the body, unless nobody asks: it is not worth reading.
async fn named(endpoint: &Endpoint, parts: &Parts, caller: &Caller, payload: &mut Payload) -> Result<Named, Error> {
    match endpoint.limit.key {
        LimitKey::OrganizationInBody { fields } if caller.user().is_some() => Ok(Named::in_body(fields, &payload.read().await?)),
        _ => Ok(Named::in_line(endpoint, parts.uri.path(), parts.uri.query().unwrap_or_default())),
    }
}

/// Counts the request and finds where the caller stands, in an order that lets nobody mint counters or queries, or learn
/// from a counter what exists: what is not known to be the caller's is charged to one counter for all such names before
/// it is looked up, and given back if it turns out to be.
async fn count(guarded: &Guarded, caller: &Caller, named: Named, now: Ticks, trail: &mut Trail) -> Result<(Subject, Standing), Error> {
    let app = &guarded.app;
    let mut meter = Meter { guarded, caller, now, trail };
    if matches!(named, Named::Account) {
        meter.take_own(&Subject::Account).await?;
        return Ok((Subject::Account, Standing::Account));
    }
    let own = caller.user().zip(named.reference());
    if let Some((subject, held)) = own.as_ref().and_then(|(user, reference)| app.directory.own_cached(user, reference)) {
        meter.take_own(&subject).await?;
        return Ok((subject, Standing::Member(held)));
    }
    let unresolved = meter.take(Scope::Unresolved, Place::default()).await?;
    let Some((user, reference)) = own else { return Ok((Subject::Account, Standing::Stranger)) };
    let Some((subject, held)) = app.directory.own(user, &reference).await? else { return Ok((Subject::Account, Standing::Stranger)) };
    meter.give_back(&unresolved).await;
    meter.take_own(&subject).await?;
    Ok((subject, Standing::Member(held)))
}

/// Counts one request, at one moment.
struct Meter<'a> {
    guarded: &'a Guarded,
    caller: &'a Caller,
    now: Ticks,
    trail: &'a mut Trail,
}

/// What was taken, from which counter.
struct Taken {
    key: Key,
    policy: Policy,
    verdict: Verdict,
}

impl Meter<'_> {
    /// Takes from the counter of something the caller belongs to, unless the operation is not counted.
    async fn take_own(&mut self, subject: &Subject) -> Result<(), Error> {
        let (scope, organization) = match subject {
            Subject::Account => (Scope::User, None),
            Subject::Organization(organization) => (Scope::Organization(organization.id), Some(organization.id)),
            Subject::Project(project) => (Scope::Project(project.id), Some(project.organization)),
        };
        // No application calls yet.
        let place = Place { organization, application: None };
        if self.guarded.endpoint.limit.key == LimitKey::Uncounted && self.caller.user().is_some() {
            let policy = self.guarded.app.limits.policy(self.guarded.operation, place);
            let whole = Quotas::whole(policy.windows());
            self.trail.standing = Some((policy, whole));
            return Ok(());
        }
        self.take(scope, place).await.map(drop)
    }

    async fn take(&mut self, scope: Scope, place: Place) -> Result<Taken, Error> {
        let Guarded { app, operation, .. } = self.guarded;
        let identifier = match self.caller {
            Caller::User(user) => Identifier::User(user.id),
            Caller::Nobody { address, .. } => Identifier::address(*address),
        };
        let key = Key { identifier, scope, operation: *operation };
        let policy = app.limits.policy(*operation, place);
        let verdict = app.limits.take(key, policy.windows(), self.now).await;
        self.trail.standing = Some((policy.clone(), verdict.quotas));
        self.trail.refused = !verdict.admitted;
        if verdict.admitted { Ok(Taken { key, policy, verdict }) } else { Err(Error::LimitReached) }
    }

    async fn give_back(&self, taken: &Taken) {
        let app = &self.guarded.app;
        app.limits.give_back(taken.key, taken.policy.windows(), &taken.verdict, self.now, app.clock.ticks()).await;
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

fn write_headers(headers: &mut HeaderMap, trail: &Trail, request_id: &str) {
    if let Some(user) = &trail.user {
        headers.insert(USER_ID, user.clone());
    }
    if let Some(accepted) = trail.accepted.and_then(|accepted| HeaderValue::try_from(accepted.to_string()).ok()) {
        headers.insert(ACCEPTED, accepted);
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    Error::internal("running a handler that panicked", text.unwrap_or_else(|| "a panic without a message".into()))
}
