//! The life of a request: identify the caller, count, resolve, decide, run, and write the headers, whatever happened.

use std::{
    future::{Future, poll_fn},
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::{FutureExt, future::OptionFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use uuid::Uuid;

use super::{
    body::Response,
    endpoint::{Effect, Endpoint, Handle, Mounted, Verb},
    face::{Face, OnBehalf, Refused},
    input::{Basic, Call, Payload},
    named,
    named::Named,
    nul, respond,
    router::Api,
    standard_headers::{RequestId, StandardHeaders},
    transport::{Peer, Transport},
};
use crate::{
    base::{
        clock::Ticks,
        error::{CredentialProblem, Denial, Error, oauth_error},
        ids::ProjectRef,
    },
    platform::{
        access::{
            Access, AnyOf, Caller, CallerRelation, EffectiveRoles, RequestView, ResourceName,
            Subject, User, credential, credential::PresentedCredential, decide, sessions,
        },
        audit::Recorder,
        context::PlatformContext,
        http::router::State,
        rate_limits::{
            CounterKey, CounterScope, Identifier, LimitKey, Policy, PolicyContext, Quotas,
        },
        telemetry::AnsweredRequest,
    },
};

/// Where clients find out who issues tokens for this API (RFC 9728).
pub const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource";
/// How long any operation may take. Operations with a bound of their own stay below it.
const TIMEOUT: Duration = Duration::from_mins(2);

const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-permissions");

/// How programs are met.
pub(super) static PROGRAMS: Face = Face {
    presented: |headers, _| {
        credential::parse_authorization(
            headers
                .get(header::AUTHORIZATION)
                .map(HeaderValue::as_bytes),
        )
    },
    refuse: respond::error,
    asks: false,
};

/// An endpoint ready to serve: its declaration, its counter's number, its handler.
pub(super) struct Guarded {
    context: PlatformContext,
    state: State,
    endpoint: &'static Endpoint,
    operation: u16,
    names: named::Place,
    handle: Handle,
    effect: Effect,
    face: &'static Face,
}

impl Guarded {
    pub(super) fn new(
        context: PlatformContext,
        state: State,
        endpoint: &'static Endpoint,
        operation: u16,
        face: &'static Face,
    ) -> Self {
        let Mounted { handle, effect, .. } = (endpoint.handler)();
        Self {
            context,
            state,
            endpoint,
            operation,
            names: named::Place::of(endpoint),
            handle,
            effect,
            face,
        }
    }

    /// Whether its handler may ask other operations.
    pub(super) fn asks(&self) -> bool {
        self.face.asks
    }

    /// The challenge of a 401, or of a 403 to an OAuth token that lacks the scope of the operation (RFC 6750, 3), with the
    /// address of the metadata (RFC 9728, 5.1) if the server knows its own. None for any other error.
    fn challenge(&self, error: &Error) -> Option<String> {
        let wrong = match error {
            Error::Unauthenticated(CredentialProblem::Missing) => None,
            Error::Unauthenticated(_) => Some("error=\"invalid_token\"".to_owned()),
            Error::Forbidden(Denial::Scope(_)) => Some("error=\"insufficient_scope\"".to_owned()),
            _ => return None,
        };
        let issuer = self.context.settings.issuer().ok();
        let metadata =
            issuer.map(|issuer| format!("resource_metadata=\"{issuer}{RESOURCE_METADATA}\""));
        let scope = self
            .endpoint
            .access
            .oauth()
            .map(|scope| format!("scope=\"{}\"", scope.name()));
        let parameters: Vec<_> = [wrong, metadata, scope].into_iter().flatten().collect();
        Some(
            ["Bearer ", &parameters.join(", ")]
                .concat()
                .trim_end()
                .to_owned(),
        )
    }

    fn refuse(&self, error: Error, arrival: &Arrival, request_id: &str) -> Response {
        if arrival.on_behalf.is_some() {
            return respond::within(error);
        }
        let Arrival { method, uri, .. } = arrival;
        let challenge = self.challenge(&error);
        (self.face.refuse)(
            &error,
            &Refused {
                method,
                uri,
                request_id,
                operation: self.endpoint.id,
                challenge: challenge.as_deref(),
            },
        )
    }
}

/// A request that came in.
pub(super) struct Arrival {
    /// The other end of the connection.
    pub(super) socket: IpAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    /// For whom another operation asks.
    pub(super) on_behalf: Option<OnBehalf>,
    /// Whom a handler asks that asks others.
    pub(super) asks: Option<Api>,
}

/// What became known on the way, for the headers.
#[derive(Default)]
struct Trail {
    standing: Option<(Policy, Quotas)>,
    refused: bool,
    user: Option<Uuid>,
    /// The caller's project that the request names.
    project: Option<ProjectRef>,
    /// Which permissions would have done, where they did not.
    accepted: Option<AnyOf>,
    /// Writes the audit log, if the request may change something.
    recorder: Option<Arc<Recorder>>,
}

/// Serves one request.
///
/// It and what it calls borrow the request, and box what they rarely wait for: a future carries all that it may need, and
/// this one is made, moved and dropped with every request.
pub(super) async fn serve(guarded: &Guarded, arrival: &mut Arrival) -> Response {
    let Guarded {
        context,
        endpoint,
        operation,
        ..
    } = guarded;
    let started = context.clock.ticks();
    let request_id = RequestId::of(&arrival.headers, &context.entropy);
    let peer = arrival.on_behalf.as_ref().map(|by| by.peer);
    let peer = peer.unwrap_or_else(|| {
        context
            .settings
            .transport
            .peer(arrival.socket, &arrival.headers)
    });
    let mut trail = Trail::default();

    let outcome = in_time(pin!(
        AssertUnwindSafe(admit(
            guarded,
            arrival,
            peer,
            started,
            &request_id,
            &mut trail
        ))
        .catch_unwind()
    ))
    .await;
    let mut response =
        outcome.unwrap_or_else(|error| guarded.refuse(error, arrival, request_id.as_str()));

    if let Some(recorder) = trail.recorder.take()
        && let Err(error) =
            Box::pin(recorder.finish(&context.db, response.status().as_u16(), context.clock.now()))
                .await
    {
        tracing::error!(request_id = request_id.as_str(), operation = endpoint.id, %error, "the audit log was not written");
    }

    // Failed before it could be counted: the address pays, and the headers are there all the same.
    let (policy, quotas) = if let Some(standing) = trail.standing.take() {
        standing
    } else {
        Box::pin(charge(context, peer, *operation, started)).await
    };
    let headers = StandardHeaders {
        policy: &policy,
        quotas: &quotas,
        limited: trail.refused,
        user: trail.user,
        request_id: &request_id,
    };
    headers.write(response.headers_mut());
    if let Some(accepted) = trail
        .accepted
        .and_then(|accepted| HeaderValue::try_from(accepted.to_string()).ok())
    {
        response.headers_mut().insert(ACCEPTED, accepted);
    }
    let took_millis = context.clock.ticks() - started;
    if let Some(project) = trail.project.take().filter(|_| arrival.on_behalf.is_none()) {
        let answered = AnsweredRequest {
            at: context.clock.now(),
            project,
            operation: endpoint.id,
            method: arrival.method.clone(),
            uri: arrival.uri.clone(),
            client: peer.address,
            user: trail.user,
            user_agent: arrival.headers.get(header::USER_AGENT).cloned(),
            status: response.status(),
            took_millis,
        };
        if !context.request_log.add(answered) {
            context.metrics.unlogged();
        }
    }
    context
        .metrics
        .observe(*operation, response.status(), took_millis);
    response
}

/// Lets it run as long as an operation may. That it panics is an error like others.
async fn in_time<F: Future<Output = std::thread::Result<Result<Response, Error>>>>(
    mut run: Pin<&mut F>,
) -> Result<Response, Error> {
    // Most need no timer: they never wait.
    let outcome = match poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx))).await {
        Poll::Ready(outcome) => Ok(outcome),
        Poll::Pending => Box::pin(tokio::time::timeout(TIMEOUT, run)).await,
    };
    match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => Err(Error::TimedOut(TIMEOUT)),
    }
}

