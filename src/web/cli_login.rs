//! Signing a command line tool in: the page its link opens, and the code it asks for.

use askama::Template;
use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::tokens::{cli_login, cli_login::Channel},
    base::{error::Error, names},
    platform::{
        access::{Access, Permission},
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, page, tokens},
};

/// Tools that know only the hosted service print its address; with ours in the place of its host the path is the alias.
pub(super) static SHOW: Endpoint = Endpoint {
    aliases: &["/dashboard/cli/login"],
    ..page(
        "page-cli-login",
        "Sign a command line tool in",
        Verb::Get,
        "/cli/login",
        Access::Caller,
        || mount(show),
    )
};
pub(super) static APPROVE: Endpoint = page(
    "page-cli-login-submit",
    "Make a token for a command line tool",
    Verb::Post,
    "/cli/login",
    Access::Caller,
    || mount(approve),
);

/// Longest name of a token.
const NAME_CHARS_MAX: usize = 256;

#[derive(Template)]
#[template(path = "cli_login.html")]
struct Confirm {
    frame: Frame,
    asked: AskedFor,
    email: String,
}

#[derive(Template)]
#[template(path = "cli_login_code.html")]
struct Code {
    frame: Frame,
    code: String,
}

/// What the tool's link says.
#[derive(Deserialize, JsonSchema)]
struct AskedFor {
    session_id: Uuid,
    #[serde(default)]
    token_name: String,
    public_key: String,
}

impl AskedFor {
    /// As a person can read it, and as a token can be called.
    fn name(&self) -> String {
        let name: String = self
            .token_name
            .chars()
            .filter(|c| !names::is_hidden(*c))
            .take(NAME_CHARS_MAX)
            .collect();
        if name.trim().is_empty() {
            "Command line".to_owned()
        } else {
            name
        }
    }
}

async fn show(visitor: Visitor, Query(asked): Query<AskedFor>) -> Result<Answer, Error> {
    // A link that cannot work is not worth a question.
    Channel::to(&asked.public_key, &visitor.context.entropy)?;
    let email = visitor.account.email.clone();
    Answer::page(&Confirm {
        frame: visitor.frame(),
        asked,
        email,
    })
}

#[derive(Deserialize)]
struct Approval {
    #[serde(flatten)]
    asked: AskedFor,
    days: String,
    may: String,
}

/// Makes the token by the operation, so that it is one like any other, and shows the code in this very answer: loading it
/// again finds the session used.
async fn approve(visitor: Visitor, Form(form): Form<Approval>) -> Result<Answer, Error> {
    let (context, session) = (&visitor.context, form.asked.session_id);
    let days: i64 = form
        .days
        .parse()
        .map_err(|_| Error::invalid("days", "expected a number"))?;
    let channel = Channel::to(&form.asked.public_key, &context.entropy)?;
    cli_login::begin(&context.db, visitor.user.id, session, context.clock.now()).await?;
    let only_reads = form.may == "read";
    let permissions: Vec<_> = Permission::ALL
        .iter()
        .filter(|it| !only_reads || it.only_reads())
        .map(|it| it.name())
        .collect();
    let body =
        json!({"name": form.asked.name(), "expires_in_days": days, "permissions": permissions});
    let made: tokens::Made = visitor.ask(Method::POST, "/v1/tokens", Some(&body)).await?;
    let code = cli_login::hand_over(
        &context.db,
        &context.entropy,
        session,
        channel,
        made.expose(),
    )
    .await?;
    Answer::page(&Code {
        frame: visitor.frame(),
        code,
    })
}
