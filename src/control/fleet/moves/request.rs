//! Requests for moves, and their state.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use serde::Serialize;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use crate::{
    control::fleet::{
        node::{self, Node, NodeState},
        placement::{self, NewPlacement},
    },
    platform::{
        db::{Db, Param},
        error::{Context, Error},
    },
};

const DOING: &str = "requesting the move of a project";
const LISTING: &str = "listing moves";
/// Moves that are listed: all open ones, then the last ones that have ended.
const LISTED_MAX: i64 = 100;

/// Step of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveStep {
    /// The earlier node makes a base backup.
    BackingUp,
    /// The new node writes the files of the backup.
    Copying,
    /// The earlier node stops the project and archives the end of its log.
    HandingOver,
    /// The new node restores and starts the project.
    Restoring,
    /// The project runs on the new node.
    Done,
    /// It could not be moved, and stays on the earlier node.
    Failed,
    /// An operator cancelled it.
    Cancelled,
}

impl MoveStep {
    const ALL: [Self; 7] = [
        Self::BackingUp,
        Self::Copying,
        Self::HandingOver,
        Self::Restoring,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Name in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BackingUp => "backing_up",
            Self::Copying => "copying",
            Self::HandingOver => "handing_over",
            Self::Restoring => "restoring",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }

    pub(super) fn read(name: &str) -> Result<Self, String> {
        let step = Self::ALL.into_iter().find(|step| step.name() == name);
        step.ok_or_else(|| name.to_owned())
    }
}

/// A move of a project.
#[derive(Debug, Clone, Serialize)]
pub struct ProjectMove {
    /// Its number.
    pub id: i64,
    /// Ref of the project.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Name of the earlier node.
    pub from: String,
    /// Name of the new node.
    pub to: String,
    /// Its step.
    pub step: MoveStep,
    /// Whether the project is paused. The new node restores it when it is resumed, and the earlier
    /// one keeps its copy until then.
    pub paused: bool,
    /// When it was requested.
    pub requested_at: DateTime<Utc>,
    /// When the step began, or failed last.
    pub updated_at: DateTime<Utc>,
    /// Why the last attempt at the step failed.
    pub error: Option<String>,
}

/// A move that begins.
#[derive(Debug, Clone, Serialize)]
pub struct RequestedMove {
    /// Its number.
    pub id: i64,
    /// Ref of the project.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Name of the new node.
    pub to: String,
}

/// The moves by which a node is drained.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Drain {
    /// Moves that begin now.
    pub requested: Vec<RequestedMove>,
    /// Projects that stay, with the reason.
    pub staying: Vec<(String, String)>,
}

/// A project that can be moved.
struct MovableProject {
    id: i64,
    reference: String,
    node: Uuid,
    /// The project that it is a branch of, with its node, also if it moves there now.
    parent: Option<(i64, Uuid)>,
    is_moving: bool,
    placement: NewPlacement,
}

/// Requests the move of a project and its branches to a node.
///
/// Errors: [`Error::Missing`] if there is no such project; [`Error::Invalid`] if the node cannot
/// take it; [`Error::Conflict`] if the project is being moved, or has to follow another one.
pub async fn request(
    db: &Db,
    reference: &ProjectRef,
    to: &str,
    now: DateTime<Utc>,
) -> Result<Vec<RequestedMove>, Error> {
    let nodes = node::list(db).await?;
    let target = nodes.iter().find(|node| node.name == to);
    let target = target.filter(|node| node.state == NodeState::Ready);
    let target = target.ok_or_else(|| {
        let text =
            format!("{to} is no node that takes projects; `gantry node list` shows the nodes");
        Error::invalid("to", text)
    })?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(DOING)?;
    let family = family(&transaction, reference).await?;
    let first = family
        .first()
        .ok_or(Error::Missing("there is no such project"))?;
    check_source(&nodes, first.node)?;
    if let Some((_, node)) = first.parent
        && node != target.id
    {
        let text = "a branch lies on the node of its project: move that one";
        return Err(Error::Conflict(text.into()));
    }
    let mut requested = Vec::new();
    for project in &family {
        if project.node == target.id {
            continue;
        }
        if project.is_moving {
            let text = format!("{} is being moved already", project.reference);
            return Err(Error::Conflict(text.into()));
        }
        let major = project.placement.major;
        if !target.engines.contains(&i32::from(major)) {
            let text = format!("{to} has no PostgreSQL {major}");
            return Err(Error::invalid("to", text));
        }
        requested.push(insert(&transaction, project, target, now).await?);
    }
    if requested.is_empty() {
        return Err(Error::Conflict(
            format!("{to} holds the project already").into(),
        ));
    }
    transaction.commit().await.context(DOING)?;
    Ok(requested)
}

