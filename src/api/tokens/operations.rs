//! Operations on one's own tokens: Gantry's own, for classic tokens only. A scoped token can neither make another nor ask
//! what one could do, so there is no way from less to more.

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, TimeDelta, Utc};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    LIFE_DAYS_MAX, Minted, Token, cli_login,
    cli_login::Fetched,
    scoped,
    scoped::{Draft, LIFE_DAYS_DEFAULT, Resources},
    simulate,
    simulate::Simulation,
    usage,
    usage::Usage,
};
use crate::{
    api::{context::ApiContext, tokens},
    base::{
        error::Error,
        ids::{OrgSlug, ProjectRef, TokenId},
    },
    platform::{
        access::{Access, Permission, Permissions, User},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, Query, Tag, Verb, mount,
            openapi::OperationDoc,
            output::{Created, OkEmpty},
        },
        notifications,
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] =
    &[&LIST, &CREATE, &GET, &REVOKE, &SIMULATE, &USAGE, &CLI_LOGIN];

/// The token the path names. That it is the caller's is looked up with it.
struct Named(TokenId);

impl Input for Named {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("id")
            .and_then(|id| id.parse().ok())
            .map(|id| Self(TokenId(id)))
            .ok_or(Error::NotFound)
    }
}

static LIST: Endpoint = Endpoint {
    id: "gantry-list-tokens",
    summary: "List one's own live tokens",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(user: User, context: ApiContext) -> Result<Json<Vec<Token>>, Error> {
    Ok(Json(tokens::list(&context.db, user.id).await?))
}

static GET: Endpoint = Endpoint {
    id: "gantry-get-token",
    summary: "Get one of one's own live tokens",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(Named(token): Named, user: User, context: ApiContext) -> Result<Json<Token>, Error> {
    Ok(Json(tokens::get(&context.db, user.id, token).await?))
}

static CREATE: Endpoint = Endpoint {
    id: "gantry-create-token",
    summary: "Create a scoped token, shown once",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/tokens",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || {
        mount(create).sample(r#"{"name": "ci", "expires_in_days": 7, "organization_slugs": ["{{GANTRY_ORG}}"], "permissions": ["project_admin_read", "database_read"]}"#)
    },
};

/// What a token is to be. With neither organizations nor projects it reaches the whole account.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateAccessToken")]
#[serde(deny_unknown_fields)]
struct CreateRequest {
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// When it stops working: within a year.
    expires_at: Option<DateTime<Utc>>,
    /// The same in days from now: 1, 7, 30, 90 or any other up to 366. Seven, if neither is given.
    #[schemars(range(min = 1, max = 366))]
    expires_in_days: Option<i64>,
    #[serde(flatten)]
    draft: DraftRequest,
}

/// What a token is limited to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct DraftRequest {
    /// Slugs of organizations, with the projects they have and will have.
    #[serde(default)]
    organization_slugs: Vec<OrgSlug>,
    /// Refs of projects of one organization.
    #[serde(default)]
    project_refs: Vec<ProjectRef>,
    /// Names of permissions.
    #[serde(default)]
    permissions: Vec<String>,
    /// Networks it may be sent from, such as `192.0.2.0/24`; anywhere, if empty.
    #[serde(default)]
    networks: Vec<String>,
    /// When it begins to work; at once, if not given.
    not_before: Option<DateTime<Utc>>,
}

impl DraftRequest {
    fn draft(self) -> Result<Draft, Error> {
        let network = |text: &String| {
            text.parse::<IpNet>().map_err(|_| {
                Error::invalid(
                    "networks",
                    format!("{text} is not a network such as 192.0.2.0/24"),
                )
            })
        };
        Ok(Draft {
            networks: self
                .networks
                .iter()
                .map(network)
                .collect::<Result<_, _>>()?,
            resources: Resources::named(self.organization_slugs, self.project_refs)?,
            permissions: self.permissions,
            not_before: self.not_before,
        })
    }
}

/// A token that was made just now.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreatedAccessToken")]
struct CreatedToken {
    #[serde(flatten)]
    about: Token,
    /// The token itself. It is not shown again.
    token: String,
}

impl CreatedToken {
    fn new(about: Token, minted: &Minted) -> Self {
        Self {
            about,
            token: minted.expose().to_owned(),
        }
    }
}

async fn create(
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateRequest>,
) -> Result<Created<CreatedToken>, Error> {
    let now = context.clock.now();
    let expires_at = match (request.expires_at, request.expires_in_days) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "expires_in_days",
                "cannot be given together with expires_at",
            ));
        }
        (Some(moment), None) => moment,
        (None, days) if days.is_none_or(|days| (1..=LIFE_DAYS_MAX).contains(&days)) => {
            now + TimeDelta::days(days.unwrap_or(LIFE_DAYS_DEFAULT))
        }
        (None, _) => {
            return Err(Error::invalid(
                "expires_in_days",
                format!("expected 1 to {LIFE_DAYS_MAX}"),
            ));
        }
    };
    let grant = request.draft.draft()?.resolve(&context.db, user.id).await?;
    let minted = scoped::mint(&context.entropy);
    let token = scoped::create(
        &context.db,
        user.id,
        &request.name,
        &minted,
        (now, expires_at),
        &grant,
        Some(&audit),
    )
    .await?;
    Ok(Created(CreatedToken::new(token, &minted)))
}

