//! An endpoint with everything that serving it needs, and the facts that the steps of a request
//! collect.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

use gantry_base::ids::ProjectRef;
use http::StatusCode;
use schemars::SchemaGenerator;
use uuid::Uuid;

use super::{
    body::Response,
    call::IncomingRequest,
    client_kind::{ClientKind, RejectedRequest},
    endpoint::{AuditRule, Destructive, DryRuns, Endpoint, Handle, MountedHandler},
    operation_doc::OperationDoc,
    request_target::TargetLocation,
    respond,
};
use crate::platform::{
    access::{Access, AnyOf},
    audit::Recorder,
    context::PlatformContext,
    error::{CredentialProblem, Denial, Error},
    idempotency::Idempotency,
    rate_limits::{Policy, Quotas},
};

/// Path of the protected resource metadata, which names the authorization server (RFC 9728 §3).
pub const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource";

/// State of the wing that declares the operations. Handlers access it by its type.
pub(super) type State = Arc<dyn Any + Send + Sync>;

/// An endpoint with everything that serving it needs.
pub(super) struct GuardedEndpoint {
    pub(super) context: PlatformContext,
    pub(super) state: State,
    pub(super) endpoint: &'static Endpoint,
    /// Index of the operation in rate limits and metrics.
    pub(super) operation: u16,
    pub(super) target_location: TargetLocation,
    pub(super) handle: Handle,
    pub(super) audit_rule: AuditRule,
    pub(super) client_kind: &'static ClientKind,
    /// Whether the handler calls other operations.
    handler_calls_operations: bool,
    /// The requests that need an approval in a protected project.
    pub(super) destructive: Destructive,
    /// The treatment of dry runs.
    pub(super) dry_runs: DryRuns,
    /// Whether the operation is implemented.
    pub(super) is_built: bool,
    /// The treatment of keys.
    pub(super) idempotency: Idempotency,
    /// Facts that requests with keys need, computed for the first of them.
    repeat_facts: OnceLock<RepeatFacts>,
}

/// Facts that requests with keys need.
pub(super) struct RepeatFacts {
    /// Largest body, in bytes.
    pub(super) body_bytes_max: usize,
    /// Status of the answer, if it never has a body.
    pub(super) empty: Option<StatusCode>,
}

impl GuardedEndpoint {
    pub(super) fn new(
        context: PlatformContext,
        state: State,
        endpoint: &'static Endpoint,
        operation: u16,
        client_kind: &'static ClientKind,
    ) -> Self {
        let mounted = (endpoint.handler)();
        let idempotency = endpoint.idempotency(&mounted);
        let MountedHandler {
            handle,
            audit_rule,
            calls_operations,
            destructive,
            dry_runs,
            built,
            ..
        } = mounted;
        Self {
            context,
            state,
            endpoint,
            operation,
            target_location: TargetLocation::of(endpoint),
            handle,
            audit_rule,
            client_kind,
            handler_calls_operations: calls_operations,
            destructive,
            dry_runs,
            is_built: built,
            idempotency,
            repeat_facts: OnceLock::new(),
        }
    }

    /// Returns the facts that requests with keys need.
    pub(super) fn repeat_facts(&self) -> &RepeatFacts {
        self.repeat_facts.get_or_init(|| {
            let mut described = OperationDoc::new(SchemaGenerator::default());
            ((self.endpoint.handler)().describe)(&mut described);
            RepeatFacts {
                body_bytes_max: described.body_bytes_max,
                empty: described
                    .reply
                    .and_then(|(status, schema)| schema.is_none().then_some(status)),
            }
        })
    }

    /// Whether its handler may call other operations.
    pub(super) fn calls_operations(&self) -> bool {
        self.client_kind.calls_operations || self.handler_calls_operations
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
        // The API is the resource of all operations but those that have one of their own.
        let resource = match self.endpoint.access {
            Access::Credential => self.endpoint.path,
            _ => "",
        };
        let metadata = issuer
            .map(|issuer| format!("resource_metadata=\"{issuer}{RESOURCE_METADATA}{resource}\""));
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

    pub(super) fn reject(
        &self,
        error: Error,
        request: &IncomingRequest,
        request_id: &str,
    ) -> Response {
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

/// Facts that the steps of a request collect for its headers, its log line and the audit log.
#[derive(Default)]
pub(super) struct RequestOutcome {
    /// The state of the rate limit that counted the request.
    pub(super) quota: Option<(Policy, Quotas)>,
    /// Whether the rate limit rejected the request.
    pub(super) limited: bool,
    pub(super) user: Option<Uuid>,
    /// The target, if it is a project of the caller.
    pub(super) project: Option<ProjectRef>,
    /// The sufficient permissions, if the caller has none of them.
    pub(super) accepted: Option<AnyOf>,
    /// Recorder for the audit log, if the request may change something.
    pub(super) recorder: Option<Arc<Recorder>>,
    /// Whether another server answered the request. It counted and recorded it.
    pub(super) is_forwarded: bool,
}