/// Stops the placement of projects on a node, and requests the moves of all that it holds. Can be
/// repeated.
///
/// Errors: [`Error::NotFound`] if there is no node of this name; [`Error::Conflict`] if no server
/// runs it.
pub async fn drain(db: &Db, name: &str, now: DateTime<Utc>) -> Result<Drain, Error> {
    node::set_cordoned(db, name, true, now).await?;
    let nodes = node::list(db).await?;
    let drained = nodes.iter().find(|node| node.name == name);
    let drained = drained.ok_or(Error::NotFound)?;
    check_source(&nodes, drained.id)?;
    let takes = |node: &&Node| node.id != drained.id && node.state == NodeState::Ready;
    let targets: Vec<Node> = nodes.iter().filter(takes).cloned().collect();
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(DOING)?;
    let mut drain = Drain::default();
    let mut chosen: HashMap<i64, Uuid> = HashMap::new();
    for project in on_node(&transaction, drained.id).await? {
        if project.is_moving {
            continue;
        }
        let beside = project.parent.map(|(parent, node)| {
            let chosen = chosen.get(&parent).copied();
            chosen.unwrap_or(node)
        });
        let placed = match beside {
            Some(node) => Ok(node),
            None => placement::among(&transaction, &targets, project.placement, drained.id).await,
        };
        let target = placed.and_then(|node| {
            let target = targets.iter().find(|target| target.id == node);
            target.ok_or_else(|| Error::Conflict("its project stays".into()))
        });
        match target {
            Ok(target) => {
                chosen.insert(project.id, target.id);
                let requested = insert(&transaction, &project, target, now).await?;
                drain.requested.push(requested);
            }
            Err(Error::Invalid { .. }) => {
                let NewPlacement { region, major, .. } = project.placement;
                let region = region.code();
                let reason =
                    format!("no other node is ready for region {region} and PostgreSQL {major}");
                drain.staying.push((project.reference, reason));
            }
            Err(error @ Error::Conflict(_)) => {
                drain.staying.push((project.reference, error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    transaction.commit().await.context(DOING)?;
    Ok(drain)
}

/// A project is moved by the node that holds it.
fn check_source(nodes: &[Node], id: Uuid) -> Result<(), Error> {
    let source = nodes.iter().find(|node| node.id == id);
    match source {
        Some(node) if node.state == NodeState::Down => Err(Error::Conflict(
            format!(
                "the node {name} is down: start it, or run `gantry node rebuild {name} --fenced` if it is lost",
                name = node.name
            )
            .into(),
        )),
        Some(_) => Ok(()),
        None => Err(Error::Conflict(
            "the node of the project was removed".into(),
        )),
    }
}

macro_rules! movable {
    ($condition:literal) => {
        concat!(
            "select p.id, p.ref, p.node, b.parent_id, coalesce(n.to_node, o.node),
                    exists (select from project_moves m
                            where m.project_id = p.id and m.finished_at is null),
                    p.organization_id, p.region, p.engine, p.instance_size
             from projects p
                  left join branches b on b.project_id = p.id and not b.is_default
                  left join projects o on o.id = b.parent_id
                  left join project_moves n on n.project_id = o.id and n.finished_at is null
             where p.desired <> 'removed' and ",
            $condition,
            " order by b.project_id is not null, p.id for update of p"
        )
    };
}

/// Returns a project, followed by its branches.
async fn family(
    transaction: &Transaction<'_>,
    reference: &ProjectRef,
) -> Result<Vec<MovableProject>, Error> {
    let sql =
        movable!("(p.ref = $1 or b.parent_id = (select q.id from projects q where q.ref = $1))");
    let rows = transaction.query(sql, &[&reference.as_str()]).await;
    let mut family: Vec<MovableProject> = rows
        .context(DOING)?
        .iter()
        .map(read)
        .collect::<Result<_, _>>()?;
    // A branch may have a smaller number than the project that it is moved with.
    family.sort_by_key(|project| project.reference != reference.as_str());
    Ok(family)
}

/// Returns the projects of a node, branches last.
async fn on_node(transaction: &Transaction<'_>, node: Uuid) -> Result<Vec<MovableProject>, Error> {
    let rows = transaction.query(movable!("p.node = $1"), &[&node]).await;
    rows.context(DOING)?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<MovableProject, Error> {
    let parent: Option<i64> = row.get(3);
    Ok(MovableProject {
        id: row.get(0),
        reference: row.get(1),
        node: row.get(2),
        parent: parent.zip(row.get(4)),
        is_moving: row.get(5),
        placement: NewPlacement::read(row, 6)?,
    })
}

async fn insert(
    transaction: &Transaction<'_>,
    project: &MovableProject,
    to: &Node,
    now: DateTime<Utc>,
) -> Result<RequestedMove, Error> {
    let sql = "insert into project_moves (project_id, from_node, to_node, requested_at, updated_at)
               values ($1, $2, $3, $4, $4) returning id";
    let params: [Param<'_>; 4] = [&project.id, &project.node, &to.id, &now];
    let row = transaction.query_one(sql, &params).await.context(DOING)?;
    Ok(RequestedMove {
        id: row.get(0),
        reference: project.reference.clone(),
        to: to.name.clone(),
    })
}

/// Cancels the move of a project that has not been handed over.
///
/// Errors: [`Error::Conflict`] if there is none.
pub async fn cancel(db: &Db, reference: &ProjectRef, now: DateTime<Utc>) -> Result<(), Error> {
    let sql = "update project_moves m set step = 'cancelled', finished_at = $2, updated_at = $2
               from projects p
               where p.id = m.project_id and p.ref = $1
                 and m.step in ('backing_up', 'copying', 'handing_over') returning m.id";
    let rows = db.query(sql, &[&reference.as_str(), &now]).await;
    if rows.context("cancelling a move")?.is_empty() {
        let text = format!("{reference} has no move that can be cancelled");
        return Err(Error::Conflict(text.into()));
    }
    Ok(())
}

macro_rules! moves {
    ($rest:literal) => {
        concat!(
            "select m.id, p.ref, coalesce(f.name, m.from_node::text),
                    coalesce(t.name, m.to_node::text), m.step, p.status = 'INACTIVE',
                    m.requested_at, m.updated_at, m.error
             from project_moves m join projects p on p.id = m.project_id
                  left join nodes f on f.id = m.from_node
                  left join nodes t on t.id = m.to_node ",
            $rest
        )
    };
}

/// Lists the open moves, then the last ones that have ended.
pub async fn list(db: &Db) -> Result<Vec<ProjectMove>, Error> {
    let sql = moves!("order by m.finished_at is not null, m.id desc limit $1");
    let rows = db.query(sql, &[&LISTED_MAX]).await;
    read_moves(&rows.context(LISTING)?)
}

/// Returns the moves with these numbers, oldest first.
pub async fn find(db: &Db, ids: &[i64]) -> Result<Vec<ProjectMove>, Error> {
    let sql = moves!("where m.id = any($1) order by m.id");
    let rows = db.query(sql, &[&ids]).await;
    read_moves(&rows.context(LISTING)?)
}

/// Returns the numbers of the open moves from a node.
pub async fn open_from(db: &Db, name: &str) -> Result<Vec<i64>, Error> {
    let sql = "select m.id from project_moves m join nodes n on n.id = m.from_node
               where n.name = $1 and n.removed_at is null and m.finished_at is null";
    let rows = db.query(sql, &[&name]).await;
    Ok(rows
        .context(LISTING)?
        .iter()
        .map(|row| row.get(0))
        .collect())
}

fn read_moves(rows: &[Row]) -> Result<Vec<ProjectMove>, Error> {
    let moves = rows.iter().map(|row| {
        Ok(ProjectMove {
            id: row.get(0),
            reference: row.get(1),
            from: row.get(2),
            to: row.get(3),
            step: MoveStep::read(row.get(4)).context(LISTING)?,
            paused: row.get(5),
            requested_at: row.get(6),
            updated_at: row.get(7),
            error: row.get(8),
        })
    });
    moves.collect()
}
