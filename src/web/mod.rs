//! The account pages: server-rendered, and whole without JavaScript.
//!
//! A page is an [`Endpoint`] like an operation of the API, so the same guard counts, decides, records and bounds it; only
//! its [`ClientKind`] differs: a session says who asks, and errors are pages. What a page shows or does it asks of the API's
//! operations in this process ([`Visitor::get`] and its siblings), as the visitor. So it has no rules of its own, and can
//! do nothing that the API would refuse. Only what is about the session itself is done here.
//!
//! A new page is a template, a struct for it, a handler, and a line in `PAGES`:
//!
//! - it takes a [`Visitor`], and answers [`Answer::page`];
//! - a form posts to an endpoint that takes a [`Form`], which checks that one of our pages made it, and answers
//!   [`Answer::to`] the page that shows the outcome.

mod account;
mod answer;
mod assets;
mod cli_login;
mod cookie;
mod errors;
mod form;
mod home;
mod may;
mod named;
mod next;
mod oauth;
mod oidc;
mod organizations;
mod passkeys;
mod places;
mod projects;
mod sessions;
mod sign_in;
mod tokens;
mod visitor;
mod words;

pub use answer::Answer;
pub use form::{Form, OpenForm};
pub use visitor::{Frame, Visitor};

use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{
            Endpoint, Tag, Verb, client_kind::ClientKind, endpoint::MountedHandler,
            input::RequestLine, mount, router::EndpointSet,
        },
        rate_limits::STANDARD,
    },
};

/// How browsers are met.
static FACE: ClientKind = ClientKind {
    presented: cookie::presented,
    refuse: errors::refuse,
    calls_operations: true,
};

/// Every page, form and file.
static PAGES: &[&Endpoint] = &[
    &home::HOME,
    &projects::NEW,
    &projects::CREATE,
    &projects::SHOW,
    &projects::KEYS,
    &projects::LOGS,
    &projects::USAGE,
    &projects::INGEST_KEYS,
    &projects::ADD_INGEST_KEY,
    &projects::DELETE_INGEST_KEY,
    &projects::HOSTNAME,
    &projects::ASK_PAUSE,
    &projects::PAUSE,
    &projects::ASK_RESTART,
    &projects::RESTART,
    &projects::RESTORE,
    &projects::CANCEL,
    &projects::ASK_DELETE,
    &projects::DELETE,
    &organizations::MEMBERS,
    &organizations::MEMBER,
    &organizations::GIVE_ROLE,
    &organizations::ASK_REMOVE,
    &organizations::REMOVE,
    &organizations::OPEN,
    &organizations::INVITE,
    &organizations::WITHDRAW,
    &organizations::LOG,
    &organizations::EXPORT,
    &organizations::OFFER,
    &organizations::ACCEPT,
    &sign_in::SHOW,
    &sign_in::SUBMIT,
    &sign_in::SHOW_LINK,
    &sign_in::USE_LINK,
    &sign_in::SIGN_OUT,
    &oidc::BEGIN,
    &oidc::RETURN,
    &account::ACCOUNT,
    &account::SET_PASSWORD,
    &passkeys::ASK_NEW,
    &passkeys::ADD,
    &passkeys::REMOVE,
    &passkeys::ASK,
    &passkeys::USE,
    &cli_login::SHOW,
    &cli_login::APPROVE,
    &tokens::LIST,
    &tokens::NEW,
    &tokens::DRAFT,
    &tokens::REVIEW,
    &tokens::CREATE,
    &tokens::SHOW,
    &tokens::ASK_REVOKE,
    &tokens::REVOKE,
    &oauth::ASK,
    &oauth::ANSWER,
    &oauth::SWITCH,
    &oauth::PROBLEM,
    &oauth::APPROVED,
    &oauth::TAKE_BACK,
    &oauth::AUTHORIZED,
    &oauth::END,
    &oauth::LIST,
    &oauth::NEW,
    &oauth::CREATE,
    &oauth::SHOW,
    &oauth::CHANGE,
    &oauth::ADD_SECRET,
    &oauth::REVOKE_SECRET,
    &oauth::ASK_DELETE,
    &oauth::DELETE,
    &sessions::LIST,
    &sessions::END_ONE,
    &sessions::END_ALL,
    &assets::ASSET,
];

/// Where a browser goes that follows a link to nothing. The address alone leads to the first page: programs that ask for
/// it are told, as ever, that it is no operation.
pub static LOST: Endpoint = page(
    "page-lost",
    "Nothing",
    Verb::Get,
    "/",
    Access::Public,
    || mount(lost),
);

async fn lost(RequestLine { path, .. }: RequestLine) -> Result<Answer, Error> {
    if path == "/" {
        Answer::to(next::HOME)
    } else {
        Err(Error::NotFound)
    }
}

/// Every page, in the order of their numbers.
pub fn pages() -> &'static [&'static Endpoint] {
    PAGES
}

/// What browsers are served.
pub fn served() -> EndpointSet<'static> {
    EndpointSet {
        client_kind: &FACE,
        endpoints: PAGES,
        unknown: &LOST,
    }
}

/// A page, or what a form does. `Access::Caller` is whoever is signed in.
const fn page(
    id: &'static str,
    summary: &'static str,
    method: Verb,
    path: &'static str,
    access: Access,
    handler: fn() -> MountedHandler,
) -> Endpoint {
    Endpoint {
        id,
        summary,
        tag: Tag::Gantry,
        method,
        path,
        aliases: &[],
        access,
        limit: &STANDARD,
        handler,
    }
}
