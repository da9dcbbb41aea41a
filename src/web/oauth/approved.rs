//! What one let applications do, and taking it back.

use askama::Template;
use chrono::{DateTime, Utc};
use http::Method;
use serde::Deserialize;

use super::{words, words::Line};
use crate::{
    api::oauth::grants::Authorization,
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Answer, Form, Frame, Visitor, page,
        words::{Moment, count},
    },
};

pub(in crate::web) static APPROVED: Endpoint = page(
    "page-oauth-approved",
    "Authorized applications",
    Verb::Get,
    "/account/applications",
    Access::Caller,
    || mount(approved),
);
pub(in crate::web) static TAKE_BACK: Endpoint = page(
    "page-oauth-take-back",
    "Revoke an application",
    Verb::Post,
    "/account/applications/revoke",
    Access::Caller,
    || mount(take_back),
);

#[derive(Template)]
#[template(path = "oauth_approved.html")]
struct Approved {
    frame: Frame,
    rows: Vec<Row>,
}

/// Something that was approved.
pub(super) struct Row {
    pub(super) it: Authorization,
    pub(super) lines: Vec<Line>,
    pub(super) approved: Moment,
    pub(super) used: Option<Moment>,
}

impl Row {
    pub(super) fn new(it: Authorization, now: DateTime<Utc>) -> Self {
        Self {
            lines: words::lines(it.scopes.iter().map(String::as_str), None),
            approved: Moment::new(it.created_at, now),
            used: it.last_used_at.map(|at| Moment::new(at, now)),
            it,
        }
    }

    pub(super) fn reach(&self) -> String {
        self.it.project_refs.as_ref().map_or_else(
            || "Whole organization".to_owned(),
            |refs| count(refs.len(), "project"),
        )
    }
}

async fn approved(visitor: Visitor) -> Result<Answer, Error> {
    let now = visitor.context.clock.now();
    let rows: Vec<Authorization> = visitor.get("/v1/oauth/authorizations").await?;
    Answer::page(&Approved {
        frame: visitor.frame(),
        rows: rows.into_iter().map(|it| Row::new(it, now)).collect(),
    })
}

#[derive(Deserialize)]
struct Which {
    id: i64,
}

async fn take_back(visitor: Visitor, Form(which): Form<Which>) -> Result<Answer, Error> {
    visitor
        .ask::<()>(
            Method::DELETE,
            &format!("/v1/oauth/authorizations/{}", which.id),
            None,
        )
        .await?;
    Answer::to("/account/applications?done=revoked")
}
