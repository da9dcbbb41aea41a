//! Operations that tokens were used for: collected in memory, written in batches.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use chrono::{NaiveDate, TimeDelta};
use tokio::sync::mpsc;

use super::Access;
use crate::base::{
    clock::{Clock, Ticks},
    db::Db,
    error::{Context, Error},
    ids::TokenId,
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
pub const CASES_MAX: usize = 4;
/// Operations that are noted, a bit for each of their cases.
pub const OPERATIONS_MAX: usize = 512;

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
///
/// `operations` are ids and requirements of all operations, in the order of their numbers.
pub async fn run(
    db: Db,
    clock: Clock,
    operations: Vec<(&'static str, Access)>,
    mut noted: mpsc::Receiver<Noted>,
) {
    let (mut batch, mut swept) = (Vec::new(), None);
    while noted.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let today = clock.now().date_naive();
        let calls: BTreeSet<Noted> = batch.drain(..).collect();
        if let Err(error) = write(&db, &operations, &calls, today).await {
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

async fn write(
    db: &Db,
    operations: &[(&'static str, Access)],
    calls: &BTreeSet<Noted>,
    today: NaiveDate,
) -> Result<(), Error> {
    let named = calls.iter().filter_map(|call| {
        let (id, access) = operations.get(usize::from(call.operation))?;
        Some((
            call.token.0,
            id,
            access
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
