//! Whether a token could make a request, decided by the code that decides on real ones, and explained.

use std::{net::IpAddr, sync::Arc};

use schemars::JsonSchema;
use serde::Serialize;

use super::scoped::Draft;
use crate::{
    api::{context::ApiContext, endpoints},
    base::{
        error::{Credential, Denial, Error},
        ids::TokenId,
    },
    platform::{
        access::{Access, AnyOf, Standing, User},
        http::simulate::{self, SimulatedOutcome, SimulatedRequest},
    },
};

/// Which token to imagine.
#[derive(Debug)]
pub enum Token {
    /// One that was made.
    Made(TokenId),
    /// One that could be made.
    Draft(Draft),
}

/// The rule that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Let in: the operation is public.
    Public,
    /// Let in: any live token will do.
    AnyToken,
    /// Let in: role and token hold one of the groups of permissions.
    Permissions,
    /// Refused: no operation has this method and path.
    UnknownRoute,
    /// Refused: the token has expired, has not begun, or may not be sent from there.
    Credential,
    /// Refused: the token's owner, or the token, does not see what the request names.
    NotVisible,
    /// Refused: the owner's role does not hold what is needed. No token would do.
    Role,
    /// Refused: the token lacks permissions, or they do not count where it reaches.
    MissingPermissions,
    /// Refused: the operation is about the account, which the token does not reach.
    AccountOnly,
    /// Refused: the operation accepts no scoped token.
    UnscopedOnly,
}

/// What a request would get.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Simulation {
    /// Whether it would be let in. What comes of it then is the operation's affair.
    allowed: bool,
    /// Status of the refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// What decides.
    rule: Rule,
    /// What the caller would be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The operation it reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'static str>,
    /// Which of the operation's cases it is in, if it tells any apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'static str>,
    /// Groups of permissions, one of which would do.
    accepted_permissions: Vec<Vec<&'static str>>,
    /// What the token lacks.
    missing_permissions: Vec<&'static str>,
    /// The owner's role on what the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
}

/// What `request` would get with `token`, a token of `owner`.
pub async fn simulate(
    context: &ApiContext,
    owner: &User,
    token: Token,
    request: SimulatedRequest<'_>,
    address: Option<IpAddr>,
) -> Result<Simulation, Error> {
    let holder = match token {
        Token::Made(id) => context
            .directory
            .holder(owner.id, id, address)
            .await?
            .ok_or(Error::NotFound)?,
        Token::Draft(draft) => {
            let grant = draft.resolve(&context.db, owner.id).await?;
            let holds = grant.has_begun(context.clock.now())
                && address.is_none_or(|address| grant.admits(address));
            holds.then(|| {
                Arc::new(User {
                    grant: Some(Arc::new(grant)),
                    lately: None,
                    ..owner.clone()
                })
            })
        }
    };
    let Some(holder) = holder else {
        return Ok(Simulation::refused(
            Rule::Credential,
            &Error::Unauthenticated(Credential::Unknown),
        ));
    };
    let (method, path) = (request.method.to_owned(), request.path.to_owned());
    Ok(
        match simulate::simulate(context, endpoints::all(), holder, request).await? {
            Some(rehearsal) => Simulation::of(&rehearsal),
            None => Simulation::refused(Rule::UnknownRoute, &Error::UnknownRoute { method, path }),
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
            Standing::Member(held) => Some(held.subject.name()),
            Standing::Account | Standing::Stranger => None,
        };
        simulation
    }

    fn allowed(rule: Rule) -> Self {
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

    fn refused(rule: Rule, error: &Error) -> Self {
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

fn rule_of(access: &Access, required: AnyOf) -> Rule {
    match access {
        Access::Public => Rule::Public,
        Access::Needs { .. } if !required.0.is_empty() => Rule::Permissions,
        _ => Rule::AnyToken,
    }
}

fn rule_against(error: &Error) -> Rule {
    match error {
        Error::Forbidden(Denial::Permissions(_)) => Rule::MissingPermissions,
        Error::Forbidden(Denial::UserScopeOnly) => Rule::AccountOnly,
        Error::Forbidden(Denial::UnscopedOnly) => Rule::UnscopedOnly,
        Error::Forbidden(_) => Rule::Role,
        Error::Unauthenticated(_) => Rule::Credential,
        _ => Rule::NotVisible,
    }
}
