//! Reports what tokens were used for, and the minimal permissions that would be sufficient.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use gantry_base::ids::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::endpoints,
    platform::{
        access::{Access, AnyOf, Permission, Permissions},
        db::Db,
        error::{Context, Error},
        http::Endpoint,
    },
};

/// Retention in days.
pub const DAYS_MAX: u32 = 90;
/// The usage of a token and its minimal permissions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AccessTokenUsage")]
pub struct TokenUsage {
    /// Number of days, including today.
    days: u32,
    /// Operations that it was permitted to call.
    operations: Vec<UsedOperation>,
    /// The fewest permissions that permit all these operations.
    permissions: Vec<&'static str>,
    /// Permissions of a scoped token that were not needed.
    unused_permissions: Vec<&'static str>,
    /// Whether one of the operations requires access to the whole account.
    needs_account: bool,
}

/// An operation that a token called.
#[derive(Debug, Serialize, JsonSchema)]
struct UsedOperation {
    operation: String,
    /// The case of the operation, if it distinguishes any.
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'static str>,
    /// Number of days with calls.
    days: i64,
    /// Day of the last call.
    last_used_on: NaiveDate,
    /// Groups of permissions; one group is sufficient.
    accepted_permissions: Vec<Vec<&'static str>>,
}

/// Returns the usage of a token in the last `days`. `token_permissions` are those of a scoped
/// token.
pub async fn usage(
    db: &Db,
    token: TokenId,
    token_permissions: Option<Permissions>,
    days: u32,
    now: DateTime<Utc>,
) -> Result<TokenUsage, Error> {
    let since = now.date_naive() - TimeDelta::days(i64::from(days) - 1);
    let sql = "select operation, kind, count(*), max(day) from token_calls where token_id = $1 and day >= $2 \
               group by operation, kind order by operation, kind";
    let rows = db
        .query(sql, &[&token.0, &since])
        .await
        .context("reading the usage of a token")?;
    let by_id: BTreeMap<&str, &'static Endpoint> = endpoints::all()
        .iter()
        .map(|endpoint| (endpoint.id, *endpoint))
        .collect();
    let mut operations = Vec::new();
    let mut needs = Vec::new();
    let mut needs_account = false;
    for row in &rows {
        let operation: String = row.get(0);
        let kind: &str = row.get(1);
        // The operation was removed.
        let Some(endpoint) = by_id.get(&*operation) else {
            continue;
        };
        let case = endpoint
            .access
            .cases()
            .iter()
            .find(|case| case.when == kind);
        let needed = case.map_or(endpoint.access.permissions(), |case| case.permissions);
        needs_account |= matches!(endpoint.access, Access::User | Access::Unscoped);
        needs.push(needed);
        operations.push(UsedOperation {
            operation,
            case: case.map(|case| case.when),
            days: row.get(2),
            last_used_on: row.get(3),
            accepted_permissions: needed
                .0
                .iter()
                .map(|group| group.iter().map(|permission| permission.name()).collect())
                .collect(),
        });
    }
    let sufficient = minimal_permissions(&needs);
    needs_account |= sufficient
        .iter()
        .any(|permission| permission == Permission::OrganizationsCreate);
    let unused = token_permissions.map(|permissions| {
        permissions
            .iter()
            .filter(|permission| !sufficient.contains(*permission))
            .map(Permission::name)
            .collect()
    });
    Ok(TokenUsage {
        days,
        operations,
        permissions: sufficient.names(),
        unused_permissions: unused.unwrap_or_default(),
        needs_account,
    })
}

/// Maximum number of search steps. After that, the best set found so far is returned.
const STEPS_MAX: usize = 20_000;

/// Returns a smallest set of permissions that contains a whole group of each need.
pub fn minimal_permissions(needs: &[AnyOf]) -> Permissions {
    let mut required: Vec<Permission> = Vec::new();
    let mut open: Vec<AnyOf> = Vec::new();
    for need in needs {
        match need.0 {
            [] => {}
            [only] => required.extend(*only),
            _ if open.contains(need) => {}
            _ => open.push(*need),
        }
    }
    let mut search = PermissionSearch {
        open,
        best: None,
        steps: 0,
    };
    search.choose(0, required.into_iter().collect());
    search.best.unwrap_or_default()
}

/// A branch-and-bound search over the groups of each need.
struct PermissionSearch {
    open: Vec<AnyOf>,
    best: Option<Permissions>,
    steps: usize,
}

impl PermissionSearch {
    fn choose(&mut self, depth: usize, chosen: Permissions) {
        self.steps += 1;
        if self
            .best
            .is_some_and(|best| self.steps > STEPS_MAX || chosen.len() >= best.len())
        {
            return;
        }
        let Some(need) = self.open.get(depth).copied() else {
            self.best = Some(chosen);
            return;
        };
        if need.met(|permission| chosen.contains(permission)) {
            return self.choose(depth + 1, chosen);
        }
        for group in need.0 {
            self.choose(
                depth + 1,
                chosen.iter().chain(group.iter().copied()).collect(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates overlapping needs from a few permissions.
    fn needs() -> impl Strategy<Value = Vec<Vec<Vec<Permission>>>> {
        let permission = proptest::sample::select(&Permission::ALL[12..19]);
        let group = proptest::collection::vec(permission, 1..3);
        proptest::collection::vec(proptest::collection::vec(group, 0..4), 0..6)
    }

    proptest! {
        #[test]
        fn minimal_permissions_are_sufficient_and_smallest(needs in needs()) {
            let leaked: Vec<AnyOf> = needs.iter().map(|groups| {
                let groups: Vec<&'static [Permission]> = groups.iter().map(|group| &*group.clone().leak()).collect();
                AnyOf(groups.leak())
            }).collect();
            let sufficient = |set: Permissions| leaked.iter().all(|need| need.met(|permission| set.contains(permission)));
            let found = minimal_permissions(&leaked);
            prop_assert!(sufficient(found));
            let possible = &Permission::ALL[12..19];
            let smallest = (0..1_u32 << possible.len())
                .map(|bits| possible.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0).map(|(_, p)| *p).collect::<Permissions>())
                .filter(|set| sufficient(*set)).map(Permissions::len).min();
            prop_assert_eq!(Some(found.len()), smallest);
        }
    }
}
