//! Brings the logins of servers in line with what is granted, whenever something changed or somebody's time is over.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{StreamExt, stream};
use tokio::sync::{
    Notify,
    watch::{Receiver, Sender, channel},
};

use tokio_postgres::Client;

use super::{Login, logins, server, server::Outcome};
use crate::{
    base::{
        error::{Context, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::context::DataPlaneContext,
};

/// Servers worked on at once.
const WORKERS: usize = 4;
/// A clock that is set is announced by nobody: while there are logins, it is looked at so often.
const LOOK: Duration = Duration::from_secs(30);
/// How soon a pass follows one that failed.
const RETRY_PASS: Duration = Duration::from_secs(1);
/// Longest pause between attempts, in seconds.
const BACKOFF_SECS_MAX: i64 = 60;

/// The keeper's bell and its news.
#[derive(Debug)]
pub struct Keeper {
    wake: Notify,
    changes: Sender<u64>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            wake: Notify::new(),
            changes: channel(0).0,
        }
    }
}

impl Keeper {
    /// Something changed, here or on another node.
    pub fn wake(&self) {
        self.wake.notify_one();
        self.tell();
    }

    /// Tells whenever a login may have changed.
    pub(crate) fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Runs until the process ends.
pub async fn run(context: DataPlaneContext) {
    loop {
        let pause = pass(&context).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not read which logins there should be");
            Some(RETRY_PASS)
        });
        match pause {
            // Too early is as good as on time: then the next pass finds nothing to do.
            Some(pause) => drop(tokio::time::timeout(pause, context.jit.wake.notified()).await),
            None => context.jit.wake.notified().await,
        }
    }
}

/// Works on every running server of this node that needs it, and returns how long until one may need it again.
async fn pass(context: &DataPlaneContext) -> Result<Option<Duration>, Error> {
    if !context.lease.leads() {
        // Whoever gets the lease is woken.
        return Ok(None);
    }
    let now = context.clock.now();
    let mut servers: BTreeMap<ProjectId, Vec<Login>> = BTreeMap::new();
    for login in logins(context, None).await? {
        servers.entry(login.project).or_default().push(login);
    }
    let due = |logins: &Vec<Login>| logins.iter().any(|login| login.is_due(now));
    let work = servers.into_values().filter(due).map(|logins| async move {
        let reference = logins[0].reference.clone();
        // One server that cannot be reached holds up no other.
        if let Err(error) = settle_server(context, &reference, &logins).await {
            tracing::warn!(project = %reference, %error, "logins could not be brought in line; it will be tried again");
        }
    });
    let worked = stream::iter(work).buffer_unordered(WORKERS).count().await;
    if worked > 0 {
        context.jit.tell();
    }
    let next = logins(context, None)
        .await?
        .iter()
        .map(|login| login.next(now))
        .min();
    // Up to the millisecond: a pass a moment too early would find nothing.
    Ok(next.map(|next| {
        (next - context.clock.now() + TimeDelta::milliseconds(1))
            .to_std()
            .unwrap_or_default()
            .min(LOOK)
    }))
}

/// Ends what is over in a server that was just started, before it is announced. What is to be opened follows when it is.
pub async fn shut(
    context: &DataPlaneContext,
    project: ProjectId,
    reference: &ProjectRef,
    admin: &Client,
) -> Result<(), Error> {
    let logins = logins(context, Some(project)).await?;
    end_over(context, reference, admin, &logins).await
}

async fn settle_server(
    context: &DataPlaneContext,
    project: &ProjectRef,
    logins: &[Login],
) -> Result<(), Error> {
    let now = context.clock.now();
    let outcome = async {
        let admin = server::connect(context, project).await?;
        end_over(context, project, &admin, logins).await?;
        for login in logins
            .iter()
            .filter(|login| login.is_wrong(now) && !login.is_over(now))
        {
            let outcome = server::open(&admin, login).await?;
            note_open(context, login, outcome).await?;
        }
        Ok(())
    };
    let outcome: Result<(), Error> = outcome.await;
    if outcome.is_err() {
        postpone(context, logins, now).await?;
    }
    outcome
}

async fn end_over(
    context: &DataPlaneContext,
    project: &ProjectRef,
    admin: &Client,
    logins: &[Login],
) -> Result<(), Error> {
    let now = context.clock.now();
    for login in logins.iter().filter(|login| login.is_over(now)) {
        server::end(&*context.driver, project, admin, &login.name).await?;
        note_end(context, login).await?;
    }
    // Left by a copy of the data from another time.
    for name in server::list(admin).await? {
        if logins.iter().all(|login| login.name != name) && !is_known(context, &name).await? {
            server::end(&*context.driver, project, admin, &name).await?;
        }
    }
    Ok(())
}

/// A login that was asked for since the list was read.
async fn is_known(context: &DataPlaneContext, name: &str) -> Result<bool, Error> {
    let rows = context
        .db
        .query("select 1 from jit_logins where name = $1", &[&name])
        .await
        .context("reading a login")?;
    Ok(!rows.is_empty())
}

async fn note_open(
    context: &DataPlaneContext,
    login: &Login,
    outcome: Outcome,
) -> Result<(), Error> {
    let refusal = match outcome {
        Outcome::Open => None,
        Outcome::Refused(why) => Some(why),
    };
    let sql = "update jit_logins set stale = false, verifier = null, refusal = $3, attempts = 0 where id = $1 and generation = $2";
    context
        .db
        .query(sql, &[&login.id, &login.generation, &refusal])
        .await
        .context("noting a login")
        .map(drop)
}

async fn note_end(context: &DataPlaneContext, login: &Login) -> Result<(), Error> {
    let sql = "delete from jit_logins where id = $1 and generation = $2";
    context
        .db
        .query(sql, &[&login.id, &login.generation])
        .await
        .context("noting the end of a login")
        .map(drop)
}

/// The next attempt is due after 1, 2, 4 … 60 seconds.
async fn postpone(
    context: &DataPlaneContext,
    logins: &[Login],
    now: DateTime<Utc>,
) -> Result<(), Error> {
    for login in logins.iter().filter(|login| login.is_wrong(now)) {
        let attempts = login.attempts.saturating_add(1);
        let pause = TimeDelta::seconds((1_i64 << attempts.clamp(1, 7) >> 1).min(BACKOFF_SECS_MAX));
        let sql = "update jit_logins set attempts = $3, not_before = $4 where id = $1 and generation = $2";
        context
            .db
            .query(
                sql,
                &[&login.id, &login.generation, &attempts, &(now + pause)],
            )
            .await
            .context("putting off a login")?;
    }
    Ok(())
}
