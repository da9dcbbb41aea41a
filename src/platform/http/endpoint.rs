//! Declarations of operations: routing, access, rate limits, documents and tests read one value.

use std::{borrow::Cow, future::Future, pin::Pin, sync::Arc};

use super::{
    body::Response,
    call::{Call, Input},
    operation_doc::OperationDoc,
    output::Output,
};
use crate::platform::{
    access::{Access, RequestView},
    error::Error,
    idempotency::Idempotency,
    rate_limits::Limit,
};

/// One operation of the API.
pub struct Endpoint {
    /// Operation id of the contract; also the name of its rate-limit counter and its metrics.
    pub id: &'static str,
    /// One line in the reference.
    pub summary: &'static str,
    /// Group in the reference.
    pub tag: Tag,
    /// HTTP method.
    pub method: Verb,
    /// Path with `{placeholders}`, in the specification's spelling if it has one.
    pub path: &'static str,
    /// Other paths of the operation, with the same counter and permissions.
    pub aliases: &'static [&'static str],
    /// The required permissions.
    pub access: Access,
    /// The rate limit.
    pub limit: &'static Limit,
    /// Mounts the handler.
    pub handler: fn() -> MountedHandler,
}

impl Endpoint {
    /// Whether a request may change something and belongs in the audit log: by the rule of the
    /// operation, else if its method is neither GET nor HEAD and a permission that it requires
    /// allows changes.
    pub(super) fn may_change(&self, audit_rule: AuditRule, asked: &RequestView<'_>) -> bool {
        match audit_rule {
            AuditRule::Mutates => return true,
            AuditRule::ReadOnly => return false,
            AuditRule::ByMethod | AuditRule::AuditedBefore => {}
        }
        if matches!(self.method, Verb::Get | Verb::Head) || self.access == Access::Public {
            return false;
        }
        let required = self.access.required(asked);
        let only_reads = !required.0.is_empty()
            && required
                .0
                .iter()
                .all(|group| group.iter().all(|permission| permission.only_reads()));
        !only_reads
    }

    /// Returns the treatment of keys by the operation with this handler.
    pub fn idempotency(&self, mounted: &MountedHandler) -> Idempotency {
        let asked = RequestView {
            query: "",
            body: &[],
        };
        let is_public = self.access == Access::Public;
        if !mounted.built || is_public || !self.may_change(mounted.audit_rule, &asked) {
            return Idempotency::Ignored;
        }
        let by_rule = match mounted.audit_rule {
            AuditRule::AuditedBefore => Idempotency::Announced,
            _ => Idempotency::Recorded,
        };
        mounted.idempotency.unwrap_or(by_rule)
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

/// HTTP method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods of RFC 9110")]
pub enum Verb {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    /// Whether requests have a body with a meaning (RFC 9110 §9.3).
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }

    /// The method as in a request line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// Group of operations in the reference: the contract's tags, in their order of appearance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each name is the tag's title")]
pub enum Tag {
    Organizations,
    Projects,
    Database,
    Domains,
    Analytics,
    Profile,
    OAuth,
    Secrets,
    Environments,
    Advisors,
    Auth,
    Rest,
    Realtime,
    Storage,
    EdgeFunctions,
    Compute,
    Notebooks,
    Billing,
    Webhooks,
    Gantry,
}

impl Tag {
    /// Title in the reference.
    pub fn title(self) -> String {
        match self {
            Self::EdgeFunctions => "Edge Functions".into(),
            other => format!("{other:?}"),
        }
    }
}

/// The handler of an operation, with the documentation derived from its signature.
pub struct MountedHandler {
    pub(super) handle: Handle,
    pub(super) describe: fn(&mut OperationDoc),
    pub(super) audit_rule: AuditRule,
    /// The treatment of keys, if it does not follow from the rule of the audit log.
    idempotency: Option<Idempotency>,
    /// Query and body of a valid request. Variables are those of `generated/requests/`.
    pub sample: Sample,
    /// Whether the operation is implemented. Otherwise it answers 501.
    pub built: bool,
    /// One sentence on why the operation is not implemented, and what to use instead.
    pub reason: Option<&'static str>,
    /// Whether the handler calls other operations for its caller.
    pub(super) calls_operations: bool,
    /// The requests that need an approval in a protected project.
    pub destructive: Destructive,
    /// The treatment of dry runs.
    pub(super) dry_runs: DryRuns,
}

/// The treatment of dry runs by an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DryRuns {
    /// The change is rolled back where it would be committed, if it is one transaction.
    RollBack,
    /// The handler carries them out itself.
    ByHandler,
    /// They are rejected, because something outside of the control database changes before the
    /// commit.
    Rejected,
}

/// The requests of an operation that need an approval in a protected project.
#[derive(Clone, Copy)]
pub enum Destructive {
    /// No request.
    Never,
    /// Every request. The text is the effect; it completes "this request …".
    Always(&'static str),
    /// Requests for which the function returns an effect.
    If(JudgeRequest),
}

/// Returns the effect of a request if it is destructive or cannot be judged.
pub type JudgeRequest = fn(&RequestView<'_>) -> Option<Cow<'static, str>>;

/// Query and body of a valid request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// The query with its `?`; empty if the operation requires none.
    pub query: &'static str,
    /// The JSON body, if the operation takes one.
    pub body: Option<&'static str>,
}

/// The requests of an operation that the audit log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditRule {
    /// Requests with a changing method and a permission that allows changes are recorded.
    ByMethod,
    /// Every request is recorded.
    Mutates,
    /// No request is recorded.
    ReadOnly,
    /// As by method, and the entry is committed before the handler runs.
    AuditedBefore,
}

impl MountedHandler {
    /// Sets the sample body.
    #[must_use]
    pub fn sample(mut self, body: &'static str) -> Self {
        self.sample.body = Some(body);
        self
    }

