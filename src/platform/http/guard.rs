//! The guard around every handler: authenticates the caller, resolves the target, takes from the
//! rate limits, authorizes, runs the handler, and adds the standard headers to every response.

use std::{
    future::{Future, poll_fn},
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use gantry_base::{clock::Ticks, ids::ProjectRef};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use uuid::Uuid;

use super::{
    body::Response,
    client_kind::{ClientKind, DelegatedCaller, RejectedRequest},
    endpoint::{AuditRule, Endpoint, Handle, MountedHandler, Verb},
    input::Call,
    null_bytes,
    rate_limit_step::RateLimitStep,
    request_body::RequestBody,
    request_target::{RequestTarget, TargetLocation},
    respond,
    router::Api,
    standard_headers::{RequestId, StandardHeaders},
    transport::{Peer, Transport},
};
use crate::platform::{
    access::{
        Access, AnyOf, Caller, CallerRelation, RequestView, Subject,
        credential::{self, PresentedCredential},
        decide, sessions,
    },
    audit::Recorder,
    context::PlatformContext,
    error::{CredentialProblem, Denial, Error, oauth_error},
    http::router::State,
    rate_limits::{CounterKey, CounterScope, Identifier, LimitKey, Policy, PolicyContext, Quotas},
    telemetry::AnsweredRequest,
};

/// Path of the protected resource metadata, which names the authorization server (RFC 9728 §3).
pub const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource";
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

/// An endpoint with everything that serving it needs.
pub(super) struct GuardedEndpoint {
    pub(super) context: PlatformContext,
    state: State,
    pub(super) endpoint: &'static Endpoint,
    /// Index of the operation in rate limits and metrics.
    pub(super) operation: u16,
    target_location: TargetLocation,
    handle: Handle,
    audit_rule: AuditRule,
    client_kind: &'static ClientKind,
}

impl GuardedEndpoint {
    pub(super) fn new(
        context: PlatformContext,
        state: State,
        endpoint: &'static Endpoint,
        operation: u16,
        client_kind: &'static ClientKind,
    ) -> Self {
        let MountedHandler {
            handle, audit_rule, ..
        } = (endpoint.handler)();
        Self {
            context,
            state,
            endpoint,
            operation,
            target_location: TargetLocation::of(endpoint),
            handle,
            audit_rule,
            client_kind,
        }
    }

    /// Whether its handler may call other operations.
    pub(super) fn calls_operations(&self) -> bool {
        self.client_kind.calls_operations
    }

    /// Returns the challenge of a 401, or of a 403 for a missing OAuth scope (RFC 6750 §3). It has
    /// the URL of the metadata (RFC 9728 §5.1) if a public URL is configured. Returns `None` for
    /// any other error.
    fn challenge(&self, error: &Error) -> Option<String> {
        let reason = match error {
            Error::Unauthenticated(CredentialProblem::Missing) | Error::SmtpRequired { .. } => None,
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
        let parameters: Vec<_> = [reason, metadata, scope].into_iter().flatten().collect();
        Some(
            ["Bearer ", &parameters.join(", ")]
                .concat()
                .trim_end()
                .to_owned(),
        )
    }

    fn reject(&self, error: Error, request: &IncomingRequest, request_id: &str) -> Response {
        if request.on_behalf.is_some() {
            return respond::internal(error);
        }
        let IncomingRequest { method, uri, .. } = request;
        let challenge = self.challenge(&error);
        (self.client_kind.error_response)(
            &error,
            &RejectedRequest {
                method,
                uri,
                request_id,
                operation: self.endpoint.id,
                challenge: challenge.as_deref(),
            },
        )
    }
}

/// A request as received.
pub(super) struct IncomingRequest {
    /// Address of the peer of the connection.
    pub(super) socket: IpAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: RequestBody,
    /// The caller, if another operation sends the request.
    pub(super) on_behalf: Option<DelegatedCaller>,
    /// The API, for handlers that call other operations.
    pub(super) internal_api: Option<Api>,
}

/// Facts that the steps of a request collect for its headers, its log line and the audit log.
#[derive(Default)]
pub(super) struct RequestOutcome {
    /// The state of the rate limit that counted the request.
    pub(super) quota: Option<(Policy, Quotas)>,
    /// Whether the rate limit rejected the request.
    pub(super) limited: bool,
    user: Option<Uuid>,
    /// The target, if it is a project of the caller.
    pub(super) project: Option<ProjectRef>,
    /// The sufficient permissions, if the caller has none of them.
    accepted: Option<AnyOf>,
    /// Recorder for the audit log, if the request may change something.
    recorder: Option<Arc<Recorder>>,
}

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
    let peer = request.on_behalf.as_ref().map(|caller| caller.peer);
    let peer = peer.unwrap_or_else(|| {
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
    let (subject, standing) = count(guarded, &caller, target, now, outcome).await?;
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
        .filter(|_| may_change(endpoint, *audit_rule, &asked))
    {
        let recorder = Recorder::new(
            user,
            &subject,
            peer.address,
            request_id.as_str(),
            endpoint.id,
        );
        outcome.recorder = Some(Arc::new(recorder));
    }
    decide(&caller, &endpoint.access, &asked, standing).inspect_err(|error| {
        let lacks_permission = matches!(
            error,
            Error::Forbidden(Denial::Role | Denial::Permissions(_))
        );
        outcome.accepted = lacks_permission.then(|| endpoint.access.required(&asked));
    })?;
    if let Some(error) = invalid {
        return Err(error);
    }
    if let Some(user) = caller.user().filter(|_| endpoint.access != Access::Public) {
        context
            .directory
            .note_call(user, *operation, endpoint.access.case_number(&asked));
    }
    if let Some(recorder) = outcome
        .recorder
        .as_ref()
        .filter(|_| *audit_rule == AuditRule::AuditedBefore)
    {
        Box::pin(recorder.announce(&context.db, context.clock.now())).await?;
    }
    handle(Call {
        context,
        state: &*guarded.state,
        request,
        peer,
        caller: &caller,
        subject: &subject,
        standing,
        recorder: outcome.recorder.as_ref(),
        endpoint,
        request_id: request_id.as_str(),
    })
    .await
}

/// Whether the request belongs in the audit log: by the rule of the operation, else if its method
/// is neither GET nor HEAD and a permission that it requires allows changes.
fn may_change(endpoint: &Endpoint, audit_rule: AuditRule, asked: &RequestView<'_>) -> bool {
    match audit_rule {
        AuditRule::Mutates => return true,
        AuditRule::ReadOnly => return false,
        AuditRule::ByMethod | AuditRule::AuditedBefore => {}
    }
    if matches!(endpoint.method, Verb::Get | Verb::Head) || endpoint.access == Access::Public {
        return false;
    }
    let required = endpoint.access.required(asked);
    let only_reads = !required.0.is_empty()
        && required
            .0
            .iter()
            .all(|group| group.iter().all(|permission| permission.only_reads()));
    !only_reads
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

/// Resolves the target and the caller's relation to it, and takes from the rate limit.
///
/// A name that is not cached is looked up first. The request is then counted for the caller's own
/// project or organization, or in one shared counter for all names that are not the caller's.
/// Lookups of such names are limited per identifier. So requests cannot create unbounded counters
/// or queries, and a counter does not reveal which names exist.
async fn count(
    guarded: &GuardedEndpoint,
    caller: &Caller,
    target: RequestTarget,
    now: Ticks,
    outcome: &mut RequestOutcome,
) -> Result<(Subject, CallerRelation), Error> {
    let context = &guarded.context;
    let mut step = RateLimitStep {
        guarded,
        caller,
        now,
        outcome,
    };
    if matches!(target, RequestTarget::Account) {
        step.take_own(&Subject::Account).await?;
        return Ok((Subject::Account, CallerRelation::Account));
    }
    let own = caller.user().zip(target.reference());
    if let Some((subject, held)) = own
        .as_ref()
        .and_then(|(user, reference)| context.directory.resolve_cached(user, reference, now))
    {
        step.take_own(&subject).await?;
        return Ok((subject, CallerRelation::Member(held)));
    }
    Box::pin(step.look_up(own)).await
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
