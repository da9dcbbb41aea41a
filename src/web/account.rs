//! The account page: profile, password and passkeys.

use askama::Template;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::{
    api::accounts::{
        passkeys::{self, PasskeySummary, Passkeys},
        passwords,
        sign_in::{self, SignInOutcome},
    },
    platform::{
        access::sessions::{self, SessionSelection},
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        labels::{self, Timestamp},
        page::{Layout, PageResponse, SessionForm, Visitor, page},
    },
};

pub(super) static ACCOUNT: Endpoint =
    page("page-account", "Account", Verb::Get, "/account", || {
        mount(account)
    });
pub(super) static SET_PASSWORD: Endpoint = page(
    "page-set-password",
    "Change password",
    Verb::Post,
    "/account/password",
    || mount(set_password),
);

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    layout: Layout,
    email: String,
    username: String,
    id: String,
    /// When the password was last changed; empty without a password.
    password_changed: Option<Timestamp>,
    /// Whether this server is reached by a host name, as passkeys require.
    passkeys_supported: bool,
    passkeys: Vec<Row>,
    errors: AccountErrors,
}

/// A row of the passkey list.
struct Row {
    passkey: PasskeySummary,
    added: Timestamp,
    used: Option<Timestamp>,
}

/// Error messages by field.
#[derive(Default, PartialEq, Eq)]
struct AccountErrors {
    current: Option<String>,
    password: Option<String>,
    confirmation: Option<String>,
    passkey: Option<String>,
}

async fn account(visitor: Visitor) -> Result<PageResponse, Error> {
    show(&visitor, AccountErrors::default()).await
}

/// Shows the page, with the errors of a rejected form.
async fn show(visitor: &Visitor, errors: AccountErrors) -> Result<PageResponse, Error> {
    let now = visitor.context.clock.now();
    let password_changed = passwords::changed_at(&visitor.context.db, visitor.user.id)
        .await?
        .map(|at| Timestamp::new(at, now));
    let account = visitor.account.clone();
    let passkeys = passkeys::list(&visitor.context.db, visitor.user.id)
        .await?
        .into_iter()
        .map(|passkey: PasskeySummary| Row {
            added: Timestamp::new(passkey.created_at, now),
            used: passkey.last_used_at.map(|at| Timestamp::new(at, now)),
            passkey,
        })
        .collect();
    let page = AccountPage {
        layout: visitor.layout().at_path("/account"),
        email: account.email,
        username: account.username,
        id: account.gotrue_id.to_string(),
        password_changed,
        passkeys_supported: Passkeys::at(&visitor.origin).is_some(),
        passkeys,
        errors,
    };
    let is_rejected = page.errors != AccountErrors::default();
    PageResponse::form(&page, is_rejected)
}

/// Returns the account page with an error message at the passkey form.
pub(super) async fn passkey_error(
    visitor: &Visitor,
    message: String,
) -> Result<PageResponse, Error> {
    let errors = AccountErrors {
        passkey: Some(message),
        ..AccountErrors::default()
    };
    show(visitor, errors).await
}

#[derive(Deserialize)]
struct NewPassword {
    #[serde(default)]
    current: SecretString,
    password: SecretString,
    confirmation: SecretString,
}

/// Sets the password. Requires the current one if the account has a password. Ends every other
/// session.
async fn set_password(
    visitor: Visitor,
    SessionForm(form): SessionForm<NewPassword>,
) -> Result<PageResponse, Error> {
    let context = &visitor.context;
    let reject = |errors| show(&visitor, errors);
    if form.password.expose_secret() != form.confirmation.expose_secret() {
        return reject(AccountErrors {
            confirmation: Some("The passwords do not match.".to_owned()),
            ..AccountErrors::default()
        })
        .await;
    }
    if passwords::changed_at(&context.db, visitor.user.id)
        .await?
        .is_some()
    {
        let message = match sign_in::try_password(
            &context.db,
            &visitor.account.email,
            form.current,
            visitor.peer.address,
            context.clock.now(),
        )
        .await?
        {
            SignInOutcome::Accepted(_) => None,
            SignInOutcome::Rejected => Some("The current password is incorrect.".to_owned()),
            SignInOutcome::Throttled(wait) => Some(labels::retry_message(wait)),
        };
        if message.is_some() {
            return reject(AccountErrors {
                current: message,
                ..AccountErrors::default()
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
            return reject(AccountErrors {
                password: Some(problem.into_owned()),
                ..AccountErrors::default()
            })
            .await;
        }
        Err(error) => return Err(error),
    }
    sessions::end(
        &context.db,
        visitor.user.id,
        SessionSelection::Others(&visitor.secret.digest()),
        context.clock.now(),
    )
    .await?;
    PageResponse::redirect("/account?done=password")
}
