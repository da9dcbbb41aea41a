//! Operations on temporary access to a project's database.

mod invites;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use chrono::DateTime;
use ipnet::IpNet;
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use uuid::Uuid;

use crate::{
    api::{
        context::ApiContext, organizations::members, path::path_parameters, projects::timestamp,
    },
    control::temporary_access::{
        self, LoginCredentials,
        grants::{self, AccessGrant, MemberGrants, NETWORKS_MAX, ROLES_MAX},
        invitations::{self, DatabaseInvitation},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, User, needs, pat_only},
        audit::Recorder,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, output::OkEmpty},
        rate_limits::STANDARD,
    },
    proxy::postgres_proxy::TEMPORARY_LOGIN_PREFIX,
};

/// Endpoints of temporary access.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET_STATE,
    &SET_STATE,
    &GET_OWN,
    &LIST,
    &SET,
    &REMOVE,
    &AUTHORIZE,
    &invites::INVITE,
    &invites::ACCEPT,
    &invites::REVOKE,
];

/// Maximum length of a role name.
const ROLE_BYTES_MAX: usize = 63;

static GET_STATE: Endpoint = Endpoint {
    id: "v1-get-jit-access-config",
    summary: "Get whether temporary access to the database is enabled",
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
enum AccessState {
    Enabled,
    Disabled,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "JitStateResponse")]
struct StateResponse {
    state: AccessState,
    /// Whether the server matches the desired state: all expired logins are removed.
    applied_successfully: bool,
}

