//! Where one is signed in, and signing out there.

use askama::Template;
use http::header;
use serde::Deserialize;

use crate::{
    base::error::Error,
    platform::{
        access::{
            Access, sessions,
            sessions::{Ending, Session},
        },
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, cookie, page, words, words::Moment},
};

pub(super) static LIST: Endpoint = page(
    "page-sessions",
    "Sessions",
    Verb::Get,
    "/account/sessions",
    Access::Caller,
    || mount(list),
);
pub(super) static END_ONE: Endpoint = page(
    "page-end-session",
    "End a session",
    Verb::Post,
    "/account/sessions/end",
    Access::Caller,
    || mount(end_one),
);
pub(super) static END_ALL: Endpoint = page(
    "page-end-sessions",
    "Sign out everywhere",
    Verb::Post,
    "/account/sessions/end-all",
    Access::Caller,
    || mount(end_all),
);

#[derive(Template)]
#[template(path = "sessions.html")]
struct Sessions {
    frame: Frame,
    sessions: Vec<Row>,
}

struct Row {
    session: Session,
    browser: String,
    begun: Moment,
    used: Moment,
}

async fn list(visitor: Visitor) -> Result<Answer, Error> {
    let now = visitor.context.clock.now();
    let sessions = sessions::list(
        &visitor.context.db,
        visitor.user.id,
        &visitor.secret.digest(),
        now,
    )
    .await?;
    let row = |session: Session| Row {
        browser: words::browser(&session.user_agent),
        begun: Moment::new(session.created_at, now),
        used: Moment::new(session.last_used_at, now),
        session,
    };
    Answer::page(&Sessions {
        frame: visitor.frame(),
        sessions: sessions.into_iter().map(row).collect(),
    })
}

#[derive(Deserialize)]
struct Which {
    id: i64,
}

/// Somebody else's session is as good as none.
async fn end_one(visitor: Visitor, Form(which): Form<Which>) -> Result<Answer, Error> {
    match sessions::end(
        &visitor.context.db,
        visitor.user.id,
        Ending::One(which.id),
        visitor.context.clock.now(),
    )
    .await?
    {
        0 => Err(Error::NotFound),
        _ => Answer::to("/account/sessions?done=ended"),
    }
}

#[derive(Deserialize)]
struct Nothing {}

async fn end_all(visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Result<Answer, Error> {
    sessions::end(
        &visitor.context.db,
        visitor.user.id,
        Ending::All,
        visitor.context.clock.now(),
    )
    .await?;
    Ok(Answer::to("/sign-in?done=everywhere")?
        .with(header::SET_COOKIE, cookie::clear(visitor.peer)?))
}
