//! Operations on the connection rules of a project's database.

mod pooler;
mod ssl;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use gantry_base::net::address_block::address_block;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::database_access::{
        bans, login_roles,
        restrictions::{self, NETWORKS_MAX, NetworkRestrictions},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Peer, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of database access.
pub static ENDPOINTS: &[&Endpoint] = &[
    &CREATE_LOGIN_ROLE,
    &DELETE_LOGIN_ROLES,
    &ssl::GET_SSL,
    &ssl::SET_SSL,
    &GET_RESTRICTIONS,
    &PATCH_RESTRICTIONS,
    &APPLY_RESTRICTIONS,
    &REVIEW_RESTRICTIONS,
    &LIST_BANS,
    &LIST_BANS_ENRICHED,
    &DELETE_BANS,
    &pooler::GET,
    &pooler::UPDATE,
    &pooler::GET_PGBOUNCER,
];

static CREATE_LOGIN_ROLE: Endpoint = Endpoint {
    id: "v1-create-login-role",
    summary: "Create a short-lived login role",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/cli/login-role",
    aliases: &[],
    access: needs(&[&[P::DatabaseWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(create_login_role)
            .audited_before()
            .repeatable()
            .destructive_if(|asked| {
                let request = asked.body::<LoginRoleRequest>()?;
                let effect = "creates a login that can write to the database";
                (!request.read_only).then(|| effect.into())
            })
            .sample(r#"{"read_only": true}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CreateRoleBody")]
struct LoginRoleRequest {
    /// Whether the role can only read.
    read_only: bool,
}

/// A created login role. No `Debug`, because of the password.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreateRoleResponse")]
struct LoginRoleResponse {
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
) -> Result<Created<LoginRoleResponse>, Error> {
    let made = login_roles::create(&context, &project, request.read_only).await?;
    Ok(Created(LoginRoleResponse {
        password: made.expose().to_owned(),
        role: made.role,
        ttl_seconds: login_roles::TTL.as_secs(),
    }))
}

static DELETE_LOGIN_ROLES: Endpoint = Endpoint {
    id: "v1-delete-login-roles",
    summary: "Delete the short-lived login roles",
    tag: Tag::Database,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/cli/login-role",
    aliases: &[],
    access: needs(&[&[P::DatabaseWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(delete_login_roles).audited_before().repeatable(),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum OkMessage {
    Ok,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeleteRolesResponse")]
struct DeleteLoginRolesResponse {
    message: OkMessage,
}

async fn delete_login_roles(
    project: Project,
    context: ApiContext,
) -> Result<Json<DeleteLoginRolesResponse>, Error> {
    login_roles::remove_all(&context, &project).await?;
    Ok(Json(DeleteLoginRolesResponse {
        message: OkMessage::Ok,
    }))
}

static GET_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-get-network-restrictions",
    summary: "List the networks that are permitted to connect to the database",
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
enum AppliedStatus {
    Applied,
}

/// Networks by address family.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, rename = "Lists")]
struct NetworksByFamily {
    #[serde(rename = "dbAllowedCidrs")]
    v4: Vec<String>,
    #[serde(rename = "dbAllowedCidrsV6")]
    v6: Vec<String>,
}

impl From<&NetworkRestrictions> for NetworksByFamily {
    fn from(rules: &NetworkRestrictions) -> Self {
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
struct RestrictedNetwork {
    address: String,
    #[serde(rename = "type")]
    family: AddressFamily,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum AddressFamily {
    V4,
    V6,
}

/// Networks with their address family.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, rename = "Networks")]
struct TypedNetworks {
    #[serde(rename = "dbAllowedCidrs")]
    all: Vec<RestrictedNetwork>,
}

impl From<&NetworkRestrictions> for TypedNetworks {
    fn from(rules: &NetworkRestrictions) -> Self {
        let family = |network: &IpNet| {
            if matches!(network, IpNet::V4(_)) {
                AddressFamily::V4
            } else {
                AddressFamily::V6
            }
        };
        Self {
            all: rules
                .allowed
                .iter()
                .map(|network| RestrictedNetwork {
                    address: network.to_string(),
                    family: family(network),
                })
                .collect(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NetworkRestrictions{C}Response")]
struct RestrictionsResponse<C> {
    entitlement: Entitlement,
    config: C,
    /// Configuration before the change, in the response of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_config: Option<C>,
    status: AppliedStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied_at: Option<DateTime<Utc>>,
}

impl<C: for<'a> From<&'a NetworkRestrictions>> RestrictionsResponse<C> {
    fn new(before: Option<&NetworkRestrictions>, now: &NetworkRestrictions) -> Self {
        Self {
            entitlement: Entitlement::Allowed,
            config: now.into(),
            old_config: before.map(C::from),
            status: AppliedStatus::Applied,
            updated_at: now.updated_at,
            applied_at: now.updated_at,
        }
    }
}

async fn get_restrictions(
    project: Project,
    context: ApiContext,
) -> Result<Json<RestrictionsResponse<NetworksByFamily>>, Error> {
    Ok(Json(RestrictionsResponse::new(
        None,
        &restrictions::get(&context, &project).await?,
    )))
}

/// Networks in a request. An omitted list stays unchanged; an empty one rejects all addresses of
/// its family.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NetworkRestrictionsRequest")]
struct NetworksRequest {
    #[serde(rename = "dbAllowedCidrs")]
    v4: Option<Vec<String>>,
    #[serde(rename = "dbAllowedCidrsV6")]
    v6: Option<Vec<String>>,
}

impl NetworksRequest {
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

/// Parses networks in the form `address/length`. Bits beyond the length are cleared.
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
    summary: "Set the networks that are permitted to connect to the database",
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

/// Restrictions before and after a change.
type Change = (NetworkRestrictions, NetworkRestrictions);

async fn apply_restrictions(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<NetworksRequest>,
) -> Result<Created<RestrictionsResponse<NetworksByFamily>>, Error> {
    let [v4, v6] = request.parse()?;
    let alter = |rules: &mut NetworkRestrictions| {
        let (old_v4, old_v6) = std::mem::take(&mut rules.allowed)
            .into_iter()
            .partition(|network| matches!(network, IpNet::V4(_)));
        rules.allowed = [v4.unwrap_or(old_v4), v6.unwrap_or(old_v6)].concat();
        Ok(())
    };
    let view = |(before, after): &Change| Created(RestrictionsResponse::new(Some(before), after));
    audit.answer_with(move |change| view(change).respond());
    let change = restrictions::change(&context, &project, 201, &audit, alter).await?;
    Ok(view(&change))
}

static PATCH_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-patch-network-restrictions",
    summary: "Add and remove networks that are permitted to connect to the database",
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
struct PatchRestrictionsRequest {
    #[serde(default)]
    add: NetworksRequest,
    #[serde(default)]
    remove: NetworksRequest,
}

async fn patch_restrictions(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<PatchRestrictionsRequest>,
) -> Result<Json<RestrictionsResponse<TypedNetworks>>, Error> {
    let flat = |lists: NetworksRequest| {
        lists
            .parse()
            .map(|lists| lists.into_iter().flatten().flatten().collect::<Vec<_>>())
    };
    let add = flat(request.add)?;
    let remove = flat(request.remove)?;
    let alter = |rules: &mut NetworkRestrictions| {
        rules.allowed.retain(|network| !remove.contains(network));
        rules.allowed.extend(add);
        Ok(())
    };
    let view = |(before, after): &Change| Json(RestrictionsResponse::new(Some(before), after));
    audit.answer_with(move |change| view(change).respond());
    let change = restrictions::change(&context, &project, 200, &audit, alter).await?;
    Ok(view(&change))
}

static REVIEW_RESTRICTIONS: Endpoint = Endpoint {
    id: "v1-review-network-restrictions",
    summary: "Review requested network restrictions. They are in force without a review",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/network-restrictions/review",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkRestrictionsWrite]], S::ProjectsWrite),
    limit: &STANDARD,
    handler: || {
        mount(review_restrictions)
            .read_only()
            .sample(r#"{"action": "apply", "requested_at": "2026-01-01T00:00:00Z"}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NetworkRestrictionsReviewRequest")]
struct ReviewRequest {
    action: ReviewAction,
    #[expect(dead_code, reason = "no request waits for a review")]
    requested_at: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "lowercase")]
enum ReviewAction {
    Apply,
    Reject,
}

/// Returns the restrictions in force, which an approval leaves as they are. A rejection fails.
async fn review_restrictions(
    project: Project,
    context: ApiContext,
    Json(request): Json<ReviewRequest>,
) -> Result<Created<RestrictionsResponse<NetworksByFamily>>, Error> {
    let current = restrictions::get(&context, &project).await?;
    match request.action {
        ReviewAction::Apply => Ok(Created(RestrictionsResponse::new(None, &current))),
        ReviewAction::Reject => Err(Error::Rejected(
            "No network restrictions wait for a review, because they apply at once; set the \
             former ones with POST /v1/projects/{ref}/network-restrictions/apply"
                .into(),
        )),
    }
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

/// Banned addresses of both families, despite the field's name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NetworkBan{T}Response")]
struct BansResponse<T> {
    banned_ipv4_addresses: Vec<T>,
}

async fn list_bans(
    project: Project,
    context: ApiContext,
) -> Result<Created<BansResponse<String>>, Error> {
    Ok(Created(BansResponse {
        banned_ipv4_addresses: bans::list(&context, &project).await?,
    }))
}

static LIST_BANS_ENRICHED: Endpoint = Endpoint {
    id: "v1-list-all-network-bans-enriched",
    summary: "List the addresses that are banned from the database, with details",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/network-bans/retrieve/enriched",
    aliases: &[],
    access: needs(&[&[P::DatabaseNetworkBansRead]], S::ProjectsRead),
    limit: &STANDARD,
    handler: || mount(list_bans_enriched),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, rename = "Ban")]
struct BannedAddress {
    #[serde(rename = "banned_address")]
    address: String,
    /// Project ref of the database.
    identifier: String,
    #[serde(rename = "type")]
    kind: &'static str,
}

async fn list_bans_enriched(
    project: Project,
    context: ApiContext,
) -> Result<Created<BansResponse<BannedAddress>>, Error> {
    let ban = |address| BannedAddress {
        address,
        identifier: project.reference.to_string(),
        kind: "postgres",
    };
    Ok(Created(BansResponse {
        banned_ipv4_addresses: bans::list(&context, &project)
            .await?
            .into_iter()
            .map(ban)
            .collect(),
    }))
}

static DELETE_BANS: Endpoint = Endpoint {
    id: "v1-delete-network-bans",
    summary: "Lift bans of addresses from the database",
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
    /// Whether the address of the caller is included.
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
            .or_else(|| text.parse().ok().map(address_block))
    };
    let networks = request
        .ipv4_addresses
        .iter()
        .map(|text| network(text).ok_or_else(|| Error::invalid(FIELD, "expected addresses")));
    let mut networks = networks.collect::<Result<Vec<IpNet>, _>>()?;
    networks.extend(request.requester_ip.then(|| address_block(peer.address)));
    bans::lift(&context, &project, &networks, &audit)
        .await
        .map(|()| OkEmpty)
}
