//! Passkeys: add, use and remove. `static/web/gantry.js` has the `WebAuthn` calls of the browser.

use http::StatusCode;
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    api::accounts::passkeys::{self, Passkeys},
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        account,
        form::{NoFields, OpenForm, RowId},
        page::{PageResponse, SessionForm, Visitor, page, public_page},
        sign_in::{self, SignInRequest},
    },
};

pub(super) static CREATE_CHALLENGE: Endpoint = page(
    "page-ask-new-passkey",
    "Request a challenge for a new passkey",
    Verb::Post,
    "/account/passkeys/ask",
    || mount(create_challenge),
);
pub(super) static ADD: Endpoint = page(
    "page-add-passkey",
    "Add a passkey",
    Verb::Post,
    "/account/passkeys",
    || mount(add),
);
pub(super) static REMOVE: Endpoint = page(
    "page-remove-passkey",
    "Remove a passkey",
    Verb::Post,
    "/account/passkeys/remove",
    || mount(remove),
);
pub(super) static SIGN_IN_CHALLENGE: Endpoint = public_page(
    "page-ask-passkey",
    "Request a challenge for a sign-in with a passkey",
    Verb::Post,
    "/sign-in/passkey/ask",
    || mount(sign_in_challenge),
);
pub(super) static SIGN_IN: Endpoint = public_page(
    "page-sign-in-passkey",
    "Sign in with a passkey",
    Verb::Post,
    "/sign-in/passkey",
    || mount(sign_in_with),
);

/// The response of an authenticator.
#[derive(Deserialize)]
struct PasskeyForm {
    challenge: Uuid,
    /// The credential as JSON (`WebAuthn` `PublicKeyCredential.toJSON`).
    answer: String,
    /// The name of a new passkey.
    #[serde(default)]
    name: String,
    /// The path to redirect to after the sign-in.
    #[serde(default)]
    next: String,
}

fn relying_party(origin: &str) -> Result<Passkeys, Error> {
    Passkeys::at(origin).ok_or(Error::NotFound)
}

async fn create_challenge(
    visitor: Visitor,
    _: SessionForm<NoFields>,
) -> Result<PageResponse, Error> {
    visitor.skip_audit();
    let context = &visitor.context;
    let challenge = relying_party(&visitor.origin)?
        .begin_registration(
            &context.db,
            &context.entropy,
            &visitor.account,
            context.clock.now(),
        )
        .await?;
    PageResponse::json(&challenge)
}

async fn add(
    visitor: Visitor,
    SessionForm(form): SessionForm<PasskeyForm>,
) -> Result<PageResponse, Error> {
    let context = &visitor.context;
    let answer = (form.challenge, form.answer.as_str());
    match relying_party(&visitor.origin)?
        .finish_registration(
            &context.db,
            visitor.user.id,
            answer,
            &form.name,
            context.clock.now(),
        )
        .await
    {
        Ok(()) => PageResponse::redirect("/account?done=passkey"),
        Err(Error::Rejected(text)) => account::passkey_error(&visitor, format!("{text}.")).await,
        Err(error) => Err(error),
    }
}

async fn remove(
    visitor: Visitor,
    SessionForm(row): SessionForm<RowId>,
) -> Result<PageResponse, Error> {
    passkeys::remove(&visitor.context.db, visitor.user.id, row.id).await?;
    PageResponse::redirect("/account?done=no-passkey")
}

async fn sign_in_challenge(
    request: SignInRequest,
    _: OpenForm<NoFields>,
) -> Result<PageResponse, Error> {
    let context = &request.context;
    PageResponse::json(
        &relying_party(&request.origin)?
            .begin_authentication(&context.db, &context.entropy, context.clock.now())
            .await?,
    )
}

async fn sign_in_with(
    request: SignInRequest,
    OpenForm(form): OpenForm<PasskeyForm>,
) -> Result<PageResponse, Error> {
    let context = &request.context;
    let now = context.clock.now();
    let answer = (form.challenge, form.answer.as_str());
    let Some(user) = relying_party(&request.origin)?
        .authenticate(&context.db, answer, now)
        .await?
    else {
        let page = sign_in::error_page(
            &request,
            "This passkey is not registered. It may have been removed.",
        )?;
        return Ok(page.status(StatusCode::UNPROCESSABLE_ENTITY));
    };
    request.begin_session(user, SIGN_IN.id, &form.next).await
}
