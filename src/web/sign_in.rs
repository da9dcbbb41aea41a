//! Signing in, with a password or a link, and out again.

use std::net::IpAddr;

use askama::Template;
use http::{HeaderValue, StatusCode, header};
use secrecy::SecretString;
use serde::Deserialize;

use crate::{
    api::{
        accounts,
        accounts::{links, passkeys::Passkeys, sign_in, sign_in::Outcome},
        context::ApiContext,
    },
    base::{error::Error, ids::UserId},
    platform::{
        access::{
            Access, Subject, User, sessions,
            sessions::{Ending, Secret},
        },
        audit::Recorder,
        http::{Call, Endpoint, Input, Peer, Verb, mount, openapi::OperationDoc},
    },
    web::{Answer, Form, Frame, OpenForm, Visitor, cookie, next, page, words},
};

pub(super) static SHOW: Endpoint = page(
    "page-sign-in",
    "Sign in",
    Verb::Get,
    "/sign-in",
    Access::Public,
    || mount(show),
);
pub(super) static SUBMIT: Endpoint = page(
    "page-sign-in-submit",
    "Sign in with a password",
    Verb::Post,
    "/sign-in",
    Access::Public,
    || mount(submit),
);
pub(super) static SHOW_LINK: Endpoint = page(
    "page-sign-in-link",
    "Sign in with a link",
    Verb::Get,
    "/sign-in/link/{link}",
    Access::Public,
    || mount(show_link),
);
pub(super) static USE_LINK: Endpoint = page(
    "page-sign-in-link-submit",
    "Use a link",
    Verb::Post,
    "/sign-in/link/{link}",
    Access::Public,
    || mount(use_link),
);
pub(super) static SIGN_OUT: Endpoint = page(
    "page-sign-out",
    "Sign out",
    Verb::Post,
    "/sign-out",
    Access::Caller,
    || mount(sign_out),
);

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn {
    frame: Frame,
    /// What the provider is called, and the way there.
    provider: Option<(String, String)>,
    /// Whether a passkey can be used here.
    passkeys: bool,
    next: String,
    email: String,
    problem: Option<String>,
    /// After signing out everywhere, or here.
    out: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "sign_in_link.html")]
struct SignInLink {
    frame: Frame,
    email: String,
}

/// Who came to sign in: the browser, and the session it has already.
pub(super) struct Newcomer {
    pub(super) context: ApiContext,
    pub(super) peer: Peer,
    pub(super) user_agent: String,
    /// Where they reach this server.
    pub(super) origin: String,
    query: Vec<(String, String)>,
    signed_in: Option<User>,
    before: Option<Secret>,
    link: Option<Secret>,
    /// Where they set out from to the provider, and where to go on afterwards.
    pub(super) journey: Option<(Secret, String)>,
    pub(super) request_id: String,
}

impl Input for Newcomer {
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
            journey: cookie::journey(call.headers(), call.peer()),
            query: form_urlencoded::parse(call.uri().query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect(),
            signed_in: call.caller().user().cloned(),
            before: cookie::secret(call.headers(), call.peer()),
            link: call.placeholder("link").and_then(Secret::parse),
            request_id: call.request_id().to_owned(),
        })
    }
}

