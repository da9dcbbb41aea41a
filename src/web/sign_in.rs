//! Sign-in with a password or a one-time link, and sign-out.

use std::net::IpAddr;

use askama::Template;
use gantry_base::ids::UserId;
use http::{HeaderValue, StatusCode, header};
use secrecy::SecretString;
use serde::Deserialize;

use crate::{
    api::{
        accounts::{
            self,
            passkeys::Passkeys,
            sign_in::{self, SignInOutcome},
            sign_in_links,
        },
        context::ApiContext,
    },
    platform::{
        access::{
            Subject, User,
            sessions::{self, SessionSecret, SessionSelection},
        },
        audit::Recorder,
        error::Error,
        http::{Call, Endpoint, Input, Peer, Verb, mount, operation_doc::OperationDoc},
    },
    web::{
        cookie,
        form::{NoFields, OpenForm},
        labels,
        page::{Layout, PageResponse, SessionForm, Visitor, page, public_page},
        redirect,
    },
};

pub(super) static SHOW: Endpoint =
    public_page("page-sign-in", "Sign in", Verb::Get, "/sign-in", || {
        mount(show)
    });
pub(super) static SUBMIT: Endpoint = public_page(
    "page-sign-in-submit",
    "Sign in with a password",
    Verb::Post,
    "/sign-in",
    || mount(submit),
);
pub(super) static SHOW_LINK: Endpoint = public_page(
    "page-sign-in-link",
    "Sign in with a link",
    Verb::Get,
    "/sign-in/link/{link}",
    || mount(show_link),
);
pub(super) static USE_LINK: Endpoint = public_page(
    "page-sign-in-link-submit",
    "Submit a sign-in link",
    Verb::Post,
    "/sign-in/link/{link}",
    || mount(use_link),
);
pub(super) static SIGN_OUT: Endpoint =
    page("page-sign-out", "Sign out", Verb::Post, "/sign-out", || {
        mount(sign_out)
    });

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    layout: Layout,
    /// The name of the identity provider and the path to it.
    provider: Option<(String, String)>,
    /// Whether this server is reached by a host name, as passkeys require.
    passkeys: bool,
    next: String,
    email: String,
    problem: Option<String>,
    /// Confirms a sign-out.
    notice: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "sign_in_link.html")]
struct SignInLinkPage {
    layout: Layout,
    email: String,
}

/// A request of the sign-in pages: the browser, and its existing session if it has one.
pub(super) struct SignInRequest {
    pub(super) context: ApiContext,
    pub(super) peer: Peer,
    pub(super) user_agent: String,
    /// The address of this server as the browser sees it: scheme, host and port.
    pub(super) origin: String,
    query: Vec<(String, String)>,
    signed_in: Option<User>,
    previous_session: Option<SessionSecret>,
    link: Option<SessionSecret>,
    /// The pending sign-in through the identity provider: its secret, and the path to redirect to.
    pub(super) pending: Option<(SessionSecret, String)>,
    pub(super) request_id: String,
}

impl SignInPage {
    /// Returns an empty form that redirects to `next` after the sign-in.
    fn new(request: &SignInRequest, next: String) -> Self {
        Self {
            layout: Layout::anonymous(),
            provider: provider_link(request, &next),
            passkeys: request.supports_passkeys(),
            next,
            email: String::new(),
            problem: None,
            notice: None,
        }
    }
}

impl Input for SignInRequest {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let context = ApiContext::take(call).await?;
        let user_agent = call
            .headers()
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok());
        Ok(Self {
            context,
            peer: call.peer(),
            user_agent: user_agent.unwrap_or_default().to_owned(),
            origin: call.peer().origin(call.uri(), call.headers()),
            pending: cookie::pending_sign_in(call.headers(), call.peer()),
            query: form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect(),
            signed_in: call.caller().user().cloned(),
            previous_session: cookie::secret(call.headers(), call.peer()),
            link: call.placeholder("link").and_then(SessionSecret::parse),
            request_id: call.request_id().to_owned(),
        })
    }
}

