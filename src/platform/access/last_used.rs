//! Writes when and from which address tokens were last used, in batches and off the request path.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use gantry_base::{clock::Clock, ids::TokenId};
use tokio::sync::mpsc;

use crate::platform::{db::Db, error::Context};

/// Bound of the queue. A use that finds it full is dropped; the next one comes a minute later.
pub const QUEUE_MAX: usize = 10_000;
/// Pause between two batches.
const PAUSE: Duration = Duration::from_secs(5);

/// A use of a token.
#[derive(Debug, Clone, Copy)]
pub struct TokenUse {
    /// The token.
    pub token: TokenId,
    /// Address of the client.
    pub address: IpAddr,
}

/// Writes queued uses until the sender is dropped.
pub async fn run(db: Db, clock: Clock, mut uses: mpsc::Receiver<TokenUse>) {
    let mut batch = Vec::new();
    while uses.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        // Of several uses of one token the last is kept.
        let last: BTreeMap<i64, String> = batch
            .drain(..)
            .map(|used| (used.token.0, used.address.to_canonical().to_string()))
            .collect();
        let (ids, addresses): (Vec<i64>, Vec<String>) = last.into_iter().unzip();
        let sql = "update tokens t set last_used_at = $3, last_used_from = u.address \
                   from unnest($1::bigint[], $2::text[]) u(id, address) where t.id = u.id";
        let written = db.query(sql, &[&ids, &addresses, &clock.now()]).await;
        if let Err(error) = written.context("writing the last use of tokens") {
            tracing::warn!(%error, "cannot write the last use of tokens");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