    /// Sets the sample query, for operations with required parameters.
    #[must_use]
    pub fn sample_query(mut self, query: &'static str) -> Self {
        self.sample.query = query;
        self
    }

    /// Marks an operation that changes something though its permissions only read.
    #[must_use]
    pub fn mutates(self) -> Self {
        Self {
            audit_rule: AuditRule::Mutates,
            ..self
        }
    }

    /// Marks an operation that changes nothing, with any method.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            audit_rule: AuditRule::ReadOnly,
            ..self
        }
    }

    /// Marks an operation that changes state outside the control database. Its audit log entry
    /// cannot be part of the same transaction, so it is committed before the handler runs.
    #[must_use]
    pub fn audited_before(self) -> Self {
        Self {
            audit_rule: AuditRule::AuditedBefore,
            ..self
        }
    }

    /// Marks an operation that calls others for its caller. They write the audit log.
    #[must_use]
    pub fn calls_operations(self) -> Self {
        Self {
            calls_operations: true,
            audit_rule: AuditRule::ReadOnly,
            ..self
        }
    }

    /// Marks an operation that destroys data, takes a project out of service, or opens a way around
    /// its protection. In a protected project it needs an approval. `effect` completes "this
    /// request …".
    #[must_use]
    pub fn destructive(self, effect: &'static str) -> Self {
        Self {
            destructive: Destructive::Always(effect),
            ..self
        }
    }

    /// Marks an operation with requests that may be destructive.
    #[must_use]
    pub fn destructive_if(self, judge: JudgeRequest) -> Self {
        Self {
            destructive: Destructive::If(judge),
            ..self
        }
    }

    /// Marks an operation with a handler that carries out dry runs itself.
    #[must_use]
    pub fn with_own_dry_run(self) -> Self {
        Self {
            dry_runs: DryRuns::ByHandler,
            ..self
        }
    }

    /// Marks an operation that changes something outside of the control database before its change
    /// is committed, so that it cannot be tried.
    #[must_use]
    pub fn without_dry_run(self) -> Self {
        Self {
            dry_runs: DryRuns::Rejected,
            ..self
        }
    }

    /// Marks an operation with an answer that is not known before its change is committed.
    #[must_use]
    pub fn answers_after_change(self) -> Self {
        Self {
            idempotency: Some(Idempotency::Marked),
            ..self
        }
    }

    /// Marks an operation with an effect outside of the control database that its handler
    /// announces to the audit log.
    #[must_use]
    pub fn announced(self) -> Self {
        Self {
            idempotency: Some(Idempotency::Announced),
            ..self
        }
    }

    /// Marks an operation with an effect outside of the control database that has no further
    /// effect if it runs again.
    #[must_use]
    pub fn repeatable(self) -> Self {
        Self {
            idempotency: Some(Idempotency::Repeatable),
            ..self
        }
    }

    /// Marks an operation that keeps its own record of keys, together with its effect.
    #[must_use]
    pub fn keeps_own_keys(self) -> Self {
        Self {
            idempotency: Some(Idempotency::Own),
            ..self
        }
    }
}

