//! The operation that lists remaining quotas of rate limits. Specific to Gantry. Not counted by
//! rate limits itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::{context::ApiContext, endpoints},
    platform::{
        access::{Access, Subject, User},
        error::Error,
        http::{Endpoint, Json, Query, Tag, Verb, mount, path_template::placeholders},
        rate_limits::{CounterKey, CounterScope, LimitKey, Policy, PolicyContext, UNCOUNTED},
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST];

static LIST: Endpoint = Endpoint {
    id: "gantry-rate-limits",
    summary: "List remaining quotas of all rate limits",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/rate-limits",
    aliases: &[],
    access: Access::Caller,
    limit: &UNCOUNTED,
    handler: || mount(list),
};

/// The scope of the counters. By default that of operations that name neither a project nor an
/// organization.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScopeQuery {
    /// Counters of this project.
    #[serde(rename = "ref")]
    reference: Option<String>,
    /// Counters of this organization.
    slug: Option<String>,
}

/// Remaining quota of the caller for one operation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RateLimitStanding")]
struct OperationQuota {
    operation: &'static str,
    method: &'static str,
    path: &'static str,
    /// Limit of the window with the lowest remaining quota, as in `X-RateLimit-Limit`.
    limit: u32,
    /// Remaining requests of that window, as in `X-RateLimit-Remaining`.
    remaining: u32,
    /// Seconds until that window ends, as in `X-RateLimit-Reset`. A window starts with its first
    /// request; before, this is its length.
    reset: u32,
    /// All windows of the limit, the longest first.
    windows: Vec<WindowQuota>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RateLimitWindow")]
struct WindowQuota {
    requests: u32,
    seconds: u32,
    remaining: u32,
    reset: u32,
}

async fn list(
    user: User,
    subject: Subject,
    context: ApiContext,
    Query(query): Query<ScopeQuery>,
) -> Result<Json<Vec<OperationQuota>>, Error> {
    if query.reference.is_some() && query.slug.is_some() {
        return Err(Error::invalid("slug", "cannot be given together with ref"));
    }
    let (scope, organization) = match &subject {
        Subject::Account => (CounterScope::User, None),
        Subject::Organization(organization) => (
            CounterScope::Organization(organization.id),
            Some(organization.id),
        ),
        Subject::Project(project) => (
            CounterScope::Project(project.id),
            Some(project.organization),
        ),
    };
    let application = user.approval.as_ref().map(|approval| approval.client_id);
    let policy_context = PolicyContext {
        organization,
        application,
    };
    let found: Vec<(&Endpoint, CounterKey, Policy)> = (0..)
        .zip(endpoints::all())
        .filter(|(_, endpoint)| can_count(endpoint, scope))
        .map(|(operation, endpoint)| {
            let key = CounterKey {
                identifier: user.identifier(),
                scope,
                operation,
            };
            (
                *endpoint,
                key,
                context.limits.policy(operation, policy_context),
            )
        })
        .collect();
    let keys: Vec<_> = found
        .iter()
        .map(|(_, key, policy)| (*key, policy.windows()))
        .collect();
    let quotas = context.limits.peek(&keys, context.clock.ticks()).await;
    let quotas_by_operation = found
        .iter()
        .zip(quotas)
        .map(|((endpoint, _, policy), quotas)| {
            let binding = quotas.binding();
            let windows = policy
                .windows()
                .iter()
                .zip(quotas.as_slice())
                .map(|(window, quota)| WindowQuota {
                    requests: window.requests,
                    seconds: window.secs,
                    remaining: quota.remaining,
                    reset: quota.reset_secs,
                });
            OperationQuota {
                operation: endpoint.id,
                method: endpoint.method.name(),
                path: endpoint.path,
                limit: binding.limit,
                remaining: binding.remaining,
                reset: binding.reset_secs,
                windows: windows.collect(),
            }
        });
    Ok(Json(quotas_by_operation.collect()))
}

/// Returns whether requests of this operation are counted in the scope.
fn can_count(endpoint: &Endpoint, scope: CounterScope) -> bool {
    let names = |name| placeholders(endpoint.path).any(|placeholder| placeholder == name);
    let project = names("ref");
    let organization = names("slug") && !project;
    match (endpoint.limit.key, scope) {
        (LimitKey::Uncounted, _) | (_, CounterScope::Unresolved | CounterScope::LookUps) => false,
        // If the body names no organization, the request is counted for the user.
        (LimitKey::OrganizationInBody { .. }, scope) => !matches!(scope, CounterScope::Project(_)),
        (LimitKey::Caller, scope) => scope == CounterScope::User,
        (LimitKey::Path, CounterScope::Project(_)) => project,
        (LimitKey::Path, CounterScope::Organization(_)) => organization,
        (LimitKey::Path, CounterScope::User) => !project && !organization,
    }
}
