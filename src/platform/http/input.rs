//! What handlers take: each argument is taken from the call and describes itself.

use std::{any::Any, collections::BTreeMap, future::Future, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Uri, header};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{
    body,
    body::Body,
    endpoint::Endpoint,
    face::{Asking, OnBehalf},
    guard::{Arrival, basic},
    nul,
    openapi::Described,
    router::placeholder,
    transport::Peer,
};
use crate::{
    base::error::Error,
    platform::{
        access::{Caller, CallerRelation, Organization, Project, Subject, User},
        audit::Recorder,
        context::PlatformContext,
    },
};

/// A request that the guard let through: the caller is known, counted and permitted.
///
/// It borrows what the guard found, so that nothing of it is moved or copied for an operation that does not look at it.
pub struct Call<'a> {
    pub(super) context: &'a PlatformContext,
    /// State of the wing whose operation this is.
    pub(super) state: &'a (dyn Any + Send + Sync),
    pub(super) arrival: &'a mut Arrival,
    pub(super) peer: Peer,
    pub(super) caller: &'a Caller,
    pub(super) subject: &'a Subject,
    pub(super) standing: CallerRelation,
    pub(super) recorder: Option<&'a Arc<Recorder>>,
    pub(super) endpoint: &'static Endpoint,
    pub(super) request_id: &'a str,
}

/// The client credentials of the `Authorization` header (RFC 6749, 2.3.1).
#[derive(Debug)]
pub enum Basic {
    /// There is no such header.
    Absent,
    /// There is a bearer token, which says nothing about the client: the management SDK sends its own with every request.
    Bearer,
    /// There is one, or more than one, and it cannot be read.
    Unreadable,
    /// A name and a secret.
    Said {
        /// Before the colon.
        name: String,
        /// After it.
        secret: SecretString,
    },
}

/// A body that is still to be read, or was read to find out what the request names.
pub(super) enum Payload {
    Pending(Body),
    Read(Bytes),
}

impl Default for Payload {
    fn default() -> Self {
        Self::Read(Bytes::new())
    }
}

impl Call<'_> {
    /// The state that the router was made with. An internal error if it has another type.
    pub fn state<T: 'static>(&self) -> Result<&T, Error> {
        self.state.downcast_ref().ok_or_else(|| {
            Error::internal("taking the state of an operation", "it has another type")
        })
    }

    /// What the path has in the place of `{name}`.
    pub fn placeholder(&self, name: &str) -> Option<&str> {
        placeholder(self.endpoint, self.arrival.uri.path(), name)
    }

    /// Where it came from.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What was asked for.
    pub fn uri(&self) -> &Uri {
        &self.arrival.uri
    }

    /// As they were sent.
    pub fn headers(&self) -> &HeaderMap {
        &self.arrival.headers
    }

    /// Who asked.
    pub fn caller(&self) -> &Caller {
        self.caller
    }

    /// Ties it to its lines in the log.
    pub fn request_id(&self) -> &str {
        self.request_id
    }

    /// Writes the audit log, if it may change something.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.cloned()
    }

    /// What a client of the OAuth protocol presents by HTTP Basic.
    pub fn client_credentials(&self) -> Basic {
        basic(&self.arrival.headers)
    }

    /// The operation that was asked for.
    pub fn endpoint(&self) -> &'static Endpoint {
        self.endpoint
    }

    /// The whole body, within its bound.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        self.arrival.payload.read().await
    }

    /// The same for an operation that takes more at once, or less.
    pub async fn body_within(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        self.arrival.payload.read_within(bytes_max).await
    }

    /// A way to ask other operations as who asked this one.
    pub fn asking(&self) -> Result<Asking, Error> {
        let api = self
            .arrival
            .asks
            .clone()
            .ok_or_else(|| Error::internal("asking another operation", "this one asks none"))?;
        let on_behalf = self.caller.shared().map(|user| OnBehalf {
            user: user.clone(),
            peer: self.peer,
        });
        Ok(Asking {
            api,
            request_id: self.request_id.into(),
            on_behalf,
        })
    }
}

impl Payload {
    pub(super) async fn read(&mut self) -> Result<Bytes, Error> {
        self.read_within(body::BYTES_MAX).await
    }

    async fn read_within(&mut self, bytes_max: usize) -> Result<Bytes, Error> {
        let bytes = match std::mem::take(self) {
            Self::Pending(pending) => body::read(pending, bytes_max).await?,
            Self::Read(bytes) => bytes,
        };
        *self = Self::Read(bytes.clone());
        Ok(bytes)
    }

    /// What was read so far.
    pub(super) fn seen(&self) -> &[u8] {
        match self {
            Self::Pending(_) => &[],
            Self::Read(bytes) => bytes,
        }
    }
}

