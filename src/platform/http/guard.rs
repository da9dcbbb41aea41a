//! The guard around every handler: authenticates the caller, resolves the target, takes from the
//! rate limits, authorizes, runs the handler, and adds the standard headers to every response.

use std::{
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use gantry_base::clock::Ticks;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};

use super::{
    approval_step::ApprovalStep,
    body::Response,
    call::{Call, IncomingRequest},
    client_kind::ClientKind,
    dry_run,
    endpoint::{AuditRule, Endpoint},
    forwarding::{ForwardError, RequestForwarder},
    guarded_endpoint::{GuardedEndpoint, RequestOutcome},
    idempotency_step::{self, Entry, KeyStep},
    null_bytes,
    rate_limit_step::RateLimitStep,
    request_body::RequestBody,
    request_target::RequestTarget,
    respond,
    standard_headers::{REQUEST_ID, RequestId, StandardHeaders},
    transport::{Peer, Transport},
};
use crate::platform::{
    access::{
        Access, Caller, CallerRelation, EffectiveRoles, Project, RequestView, Subject,
        credential::{self, PresentedCredential},
        decide, sessions,
    },
    audit::Recorder,
    context::PlatformContext,
    error::{CredentialProblem, Denial, Error, oauth_error},
    rate_limits::{CounterKey, CounterScope, Identifier, LimitKey, Policy, PolicyContext, Quotas},
    telemetry::AnsweredRequest,
};

/// The time limit of every operation. Operations with a limit of their own stay below it.
const TIMEOUT: Duration = Duration::from_mins(2);

const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-permissions");

/// Programs: a bearer token, and JSON responses.
pub(super) static PROGRAMS: ClientKind = ClientKind {
    read_credential: |headers, _| {
        credential::parse_authorization(
            headers
                .get(header::AUTHORIZATION)
                .map(HeaderValue::as_bytes),
        )
    },
    error_response: respond::error,
    calls_operations: false,
};