impl Newcomer {
    pub(super) fn asked(&self, name: &str) -> &str {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    fn has_passkeys(&self) -> bool {
        Passkeys::at(&self.origin).is_some()
    }

    pub(super) fn address(&self) -> IpAddr {
        self.peer.address
    }

    /// Ends the session that the browser had, writes down that there is a new one, and hands it over.
    pub(super) async fn welcome(
        &self,
        user: UserId,
        session: &Secret,
        operation: &'static str,
        next: &str,
    ) -> Result<Answer, Error> {
        let Self { context, .. } = self;
        if let (Some(before), Some(signed_in)) = (&self.before, &self.signed_in) {
            sessions::end(
                &context.db,
                signed_in.id,
                Ending::This(&before.digest()),
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
            lately: None,
        };
        let recorder = Recorder::new(
            &user,
            &Subject::Account,
            self.address(),
            &self.request_id,
            operation,
        );
        recorder
            .finish(
                &context.db,
                StatusCode::SEE_OTHER.as_u16(),
                context.clock.now(),
            )
            .await?;
        Ok(
            Answer::to(next::safe(next))?
                .with(header::SET_COOKIE, cookie::set(session, self.peer)?),
        )
    }
}

/// The way to the provider, if there is one.
fn provider(newcomer: &Newcomer, next: &str) -> Option<(String, String)> {
    let provider = newcomer.context.api_settings.provider.as_deref()?;
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("next", next)
        .finish();
    Some((
        provider.name().to_owned(),
        format!("{}?{query}", super::oidc::BEGIN.path),
    ))
}

/// The page with what went wrong.
pub(super) fn again(newcomer: &Newcomer, problem: &str) -> Result<Answer, Error> {
    let next = newcomer
        .journey
        .as_ref()
        .map_or(next::HOME, |(_, next)| next)
        .to_owned();
    let (provider, passkeys, problem) = (
        provider(newcomer, &next),
        newcomer.has_passkeys(),
        Some(problem.to_owned()),
    );
    Answer::page(&SignIn {
        frame: Frame::anonymous(),
        provider,
        passkeys,
        next,
        email: String::new(),
        problem,
        out: None,
    })
}

async fn show(newcomer: Newcomer) -> Result<Answer, Error> {
    let next = next::safe(newcomer.asked("next"));
    if newcomer.signed_in.is_some() {
        return Answer::to(next);
    }
    let out = match newcomer.asked("done") {
        "out" => Some("You are signed out."),
        "everywhere" => Some("You are signed out everywhere."),
        _ => None,
    };
    let (provider, passkeys) = (provider(&newcomer, next), newcomer.has_passkeys());
    Answer::page(&SignIn {
        frame: Frame::anonymous(),
        provider,
        passkeys,
        next: next.to_owned(),
        email: String::new(),
        problem: None,
        out,
    })
}

#[derive(Deserialize)]
struct Credentials {
    email: String,
    password: SecretString,
    #[serde(default)]
    next: String,
}

async fn submit(
    newcomer: Newcomer,
    OpenForm(form): OpenForm<Credentials>,
) -> Result<Answer, Error> {
    let (context, session) = (
        &newcomer.context,
        Secret::generate(&newcomer.context.entropy),
    );
    let Credentials {
        email,
        password,
        next,
    } = form;
    let now = context.clock.now();
    let (problem, status, wait) = match sign_in::try_password(
        &context.db,
        &email,
        password,
        newcomer.address(),
        now,
    )
    .await?
    {
        Outcome::Right(user) => {
            sessions::begin(
                &context.db,
                user,
                &session,
                newcomer.address(),
                &newcomer.user_agent,
                now,
            )
            .await?;
            return newcomer.welcome(user, &session, SUBMIT.id, &next).await;
        }
        Outcome::Wrong => (
            "Email address and password do not belong together.".to_owned(),
            StatusCode::UNPROCESSABLE_ENTITY,
            None,
        ),
        Outcome::Held(wait) => (
            words::held(wait),
            StatusCode::TOO_MANY_REQUESTS,
            Some(words::whole_secs(wait)),
        ),
    };
    let next = next::safe(&next).to_owned();
    let (provider, passkeys) = (provider(&newcomer, &next), newcomer.has_passkeys());
    let page = SignIn {
        frame: Frame::anonymous(),
        provider,
        passkeys,
        next,
        email,
        problem: Some(problem),
        out: None,
    };
    let answer = Answer::page(&page)?.status(status);
    Ok(match wait {
        Some(secs) => answer.with(header::RETRY_AFTER, HeaderValue::from(secs)),
        None => answer,
    })
}

async fn show_link(newcomer: Newcomer) -> Result<Answer, Error> {
    let link = newcomer.link.as_ref().ok_or(Error::NotFound)?;
    let owner = links::owner(
        &newcomer.context.db,
        &link.digest(),
        newcomer.context.clock.now(),
    )
    .await?;
    Answer::page(&SignInLink {
        frame: Frame::anonymous(),
        email: owner.email,
    })
}

#[derive(Deserialize)]
struct Nothing {}

async fn use_link(
    newcomer: Newcomer,
    OpenForm(Nothing {}): OpenForm<Nothing>,
) -> Result<Answer, Error> {
    let link = newcomer.link.as_ref().ok_or(Error::NotFound)?;
    let (context, session) = (
        &newcomer.context,
        Secret::generate(&newcomer.context.entropy),
    );
    let browser = (newcomer.address(), newcomer.user_agent.as_str());
    let user = links::redeem(
        &context.db,
        &link.digest(),
        &session,
        browser,
        context.clock.now(),
    )
    .await?;
    newcomer
        .welcome(user, &session, USE_LINK.id, next::HOME)
        .await
}

async fn sign_out(visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Result<Answer, Error> {
    let digest = visitor.secret.digest();
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        Ending::This(&digest),
        visitor.context.clock.now(),
    )
    .await?;
    Ok(Answer::to("/sign-in?done=out")?.with(header::SET_COOKIE, cookie::clear(visitor.peer)?))
}
