//! The domain error and its table of codes. `http::respond` turns it into a response.

mod codes;

use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

use deadpool_postgres::{PoolError, TimeoutType};

pub use codes::{CODES, ErrorCode};

use crate::platform::{
    approvals::required::RequiredApproval,
    db::{self, QueryError},
};

/// `Retry-After` while the control database is away or busy.
const DATABASE_RETRY: Duration = Duration::from_secs(1);

/// An error of an operation.
#[derive(Debug)]
pub enum Error {
    /// The request has no usable credential.
    Unauthenticated(CredentialProblem),
    /// The caller may see the subject, but must not perform the operation.
    Forbidden(Denial),
    /// The project is protected, and the request needs an approval.
    ApprovalRequired(Box<RequiredApproval>),
    /// The request is tried, and its change must be rolled back. Not an answer to a client.
    DryRun,
    /// The subject does not exist, or the caller must not see it.
    NotFound,
    /// A part of the subject does not exist: status 404. The text is that of the contract.
    Missing(&'static str),
    /// No operation has this method and path.
    UnknownRoute {
        /// Method as sent.
        method: String,
        /// Path as sent, without the query.
        path: String,
    },
    /// A part of the request is invalid.
    Invalid {
        /// Name of the field, parameter or header, as the client spells it.
        field: Cow<'static, str>,
        /// Description of the problem.
        problem: Cow<'static, str>,
    },
    /// The request is valid, but the state of the subject forbids it. The text is that of the
    /// contract.
    Rejected(Cow<'static, str>),
    /// The request does not fit the kind of the subject: status 422. The text is that of the
    /// contract.
    Unprocessable(Cow<'static, str>),
    /// The customer's SQL failed. The text is that of `behaviour.md` §8.
    Sql(String),
    /// Something with the same identity but different content exists.
    Conflict(Cow<'static, str>),
    /// An earlier request had the same `Idempotency-Key`.
    IdempotencyKey(KeyProblem),
    /// The project has a custom hostname already.
    HostnameConfigured,
    /// Settings of emails that need an own mail server.
    SmtpRequired {
        /// Names of the settings in the request.
        asked: String,
        /// Names of the missing settings of the mail server.
        missing: String,
    },
    /// A part of the subject was removed for good: status 410. The text says how to continue.
    Gone(Cow<'static, str>),
    /// A rate limit is exhausted.
    LimitReached,
    /// Other requests for the same resource are still running.
    Busy {
        /// `Retry-After` of the response.
        retry: Duration,
    },
    /// The caller named too many projects and organizations that do not belong to it.
    TooManyLookUps,
    /// The operation does not read bodies in this format.
    UnsupportedMediaType {
        /// The media type that it reads.
        expected: &'static str,
    },
    /// The body exceeds the bound of the operation.
    TooLarge {
        /// The bound, in bytes.
        bytes_max: usize,
    },
    /// The project's database did not respond in time.
    DatabaseUnreachable,
    /// The project's database rejects the login of the platform's roles, because its owner changed
    /// them or closed the database. Contains the error of the server.
    DatabaseRefuses(String),
    /// The operation exceeded its time limit.
    TimedOut(Duration),
    /// A resource of the service is temporarily unavailable.
    Unavailable {
        /// Description of the resource.
        what: Cow<'static, str>,
        /// `Retry-After` of the response.
        retry: Duration,
    },
    /// The operation needs an option that the operator did not set. The text names it.
    Unconfigured(&'static str),
    /// The operation is published in the contract, but not implemented. The text names it, the
    /// reason and an alternative.
    NotBuilt(String),
    /// An error of platform webhooks that the contract has a code for.
    Webhook(WebhookProblem),
    /// An error of notebooks that the contract has a code for.
    Notebook(NotebookProblem),
    /// A parameter of a list is not a cursor of its pages.
    PageCursor {
        /// Name of the parameter.
        field: &'static str,
    },
    /// An error of the OAuth protocol.
    OAuth(OAuthError),
    /// An internal error. The cause is logged once and never sent.
    Internal(Report),
}

/// An error that the OAuth specifications have a code for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthError {
    /// The `error` code of the specifications.
    pub error: &'static str,
    /// One sentence for `error_description`. It never repeats input.
    pub description: Cow<'static, str>,
    /// Whether the request names no known application: the contract answers this with status 422.
    pub unprocessable: bool,
}

/// An error of platform webhooks that the contract has a code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookProblem {
    /// The endpoint does not exist in the organization or project of the path.
    EndpointNotFound,
    /// The delivery does not exist there, or is older than the history.
    DeliveryNotFound,
    /// The endpoint is disabled.
    EndpointDisabled,
    /// The endpoint does not receive events of the type.
    NotSubscribed,
    /// The URL has no domain name, or one without a permitted address.
    UnresolvableUrl,
}

/// An error of notebooks that the contract has a code for. Indexes of cells begin with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotebookProblem {
    /// The notebook does not exist in the project of the path.
    NotFound,
    /// The cell at this index has the id of an earlier one.
    DuplicateCell(usize),
    /// The cell at this index has an id that no cell of the notebook has.
    UnknownCell(usize),
    /// A list cannot be sorted in this order.
    InvalidSort,
}

/// Returns an error of the OAuth protocol.
pub fn oauth_error(error: &'static str, description: impl Into<Cow<'static, str>>) -> Error {
    Error::OAuth(OAuthError {
        error,
        description: description.into(),
        unprocessable: false,
    })
}

/// Returns the error of a request that names no known application.
pub fn unknown_client(description: &'static str) -> Error {
    Error::OAuth(OAuthError {
        error: "invalid_request",
        description: description.into(),
        unprocessable: true,
    })
}

/// Reason why a request with an `Idempotency-Key` does not get the first answer. Ids are those of
/// the first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyProblem {
    /// The key was sent with another request.
    OtherRequest,
    /// The first request may still run.
    Running {
        /// `Retry-After` of the response.
        retry: Duration,
    },
    /// The server stopped after it had begun the first request.
    OutcomeUnknown(String),
    /// The change is made, and its answer was not kept.
    AnswerNotKept(String),
}

impl KeyProblem {
    fn message(&self) -> String {
        let problem = match self {
            Self::OtherRequest => {
                "this key was sent with another request in the last 24 hours. Send a new key, or the first request unchanged"
            }
            Self::Running { .. } => {
                "the first request with this key is still running. Wait the seconds of Retry-After and send it again"
            }
            Self::OutcomeUnknown(id) => {
                return format!(
                    "Idempotency-Key: the server stopped before it knew the outcome of the first request ({id}). \
                     Read the state that it changes; send a new key if it is still to be done"
                );
            }
            Self::AnswerNotKept(id) => {
                return format!(
                    "Idempotency-Key: the first request ({id}) is done, but its answer was not kept. \
                     Read the current state; a new key would do it again"
                );
            }
        };
        format!("Idempotency-Key: {problem}")
    }
}

/// Reason why a credential is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialProblem {
    /// The request has no `Authorization: Bearer` header.
    Missing,
    /// The token is not well-formed.
    Malformed,
    /// The token is a JSON web token, which this API does not accept.
    Jwt,
    /// The token is well-formed, but unknown, expired or revoked.
    Unknown,
}

/// Reason why an authenticated caller is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// The member's role does not include the required permissions.
    Role,
    /// The scoped token lacks these permissions.
    Permissions(Vec<&'static str>),
    /// The operation is about the user, and the token is limited to projects or organizations.
    UserScopeOnly,
    /// The operation creates tokens or shows their rights, and the token is scoped.
    UnscopedOnly,
    /// The OAuth application was not given this scope.
    Scope(&'static str),
    /// The operation rejects OAuth applications.
    NotByApplications,
    /// The operation is for people that are signed in on the account pages.
    SessionOnly,
    /// The approval of a request of one's own.
    OwnRequest,
    /// The request arrived over plain HTTP.
    InsecureTransport,
    /// The CSRF token of the form is missing, belongs to another session, or is outdated.
    ForeignForm,
}

/// An internal error with the action that failed. Only for the log.
#[derive(Debug)]
pub struct Report {
    doing: &'static str,
    cause: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.cause)?;
        let mut source = self.cause.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// Converts errors to [`Error::Internal`] with a description of the action.
pub trait Context<T> {
    /// `doing` completes "failed while …".
    fn context(self, doing: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Context<T> for Result<T, E> {
    fn context(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|cause| Error::internal(doing, cause))
    }
}

/// The message links to the access-control guide, because clients show it unchanged.
const ROLE_MESSAGE: &str = "Your account does not have the necessary privileges to access this endpoint. For more details, refer to our documentation https://supabase.com/docs/guides/platform/access-control";

impl Error {
    /// Returns the error of an invalid or missing field: 400 `<field>: <problem>`.
    pub fn invalid(
        field: impl Into<Cow<'static, str>>,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Invalid {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// Returns an internal error; `doing` completes "failed while …".
    ///
    /// A lost connection to the database becomes [`Error::Unavailable`] instead.
    pub fn internal(
        doing: &'static str,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let cause = cause.into();
        if matches!(cause.downcast_ref(), Some(QueryError::Away)) {
            return Self::control_database_away();
        }
        if cause.downcast_ref().is_some_and(db::is_lost) {
            tracing::debug!(%cause, doing, "connection lost");
            return Self::Unavailable {
                what: "The connection to the database was lost".into(),
                retry: DATABASE_RETRY,
            };
        }
        Self::Internal(Report { doing, cause })
    }

    /// Returns the error of an unreachable control database.
    pub fn control_database_away() -> Self {
        Self::Unavailable {
            what: "The control database does not answer".into(),
            retry: DATABASE_RETRY,
        }
    }

    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid { .. } => codes::VALIDATION_FAILED,
            Self::Rejected(_) => codes::BAD_REQUEST,
            Self::Unprocessable(_) => codes::UNPROCESSABLE,
            Self::Sql(_) => codes::SQL_FAILED,
            Self::Unauthenticated(_) => codes::UNAUTHORIZED,
            Self::Forbidden(Denial::InsecureTransport) => codes::INSECURE_TRANSPORT,
            Self::Forbidden(_) => codes::FORBIDDEN,
            Self::ApprovalRequired(_) => codes::APPROVAL_REQUIRED,
            Self::NotFound | Self::Missing(_) | Self::UnknownRoute { .. } => codes::NOT_FOUND,
            Self::Conflict(_) => codes::CONFLICT,
            Self::Gone(_) => codes::GONE,
            Self::IdempotencyKey(problem) => match problem {
                KeyProblem::OtherRequest => codes::IDEMPOTENCY_KEY_REUSED,
                KeyProblem::Running { .. } => codes::IDEMPOTENCY_KEY_IN_USE,
                KeyProblem::OutcomeUnknown(_) => codes::IDEMPOTENCY_OUTCOME_UNKNOWN,
                KeyProblem::AnswerNotKept(_) => codes::IDEMPOTENCY_ANSWER_NOT_KEPT,
            },
            Self::TooLarge { .. } => codes::REQUEST_TOO_LARGE,
            Self::UnsupportedMediaType { .. } => codes::UNSUPPORTED_MEDIA_TYPE,
            Self::LimitReached | Self::Busy { .. } | Self::TooManyLookUps => {
                codes::RATE_LIMIT_EXCEEDED
            }
            Self::Webhook(problem) => match problem {
                WebhookProblem::EndpointNotFound => codes::ENDPOINT_NOT_FOUND,
                WebhookProblem::DeliveryNotFound => codes::DELIVERY_NOT_FOUND,
                WebhookProblem::EndpointDisabled => codes::ENDPOINT_DISABLED,
                WebhookProblem::NotSubscribed => codes::EVENT_TYPE_NOT_SUBSCRIBED,
                WebhookProblem::UnresolvableUrl => codes::ENDPOINT_URL_UNRESOLVABLE,
            },
            Self::Notebook(problem) => match problem {
                NotebookProblem::NotFound => codes::NOTEBOOK_NOT_FOUND,
                NotebookProblem::DuplicateCell(_) => codes::NOTEBOOK_CELL_DUPLICATE,
                NotebookProblem::UnknownCell(_) => codes::NOTEBOOK_CELL_UNKNOWN,
                NotebookProblem::InvalidSort => codes::NOTEBOOK_SORT_INVALID,
            },
            Self::PageCursor { .. } => codes::PAGINATION_CURSOR_INVALID,
            Self::OAuth(fault) => match fault.error {
                "invalid_client" => codes::INVALID_CLIENT,
                _ if fault.unprocessable => codes::UNKNOWN_CLIENT,
                _ => codes::OAUTH_REFUSED,
            },
            Self::Internal(_) | Self::DryRun => codes::INTERNAL_SERVER_ERROR,
            Self::Unconfigured(_) => codes::NOT_CONFIGURED,
            Self::NotBuilt(_) => codes::NOT_IMPLEMENTED,
            Self::Unavailable { .. } => codes::UNAVAILABLE,
            Self::TimedOut(_) => codes::REQUEST_TIMEOUT,
            Self::DatabaseUnreachable | Self::DatabaseRefuses(_) => codes::DATABASE_UNREACHABLE,
            Self::HostnameConfigured => codes::HOSTNAME_CONFIGURED,
            Self::SmtpRequired { .. } => codes::SMTP_REQUIRED,
        }
    }

    /// Returns the message for the caller. It never contains a cause or a secret.
    pub fn message(&self) -> Cow<'static, str> {
        match self {
            Self::Unauthenticated(CredentialProblem::Missing | CredentialProblem::Unknown) => "Unauthorized".into(),
            Self::Unauthenticated(CredentialProblem::Malformed) => "JWT could not be decoded".into(),
            Self::Unauthenticated(CredentialProblem::Jwt) => "JWT failed verification".into(),
            Self::Forbidden(Denial::Role) => ROLE_MESSAGE.into(),
            Self::Forbidden(Denial::Permissions(missing)) => {
                format!("Missing required permission(s): {}", missing.join(", ")).into()
            }
            Self::Forbidden(Denial::UserScopeOnly) => "This endpoint requires a user-scoped access token".into(),
            Self::Forbidden(Denial::UnscopedOnly) => "This endpoint does not accept scoped access tokens".into(),
            Self::Forbidden(Denial::Scope(scope)) => format!("Missing required OAuth scope: {scope}").into(),
            Self::Forbidden(Denial::NotByApplications) => "This endpoint does not accept OAuth access tokens".into(),
            Self::Forbidden(Denial::InsecureTransport) => {
                "This API answers over HTTPS only. Use https, or let the proxy in front send X-Forwarded-Proto: https and name it in --trusted-proxies.".into()
            }
            Self::Forbidden(Denial::ForeignForm) => "This form is out of date. Load the page again, and send it from there.".into(),
            Self::Forbidden(Denial::SessionOnly) => {
                "Approvals are given on the account pages, by a person that is signed in. Open the page of the approval in a browser.".into()
            }
            Self::Forbidden(Denial::OwnRequest) => {
                "Another member has to approve this request. An owner can also approve a request of its own after signing in again.".into()
            }
            Self::ApprovalRequired(approval) => approval.message().into(),
            Self::NotFound => "Not Found".into(),
            Self::UnknownRoute { method, path } => format!("Cannot {method} {path}").into(),
            Self::Invalid { field, problem } => format!("{field}: {problem}").into(),
            Self::Rejected(text)
            | Self::Conflict(text)
            | Self::Unprocessable(text)
            | Self::Gone(text) => text.clone(),
            Self::IdempotencyKey(problem) => problem.message().into(),
            Self::Sql(text) => format!("Failed to run sql query: {text}").into(),
            Self::LimitReached => "ThrottlerException: Too Many Requests".into(),
            Self::Busy { .. } => {
                "ThrottlerException: Too Many Requests: other requests of this kind are still running. Wait the seconds of Retry-After.".into()
            }
            Self::TooManyLookUps => {
                "ThrottlerException: Too Many Requests: too many names were asked for that are not yours. Wait the seconds of Retry-After, and correct the names.".into()
            }
            Self::UnsupportedMediaType { expected } => format!("Unsupported Media Type: send the body as {expected}").into(),
            Self::TooLarge { bytes_max } => format!("request entity too large: at most {bytes_max} bytes").into(),
            Self::SmtpRequired { asked, missing } => {
                format!("Custom SMTP required to configure {asked}. Missing {missing} fields.").into()
            }
            Self::HostnameConfigured => "Delete the custom hostname associated with your project before attempting to create a new one.".into(),
            Self::DatabaseUnreachable => "Connection terminated due to connection timeout".into(),
            Self::DatabaseRefuses(words) => {
                format!("The project's database refuses the platform's own login: {words}. The platform repairs its roles; try again shortly").into()
            }
            Self::TimedOut(bound) => format!("The operation took longer than {} s", bound.as_secs()).into(),
            Self::Unavailable { what, .. } => format!("{what}; try again shortly").into(),
            Self::Missing(text) | Self::Unconfigured(text) => (*text).into(),
            Self::NotBuilt(text) => text.clone().into(),
            Self::Webhook(problem) => problem.message().into(),
            Self::Notebook(problem) => problem.message(),
            Self::PageCursor { field } => {
                format!("{field}: expected a cursor from the links of a page of this list in the same order").into()
            }
            Self::OAuth(fault) => fault.description.clone(),
            Self::Internal(_) | Self::DryRun => "Internal Server Error".into(),
        }
    }
}

impl WebhookProblem {
    fn message(self) -> &'static str {
        match self {
            Self::EndpointNotFound => "Not Found: Endpoint not found",
            Self::DeliveryNotFound => "Not Found: Delivery not found",
            Self::EndpointDisabled => "Bad Request: Endpoint is disabled",
            Self::NotSubscribed => {
                "Bad Request: Provided event type is not subscribed to by the endpoint"
            }
            Self::UnresolvableUrl => {
                "Bad Request: Endpoint URL needs a domain name that resolves to a public address"
            }
        }
    }
}

