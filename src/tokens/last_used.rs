//! Writes when tokens were last used, a batch at a time, off the request path.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::mpsc;

use crate::{clock::Clock, db::Db, error::Context, ids::TokenId};

/// Uses waiting to be written; more are dropped, and written with the next use a minute later.
pub const QUEUE_MAX: usize = 10_000;
/// How long uses are gathered.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs until the sending half is dropped.
pub async fn run(db: Db, clock: Clock, mut uses: mpsc::Receiver<TokenId>) {
    let mut batch = Vec::new();
    while uses.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let ids: Vec<i64> = batch.drain(..).map(|id| id.0).collect::<BTreeSet<_>>().into_iter().collect();
        let written = db.query("update tokens set last_used_at = $2 where id = any($1)", &[&ids, &clock.now()]).await;
        if let Err(error) = written.context("writing when tokens were last used") {
            tracing::warn!(%error, "the last use of some tokens was not written");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
