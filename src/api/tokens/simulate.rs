//! Simulation of requests: explains whether a token would be permitted, using the authorization
//! code of real requests.

use std::{net::IpAddr, sync::Arc};

use gantry_base::ids::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use super::scoped::TokenDraft;
use crate::{
    api::{context::ApiContext, endpoints},
    platform::{
        access::{Access, AnyOf, CallerRelation, User},
        error::{CredentialProblem, Denial, Error},
        http::{
            self,
            simulate::{SimulatedOutcome, SimulatedRequest},
        },
    },
};

/// The token to simulate.
#[derive(Debug)]
pub enum SimulatedToken {
    /// An existing token.
    Existing(TokenId),
    /// A hypothetical token.
    Draft(TokenDraft),
}

/// The rule that decides a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Rule")]
pub enum DecisionRule {
    /// Permitted: the operation is public.
    Public,
    /// Permitted: any valid token is sufficient.
    AnyToken,
    /// Permitted: the role and the token have one of the accepted groups of permissions.
    Permissions,
    /// Rejected: no operation has this method and path.
    UnknownRoute,
    /// Rejected: the token is expired, not valid yet, or used from another network.
    Credential,
    /// Rejected: the owner or the token has no access to the resource.
    NotVisible,
    /// Rejected: the owner's role lacks the permission, so any token would be rejected.
    Role,
    /// Rejected: the token lacks permissions, or its permissions do not apply to the resource.
    MissingPermissions,
    /// Rejected: the operation concerns the account, which the token cannot access.
    AccountOnly,
    /// Rejected: the operation does not accept scoped tokens.
    UnscopedOnly,
}

/// The outcome of a simulated request.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Simulation {
    /// Whether authorization would succeed. The operation itself may still fail.
    allowed: bool,
    /// HTTP status of the rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The deciding rule.
    rule: DecisionRule,
    /// Error message of the rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Id of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'static str>,
    /// The case of the operation, if it distinguishes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'static str>,
    /// Groups of permissions; one group is sufficient.
    accepted_permissions: Vec<Vec<&'static str>>,
    /// Permissions that the token lacks.
    missing_permissions: Vec<&'static str>,
    /// The owner's role on the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

/// Returns the outcome of `request` with a token of `owner`.
pub async fn simulate(
    context: &ApiContext,
    owner: &User,
    token: SimulatedToken,
    request: SimulatedRequest<'_>,
    address: Option<IpAddr>,
) -> Result<Simulation, Error> {
    let holder = match token {
        SimulatedToken::Existing(id) => context
            .directory
            .simulated_user(owner.id, id, address)
            .await?
            .ok_or(Error::NotFound)?,
        SimulatedToken::Draft(draft) => {
            let grant = draft.resolve(&context.db, owner.id).await?;
            let holds = grant.has_begun(context.clock.now())
                && address.is_none_or(|address| grant.admits(address));
            holds.then(|| {
                Arc::new(User {
                    grant: Some(Arc::new(grant)),
                    activity: None,
                    signed_in_at: None,
                    ..owner.clone()
                })
            })
        }
    };
    let Some(holder) = holder else {
        return Ok(Simulation::refused(
            DecisionRule::Credential,
            &Error::Unauthenticated(CredentialProblem::Unknown),
        ));
    };
    let method = request.method.to_owned();
    let path = request.path.to_owned();
    Ok(
        match http::simulate::simulate(context, endpoints::all(), holder, request).await? {
            Some(rehearsal) => Simulation::of(&rehearsal),
            None => Simulation::refused(
                DecisionRule::UnknownRoute,
                &Error::UnknownRoute { method, path },
            ),
        },
    )
}

impl Simulation {
    fn of(rehearsal: &SimulatedOutcome) -> Self {
        let mut simulation = match &rehearsal.outcome {
            Ok(()) => Self::allowed(rule_of(&rehearsal.endpoint.access, rehearsal.required)),
            Err(error) => Self::refused(rule_against(error), error),
        };
        simulation.operation = Some(rehearsal.endpoint.id);
        simulation.case = rehearsal.case;
        let names = |group: &&[crate::platform::access::Permission]| {
            group.iter().map(|permission| permission.name()).collect()
        };
        simulation.accepted_permissions = rehearsal.required.0.iter().map(names).collect();
        simulation.role = match rehearsal.standing {
            CallerRelation::Member(roles) => Some(roles.subject.name()),
            CallerRelation::Account | CallerRelation::NotMember => None,
        };
        simulation
    }

    fn allowed(rule: DecisionRule) -> Self {
        Self {
            allowed: true,
            status: None,
            rule,
            message: None,
            operation: None,
            case: None,
            accepted_permissions: Vec::new(),
            missing_permissions: Vec::new(),
            role: None,
        }
    }

    fn refused(rule: DecisionRule, error: &Error) -> Self {
        let missing = match error {
            Error::Forbidden(Denial::Permissions(missing)) => missing.clone(),
            _ => Vec::new(),
        };
        Self {
            allowed: false,
            status: Some(error.code().status),
            message: Some(error.message().into_owned()),
            missing_permissions: missing,
            ..Self::allowed(rule)
        }
    }
}

fn rule_of(access: &Access, required: AnyOf) -> DecisionRule {
    match access {
        Access::Public => DecisionRule::Public,
        Access::Needs { .. } if !required.0.is_empty() => DecisionRule::Permissions,
        _ => DecisionRule::AnyToken,
    }
}

fn rule_against(error: &Error) -> DecisionRule {
    match error {
        Error::Forbidden(Denial::Permissions(_)) => DecisionRule::MissingPermissions,
        Error::Forbidden(Denial::UserScopeOnly) => DecisionRule::AccountOnly,
        Error::Forbidden(Denial::UnscopedOnly) => DecisionRule::UnscopedOnly,
        Error::Forbidden(_) => DecisionRule::Role,
        Error::Unauthenticated(_) => DecisionRule::Credential,
        _ => DecisionRule::NotVisible,
    }
}