impl NotebookProblem {
    fn message(self) -> Cow<'static, str> {
        let of_cell = |index: usize, problem: &str| -> Cow<'static, str> {
            format!("data.attributes.content.cells.{index}.id: {problem}").into()
        };
        match self {
            Self::NotFound => "Not Found: Notebook not found".into(),
            Self::DuplicateCell(index) => of_cell(
                index,
                "is the id of an earlier cell as well; leave it out for a new cell",
            ),
            Self::UnknownCell(index) => of_cell(
                index,
                "is the id of no cell of this notebook; leave it out for a new cell",
            ),
            Self::InvalidSort => {
                "sort: expected one of name, -name, inserted_at, -inserted_at".into()
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal(report) => report.fmt(f),
            other => f.write_str(&other.message()),
        }
    }
}

impl StdError for Error {}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Timeout(TimeoutType::Wait) => Self::Unavailable {
                what: "The control database is busy".into(),
                retry: DATABASE_RETRY,
            },
            PoolError::Timeout(_) => Self::control_database_away(),
            PoolError::Backend(cause) if db::is_lost(&cause) => Self::control_database_away(),
            other => Self::internal("connecting to the control database", other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_error_message_hides_the_cause() {
        let failed: Result<(), _> =
            Err(std::io::Error::other("/secret/path")).context("reading the template");
        let error = failed.unwrap_err();
        assert_eq!(error.message(), "Internal Server Error");
        assert_eq!(error.to_string(), "reading the template: /secret/path");
    }

    #[test]
    fn unreachable_database_is_unavailable() {
        let failed: Result<(), _> = Err(QueryError::Away).context("reading a row");
        let error = failed.unwrap_err();
        assert_eq!(
            (error.code().status, error.message().as_ref()),
            (
                503,
                "The control database does not answer; try again shortly"
            )
        );
    }

    #[test]
    fn code_names_are_unique() {
        let names: std::collections::HashSet<_> = CODES.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), CODES.len());
    }
}