/// Counts a request of which no more is known than where it came from.
async fn charge(
    context: &PlatformContext,
    peer: Peer,
    operation: u16,
    now: Ticks,
) -> (Policy, Quotas) {
    let policy = context.limits.policy(operation, PolicyContext::default());
    let key = CounterKey {
        identifier: Identifier::address(peer.address),
        scope: CounterScope::User,
        operation,
    };
    let verdict = context.limits.take(key, policy.windows(), now).await;
    (policy, verdict.quotas)
}

/// Refuses a request with two credentials (RFC 9110, 11.6.2) or two hosts (RFC 9112, 3.2): a proxy and this server could each
/// believe another one.
fn require_single_fields(endpoint: &Endpoint, headers: &HeaderMap) -> Result<(), Error> {
    const TWICE: &str = "was sent more than once; send one field with one credential";
    let repeated = |name| headers.get_all(name).iter().nth(1).is_some();
    if repeated(header::HOST) {
        return Err(Error::invalid(
            "Host",
            "was sent more than once; send one field",
        ));
    }
    if !repeated(header::AUTHORIZATION) {
        return Ok(());
    }
    // Clients of the protocol read the error's name from a member of its own (RFC 6749, 5.2).
    if endpoint.access == Access::Public && endpoint.path.contains("/oauth/") {
        return Err(oauth_error(
            "invalid_request",
            format!("Authorization: {TWICE}"),
        ));
    }
    Err(Error::invalid("Authorization", TWICE))
}