impl SignInRequest {
    /// Returns the first value of a query parameter, or an empty string.
    pub(super) fn query_value(&self, name: &str) -> &str {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    fn supports_passkeys(&self) -> bool {
        Passkeys::at(&self.origin).is_some()
    }

    pub(super) fn address(&self) -> IpAddr {
        self.peer.address
    }

    /// Begins a session of an authenticated user, and completes the sign-in.
    pub(super) async fn begin_session(
        &self,
        user: UserId,
        operation: &'static str,
        next: &str,
    ) -> Result<PageResponse, Error> {
        let Self { context, .. } = self;
        let session = SessionSecret::generate(&context.entropy);
        let now = context.clock.now();
        let (address, browser) = (self.address(), &self.user_agent);
        sessions::begin(&context.db, user, &session, address, browser, now).await?;
        self.complete_sign_in(user, &session, operation, next).await
    }

    /// Completes a sign-in: ends the previous session of the browser, writes the audit entry, sets
    /// the cookie and redirects.
    async fn complete_sign_in(
        &self,
        user: UserId,
        session: &SessionSecret,
        operation: &'static str,
        next: &str,
    ) -> Result<PageResponse, Error> {
        let Self { context, .. } = self;
        if let (Some(previous), Some(signed_in)) = (&self.previous_session, &self.signed_in) {
            sessions::end(
                &context.db,
                signed_in.id,
                SessionSelection::This(&previous.digest()),
                context.clock.now(),
            )
            .await?;
        }
        let gotrue_id = accounts::by_id(&context.db, user).await?.gotrue_id;
        let user = User {
            id: user,
            gotrue_id,
            token: None,
            grant: None,
            approval: None,
            activity: None,
            signed_in_at: None,
        };
        let recorder = Recorder::new(
            &user,
            &Subject::Account,
            (self.address(), &self.request_id, operation),
            &context.entropy,
        );
        recorder
            .finish(
                &context.db,
                StatusCode::SEE_OTHER.as_u16(),
                context.clock.now(),
            )
            .await?;
        Ok(PageResponse::redirect(redirect::safe_path(next))?
            .with_header(header::SET_COOKIE, cookie::set(session, self.peer)?))
    }
}

/// Returns the name of the identity provider and the path to it, if one is configured.
fn provider_link(request: &SignInRequest, next: &str) -> Option<(String, String)> {
    let provider = request.context.api_settings.provider.as_deref()?;
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("next", next)
        .finish();
    Some((
        provider.name().to_owned(),
        format!("{}?{query}", super::oidc::BEGIN.path),
    ))
}

/// Returns the sign-in page with an error message.
pub(super) fn error_page(request: &SignInRequest, message: &str) -> Result<PageResponse, Error> {
    let next = request
        .pending
        .as_ref()
        .map_or(redirect::HOME, |(_, next)| next)
        .to_owned();
    PageResponse::page(&SignInPage {
        problem: Some(message.to_owned()),
        ..SignInPage::new(request, next)
    })
}

async fn show(request: SignInRequest) -> Result<PageResponse, Error> {
    let next = redirect::safe_path(request.query_value("next"));
    let again = request.query_value("again") == "true";
    if request.signed_in.is_some() && !again {
        return PageResponse::redirect(next);
    }
    let notice = match request.query_value("done") {
        "out" => Some("You have been signed out."),
        "everywhere" => Some("You have been signed out everywhere."),
        _ => None,
    };
    PageResponse::page(&SignInPage {
        notice,
        ..SignInPage::new(&request, next.to_owned())
    })
}

#[derive(Deserialize)]
struct PasswordForm {
    email: String,
    password: SecretString,
    #[serde(default)]
    next: String,
}

async fn submit(
    request: SignInRequest,
    OpenForm(form): OpenForm<PasswordForm>,
) -> Result<PageResponse, Error> {
    let context = &request.context;
    let PasswordForm {
        email,
        password,
        next,
    } = form;
    let now = context.clock.now();
    let (problem, status, wait) =
        match sign_in::try_password(&context.db, &email, password, request.address(), now).await? {
            SignInOutcome::Accepted(user) => {
                return request.begin_session(user, SUBMIT.id, &next).await;
            }
            SignInOutcome::Rejected => (
                "Incorrect email address or password.".to_owned(),
                StatusCode::UNPROCESSABLE_ENTITY,
                None,
            ),
            SignInOutcome::Throttled(wait) => (
                labels::retry_message(wait),
                StatusCode::TOO_MANY_REQUESTS,
                Some(labels::ceil_secs(wait)),
            ),
        };
    let next = redirect::safe_path(&next).to_owned();
    let page = SignInPage {
        email,
        problem: Some(problem),
        ..SignInPage::new(&request, next)
    };
    let response = PageResponse::page(&page)?.status(status);
    Ok(match wait {
        Some(secs) => response.with_header(header::RETRY_AFTER, HeaderValue::from(secs)),
        None => response,
    })
}

async fn show_link(request: SignInRequest) -> Result<PageResponse, Error> {
    let link = request.link.as_ref().ok_or(Error::NotFound)?;
    let owner = sign_in_links::owner(
        &request.context.db,
        &link.digest(),
        request.context.clock.now(),
    )
    .await?;
    PageResponse::page(&SignInLinkPage {
        layout: Layout::anonymous(),
        email: owner.email,
    })
}

async fn use_link(request: SignInRequest, _: OpenForm<NoFields>) -> Result<PageResponse, Error> {
    let link = request.link.as_ref().ok_or(Error::NotFound)?;
    let context = &request.context;
    let session = SessionSecret::generate(&context.entropy);
    let browser = (request.address(), request.user_agent.as_str());
    let user = sign_in_links::redeem(
        &context.db,
        &link.digest(),
        &session,
        browser,
        context.clock.now(),
    )
    .await?;
    request
        .complete_sign_in(user, &session, USE_LINK.id, redirect::HOME)
        .await
}

async fn sign_out(visitor: Visitor, _: SessionForm<NoFields>) -> Result<PageResponse, Error> {
    let digest = visitor.secret.digest();
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        SessionSelection::This(&digest),
        visitor.context.clock.now(),
    )
    .await?;
    Ok(PageResponse::redirect("/sign-in?done=out")?
        .with_header(header::SET_COOKIE, cookie::clear(visitor.peer)?))
}
