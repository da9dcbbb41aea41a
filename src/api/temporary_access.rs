//! Operations on temporary access to a project's database.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use chrono::DateTime;
use ipnet::IpNet;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use uuid::Uuid;

use crate::{
    api::{accounts, context::ApiContext, organizations::members, projects::timestamp},
    base::{error::Error, ids::ProjectRef},
    data_plane::{
        temporary_access,
        temporary_access::{
            Opened, grants,
            grants::{Grant, Granted, NETWORKS_MAX, ROLES_MAX},
            invitations,
            invitations::Invitation,
            server::LOGIN_PREFIX,
        },
    },
    platform::{
        access::{Access, OauthScope as S, Permission as P, Project, User, needs, pat_only},
        audit::Recorder,
        http::{
            Call, Endpoint, Input, Json, Tag, Verb, mount,
            openapi::OperationDoc,
            output::{Created, OkEmpty},
        },
        rate_limits::{STANDARD, STANDARD_BY_CALLER},
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET_STATE, &SET_STATE, &GET_OWN, &LIST, &SET, &REMOVE, &AUTHORIZE, &INVITE, &ACCEPT, &REVOKE,
];

/// Longest name of a role.
const ROLE_BYTES_MAX: usize = 63;

static GET_STATE: Endpoint = Endpoint {
    id: "v1-get-jit-access-config",
    summary: "Tell whether members can be given temporary access to the database",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/jit-access",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_state),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "JitAccessState")]
enum State {
    Enabled,
    Disabled,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "JitStateResponse")]
struct StateResponse {
    state: State,
    /// Whether the server does what was asked for last: every login that is over is gone.
    applied_successfully: bool,
}

async fn get_state(project: Project, context: ApiContext) -> Result<Json<StateResponse>, Error> {
    let state = if temporary_access::is_enabled(&context, &project).await? {
        State::Enabled
    } else {
        State::Disabled
    };
    Ok(Json(StateResponse {
        state,
        applied_successfully: temporary_access::is_applied(&context, &project).await?,
    }))
}

static SET_STATE: Endpoint = Endpoint {
    id: "v1-update-jit-access-config",
    summary: "Enable or disable temporary access to the database",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/jit-access",
    aliases: &[],
    access: needs(&[&[P::ProjectAdminWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(set_state).sample(r#"{"state": "enabled"}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "JitAccessRequestRequest")]
struct StateRequest {
    state: State,
}

async fn set_state(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(StateRequest { state }): Json<StateRequest>,
) -> Result<Json<StateResponse>, Error> {
    temporary_access::enable(&context, &project, state == State::Enabled, &audit).await?;
    // What was asked for stands either way, and is carried out as soon as the server can be reached.
    let applied_successfully = temporary_access::until_ended(&context, &project)
        .await
        .is_ok();
    Ok(Json(StateResponse {
        state,
        applied_successfully,
    }))
}

/// A role that a member may be.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitUserRole")]
struct RoleGrant {
    /// Role of the database.
    #[schemars(length(min = 1))]
    role: String,
    /// When it is over, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Number>,
    /// Where from; from anywhere, if none are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_networks: Option<Networks>,
    /// Whether it is for branches of the project only.
    #[serde(skip_serializing_if = "Option::is_none")]
    branches_only: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitAllowedNetworks")]
struct Networks {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allowed_cidrs: Vec<Network>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allowed_cidrs_v6: Vec<Network>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitNetwork")]
struct Network {
    cidr: String,
}

impl RoleGrant {
    fn check(self, context: &ApiContext) -> Result<Grant, Error> {
        let role = self.role;
        // What nobody can be given, whatever the database says: PostgreSQL's own roles, and logins.
        if !(1..=ROLE_BYTES_MAX).contains(&role.len())
            || role.contains('\0')
            || role.starts_with("pg_")
            || role.starts_with(LOGIN_PREFIX)
        {
            return Err(Error::invalid(
                "role",
                "Invalid input: expected the name of a role that can be given to members",
            ));
        }
        let expires_at = self.expires_at.map(|seconds| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "what is out of range saturates, and is refused"
            )]
            let at = seconds
                .as_f64()
                .and_then(|seconds| DateTime::from_timestamp(seconds as i64, 0));
            at.filter(|at| *at > context.clock.now() && at.timestamp() < SECONDS_MAX)
                .ok_or_else(|| {
                    Error::invalid(
                        "expires_at",
                        "Invalid input: expected a time to come, in seconds since 1970",
                    )
                })
        });
        let Networks {
            allowed_cidrs: v4,
            allowed_cidrs_v6: v6,
        } = self.allowed_networks.unwrap_or_default();
        if v4.len() + v6.len() > NETWORKS_MAX {
            return Err(Error::invalid(
                "allowed_networks",
                format!("Invalid input: expected at most {NETWORKS_MAX}"),
            ));
        }
        let networks = v4
            .iter()
            .map(|network| network.check(false))
            .chain(v6.iter().map(|network| network.check(true)));
        let branches_only = self.branches_only.unwrap_or(false);
        Ok(Grant {
            role,
            expires_at: expires_at.transpose()?,
            networks: networks.collect::<Result<_, _>>()?,
            branches_only,
        })
    }
}

/// The year 3000: whoever names a later one counts milliseconds.
const SECONDS_MAX: i64 = 32_503_680_000;

impl Network {
    fn check(&self, v6: bool) -> Result<IpNet, Error> {
        let network = self
            .cidr
            .parse::<IpNet>()
            .ok()
            .filter(|network| matches!(network, IpNet::V6(_)) == v6);
        let expected = if v6 {
            "an IPv6 network such as 2001:db8::/32"
        } else {
            "an IPv4 network such as 192.0.2.0/24"
        };
        network
            .map(|network| network.trunc())
            .ok_or_else(|| Error::invalid("cidr", format!("Invalid input: expected {expected}")))
    }
}

impl From<Grant> for RoleGrant {
    fn from(grant: Grant) -> Self {
        let shown = |network: IpNet| Network {
            cidr: network.to_string(),
        };
        let (v6, v4): (Vec<IpNet>, Vec<IpNet>) = grant
            .networks
            .into_iter()
            .partition(|network| matches!(network, IpNet::V6(_)));
        let networks = Networks {
            allowed_cidrs: v4.into_iter().map(shown).collect(),
            allowed_cidrs_v6: v6.into_iter().map(shown).collect(),
        };
        Self {
            role: grant.role,
            expires_at: grant.expires_at.map(|at| at.timestamp().into()),
            allowed_networks: (!networks.allowed_cidrs.is_empty()
                || !networks.allowed_cidrs_v6.is_empty())
            .then_some(networks),
            branches_only: grant.branches_only.then_some(true),
        }
    }
}

static GET_OWN: Endpoint = Endpoint {
    id: "v1-get-jit-access",
    summary: "Tell what access to the database the caller is granted",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/jit",
    aliases: &[],
    access: needs(&[&[P::DatabaseJitRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_own),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "JitAccessResponse")]
struct AccessResponse {
    user_id: Uuid,
    user_roles: Vec<RoleGrant>,
}

async fn get_own(
    project: Project,
    user: User,
    context: ApiContext,
) -> Result<Json<AccessResponse>, Error> {
    let grants = grants::of_member(&context, &project, user.id).await?;
    Ok(Json(AccessResponse {
        user_id: user.gotrue_id,
        user_roles: shown(grants),
    }))
}

static LIST: Endpoint = Endpoint {
    id: "v1-list-jit-access",
    summary: "List who is granted access to the database",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/database/jit/list",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "JitListAccessResponse")]
struct ListResponse {
    items: Vec<Item>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "JitListAccessItem")]
struct Item {
    /// Null for an invitation that nobody accepted yet.
    user_id: Option<Uuid>,
    primary_email: String,
    /// Of an invitation that nobody accepted yet.
    invite_id: Option<Uuid>,
    /// Of such an invitation.
    expires_at: Option<String>,
    user_roles: Vec<RoleGrant>,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<ListResponse>, Error> {
    let item = |Granted {
                    user,
                    email,
                    grants,
                }| Item {
        user_id: Some(user),
        primary_email: email,
        invite_id: None,
        expires_at: None,
        user_roles: shown(grants),
    };
    let invited = |Invitation {
                       id,
                       email,
                       grants,
                       expires_at,
                   }| Item {
        user_id: None,
        primary_email: email,
        invite_id: Some(id),
        expires_at: Some(timestamp(expires_at)),
        user_roles: shown(grants),
    };
    let (granted, open) = (
        grants::list(&context, &project).await?,
        invitations::open(&context, &project).await?,
    );
    Ok(Json(ListResponse {
        items: granted
            .into_iter()
            .map(item)
            .chain(open.into_iter().map(invited))
            .collect(),
    }))
}

static SET: Endpoint = Endpoint {
    id: "v1-update-jit-access",
    summary: "Grant a member access to the database",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/database/jit",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(set).sample(r#"{"user_id": "00000000-0000-0000-0000-000000000000", "roles": [{"role": "supabase_read_only_user"}]}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateJitAccessBody")]
struct SetRequest {
    /// A member of the project's organization.
    user_id: Uuid,
    /// All that the member is granted from now on.
    roles: Vec<RoleGrant>,
}

async fn set(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<SetRequest>,
) -> Result<Json<AccessResponse>, Error> {
    let grants = checked(&context, request.roles)?;
    let user = members::by_id(&context.db, project.organization, request.user_id).await;
    let user = user.map_err(|error| match error {
        Error::NotFound => Error::invalid(
            "user_id",
            "Invalid input: expected a member of the project's organization",
        ),
        other => other,
    })?;
    grants::set(&context, &project, user, &grants, &audit).await?;
    temporary_access::until_ended(&context, &project).await?;
    Ok(Json(AccessResponse {
        user_id: request.user_id,
        user_roles: shown(grants),
    }))
}

fn checked(context: &ApiContext, roles: Vec<RoleGrant>) -> Result<Vec<Grant>, Error> {
    if roles.len() > ROLES_MAX {
        return Err(Error::invalid(
            "roles",
            format!("Invalid input: expected at most {ROLES_MAX}"),
        ));
    }
    let grants = roles
        .into_iter()
        .map(|role| role.check(context))
        .collect::<Result<Vec<_>, _>>()?;
    if grants
        .iter()
        .map(|grant| &grant.role)
        .collect::<BTreeSet<_>>()
        .len()
        < grants.len()
    {
        return Err(Error::invalid(
            "roles",
            "Invalid input: a role is named twice",
        ));
    }
    Ok(grants)
}

fn shown(grants: Vec<Grant>) -> Vec<RoleGrant> {
    grants.into_iter().map(RoleGrant::from).collect()
}

static REMOVE: Endpoint = Endpoint {
    id: "v1-delete-jit-access",
    summary: "Take all access to the database from a member",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/database/jit/{user_id}",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || mount(remove),
};

/// `{user_id}` of the path.
struct Member(Uuid);

impl Input for Member {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call.placeholder("user_id").unwrap_or_default();
        id.parse()
            .map(Self)
            .map_err(|_| Error::invalid("user_id", "Invalid input: expected a UUID"))
    }
}

async fn remove(
    project: Project,
    Member(user): Member,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    grants::remove(&context, &project, user, &audit).await?;
    temporary_access::until_ended(&context, &project).await?;
    Ok(OkEmpty)
}

static AUTHORIZE: Endpoint = Endpoint {
    id: "v1-authorize-jit-access",
    summary: "Open a login to the database that the caller is granted",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit",
    aliases: &[],
    access: needs(&[&[P::DatabaseJitRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || {
        mount(authorize)
            .mutates()
            .sample(r#"{"role": "supabase_read_only_user", "rhost": "127.0.0.1"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AuthorizeJitAccessBody")]
struct AuthorizeRequest {
    /// Role of the database to be.
    #[schemars(length(min = 1))]
    role: String,
    /// Address to connect from.
    #[schemars(with = "String", length(min = 1))]
    rhost: IpAddr,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JitAuthorizeAccessResponse")]
struct AuthorizeResponse {
    user_id: Uuid,
    user_role: RoleGrant,
    login: LoginResponse,
}

/// Ours, beyond the contract: what to connect with.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JitLogin")]
struct LoginResponse {
    /// User to connect as.
    role: String,
    /// Shown once.
    password: String,
    /// When nobody is let in any more, and sessions end.
    ttl_seconds: i64,
}

async fn authorize(
    project: Project,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(AuthorizeRequest { role, rhost }): Json<AuthorizeRequest>,
) -> Result<Json<AuthorizeResponse>, Error> {
    let opened = temporary_access::open(&context, &project, &user, &role, rhost, &audit).await?;
    let login = LoginResponse::new(&context, &opened);
    Ok(Json(AuthorizeResponse {
        user_id: user.gotrue_id,
        user_role: opened.grant.into(),
        login,
    }))
}

impl LoginResponse {
    fn new(context: &ApiContext, opened: &Opened) -> Self {
        let ttl_seconds = (opened.until - context.clock.now()).num_seconds();
        Self {
            role: opened.name.clone(),
            password: opened.password.expose_secret().to_owned(),
            ttl_seconds,
        }
    }
}

static INVITE: Endpoint = Endpoint {
    id: "v1-invite-external-jit-access",
    summary: "Invite somebody from outside to the database",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit/invite",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(invite).sample(
            r#"{"email": "ada@example.com", "roles": [{"role": "supabase_read_only_user"}]}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InviteExternalJitAccessBody")]
struct InviteRequest {
    /// Whoever accepts has an account with this address.
    email: String,
    /// What is granted then; for a day, where no end is named.
    #[schemars(length(min = 1))]
    roles: Vec<RoleGrant>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "InviteExternalJitAccessResponse")]
struct InviteResponse {
    email: String,
    invite_id: Uuid,
    user_roles: Vec<RoleGrant>,
    /// Ours, beyond the contract: what the invited person shows. Shown once.
    token: String,
    /// Ours: when the invitation is over.
    expires_at: String,
}

async fn invite(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<InviteRequest>,
) -> Result<Created<InviteResponse>, Error> {
    accounts::local_part(&request.email)?;
    let grants = checked(&context, request.roles)?;
    if grants.is_empty() {
        return Err(Error::invalid(
            "roles",
            "Invalid input: expected at least one",
        ));
    }
    let (made, secret) =
        invitations::invite(&context, &project, request.email, grants, &audit).await?;
    // One that this one takes the place of may have been accepted.
    temporary_access::until_ended(&context, &project).await?;
    Ok(Created(InviteResponse {
        email: made.email,
        invite_id: made.id,
        user_roles: shown(made.grants),
        token: secret.expose_secret().to_owned(),
        expires_at: timestamp(made.expires_at),
    }))
}

static ACCEPT: Endpoint = Endpoint {
    id: "v1-accept-invite-external-jit-access",
    summary: "Open logins to a database by an invitation",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit/invite/accept",
    aliases: &[],
    access: Access::Unscoped,
    limit: &STANDARD_BY_CALLER,
    handler: || {
        mount(accept).sample(r#"{"email": "ada@example.com", "token": "gantry_jit_invite_…"}"#)
    },
};

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AcceptInviteExternalJitAccessBody")]
struct AcceptRequest {
    /// The caller's own.
    email: String,
    /// What the invitation showed.
    #[schemars(length(min = 1))]
    token: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AcceptInviteExternalJitAccessResponse")]
struct AcceptResponse {
    user_id: Uuid,
    user_roles: Vec<RoleGrant>,
    /// Ours, beyond the contract: what to connect with, in the order of the roles. To accept again renews them.
    logins: Vec<LoginResponse>,
}

async fn accept(
    Reference(project): Reference,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<AcceptRequest>,
) -> Result<Json<AcceptResponse>, Error> {
    let shows = (request.email.as_str(), &SecretString::from(request.token));
    let opened = invitations::accept(&context, &project, &user, shows, &audit).await?;
    let logins = opened
        .iter()
        .map(|opened| LoginResponse::new(&context, opened))
        .collect();
    let user_roles = opened
        .into_iter()
        .map(|opened| opened.grant.into())
        .collect();
    Ok(Json(AcceptResponse {
        user_id: user.gotrue_id,
        user_roles,
        logins,
    }))
}

/// `{ref}` of the path, of a project that the caller need not belong to.
struct Reference(ProjectRef);

impl Input for Reference {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.placeholder("ref")
            .unwrap_or_default()
            .parse()
            .map(Self)
            .map_err(|_| Error::NotFound)
    }
}

static REVOKE: Endpoint = Endpoint {
    id: "v1-delete-invite-external-jit-access",
    summary: "Take back an invitation to the database",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/database/jit/invite/{invite_id}",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || mount(revoke),
};

/// `{invite_id}` of the path.
struct Invite(Uuid);

impl Input for Invite {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let id = call.placeholder("invite_id").unwrap_or_default();
        id.parse()
            .map(Self)
            .map_err(|_| Error::invalid("invite_id", "Invalid input: expected a UUID"))
    }
}

async fn revoke(
    project: Project,
    Invite(id): Invite,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    invitations::revoke(&context, &project, id, &audit).await?;
    temporary_access::until_ended(&context, &project).await?;
    Ok(OkEmpty)
}
