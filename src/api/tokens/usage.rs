//! What tokens are used for: noted beside requests, written in batches, and turned into the fewest permissions that would do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    api::endpoints,
    base::{
        clock::{Clock, Ticks},
        db::Db,
        error::{Context, Error},
        ids::TokenId,
    },
    platform::{
        access::{AnyOf, Permission, Permissions},
        http::{Access, Endpoint},
    },
};

/// Calls waiting to be written; more are dropped, and noted again within half a minute if they go on.
pub const QUEUE_MAX: usize = 10_000;
/// How long calls are gathered.
const PAUSE: Duration = Duration::from_secs(5);
/// How often, at most, the last use of a token is written, in milliseconds.
const LAST_USE_RESOLUTION: Ticks = 60_000;
/// Days that are kept.
pub const DAYS_MAX: u32 = 90;
/// Cases of one operation that are told apart.
const CASES_MAX: usize = 4;
/// Operations that are noted, a bit for each of their cases.
const OPERATIONS_MAX: usize = 512;

/// A call that was let in: whose token, which operation, which of its cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Noted {
    token: TokenId,
    operation: u16,
    case: u8,
}

/// What a cached token was used for since it was cached, which is half a minute at most: a bit each, so that of many calls
/// one is written.
#[repr(C)]
pub struct Calls {
    /// When its last use was last written.
    last: AtomicU64,
    /// The place of the one that was noted or found noted last, plus one: most tokens do the same again.
    latest: AtomicU64,
    noted: [AtomicU64; OPERATIONS_MAX * CASES_MAX / 64],
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Calls")
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            noted: [const { AtomicU64::new(0) }; OPERATIONS_MAX * CASES_MAX / 64],
        }
    }
}

impl Calls {
    /// The note to write, if there is none yet. Costs one load where there is.
    pub fn note(&self, token: TokenId, operation: u16, case: Option<usize>) -> Option<Noted> {
        let case = case.map_or(0, |case| case.min(CASES_MAX - 1));
        let place = usize::from(operation) * CASES_MAX + case;
        let latest = place as u64 + 1;
        if self.latest.load(Ordering::Relaxed) == latest {
            return None;
        }
        self.latest.store(latest, Ordering::Relaxed);
        let (word, bit) = (self.noted.get(place / 64)?, 1 << (place % 64));
        if word.load(Ordering::Relaxed) & bit != 0
            || word.fetch_or(bit, Ordering::Relaxed) & bit != 0
        {
            return None;
        }
        Some(Noted {
            token,
            operation,
            case: u8::try_from(case).unwrap_or_default(),
        })
    }

