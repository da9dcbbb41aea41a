//! Hands the cluster of a project over to another node: the last step of a move on the node that
//! holds the project.
//!
//! The server is stopped, its log is archived to the end, and the row goes to the other node, which
//! restores the cluster from the archive. Each step can be repeated. Up to the change of the row,
//! the project starts again here if one of them fails.

use gantry_base::ids::ProjectId;
use gantry_node::clusters::ClusterSpec;
use uuid::Uuid;

use super::plan::timed;
use crate::{
    control::{
        backups::{recover, settle},
        context::ControlContext,
        installation,
        metrics::Step,
        projects::status_events,
    },
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

const DOING: &str = "handing a project over to another node";

/// Deployments of the functions of project `$1`.
const DEPLOYMENTS: &str = "select v.deployment from function_versions v
    join functions f on f.id = v.function_id where f.project_id = $1 order by v.deployment";
/// Attempts to store the sources while functions are deployed.
const DEPLOYMENTS_MAX: u32 = 3;

/// The outcome of the change of the row.
enum Switched {
    /// The row changed, or the desired state did.
    Done,
    /// An operator cancelled the move.
    Cancelled,
    /// A function was deployed after the sources were stored.
    Deployed,
}

/// A cluster that is handed over. The caller holds the project.
#[derive(Debug, Clone, Copy)]
pub(in crate::control) struct HandOver<'a> {
    pub(in crate::control) project: ProjectId,
    pub(in crate::control) cluster: &'a ClusterSpec,
    /// Generation of the desired state.
    pub(in crate::control) generation: i64,
    /// Whether the project runs.
    pub(in crate::control) is_active: bool,
}

