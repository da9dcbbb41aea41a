//! One's own account: who one is here, and the password.

use askama::Template;
use http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::{
    api::accounts::{
        passkeys,
        passkeys::{Known, Passkeys},
        passwords, sign_in,
        sign_in::Outcome,
    },
    base::error::Error,
    platform::{
        access::{Access, sessions, sessions::Ending},
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, page, words, words::Moment},
};

pub(super) static ACCOUNT: Endpoint = page(
    "page-account",
    "Account",
    Verb::Get,
    "/account",
    Access::Caller,
    || mount(account),
);
pub(super) static SET_PASSWORD: Endpoint = page(
    "page-set-password",
    "Change the password",
    Verb::Post,
    "/account/password",
    Access::Caller,
    || mount(set_password),
);

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    frame: Frame,
    email: String,
    username: String,
    id: String,
    /// When the password was changed, if there is one.
    changed: Option<Moment>,
    /// None can be added where this server is reached by an address of numbers.
    passkeys_here: bool,
    passkeys: Vec<Row>,
    wrong: Wrong,
}

/// A passkey, as the page shows it.
struct Row {
    passkey: Known,
    added: Moment,
    used: Option<Moment>,
}

/// What is wrong with the fields, when the form is shown again.
#[derive(Default)]
struct Wrong {
    current: Option<String>,
    password: Option<String>,
    again: Option<String>,
    passkey: Option<String>,
}

async fn account(visitor: Visitor) -> Result<Answer, Error> {
    show(&visitor, StatusCode::OK, Wrong::default()).await
}

async fn show(visitor: &Visitor, status: StatusCode, wrong: Wrong) -> Result<Answer, Error> {
    let now = visitor.context.clock.now();
    let changed = passwords::changed_at(&visitor.context.db, visitor.user.id)
        .await?
        .map(|at| Moment::new(at, now));
    let account = visitor.account.clone();
    let row = |passkey: Known| Row {
        added: Moment::new(passkey.created_at, now),
        used: passkey.last_used_at.map(|at| Moment::new(at, now)),
        passkey,
    };
    let passkeys = passkeys::list(&visitor.context.db, visitor.user.id)
        .await?
        .into_iter()
        .map(row)
        .collect();
    let page = AccountPage {
        frame: visitor.frame().of("/account"),
        email: account.email,
        username: account.username,
        id: account.gotrue_id.to_string(),
        changed,
        passkeys_here: Passkeys::at(&visitor.origin).is_some(),
        passkeys,
        wrong,
    };
    Ok(Answer::page(&page)?.status(status))
}

/// The page, with why a passkey was not added.
pub(super) async fn passkey_refused(visitor: &Visitor, why: String) -> Result<Answer, Error> {
    show(
        visitor,
        StatusCode::UNPROCESSABLE_ENTITY,
        Wrong {
            passkey: Some(why),
            ..Wrong::default()
        },
    )
    .await
}

#[derive(Deserialize)]
struct NewPassword {
    #[serde(default)]
    current: SecretString,
    password: SecretString,
    again: SecretString,
}

/// Whoever knows the password may change it; whoever has none may set one. Every other session ends.
async fn set_password(visitor: Visitor, Form(form): Form<NewPassword>) -> Result<Answer, Error> {
    let (context, again) = (&visitor.context, |wrong| {
        show(&visitor, StatusCode::UNPROCESSABLE_ENTITY, wrong)
    });
    if form.password.expose_secret() != form.again.expose_secret() {
        return again(Wrong {
            again: Some("The two are not the same.".to_owned()),
            ..Wrong::default()
        })
        .await;
    }
    if passwords::changed_at(&context.db, visitor.user.id)
        .await?
        .is_some()
    {
        let (email, address) = (&visitor.account.email, visitor.peer.address);
        let wrong = match sign_in::try_password(
            &context.db,
            email,
            form.current,
            address,
            context.clock.now(),
        )
        .await?
        {
            Outcome::Right(_) => None,
            Outcome::Wrong => Some("This is not your password.".to_owned()),
            Outcome::Held(wait) => Some(words::held(wait)),
        };
        if wrong.is_some() {
            return again(Wrong {
                current: wrong,
                ..Wrong::default()
            })
            .await;
        }
    }
    match passwords::set(
        &context.db,
        &context.entropy,
        &visitor.account,
        form.password,
        context.clock.now(),
    )
    .await
    {
        Ok(()) => {}
        Err(Error::Invalid { problem, .. }) => {
            return again(Wrong {
                password: Some(problem.into_owned()),
                ..Wrong::default()
            })
            .await;
        }
        Err(error) => return Err(error),
    }
    sessions::end(
        &context.db,
        visitor.user.id,
        Ending::Others(&visitor.secret.digest()),
        context.clock.now(),
    )
    .await?;
    Answer::to("/account?done=password")
}
