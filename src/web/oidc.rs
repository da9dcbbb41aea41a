//! Signing in through a provider: the way there, and the way back.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{StatusCode, header};

use crate::{
    api::accounts::provider::{Journey, Person, Provider, identities, identities::Known},
    base::error::Error,
    platform::{
        access::{Access, Subject, User, sessions, sessions::Secret},
        audit::Recorder,
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, cookie, next, page, sign_in, sign_in::Newcomer},
};

/// A link, not a form: a form of ours leads nowhere else, and to begin is to do nothing yet.
pub(super) static BEGIN: Endpoint = page(
    "page-sign-in-oidc",
    "Sign in through the provider",
    Verb::Get,
    "/sign-in/provider",
    Access::Public,
    || mount(begin),
);
pub(super) static RETURN: Endpoint = page(
    "page-sign-in-oidc-return",
    "Come back from the provider",
    Verb::Get,
    "/sign-in/provider/return",
    Access::Public,
    || mount(come_back),
);

/// Longest code that is handed on.
const CODE_BYTES_MAX: usize = 4_096;

fn provider(newcomer: &Newcomer) -> Result<&Provider, Error> {
    newcomer
        .context
        .api_settings
        .provider
        .as_deref()
        .ok_or(Error::NotFound)
}

fn back(newcomer: &Newcomer) -> String {
    format!("{}{}", newcomer.origin, RETURN.path)
}

async fn begin(newcomer: Newcomer) -> Result<Answer, Error> {
    let provider = provider(&newcomer)?;
    let (secret, context) = (
        Secret::generate(&newcomer.context.entropy),
        &newcomer.context,
    );
    let way = provider
        .way(
            &Journey::of(secret.clone()),
            &back(&newcomer),
            context.clock.ticks(),
        )
        .await?;
    let set = cookie::set_journey(&secret, next::safe(newcomer.asked("next")), newcomer.peer)?;
    Ok(Answer::to(&way)?.with(header::SET_COOKIE, set))
}

/// Whatever comes of it, the browser's journey is over: the same way back leads nowhere a second time.
async fn come_back(newcomer: Newcomer) -> Result<Answer, Error> {
    let over = cookie::clear_journey(newcomer.peer)?;
    Ok(arrive(&newcomer).await?.with(header::SET_COOKIE, over))
}

async fn arrive(newcomer: &Newcomer) -> Result<Answer, Error> {
    let (provider, context) = (provider(newcomer)?, &newcomer.context);
    let Some((secret, next)) = &newcomer.journey else {
        return refuse(
            newcomer,
            "This sign-in was not begun in this browser, or too long ago. Begin again.",
        );
    };
    let (journey, state) = (Journey::of(secret.clone()), newcomer.asked("state"));
    if verify_slices_are_equal(state.as_bytes(), journey.state().as_bytes()).is_err() {
        return refuse(
            newcomer,
            "This sign-in was not begun in this browser, or too long ago. Begin again.",
        );
    }
    let code = newcomer.asked("code");
    if code.is_empty() || code.len() > CODE_BYTES_MAX {
        return refuse(newcomer, "The sign-in was not finished there.");
    }
    let (at, now) = (context.clock.ticks(), context.clock.now());
    let Some(person) = provider
        .person(&journey, code.to_owned(), &back(newcomer), (at, now))
        .await?
    else {
        return refuse(
            newcomer,
            "What came back could not be trusted. Begin again; if it stays, tell whoever runs this server.",
        );
    };
    let user = match find(newcomer, provider, &person).await? {
        Known::As(user) => user,
        Known::Unverified => {
            return refuse(
                newcomer,
                "Your email address is not verified there. Verify it, and begin again.",
            );
        }
        Known::Nobody => {
            return refuse(
                newcomer,
                "Nobody here is known by that account. Whoever runs this server can make one for you.",
            );
        }
    };
    let session = Secret::generate(&context.entropy);
    sessions::begin(
        &context.db,
        user,
        &session,
        newcomer.address(),
        &newcomer.user_agent,
        now,
    )
    .await?;
    newcomer.welcome(user, &session, RETURN.id, next).await
}

async fn find(newcomer: &Newcomer, provider: &Provider, person: &Person) -> Result<Known, Error> {
    let context = &newcomer.context;
    let recorder = |user: &User| {
        Recorder::new(
            user,
            &Subject::Account,
            newcomer.address(),
            &newcomer.request_id,
            RETURN.id,
        )
    };
    identities::find(&context.db, provider, person, context.clock.now(), recorder).await
}

fn refuse(newcomer: &Newcomer, why: &str) -> Result<Answer, Error> {
    Ok(sign_in::again(newcomer, why)?.status(StatusCode::UNPROCESSABLE_ENTITY))
}
