//! Moves of projects to other nodes, while they run.
//!
//! | Step | Node | Work |
//! |---|---|---|
//! | `backing_up` | earlier | makes a base backup, so that little of the log remains |
//! | `copying` | new | writes the files of that backup |
//! | `handing_over` | earlier | stops the server, archives the log to its end, gives the row away |
//! | `restoring` | new, then earlier | restores the cluster; the earlier node removes its copy |
//!
//! The project is stopped only for the last two. Every step is a change of a row, and is repeated
//! after a crash. Up to the end of `handing_over`, a failure leaves the project where it is.

mod request;
mod steps;

use std::{collections::HashSet, time::Duration};

use gantry_base::ids::ProjectId;
use tokio::{task::JoinSet, time::timeout};

pub use self::request::{
    Drain, MoveStep, ProjectMove, RequestedMove, cancel, drain, find, list, open_from, request,
};
use self::steps::OpenMove;
use crate::{
    control::{backups::prepared, context::ControlContext},
    platform::{error::Error, tables::Table},
};

/// Moves of this node that are worked on at the same time.
const AT_ONCE: usize = 2;
/// Pause before steps that failed, or wait for something that is not announced, are tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Carries out the steps of moves that are work of this node. Runs until dropped.
pub async fn run(context: ControlContext) {
    let mut changes = context.reconciler.changes();
    loop {
        // After a time without changes, steps that failed are tried again.
        let _ = timeout(RETRY, changes.changed()).await;
        if context.fleet.is_alone(context.settings.node) || !context.lease.leads() {
            continue;
        }
        if let Err(error) = round(&context).await {
            tracing::warn!(%error, "moves of projects could not be read; retrying");
        }
    }
}

/// Carries out the steps that are due, one of each move.
///
/// Errors: only those of the control database; a failed step is recorded in its row.
pub async fn round(context: &ControlContext) -> Result<(), Error> {
    let open = steps::open(context).await?;
    let arriving: Vec<ProjectId> = open
        .iter()
        .filter(|open| open.is_arriving)
        .map(|open| open.project.id)
        .collect();
    prepared::retain(context, &arriving);
    let mut tasks = JoinSet::new();
    let mut started: HashSet<ProjectId> = HashSet::new();
    for open in open {
        if tasks.len() >= AT_ONCE {
            tasks.join_next().await;
        }
        if started.insert(open.project.id) {
            tasks.spawn(carry_out(context.clone(), open));
        }
    }
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn carry_out(context: ControlContext, open: OpenMove) {
    match open.carry_out(&context).await {
        Ok(true) => {
            // The next step may be work of this node as well.
            context.table_changed(Table::ProjectMoves);
            context.reconciler.notify();
        }
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(project = %open.project.reference, step = open.step.name(), %error, "step of a move failed; retrying");
            open.note(&context, &error.to_string()).await;
        }
    }
}
