//! The signed-in user of a page, and calls to the API on behalf of that user.

use bytes::Bytes;
use http::{Method, Request, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    api::{
        accounts::{self, Account},
        context::ApiContext,
    },
    platform::{
        access::{User, sessions::SessionSecret},
        error::{Context, CredentialProblem, Error},
        http::{
            Body, Call, Input, Peer, body::read, client_kind::InternalClient,
            operation_doc::OperationDoc,
        },
    },
    web::{
        assets::{ASSETS, Assets},
        cookie,
    },
};

/// Maximum size of an API response that a page reads, in bytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// The signed-in user of a page.
pub struct Visitor {
    /// The caller of operations.
    pub user: User,
    /// The account of the user.
    pub account: Account,
    /// Shared state of the API.
    pub context: ApiContext,
    /// The address and protocol of the browser.
    pub peer: Peer,
    /// The session secret from the cookie.
    pub secret: SessionSecret,
    /// The address of this server as the browser sees it: scheme, host and port.
    pub origin: String,
    path: String,
    /// The completed action, from the query parameter `done`.
    done: Option<String>,
    client: InternalClient,
    recorder: Option<std::sync::Arc<crate::platform::audit::Recorder>>,
}

impl Input for Visitor {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let user = User::take(call).await?;
        let context = ApiContext::take(call).await?;
        let secret = cookie::secret(call.headers(), call.peer())
            .ok_or(Error::Unauthenticated(CredentialProblem::Missing))?;
        let account = accounts::by_id(&context.db, user.id).await?;
        let origin = call.peer().origin(call.uri(), call.headers());
        let mut query = form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes());
        let done = query
            .find(|(name, _)| name == "done")
            .map(|(_, action)| action.into_owned());
        Ok(Self {
            user,
            account,
            context,
            peer: call.peer(),
            secret,
            origin,
            path: call.uri().path().to_owned(),
            done,
            client: call.internal_client()?,
            recorder: call.recorder(),
        })
    }
}

impl Visitor {
    /// Returns the data of `templates/layout.html`.
    pub fn layout(&self) -> Layout {
        Layout {
            assets: &ASSETS,
            signed_in: Some(SignedIn {
                email: self.account.email.clone(),
                username: self.account.username.clone(),
                form_token: self.secret.form_token(),
            }),
            path: self.path.clone(),
            done: self.done.clone(),
        }
    }

    /// Suppresses the audit entry of a form that changed nothing.
    pub fn skip_audit(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.delegate();
        }
    }

    /// Calls a GET operation and parses its response.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, None).await
    }

    /// Calls a POST operation and parses its response.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Error> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Calls a DELETE operation without a body.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.call_raw(Method::DELETE, path, None).await.map(drop)
    }

    /// Calls an operation and parses its response. The operation writes its own audit entry.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let bytes = self.call_raw(method, path, body).await?;
        // Some operations return an empty body.
        let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(bytes).context("parsing a response of the API")
    }

    /// Calls an operation and returns the body of its response.
    pub async fn call_raw(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Bytes, Error> {
        if let Some(recorder) = self.recorder.as_ref().filter(|_| method != Method::GET) {
            recorder.delegate();
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        let response = self
            .client
            .send(request.body(body).context("calling the API")?)
            .await?;
        read(response.into_body(), RESPONSE_BYTES_MAX)
            .await
            .context("reading a response of the API")
    }
}

/// The data of `templates/layout.html`.
pub struct Layout {
    pub(super) assets: &'static Assets,
    pub(super) signed_in: Option<SignedIn>,
    path: String,
    done: Option<String>,
}

/// The signed-in user in the page header.
pub(super) struct SignedIn {
    pub(super) email: String,
    pub(super) username: String,
    pub(super) form_token: String,
}

impl SignedIn {
    /// Returns the first letter of the user name, for the avatar.
    pub(super) fn initial(&self) -> String {
        self.username
            .chars()
            .next()
            .map(|first| first.to_uppercase().collect())
            .unwrap_or_default()
    }
}

impl Layout {
    /// Returns the layout without a signed-in user.
    pub fn anonymous() -> Self {
        Self {
            assets: &ASSETS,
            signed_in: None,
            path: String::new(),
            done: None,
        }
    }

    /// Replaces the path, for a form that is shown again in place of the page at `path`.
    #[must_use]
    pub fn at_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Returns the anti-CSRF token of the session.
    pub(super) fn form_token(&self) -> &str {
        self.signed_in
            .as_ref()
            .map_or("", |signed_in| &signed_in.form_token)
    }

    /// Returns whether this is the current page.
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.path == path
    }

    /// Returns whether the current page is this one or below it.
    pub(super) fn is_within(&self, path: &str) -> bool {
        self.path
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns whether this action was just completed, so that the page confirms it.
    pub(super) fn done(&self, action: &str) -> bool {
        self.done.as_deref() == Some(action)
    }
}
