//! TXT records for DNS-01 challenges in the operator's zone. Each is persisted until it is removed
//! from the zone.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::{
    control::{
        context::ControlContext,
        domains::{
            hostnames::dns::Propagation,
            zone::{RecordChange, Zone},
        },
    },
    platform::error::{Context, Error},
};

/// Records removed per pass, pause between attempts, and age after which removal is given up.
const BATCH: i64 = 16;
const PAUSE: TimeDelta = TimeDelta::minutes(10);
const GIVE_UP_AFTER: TimeDelta = TimeDelta::days(14);
/// Time after which an unresponsive name server is ignored. Authorities use another one.
const SILENCE: TimeDelta = TimeDelta::minutes(5);

/// Publication status of a record.
pub(crate) enum ChallengeRecordStatus {
    /// All responsive name servers return the record.
    Propagated,
    /// Some name servers do not return the record yet.
    Propagating,
    /// The record could not be written.
    NotWritten,
}

fn stamp(context: &ControlContext) -> (DateTime<Utc>, u16) {
    (
        context.clock.now(),
        u16::from_le_bytes(context.entropy.bytes()),
    )
}

/// Publishes a record for the order of a hostname.
pub(crate) async fn publish(
    context: &ControlContext,
    zone: &Zone,
    id: Uuid,
    name: &str,
    value: &str,
) -> Result<ChallengeRecordStatus, Error> {
    let doing = "writing an answer into DNS";
    let now = context.clock.now();
    let sql = "insert into acme_answers (name, value, hostname_id, not_before, created_at) values ($1, $2, $3, $4, $4) \
               on conflict (name, value) do update set hostname_id = excluded.hostname_id returning written, created_at";
    let rows = context
        .db
        .query(sql, &[&name, &value, &id, &now])
        .await
        .context(doing)?;
    let (written, since) = rows
        .first()
        .map_or((false, now), |row| (row.get(0), row.get(1)));
    if !written {
        if let Err(why) = zone
            .write(RecordChange::Present, name, value, stamp(context))
            .await
        {
            tracing::warn!(name, why, "failed to write a challenge record");
            return Ok(ChallengeRecordStatus::NotWritten);
        }
        context
            .db
            .query(
                "update acme_answers set written = true where name = $1 and value = $2",
                &[&name, &value],
            )
            .await
            .context(doing)?;
    }
    match context.control_settings.dns.told(name, value).await {
        Ok(Propagation::ByAll) => Ok(ChallengeRecordStatus::Propagated),
        Ok(Propagation::ButBySilent(servers)) if now - since >= SILENCE => {
            tracing::warn!(
                name,
                ?servers,
                "name servers unresponsive; continuing without them"
            );
            Ok(ChallengeRecordStatus::Propagated)
        }
        Ok(Propagation::ButBySilent(_) | Propagation::NotYet) => {
            Ok(ChallengeRecordStatus::Propagating)
        }
        Err(why) => {
            tracing::info!(name, why, "failed to query a challenge record");
            Ok(ChallengeRecordStatus::Propagating)
        }
    }
}

/// Removes the records of finished orders from the zone.
pub(crate) async fn remove_finished(context: &ControlContext) -> Result<(), Error> {
    let Some(zone) = context
        .control_settings
        .authority
        .as_ref()
        .and_then(|authority| authority.zone.as_ref())
    else {
        return Ok(());
    };
    let doing = "taking answers out of DNS";
    let now = context.clock.now();
    // Claimed by setting the time of the next attempt.
    let sql = "update acme_answers set not_before = $2 where (name, value) in (select name, value from acme_answers a where not_before <= $1 \
               and not exists (select from acme_orders o where o.hostname_id = a.hostname_id) limit $3 for update skip locked) \
               returning name, value, created_at";
    for row in context
        .db
        .query(sql, &[&now, &(now + PAUSE), &BATCH])
        .await
        .context(doing)?
    {
        let name: &str = row.get(0);
        let value: &str = row.get(1);
        let created_at: DateTime<Utc> = row.get(2);
        if let Err(why) = zone
            .write(RecordChange::Cleanup, name, value, stamp(context))
            .await
        {
            tracing::warn!(name, why, "failed to remove a challenge record");
            if now - created_at < GIVE_UP_AFTER {
                continue;
            }
        }
        context
            .db
            .query(
                "delete from acme_answers where name = $1 and value = $2",
                &[&name, &value],
            )
            .await
            .context(doing)?;
    }
    Ok(())
}
