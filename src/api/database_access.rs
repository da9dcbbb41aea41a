//! Operations on how a project's database is reached.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::{context::ApiContext, pooler},
    base::error::Error,
    data_plane::database_access::{
        bans, login_roles, restrictions,
        restrictions::{NETWORKS_MAX, Rules},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        http::{
            Endpoint, Json, Peer, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &CREATE_LOGIN_ROLE,
    &DELETE_LOGIN_ROLES,
    &GET_SSL,
    &SET_SSL,
    &GET_RESTRICTIONS,
    &PATCH_RESTRICTIONS,
    &APPLY_RESTRICTIONS,
    &LIST_BANS,
    &LIST_BANS_ENRICHED,
    &DELETE_BANS,
    &pooler::GET,
    &pooler::UPDATE,
    &pooler::GET_PGBOUNCER,
];

static CREATE_LOGIN_ROLE: Endpoint = Endpoint {
    id: "v1-create-login-role",
    summary: "Create a role to log in as for some minutes",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/cli/login-role",
    aliases: &[],
    access: needs(&[&[P::DatabaseWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(create_login_role)
            .audited_before()
            .sample(r#"{"read_only": true}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateRoleBody")]
struct LoginRoleRequest {
    /// Whether it can only read.
    read_only: bool,
}

/// It has no `Debug`: the password is in clear.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreateRoleResponse")]
struct LoginRoleMade {
    #[schemars(length(min = 1))]
    role: String,
    #[schemars(length(min = 1))]
    password: String,
    #[schemars(range(min = 1))]
    #[schemars(with = "i64")]
    ttl_seconds: u64,
}

async fn create_login_role(
    project: Project,
    context: ApiContext,
    Json(request): Json<LoginRoleRequest>,
) -> Result<Created<LoginRoleMade>, Error> {
    let made = login_roles::create(&context, &project, request.read_only).await?;
    Ok(Created(LoginRoleMade {
        password: made.expose().to_owned(),
        role: made.role,
        ttl_seconds: login_roles::TTL.as_secs(),
    }))
}

static DELETE_LOGIN_ROLES: Endpoint = Endpoint {
    id: "v1-delete-login-roles",
    summary: "Delete the roles that were made to log in as for some minutes",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/cli/login-role",
    aliases: &[],
    access: needs(&[&[P::DatabaseWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(delete_login_roles).audited_before(),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Fine {
    Ok,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeleteRolesResponse")]
struct LoginRolesDeleted {
    message: Fine,
}

async fn delete_login_roles(
    project: Project,
    context: ApiContext,
) -> Result<Json<LoginRolesDeleted>, Error> {
    login_roles::remove_all(&context, &project).await?;
    Ok(Json(LoginRolesDeleted { message: Fine::Ok }))
}

static GET_SSL: Endpoint = Endpoint {
    id: "v1-get-ssl-enforcement-config",
    summary: "Tell whether connections to the database must be encrypted",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/ssl-enforcement",
    aliases: &[],
    access: needs(&[&[P::DatabaseSslConfigRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_ssl),
};

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Ssl {
    /// Whether connections to the database must be encrypted.
    database: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SslEnforcementResponse")]
struct SslTold {
    current_config: Ssl,
    applied_successfully: bool,
}

impl SslTold {
    fn new(rules: &Rules) -> Self {
        Self {
            current_config: Ssl {
                database: rules.tls_required,
            },
            applied_successfully: true,
        }
    }
}

async fn get_ssl(project: Project, context: ApiContext) -> Result<Json<SslTold>, Error> {
    Ok(Json(SslTold::new(
        &restrictions::get(&context, &project).await?,
    )))
}

static SET_SSL: Endpoint = Endpoint {
    id: "v1-update-ssl-enforcement-config",
    summary: "Say whether connections to the database must be encrypted",
    tag: Tag::Database,
    method: Verb::Put,
    path: "/v1/projects/{ref}/ssl-enforcement",
    aliases: &[],
    access: needs(&[&[P::DatabaseSslConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(set_ssl).sample(r#"{"requestedConfig": {"database": true}}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SslEnforcementRequest")]
struct SslRequest {
    requested_config: Ssl,
}

async fn set_ssl(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<SslRequest>,
) -> Result<Json<SslTold>, Error> {
    let required = request.requested_config.database;
    if required
        && context
            .data_plane_settings
            .databases
            .as_ref()
            .is_some_and(|databases| !databases.tls)
    {
        let why = "this server has no certificate for databases, so nobody could connect; its operator can give it one with --db-tls-cert";
        return Err(Error::invalid("requestedConfig.database", why));
    }
    let alter = |rules: &mut Rules| {
        rules.tls_required = required;
        Ok(())
    };
    Ok(Json(SslTold::new(
        &restrictions::change(&context, &project, 200, &audit, alter)
            .await?
            .1,
    )))
}

static GET_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-get-network-restrictions",
    summary: "List the networks that may reach the database",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/network-restrictions",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkRestrictionsRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(get_restrictions),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Entitlement {
    Allowed,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Applied {
    Applied,
}

/// Networks, by family.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Lists {
    #[serde(rename = "dbAllowedCidrs")]
    v4: Vec<String>,
    #[serde(rename = "dbAllowedCidrsV6")]
    v6: Vec<String>,
}

impl From<&Rules> for Lists {
    fn from(rules: &Rules) -> Self {
        let (v4, v6): (Vec<_>, Vec<_>) = rules
            .allowed
            .iter()
            .partition(|network| matches!(network, IpNet::V4(_)));
        let texts = |networks: Vec<&IpNet>| networks.into_iter().map(ToString::to_string).collect();
        Self {
            v4: texts(v4),
            v6: texts(v6),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Network {
    address: String,
    #[serde(rename = "type")]
    family: Family,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum Family {
    V4,
    V6,
}

/// Networks, each with its family.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Networks {
    #[serde(rename = "dbAllowedCidrs")]
    all: Vec<Network>,
}

impl From<&Rules> for Networks {
    fn from(rules: &Rules) -> Self {
        let family = |network: &IpNet| {
            if matches!(network, IpNet::V4(_)) {
                Family::V4
            } else {
                Family::V6
            }
        };
        Self {
            all: rules
                .allowed
                .iter()
                .map(|network| Network {
                    address: network.to_string(),
                    family: family(network),
                })
                .collect(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NetworkRestrictions{C}Response")]
struct Restrictions<C> {
    entitlement: Entitlement,
    config: C,
    /// What held before, where it was just changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_config: Option<C>,
    status: Applied,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied_at: Option<DateTime<Utc>>,
}

impl<C: for<'a> From<&'a Rules>> Restrictions<C> {
    fn new(before: Option<&Rules>, now: &Rules) -> Self {
        Self {
            entitlement: Entitlement::Allowed,
            config: now.into(),
            old_config: before.map(C::from),
            status: Applied::Applied,
            updated_at: now.updated_at,
            applied_at: now.updated_at,
        }
    }
}

async fn get_restrictions(
    project: Project,
    context: ApiContext,
) -> Result<Json<Restrictions<Lists>>, Error> {
    Ok(Json(Restrictions::new(
        None,
        &restrictions::get(&context, &project).await?,
    )))
}

/// Networks as they are sent. A list that is left out stays as it is; an empty one lets nobody of its family in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "NetworkRestrictionsRequest")]
struct ListsRequest {
    #[serde(rename = "dbAllowedCidrs")]
    v4: Option<Vec<String>>,
    #[serde(rename = "dbAllowedCidrsV6")]
    v6: Option<Vec<String>>,
}

impl ListsRequest {
    fn parse(self) -> Result<[Option<Vec<IpNet>>; 2], Error> {
        let family = |field: &'static str, texts: Option<Vec<String>>, v4: bool| {
            texts
                .map(|texts| {
                    parse(field, &texts, |network| {
                        matches!(network, IpNet::V4(_)) == v4
                    })
                })
                .transpose()
        };
        Ok([
            family("dbAllowedCidrs", self.v4, true)?,
            family("dbAllowedCidrsV6", self.v6, false)?,
        ])
    }
}

/// Networks in the form `address/length`. Bits beyond the length are dropped.
fn parse(
    field: &'static str,
    texts: &[String],
    fits: impl Fn(&IpNet) -> bool,
) -> Result<Vec<IpNet>, Error> {
    if texts.len() > NETWORKS_MAX {
        return Err(Error::invalid(
            field,
            format!("expected at most {NETWORKS_MAX} networks"),
        ));
    }
    let network = |text: &String| {
        text.parse::<IpNet>()
            .ok()
            .filter(&fits)
            .map(|network| network.trunc())
    };
    let refusal = || {
        Error::invalid(
            field,
            "expected networks of its family, such as 192.0.2.0/24 or 2001:db8::/32",
        )
    };
    texts
        .iter()
        .map(|text| network(text).ok_or_else(refusal))
        .collect()
}

static APPLY_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-update-network-restrictions",
    summary: "Set the networks that may reach the database",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/network-restrictions/apply",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkRestrictionsWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || {
        mount(apply_restrictions)
            .sample(r#"{"dbAllowedCidrs": ["0.0.0.0/0"], "dbAllowedCidrsV6": ["::/0"]}"#)
    },
};

async fn apply_restrictions(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<ListsRequest>,
) -> Result<Created<Restrictions<Lists>>, Error> {
    let [v4, v6] = request.parse()?;
    let alter = |rules: &mut Rules| {
        let (old_v4, old_v6) = std::mem::take(&mut rules.allowed)
            .into_iter()
            .partition(|network| matches!(network, IpNet::V4(_)));
        rules.allowed = [v4.unwrap_or(old_v4), v6.unwrap_or(old_v6)].concat();
        Ok(())
    };
    let (before, after) = restrictions::change(&context, &project, 201, &audit, alter).await?;
    Ok(Created(Restrictions::new(Some(&before), &after)))
}

static PATCH_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-patch-network-restrictions",
    summary: "Add and remove networks that may reach the database",
    tag: Tag::Projects,
    method: Verb::Patch,
    path: "/v1/projects/{ref}/network-restrictions",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkRestrictionsWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || {
        mount(patch_restrictions).sample(r#"{"add": {"dbAllowedCidrs": ["203.0.113.0/24"]}}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NetworkRestrictionsPatchRequest")]
struct PatchRequest {
    #[serde(default)]
    add: ListsRequest,
    #[serde(default)]
    remove: ListsRequest,
}

async fn patch_restrictions(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<PatchRequest>,
) -> Result<Json<Restrictions<Networks>>, Error> {
    let flat = |lists: ListsRequest| {
        lists
            .parse()
            .map(|lists| lists.into_iter().flatten().flatten().collect::<Vec<_>>())
    };
    let (add, remove) = (flat(request.add)?, flat(request.remove)?);
    let alter = |rules: &mut Rules| {
        rules.allowed.retain(|network| !remove.contains(network));
        rules.allowed.extend(add);
        Ok(())
    };
    let (before, after) = restrictions::change(&context, &project, 200, &audit, alter).await?;
    Ok(Json(Restrictions::new(Some(&before), &after)))
}

static LIST_BANS: Endpoint = Endpoint {
    id: "v1-list-all-network-bans",
    summary: "List the addresses that are banned from the database",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/network-bans/retrieve",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkBansRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_bans),
};

/// Addresses, of either family whatever the name says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NetworkBan{T}Response")]
struct Bans<T> {
    banned_ipv4_addresses: Vec<T>,
}

async fn list_bans(project: Project, context: ApiContext) -> Result<Created<Bans<String>>, Error> {
    Ok(Created(Bans {
        banned_ipv4_addresses: bans::list(&context, &project).await?,
    }))
}

static LIST_BANS_ENRICHED: Endpoint = Endpoint {
    id: "v1-list-all-network-bans-enriched",
    summary: "List the addresses that are banned from the database, and by what",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/network-bans/retrieve/enriched",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkBansRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_bans_enriched),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Ban {
    banned_address: String,
    /// What it is banned from.
    identifier: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

async fn list_bans_enriched(
    project: Project,
    context: ApiContext,
) -> Result<Created<Bans<Ban>>, Error> {
    let ban = |banned_address| Ban {
        banned_address,
        identifier: project.reference.to_string(),
        kind: "postgres",
    };
    Ok(Created(Bans {
        banned_ipv4_addresses: bans::list(&context, &project)
            .await?
            .into_iter()
            .map(ban)
            .collect(),
    }))
}

static DELETE_BANS: Endpoint = Endpoint {
    id: "v1-delete-network-bans",
    summary: "Let banned addresses reach the database again",
    tag: Tag::Projects,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/network-bans",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkBansWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || mount(delete_bans).sample(r#"{"ipv4_addresses": ["203.0.113.9"]}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RemoveNetworkBanRequest")]
struct UnbanRequest {
    /// Addresses or networks.
    ipv4_addresses: Vec<String>,
    /// Whether the address this request comes from is meant as well.
    #[serde(default)]
    requester_ip: bool,
    #[expect(dead_code, reason = "addresses are banned from one database here")]
    identifier: Option<String>,
}

async fn delete_bans(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    peer: Peer,
    Json(request): Json<UnbanRequest>,
) -> Result<OkEmpty, Error> {
    const FIELD: &str = "ipv4_addresses";
    if request.ipv4_addresses.len() > NETWORKS_MAX {
        return Err(Error::invalid(
            FIELD,
            format!("expected at most {NETWORKS_MAX} addresses"),
        ));
    }
    let network = |text: &String| {
        text.parse()
            .ok()
            .or_else(|| text.parse().ok().map(bans::block))
    };
    let networks = request
        .ipv4_addresses
        .iter()
        .map(|text| network(text).ok_or_else(|| Error::invalid(FIELD, "expected addresses")));
    let mut networks = networks.collect::<Result<Vec<IpNet>, _>>()?;
    networks.extend(request.requester_ip.then(|| bans::block(peer.address)));
    bans::lift(&context, &project, &networks, &audit)
        .await
        .map(|()| OkEmpty)
}
