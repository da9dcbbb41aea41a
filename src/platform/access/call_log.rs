//! The log of operations that tokens were used for: collected in memory, written in batches.

use std::{collections::BTreeSet, time::Duration};

use chrono::{NaiveDate, TimeDelta};
use gantry_base::{clock::Clock, ids::TokenId};
use tokio::sync::mpsc;

use super::requirement::Access;
use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Bound of the queue. A call that finds it full is dropped.
pub const QUEUE_MAX: usize = 10_000;
/// Pause between two batches.
const PAUSE: Duration = Duration::from_secs(5);
/// Days after which calls are deleted.
pub const DAYS_MAX: u32 = 90;

/// A permitted call of a token. `operation` is an index in the list of endpoints, `case` one in the
/// cases of its [`Access`]; 0 where the operation has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenCall {
    token: TokenId,
    pub(super) operation: u16,
    pub(super) case: u8,
}

impl TokenCall {
    /// Returns a call of this operation and case.
    pub fn new(token: TokenId, operation: u16, case: Option<usize>) -> Self {
        Self {
            token,
            operation,
            case: u8::try_from(case.unwrap_or(0)).unwrap_or(u8::MAX),
        }
    }
}

/// Writes queued calls until the sender is dropped.
///
/// `operations` are the ids and requirements of all operations, in the order of the list of
/// endpoints.
pub async fn run(
    db: Db,
    clock: Clock,
    operations: Vec<(&'static str, Access)>,
    mut queue: mpsc::Receiver<TokenCall>,
) {
    let mut batch = Vec::new();
    let mut swept = None;
    while queue.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let today = clock.now().date_naive();
        let calls: BTreeSet<TokenCall> = batch.drain(..).collect();
        if let Err(error) = write(&db, &operations, &calls, today).await {
            tracing::warn!(%error, "cannot write calls of tokens");
        }
        if swept != Some(today) {
            match sweep(&db, today).await {
                Ok(()) => swept = Some(today),
                Err(error) => tracing::warn!(%error, "cannot delete old calls of tokens"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn write(
    db: &Db,
    operations: &[(&'static str, Access)],
    calls: &BTreeSet<TokenCall>,
    today: NaiveDate,
) -> Result<(), Error> {
    let mut tokens = Vec::new();
    let mut ids = Vec::new();
    let mut kinds = Vec::new();
    for call in calls {
        let Some((id, access)) = operations.get(usize::from(call.operation)) else {
            continue;
        };
        let case = access.cases().get(usize::from(call.case));
        tokens.push(call.token.0);
        ids.push(*id);
        kinds.push(case.map_or("", |case| case.when));
    }
    // The join leaves out tokens that were deleted meanwhile.
    let sql = "insert into token_calls (token_id, day, operation, kind) \
               select n.token, $1, n.operation, n.kind from unnest($2::bigint[], $3::text[], $4::text[]) as n (token, operation, kind) \
               join tokens t on t.id = n.token on conflict do nothing";
    db.query(sql, &[&today, &tokens, &ids, &kinds])
        .await
        .context("writing calls of tokens")?;
    Ok(())
}

async fn sweep(db: &Db, today: NaiveDate) -> Result<(), Error> {
    let oldest = today - TimeDelta::days(DAYS_MAX.into());
    db.query("delete from token_calls where day < $1", &[&oldest])
        .await
        .context("deleting old calls of tokens")?;
    Ok(())
}
