//! Reconciler of temporary logins: brings the roles of servers in line with the grants after a
//! change or an expiry.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::{StreamExt, stream};
use gantry_base::{
    ids::{ProjectId, ProjectRef},
    repeat::{Backoff, pause_until},
};
use gantry_node::clusters::SuperuserSession;

use super::{TemporaryLogin, logins, server, server::LoginOutcome};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Servers reconciled concurrently.
const WORKERS: usize = 4;
/// Maximum pause while logins exist. Bounds the effect of a clock adjustment, which sends no
/// notification.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Delay after a failed pass.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delays between attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Runs the reconciler. Never returns.
pub async fn run(context: ControlContext) {
    loop {
        let pause = pass(&context).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read temporary logins");
            Some(RETRY_DELAY)
        });
        match pause {
            // A premature pass is harmless: it finds nothing to do.
            Some(pause) => {
                drop(tokio::time::timeout(pause, context.temporary_access.wake.notified()).await);
            }
            None => context.temporary_access.wake.notified().await,
        }
    }
}

/// Reconciles the running servers of this node whose logins are due. Returns the delay until the
/// next pass.
async fn pass(context: &ControlContext) -> Result<Option<Duration>, Error> {
    if !context.lease.leads() {
        // Acquiring the lease wakes the reconciler.
        return Ok(None);
    }
    let now = context.clock.now();
    let mut servers: BTreeMap<ProjectId, Vec<TemporaryLogin>> = BTreeMap::new();
    for login in logins(context, None).await? {
        servers.entry(login.project).or_default().push(login);
    }
    let due = |logins: &Vec<TemporaryLogin>| logins.iter().any(|login| login.is_due(now));
    let work = servers.into_values().filter(due).map(|logins| async move {
        let reference = logins[0].reference.clone();
        // An unreachable server does not block the others.
        if let Err(error) = reconcile_server(context, &reference, &logins).await {
            tracing::warn!(project = %reference, %error, "failed to reconcile temporary logins; retrying");
        }
    });
    let worked = stream::iter(work).buffer_unordered(WORKERS).count().await;
    if worked > 0 {
        context.temporary_access.notify_changed();
    }
    let next = logins(context, None)
        .await?
        .iter()
        .map(|login| login.next_check(now))
        .min();
    Ok(next.map(|next| pause_until(next, context.clock.now(), CLOCK_CHECK_INTERVAL)))
}

/// Removes expired logins from a server that was just started, before it is published. Logins are
/// opened by the next pass.
pub async fn revoke_expired(
    context: &ControlContext,
    project: ProjectId,
    reference: &ProjectRef,
    admin: &SuperuserSession,
) -> Result<(), Error> {
    let logins = logins(context, Some(project)).await?;
    remove_expired(context, reference, admin, &logins).await
}

async fn reconcile_server(
    context: &ControlContext,
    project: &ProjectRef,
    logins: &[TemporaryLogin],
) -> Result<(), Error> {
    let now = context.clock.now();
    let outcome = async {
        let admin = server::connect(context, project).await?;
        remove_expired(context, project, &admin, logins).await?;
        for login in logins
            .iter()
            .filter(|login| login.needs_update(now) && !login.has_expired(now))
        {
            let outcome = server::open(&admin, login).await?;
            record_opened(context, login, outcome).await?;
        }
        Ok(())
    };
    let outcome: Result<(), Error> = outcome.await;
    if outcome.is_err() {
        postpone(context, logins, now).await?;
    }
    outcome
}

async fn remove_expired(
    context: &ControlContext,
    project: &ProjectRef,
    admin: &SuperuserSession,
    logins: &[TemporaryLogin],
) -> Result<(), Error> {
    let now = context.clock.now();
    for login in logins.iter().filter(|login| login.has_expired(now)) {
        server::end(&*context.driver, project, admin, &login.name).await?;
        record_removed(context, login).await?;
    }
    // Roles without a row, from a copy of the data of an earlier time.
    for name in server::list(admin).await? {
        if logins.iter().all(|login| login.name != name) && !is_known(context, &name).await? {
            server::end(&*context.driver, project, admin, &name).await?;
        }
    }
    Ok(())
}

/// Returns whether a login was requested after the list was read.
async fn is_known(context: &ControlContext, name: &str) -> Result<bool, Error> {
    let rows = context
        .db
        .query("select 1 from jit_logins where name = $1", &[&name])
        .await
        .context("reading a login")?;
    Ok(!rows.is_empty())
}

async fn record_opened(
    context: &ControlContext,
    login: &TemporaryLogin,
    outcome: LoginOutcome,
) -> Result<(), Error> {
    let refusal = match outcome {
        LoginOutcome::Open => None,
        LoginOutcome::Rejected(reason) => Some(reason),
    };
    let sql = "update jit_logins set stale = false, verifier = null, refusal = $3, attempts = 0 where id = $1 and generation = $2";
    context
        .db
        .query(sql, &[&login.id, &login.generation, &refusal])
        .await
        .context("recording an opened login")
        .map(drop)
}

async fn record_removed(context: &ControlContext, login: &TemporaryLogin) -> Result<(), Error> {
    let sql = "delete from jit_logins where id = $1 and generation = $2";
    context
        .db
        .query(sql, &[&login.id, &login.generation])
        .await
        .context("recording a removed login")
        .map(drop)
}

/// Schedules the next attempt.
async fn postpone(
    context: &ControlContext,
    logins: &[TemporaryLogin],
    now: DateTime<Utc>,
) -> Result<(), Error> {
    for login in logins.iter().filter(|login| login.needs_update(now)) {
        let attempts = login.attempts.saturating_add(1);
        let next = now + BACKOFF.pause(attempts);
        let sql = "update jit_logins set attempts = $3, not_before = $4 where id = $1 and generation = $2";
        context
            .db
            .query(sql, &[&login.id, &login.generation, &attempts, &next])
            .await
            .context("postponing a login")?;
    }
    Ok(())
}