async fn admit(
    guarded: &Guarded,
    arrival: &mut Arrival,
    peer: Peer,
    started: Ticks,
    request_id: &RequestId,
    trail: &mut Trail,
) -> Result<Response, Error> {
    let Guarded {
        context,
        endpoint,
        operation,
        handle,
        effect,
        ..
    } = guarded;
    Transport::require_secure(peer)?;
    require_single_fields(endpoint, &arrival.headers)?;
    let caller = match &arrival.on_behalf {
        Some(by) => Caller::User(by.user.clone()),
        None => identify(guarded, &arrival.headers, peer, started).await?,
    };
    trail.user = caller.user().map(|user| user.gotrue_id);

    let named = named(guarded, arrival, &caller).await;
    // A body over its bound is counted like any other request, and refused after.
    let (named, unreadable) =
        named.map_or_else(|error| (Named::Account, Some(error)), |named| (named, None));
    // A body may have taken its time.
    let now = if matches!(arrival.payload, Payload::Read(_)) {
        context.clock.ticks()
    } else {
        started
    };
    let (subject, standing) = count(guarded, &caller, named, now, trail).await?;
    // Nobody's body, and a stranger's, is not worth reading.
    let looked_into = if caller.user().is_some() && standing != CallerRelation::NotMember {
        look_into(endpoint, arrival).await
    } else {
        Ok(())
    };
    let query = arrival.uri.query().unwrap_or_default();
    let unreadable = unreadable
        .or(looked_into.err())
        .or(nul::check_query(query).err());
    let asked = RequestView {
        query: arrival.uri.query().unwrap_or_default(),
        body: arrival.payload.seen(),
    };
    if let Some(user) = caller
        .user()
        .filter(|_| may_change(endpoint, *effect, &asked))
    {
        let recorder = Recorder::new(
            user,
            &subject,
            peer.address,
            request_id.as_str(),
            endpoint.id,
        );
        trail.recorder = Some(Arc::new(recorder));
    }
    decide(&caller, &endpoint.access, &asked, standing).inspect_err(|error| {
        let refused = matches!(
            error,
            Error::Forbidden(Denial::Role | Denial::Permissions(_))
        );
        trail.accepted = refused.then(|| endpoint.access.required(&asked));
    })?;
    if let Some(error) = unreadable {
        return Err(error);
    }
    if let Some(user) = caller.user().filter(|_| endpoint.access != Access::Public) {
        context
            .directory
            .note_call(user, *operation, endpoint.access.case_number(&asked));
    }
    if let Some(recorder) = trail
        .recorder
        .as_ref()
        .filter(|_| *effect == Effect::ChangesElsewhere)
    {
        Box::pin(recorder.announce(&context.db, context.clock.now())).await?;
    }
    let (caller, subject, recorder, request_id) = (
        &caller,
        &subject,
        trail.recorder.as_ref(),
        request_id.as_str(),
    );
    handle(Call {
        context,
        state: &*guarded.state,
        arrival,
        peer,
        caller,
        subject,
        standing,
        recorder,
        endpoint,
        request_id,
    })
    .await
}

/// Whether the request is one for the audit log: as the operation says, else if it is neither a GET nor permitted by permissions
/// that only let see.
fn may_change(endpoint: &Endpoint, effect: Effect, asked: &RequestView<'_>) -> bool {
    match effect {
        Effect::Changes => return true,
        Effect::Sees => return false,
        Effect::Usual | Effect::ChangesElsewhere => {}
    }
    if matches!(endpoint.method, Verb::Get | Verb::Head) || endpoint.access == Access::Public {
        return false;
    }
    let required = endpoint.access.required(asked);
    let sees = !required.0.is_empty()
        && required
            .0
            .iter()
            .all(|group| group.iter().all(|permission| permission.only_reads()));
    !sees
}

