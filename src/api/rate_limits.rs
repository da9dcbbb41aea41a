//! What is left of every limit: Gantry's own, and not counted, so that asking costs nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::{context::ApiContext, endpoints},
    base::error::Error,
    platform::{
        access::{Access, Subject, User},
        http::{Endpoint, Json, Query, Tag, Verb, mount, router::placeholders},
        rate_limits::{Key, LimitKey, Place, Policy, Scope, UNCOUNTED},
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&STANDING];

static STANDING: Endpoint = Endpoint {
    id: "gantry-rate-limits",
    summary: "List what is left of every limit",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/rate-limits",
    aliases: &[],
    access: Access::Caller,
    limit: &UNCOUNTED,
    handler: || mount(standing),
};

/// Whose counters. Without either: those of operations that name no project and no organization.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Of {
    /// A project's.
    #[serde(rename = "ref")]
    reference: Option<String>,
    /// An organization's.
    slug: Option<String>,
}

/// Where the caller stands with one operation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RateLimitStanding")]
struct Standing {
    operation: &'static str,
    method: &'static str,
    path: &'static str,
    /// Of the window with the least left: what `X-RateLimit-Limit` says.
    limit: u32,
    /// What `X-RateLimit-Remaining` says.
    remaining: u32,
    /// What `X-RateLimit-Reset` says: whole seconds. A window starts with its first request; until then, its length.
    reset: u32,
    /// Every window of the limit, the longest first.
    windows: Vec<WindowStanding>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RateLimitWindow")]
struct WindowStanding {
    requests: u32,
    seconds: u32,
    remaining: u32,
    reset: u32,
}

async fn standing(
    user: User,
    subject: Subject,
    context: ApiContext,
    Query(of): Query<Of>,
) -> Result<Json<Vec<Standing>>, Error> {
    if of.reference.is_some() && of.slug.is_some() {
        return Err(Error::invalid("slug", "cannot be given together with ref"));
    }
    let (scope, organization) = match &subject {
        Subject::Account => (Scope::User, None),
        Subject::Organization(organization) => {
            (Scope::Organization(organization.id), Some(organization.id))
        }
        Subject::Project(project) => (Scope::Project(project.id), Some(project.organization)),
    };
    let application = user.approval.as_ref().map(|approval| approval.client_id);
    let place = Place {
        organization,
        application,
    };
    let found: Vec<(&Endpoint, Key, Policy)> = (0..)
        .zip(endpoints::all())
        .filter(|(_, endpoint)| can_count(endpoint, scope))
        .map(|(operation, endpoint)| {
            let key = Key {
                identifier: user.identifier(),
                scope,
                operation,
            };
            (*endpoint, key, context.limits.policy(operation, place))
        })
        .collect();
    let keys: Vec<_> = found
        .iter()
        .map(|(_, key, policy)| (*key, policy.windows()))
        .collect();
    let quotas = context.limits.peek(&keys, context.clock.ticks()).await;
    let standing = found
        .iter()
        .zip(quotas)
        .map(|((endpoint, _, policy), quotas)| {
            let binding = quotas.binding();
            let windows = policy
                .windows()
                .iter()
                .zip(quotas.as_slice())
                .map(|(window, quota)| WindowStanding {
                    requests: window.requests,
                    seconds: window.secs,
                    remaining: quota.remaining,
                    reset: quota.reset_secs,
                });
            Standing {
                operation: endpoint.id,
                method: endpoint.method.name(),
                path: endpoint.path,
                limit: binding.limit,
                remaining: binding.remaining,
                reset: binding.reset_secs,
                windows: windows.collect(),
            }
        });
    Ok(Json(standing.collect()))
}

/// Whether requests of this operation are counted in such a scope.
fn can_count(endpoint: &Endpoint, scope: Scope) -> bool {
    let names = |name| placeholders(endpoint.path).any(|placeholder| placeholder == name);
    let (project, organization) = (names("ref"), names("slug") && !names("ref"));
    match (endpoint.limit.key, scope) {
        (LimitKey::Uncounted, _) | (_, Scope::Unresolved | Scope::LookUps) => false,
        // If the body names none, the user pays.
        (LimitKey::OrganizationInBody { .. }, scope) => !matches!(scope, Scope::Project(_)),
        (LimitKey::Caller, scope) => scope == Scope::User,
        (LimitKey::Path, Scope::Project(_)) => project,
        (LimitKey::Path, Scope::Organization(_)) => organization,
        (LimitKey::Path, Scope::User) => !project && !organization,
    }
}
