//! The account pages: rendered on the server, usable without JavaScript.
//!
//! A page is an [`Endpoint`], as an operation of the API is, so the same guard authenticates,
//! rate-limits, authorizes and audits it. Only its [`ClientKind`] differs: credentials are a
//! session cookie, and errors are HTML. Pages read and change resources by calling the API's
//! operations in this process as the signed-in user ([`Visitor::get`], [`Visitor::call`]), so they
//! have no access rules of their own. Sign-in, sessions, passwords and passkeys are implemented
//! here.
//!
//! To add a page, write a template, a struct for it and a handler, and add a line to `PAGES`:
//!
//! - a page takes a [`Visitor`] and returns [`PageResponse::page`];
//! - a form posts to an endpoint that takes a [`SessionForm`] (which rejects cross-site requests)
//!   and returns [`PageResponse::redirect`] to the page that shows the result.

mod account;
mod assets;
mod cli_login;
mod cookie;
mod error_page;
mod form;
mod home;
mod labels;
mod oauth;
mod oidc;
mod organizations;
mod page;
mod passkeys;
mod path;
mod permissions;
mod projects;
mod redirect;
mod resources;
mod response;
mod sessions;
mod sign_in;
mod tokens;
mod visitor;
mod webhooks;

use self::page::public_page;
pub use self::{
    form::{OpenForm, SessionForm},
    response::PageResponse,
    visitor::{Layout, Visitor},
};
use crate::platform::{
    error::Error,
    http::{
        Endpoint, Verb, client_kind::ClientKind, input::RequestLine, mount, router::EndpointSet,
    },
};

/// Session cookies for authentication, HTML for errors.
static CLIENT: ClientKind = ClientKind {
    read_credential: cookie::presented,
    error_response: error_page::error_response,
    calls_operations: true,
};

/// Every page, form and embedded file.
static PAGES: &[&Endpoint] = &[
    &home::HOME,
    &projects::NEW,
    &projects::CREATE,
    &projects::SHOW,
    &projects::REVEAL_KEYS,
    &projects::SETTINGS,
    &projects::REVIEW_SETTINGS,
    &projects::APPLY_SETTINGS,
    &projects::VERSIONS,
    &projects::BACKUPS,
    &projects::REVIEW_RESTORE,
    &projects::RESTORE_BACKUP,
    &projects::RESTORE_TO_NEW_PROJECT,
    &projects::RESTORE_TABLES,
    &projects::UPDATE_SCHEDULE,
    &projects::BRANCHES,
    &projects::BRANCH,
    &projects::CONFIRM_MERGE,
    &projects::MERGE,
    &projects::LIVE,
    &projects::APPROVALS,
    &projects::APPROVAL,
    &projects::APPROVE,
    &projects::DENY,
    &projects::PROTECT,
    &projects::AGENTS,
    &projects::FUNCTIONS,
    &projects::LOGS,
    &projects::DATABASE_CALLS,
    &projects::USAGE,
    &projects::INGEST_KEYS,
    &projects::ADD_INGEST_KEY,
    &projects::DELETE_INGEST_KEY,
    &projects::LOG_DRAINS,
    &projects::HOSTNAME,
    &projects::CONFIRM_PAUSE,
    &projects::PAUSE,
    &projects::CONFIRM_RESTART,
    &projects::RESTART,
    &projects::SHOW_UPGRADE,
    &projects::UPGRADE,
    &projects::RESTORE,
    &projects::CANCEL,
    &projects::CONFIRM_DELETE,
    &projects::DELETE,
    &organizations::MEMBERS,
    &organizations::MEMBER,
    &organizations::ASSIGN_ROLE,
    &organizations::CONFIRM_REMOVE,
    &organizations::REMOVE,
    &organizations::INVITATIONS,
    &organizations::INVITE,
    &organizations::REVOKE_INVITATION,
    &organizations::AUDIT_LOG,
    &organizations::EXPORT_AUDIT_LOG,
    &organizations::INVITATION,
    &organizations::ACCEPT_INVITATION,
    &sign_in::SHOW,
    &sign_in::SUBMIT,
    &sign_in::SHOW_LINK,
    &sign_in::USE_LINK,
    &sign_in::SIGN_OUT,
    &oidc::BEGIN,
    &oidc::CALLBACK,
    &account::ACCOUNT,
    &account::SET_PASSWORD,
    &passkeys::CREATE_CHALLENGE,
    &passkeys::ADD,
    &passkeys::REMOVE,
    &passkeys::SIGN_IN_CHALLENGE,
    &passkeys::SIGN_IN,
    &cli_login::SHOW,
    &cli_login::APPROVE,
    &tokens::LIST,
    &tokens::NEW,
    &tokens::DRAFT,
    &tokens::REVIEW,
    &tokens::CREATE,
    &tokens::SHOW,
    &tokens::CONFIRM_REVOKE,
    &tokens::REVOKE,
    &oauth::CONSENT,
    &oauth::DECIDE,
    &oauth::SWITCH_ACCOUNT,
    &oauth::PROBLEM,
    &oauth::AUTHORIZATIONS,
    &oauth::REVOKE_AUTHORIZATION,
    &oauth::MEMBER_AUTHORIZATIONS,
    &oauth::REVOKE_MEMBER_AUTHORIZATIONS,
    &oauth::LIST,
    &oauth::NEW,
    &oauth::CREATE,
    &oauth::SHOW,
    &oauth::CHANGE,
    &oauth::ADD_SECRET,
    &oauth::REVOKE_SECRET,
    &oauth::CONFIRM_DELETE,
    &oauth::DELETE,
    &sessions::LIST,
    &sessions::END_ONE,
    &sessions::END_ALL,
    &webhooks::organization::LIST,
    &webhooks::organization::CREATE,
    &webhooks::organization::SHOW,
    &webhooks::organization::UPDATE,
    &webhooks::organization::ROTATE,
    &webhooks::organization::TEST,
    &webhooks::organization::DELETE,
    &webhooks::organization::DELIVERY,
    &webhooks::organization::RETRY,
    &webhooks::project::LIST,
    &webhooks::project::CREATE,
    &webhooks::project::SHOW,
    &webhooks::project::UPDATE,
    &webhooks::project::ROTATE,
    &webhooks::project::TEST,
    &webhooks::project::DELETE,
    &webhooks::project::DELIVERY,
    &webhooks::project::RETRY,
    &assets::ASSET,
];

/// The 404 page, for browsers only; programs get the JSON error. `/` redirects to the home page.
pub static NOT_FOUND: Endpoint = public_page("page-lost", "Page not found", Verb::Get, "/", || {
    mount(not_found)
});

async fn not_found(RequestLine { path, .. }: RequestLine) -> Result<PageResponse, Error> {
    if path == "/" {
        PageResponse::redirect(redirect::HOME)
    } else {
        Err(Error::NotFound)
    }
}

/// Returns every page.
pub fn pages() -> &'static [&'static Endpoint] {
    PAGES
}

/// Returns the pages with their settings, for the router.
pub fn served() -> EndpointSet<'static> {
    EndpointSet {
        client_kind: &CLIENT,
        endpoints: PAGES,
        unknown: &NOT_FOUND,
    }
}
