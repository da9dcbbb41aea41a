//! Arguments of handlers. Each [`Input`] extracts its value from the request and documents itself.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use gantry_base::{
    ids::ProjectId,
    net::connection_limit::{ConnectionLimit, ConnectionPermit},
};
use http::{HeaderMap, header};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::{
    body,
    call::{Call, Input},
    json,
    operation_doc::OperationDoc,
    query,
    transport::Peer,
};
use crate::platform::{
    access::{Caller, CallerRelation, Organization, Project, Subject, User},
    audit::Recorder,
    context::PlatformContext,
    error::Error,
    idempotency,
};

/// Method and path as sent.
#[derive(Debug, Clone)]
pub struct RequestLine {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path without the query.
    pub path: String,
}

impl Input for PlatformContext {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.context.clone())
    }
}

impl Input for RequestLine {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            method: call.request.method.to_string(),
            path: call.uri().path().to_owned(),
        })
    }
}

/// The address and transport security of the client.
impl Input for Peer {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.peer)
    }
}

/// The authenticated caller.
impl Input for User {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.caller {
            Caller::User(user) => Ok(User::clone(user)),
            Caller::Anonymous { credential, .. } => Err(Error::Unauthenticated(*credential)),
        }
    }
}

/// The target organization. It exists, and the caller has the required permissions.
impl Input for Organization {
    fn describe(described: &mut OperationDoc) {
        described.names("slug");
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.subject {
            Subject::Organization(organization) => Ok(organization.clone()),
            // Reached only by operations that name the organization in the body.
            Subject::Account | Subject::Project(_) => Err(Error::invalid(
                "organization_slug",
                "Invalid input: expected the slug of an organization",
            )),
        }
    }
}

/// The target project. It exists, and the caller has the required permissions.
impl Input for Project {
    fn describe(described: &mut OperationDoc) {
        described.names("ref");
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.subject {
            Subject::Project(project) => Ok(project.clone()),
            Subject::Account | Subject::Organization(_) => Err(Error::NotFound),
        }
    }
}

/// The target of the request. It exists, and the caller is a member.
impl Input for Subject {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.subject.clone())
    }
}

/// The `{id}` of the path, a UUID. The handler looks up whether it exists and belongs to the
/// caller.
#[derive(Debug, Clone, Copy)]
pub struct PathId(pub Uuid);

impl Input for PathId {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call
            .placeholder("id")
            .and_then(|id| Uuid::try_parse(id).ok());
        id.map(Self)
            .ok_or_else(|| Error::invalid("id", "expected a UUID"))
    }
}

/// The recorder for the audit log.
impl Input for Arc<Recorder> {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.recorder()
            .ok_or_else(|| Error::internal("reading the recorder", "the operation is read-only"))
    }
}

/// The caller's relation to the target.
impl Input for CallerRelation {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.standing)
    }
}

/// A JSON body of a request or a response.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for Json<T> {
    fn describe(described: &mut OperationDoc) {
        described.body_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let body = call.body().await?;
        json::require_json(call.headers(), &body)?;
        json::parse(&body).map(Self)
    }
}

/// A JSON body that may be absent.
impl<T: DeserializeOwned + JsonSchema + Send> Input for Option<Json<T>> {
    fn describe(described: &mut OperationDoc) {
        described.optional_body_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let body = call.body().await?;
        if body.is_empty() {
            return Ok(None);
        }
        json::require_json(call.headers(), &body)?;
        json::parse(&body).map(|value| Some(Json(value)))
    }
}

/// A JSON body of up to [`LARGE_BODY_BYTES_MAX`], with the permit to keep it in memory.
///
/// A body over 1 MiB must have a `Content-Length`. One is read at a time for a project, and
/// `LARGE_BODIES_MAX` in all; further ones get 429.
pub struct LargeJson<T> {
    /// The parsed body.
    pub value: T,
    /// Released when the handler ends.
    pub permit: Option<LargeBodyPermit>,
}

/// Maximum size of a large body, in bytes. A text of half the size fits with its escapes.
pub const LARGE_BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of large bodies in memory. A request takes about three times its body.
const LARGE_BODIES_MAX: usize = 8;
/// `Retry-After` if other large bodies are in memory.
const LARGE_BODY_RETRY: Duration = Duration::from_secs(2);

static LARGE_BODIES: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);
static LARGE_BODIES_OF_PROJECTS: LazyLock<Arc<ConnectionLimit<ProjectId>>> =
    LazyLock::new(|| ConnectionLimit::new(1));

/// A permit to keep a large body in memory.
pub struct LargeBodyPermit {
    _all: SemaphorePermit<'static>,
    _project: Option<ConnectionPermit<ProjectId>>,
}

