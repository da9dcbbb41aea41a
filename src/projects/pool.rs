//! Clusters that are ready before anybody asks for a project: prepared folders, and servers that run already.
//!
//! A prepared cluster is made like any other, under the ref and the user id of a project that does not exist yet. To take
//! one is to move its row into `projects`; nothing is renamed, handed over or told to the server. A cluster whose row was
//! never written is garbage to the next start, as every other.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use tokio::sync::Notify;
use tokio_postgres::Transaction;

use super::reconciler::READY_TIMEOUT;
use crate::{
    app::App,
    clusters::{Cluster, Pace},
    db::Param,
    error::{Context, Error},
    ids::ProjectRef,
    telemetry::Origin,
};

/// How often a pool that cannot be filled is tried again, and a full one is looked at.
const REVIEW: Duration = Duration::from_mins(1);

/// How many clusters are to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Folders, of which a project only has to be started.
    pub folders: u16,
    /// Servers that run.
    pub servers: u16,
}

/// The bell of the task that fills the pool.
#[derive(Debug, Default)]
pub struct Pool {
    wake: Notify,
}

impl Pool {
    /// Has what was taken replaced, once nothing else is to be done.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// A prepared cluster that is somebody's now.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) reference: ProjectRef,
    pub(super) account: i64,
}

/// Takes the readiest cluster there is, if there is one: it is the caller's when the transaction is committed.
pub(super) async fn take(app: &App, transaction: &Transaction<'_>, engine: &str) -> Result<Option<Taken>, Error> {
    let sql = "delete from prepared_clusters where account = (select account from prepared_clusters where node = $1 and engine = $2 \
               order by running desc, account limit 1 for update skip locked) returning ref, account, running";
    let row = transaction.query_opt(sql, &[&app.settings.node, &engine]).await.context("taking a prepared cluster")?;
    let clusters = app.metrics.clusters();
    let Some(row) = row else {
        clusters.began_from(Origin::Template);
        return Ok(None);
    };
    clusters.began_from(if row.get(2) { Origin::Server } else { Origin::Folder });
    let reference = row.get::<_, &str>(0).parse().context("reading a prepared cluster")?;
    Ok(Some(Taken { reference, account: row.get(1) }))
}

/// Keeps the pool full until it is dropped.
pub async fn run(app: App) {
    loop {
        if let Err(error) = fill(&app).await {
            tracing::warn!(%error, "no cluster could be prepared; new projects take a little longer until one can be");
        }
        // Either way it is time to look.
        let _ = tokio::time::timeout(REVIEW, app.pool.wake.notified()).await;
    }
}

/// What is there, and whether it runs.
#[derive(Debug)]
struct Prepared {
    account: i64,
    reference: ProjectRef,
    engine: String,
    running: bool,
}

/// What a pool lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Folder,
    Server,
}

impl Wanted {
    fn lack(self, folders: usize, servers: usize) -> Option<Lack> {
        // A server first: it is made of a folder, which is then replaced.
        (servers < self.servers.into()).then_some(Lack::Server).or_else(|| (folders < self.folders.into()).then_some(Lack::Folder))
    }
}

/// Prepares one cluster after the other until there are enough. Projects come first: it waits while one is worked on.
async fn fill(app: &App) -> Result<(), Error> {
    let mut changes = app.reconciler.changes();
    loop {
        changes.borrow_and_update();
        if !app.lease.leads() {
            return Ok(());
        }
        let there = prepared(app).await?;
        let servers = there.iter().filter(|cluster| cluster.running).count();
        app.metrics.clusters().prepared(there.len() - servers, servers);
        let Some(lack) = app.settings.prepared.lack(there.len() - servers, servers) else { return Ok(()) };
        if app.reconciler.is_busy() {
            changes.changed().await.context("waiting for projects")?;
            continue;
        }
        // Held while it works, so that the server stops only after it.
        let Some(_permit) = app.reconciler.begin().await else { return Ok(()) };
        match lack {
            Lack::Folder => add(app, false).await?,
            Lack::Server => add_server(app).await?,
        }
    }
}

async fn prepared(app: &App) -> Result<Vec<Prepared>, Error> {
    let sql = "select account, ref, engine, running from prepared_clusters where node = $1 order by account";
    let rows = app.db.query(sql, &[&app.settings.node]).await.context("reading prepared clusters")?;
    let read = |row: &tokio_postgres::Row| {
        let reference = row.get::<_, &str>(1).parse().context("reading a prepared cluster")?;
        Ok(Prepared { account: row.get(0), reference, engine: row.get(2), running: row.get(3) })
    };
    rows.iter().map(read).collect()
}

