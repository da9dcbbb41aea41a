//! The nodes that hold projects.

use gantry_base::ids::ProjectId;
use uuid::Uuid;

use super::node::{Node, NodeState};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Returns the node that holds a project, if that is another one.
///
/// Without other nodes this costs one read of memory.
pub(super) async fn other_holder(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Option<Node>, Error> {
    let own = context.settings.node;
    if context.fleet.is_alone(own) {
        return Ok(None);
    }
    let holder = holder(context, project).await?;
    let nodes = context.fleet.nodes();
    let other = nodes
        .iter()
        .find(|node| node.id != own && Some(node.id) == holder);
    Ok(other.cloned())
}

/// Returns the node that holds a project, if that is another one, which runs and can be reached.
pub(super) async fn reachable_holder(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Option<Node>, Error> {
    let other = other_holder(context, project).await?;
    Ok(other.filter(|node| node.state != NodeState::Down && node.address.is_some()))
}

/// Returns why a project cannot be reached from this node, if another one holds it. A request about
/// such a project is answered here only if the other node cannot be reached.
pub async fn unreachable_holder(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Option<String>, Error> {
    let other = other_holder(context, project).await?;
    Ok(other.map(|node| {
        let name = node.name;
        match (node.down_since, node.address) {
            (Some(since), _) => format!(
                "the node {name} holds the project, and is down since {}",
                since.format("%Y-%m-%d %H:%M:%S UTC")
            ),
            (None, None) => {
                format!("the node {name} holds the project, and has no fleet port (--fleet-listen)")
            }
            (None, Some(address)) => {
                format!("the node {name} holds the project, and cannot be reached at {address}")
            }
        }
    }))
}

async fn holder(context: &ControlContext, project: ProjectId) -> Result<Option<Uuid>, Error> {
    let holders = &context.fleet.holders;
    let now = context.clock.ticks();
    if let Some(node) = holders.get(&project, now) {
        return Ok(Some(node));
    }
    let epoch = holders.epoch();
    let sql = "select node from projects where id = $1";
    let rows = context.db.query(sql, &[&project.0]).await;
    let rows = rows.context("finding the node of a project")?;
    let node: Option<Uuid> = rows.first().map(|row| row.get(0));
    if let Some(node) = node {
        holders.put(project, node, now, epoch);
    }
    Ok(node)
}