impl LargeBodyPermit {
    fn acquire(subject: &Subject) -> Result<Self, Error> {
        let busy = || Error::Busy {
            retry: LARGE_BODY_RETRY,
        };
        let project = match subject {
            Subject::Project(project) => {
                let permit = LARGE_BODIES_OF_PROJECTS.try_acquire(project.id);
                Some(permit.ok_or_else(busy)?)
            }
            _ => None,
        };
        Ok(Self {
            _all: LARGE_BODIES.try_acquire().map_err(|_| busy())?,
            _project: project,
        })
    }
}

/// Time that a request waits for its turn to send a file body.
const FILE_BODY_WAIT: Duration = Duration::from_mins(1);
/// Requests of one project with a file body, those that wait for their turn included. Bodies are
/// read afterwards, so one that waits takes no memory.
const FILE_BODIES_OF_PROJECT_MAX: usize = 64;

static FILE_BODIES: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);
static FILE_BODIES_OF_PROJECTS: LazyLock<Arc<ConnectionLimit<ProjectId>>> =
    LazyLock::new(|| ConnectionLimit::new(FILE_BODIES_OF_PROJECT_MAX));

/// A body with files, of up to [`FILE_BODY_BYTES_MAX`], as sent.
///
/// At most `LARGE_BODIES_MAX` are in memory. Further requests wait in order for a minute, because
/// clients send all functions of a project at once.
pub struct FileBody {
    /// `Content-Type`, in lower case up to the first semicolon.
    pub media_type: String,
    /// `Content-Type` as sent.
    pub content_type: String,
    /// The body.
    pub bytes: Bytes,
    /// Released when the handler ends.
    pub permit: (
        SemaphorePermit<'static>,
        Option<ConnectionPermit<ProjectId>>,
    ),
}

/// Maximum size of a body with files, in bytes.
pub const FILE_BODY_BYTES_MAX: usize = 20 << 20;

impl Input for FileBody {
    fn describe(described: &mut OperationDoc) {
        described.body_bytes_max = FILE_BODY_BYTES_MAX;
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let busy = || Error::Busy {
            retry: LARGE_BODY_RETRY,
        };
        let project = match call.subject {
            Subject::Project(project) => {
                let permit = FILE_BODIES_OF_PROJECTS.try_acquire(project.id);
                Some(permit.ok_or_else(busy)?)
            }
            _ => None,
        };
        let permit = tokio::time::timeout(FILE_BODY_WAIT, FILE_BODIES.acquire()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or_else(busy)?;
        let content_type = call.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let essence = content_type.split(';').next().unwrap_or_default();
        Ok(Self {
            media_type: essence.trim().to_ascii_lowercase(),
            content_type,
            bytes: call.body_within(FILE_BODY_BYTES_MAX).await?,
            permit: (permit, project),
        })
    }
}

impl FileBody {
    /// Parses the body as JSON.
    pub fn json<T: DeserializeOwned + JsonSchema>(&self) -> Result<T, Error> {
        let mut headers = HeaderMap::new();
        if let Ok(value) = self.content_type.parse()
            && !self.content_type.is_empty()
        {
            headers.insert(header::CONTENT_TYPE, value);
        }
        json::require_json(&headers, &self.bytes)?;
        json::parse(&self.bytes)
    }
}

impl<T: DeserializeOwned + JsonSchema + Send> Input for LargeJson<T> {
    fn describe(described: &mut OperationDoc) {
        described.body_bytes_max = LARGE_BODY_BYTES_MAX;
        described.body_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let length = call.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let is_large = length.is_some_and(|length| length > body::BYTES_MAX as u64);
        let permit = is_large.then(|| LargeBodyPermit::acquire(call.subject));
        let permit = permit.transpose()?;
        let bytes_max = if is_large {
            LARGE_BODY_BYTES_MAX
        } else {
            body::BYTES_MAX
        };
        let body = call.body_within(bytes_max).await?;
        json::require_json(call.headers(), &body)?;
        Ok(Self {
            value: json::parse(&body)?,
            permit,
        })
    }
}

/// Query parameters.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for Query<T> {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        query::parse(call.uri().query().unwrap_or_default()).map(Self)
    }
}

/// Query parameters with lists: `a=1,2`, `a=1&a=2` and `a[]=1&a[]=2` are equivalent.
#[derive(Debug, Clone)]
pub struct QueryWithLists<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for QueryWithLists<T> {
    fn describe(described: &mut OperationDoc) {
        described.query_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let joined = query::joined(call.uri().query().unwrap_or_default());
        query::parse(&joined).map(Self)
    }
}

/// The `Idempotency-Key` of a request, for operations that keep their own record of keys.
#[derive(Debug, Clone)]
pub struct IdempotencyKey(pub Option<String>);

impl Input for IdempotencyKey {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        idempotency::read_key(call.headers()).map(Self)
    }
}