/// Who sent the request. A credential that does not hold leaves nobody, who is counted by address.
async fn identify(
    guarded: &Guarded,
    headers: &HeaderMap,
    peer: Peer,
    now: Ticks,
) -> Result<Caller, Error> {
    let Guarded { context, face, .. } = guarded;
    let nobody = |credential| Caller::Anonymous {
        address: peer.address,
        credential,
    };
    let user = match (face.presented)(headers, peer) {
        Err(credential) => return Ok(nobody(credential)),
        Ok(PresentedCredential::Token(digest)) => {
            context
                .directory
                .token_user(&digest, peer.address, now)
                .await?
        }
        Ok(PresentedCredential::OauthToken(digest)) => {
            context.directory.oauth_user(&digest, now).await?
        }
        Ok(PresentedCredential::Session(digest)) => {
            Box::pin(sessions::user(&context.db, &digest, context.clock.now()))
                .await?
                .map(Arc::new)
        }
    };
    Ok(user.map_or_else(|| nobody(CredentialProblem::Unknown), Caller::User))
}

/// Reads the body if what the request needs depends on it. One that cannot be read counts as empty, and is refused after
/// the decision.
async fn look_into(endpoint: &Endpoint, arrival: &mut Arrival) -> Result<(), Error> {
    if endpoint.access.cases().is_empty() || !endpoint.method.has_body() {
        return Ok(());
    }
    Box::pin(arrival.payload.read()).await.map(drop)
}

/// What the request names. The one operation whose body says is asked for the body, unless nobody asks: it is not worth
/// reading.
async fn named(guarded: &Guarded, arrival: &mut Arrival, caller: &Caller) -> Result<Named, Error> {
    match guarded.endpoint.limit.key {
        LimitKey::OrganizationInBody { fields } if caller.user().is_some() => Ok(Named::in_body(
            fields,
            &Box::pin(arrival.payload.read()).await?,
        )),
        _ => Ok(Named::in_line(
            guarded.names,
            arrival.uri.path(),
            arrival.uri.query().unwrap_or_default(),
        )),
    }
}

/// Finds where the caller stands, and counts the request.
///
/// A name that is not cached is looked up first, and the request charged afterwards: to the caller's own project or
/// organization, or to one counter for all names that are not the caller's. Look-ups of such names have a bound for each
/// identifier. So no request can make counters or queries without end, and a counter does not tell what exists.
async fn count(
    guarded: &Guarded,
    caller: &Caller,
    named: Named,
    now: Ticks,
    trail: &mut Trail,
) -> Result<(Subject, CallerRelation), Error> {
    let context = &guarded.context;
    let mut meter = Meter {
        guarded,
        caller,
        now,
        trail,
    };
    if matches!(named, Named::Account) {
        meter.take_own(&Subject::Account).await?;
        return Ok((Subject::Account, CallerRelation::Account));
    }
    let own = caller.user().zip(named.reference());
    if let Some((subject, held)) = own
        .as_ref()
        .and_then(|(user, reference)| context.directory.resolve_cached(user, reference, now))
    {
        meter.take_own(&subject).await?;
        return Ok((subject, CallerRelation::Member(held)));
    }
    Box::pin(meter.look_up(own)).await
}

/// Counts one request, at one moment.
struct Meter<'a> {
    guarded: &'a Guarded,
    caller: &'a Caller,
    now: Ticks,
    trail: &'a mut Trail,
}

