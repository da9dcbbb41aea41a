//! What tokens are used for: noted beside requests, written in batches, and turned into the minimal_permissions permissions that would do.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::endpoints,
    base::{
        db::Db,
        error::{Context, Error},
        ids::TokenId,
    },
    platform::{
        access::{Access, AnyOf, Permission, Permissions},
        http::Endpoint,
    },
};

/// Days that are kept.
pub const DAYS_MAX: u32 = 90;
/// What a token was used for, and what would have been enough.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AccessTokenUsage")]
pub struct TokenUsage {
    /// Days looked back, today included.
    days: u32,
    /// What it was let in to, by operation.
    operations: Vec<UsedOperation>,
    /// The minimal_permissions permissions that would have let in all of it.
    permissions: Vec<&'static str>,
    /// What the token has beyond that; of a classic token, nothing is said.
    unused_permissions: Vec<&'static str>,
    /// Whether something of it needs a token that reaches the whole account.
    needs_account: bool,
}

/// An operation a token was let in to.
#[derive(Debug, Serialize, JsonSchema)]
struct UsedOperation {
    operation: String,
    /// Which of the operation's cases, if it tells any apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'static str>,
    /// Days on which it was called.
    days: i64,
    /// The last of them.
    last_used_on: NaiveDate,
    /// Groups of permissions, one of which is needed.
    accepted_permissions: Vec<Vec<&'static str>>,
}

/// What a token was used for in the last `days`. `held` is what it has, if it is scoped.
pub async fn usage(
    db: &Db,
    token: TokenId,
    held: Option<Permissions>,
    days: u32,
    now: DateTime<Utc>,
) -> Result<TokenUsage, Error> {
    let since = now.date_naive() - TimeDelta::days(i64::from(days) - 1);
    let sql = "select operation, kind, count(*), max(day) from token_calls where token_id = $1 and day >= $2 \
               group by operation, kind order by operation, kind";
    let rows = db
        .query(sql, &[&token.0, &since])
        .await
        .context("reading what a token was used for")?;
    let by_id: BTreeMap<&str, &'static Endpoint> = endpoints::all()
        .iter()
        .map(|endpoint| (endpoint.id, *endpoint))
        .collect();
    let (mut operations, mut needs, mut needs_account) = (Vec::new(), Vec::new(), false);
    for row in &rows {
        let (operation, kind): (String, &str) = (row.get(0), row.get(1));
        // An operation that is gone needs nothing any more.
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
    let enough = minimal_permissions(&needs);
    needs_account |= enough
        .iter()
        .any(|permission| permission == Permission::OrganizationsCreate);
    let unused = held.map(|held| {
        held.iter()
            .filter(|permission| !enough.contains(*permission))
            .map(Permission::name)
            .collect()
    });
    Ok(TokenUsage {
        days,
        operations,
        permissions: enough.names(),
        unused_permissions: unused.unwrap_or_default(),
        needs_account,
    })
}

/// Steps after which the search for fewer permissions ends, with the minimal_permissions found so far.
const STEPS_MAX: usize = 20_000;

/// The minimal_permissions permissions that contain a whole group of each need.
pub fn minimal_permissions(needs: &[AnyOf]) -> Permissions {
    let (mut forced, mut open): (Vec<Permission>, Vec<AnyOf>) = (Vec::new(), Vec::new());
    for need in needs {
        match need.0 {
            [] => {}
            [only] => forced.extend(*only),
            _ if open.contains(need) => {}
            _ => open.push(*need),
        }
    }
    let mut search = PermissionSearch {
        open,
        best: None,
        steps: 0,
    };
    search.choose(0, forced.into_iter().collect());
    search.best.unwrap_or_default()
}

/// Tries each group of each need in turn, and gives up a branch that is no better than what was found.
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

    /// Groups of a few permissions, so that needs overlap.
    fn needs() -> impl Strategy<Value = Vec<Vec<Vec<Permission>>>> {
        let permission = proptest::sample::select(&Permission::ALL[12..19]);
        let group = proptest::collection::vec(permission, 1..3);
        proptest::collection::vec(proptest::collection::vec(group, 0..4), 0..6)
    }

    proptest! {
        #[test]
        fn what_is_proposed_is_enough_and_nothing_smaller_is(needs in needs()) {
            let leaked: Vec<AnyOf> = needs.iter().map(|groups| {
                let groups: Vec<&'static [Permission]> = groups.iter().map(|group| &*group.clone().leak()).collect();
                AnyOf(groups.leak())
            }).collect();
            let enough = |set: Permissions| leaked.iter().all(|need| need.met(|permission| set.contains(permission)));
            let found = minimal_permissions(&leaked);
            prop_assert!(enough(found));
            let possible = &Permission::ALL[12..19];
            let smallest = (0..1_u32 << possible.len())
                .map(|bits| possible.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0).map(|(_, p)| *p).collect::<Permissions>())
                .filter(|set| enough(*set)).map(Permissions::len).min();
            prop_assert_eq!(Some(found.len()), smallest);
        }
    }
}
