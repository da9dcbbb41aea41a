//! Hostnames that the operator blocks, regardless of ownership.

use gantry_base::clock::Clock;
use serde_json::json;

use super::host::ascii;
use crate::platform::{
    audit::Recorder,
    db::Db,
    error::{Context, Error},
};

/// Blocks or unblocks a name and all names below it. Returns the normalized name and whether
/// anything changed. All nodes stop serving a blocked name shortly afterwards.
pub async fn set(
    db: &Db,
    name: &str,
    block: bool,
    clock: &Clock,
    audit: Recorder,
) -> Result<(String, bool), Error> {
    let doing = "blocking a hostname";
    let now = clock.now();
    let name = ascii(name)
        .ok_or_else(|| Error::invalid("name", "expected a name of DNS, such as customer.com"))?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let changed = if block {
        let sql = "insert into blocked_hostnames (name, created_at) values ($1, $2) on conflict do nothing";
        transaction.execute(sql, &[&name, &now]).await
    } else {
        transaction
            .execute("delete from blocked_hostnames where name = $1", &[&name])
            .await
    };
    let changed = changed.context(doing)? > 0;
    let told = |blocked: bool| Some(json!({"name": name, "blocked": blocked}));
    let change = (told(block != changed), told(block));
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok((name, changed))
}

/// Returns all blocked names.
pub async fn list(db: &Db) -> Result<Vec<String>, Error> {
    let rows = db
        .query("select name from blocked_hostnames order by name", &[])
        .await
        .context("listing blocked hostnames")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
