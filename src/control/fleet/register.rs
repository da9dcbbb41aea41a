//! Registers this node and watches the others.

use std::{sync::Arc, time::Duration};

use gantry_base::clock::Clock;
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

use super::{
    authority,
    node::{self, Node, NodeState},
};
use crate::{
    control::{context::ControlContext, projects::regions::Region},
    platform::{
        db::{self, QueryError},
        error::{Context, Error},
        tables::Table,
    },
};

/// The interval at which the nodes are read.
const REVIEW: Duration = Duration::from_secs(5);
/// Reviews after which this node's own row is written again.
const REPORT_EVERY: u32 = 6;
/// Longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Registers this node, and creates its certificate if it has a fleet port. Reads the other nodes.
///
/// Errors: [`Error::Conflict`] if the name belongs to another node.
pub async fn register(context: &ControlContext) -> Result<(), Error> {
    // Another process on this data folder may hold the lease.
    if context.lease.leads() {
        report(context).await?;
    }
    if context.control_settings.fleet.address.is_some() {
        renew(context).await?;
    }
    review(context).await
}

/// Keeps the row of this node, its certificate and its view of the others. Runs until dropped.
pub async fn run(context: ControlContext) {
    let mut ticks = interval(REVIEW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, and the node is registered already.
    ticks.tick().await;
    let mut reviews = 0_u32;
    let mut led = context.lease.leads();
    loop {
        ticks.tick().await;
        reviews = reviews.wrapping_add(1);
        let leads = context.lease.leads();
        let is_new_leader = leads && !std::mem::replace(&mut led, leads);
        let kept = async {
            if leads && (is_new_leader || reviews.is_multiple_of(REPORT_EVERY)) {
                report(&context).await?;
            }
            if context.control_settings.fleet.address.is_some() {
                renew(&context).await?;
            }
            review(&context).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, "failed to read the nodes of the fleet; retrying");
        }
    }
}

/// Writes the row of this node.
async fn report(context: &ControlContext) -> Result<(), Error> {
    let settings = &context.control_settings.fleet;
    let node = context.settings.node;
    let name = match &settings.name {
        Some(name) => name.clone(),
        None => default_name(context, node).await?,
    };
    let engines: Vec<i32> = context
        .driver
        .engines()
        .offered()
        .iter()
        .map(|engine| i32::from(engine.major()))
        .collect();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let memory = bytes(memory_bytes());
    let project = context.driver.resource_limits();
    let project = project.map(|limits| bytes(limits.memory_bytes));
    let free = context.driver.free_space().map(|(free, _)| bytes(free));
    let region = settings.region.map(Region::code);
    let sql = "insert into nodes (id, name, region, address, version, engines, memory_bytes,
                                  project_bytes, disk_free_bytes, registered_at)
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
               on conflict (id) do update set name = excluded.name, region = excluded.region,
                   address = excluded.address, version = excluded.version,
                   engines = excluded.engines, memory_bytes = excluded.memory_bytes,
                   project_bytes = excluded.project_bytes,
                   disk_free_bytes = excluded.disk_free_bytes, removed_at = null";
    let written = context
        .db
        .query(
            sql,
            &[
                &node,
                &name,
                &region,
                &settings.address,
                &env!("CARGO_PKG_VERSION"),
                &engines,
                &memory,
                &project,
                &free,
                &context.clock.now(),
            ],
        )
        .await;
    match written {
        Ok(_) => Ok(()),
        Err(QueryError::Refused(error)) if db::violated(&error) == Some("nodes_name_key") => {
            Err(Error::Conflict(format!(
                "another node has the name {name}: choose one with --node-name, or remove the other with `gantry node remove {name}`"
            )
            .into()))
        }
        Err(error) => Err(error).context("registering this node"),
    }
}

/// Returns the host name, with a part of the node's id if another node has it.
async fn default_name(context: &ControlContext, node: Uuid) -> Result<String, Error> {
    let host = context.lease.location.host.to_lowercase();
    let mut host: String = host
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.'))
        .take(NAME_BYTES_MAX)
        .collect();
    if host.is_empty() {
        "node".clone_into(&mut host);
    }
    let sql = "select from nodes where name = $1 and id <> $2 and removed_at is null";
    let rows = context.db.query(sql, &[&host, &node]).await;
    let is_taken = !rows.context("naming this node")?.is_empty();
    Ok(if is_taken {
        let id = node.simple().to_string();
        format!("{host}-{}", &id[..8])
    } else {
        host
    })
}

/// Memory of the machine, in bytes.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// Replaces the certificate of this node when it is due.
async fn renew(context: &ControlContext) -> Result<(), Error> {
    // TLS compares the validity with the time of the machine.
    let now = Clock::system().now();
    let held = context.fleet.tls.read().clone();
    if held.is_some_and(|tls| !tls.is_due(now)) {
        return Ok(());
    }
    let tls = authority::issue(context, now).await?;
    *context.fleet.tls.write() = Some(Arc::new(tls));
    Ok(())
}

/// Reads all nodes. Lists of projects are read again after a node went down or came back, because
/// they show the state of its projects.
async fn review(context: &ControlContext) -> Result<(), Error> {
    let mut nodes = node::list(&context.db).await?;
    let own = nodes
        .iter_mut()
        .find(|node| node.id == context.settings.node);
    own.into_iter().for_each(Node::set_running);
    let nodes: Arc<[_]> = nodes.into();
    let before = std::mem::replace(&mut *context.fleet.nodes.write(), nodes.clone());
    let was_down = |id: Uuid| {
        let earlier = before.iter().find(|earlier| earlier.id == id)?;
        Some(earlier.state == NodeState::Down)
    };
    let mut has_changed = false;
    for node in nodes.iter().filter(|node| node.id != context.settings.node) {
        let name = &node.name;
        let is_down = node.state == NodeState::Down;
        match was_down(node.id) {
            Some(was) if was == is_down => continue,
            _ if is_down => {
                let since = node.down_since;
                tracing::warn!(
                    node = name,
                    ?since,
                    "node is down; its projects cannot be reached"
                );
            }
            Some(_) => tracing::info!(node = name, "node is up again"),
            None => tracing::info!(node = name, "node found"),
        }
        has_changed = true;
    }
    if has_changed {
        context.table_changed(Table::Projects);
    }
    // Projects of a node that is down may be rebuilt on another one.
    if has_changed || nodes.iter().any(|node| node.state == NodeState::Down) {
        context.fleet.forget_holders();
    }
    Ok(())
}