async fn get_state(project: Project, context: ApiContext) -> Result<Json<StateResponse>, Error> {
    let state = if temporary_access::is_enabled(&context, &project).await? {
        AccessState::Enabled
    } else {
        AccessState::Disabled
    };
    Ok(Json(StateResponse {
        state,
        applied_successfully: temporary_access::is_settled(&context, &project).await?,
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
    handler: || {
        mount(set_state)
            .answers_after_change()
            .sample(r#"{"state": "enabled"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "JitAccessRequestRequest")]
struct StateRequest {
    state: AccessState,
}

async fn set_state(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(StateRequest { state }): Json<StateRequest>,
) -> Result<Json<StateResponse>, Error> {
    temporary_access::enable(&context, &project, state == AccessState::Enabled, &audit).await?;
    // The desired state is stored in any case and applied as soon as the server is reachable.
    let applied_successfully = temporary_access::wait_until_revoked(&context, &project)
        .await
        .is_ok();
    Ok(Json(StateResponse {
        state,
        applied_successfully,
    }))
}

/// A grant of a database role.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitUserRole")]
struct RoleGrant {
    /// Role of the database.
    #[schemars(length(min = 1))]
    role: String,
    /// Expiry, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Number>,
    /// Permitted networks. Omitted or empty permits all.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_networks: Option<AllowedNetworks>,
    /// Whether the grant applies only to branches of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    branches_only: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitAllowedNetworks")]
struct AllowedNetworks {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allowed_cidrs: Vec<AllowedNetwork>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allowed_cidrs_v6: Vec<AllowedNetwork>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JitNetwork")]
struct AllowedNetwork {
    cidr: String,
}

impl RoleGrant {
    fn check(self, context: &ApiContext) -> Result<AccessGrant, Error> {
        let role = self.role;
        // Rejects roles that can never be granted: predefined roles of PostgreSQL and login roles.
        if !(1..=ROLE_BYTES_MAX).contains(&role.len())
            || role.contains('\0')
            || role.starts_with("pg_")
            || role.starts_with(TEMPORARY_LOGIN_PREFIX)
        {
            return Err(Error::invalid(
                "role",
                "Invalid input: expected the name of a role that can be given to members",
            ));
        }
        let expires_at = self.expires_at.map(|seconds| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "values out of range saturate and are rejected"
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
        let AllowedNetworks {
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
        Ok(AccessGrant {
            role,
            expires_at: expires_at.transpose()?,
            networks: networks.collect::<Result<_, _>>()?,
            branches_only,
        })
    }
}

/// The year 3000. Later values are likely milliseconds.
const SECONDS_MAX: i64 = 32_503_680_000;

impl AllowedNetwork {
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

impl From<AccessGrant> for RoleGrant {
    fn from(grant: AccessGrant) -> Self {
        let role_grants = |network: IpNet| AllowedNetwork {
            cidr: network.to_string(),
        };
        let (v6, v4): (Vec<IpNet>, Vec<IpNet>) = grant
            .networks
            .into_iter()
            .partition(|network| matches!(network, IpNet::V6(_)));
        let networks = AllowedNetworks {
            allowed_cidrs: v4.into_iter().map(role_grants).collect(),
            allowed_cidrs_v6: v6.into_iter().map(role_grants).collect(),
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
    summary: "Get the caller's grants on the database",
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
struct OwnAccessResponse {
    user_id: Uuid,
    user_roles: Vec<RoleGrant>,
}

async fn get_own(
    project: Project,
    user: User,
    context: ApiContext,
) -> Result<Json<OwnAccessResponse>, Error> {
    let grants = grants::of_member(&context, &project, user.id).await?;
    Ok(Json(OwnAccessResponse {
        user_id: user.gotrue_id,
        user_roles: role_grants(grants),
    }))
}

static LIST: Endpoint = Endpoint {
    id: "v1-list-jit-access",
    summary: "List the members with access to the database",
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
struct AccessListResponse {
    items: Vec<AccessListItem>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "JitListAccessItem")]
struct AccessListItem {
    /// User id. Null for an open invitation.
    user_id: Option<Uuid>,
    primary_email: String,
    /// Id of an open invitation.
    invite_id: Option<Uuid>,
    /// Expiry of an open invitation.
    expires_at: Option<String>,
    user_roles: Vec<RoleGrant>,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<AccessListResponse>, Error> {
    let item = |MemberGrants {
                    user,
                    email,
                    grants,
                }| AccessListItem {
        user_id: Some(user),
        primary_email: email,
        invite_id: None,
        expires_at: None,
        user_roles: role_grants(grants),
    };
    let invited = |DatabaseInvitation {
                       id,
                       email,
                       grants,
                       expires_at,
                   }| AccessListItem {
        user_id: None,
        primary_email: email,
        invite_id: Some(id),
        expires_at: Some(timestamp(expires_at)),
        user_roles: role_grants(grants),
    };
    let granted = grants::list(&context, &project).await?;
    let open = invitations::open(&context, &project).await?;
    Ok(Json(AccessListResponse {
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
        mount(set)
            .destructive("gives a member a login of the database")
            .sample(r#"{"user_id": "00000000-0000-0000-0000-000000000000", "roles": [{"role": "supabase_read_only_user"}]}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateJitAccessBody")]
struct GrantAccessRequest {
    /// A member of the project's organization.
    user_id: Uuid,
    /// New grants, which replace all existing grants of the member.
    roles: Vec<RoleGrant>,
}

async fn set(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<GrantAccessRequest>,
) -> Result<Json<OwnAccessResponse>, Error> {
    let grants = validate_roles(&context, request.roles)?;
    let user = members::by_id(&context.db, project.organization, request.user_id).await;
    let user = user.map_err(|error| match error {
        Error::NotFound => Error::invalid(
            "user_id",
            "Invalid input: expected a member of the project's organization",
        ),
        other => other,
    })?;
    let view = |grants| {
        Json(OwnAccessResponse {
            user_id: request.user_id,
            user_roles: role_grants(grants),
        })
    };
    audit.answer(|| view(grants.clone()));
    grants::set(&context, &project, user, &grants, &audit).await?;
    temporary_access::wait_until_revoked(&context, &project).await?;
    Ok(view(grants))
}

fn validate_roles(context: &ApiContext, roles: Vec<RoleGrant>) -> Result<Vec<AccessGrant>, Error> {
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

fn role_grants(grants: Vec<AccessGrant>) -> Vec<RoleGrant> {
    grants.into_iter().map(RoleGrant::from).collect()
}

static REMOVE: Endpoint = Endpoint {
    id: "v1-delete-jit-access",
    summary: "Remove a member's access to the database",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/database/jit/{user_id}",
    aliases: &[],
    access: pat_only(&[&[P::DatabaseJitWrite]]),
    limit: &STANDARD,
    handler: || mount(remove),
};

path_parameters! {
    /// `{user_id}` of the path.
    struct MemberPath(Uuid) from "user_id", else Error::invalid("user_id", "Invalid input: expected a UUID");
}

async fn remove(
    project: Project,
    MemberPath(user): MemberPath,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    grants::remove(&context, &project, user, &audit).await?;
    temporary_access::wait_until_revoked(&context, &project).await?;
    Ok(OkEmpty)
}

static AUTHORIZE: Endpoint = Endpoint {
    id: "v1-authorize-jit-access",
    summary: "Create a login to the database from a grant of the caller",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/jit",
    aliases: &[],
    access: needs(&[&[P::DatabaseJitRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || {
        mount(authorize)
            .answers_after_change()
            .mutates()
            .sample(r#"{"role": "supabase_read_only_user", "rhost": "127.0.0.1"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AuthorizeJitAccessBody")]
struct AuthorizeRequest {
    /// Database role to use.
    #[schemars(length(min = 1))]
    role: String,
    /// Client address of the connections.
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

/// Credentials of a login. An extension of the contract.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JitLogin")]
struct LoginResponse {
    /// User name for the connection.
    role: String,
    /// Password. Returned once.
    password: String,
    /// Seconds until the login expires and its sessions are terminated.
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
    fn new(context: &ApiContext, opened: &LoginCredentials) -> Self {
        let ttl_seconds = (opened.until - context.clock.now()).num_seconds();
        Self {
            role: opened.name.clone(),
            password: opened.password.expose_secret().to_owned(),
            ttl_seconds,
        }
    }
}
