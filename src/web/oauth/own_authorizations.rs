//! The visitor's authorizations of OAuth applications: list and revoke.

use askama::Template;
use chrono::{DateTime, Utc};

use super::{scope_labels, scope_labels::ScopeLabel};
use crate::{
    api::oauth::grants::Authorization,
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::RowId,
        labels::{Timestamp, pluralize},
        page::{Layout, PageResponse, SessionForm, Visitor, page},
    },
};

pub(in crate::web) static AUTHORIZATIONS: Endpoint = page(
    "page-oauth-approved",
    "Authorized applications",
    Verb::Get,
    "/account/applications",
    || mount(list),
);
pub(in crate::web) static REVOKE_AUTHORIZATION: Endpoint = page(
    "page-oauth-take-back",
    "Revoke an application",
    Verb::Post,
    "/account/applications/revoke",
    || mount(revoke),
);

#[derive(Template)]
#[template(path = "oauth_authorizations.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
}

/// An authorization with its labels.
pub(super) struct Row {
    pub(super) authorization: Authorization,
    pub(super) scopes: Vec<ScopeLabel>,
    pub(super) approved: Timestamp,
    pub(super) used: Option<Timestamp>,
}

impl Row {
    pub(super) fn new(authorization: Authorization, now: DateTime<Utc>) -> Self {
        Self {
            scopes: scope_labels::scope_labels(
                authorization.scopes.iter().map(String::as_str),
                None,
            ),
            approved: Timestamp::new(authorization.created_at, now),
            used: authorization.last_used_at.map(|at| Timestamp::new(at, now)),
            authorization,
        }
    }

    /// Returns the resources of the authorization, such as `2 projects`.
    pub(super) fn resources(&self) -> String {
        self.authorization.project_refs.as_ref().map_or_else(
            || "Whole organization".to_owned(),
            |refs| pluralize(refs.len(), "project"),
        )
    }
}

async fn list(visitor: Visitor) -> Result<PageResponse, Error> {
    let now = visitor.context.clock.now();
    let rows: Vec<Authorization> = visitor.get("/v1/oauth/authorizations").await?;
    PageResponse::page(&Page {
        layout: visitor.layout(),
        rows: rows.into_iter().map(|row| Row::new(row, now)).collect(),
    })
}

async fn revoke(
    visitor: Visitor,
    SessionForm(row): SessionForm<RowId>,
) -> Result<PageResponse, Error> {
    visitor
        .delete(&format!("/v1/oauth/authorizations/{}", row.id))
        .await?;
    PageResponse::redirect("/account/applications?done=revoked")
}
