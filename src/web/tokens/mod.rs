//! Access tokens: what there are, making one, showing it once, and taking it back.

mod catalogue;
mod new;
mod store;
mod wanted;

use askama::Template;
use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;

pub(super) use self::new::{CREATE, DRAFT, NEW, REVIEW};
use crate::{
    api::endpoints,
    base::{error::Error, ids::TokenId},
    platform::{
        access::{Access, AnyOf, Permission},
        http::{Call, Endpoint, Input, Verb, mount, openapi::OperationDoc},
    },
    web::{Answer, Form, Frame, Visitor, page, words::Moment},
};

pub(super) static LIST: Endpoint = page(
    "page-tokens",
    "Access tokens",
    Verb::Get,
    "/account/tokens",
    Access::Caller,
    || mount(list),
);
pub(super) static SHOW: Endpoint = page(
    "page-token",
    "An access token",
    Verb::Get,
    "/account/tokens/{token}",
    Access::Caller,
    || mount(show),
);
pub(super) static ASK_REVOKE: Endpoint = page(
    "page-ask-revoke-token",
    "Revoke an access token?",
    Verb::Get,
    "/account/tokens/{token}/revoke",
    Access::Caller,
    || mount(ask_revoke),
);
pub(super) static REVOKE: Endpoint = page(
    "page-revoke-token",
    "Revoke an access token",
    Verb::Post,
    "/account/tokens/{token}/revoke",
    Access::Caller,
    || mount(revoke),
);

/// How long before its end a token is marked.
const SOON: TimeDelta = TimeDelta::days(3);

/// What the operation answers that makes a token.
#[derive(Deserialize)]
pub(super) struct Made {
    id: i64,
    token: SecretString,
}

impl Made {
    fn id(&self) -> TokenId {
        TokenId(self.id)
    }

    /// In clear, to be handed on.
    pub(super) fn expose(&self) -> &str {
        self.token.expose_secret()
    }
}

/// What the operation says about a token.
#[derive(Deserialize)]
struct Token {
    id: i64,
    name: String,
    alias: String,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    last_used_at: Option<DateTime<Utc>>,
    last_used_from: Option<String>,
    scope: Option<Scope>,
}

#[derive(Deserialize)]
struct Scope {
    reach: String,
    organization_slugs: Vec<String>,
    project_refs: Vec<String>,
    permissions: Vec<String>,
    networks: Vec<String>,
}

/// The same, as a page shows it.
struct Row {
    token: Token,
    created: Moment,
    expires: Option<Moment>,
    used: Option<Moment>,
    expired: bool,
    soon: bool,
}

impl Row {
    fn new(token: Token, now: DateTime<Utc>) -> Self {
        let moment = |at| Moment::new(at, now);
        let left = token.expires_at.map(|end| end - now);
        Self {
            created: moment(token.created_at),
            expires: token.expires_at.map(moment),
            used: token.last_used_at.map(moment),
            expired: left.is_some_and(|left| left <= TimeDelta::zero()),
            soon: left.is_some_and(|left| left > TimeDelta::zero() && left <= SOON),
            token,
        }
    }

    /// What it reaches, in a few words.
    fn reach(&self) -> String {
        let of = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        match &self.token.scope {
            Some(scope) if scope.reach == "projects" => of(scope.project_refs.len(), "project"),
            Some(scope) if scope.reach == "organizations" => {
                of(scope.organization_slugs.len(), "organization")
            }
            None | Some(_) => "Whole account".to_owned(),
        }
    }
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct Tokens {
    frame: Frame,
    rows: Vec<Row>,
}

async fn list(visitor: Visitor) -> Result<Answer, Error> {
    let (now, tokens) = (
        visitor.context.clock.now(),
        visitor.get::<Vec<Token>>("/v1/tokens").await?,
    );
    let mut rows: Vec<_> = tokens
        .into_iter()
        .map(|token| Row::new(token, now))
        .collect();
    rows.sort_by_key(|row| row.expired);
    Answer::page(&Tokens {
        frame: visitor.frame(),
        rows,
    })
}

/// The token the path names. Whose it is, the operation knows.
struct Named(i64);

impl Input for Named {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("token")
            .and_then(|id| id.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

#[derive(Template)]
#[template(path = "token.html")]
struct Detail {
    frame: Frame,
    row: Row,
    /// The token itself, this once.
    revealed: Option<SecretString>,
    /// What answers it first.
    example: String,
    operations: Vec<&'static Endpoint>,
    usage: Usage,
}

impl Detail {
    fn revealed(&self) -> Option<&str> {
        self.revealed.as_ref().map(ExposeSecret::expose_secret)
    }
}

/// What the operation says a token was used for.
#[derive(Deserialize)]
struct Usage {
    days: u32,
    operations: Vec<Used>,
    unused_permissions: Vec<String>,
}

#[derive(Deserialize)]
struct Used {
    operation: String,
    case: Option<String>,
    days: i64,
    last_used_on: String,
}

async fn show(visitor: Visitor, Named(id): Named) -> Result<Answer, Error> {
    let token: Token = visitor.get(&format!("/v1/tokens/{id}")).await?;
    let usage = visitor.get(&format!("/v1/tokens/{id}/usage")).await?;
    let revealed = store::reveal(&visitor, TokenId(id)).await?;
    let operations = token.scope.as_ref().map(callable).unwrap_or_default();
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
    let (frame, row) = (
        visitor.frame().of("/account/tokens/one"),
        Row::new(token, visitor.context.clock.now()),
    );
    Answer::page(&Detail {
        frame,
        row,
        revealed,
        example,
        operations,
        usage,
    })
}

/// The operations for which a token has the permissions, by what they declare.
fn callable(scope: &Scope) -> Vec<&'static Endpoint> {
    let held: Vec<_> = scope
        .permissions
        .iter()
        .filter_map(|name| Permission::from_name(name))
        .collect();
    let enough = |needed: AnyOf| needed.met(|permission| held.contains(&permission));
    let all = endpoints::all()
        .iter()
        .copied()
        .filter(|endpoint| (endpoint.handler)().built);
    let open = |endpoint: &&Endpoint| match endpoint.access {
        Access::Needs {
            permissions,
            cases: [],
            ..
        } => enough(permissions),
        Access::Needs { cases, .. } => cases.iter().any(|case| enough(case.permissions)),
        Access::Caller => true,
        Access::User => scope.reach == "account",
        Access::Public | Access::Unscoped => false,
    };
    all.filter(open).collect()
}

#[derive(Template)]
#[template(path = "token_revoke.html")]
struct Question {
    frame: Frame,
    row: Row,
}

async fn ask_revoke(visitor: Visitor, Named(id): Named) -> Result<Answer, Error> {
    let token = visitor.get(&format!("/v1/tokens/{id}")).await?;
    let row = Row::new(token, visitor.context.clock.now());
    Answer::page(&Question {
        frame: visitor.frame().of("/account/tokens/one"),
        row,
    })
}

#[derive(Deserialize)]
struct Nothing {}

async fn revoke(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    Named(id): Named,
) -> Result<Answer, Error> {
    visitor
        .ask::<Value>(Method::DELETE, &format!("/v1/tokens/{id}"), None)
        .await?;
    Answer::to("/account/tokens?done=revoked")
}