/// A type-erased handler.
pub(super) type Handle = Arc<dyn for<'a> Fn(Call<'a>) -> Answering<'a> + Send + Sync>;

/// The future of a handler.
pub(super) type Answering<'a> = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send + 'a>>;

/// Lets the compiler infer that the future may borrow from the call.
fn handle(run: impl for<'a> Fn(Call<'a>) -> Answering<'a> + Send + Sync + 'static) -> Handle {
    Arc::new(run)
}

/// Mounts a handler: an async function of [`Input`]s that returns `Result<impl Output, Error>`.
pub fn mount<H: Handler<A>, A>(handler: H) -> MountedHandler {
    MountedHandler {
        handle: handle(move |call| handler.clone().run(call)),
        describe: H::describe,
        audit_rule: AuditRule::ByMethod,
        idempotency: None,
        sample: Sample::default(),
        built: true,
        reason: None,
        calls_operations: false,
        destructive: Destructive::Never,
        dry_runs: DryRuns::RollBack,
    }
}

/// Mounts an operation that is not implemented, for this reason: 501 with this message, after all
/// checks of the guard.
pub fn not_built(message: String, reason: &'static str) -> MountedHandler {
    MountedHandler {
        handle: handle(move |_| {
            let error = Error::NotBuilt(message.clone());
            Box::pin(async move { Err(error) })
        }),
        describe: |_| (),
        audit_rule: AuditRule::ByMethod,
        idempotency: None,
        sample: Sample::default(),
        built: false,
        reason: Some(reason),
        calls_operations: false,
        destructive: Destructive::Never,
        dry_runs: DryRuns::RollBack,
    }
}

/// An async function of [`Input`]s that returns an [`Output`].
pub trait Handler<A>: Clone + Send + Sync + 'static {
    /// Adds the arguments and the output to the document.
    fn describe(described: &mut OperationDoc);
    /// Takes the arguments from the call, in order, and calls the function.
    fn run(self, call: Call<'_>) -> Answering<'_>;
}

macro_rules! handler {
    ($($arg:ident $name:ident),*) => {
        impl<F, Fut, R, $($arg),*> Handler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<R, Error>> + Send + 'static,
            R: Output,
            $($arg: Input,)*
        {
            fn describe(described: &mut OperationDoc) {
                $($arg::describe(described);)*
                R::describe(described);
            }

            fn run(self, call: Call<'_>) -> Answering<'_> {
                Box::pin(async move {
                    let call = &mut { call };
                    $(let $name = $arg::take(call).await?;)*
                    // Keeps the call borrowed for operations without arguments.
                    let _ = call;
                    Ok(self($($name),*).await?.respond())
                })
            }
        }
    };
}
handler!();
handler!(A a);
handler!(A a, B b);
handler!(A a, B b, C c);
handler!(A a, B b, C c, D d);
handler!(A a, B b, C c, D d, E e);
handler!(A a, B b, C c, D d, E e, G g);
