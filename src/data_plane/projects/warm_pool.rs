//! Clusters that are ready before anybody asks for a project: prepared folders, and servers that run already.
//!
//! A prepared cluster is made like any other, under the ref and the user id of a project that does not exist yet. To take
//! one is to move its row into `projects`; nothing is renamed, handed over or told to the server. A cluster whose row was
//! never written is garbage to the next start, as every other.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_postgres::{Row, Transaction};

use super::reconciler::READY_TIMEOUT;
use crate::{
    base::{
        db::Param,
        error::{Context, Error},
        ids::ProjectRef,
    },
    data_plane::{
        clusters::{ClusterSpec, CopyPriority, Engine, Engines},
        context::DataPlaneContext,
        metrics::Origin,
    },
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

/// The bell of the task that fills the pool, and what it is filled with.
#[derive(Debug, Default)]
pub struct Pool {
    wake: Notify,
    /// Major versions that were asked for since the start. Clusters are kept ready for these and for the default.
    asked: Mutex<BTreeSet<u16>>,
}

impl Pool {
    /// Installations to keep clusters ready for.
    fn engines<'a>(&self, engines: &'a Engines) -> Vec<&'a Engine> {
        let asked = self.asked.lock();
        let default = engines.default_engine();
        engines
            .offered()
            .iter()
            .filter(|engine| *engine == default || asked.contains(&engine.major()))
            .collect()
    }

    /// Has what was taken replaced, once nothing else is to be done.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}

/// A prepared cluster that is somebody's now.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) reference: ProjectRef,
    pub(crate) account: i64,
    running: bool,
}

impl Taken {
    /// What a project is made from that took this, or found nothing to take.
    pub(crate) fn origin(taken: Option<&Self>) -> Origin {
        match taken {
            Some(Self { running: true, .. }) => Origin::Server,
            Some(Self { running: false, .. }) => Origin::Folder,
            None => Origin::Template,
        }
    }
}

/// Takes the readiest cluster there is, if there is one: it is the caller's when the transaction is committed.
pub(crate) async fn take(
    context: &DataPlaneContext,
    transaction: &Transaction<'_>,
    engine: &Engine,
) -> Result<Option<Taken>, Error> {
    let sql = "delete from prepared_clusters where account = (select account from prepared_clusters where node = $1 and template = $2 \
               order by running desc, account limit 1 for update skip locked) returning ref, account, running";
    context.pool.asked.lock().insert(engine.major());
    let row = transaction
        .query_opt(sql, &[&context.settings.node, &template(context, engine)?])
        .await
        .context("taking a prepared cluster")?;
    row.map(|row| read(&row)).transpose()
}

fn read(row: &Row) -> Result<Taken, Error> {
    let reference = row
        .get::<_, &str>(0)
        .parse()
        .context("reading a prepared cluster")?;
    Ok(Taken {
        reference,
        account: row.get(1),
        running: row.get(2),
    })
}

/// What a new project of this engine is copied from.
fn template(context: &DataPlaneContext, engine: &Engine) -> Result<String, Error> {
    context
        .driver
        .template_name(engine)
        .context("naming a template")
}

/// Keeps the pool full until it is dropped.
pub async fn run(context: DataPlaneContext) {
    loop {
        if let Err(error) = fill(&context).await {
            tracing::warn!(%error, "no cluster could be prepared; new projects take a little longer until one can be");
        }
        // Either way it is time to look.
        let _ = tokio::time::timeout(REVIEW, context.pool.wake.notified()).await;
    }
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
        (servers < self.servers.into())
            .then_some(Lack::Server)
            .or_else(|| (folders < self.folders.into()).then_some(Lack::Folder))
    }
}

/// Prepares one cluster after the other until there are enough. Projects come first: it waits while one is worked on.
async fn fill(context: &DataPlaneContext) -> Result<(), Error> {
    let mut changes = context.reconciler.changes();
    loop {
        changes.borrow_and_update();
        if !context.lease.leads() {
            return Ok(());
        }
        let Some((engine, lack)) = next(context).await? else {
            return Ok(());
        };
        if context.reconciler.is_busy() {
            changes.changed().await.context("waiting for projects")?;
            continue;
        }
        // Held while it works, so that the server stops only after it.
        let Some(_permit) = context.reconciler.begin().await else {
            return Ok(());
        };
        match lack {
            Lack::Folder => add(context, &engine, false).await?,
            Lack::Server => add_server(context, &engine).await?,
        }
    }
}

/// What is lacking, and of which version.
async fn next(context: &DataPlaneContext) -> Result<Option<(Engine, Lack)>, Error> {
    let there = prepared(context).await?;
    let running = |(_, cluster): &&(String, Taken)| cluster.running;
    let servers = there.iter().filter(running).count();
    context
        .data_plane_metrics
        .clusters
        .prepared(there.len() - servers, servers);
    let lack = |engine: &Engine| {
        let name = template(context, engine).ok()?;
        let of_engine: Vec<_> = there
            .iter()
            .filter(|(template, _)| *template == name)
            .collect();
        let servers = of_engine
            .iter()
            .filter(|(_, cluster)| cluster.running)
            .count();
        Some((
            engine.clone(),
            context
                .data_plane_settings
                .prepared
                .lack(of_engine.len() - servers, servers)?,
        ))
    };
    Ok(context
        .pool
        .engines(context.driver.engines())
        .into_iter()
        .find_map(lack))
}

