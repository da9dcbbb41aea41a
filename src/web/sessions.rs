//! The sessions of the account: list, end one, end all.

use askama::Template;
use http::header;

use crate::{
    platform::{
        access::sessions::{self, BrowserSession, SessionSelection},
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        cookie,
        form::{NoFields, RowId},
        labels::{self, Timestamp},
        page::{Layout, PageResponse, SessionForm, Visitor, page},
    },
};

pub(super) static LIST: Endpoint = page(
    "page-sessions",
    "Sessions",
    Verb::Get,
    "/account/sessions",
    || mount(list),
);
pub(super) static END_ONE: Endpoint = page(
    "page-end-session",
    "Sign out a session",
    Verb::Post,
    "/account/sessions/end",
    || mount(end_one),
);
pub(super) static END_ALL: Endpoint = page(
    "page-end-sessions",
    "Sign out everywhere",
    Verb::Post,
    "/account/sessions/end-all",
    || mount(end_all),
);

#[derive(Template)]
#[template(path = "sessions.html")]
struct SessionsPage {
    layout: Layout,
    sessions: Vec<Row>,
}

struct Row {
    session: BrowserSession,
    browser: String,
    created: Timestamp,
    used: Timestamp,
}

async fn list(visitor: Visitor) -> Result<PageResponse, Error> {
    let now = visitor.context.clock.now();
    let sessions = sessions::list(
        &visitor.context.db,
        visitor.user.id,
        &visitor.secret.digest(),
        now,
    )
    .await?;
    PageResponse::page(&SessionsPage {
        layout: visitor.layout(),
        sessions: sessions
            .into_iter()
            .map(|session: BrowserSession| Row {
                browser: labels::browser_name(&session.user_agent),
                created: Timestamp::new(session.created_at, now),
                used: Timestamp::new(session.last_used_at, now),
                session,
            })
            .collect(),
    })
}

/// Ends a session of the visitor. Returns 404 for a session of another account.
async fn end_one(
    visitor: Visitor,
    SessionForm(row): SessionForm<RowId>,
) -> Result<PageResponse, Error> {
    match sessions::end(
        &visitor.context.db,
        visitor.user.id,
        SessionSelection::One(row.id),
        visitor.context.clock.now(),
    )
    .await?
    {
        0 => Err(Error::NotFound),
        _ => PageResponse::redirect("/account/sessions?done=ended"),
    }
}

async fn end_all(visitor: Visitor, _: SessionForm<NoFields>) -> Result<PageResponse, Error> {
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        SessionSelection::All,
        visitor.context.clock.now(),
    )
    .await?;
    Ok(PageResponse::redirect("/sign-in?done=everywhere")?
        .with_header(header::SET_COOKIE, cookie::clear(visitor.peer)?))
}
