//! Passkeys: adding, using and removing them. The browser's part is in `static/web/gantry.js`: there is no other way to ask it.

use http::StatusCode;
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    api::accounts::{passkeys, passkeys::Passkeys},
    base::error::Error,
    platform::{
        access::{Access, sessions, sessions::Secret},
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, OpenForm, Visitor, account, page, sign_in, sign_in::Newcomer},
};

pub(super) static ASK_NEW: Endpoint = page(
    "page-ask-new-passkey",
    "Begin to add a passkey",
    Verb::Post,
    "/account/passkeys/ask",
    Access::Caller,
    || mount(ask_new),
);
pub(super) static ADD: Endpoint = page(
    "page-add-passkey",
    "Add a passkey",
    Verb::Post,
    "/account/passkeys",
    Access::Caller,
    || mount(add),
);
pub(super) static REMOVE: Endpoint = page(
    "page-remove-passkey",
    "Remove a passkey",
    Verb::Post,
    "/account/passkeys/remove",
    Access::Caller,
    || mount(remove),
);
pub(super) static ASK: Endpoint = page(
    "page-ask-passkey",
    "Begin to sign in with a passkey",
    Verb::Post,
    "/sign-in/passkey/ask",
    Access::Public,
    || mount(ask),
);
pub(super) static USE: Endpoint = page(
    "page-sign-in-passkey",
    "Sign in with a passkey",
    Verb::Post,
    "/sign-in/passkey",
    Access::Public,
    || mount(sign_in_with),
);

#[derive(Deserialize)]
struct Nothing {}

/// What a browser answered.
#[derive(Deserialize)]
struct Answered {
    challenge: Uuid,
    answer: String,
    /// Of a new one.
    #[serde(default)]
    name: String,
    /// Where to go on after signing in.
    #[serde(default)]
    next: String,
}

fn here(origin: &str) -> Result<Passkeys, Error> {
    Passkeys::at(origin).ok_or(Error::NotFound)
}

async fn ask_new(visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Result<Answer, Error> {
    visitor.only_looks();
    let context = &visitor.context;
    let challenge = here(&visitor.origin)?
        .ask_new(
            &context.db,
            &context.entropy,
            &visitor.account,
            context.clock.now(),
        )
        .await?;
    Answer::json(&challenge)
}

async fn add(visitor: Visitor, Form(answered): Form<Answered>) -> Result<Answer, Error> {
    let (context, answer) = (
        &visitor.context,
        (answered.challenge, answered.answer.as_str()),
    );
    match here(&visitor.origin)?
        .add(
            &context.db,
            visitor.user.id,
            answer,
            &answered.name,
            context.clock.now(),
        )
        .await
    {
        Ok(()) => Answer::to("/account?done=passkey"),
        Err(Error::Rejected(text)) => account::passkey_refused(&visitor, format!("{text}.")).await,
        Err(error) => Err(error),
    }
}

#[derive(Deserialize)]
struct Which {
    id: i64,
}

async fn remove(visitor: Visitor, Form(which): Form<Which>) -> Result<Answer, Error> {
    passkeys::remove(&visitor.context.db, visitor.user.id, which.id).await?;
    Answer::to("/account?done=no-passkey")
}

async fn ask(newcomer: Newcomer, OpenForm(Nothing {}): OpenForm<Nothing>) -> Result<Answer, Error> {
    let context = &newcomer.context;
    Answer::json(
        &here(&newcomer.origin)?
            .ask(&context.db, &context.entropy, context.clock.now())
            .await?,
    )
}

async fn sign_in_with(
    newcomer: Newcomer,
    OpenForm(answered): OpenForm<Answered>,
) -> Result<Answer, Error> {
    let (context, now) = (&newcomer.context, newcomer.context.clock.now());
    let answer = (answered.challenge, answered.answer.as_str());
    let Some(user) = here(&newcomer.origin)?
        .recognise(&context.db, answer, now)
        .await?
    else {
        let page = sign_in::again(
            &newcomer,
            "This passkey signs nobody in here. It may have been removed.",
        )?;
        return Ok(page.status(StatusCode::UNPROCESSABLE_ENTITY));
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
    newcomer
        .welcome(user, &session, USE.id, &answered.next)
        .await
}
