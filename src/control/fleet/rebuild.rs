//! Rebuilds the projects of a lost node on other nodes, from their backups.
//!
//! The row of a project moves to the other node together with the request of its recovery, in one
//! transaction. From then on the lost node does not hold the project: if it returns, it starts
//! nothing of it, and keeps its copy until that is discarded.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrganizationId, ProjectId},
};
use serde::Serialize;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{
    node::{self, Node, NodeState},
    placement::{self, NewPlacement},
};
use crate::{
    control::{
        backups::recover::{request_recovery, request_restore},
        projects::status_events,
    },
    platform::{
        db::Db,
        error::{Context, Error},
        events::{
            self, EventPayload, NewEvent,
            payloads::{self, NodeLost},
        },
    },
};

const DOING: &str = "rebuilding the projects of a node";

/// The outcome of a rebuild.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rebuild {
    /// Projects that other nodes restore from now on.
    pub rebuilt: Vec<RebuiltProject>,
    /// Refs of projects that stay on the node, because they have no complete backup.
    pub without_backup: Vec<String>,
}

/// A project that another node restores.
#[derive(Debug, Clone, Serialize)]
pub struct RebuiltProject {
    /// Its ref.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Name of its new node.
    pub node: String,
    /// The last moment in the store: later commits are lost.
    pub recovered_until: Option<DateTime<Utc>>,
}

/// A project of the lost node.
struct LostProject {
    id: i64,
    reference: String,
    /// Desired state: `active`, `paused`, or `removed` if it can be brought back.
    desired: String,
    /// Whether its cluster was never created.
    is_new: bool,
    has_backup: bool,
    archived_until: Option<DateTime<Utc>>,
    /// The project that it is a branch of.
    parent: Option<i64>,
    placement: NewPlacement,
}

/// Moves the projects of a node that is down to other nodes, which restore them. With `to`, all go
/// to this one. Can be repeated.
///
/// Errors: [`Error::NotFound`] if there is no node of this name; [`Error::Conflict`] if a server
/// runs it; [`Error::Invalid`] if no node can take one of the projects. Nothing is changed then.
pub async fn rebuild(
    db: &Db,
    name: &str,
    to: Option<&str>,
    (entropy, now): (&Entropy, DateTime<Utc>),
) -> Result<Rebuild, Error> {
    let nodes = node::list(db).await?;
    let lost = nodes.iter().find(|node| node.name == name);
    let lost = lost.ok_or(Error::NotFound)?;
    let takes = |node: &&Node| node.id != lost.id && node.state == NodeState::Ready;
    let mut targets: Vec<Node> = nodes.iter().filter(takes).cloned().collect();
    if let Some(to) = to {
        targets.retain(|node| node.name == to);
        let target = targets.first_mut().ok_or_else(|| {
            Error::invalid(
                "to",
                format!("{to} is no node that takes projects; `gantry node list` shows the nodes"),
            )
        })?;
        // The operator chooses it for every region.
        target.region = None;
    }
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(DOING)?;
    fence(&transaction, lost).await?;
    let mut outcome = Rebuild::default();
    let mut placed: HashMap<i64, Uuid> = HashMap::new();
    let mut told: BTreeMap<OrganizationId, NodeLost> = BTreeMap::new();
    for (place, project) in (0..).zip(lost_projects(&transaction, lost.id).await?) {
        if !project.has_backup && !project.is_new {
            outcome.without_backup.push(project.reference);
            continue;
        }
        // Branches are copies of their parent's files, so they lie on one node.
        let beside = project.parent.and_then(|parent| placed.get(&parent));
        let node = match beside {
            Some(node) => *node,
            None => placement::among(&transaction, &targets, project.placement, lost.id).await?,
        };
        placed.insert(project.id, node);
        let turn = now + TimeDelta::milliseconds(place);
        move_project(&transaction, &project, (lost.id, node), (turn, now)).await?;
        told.entry(project.placement.organization)
            .or_insert_with(|| NodeLost {
                projects: Vec::new(),
            })
            .projects
            .push(payloads::LostProject {
                reference: project.reference.clone(),
                recovered_until: project.archived_until,
            });
        let target = targets.iter().find(|target| target.id == node);
        outcome.rebuilt.push(RebuiltProject {
            reference: project.reference,
            node: target.map(|target| target.name.clone()).unwrap_or_default(),
            recovered_until: project.archived_until,
        });
    }
    let ids: Vec<ProjectId> = placed.keys().map(|id| ProjectId(*id)).collect();
    let lost = told.iter().map(|(it, lost)| lost.about_organization(*it));
    let mut new: Vec<NewEvent> = lost.collect();
    new.extend(status_events::changed(&transaction, &ids).await?);
    events::append(&transaction, &new, None, entropy, now).await?;
    transaction.commit().await.context(DOING)?;
    Ok(outcome)
}

