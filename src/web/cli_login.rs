//! Sign-in of a command-line tool: the page that its link opens, and the code that the user types
//! into the tool.

use askama::Template;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::{
    api::tokens::cli_login::{self, LoginChannel},
    platform::{
        access::Permission,
        error::Error,
        http::{Endpoint, Query, Verb, mount},
        names,
    },
    web::{
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        tokens,
    },
};

/// The Supabase CLI prints a link to the hosted dashboard. The alias serves the same path, so that
/// only the host of the link has to be replaced.
pub(super) static SHOW: Endpoint = Endpoint {
    aliases: &["/dashboard/cli/login"],
    ..page(
        "page-cli-login",
        "Sign in to a command-line tool",
        Verb::Get,
        "/cli/login",
        || mount(show),
    )
};
pub(super) static APPROVE: Endpoint = page(
    "page-cli-login-submit",
    "Create a token for a command-line tool",
    Verb::Post,
    "/cli/login",
    || mount(approve),
);

/// Maximum length of a token name, in characters.
const NAME_CHARS_MAX: usize = 256;

#[derive(Template)]
#[template(path = "cli_login.html")]
struct CliLoginPage {
    layout: Layout,
    login: CliLogin,
    email: String,
}

#[derive(Template)]
#[template(path = "cli_login_code.html")]
struct CliLoginCodePage {
    layout: Layout,
    code: String,
}

/// The parameters of the link.
#[derive(Deserialize, JsonSchema)]
struct CliLogin {
    session_id: Uuid,
    #[serde(default)]
    token_name: String,
    public_key: String,
}

impl CliLogin {
    /// Returns the token name without hidden characters, or a default.
    fn token_name(&self) -> String {
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

async fn show(visitor: Visitor, Query(login): Query<CliLogin>) -> Result<PageResponse, Error> {
    // An invalid public key is rejected before the user confirms.
    LoginChannel::to(&login.public_key, &visitor.context.entropy)?;
    let email = visitor.account.email.clone();
    PageResponse::page(&CliLoginPage {
        layout: visitor.layout(),
        login,
        email,
    })
}

#[derive(Deserialize)]
struct CliLoginForm {
    #[serde(flatten)]
    login: CliLogin,
    days: String,
    access: String,
}

/// Creates the token through the operation and shows the code in the response to the form. A reload
/// is rejected, because the login session was used.
async fn approve(
    visitor: Visitor,
    SessionForm(form): SessionForm<CliLoginForm>,
) -> Result<PageResponse, Error> {
    let context = &visitor.context;
    let session = form.login.session_id;
    let days: i64 = form
        .days
        .parse()
        .map_err(|_| Error::invalid("days", "expected a number"))?;
    let channel = LoginChannel::to(&form.login.public_key, &context.entropy)?;
    cli_login::begin(&context.db, visitor.user.id, session, context.clock.now()).await?;
    let is_read_only = form.access == "read";
    let permissions: Vec<_> = Permission::ALL
        .iter()
        .filter(|it| !is_read_only || it.only_reads())
        .map(|it| it.name())
        .collect();
    let body = json!({"name": form.login.token_name(), "expires_in_days": days, "permissions": permissions});
    let created: tokens::TokenSecret = visitor.post("/v1/tokens", &body).await?;
    let code = cli_login::store_token(
        &context.db,
        &context.entropy,
        session,
        channel,
        created.expose(),
    )
    .await?;
    PageResponse::page(&CliLoginCodePage {
        layout: visitor.layout(),
        code,
    })
}
