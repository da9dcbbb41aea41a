//! Personal access tokens: list with children, create, show once, revoke.

mod new;
mod permission_groups;
mod store;
mod token_form;
mod tree;

use std::collections::BTreeMap;

use askama::Template;
use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::TokenId;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

pub(super) use self::new::{CREATE, DRAFT, NEW, REVIEW};
use crate::{
    api::endpoints,
    platform::{
        access::{Access, AnyOf, Permission},
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::NoFields,
        labels::{Timestamp, pluralize},
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathToken,
    },
};

pub(super) static LIST: Endpoint = page(
    "page-tokens",
    "Access tokens",
    Verb::Get,
    "/account/tokens",
    || mount(list),
);
pub(super) static SHOW: Endpoint = page(
    "page-token",
    "Access token",
    Verb::Get,
    "/account/tokens/{token}",
    || mount(show),
);
pub(super) static CONFIRM_REVOKE: Endpoint = page(
    "page-ask-revoke-token",
    "Revoke an access token?",
    Verb::Get,
    "/account/tokens/{token}/revoke",
    || mount(confirm_revoke),
);
pub(super) static REVOKE: Endpoint = page(
    "page-revoke-token",
    "Revoke an access token",
    Verb::Post,
    "/account/tokens/{token}/revoke",
    || mount(revoke),
);

/// A token that expires within this time is marked.
const EXPIRES_SOON: TimeDelta = TimeDelta::days(3);

/// The response of the operation that creates a token.
#[derive(Deserialize)]
pub(super) struct TokenSecret {
    id: i64,
    token: SecretString,
}

impl TokenSecret {
    fn id(&self) -> TokenId {
        TokenId(self.id)
    }

    /// Returns the token in plain text.
    pub(super) fn expose(&self) -> &str {
        self.token.expose_secret()
    }
}

/// A token in the responses of the operations.
#[derive(Deserialize)]
struct TokenEntry {
    id: i64,
    name: String,
    alias: String,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    last_used_at: Option<DateTime<Utc>>,
    last_used_from: Option<String>,
    scope: Option<TokenLimits>,
    /// Id of the token that it was created of.
    parent_id: Option<i64>,
}

#[derive(Deserialize)]
struct TokenLimits {
    reach: String,
    organization_slugs: Vec<String>,
    project_refs: Vec<String>,
    permissions: Vec<String>,
    networks: Vec<String>,
}

/// A token with its labels.
struct Row {
    token: TokenEntry,
    created: Timestamp,
    expires: Option<Timestamp>,
    used: Option<Timestamp>,
    expired: bool,
    soon: bool,
    /// Number of its ancestors in the list.
    depth: usize,
    /// Name of its parent, if the list has it.
    parent: Option<String>,
}

impl Row {
    fn new(token: TokenEntry, now: DateTime<Utc>) -> Self {
        let moment = |at| Timestamp::new(at, now);
        let left = token.expires_at.map(|end| end - now);
        Self {
            created: moment(token.created_at),
            expires: token.expires_at.map(moment),
            used: token.last_used_at.map(moment),
            expired: left.is_some_and(|left| left <= TimeDelta::zero()),
            soon: left.is_some_and(|left| left > TimeDelta::zero() && left <= EXPIRES_SOON),
            depth: 0,
            parent: None,
            token,
        }
    }

    /// Returns the rows of tokens, each followed by its descendants.
    fn tree(tokens: Vec<TokenEntry>, now: DateTime<Utc>) -> Vec<Self> {
        let name = |token: &TokenEntry| (token.id, token.name.clone());
        let names: BTreeMap<i64, String> = tokens.iter().map(name).collect();
        let row = |(depth, token): (usize, TokenEntry)| Self {
            depth,
            parent: token.parent_id.and_then(|id| names.get(&id).cloned()),
            ..Self::new(token, now)
        };
        tree::in_tree_order(tokens).into_iter().map(row).collect()
    }

    /// Returns the style classes of the row.
    fn classes(&self) -> String {
        match (self.expired, self.depth) {
            (false, 0) => String::new(),
            (true, 0) => "past".to_owned(),
            (false, depth) => format!("below-{depth}"),
            (true, depth) => format!("past below-{depth}"),
        }
    }

    /// Returns the resources of the token, such as `2 projects`.
    fn resources(&self) -> String {
        match &self.token.scope {
            Some(scope) if scope.reach == "projects" => {
                pluralize(scope.project_refs.len(), "project")
            }
            Some(scope) if scope.reach == "organizations" => {
                pluralize(scope.organization_slugs.len(), "organization")
            }
            None | Some(_) => "Whole account".to_owned(),
        }
    }
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
}

