//! Who looks at a page, and how pages ask the API on their behalf.

use bytes::Bytes;
use http::{Method, Request, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    api::{accounts, accounts::Account, context::ApiContext},
    base::error::{Context, Credential, Error},
    platform::{
        access::{User, sessions::Secret},
        http::{
            Body, Call, Input, Peer, body::read, client_kind::InternalClient, openapi::OperationDoc,
        },
    },
    web::{
        assets::{ASSETS, Assets},
        cookie,
    },
};

/// Largest answer of an operation that a page reads, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Somebody who is signed in, on a page that the guard let through.
pub struct Visitor {
    /// Whom operations are asked for.
    pub user: User,
    /// Their account.
    pub account: Account,
    /// The application.
    pub context: ApiContext,
    /// Where the request came from.
    pub peer: Peer,
    /// What the session's cookie holds.
    pub secret: Secret,
    /// Where they reach this server: scheme, name and port.
    pub origin: String,
    path: String,
    done: Option<String>,
    client: InternalClient,
    recorder: Option<std::sync::Arc<crate::platform::audit::Recorder>>,
}

impl Input for Visitor {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let (user, context) = (User::take(call).await?, ApiContext::take(call).await?);
        let secret = cookie::secret(call.headers(), call.peer())
            .ok_or(Error::Unauthenticated(Credential::Missing))?;
        let account = accounts::by_id(&context.db, user.id).await?;
        let origin = call.peer().origin(call.uri(), call.headers());
        let mut query = form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes());
        let done = query
            .find(|(name, _)| name == "done")
            .map(|(_, what)| what.into_owned());
        let (path, client, recorder) = (
            call.uri().path().to_owned(),
            call.internal_client()?,
            call.recorder(),
        );
        Ok(Self {
            user,
            account,
            context,
            peer: call.peer(),
            secret,
            origin,
            path,
            done,
            client,
            recorder,
        })
    }
}

impl Visitor {
    /// What every page of theirs has around it.
    pub fn frame(&self) -> Frame {
        Frame {
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

    /// Leaves no entry in the audit log: the form was only filled in.
    pub fn only_looks(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.pass_on();
        }
    }

    /// What an operation answers to a GET of this path.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.ask(Method::GET, path, None).await
    }

    /// What an operation answers that changes something, and that writes its own entry of the audit log.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let bytes = self.answer(method, path, body).await?;
        // Some answer nothing at all.
        let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(bytes).context("understanding an operation's answer")
    }

    /// The same as it was written: for what is no JSON, or is only handed on.
    pub async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Bytes, Error> {
        if let Some(recorder) = self.recorder.as_ref().filter(|_| method != Method::GET) {
            recorder.pass_on();
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        let answer = self
            .client
            .send(
                request
                    .body(body)
                    .context("building a request to an operation")?,
            )
            .await?;
        read(answer.into_body(), ANSWER_BYTES_MAX)
            .await
            .context("reading an operation's answer")
    }
}

/// What `templates/layout.html` puts around a page.
pub struct Frame {
    pub(super) assets: &'static Assets,
    pub(super) signed_in: Option<SignedIn>,
    path: String,
    done: Option<String>,
}

/// Whose page it is.
pub(super) struct SignedIn {
    pub(super) email: String,
    pub(super) username: String,
    pub(super) form_token: String,
}

impl SignedIn {
    pub(super) fn initial(&self) -> String {
        self.username
            .chars()
            .next()
            .map(|first| first.to_uppercase().collect())
            .unwrap_or_default()
    }
}

impl Frame {
    /// Around a page for anybody.
    pub fn anonymous() -> Self {
        Self {
            assets: &ASSETS,
            signed_in: None,
            path: String::new(),
            done: None,
        }
    }

    /// Around a form that is shown again in the place of the page at `path`.
    #[must_use]
    pub fn of(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// The field that every form has.
    pub(super) fn form_token(&self) -> &str {
        self.signed_in
            .as_ref()
            .map_or("", |signed_in| &signed_in.form_token)
    }

    /// Whether the page is this one.
    pub(super) fn at(&self, path: &str) -> bool {
        self.path == path
    }

    /// Whether it is this one, or one below it.
    pub(super) fn within(&self, path: &str) -> bool {
        self.path
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// What the form before did, if it is one of these words: a page writes its own sentence for each.
    pub(super) fn done(&self, what: &str) -> bool {
        self.done.as_deref() == Some(what)
    }
}