static REVOKE: Endpoint = Endpoint {
    id: "gantry-revoke-token",
    summary: "Revoke one of one's own tokens: the next request with it is refused, on every node",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/v1/tokens/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(revoke),
};

async fn revoke(
    Named(token): Named,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    tokens::get(&context.db, user.id, token).await?;
    tokens::revoke(&context.db, token, context.clock.now(), Some(&audit)).await?;
    context.table_changed(Table::Tokens);
    notifications::settle(&context.db).await?;
    Ok(OkEmpty)
}

static SIMULATE: Endpoint = Endpoint {
    id: "gantry-simulate-token",
    summary: "Tell whether a token may make a request, and which rule decides",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/tokens/simulate",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || {
        mount(simulate).read_only().sample(r#"{"organization_slugs": ["{{GANTRY_ORG}}"], "permissions": ["database_read"], "method": "GET", "path": "/v1/organizations/{{GANTRY_ORG}}/members"}"#)
    },
};

/// A token, or what one is to be, and a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SimulateAccessToken")]
#[serde(deny_unknown_fields)]
struct SimulateRequest {
    /// One of one's own tokens. Without it the other fields say what it is to be.
    token_id: Option<i64>,
    #[serde(flatten)]
    draft: DraftRequest,
    /// `GET`, `POST`, …
    method: String,
    /// As it would be sent, with the query.
    path: String,
    /// The body, or as much of it as matters.
    body: Option<serde_json::Value>,
    /// Where it would be sent from, if the token's networks are to count.
    address: Option<IpAddr>,
}

async fn simulate(
    user: User,
    context: ApiContext,
    Json(request): Json<SimulateRequest>,
) -> Result<Json<Simulation>, Error> {
    let token = match request.token_id {
        Some(id) => simulate::Token::Made(TokenId(id)),
        None => simulate::Token::Draft(request.draft.draft()?),
    };
    let body = request
        .body
        .map(|body| body.to_string())
        .unwrap_or_default();
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let imagined = crate::platform::http::simulate::SimulatedRequest {
        method: &request.method,
        path,
        query,
        body: body.as_bytes(),
    };
    Ok(Json(
        simulate::simulate(&context, &user, token, imagined, request.address).await?,
    ))
}

static USAGE: Endpoint = Endpoint {
    id: "gantry-token-usage",
    summary: "Tell what a token was used for, and the fewest permissions that would have done",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens/{id}/usage",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(used_for),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct UsageQuery {
    /// Days to look back, today included: 1 to 90.
    #[serde(default = "month")]
    #[schemars(range(min = 1, max = 90))]
    days: u32,
}

fn month() -> u32 {
    30
}

async fn used_for(
    Named(token): Named,
    user: User,
    context: ApiContext,
    Query(query): Query<UsageQuery>,
) -> Result<Json<Usage>, Error> {
    if !(1..=usage::DAYS_MAX).contains(&query.days) {
        return Err(Error::invalid(
            "days",
            format!("expected 1 to {}", usage::DAYS_MAX),
        ));
    }
    let scope = tokens::get(&context.db, user.id, token).await?.scope;
    let held = scope.map(|scope| {
        scope
            .permissions
            .iter()
            .filter_map(|name| Permission::from_name(name))
            .collect::<Permissions>()
    });
    Ok(Json(
        usage::usage(&context.db, token, held, query.days, context.clock.now()).await?,
    ))
}

static CLI_LOGIN: Endpoint = Endpoint {
    id: "gantry-cli-login",
    summary: "Fetch, once, the token that somebody made for a command line tool on the pages",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/platform/cli/login/{session_id}",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(fetch_login),
};

/// The session the path names. One that cannot be is as good as none.
struct Session(Uuid);

impl Input for Session {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("session_id")
            .and_then(|id| id.parse().ok())
            .map(Self)
            .ok_or(Error::NotFound)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct DeviceQuery {
    /// The code that the page tells.
    #[serde(default)]
    device_code: String,
}

async fn fetch_login(
    Session(session): Session,
    context: ApiContext,
    Query(query): Query<DeviceQuery>,
) -> Result<Json<Fetched>, Error> {
    Ok(Json(
        cli_login::fetch(
            &context.db,
            session,
            &query.device_code,
            context.clock.now(),
        )
        .await?,
    ))
}