/// Ends the lease of a node for good: a server that still runs and has no connection to the control
/// database cannot record anything any more.
async fn fence(transaction: &Transaction<'_>, lost: &Node) -> Result<(), Error> {
    let sql = "update node_leases set holder = gen_random_uuid(), locked = false,
                      generation = generation + 1
               where node = $1 and expires_at < clock_timestamp()";
    let fenced = transaction.execute(sql, &[&lost.id]).await.context(DOING)?;
    if fenced == 1 {
        return Ok(());
    }
    let name = &lost.name;
    Err(Error::Conflict(
        format!("a server runs the node {name}; its projects need not be rebuilt").into(),
    ))
}

async fn lost_projects(
    transaction: &Transaction<'_>,
    node: Uuid,
) -> Result<Vec<LostProject>, Error> {
    // The rows of a removed project are kept as one value until it is brought back.
    let sql = "select p.id, p.ref, p.desired, p.status in ('COMING_UP', 'INIT_FAILED'),
                      exists (select from base_backups b
                              where b.project_id = p.id and b.status = 'COMPLETED')
                          or r.rows->'base_backups' @> '[{\"status\": \"COMPLETED\"}]',
                      (select max(a.shipped_at) from archives a where a.project_id = p.id),
                      b.parent_id, p.organization_id, p.region, p.engine, p.instance_size,
                      (select max((a->>'shipped_at')::timestamptz)
                       from jsonb_array_elements(r.rows->'archives') a)
               from projects p left join branches b on b.project_id = p.id and not b.is_default
                    left join removed_project_rows r on r.project_id = p.id
               where p.node = $1 and (p.desired <> 'removed' or p.held_until is not null)
               order by b.project_id is not null, p.id for update of p";
    let rows = transaction.query(sql, &[&node]).await.context(DOING)?;
    rows.iter().map(read).collect()
}

fn read(row: &Row) -> Result<LostProject, Error> {
    Ok(LostProject {
        id: row.get(0),
        reference: row.get(1),
        desired: row.get(2),
        is_new: row.get(3),
        has_backup: row.get::<_, Option<bool>>(4).unwrap_or_default(),
        archived_until: row.get::<_, Option<_>>(5).or(row.get(11)),
        parent: row.get(6),
        placement: NewPlacement::read(row, 7)?,
    })
}

async fn move_project(
    transaction: &Transaction<'_>,
    project: &LostProject,
    (from, to): (Uuid, Uuid),
    times: (DateTime<Utc>, DateTime<Utc>),
) -> Result<(), Error> {
    let sql = "update projects set node = $2 where id = $1";
    let moved = transaction.execute(sql, &[&project.id, &to]).await;
    moved.context(DOING)?;
    // A node that returns must not continue to move it.
    let sql = "update project_moves set step = 'failed', finished_at = $2, updated_at = $2,
                      error = 'the project was rebuilt on another node'
               where project_id = $1 and finished_at is null";
    let ended = transaction.execute(sql, &[&project.id, &times.1]).await;
    ended.context(DOING)?;
    if project.is_new {
        return Ok(());
    }
    let sql = "insert into superseded_clusters (project_id, node, since) values ($1, $2, $3)
               on conflict (project_id, node) do update set since = excluded.since";
    let kept = transaction
        .execute(sql, &[&project.id, &from, &times.1])
        .await;
    kept.context(DOING)?;
    let sql = "delete from superseded_clusters where project_id = $1 and node = $2";
    let held = transaction.execute(sql, &[&project.id, &to]).await;
    held.context(DOING)?;
    if project.desired == "removed" {
        // It is restored when it is brought back.
        let requested = request_restore(transaction, project.id, times.1).await;
        return requested.context(DOING);
    }
    let is_active = project.desired == "active";
    request_recovery(transaction, project.id, is_active, times)
        .await
        .context(DOING)
}

/// Discards the copies that a node keeps of projects that were rebuilt elsewhere: it deletes them
/// when it starts next. Returns their number.
///
/// Errors: [`Error::NotFound`] if there is no node of this name.
pub async fn discard_copies(db: &Db, name: &str) -> Result<u64, Error> {
    let nodes = node::list(db).await?;
    let node = nodes.into_iter().find(|node| node.name == name);
    let node = node.ok_or(Error::NotFound)?;
    let sql = "delete from superseded_clusters where node = $1 returning project_id";
    let rows = db.query(sql, &[&node.id]).await;
    let rows = rows.context("discarding the copies of a node")?;
    Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
}