async fn list(visitor: Visitor) -> Result<PageResponse, Error> {
    let now = visitor.context.clock.now();
    let mut tokens: Vec<TokenEntry> = visitor.get("/v1/tokens").await?;
    tokens.sort_by_key(|token| token.expires_at.is_some_and(|end| end <= now));
    PageResponse::page(&Page {
        layout: visitor.layout(),
        rows: Row::tree(tokens, now),
    })
}

#[derive(Template)]
#[template(path = "token.html")]
struct TokenPage {
    layout: Layout,
    row: Row,
    /// The token that it was created of.
    created_of: Option<TokenEntry>,
    /// Its descendants.
    children: Vec<Row>,
    /// The token in plain text, directly after its creation.
    revealed: Option<SecretString>,
    /// The address of an example request.
    example: String,
    operations: Vec<&'static Endpoint>,
    usage: TokenUsage,
}

impl TokenPage {
    fn revealed(&self) -> Option<&str> {
        self.revealed.as_ref().map(ExposeSecret::expose_secret)
    }
}

/// The response of the operation that returns the usage of a token.
#[derive(Deserialize)]
struct TokenUsage {
    days: u32,
    operations: Vec<OperationUsage>,
    unused_permissions: Vec<String>,
}

#[derive(Deserialize)]
struct OperationUsage {
    operation: String,
    case: Option<String>,
    days: i64,
    last_used_on: String,
}

async fn show(visitor: Visitor, PathToken(id): PathToken) -> Result<PageResponse, Error> {
    let token: TokenEntry = visitor.get(&format!("/v1/tokens/{id}")).await?;
    let created_of = parent(&visitor, &token).await?;
    let children = visitor.get(&format!("/v1/tokens/{id}/children")).await?;
    let usage = visitor.get(&format!("/v1/tokens/{id}/usage")).await?;
    let revealed = store::take_reveal(&visitor, TokenId(id)).await?;
    let operations = token
        .scope
        .as_ref()
        .map(callable_operations)
        .unwrap_or_default();
    let path = match token
        .scope
        .as_ref()
        .map(|scope| (&scope.project_refs[..], &scope.permissions))
    {
        Some(([project, ..], held)) if held.iter().any(|it| it == "project_admin_read") => {
            format!("/v1/projects/{project}")
        }
        _ => "/v1/projects".to_owned(),
    };
    let example = format!("{}{path}", visitor.origin);
    let now = visitor.context.clock.now();
    PageResponse::page(&TokenPage {
        layout: visitor.layout().at_path("/account/tokens/one"),
        row: Row::new(token, now),
        created_of,
        children: Row::tree(children, now),
        revealed,
        example,
        operations,
        usage,
    })
}

/// Returns the token that a token was created of. It may have been revoked meanwhile.
async fn parent(visitor: &Visitor, token: &TokenEntry) -> Result<Option<TokenEntry>, Error> {
    let Some(id) = token.parent_id else {
        return Ok(None);
    };
    match visitor.get(&format!("/v1/tokens/{id}")).await {
        Err(Error::NotFound) => Ok(None),
        parent => parent.map(Some),
    }
}

/// Returns the operations that the permissions of a token include.
fn callable_operations(scope: &TokenLimits) -> Vec<&'static Endpoint> {
    let held: Vec<_> = scope
        .permissions
        .iter()
        .filter_map(|name| Permission::from_name(name))
        .collect();
    let permits = |required: AnyOf| required.met(|permission| held.contains(&permission));
    let all = endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| (endpoint.handler)().built);
    all.filter(|endpoint: &&Endpoint| match endpoint.access {
        Access::Needs {
            permissions,
            cases: [],
            ..
        } => permits(permissions),
        Access::Needs { cases, .. } => cases.iter().any(|case| permits(case.permissions)),
        Access::Caller | Access::Credential => true,
        Access::User => scope.reach == "account",
        Access::Public | Access::Unscoped => false,
    })
    .collect()
}

#[derive(Template)]
#[template(path = "token_revoke.html")]
struct RevokePage {
    layout: Layout,
    row: Row,
    /// Number of its descendants, such as `2 child tokens`, if it has some.
    children: Option<String>,
}

async fn confirm_revoke(visitor: Visitor, PathToken(id): PathToken) -> Result<PageResponse, Error> {
    let token = visitor.get(&format!("/v1/tokens/{id}")).await?;
    let children: Vec<TokenEntry> = visitor.get(&format!("/v1/tokens/{id}/children")).await?;
    let count = children.len();
    let row = Row::new(token, visitor.context.clock.now());
    PageResponse::page(&RevokePage {
        layout: visitor.layout().at_path("/account/tokens/one"),
        row,
        children: (count > 0).then(|| pluralize(count, "child token")),
    })
}

async fn revoke(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathToken(id): PathToken,
) -> Result<PageResponse, Error> {
    visitor.delete(&format!("/v1/tokens/{id}")).await?;
    PageResponse::redirect("/account/tokens?done=revoked")
}