impl Meter<'_> {
    /// For a name that is not cached as the caller's.
    async fn look_up(
        &mut self,
        own: Option<(&User, ResourceName)>,
    ) -> Result<(Subject, CallerRelation), Error> {
        let found = match &own {
            Some((user, reference)) => self.find(user, reference).await?,
            // Without a caller, or for a text that cannot be a name, there is nothing to look up.
            None => None,
        };
        let Some((subject, held)) = found else {
            self.take(CounterScope::Unresolved, PolicyContext::default())
                .await?;
            return Ok((Subject::Account, CallerRelation::NotMember));
        };
        self.take_own(&subject).await?;
        Ok((subject, CallerRelation::Member(held)))
    }

    /// Resolves a name to a project or organization of the caller: from the cache, or by a query within the bound on look-ups.
    async fn find(
        &mut self,
        user: &User,
        reference: &ResourceName,
    ) -> Result<Option<(Subject, EffectiveRoles)>, Error> {
        let directory = &self.guarded.context.directory;
        if directory.is_hidden(user, reference, self.now) {
            return Ok(None);
        }
        let _turn = directory.lookup_lock(user, reference).await;
        // Another request may have looked it up meanwhile.
        let known = directory.resolve_cached(user, reference, self.now);
        if known.is_some() || directory.is_hidden(user, reference, self.now) {
            return Ok(known);
        }
        let (limits, identifier) = (&self.guarded.context.limits, user.identifier());
        if let Err((policy, quotas)) = limits.take_look_up(identifier, self.now) {
            self.trail.standing = Some((policy, quotas));
            self.trail.refused = true;
            return Err(Error::TooManyLookUps);
        }
        let found = directory.resolve(user, reference).await?;
        // A resource of the caller is counted under its own key, and its look-up is given back.
        if found.is_some() {
            limits.give_back_look_up(identifier, self.now);
        }
        Ok(found)
    }

    /// Takes from the counter of something the caller belongs to, unless the operation is not counted.
    fn take_own(&mut self, subject: &Subject) -> impl Future<Output = Result<(), Error>> {
        if let Subject::Project(project) = subject {
            self.trail.project = Some(project.reference.clone());
        }
        let (scope, organization) = match subject {
            Subject::Account => (CounterScope::User, None),
            Subject::Organization(organization) => (
                CounterScope::Organization(organization.id),
                Some(organization.id),
            ),
            Subject::Project(project) => (
                CounterScope::Project(project.id),
                Some(project.organization),
            ),
        };
        let application = self
            .caller
            .user()
            .and_then(|user| user.approval.as_ref())
            .map(|approval| approval.client_id);
        let place = PolicyContext {
            organization,
            application,
        };
        let counted =
            self.guarded.endpoint.limit.key != LimitKey::Uncounted || self.caller.user().is_none();
        if !counted {
            let policy = self
                .guarded
                .context
                .limits
                .policy(self.guarded.operation, place);
            let whole = Quotas::whole(policy.windows());
            self.trail.standing = Some((policy, whole));
        }
        let taking = OptionFuture::from(counted.then(|| self.take(scope, place)));
        taking.map(|taken| taken.unwrap_or(Ok(())))
    }

    fn take(
        &mut self,
        scope: CounterScope,
        place: PolicyContext,
    ) -> impl Future<Output = Result<(), Error>> {
        let Self {
            guarded: Guarded {
                context, operation, ..
            },
            caller,
            now,
            trail,
        } = self;
        let identifier = match caller {
            Caller::User(user) => user.identifier(),
            Caller::Anonymous { address, .. } => Identifier::address(*address),
        };
        let (key, policy) = (
            CounterKey {
                identifier,
                scope,
                operation: *operation,
            },
            context.limits.policy(*operation, place),
        );
        async move {
            let verdict = context.limits.take(key, policy.windows(), *now).await;
            trail.standing = Some((policy, verdict.quotas));
            trail.refused = !verdict.admitted;
            if verdict.admitted {
                Ok(())
            } else {
                Err(Error::LimitReached)
            }
        }
    }
}

/// Name and secret of HTTP Basic as an OAuth client sends them: each form-encoded.
pub(super) fn basic(headers: &HeaderMap) -> Basic {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let Some(line) = lines.next() else {
        return Basic::Absent;
    };
    let read = || {
        let (scheme, encoded) = line.to_str().ok()?.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Basic::Bearer);
        }
        let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
        let (name, secret) = text
            .split_once(':')
            .filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        Some(Basic::Said {
            name: decoded(name),
            secret: decoded(secret).into(),
        })
    };
    if lines.next().is_some() {
        Basic::Unreadable
    } else {
        read().unwrap_or(Basic::Unreadable)
    }
}

/// A form with one field that has no value is that text, decoded.
fn decoded(text: &str) -> String {
    form_urlencoded::parse(text.as_bytes())
        .next()
        .map(|(text, _)| text.into_owned())
        .unwrap_or_default()
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    Error::internal(
        "running a handler that panicked",
        text.unwrap_or_else(|| "a panic without a message".into()),
    )
}
