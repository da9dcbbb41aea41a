//! Notices about the coming end of branches, in the log and to `notify_url`: a day and an hour
//! ahead, once for each end.
//!
//! The notice is recorded with the branch before it is sent, so a crash repeats the delivery, not
//! the notice.

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::ProjectId;
use serde_json::{Value, json};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{branch_row::read_in, notify};
use crate::{
    api::{context::ApiContext, projects::timestamp},
    control::projects::status_events,
    platform::{
        db::Param,
        error::{Context, Error},
        events::payloads::BranchEndReason,
        outbound::UrlOwner,
    },
};

/// Notices of one pass.
const BATCH: i64 = 20;
/// Times before the end, in seconds.
const LEAD_SECS: i32 = 86_400;
const LAST_LEAD_SECS: i32 = 3600;

/// Ends in the next day that have not been announced. A branch that was created or used less than
/// the lead time before its end gets no notice.
const DUE: &str = "
    select b.id, c.ref, e.at, e.lead_secs, b.notify_url is not null, e.at = b.expires_at
    from branches b join projects c on c.id = b.project_id
    cross join lateral (select greatest(c.used_at, c.settled_at, c.created_at) as used_at) u
    cross join lateral (select least(b.expires_at, u.used_at + make_interval(secs => $3)) as at) l
    cross join lateral (
        select l.at,
        case when l.at <= $2::timestamptz + make_interval(secs => $5) then $5 else $4 end
            as lead_secs
    ) e
    where c.node = $1 and not b.is_default and not b.persistent and c.desired <> 'removed'
    and b.deletion_scheduled_at is null
    and e.at > $2 and e.at <= $2::timestamptz + make_interval(secs => $4)
    and e.at - make_interval(secs => e.lead_secs)
        > case when e.at = b.expires_at then b.created_at else u.used_at end
    and (b.announced_end is distinct from e.at
         or b.announced_lead_secs::double precision is distinct from e.lead_secs)
    order by e.at limit $6";

/// Records the notices that are due, and sends them.
pub(super) async fn deliver_due(context: &ApiContext) -> Result<(), Error> {
    record(context).await?;
    send(context).await
}

async fn record(context: &ApiContext) -> Result<(), Error> {
    let now = context.clock.now();
    let unused = context.api_settings.branches.unused_life;
    let unused = unused.map(TimeDelta::as_seconds_f64);
    let leads = [LEAD_SECS, LAST_LEAD_SECS].map(f64::from);
    let rows = context
        .db
        .query(
            DUE,
            &[
                &context.settings.node,
                &now,
                &unused,
                &leads[0],
                &leads[1],
                &BATCH,
            ],
        )
        .await
        .context("reading ends of branches")?;
    for row in &rows {
        let (id, reference): (Uuid, &str) = (row.get(0), row.get(1));
        let (end, lead_secs): (DateTime<Utc>, f64) = (row.get(2), row.get(3));
        let has_url: bool = row.get(4);
        let sql = "update branches set announced_end = $2, announced_lead_secs = $3::double precision, \
                   announce_at = $4, announce_attempts = 0 where id = $1";
        let at = has_url.then_some(now);
        let doing = "recording the notice of a branch's end";
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context(doing)?;
        let params: [Param<'_>; 4] = [&id, &end, &lead_secs, &at];
        let recorded = transaction.execute(sql, &params).await;
        if recorded.context(doing)? > 0 {
            let reason = if row.get::<_, Option<bool>>(5) == Some(true) {
                BranchEndReason::ExpiresAt
            } else {
                BranchEndReason::Unused
            };
            let event = read_in(&transaction, id).await?.expiring(end, reason);
            status_events::append(context, &transaction, &[event]).await?;
        }
        transaction.commit().await.context(doing)?;
        tracing::info!(branch = reference, expires_at = %end, "branch ends soon");
    }
    Ok(())
}

async fn send(context: &ApiContext) -> Result<(), Error> {
    let now = context.clock.now();
    let sql = "select b.id, b.notify_url, b.announce_attempts, b.announced_end, b.announced_lead_secs, b.expires_at, \
               c.ref, p.ref, b.name, b.status, p.id \
               from branches b join projects c on c.id = b.project_id \
               join projects p on p.id = b.parent_id \
               where b.announce_at <= $1 and c.node = $2 order by b.announce_at limit $3";
    let rows = context
        .db
        .query(sql, &[&now, &context.settings.node, &BATCH])
        .await
        .context("reading notices of ends of branches")?;
    for row in &rows {
        let (branch, attempts): (Uuid, i32) = (row.get(0), row.get(2));
        let outcome = match row.get::<_, Option<&str>>(1) {
            Some(url) => {
                let (id, body) = message(row);
                let owner = UrlOwner::Project(ProjectId(row.get(10)));
                notify::send(context, owner, url, (&id, &body)).await
            }
            // Removed meanwhile.
            None => Ok(()),
        };
        let attempts = attempts.saturating_add(1);
        let next = match outcome {
            Ok(()) => None,
            Err(problem) if attempts >= notify::ATTEMPTS_MAX => {
                tracing::warn!(
                    branch = row.get::<_, &str>(6),
                    problem,
                    "notify_url got no notice"
                );
                None
            }
            Err(_) => Some(notify::next_attempt(context, attempts)),
        };
        let sql = "update branches set announce_at = $2, announce_attempts = $3 where id = $1";
        context
            .db
            .query(sql, &[&branch, &next, &attempts])
            .await
            .context("recording a notice")?;
    }
    Ok(())
}

/// Returns the identifier and the body of a notice, which repeated attempts have in common.
fn message(row: &Row) -> (String, Value) {
    let id: Uuid = row.get(0);
    let (end, lead_secs): (DateTime<Utc>, i32) = (row.get(3), row.get(4));
    let is_fixed = row.get::<_, Option<DateTime<Utc>>>(5) == Some(end);
    let (reference, parent): (&str, &str) = (row.get(6), row.get(7));
    let body = json!({
        "type": "branch.expiring",
        "timestamp": timestamp(end - TimeDelta::seconds(lead_secs.into())),
        "data": {
            "project_ref": reference,
            "parent_project_ref": parent,
            "details_url": format!("/v1/branches/{reference}"),
            "branch": {
                "id": id,
                "name": row.get::<_, &str>(8),
                "status": row.get::<_, &str>(9),
            },
            "expires_at": timestamp(end),
            "reason": if is_fixed { "expires_at" } else { "unused" },
        },
    });
    (format!("{id}-{}-{lead_secs}", end.timestamp()), body)
}