/// Prepared clusters of this data folder, each with the template it was copied from.
async fn prepared(context: &DataPlaneContext) -> Result<Vec<(String, Taken)>, Error> {
    let sql = "select ref, account, running, template from prepared_clusters where node = $1 order by account";
    let rows = context
        .db
        .query(sql, &[&context.settings.node])
        .await
        .context("reading prepared clusters")?;
    rows.iter()
        .map(|row| Ok((row.get(3), read(row)?)))
        .collect()
}

/// Starts the server of a folder, or of a new one.
async fn add_server(context: &DataPlaneContext, engine: &Engine) -> Result<(), Error> {
    // Ours while it starts: whoever takes it at the same moment would start it, too.
    let sql = "delete from prepared_clusters where account = (select account from prepared_clusters where node = $1 and template = $2 \
               and not running order by account limit 1 for update skip locked) returning ref, account, running";
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &template(context, engine)?])
        .await
        .context("taking a prepared cluster")?;
    match rows.first() {
        Some(row) => ready(context, read(row)?, engine, true).await,
        None => add(context, engine, true).await,
    }
}

/// Makes one more.
async fn add(context: &DataPlaneContext, engine: &Engine, server: bool) -> Result<(), Error> {
    let rows = context
        .db
        .query(
            "select nextval(pg_get_serial_sequence('projects', 'id'))",
            &[],
        )
        .await
        .context("choosing a user id")?;
    let account: i64 = rows.first().ok_or(Error::NotFound)?.get(0);
    ready(
        context,
        Taken {
            reference: ProjectRef::generate(&context.entropy),
            account,
            running: false,
        },
        engine,
        server,
    )
    .await
}

/// Brings a cluster to where it is wanted, and writes it down. What fails is thrown away.
async fn ready(
    context: &DataPlaneContext,
    taken: Taken,
    engine: &Engine,
    server: bool,
) -> Result<(), Error> {
    let made = make(context, &taken, engine, server).await;
    if made.is_err() {
        if let Err(error) = context.driver.remove(&taken.reference).await {
            tracing::warn!(%error, "a cluster that could not be prepared is left for the next start to remove");
        }
        context.reconciler.trash_filled();
    }
    made
}

async fn make(
    context: &DataPlaneContext,
    taken: &Taken,
    engine: &Engine,
    server: bool,
) -> Result<(), Error> {
    let uid = super::reconciler::uid(context, taken.account)?;
    let cluster = ClusterSpec {
        project: taken.reference.clone(),
        uid,
        major: engine.major(),
    };
    context
        .driver
        .create(&cluster, CopyPriority::Background)
        .await
        .context("preparing a cluster")?;
    if server {
        context
            .driver
            .start(&cluster.project)
            .await
            .context("starting a prepared cluster")?;
        context
            .driver
            .wait_ready(&cluster.project, READY_TIMEOUT)
            .await
            .context("starting a prepared cluster")?;
    }
    let sql = "insert into prepared_clusters (account, ref, node, template, running, created_at) select $1, $2, $3, $4, $5, $6 \
               where exists (select from node_leases l where l.node = $3 and l.generation = $7 for share) returning account";
    let lease = context.lease.check()?;
    let params: [Param<'_>; 7] = [
        &taken.account,
        &taken.reference.as_str(),
        &context.settings.node,
        &template(context, engine)?,
        &server,
        &context.clock.now(),
        &lease,
    ];
    let rows = context
        .db
        .query(sql, &params)
        .await
        .context("writing down a prepared cluster")?;
    rows.first()
        .map(drop)
        .ok_or("the lease has passed on")
        .context("writing down a prepared cluster")
}

/// Forgets prepared clusters that are of no use: too many, from a template that was replaced since, or gone. What they leave is
/// garbage. Returns the refs of those that stay.
pub(crate) async fn review(context: &DataPlaneContext) -> Result<HashSet<ProjectRef>, Error> {
    let mut kept = HashSet::new();
    let mut counts: BTreeMap<(String, bool), u16> = BTreeMap::new();
    for (template, cluster) in prepared(context).await? {
        let running = context
            .driver
            .running(&cluster.reference)
            .await
            .context("looking for a prepared cluster")?
            .is_some();
        let wanted = if running {
            context.data_plane_settings.prepared.servers
        } else {
            context.data_plane_settings.prepared.folders
        };
        let current = context
            .driver
            .engines()
            .offered()
            .iter()
            .any(|known| self::template(context, known).is_ok_and(|known| known == template));
        let count = counts.entry((template, running)).or_default();
        let exists = context
            .driver
            .exists(&cluster.reference)
            .await
            .context("looking for a prepared cluster")?;
        if exists && current && *count < wanted {
            *count += 1;
            let sql = "update prepared_clusters set running = $2 where account = $1";
            context
                .db
                .query(sql, &[&cluster.account, &running])
                .await
                .context("reviewing prepared clusters")?;
            kept.insert(cluster.reference);
        } else {
            let sql = "delete from prepared_clusters where account = $1";
            context
                .db
                .query(sql, &[&cluster.account])
                .await
                .context("reviewing prepared clusters")?;
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_first_and_enough_is_enough() {
        let wanted = Wanted {
            folders: 2,
            servers: 1,
        };
        for (folders, servers, lack) in [
            (0, 0, Some(Lack::Server)),
            (2, 0, Some(Lack::Server)),
            (1, 1, Some(Lack::Folder)),
            (2, 1, None),
            (3, 2, None),
        ] {
            assert_eq!(
                wanted.lack(folders, servers),
                lack,
                "{folders} folders, {servers} servers"
            );
        }
        assert_eq!(Wanted::default().lack(0, 0), None);
    }
}