/// Method and path, as sent.
#[derive(Debug, Clone)]
pub struct RequestLine {
    /// `GET`, `POST`, …
    pub method: String,
    /// Without the query.
    pub path: String,
}

/// An argument of a handler.
pub trait Input: Sized + Send {
    /// Adds itself to the document.
    fn describe(described: &mut Described);
    /// Takes itself from the call.
    fn take(call: &mut Call<'_>) -> impl Future<Output = Result<Self, Error>> + Send;
}

impl Input for PlatformContext {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.context.clone())
    }
}

impl Input for RequestLine {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(Self {
            method: call.arrival.method.to_string(),
            path: call.uri().path().to_owned(),
        })
    }
}

/// Where the request comes from.
impl Input for Peer {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.peer)
    }
}

/// The user who calls.
impl Input for User {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.caller {
            Caller::User(user) => Ok(User::clone(user)),
            Caller::Anonymous { credential, .. } => Err(Error::Unauthenticated(*credential)),
        }
    }
}

/// The organization the request names: it exists, and the caller may do this to it.
impl Input for Organization {
    fn describe(described: &mut Described) {
        described.names("slug");
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.subject {
            Subject::Organization(organization) => Ok(organization.clone()),
            // Only reached where the body should have named it.
            Subject::Account | Subject::Project(_) => Err(Error::invalid(
                "organization_slug",
                "Invalid input: expected the slug of an organization",
            )),
        }
    }
}

/// The project the request names: it exists, and the caller may do this to it.
impl Input for Project {
    fn describe(described: &mut Described) {
        described.names("ref");
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        match call.subject {
            Subject::Project(project) => Ok(project.clone()),
            Subject::Account | Subject::Organization(_) => Err(Error::NotFound),
        }
    }
}

/// What the request names: it exists, and the caller belongs to it.
impl Input for Subject {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.subject.clone())
    }
}

/// The `{id}` of the path, where ids are UUIDs. Whether there is such a thing, and the caller's, is looked up with it.
#[derive(Debug, Clone, Copy)]
pub struct PathId(pub Uuid);

impl Input for PathId {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call
            .placeholder("id")
            .and_then(|id| Uuid::try_parse(id).ok());
        id.map(Self)
            .ok_or_else(|| Error::invalid("id", "expected a UUID"))
    }
}

/// Writes what the handler changes into the audit log.
impl Input for Arc<Recorder> {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.recorder()
            .ok_or_else(|| Error::internal("taking the recorder", "the operation only lets see"))
    }
}

/// Where the caller stands towards it.
impl Input for CallerRelation {
    fn describe(_: &mut Described) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        Ok(call.standing)
    }
}

/// A JSON body, or a JSON answer.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for Json<T> {
    fn describe(described: &mut Described) {
        described.body_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let body = call.body().await?;
        require_json(call.headers(), &body)?;
        parse(&body).map(Self)
    }
}

/// Refuses a body that says it is not JSON (RFC 9110 §15.5.16). One that does not say what it is, is read as JSON.
fn require_json(headers: &HeaderMap, body: &[u8]) -> Result<(), Error> {
    let all_json = headers
        .get_all(header::CONTENT_TYPE)
        .iter()
        .all(|line| line.to_str().is_ok_and(is_json));
    if body.is_empty() || all_json {
        Ok(())
    } else {
        Err(Error::UnsupportedMediaType {
            expected: "application/json",
        })
    }
}

/// Whether a media type is JSON in UTF-8: `application/json`, or `application/<name>+json` (RFC 6839 §3.1).
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_json = essence
        .strip_prefix("application/")
        .is_some_and(|name| name == "json" || name.ends_with("+json"));
    let in_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        // Other parameters say nothing about how to read it.
        _ => true,
    };
    is_json && parts.all(in_utf8)
}

/// Reads a body of JSON, and says which field is wrong.
pub(crate) fn parse<T: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<T, Error> {
    // Serde takes an array for a struct, field by field; the contract does not.
    if bytes.trim_ascii_start().starts_with(b"[") && is_object::<T>() {
        return Err(Error::invalid("body", "Invalid input: expected an object"));
    }
    nul::check_json(bytes)?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        invalid_json(&path, error.inner())
    })?;
    reader.end().map_err(|error| invalid_json(".", &error))?;
    Ok(value)
}

/// Whether the document describes `T` as an object.
fn is_object<T: JsonSchema>() -> bool {
    schemars::schema_for!(T)
        .get("type")
        .is_some_and(|kind| kind == "object")
}

