//! The rows of nodes.

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::platform::{
    db::Db,
    error::{Context, Error},
};

/// Largest number of nodes of an installation.
pub const NODES_MAX: i64 = 1000;

/// A node that was not removed.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// Id of the data folder.
    pub id: Uuid,
    /// Name, unique among the nodes.
    pub name: String,
    /// Region of its projects. `None`: any.
    pub region: Option<String>,
    /// Host and port of its fleet port. `None`: other nodes cannot reach it.
    pub address: Option<String>,
    /// Whether a server runs it and new projects are placed on it.
    pub state: NodeState,
    /// When the server stopped to renew its lease, if it is down.
    pub down_since: Option<DateTime<Utc>>,
    /// Version of Gantry.
    pub version: String,
    /// Major versions of PostgreSQL for new projects.
    pub engines: Vec<i32>,
    /// Memory of the machine.
    pub memory_bytes: i64,
    /// Memory of a project of the smallest size. `None`: projects are not bounded.
    #[serde(skip)]
    pub project_bytes: Option<i64>,
    /// Free space for clusters, if known.
    pub disk_free_bytes: Option<i64>,
    /// Projects and branches that it holds.
    pub projects: i64,
    /// Whether it takes no new projects, also while it is down.
    #[serde(skip)]
    pub(super) is_cordoned: bool,
}

impl Node {
    /// Marks a node as running, for a process that serves it. Its lease may have expired just now,
    /// because another process of the data folder was killed.
    pub(super) fn set_running(&mut self) {
        self.state = NodeState::of(false, self.is_cordoned);
        self.down_since = None;
    }
}

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It runs its projects, and takes new ones.
    Ready,
    /// It runs its projects, and takes no new ones.
    Cordoned,
    /// No server runs it.
    Down,
}

impl NodeState {
    /// Name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Cordoned => "cordoned",
            Self::Down => "down",
        }
    }

    const fn of(is_down: bool, is_cordoned: bool) -> Self {
        match (is_down, is_cordoned) {
            (true, _) => Self::Down,
            (false, true) => Self::Cordoned,
            (false, false) => Self::Ready,
        }
    }
}

/// Lists the nodes, oldest first.
pub async fn list(db: &Db) -> Result<Vec<Node>, Error> {
    let sql = "select n.id, n.name, n.region, n.address, n.version, n.engines, n.memory_bytes,
                      n.project_bytes, n.disk_free_bytes, n.cordoned_at is not null,
                      coalesce(l.expires_at < clock_timestamp(), true), l.expires_at,
                      (select count(*) from projects p
                       where p.node = n.id and p.desired <> 'removed')
               from nodes n left join node_leases l on l.node = n.id
               where n.removed_at is null order by n.registered_at, n.id limit $1";
    let rows = db
        .query(sql, &[&NODES_MAX])
        .await
        .context("listing nodes")?;
    Ok(rows.iter().map(read).collect())
}

fn read(row: &Row) -> Node {
    let is_cordoned: bool = row.get(9);
    let is_down: bool = row.get(10);
    let expired_at: Option<DateTime<Utc>> = row.get(11);
    Node {
        id: row.get(0),
        name: row.get(1),
        region: row.get(2),
        address: row.get(3),
        state: NodeState::of(is_down, is_cordoned),
        down_since: expired_at.filter(|_| is_down),
        version: row.get(4),
        engines: row.get(5),
        memory_bytes: row.get(6),
        project_bytes: row.get(7),
        disk_free_bytes: row.get(8),
        projects: row.get(12),
        is_cordoned,
    }
}

/// Stops (`true`) or resumes the placement of new projects on a node.
///
/// Errors: [`Error::NotFound`] if there is no node of this name.
pub async fn set_cordoned(
    db: &Db,
    name: &str,
    cordoned: bool,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update nodes set cordoned_at = case when $2 then coalesce(cordoned_at, $3) end \
               where name = $1 and removed_at is null returning id";
    let rows = db
        .query(sql, &[&name, &cordoned, &now])
        .await
        .context("cordoning a node")?;
    rows.first().map(drop).ok_or(Error::NotFound)
}

/// Removes a node that runs no server and holds no project. Other nodes reject its certificate
/// within seconds.
///
/// Errors: [`Error::NotFound`], or [`Error::Conflict`] with the reason.
pub async fn remove(db: &Db, name: &str, now: DateTime<Utc>) -> Result<(), Error> {
    let nodes = list(db).await?;
    let node = nodes.into_iter().find(|node| node.name == name);
    let node = node.ok_or(Error::NotFound)?;
    if node.state != NodeState::Down {
        return Err(Error::Conflict(
            format!("a server runs the node {name}; stop it there, and try again 15 seconds later")
                .into(),
        ));
    }
    if node.projects > 0 {
        return Err(Error::Conflict(format!(
            "the node {name} holds {} projects and branches; delete them, or restore them on another node, first",
            node.projects
        )
        .into()));
    }
    // Conditional on the lease: the node may have been started meanwhile.
    let sql = "update nodes set removed_at = $2 where id = $1 and removed_at is null
               and not exists (select from node_leases
                               where node = $1 and expires_at > clock_timestamp())
               and not exists (select from projects where node = $1 and desired <> 'removed')
               returning id";
    let rows = db
        .query(sql, &[&node.id, &now])
        .await
        .context("removing a node")?;
    rows.first()
        .map(drop)
        .ok_or_else(|| Error::Conflict(format!("the node {name} was started meanwhile").into()))
}