impl HandOver<'_> {
    /// Carries out the last step of a move, if the project has one that waits for it. Returns
    /// whether another node holds the project now.
    pub(in crate::control) async fn carry_out(
        self,
        context: &ControlContext,
    ) -> Result<bool, Error> {
        let Some(open) = WaitingMove::of(context, self.project).await? else {
            return Ok(false);
        };
        if let Some(reason) = self.close(context, &open).await? {
            open.fail(context, &reason).await?;
            return Ok(false);
        }
        for _ in 0..DEPLOYMENTS_MAX {
            let sources = match self.keep_sources(context).await? {
                Ok(sources) => sources,
                Err(reason) => {
                    open.fail(context, &reason).await?;
                    return Ok(false);
                }
            };
            match self.switch(context, &open, &sources).await? {
                Switched::Done => return Ok(true),
                Switched::Cancelled => return Ok(false),
                Switched::Deployed => {}
            }
        }
        let reason = "functions are being deployed all the time; try again";
        open.fail(context, reason).await?;
        Ok(false)
    }

    /// Stops the cluster, and stores what the other node needs. Returns why it cannot be moved.
    async fn close(
        self,
        context: &ControlContext,
        open: &WaitingMove,
    ) -> Result<Option<String>, Error> {
        if !open.is_target_up {
            return Ok(Some("the new node is down".to_owned()));
        }
        let stop = context.driver.stop(&self.cluster.project);
        timed(context, Step::Stop, stop).await?;
        if !settle::archive_end(context, self.project, self.cluster).await {
            let reason = "the end of the write-ahead log could not be archived";
            return Ok(Some(reason.to_owned()));
        }
        Ok(None)
    }

    /// Stores the sources of the project's functions. Returns their deployments, or why they could
    /// not be stored.
    async fn keep_sources(
        self,
        context: &ControlContext,
    ) -> Result<Result<Vec<Uuid>, String>, Error> {
        let rows = context.db.query(DEPLOYMENTS, &[&self.project.0]).await;
        let deployments: Vec<Uuid> = rows.context(DOING)?.iter().map(|row| row.get(0)).collect();
        if deployments.is_empty() {
            return Ok(Ok(deployments));
        }
        let kept = installation::keep_now(context).await;
        let kept = kept.map(|()| deployments);
        Ok(kept.map_err(|error| format!("sources of functions could not be stored: {error}")))
    }

    /// Gives the row to the other node, together with the request to restore its cluster.
    async fn switch(
        self,
        context: &ControlContext,
        open: &WaitingMove,
        sources: &[Uuid],
    ) -> Result<Switched, Error> {
        let lease = context.lease.check()?;
        let now = context.clock.now();
        let mut client = context.db.client().await?;
        let transaction = client.transaction().await.context(DOING)?;
        let sql = "update project_moves set step = 'restoring', updated_at = $2, error = null
                   where id = $1 and step = 'handing_over'";
        let begun = transaction.execute(sql, &[&open.id, &now]).await;
        if begun.context(DOING)? == 0 {
            return Ok(Switched::Cancelled);
        }
        // The cluster of this node is named before the node of the row changes: at no moment is it
        // garbage.
        let sql = "insert into superseded_clusters (project_id, node, since) values ($1, $2, $3)
                   on conflict (project_id, node) do update set since = excluded.since";
        let own = context.settings.node;
        let kept = transaction
            .execute(sql, &[&self.project.0, &own, &now])
            .await;
        kept.context(DOING)?;
        let sql = "delete from superseded_clusters where project_id = $1 and node = $2";
        let held = transaction.execute(sql, &[&self.project.0, &open.to]).await;
        held.context(DOING)?;
        let sql = fenced!("update projects set node = $4 where ");
        let moved = transaction
            .execute(sql, &[&self.project.0, &self.generation, &lease, &open.to])
            .await;
        if moved.context(DOING)? == 0 {
            // The desired state changed: it is read again, and the move continues.
            return Ok(Switched::Done);
        }
        // Deployments lock the row.
        let rows = transaction.query(DEPLOYMENTS, &[&self.project.0]).await;
        let deployments: Vec<Uuid> = rows.context(DOING)?.iter().map(|row| row.get(0)).collect();
        if deployments != sources {
            return Ok(Switched::Deployed);
        }
        let project = self.project.0;
        recover::request_recovery(&transaction, project, self.is_active, (now, now))
            .await
            .context(DOING)?;
        recover::continue_log(&transaction, project)
            .await
            .context(DOING)?;
        let events = status_events::changed(&transaction, &[self.project]).await?;
        status_events::append(context, &transaction, &events).await?;
        transaction.commit().await.context(DOING)?;
        context.table_changed(Table::Projects);
        context.table_changed(Table::ProjectMoves);
        tracing::info!(project = %self.cluster.project, to = %open.to, "project handed over to another node");
        Ok(Switched::Done)
    }
}

/// A move that waits until the project is handed over.
struct WaitingMove {
    id: i64,
    to: Uuid,
    is_target_up: bool,
}

impl WaitingMove {
    async fn of(context: &ControlContext, project: ProjectId) -> Result<Option<Self>, Error> {
        let sql = "select m.id, m.to_node,
                          exists (select from node_leases l where l.node = m.to_node
                                  and l.expires_at > clock_timestamp())
                   from project_moves m
                   where m.project_id = $1 and m.step = 'handing_over' and m.from_node = $2";
        let own = context.settings.node;
        let rows = context.db.query(sql, &[&project.0, &own]).await;
        let rows = rows.context(DOING)?;
        Ok(rows.first().map(|row| Self {
            id: row.get(0),
            to: row.get(1),
            is_target_up: row.get(2),
        }))
    }

    /// Ends the move. The project stays.
    async fn fail(&self, context: &ControlContext, reason: &str) -> Result<(), Error> {
        tracing::warn!(reason, "project was not moved; it stays on this node");
        let now = context.clock.now();
        let sql = "update project_moves set step = 'failed', error = $2, updated_at = $3, finished_at = $3
                   where id = $1 and step = 'handing_over'";
        let ended = context.db.query(sql, &[&self.id, &reason, &now]).await;
        ended.context(DOING).map(drop)
    }
}
