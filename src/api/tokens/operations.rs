//! Gantry operations on the caller's own tokens. They require a classic token: a scoped token could
//! otherwise create one with more permissions.

use std::{net::IpAddr, sync::Arc};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{OrgSlug, ProjectRef, TokenId};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    AccessToken, LIFE_DAYS_MAX, TokenScope, children,
    children::{ChildExpiry, NewChild},
    cli_login,
    cli_login::EncryptedToken,
    scoped,
    scoped::{LIFE_DAYS_DEFAULT, TokenDraft, TokenResources},
    simulate,
    simulate::Simulation,
    usage,
    usage::TokenUsage,
};
use crate::{
    api::{context::ApiContext, path::path_parameters, tokens},
    platform::{
        access::{Access, Permission, Permissions, User},
        audit::Recorder,
        error::{Context, Error},
        http::{
            Endpoint, Json, Output, Query, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        notifications,
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST,
    &CREATE,
    &GET,
    &REVOKE,
    &LIST_CHILDREN,
    &CREATE_CHILD,
    &SIMULATE,
    &USAGE,
    &CLI_LOGIN,
];

path_parameters! {
    /// A token id from the path. The handlers check that the token belongs to the caller.
    struct PathToken(i64) from "id", else Error::NotFound;
}

static LIST: Endpoint = Endpoint {
    id: "gantry-list-tokens",
    summary: "List the caller's live tokens",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(list),
};

async fn list(user: User, context: ApiContext) -> Result<Json<Vec<AccessToken>>, Error> {
    Ok(Json(tokens::list(&context.db, user.id).await?))
}

static GET: Endpoint = Endpoint {
    id: "gantry-get-token",
    summary: "Get one of the caller's live tokens",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    PathToken(token): PathToken,
    user: User,
    context: ApiContext,
) -> Result<Json<AccessToken>, Error> {
    let token = tokens::get(&context.db, user.id, TokenId(token)).await?;
    Ok(Json(token))
}

static CREATE: Endpoint = Endpoint {
    id: "gantry-create-token",
    summary: "Create a scoped token. The token is returned only once",
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

/// The properties of a token. Without organizations and projects it can access the whole account.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateAccessToken")]
#[serde(deny_unknown_fields)]
struct CreateTokenRequest {
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Expiry time: within a year.
    expires_at: Option<DateTime<Utc>>,
    /// Lifetime in days, up to 366, instead of `expires_at`. Defaults to 7.
    #[schemars(range(min = 1, max = 366))]
    expires_in_days: Option<i64>,
    #[serde(flatten)]
    draft: DraftRequest,
}

/// The restrictions of a token.
#[derive(Debug, Default, Deserialize, JsonSchema)]
struct DraftRequest {
    /// Slugs of organizations. Includes all their current and future projects.
    #[serde(default)]
    organization_slugs: Vec<OrgSlug>,
    /// Refs of projects of one organization.
    #[serde(default)]
    project_refs: Vec<ProjectRef>,
    /// Names of permissions.
    #[serde(default)]
    permissions: Vec<String>,
    /// Networks that it can be used from, such as `192.0.2.0/24`; any, if empty.
    #[serde(default)]
    networks: Vec<String>,
    /// Time from which it is valid; defaults to now.
    not_before: Option<DateTime<Utc>>,
}

impl DraftRequest {
    /// Takes the limits that are left out from a scoped token.
    fn inherit(&mut self, scope: &TokenScope) -> Result<(), Error> {
        if self.permissions.is_empty() {
            self.permissions.clone_from(&scope.permissions);
        }
        if !self.organization_slugs.is_empty() || !self.project_refs.is_empty() {
            return Ok(());
        }
        let unknown = "reading the reach of a token";
        match scope.reach.as_str() {
            "projects" => {
                let refs = scope.project_refs.iter().map(|text| text.parse());
                self.project_refs = refs.collect::<Result<_, _>>().context(unknown)?;
                if self.project_refs.is_empty() {
                    return Err(Error::NotFound);
                }
            }
            "organizations" => {
                let slugs = scope.organization_slugs.iter().map(|text| text.parse());
                self.organization_slugs = slugs.collect::<Result<_, _>>().context(unknown)?;
                if self.organization_slugs.is_empty() {
                    return Err(Error::NotFound);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn draft(self) -> Result<TokenDraft, Error> {
        Ok(TokenDraft {
            networks: scoped::parse_networks(&self.networks)?,
            resources: TokenResources::from_names(self.organization_slugs, self.project_refs)?,
            permissions: self.permissions,
            not_before: self.not_before,
        })
    }
}

/// A new token.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreatedAccessToken")]
struct CreatedToken {
    #[serde(flatten)]
    about: AccessToken,
    /// The token in plain text. It is returned only once.
    token: String,
}

async fn create(
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateTokenRequest>,
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
    let view = |about, token| Created(CreatedToken { about, token });
    let text = SecretString::from(minted.expose());
    audit.answer_with(move |about: &AccessToken| {
        view(about.clone(), text.expose_secret().to_owned()).respond()
    });
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
    Ok(view(token, minted.expose().to_owned()))
}

static REVOKE: Endpoint = Endpoint {
    id: "gantry-revoke-token",
    summary: "Revoke one of the caller's tokens, on every node",
    tag: Tag::Gantry,
    method: Verb::Delete,
    path: "/v1/tokens/{id}",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(revoke),
};

async fn revoke(
    PathToken(token): PathToken,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    let token = TokenId(token);
    tokens::get(&context.db, user.id, token).await?;
    tokens::revoke(&context.db, token, context.clock.now(), Some(&audit)).await?;
    context.table_changed(Table::Tokens);
    notifications::settle(&context.db).await?;
    Ok(OkEmpty)
}

static LIST_CHILDREN: Endpoint = Endpoint {
    id: "gantry-list-token-children",
    summary: "List the live descendants of a token, parents before their children",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens/{id}/children",
    aliases: &[],
    access: Access::Caller,
    limit: &STANDARD,
    handler: || mount(list_children),
};

async fn list_children(
    PathToken(token): PathToken,
    user: User,
    context: ApiContext,
) -> Result<Json<Vec<AccessToken>>, Error> {
    let token = own_token(&context, &user, token).await?;
    Ok(Json(children::list(&context.db, user.id, token).await?))
}

static CREATE_CHILD: Endpoint = Endpoint {
    id: "gantry-create-child-token",
    summary: "Create a narrower token of a token, which is revoked with it. It is returned only once",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/tokens/{id}/children",
    aliases: &[],
    access: Access::Caller,
    limit: &STANDARD,
    handler: || {
        mount(create_child).mutates().sample(r#"{"name": "agent", "expires_in_minutes": 15, "organization_slugs": ["{{GANTRY_ORG}}"], "permissions": ["project_admin_read"]}"#)
    },
};

/// The limits of a child token. Those that are left out are the parent's.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateChildAccessToken")]
#[serde(deny_unknown_fields)]
struct CreateChildRequest {
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Expiry time: at most that of the parent.
    expires_at: Option<DateTime<Utc>>,
    /// Lifetime in minutes, up to 527040, instead of `expires_at`. Defaults to 60. It ends with the
    /// parent's.
    #[schemars(range(min = 1, max = 527_040))]
    expires_in_minutes: Option<i64>,
    #[serde(flatten)]
    draft: DraftRequest,
}

/// Lifetime of a child token in minutes, if none is given.
const CHILD_MINUTES_DEFAULT: i64 = 60;
/// Longest lifetime of a child token in minutes.
const CHILD_MINUTES_MAX: i64 = LIFE_DAYS_MAX * 24 * 60;

impl CreateChildRequest {
    fn expiry(&self, now: DateTime<Utc>) -> Result<ChildExpiry, Error> {
        let minutes = self.expires_in_minutes.unwrap_or(CHILD_MINUTES_DEFAULT);
        if !(1..=CHILD_MINUTES_MAX).contains(&minutes) {
            let text = format!("expected 1 to {CHILD_MINUTES_MAX}");
            return Err(Error::invalid("expires_in_minutes", text));
        }
        match self.expires_at {
            Some(_) if self.expires_in_minutes.is_some() => Err(Error::invalid(
                "expires_in_minutes",
                "cannot be given together with expires_at",
            )),
            Some(moment) => Ok(ChildExpiry::At(moment)),
            None => Ok(ChildExpiry::AtMost(now + TimeDelta::minutes(minutes))),
        }
    }
}

async fn create_child(
    PathToken(parent): PathToken,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateChildRequest>,
) -> Result<Created<CreatedToken>, Error> {
    let parent = own_token(&context, &user, parent).await?;
    let now = context.clock.now();
    let expires_at = request.expiry(now)?;
    let mut draft = request.draft;
    let scope = tokens::get(&context.db, user.id, parent).await?.scope;
    if let Some(scope) = scope {
        draft.inherit(&scope)?;
    }
    let grant = draft.draft()?.resolve(&context.db, user.id).await?;
    let minted = scoped::mint(&context.entropy);
    let view = |about, token| Created(CreatedToken { about, token });
    let text = SecretString::from(minted.expose());
    audit.answer_with(move |about: &AccessToken| {
        view(about.clone(), text.expose_secret().to_owned()).respond()
    });
    let new = NewChild {
        owner: user.id,
        parent,
        name: &request.name,
        created_at: now,
        expires_at,
        grant,
    };
    let token = children::create(&context.db, new, &minted, &audit).await?;
    Ok(view(token, minted.expose().to_owned()))
}

/// Returns a token that the caller may create children of: the token of the request, or any of its
/// owner if the request has a classic token.
async fn own_token(context: &ApiContext, user: &User, token: i64) -> Result<TokenId, Error> {
    let token = TokenId(token);
    if user.grant.is_some() && user.token != Some(token) {
        return Err(Error::NotFound);
    }
    tokens::get(&context.db, user.id, token).await?;
    Ok(token)
}

static SIMULATE: Endpoint = Endpoint {
    id: "gantry-simulate-token",
    summary: "Simulate a request with a token and return the deciding rule",
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

/// A request to simulate, with an existing or a hypothetical token.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SimulateAccessToken")]
#[serde(deny_unknown_fields)]
struct SimulateRequest {
    /// Id of one of the caller's tokens. If absent, the other fields describe a hypothetical token.
    token_id: Option<i64>,
    #[serde(flatten)]
    draft: DraftRequest,
    /// `GET`, `POST`, …
    method: String,
    /// Path with query.
    path: String,
    /// The body, or the part of it that decides the permission.
    body: Option<serde_json::Value>,
    /// Client address to check against the token's networks.
    address: Option<IpAddr>,
}

async fn simulate(
    user: User,
    context: ApiContext,
    Json(request): Json<SimulateRequest>,
) -> Result<Json<Simulation>, Error> {
    let token = match request.token_id {
        Some(id) => simulate::SimulatedToken::Existing(TokenId(id)),
        None => simulate::SimulatedToken::Draft(request.draft.draft()?),
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
    summary: "Get the usage of a token and the fewest permissions that would be sufficient",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/tokens/{id}/usage",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD,
    handler: || mount(usage_of),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct UsageQuery {
    /// Number of days to report, including today: 1 to 90.
    #[serde(default = "days_default")]
    #[schemars(range(min = 1, max = 90))]
    days: u32,
}

fn days_default() -> u32 {
    30
}

async fn usage_of(
    PathToken(token): PathToken,
    user: User,
    context: ApiContext,
    Query(query): Query<UsageQuery>,
) -> Result<Json<TokenUsage>, Error> {
    if !(1..=usage::DAYS_MAX).contains(&query.days) {
        return Err(Error::invalid(
            "days",
            format!("expected 1 to {}", usage::DAYS_MAX),
        ));
    }
    let token = TokenId(token);
    let scope = tokens::get(&context.db, user.id, token).await?.scope;
    let token_permissions = scope.map(|scope| {
        scope
            .permissions
            .iter()
            .filter_map(|name| Permission::from_name(name))
            .collect::<Permissions>()
    });
    Ok(Json(
        usage::usage(
            &context.db,
            token,
            token_permissions,
            query.days,
            context.clock.now(),
        )
        .await?,
    ))
}

static CLI_LOGIN: Endpoint = Endpoint {
    id: "gantry-cli-login",
    summary: "Fetch the encrypted token of a command line login. It is returned only once",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/platform/cli/login/{session_id}",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(fetch_login),
};

path_parameters! {
    /// A session id from the path. An invalid one is reported as not found.
    struct LoginSessionId(Uuid) from "session_id", else Error::NotFound;
}

#[derive(Debug, Deserialize, JsonSchema)]
struct DeviceQuery {
    /// The code shown on the page.
    #[serde(default)]
    device_code: String,
}

async fn fetch_login(
    LoginSessionId(session): LoginSessionId,
    context: ApiContext,
    Query(query): Query<DeviceQuery>,
) -> Result<Json<EncryptedToken>, Error> {
    Ok(Json(
        cli_login::take_token(
            &context.db,
            session,
            &query.device_code,
            context.clock.now(),
        )
        .await?,
    ))
}