/// Serves one request.
///
/// Borrows the request, and boxes the futures of rare steps: this future is created, moved and
/// dropped with every request, so its size counts.
pub(super) async fn serve(guarded: &GuardedEndpoint, request: &mut IncomingRequest) -> Response {
    let GuardedEndpoint {
        context,
        endpoint,
        operation,
        ..
    } = guarded;
    let started = context.clock.ticks();
    let request_id = RequestId::of(&request.headers, &context.entropy);
    let delegated = request.on_behalf.as_ref().map(|caller| caller.peer);
    let peer = delegated.or(request.forwarded).unwrap_or_else(|| {
        context
            .settings
            .transport
            .peer(request.socket, &request.headers)
    });
    let mut outcome = RequestOutcome::default();

    let result = run_with_timeout(pin!(
        AssertUnwindSafe(admit(
            guarded,
            request,
            peer,
            started,
            &request_id,
            &mut outcome
        ))
        .catch_unwind()
    ))
    .await;
    let mut response =
        result.unwrap_or_else(|error| guarded.reject(error, request, request_id.as_str()));

    if let Some(recorder) = outcome.recorder.take()
        && let Err(error) =
            Box::pin(recorder.finish(&context.db, response.status().as_u16(), context.clock.now()))
                .await
    {
        tracing::error!(request_id = request_id.as_str(), operation = endpoint.id, %error, "audit log entry could not be written");
    }

    if outcome.is_forwarded {
        let took_millis = context.clock.ticks() - started;
        let metrics = &context.metrics;
        metrics.observe(*operation, response.status(), took_millis);
        return response;
    }

    // A request that failed before the rate limit is counted by address.
    let (policy, quotas) = if let Some(quota) = outcome.quota.take() {
        quota
    } else {
        Box::pin(count_by_address(context, peer, *operation, started)).await
    };
    let headers = StandardHeaders {
        policy: &policy,
        quotas: &quotas,
        limited: outcome.limited,
        user: outcome.user,
        request_id: &request_id,
    };
    headers.write(response.headers_mut());
    if let Some(accepted) = outcome
        .accepted
        .and_then(|accepted| HeaderValue::try_from(accepted.to_string()).ok())
    {
        response.headers_mut().insert(ACCEPTED, accepted);
    }
    let took_millis = context.clock.ticks() - started;
    if let Some(project) = outcome
        .project
        .take()
        .filter(|_| request.on_behalf.is_none())
    {
        let answered = AnsweredRequest {
            at: context.clock.now(),
            project,
            operation: endpoint.id,
            method: request.method.clone(),
            uri: request.uri.clone(),
            client: peer.address,
            user: outcome.user,
            user_agent: request.headers.get(header::USER_AGENT).cloned(),
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

/// Runs a request up to [`TIMEOUT`]. A panic becomes an internal error.
async fn run_with_timeout<F: Future<Output = std::thread::Result<Result<Response, Error>>>>(
    mut run: Pin<&mut F>,
) -> Result<Response, Error> {
    // Most requests complete in the first poll and need no timer.
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

/// Counts a request without a known caller.
async fn count_by_address(
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

/// Rejects a request with two `Authorization` (RFC 9110 §11.6.2) or two `Host` fields (RFC 9112
/// §3.2): a proxy and this server could each use a different one.
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
    // OAuth clients expect the error code in `error` (RFC 6749 §5.2).
    if endpoint.access == Access::Public && endpoint.path.contains("/oauth/") {
        return Err(oauth_error(
            "invalid_request",
            format!("Authorization: {TWICE}"),
        ));
    }
    Err(Error::invalid("Authorization", TWICE))
}

async fn admit(
    guarded: &GuardedEndpoint,
    request: &mut IncomingRequest,
    peer: Peer,
    started: Ticks,
    request_id: &RequestId,
    outcome: &mut RequestOutcome,
) -> Result<Response, Error> {
    let GuardedEndpoint {
        context,
        endpoint,
        operation,
        handle,
        audit_rule,
        ..
    } = guarded;
    Transport::require_secure(peer)?;
    require_single_fields(endpoint, &request.headers)?;
    let caller = match &request.on_behalf {
        Some(caller) => Caller::User(caller.user.clone()),
        None => identify(guarded, &request.headers, peer, started).await?,
    };
    outcome.user = caller.user().map(|user| user.gotrue_id);

    // A request with an unreadable body is counted first and rejected afterwards.
    let mut invalid = None;
    let target = match read_target(guarded, request, &caller).await {
        Ok(target) => target,
        Err(error) => {
            invalid = Some(error);
            RequestTarget::Account
        }
    };
    // Reading the body may have taken long.
    let now = if matches!(request.body, RequestBody::Read(_)) {
        context.clock.ticks()
    } else {
        started
    };
    let mut step = RateLimitStep {
        guarded,
        caller: &caller,
        now,
        outcome,
    };
    let resolved = resolve(&mut step, target).await?;
    if let Some(forwarder) = context.forwarder()
        && let ResolvedTarget::Own(Subject::Project(project), _) = &resolved
        && let Some(response) =
            Box::pin(forward(forwarder, project, request, peer, request_id)).await?
    {
        outcome.is_forwarded = true;
        return Ok(response);
    }
    let (subject, standing) = count(&mut step, resolved).await?;
    // The body of an unauthenticated or unrelated caller is not read.
    if caller.user().is_some()
        && standing != CallerRelation::NotMember
        && let Err(error) = read_body_for_decision(endpoint, request).await
    {
        invalid = invalid.or(Some(error));
    }
    let query = request.uri.query().unwrap_or_default();
    if invalid.is_none() {
        invalid = null_bytes::check_query(query).err();
    }
    let asked = RequestView {
        query: request.uri.query().unwrap_or_default(),
        body: request.body.as_read(),
    };
    if let Some(user) = caller
        .user()
        .filter(|_| endpoint.may_change(*audit_rule, &asked))
    {
        let delegated = request.on_behalf.as_ref();
        let client = delegated.and_then(|delegated| delegated.client.clone());
        let recorder = Recorder::new(
            user,
            &subject,
            (peer.address, request_id.as_str(), endpoint.id),
            &context.entropy,
        );
        let recorder = recorder.with_client(client);
        dry_run::begin(guarded, &asked, &recorder);
        outcome.recorder = Some(Arc::new(recorder));
    }
    if let Err(error) = decide(&caller, &endpoint.access, &asked, standing) {
        let lacks_permission = matches!(
            error,
            Error::Forbidden(Denial::Role | Denial::Permissions(_))
        );
        outcome.accepted = lacks_permission.then(|| endpoint.access.required(&asked));
        if matches!(error, Error::NotFound)
            && let Some(step) = KeyStep::of(guarded, request, &caller, outcome, request_id)
            && let Some(response) = Box::pin(step.replay_of_removed()).await?
        {
            return Ok(response);
        }
        return Err(error);
    }
    if let Some(error) = invalid {
        return Err(error);
    }
    dry_run::require_support(guarded, outcome)?;
    if let Some(user) = caller.user().filter(|_| endpoint.access != Access::Public) {
        context
            .directory
            .note_call(user, *operation, endpoint.access.case_number(&asked));
    }
    let mut keyed = None;
    if let Some(step) = KeyStep::of(guarded, request, &caller, outcome, request_id) {
        match Box::pin(step.enter()).await? {
            Entry::Replay(response) => return Ok(response),
            Entry::Run(request) => keyed = Some(request),
        }
    }
    let approval = match ApprovalStep::of(guarded, request, &caller, &subject, outcome) {
        Some(step) => Box::pin(step.enter()).await,
        None => Ok(None),
    };
    let result = match approval {
        Ok(_body_permit) => {
            announce(guarded, outcome).await?;
            handle(Call {
                context,
                state: &*guarded.state,
                request,
                peer,
                caller: &caller,
                subject: &subject,
                standing,
                recorder: outcome.recorder.as_ref(),
                template: endpoint.path,
                operation: endpoint.id,
                request_id: request_id.as_str(),
            })
            .await
        }
        Err(error) => Err(error),
    };
    let result = dry_run::finish(outcome.recorder.as_deref(), result);
    match keyed {
        None => result,
        Some(keyed) => Box::pin(idempotency_step::finish(guarded, &keyed, result)).await,
    }
}

/// Writes the audit log entry of an operation that is audited before it runs.
async fn announce(guarded: &GuardedEndpoint, outcome: &RequestOutcome) -> Result<(), Error> {
    let context = &guarded.context;
    match &outcome.recorder {
        Some(recorder) if guarded.audit_rule == AuditRule::AuditedBefore => {
            Box::pin(recorder.announce(&context.db, context.clock.now())).await
        }
        _ => Ok(()),
    }
}

/// Authenticates the caller. A request with an invalid credential is unauthenticated, and counted
/// by address.
async fn identify(
    guarded: &GuardedEndpoint,
    headers: &HeaderMap,
    peer: Peer,
    now: Ticks,
) -> Result<Caller, Error> {
    let GuardedEndpoint {
        context,
        client_kind,
        ..
    } = guarded;
    let unauthenticated = |credential| Caller::Anonymous {
        address: peer.address,
        credential,
    };
    let user = match (client_kind.read_credential)(headers, peer) {
        Err(credential) => return Ok(unauthenticated(credential)),
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
    Ok(user.map_or_else(|| unauthenticated(CredentialProblem::Unknown), Caller::User))
}

/// Reads the body if the required permissions depend on it. An unreadable body counts as empty, and
/// is rejected after the decision.
async fn read_body_for_decision(
    endpoint: &Endpoint,
    request: &mut IncomingRequest,
) -> Result<(), Error> {
    if endpoint.access.cases().is_empty() || !endpoint.method.has_body() {
        return Ok(());
    }
    Box::pin(request.body.read()).await.map(drop)
}

/// Reads the target of the request. The body is read only if it names the target and the caller is
/// authenticated.
async fn read_target(
    guarded: &GuardedEndpoint,
    request: &mut IncomingRequest,
    caller: &Caller,
) -> Result<RequestTarget, Error> {
    match guarded.endpoint.limit.key {
        LimitKey::OrganizationInBody { fields } if caller.user().is_some() => Ok(
            RequestTarget::in_body(fields, &Box::pin(request.body.read()).await?),
        ),
        _ => Ok(RequestTarget::in_line(
            guarded.target_location,
            request.uri.path(),
            request.uri.query().unwrap_or_default(),
        )),
    }
}

/// The target of a request, as far as the caller may know it.
enum ResolvedTarget {
    /// The caller's account.
    Account,
    /// An organization or project of the caller.
    Own(Subject, EffectiveRoles),
    /// A name that is not the caller's, or that does not exist.
    Unresolved,
}

/// Resolves the target of a request.
///
/// A name that is not cached is looked up. Lookups of names that are not the caller's are limited
/// per identifier, so requests cannot create unbounded queries.
async fn resolve(
    step: &mut RateLimitStep<'_>,
    target: RequestTarget,
) -> Result<ResolvedTarget, Error> {
    if matches!(target, RequestTarget::Account) {
        return Ok(ResolvedTarget::Account);
    }
    let caller = step.caller;
    let Some((user, name)) = caller.user().zip(target.reference()) else {
        // The caller is unauthenticated, or the target is invalid.
        return Ok(ResolvedTarget::Unresolved);
    };
    let directory = &step.guarded.context.directory;
    let found = match directory.resolve_cached(user, &name, step.now) {
        Some(found) => Some(found),
        None => Box::pin(step.find(user, &name)).await?,
    };
    Ok(
        found.map_or(ResolvedTarget::Unresolved, |(subject, roles)| {
            ResolvedTarget::Own(subject, roles)
        }),
    )
}

/// Takes from the rate limit: for the caller's account, project or organization, or in one shared
/// counter for all names that are not the caller's. So requests cannot create unbounded counters,
/// and a counter does not reveal which names exist.
async fn count(
    step: &mut RateLimitStep<'_>,
    target: ResolvedTarget,
) -> Result<(Subject, CallerRelation), Error> {
    match target {
        ResolvedTarget::Account => {
            step.take_own(&Subject::Account).await?;
            Ok((Subject::Account, CallerRelation::Account))
        }
        ResolvedTarget::Own(subject, roles) => {
            step.take_own(&subject).await?;
            Ok((subject, CallerRelation::Member(roles)))
        }
        ResolvedTarget::Unresolved => {
            step.take(CounterScope::Unresolved, PolicyContext::default())
                .await?;
            Ok((Subject::Account, CallerRelation::NotMember))
        }
    }
}

/// Passes a request on to the server that holds its project. Returns `None` if this server is to
/// answer: it holds the project, or the other server cannot be reached.
async fn forward(
    forwarder: &dyn RequestForwarder,
    project: &Project,
    request: &mut IncomingRequest,
    peer: Peer,
    request_id: &RequestId,
) -> Result<Option<Response>, Error> {
    // A request is passed on once. One of another operation runs where that runs.
    if request.forwarded.is_some() || request.on_behalf.is_some() {
        return Ok(None);
    }
    let Some(server) = forwarder.server_of(project).await else {
        return Ok(None);
    };
    let mut forwarded = Request::new(std::mem::take(&mut request.body).into_body());
    request.method.clone_into(forwarded.method_mut());
    request.uri.clone_into(forwarded.uri_mut());
    request.headers.clone_into(forwarded.headers_mut());
    let id = HeaderValue::try_from(request_id.as_str());
    let id = id.map(|id| (REQUEST_ID, id));
    forwarded.headers_mut().extend(id);
    match server.send(forwarded, peer).await {
        Ok(response) => Ok(Some(response)),
        Err(ForwardError::Unsent(body)) => {
            request.body = RequestBody::Pending(body);
            Ok(None)
        }
        Err(ForwardError::Failed(error)) => Err(error),
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    Error::internal(
        "running a handler that panicked",
        text.unwrap_or_else(|| "the panic has no message".into()),
    )
}