/// Names the field a JSON error is about. Missing and unknown fields are named in the error's own text.
fn invalid_json(path: &str, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let problem = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(problem, _)| problem);
    let quoted = || problem.split('`').nth(1).unwrap_or_default().to_owned();
    if problem.starts_with("missing field") {
        return Error::invalid(within(path, &quoted()), "Required");
    }
    if problem.starts_with("unknown field") {
        return Error::invalid(within(path, &quoted()), "is not a field of this request");
    }
    let field = if path == "." || path == "?" {
        "body".to_owned()
    } else {
        path.to_owned()
    };
    Error::invalid(field, format!("Invalid input: {problem}"))
}

fn within(path: &str, field: &str) -> String {
    match path {
        "." | "?" | "" => field.to_owned(),
        path if path.ends_with(field) => path.to_owned(),
        path => format!("{path}.{field}"),
    }
}

/// Query parameters.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for Query<T> {
    fn describe(described: &mut Described) {
        described.query_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        read_query(call.uri().query().unwrap_or_default()).map(Self)
    }
}

fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Error> {
    let reader = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize::<_, T>(reader).map_err(
        |error: serde_path_to_error::Error<serde::de::value::Error>| {
            let (path, problem) = (error.path().to_string(), error.inner().to_string());
            let named = problem.split('`').nth(1).unwrap_or_default().to_owned();
            if problem.starts_with("missing field") {
                Error::invalid(named, "Required")
            } else {
                Error::invalid(
                    if path == "." {
                        "query".to_owned()
                    } else {
                        path
                    },
                    format!("Invalid input: {problem}"),
                )
            }
        },
    )
}

/// The query parameters, of which some are lists: `a=1,2`, `a=1&a=2` and `a[]=1&a[]=2` are the same.
#[derive(Debug, Clone)]
pub struct Lists<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send> Input for Lists<T> {
    fn describe(described: &mut Described) {
        described.query_schema::<T>();
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        read_query(&joined(call.uri().query().unwrap_or_default())).map(Self)
    }
}

/// Each parameter once, with all its values between commas.
fn joined(query: &str) -> String {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let name = name.strip_suffix("[]").unwrap_or(&name).to_owned();
        let joined = values.entry(name).or_default();
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(&value);
    }
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(values)
        .finish()
}

/// Key of a request that must not be carried out twice: `Idempotency-Key`, 1 to 255 printable bytes.
#[derive(Debug, Clone)]
pub struct IdempotencyKey(pub Option<String>);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

impl Input for IdempotencyKey {
    fn describe(described: &mut Described) {
        described.header(
            "Idempotency-Key",
            "Carries the request out once: the same key again answers the first outcome.",
        );
    }

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let Some(value) = call.headers().get(IDEMPOTENCY_KEY) else {
            return Ok(Self(None));
        };
        match value.to_str() {
            Ok(key) if (1..=255).contains(&key.len()) => Ok(Self(Some(key.to_owned()))),
            _ => Err(Error::invalid(
                "Idempotency-Key",
                "expected 1 to 255 printable characters",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Body {
        name: String,
        size: Option<u8>,
    }

    fn message(json: &str) -> String {
        let mut reader = serde_json::Deserializer::from_str(json);
        let error = serde_path_to_error::deserialize::<_, Body>(&mut reader).unwrap_err();
        invalid_json(&error.path().to_string(), error.inner())
            .message()
            .into_owned()
    }

    #[test]
    fn only_json_in_utf8_is_json() {
        let json = [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/merge-patch+json",
            "application/json; v=1",
        ];
        for media_type in json {
            assert!(is_json(media_type), "{media_type}");
        }
        let others = [
            "",
            "json",
            "text/json",
            "text/plain",
            "application/jsonp",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json; charset=latin1",
            "text/plain; a=application/json",
            "application/json, text/plain",
        ];
        for media_type in others {
            assert!(!is_json(media_type), "{media_type}");
        }
    }

    #[test]
    fn a_list_may_be_sent_in_three_ways() {
        for (query, joins) in [
            ("a=1,2&b=3", "a=1%2C2&b=3"),
            ("a=1&b=3&a=2", "a=1%2C2&b=3"),
            ("b=3&a[]=1&a%5B%5D=2", "a=1%2C2&b=3"),
            ("a=&a=2", "a=2"),
            ("", ""),
        ] {
            assert_eq!(joined(query), joins, "{query}");
        }
    }

    #[test]
    fn a_wrong_body_names_the_field() {
        assert_eq!(message("{}"), "name: Required");
        assert_eq!(
            message(r#"{"name":"x","colour":1}"#),
            "colour: is not a field of this request"
        );
        assert_eq!(
            message(r#"{"name":7}"#),
            "name: Invalid input: invalid type: integer `7`, expected a string"
        );
        assert_eq!(
            message(r#"{"name":"x","size":300}"#),
            "size: Invalid input: invalid value: integer `300`, expected u8"
        );
        assert_eq!(message("nonsense"), "body: Invalid input: expected ident");
    }
}
