//! The warm pool: prepared clusters for future projects, as folders or as running servers.
//!
//! A warm cluster is created like any other, under the ref and the user id of a project that does
//! not exist yet. A project takes it by moving its row to `projects`; the cluster itself does not
//! change. A cluster without a row is removed as garbage at the next start.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::{ClusterSpec, CopyPriority},
    engines::Engine,
};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::reconciler::plan::READY_TIMEOUT;
use crate::{
    control::{context::ControlContext, metrics::Origin, projects::state::warm_pool::Shortage},
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// The interval between checks of the pool, and between attempts to fill it.
const REVIEW: Duration = Duration::from_mins(1);

/// A cluster of the warm pool.
#[derive(Debug)]
pub(crate) struct WarmCluster {
    pub(crate) reference: ProjectRef,
    pub(crate) account: i64,
    running: bool,
}

impl WarmCluster {
    /// Returns the origin of a project that took this cluster, or found the pool empty.
    pub(crate) fn origin(taken: Option<&Self>) -> Origin {
        match taken {
            Some(Self { running: true, .. }) => Origin::Server,
            Some(Self { running: false, .. }) => Origin::Folder,
            None => Origin::Template,
        }
    }
}

/// Takes a cluster from the pool of a node within a transaction, preferably one with a running
/// server.
pub(crate) async fn take(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    node: Uuid,
    engine: &Engine,
) -> Result<Option<WarmCluster>, Error> {
    let sql = "delete from prepared_clusters where account = (select account from prepared_clusters where node = $1 and template = $2 \
               order by running desc, account limit 1 for update skip locked) returning ref, account, running";
    if node == context.settings.node {
        context.pool.requested.lock().insert(engine.major());
    }
    let row = transaction
        .query_opt(sql, &[&node, &template(context, engine)?])
        .await
        .context("taking a prepared cluster")?;
    row.map(|row| read(&row)).transpose()
}

fn read(row: &Row) -> Result<WarmCluster, Error> {
    let reference = row
        .get::<_, &str>(0)
        .parse()
        .context("reading a prepared cluster")?;
    Ok(WarmCluster {
        reference,
        account: row.get(1),
        running: row.get(2),
    })
}

/// Returns the identifier of the template for new clusters of this version.
fn template(context: &ControlContext, engine: &Engine) -> Result<String, Error> {
    context
        .driver
        .template_name(engine)
        .context("naming a template")
}

/// Fills the pool. Runs until it is dropped.
pub async fn run(context: ControlContext) {
    loop {
        if let Err(error) = fill(&context).await {
            tracing::warn!(%error, "warm pool could not be filled; new projects take longer to create");
        }
        // Checks the pool after a wake-up or after the interval.
        let _ = tokio::time::timeout(REVIEW, context.pool.wake.notified()).await;
    }
}

/// Creates clusters one at a time until the pool is full. Waits while the reconciler is busy.
async fn fill(context: &ControlContext) -> Result<(), Error> {
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
        // The permit delays a shutdown until the cluster is complete.
        let Some(_permit) = context.reconciler.begin().await else {
            return Ok(());
        };
        match lack {
            Shortage::Folder => add(context, &engine, false).await?,
            Shortage::Server => add_server(context, &engine).await?,
        }
    }
}

/// Returns the next cluster to create and its version.
async fn next(context: &ControlContext) -> Result<Option<(Engine, Shortage)>, Error> {
    let there = prepared(context).await?;
    let servers = there
        .iter()
        .filter(|(_, cluster): &&(String, WarmCluster)| cluster.running)
        .count();
    context
        .cluster_metrics
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
                .control_settings
                .prepared
                .shortage(of_engine.len() - servers, servers)?,
        ))
    };
    Ok(context
        .pool
        .engines(context.driver.engines())
        .into_iter()
        .find_map(lack))
}

/// Reads the warm clusters of this node, each with the template of which it is a copy.
async fn prepared(context: &ControlContext) -> Result<Vec<(String, WarmCluster)>, Error> {
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

/// Adds a running server: starts an existing warm cluster, or creates one.
async fn add_server(context: &ControlContext, engine: &Engine) -> Result<(), Error> {
    // Removed from the pool during the start, so that no project takes it meanwhile.
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

/// Creates a cluster under a new ref and user id.
async fn add(context: &ControlContext, engine: &Engine, server: bool) -> Result<(), Error> {
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
        WarmCluster {
            reference: ProjectRef::generate(&context.entropy),
            account,
            running: false,
        },
        engine,
        server,
    )
    .await
}

/// Completes a cluster and adds it to the pool. Removes it on failure.
async fn ready(
    context: &ControlContext,
    taken: WarmCluster,
    engine: &Engine,
    server: bool,
) -> Result<(), Error> {
    let made = make(context, &taken, engine, server).await;
    if made.is_err() {
        if let Err(error) = context.driver.remove(&taken.reference).await {
            tracing::warn!(%error, "incomplete cluster could not be removed; the next start removes it");
        }
        context.reconciler.trash_filled();
    }
    made
}

async fn make(
    context: &ControlContext,
    taken: &WarmCluster,
    engine: &Engine,
    server: bool,
) -> Result<(), Error> {
    let uid = super::reconciler::plan::uid(context, taken.account)?;
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

/// Removes unusable clusters from the pool: excess ones, copies of a replaced template, and missing
/// ones. Their files become garbage. Returns the refs of the others.
pub(crate) async fn review(context: &ControlContext) -> Result<HashSet<ProjectRef>, Error> {
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
            context.control_settings.prepared.servers
        } else {
            context.control_settings.prepared.folders
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