/// Starts the server of a folder, or of a new one.
async fn add_server(app: &App) -> Result<(), Error> {
    let mut client = app.db.client().await?;
    let transaction = client.transaction().await.context("taking a prepared cluster")?;
    // Ours while it starts: whoever takes it at the same moment would start it, too.
    let sql = "delete from prepared_clusters where account = (select account from prepared_clusters where node = $1 and not running \
               order by account limit 1 for update skip locked) returning ref, account";
    let row = transaction.query_opt(sql, &[&app.settings.node]).await.context("taking a prepared cluster")?;
    transaction.commit().await.context("taking a prepared cluster")?;
    let Some(row) = row else { return add(app, true).await };
    let reference = row.get::<_, &str>(0).parse().context("reading a prepared cluster")?;
    ready(app, Taken { reference, account: row.get(1) }, true).await
}

/// Makes one more.
async fn add(app: &App, server: bool) -> Result<(), Error> {
    let rows = app.db.query("select nextval(pg_get_serial_sequence('projects', 'id'))", &[]).await.context("choosing a user id")?;
    let account: i64 = rows.first().ok_or(Error::NotFound)?.get(0);
    ready(app, Taken { reference: ProjectRef::generate(&app.entropy), account }, server).await
}

/// Brings a cluster to where it is wanted, and writes it down. What fails is thrown away.
async fn ready(app: &App, taken: Taken, server: bool) -> Result<(), Error> {
    let made = make(app, &taken, server).await;
    if made.is_err() {
        if let Err(error) = app.clusters.remove(&taken.reference).await {
            tracing::warn!(%error, "a cluster that could not be prepared is left for the next start to remove");
        }
        app.reconciler.trash_filled();
    }
    made
}

async fn make(app: &App, taken: &Taken, server: bool) -> Result<(), Error> {
    let uid = super::reconciler::uid(app, taken.account)?;
    let cluster = Cluster { project: taken.reference.clone(), uid };
    app.clusters.create(&cluster, Pace::Idle).await.context("preparing a cluster")?;
    if server {
        app.clusters.start(&cluster.project).await.context("starting a prepared cluster")?;
        app.clusters.wait_ready(&cluster.project, READY_TIMEOUT).await.context("starting a prepared cluster")?;
    }
    let sql = "insert into prepared_clusters (account, ref, node, engine, running, created_at) select $1, $2, $3, $4, $5, $6 \
               where exists (select from node_leases l where l.node = $3 and l.generation = $7 for share) returning account";
    let (engine, lease) = (app.clusters.engine().text(), app.lease.check()?);
    let params: [Param<'_>; 7] =
        [&taken.account, &taken.reference.as_str(), &app.settings.node, &engine, &server, &app.clock.now(), &lease];
    let rows = app.db.query(sql, &params).await.context("writing down a prepared cluster")?;
    rows.first().map(drop).ok_or("the lease has passed on").context("writing down a prepared cluster")
}

/// Forgets prepared clusters that are of no use: too many, of an engine that was replaced since, or gone. What they leave is
/// garbage. Returns the refs of those that stay.
pub(super) async fn review(app: &App) -> Result<HashSet<ProjectRef>, Error> {
    let mut kept = HashSet::new();
    let mut counts: BTreeMap<bool, u16> = BTreeMap::new();
    for cluster in prepared(app).await? {
        let running = app.clusters.running(&cluster.reference).await.context("looking for a prepared cluster")?.is_some();
        let wanted = if running { app.settings.prepared.servers } else { app.settings.prepared.folders };
        let count = counts.entry(running).or_default();
        let there = app.clusters.exists(&cluster.reference);
        if there && cluster.engine == app.clusters.engine().text() && *count < wanted {
            *count += 1;
            let sql = "update prepared_clusters set running = $2 where account = $1";
            app.db.query(sql, &[&cluster.account, &running]).await.context("reviewing prepared clusters")?;
            kept.insert(cluster.reference);
        } else {
            let sql = "delete from prepared_clusters where account = $1";
            app.db.query(sql, &[&cluster.account]).await.context("reviewing prepared clusters")?;
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_first_and_enough_is_enough() {
        let wanted = Wanted { folders: 2, servers: 1 };
        for (folders, servers, lack) in
            [(0, 0, Some(Lack::Server)), (2, 0, Some(Lack::Server)), (1, 1, Some(Lack::Folder)), (2, 1, None), (3, 2, None)]
        {
            assert_eq!(wanted.lack(folders, servers), lack, "{folders} folders, {servers} servers");
        }
        assert_eq!(Wanted::default().lack(0, 0), None);
    }
}