    /// Whether the last use is to be written, which it is from then on.
    pub fn due(&self, now: Ticks) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= LAST_USE_RESOLUTION;
        // Ticks start at zero; `max(1)` keeps "never" apart from "in the first millisecond".
        due && self
            .last
            .compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// Writes what was noted until the sending half is dropped.
pub async fn run(db: Db, clock: Clock, mut noted: mpsc::Receiver<Noted>) {
    let (mut batch, mut swept) = (Vec::new(), None);
    while noted.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let today = clock.now().date_naive();
        let calls: BTreeSet<Noted> = batch.drain(..).collect();
        if let Err(error) = write(&db, &calls, today).await {
            tracing::warn!(%error, "what some tokens were used for was not written");
        }
        if swept != Some(today)
            && sweep(&db, today)
                .await
                .inspect_err(|error| tracing::warn!(%error, "old calls were not removed"))
                .is_ok()
        {
            swept = Some(today);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn write(db: &Db, calls: &BTreeSet<Noted>, today: NaiveDate) -> Result<(), Error> {
    let named = calls.iter().filter_map(|call| {
        let endpoint = endpoints::all().get(usize::from(call.operation))?;
        Some((
            call.token.0,
            endpoint.id,
            endpoint
                .access
                .cases()
                .get(usize::from(call.case))
                .map_or("", |case| case.when),
        ))
    });
    let (tokens, rest): (Vec<i64>, Vec<_>) =
        named.map(|(token, id, case)| (token, (id, case))).unzip();
    let (operations, kinds): (Vec<&str>, Vec<&str>) = rest.into_iter().unzip();
    // A token may be gone by now.
    let sql = "insert into token_calls (token_id, day, operation, kind) \
               select n.token, $1, n.operation, n.kind from unnest($2::bigint[], $3::text[], $4::text[]) as n (token, operation, kind) \
               join tokens t on t.id = n.token on conflict do nothing";
    db.query(sql, &[&today, &tokens, &operations, &kinds])
        .await
        .context("writing what tokens were used for")?;
    Ok(())
}

async fn sweep(db: &Db, today: NaiveDate) -> Result<(), Error> {
    let oldest = today - TimeDelta::days(DAYS_MAX.into());
    db.query("delete from token_calls where day < $1", &[&oldest])
        .await
        .context("removing old calls")?;
    Ok(())
}

/// What a token was used for, and what would have been enough.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AccessTokenUsage")]
pub struct Usage {
    /// Days looked back, today included.
    days: u32,
    /// What it was let in to, by operation.
    operations: Vec<UsedOperation>,
    /// The fewest permissions that would have let in all of it.
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
) -> Result<Usage, Error> {
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
    let enough = fewest(&needs);
    needs_account |= enough
        .iter()
        .any(|permission| permission == Permission::OrganizationsCreate);
    let unused = held.map(|held| {
        held.iter()
            .filter(|permission| !enough.contains(*permission))
            .map(Permission::name)
            .collect()
    });
    Ok(Usage {
        days,
        operations,
        permissions: enough.names(),
        unused_permissions: unused.unwrap_or_default(),
        needs_account,
    })
}

/// Steps after which the search for fewer permissions ends, with the fewest found so far.
const STEPS_MAX: usize = 20_000;

/// The fewest permissions that contain a whole group of each need.
pub fn fewest(needs: &[AnyOf]) -> Permissions {
    let (mut forced, mut open): (Vec<Permission>, Vec<AnyOf>) = (Vec::new(), Vec::new());
    for need in needs {
        match need.0 {
            [] => {}
            [only] => forced.extend(*only),
            _ if open.contains(need) => {}
            _ => open.push(*need),
        }
    }
    let mut search = Search {
        open,
        best: None,
        steps: 0,
    };
    search.choose(0, forced.into_iter().collect());
    search.best.unwrap_or_default()
}

/// Tries each group of each need in turn, and gives up a branch that is no better than what was found.
struct Search {
    open: Vec<AnyOf>,
    best: Option<Permissions>,
    steps: usize,
}

impl Search {
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

    #[test]
    fn every_operation_and_case_has_a_bit() {
        assert!(endpoints::all().len() < OPERATIONS_MAX);
        assert!(
            endpoints::all()
                .iter()
                .all(|endpoint| endpoint.access.cases().len() <= CASES_MAX)
        );
        let calls = Calls::default();
        let mut seen = BTreeSet::new();
        for (operation, endpoint) in (0..).zip(endpoints::all()) {
            for case in 0..endpoint.access.cases().len().max(1) {
                assert!(
                    seen.insert(calls.note(TokenId(1), operation, Some(case)).unwrap()),
                    "{} {case}",
                    endpoint.id
                );
                assert_eq!(
                    calls.note(TokenId(1), operation, Some(case)),
                    None,
                    "noted once"
                );
            }
        }
    }

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
            let found = fewest(&leaked);
            prop_assert!(enough(found));
            let possible = &Permission::ALL[12..19];
            let smallest = (0..1_u32 << possible.len())
                .map(|bits| possible.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0).map(|(_, p)| *p).collect::<Permissions>())
                .filter(|set| enough(*set)).map(Permissions::len).min();
            prop_assert_eq!(Some(found.len()), smallest);
        }
    }
}
