//! Servers that exited unexpectedly.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use tokio_postgres::Row;

use super::plan::BACKOFF;
use crate::{
    control::{
        context::ControlContext,
        projects::{status_events::StatusUpdate, watch},
    },
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// A server that crashes sooner than this after its start counts as crashing repeatedly.
const STEADY: TimeDelta = TimeDelta::seconds(60);

/// Marks healthy projects, all or those in `of`, without a running server. Watches the processes
/// of the others.
pub(super) async fn mark_all_crashed(
    context: &ControlContext,
    of: Option<&HashSet<ProjectId>>,
) -> Result<(), Error> {
    let of: Option<Vec<i64>> = of.map(|ids| ids.iter().map(|id| id.0).collect());
    let sql = "select id, ref, generation, falls, settled_at from projects \
               where node = $1 and status = 'ACTIVE_HEALTHY' and not asleep and ($2::bigint[] is null or id = any($2)) order by id";
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &of])
        .await
        .context("reading healthy projects")?;
    for row in &rows {
        let project: ProjectRef = row
            .get::<_, &str>(1)
            .parse()
            .context("reading a project's ref")?;
        match context.driver.running(&project).await {
            Ok(Some(server)) => watch::begin(context, ProjectId(row.get(0)), server),
            Ok(None) => mark_crashed(context, row, &project).await?,
            // A failed check of one project must not delay the others.
            Err(error) => {
                tracing::warn!(%project, %error, "cannot check the project's server");
            }
        }
    }
    Ok(())
}

/// Records that a server exited unexpectedly. It is restarted at once, or with increasing pauses if
/// it crashes repeatedly.
async fn mark_crashed(
    context: &ControlContext,
    row: &Row,
    project: &ProjectRef,
) -> Result<(), Error> {
    let now = context.clock.now();
    let again = row
        .get::<_, Option<DateTime<Utc>>>(4)
        .is_some_and(|settled| now - settled < STEADY);
    let falls = if again {
        row.get::<_, i32>(3).saturating_add(1)
    } else {
        1
    };
    tracing::warn!(%project, falls, "server exited unexpectedly; restarting");
    let lease = context.lease.check()?;
    let sql = fenced!(
        "update projects set status = 'ACTIVE_UNHEALTHY', attempts = 0, falls = $4, not_before = $5, updated_at = $6, \
         last_error = 'the server ended by itself' where status = 'ACTIVE_HEALTHY' and "
    );
    let params: [Param<'_>; 6] = [
        &row.get::<_, i64>(0),
        &row.get::<_, i64>(2),
        &lease,
        &falls,
        &(now + BACKOFF.pause(falls - 1)),
        &now,
    ];
    let update = StatusUpdate {
        project: ProjectId(row.get(0)),
        sql,
        params: &params,
        doing: "writing a project's status",
    };
    update.execute(context, Vec::new()).await?;
    context.reconciler.notify();
    Ok(())
}
