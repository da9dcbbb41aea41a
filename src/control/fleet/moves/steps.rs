//! The steps of a move.

use std::{fs, io};

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrganizationId, ProjectId};
use gantry_node::clusters::ClusterSpec;
use tokio_postgres::Row;

use super::request::MoveStep;
use crate::{
    control::{
        backups::{BackupError, prepared, upkeep},
        context::ControlContext,
        projects::{
            self, Status,
            reconciler::{hand_over::HandOver, plan::uid},
            status_events::StatusUpdate,
        },
    },
    platform::{
        access::Project,
        db::Param,
        error::{Context, Error},
    },
};

const DOING: &str = "moving a project";
/// Open moves of a node that are read.
const OPEN_MAX: i64 = 256;

/// A move that has not ended, from or to this node.
#[derive(Debug)]
pub(super) struct OpenMove {
    id: i64,
    pub(super) project: Project,
    cluster: ClusterSpec,
    pub(super) step: MoveStep,
    /// Whether the project moves to this node.
    pub(super) is_arriving: bool,
    status: Status,
    generation: i64,
    base: Option<i64>,
    /// State of the base backup.
    base_status: Option<String>,
    requested_at: DateTime<Utc>,
    /// Whether the new node has restored the cluster.
    is_restored: bool,
    /// Whether this node has to keep its copy.
    has_copy: bool,
}

/// Reads the open moves from and to this node, oldest first.
pub(super) async fn open(context: &ControlContext) -> Result<Vec<OpenMove>, Error> {
    let sql = "select m.id, m.project_id, p.ref, p.organization_id, m.step, m.to_node = $1,
                      p.status, p.generation, p.account, p.engine, m.base_id, b.status,
                      m.requested_at,
                      not exists (select from restores r
                                  where r.project_id = p.id and r.finished_at is null),
                      exists (select from superseded_clusters s
                              where s.project_id = p.id and s.node = m.from_node)
               from project_moves m join projects p on p.id = m.project_id
                    left join base_backups b on b.id = m.base_id
               where m.finished_at is null and $1 in (m.from_node, m.to_node)
               order by m.id limit $2";
    let params: [Param<'_>; 2] = [&context.settings.node, &OPEN_MAX];
    let rows = context.db.query(sql, &params).await;
    let rows = rows.context("reading moves of projects")?;
    rows.iter().map(|row| read(context, row)).collect()
}

fn read(context: &ControlContext, row: &Row) -> Result<OpenMove, Error> {
    let id = ProjectId(row.get(1));
    let reference = row.get::<_, &str>(2).parse();
    let project = Project {
        id,
        reference: reference.context(DOING)?,
        organization: OrganizationId(row.get(3)),
    };
    let major = projects::major(row.get(9)).ok_or("no version");
    let cluster = ClusterSpec {
        project: project.reference.clone(),
        uid: uid(context, row.get::<_, Option<i64>>(8).unwrap_or(id.0))?,
        major: major.context(DOING)?,
    };
    Ok(OpenMove {
        id: row.get(0),
        project,
        cluster,
        step: MoveStep::read(row.get(4)).context(DOING)?,
        is_arriving: row.get(5),
        status: Status::read(row, 6)?,
        generation: row.get(7),
        base: row.get(10),
        base_status: row.get(11),
        requested_at: row.get(12),
        is_restored: row.get(13),
        has_copy: row.get(14),
    })
}

impl OpenMove {
    /// Carries out the step, if it is work of this node and can be done now. Returns whether the
    /// move has another step afterwards.
    pub(super) async fn carry_out(&self, context: &ControlContext) -> Result<bool, Error> {
        context.lease.check()?;
        match (self.step, self.is_arriving) {
            (MoveStep::BackingUp, false) => self.back_up(context).await,
            (MoveStep::Copying, true) => self.copy(context).await,
            (MoveStep::HandingOver, false) => self.hand_over(context).await,
            (MoveStep::Restoring, false) => self.clean_up(context).await,
            _ => Ok(false),
        }
    }

    async fn back_up(&self, context: &ControlContext) -> Result<bool, Error> {
        if has_files_of_storage(context, self)? {
            let reason = "Storage keeps files of the project in the data folder of this node, which moves do not copy";
            return self.fail(context, reason).await;
        }
        if !matches!(self.status, Status::ActiveHealthy | Status::Inactive) {
            return Ok(false);
        }
        match self.base_status.as_deref() {
            Some("COMPLETED") => return self.proceed(context, MoveStep::Copying).await,
            // Its log is shipped soon.
            Some("PENDING") => return Ok(false),
            _ => {}
        }
        let made = upkeep::back_up_now(context, &self.project.reference).await;
        let base = match made {
            Ok(base) => base,
            Err(BackupError::Unconfigured) => {
                let reason = "backups are switched off, and projects are moved by their backups";
                return self.fail(context, reason).await;
            }
            Err(error) => return Err(error).context("backing up a project before its move"),
        };
        let Some(base) = base else {
            return Ok(false);
        };
        let sql = "update project_moves set base_id = $2, error = null where id = $1 and step = $3";
        let step = self.step.name();
        let noted = context.db.query(sql, &[&self.id, &base, &step]).await;
        noted.context(DOING).map(|_| true)
    }

    async fn copy(&self, context: &ControlContext) -> Result<bool, Error> {
        let Some(base) = self.base else {
            return self.proceed(context, MoveStep::BackingUp).await;
        };
        match prepared::prepare(context, self.project.id, &self.cluster, base).await {
            Ok(()) => self.proceed(context, MoveStep::HandingOver).await,
            Err(error) if error.is_permanent() => self.fail(context, &error.to_string()).await,
            Err(error) => Err(error).context("copying a project"),
        }
    }

    async fn hand_over(&self, context: &ControlContext) -> Result<bool, Error> {
        match self.status {
            // The reconciler stops the server as for a restart, so that clients wait.
            Status::ActiveHealthy => {
                let sql = "update projects set status = 'RESTARTING', asleep = false,
                                  generation = generation + 1, attempts = 0, not_before = $3,
                                  updated_at = $3
                           where id = $1 and node = $5 and generation = $2
                             and status = 'ACTIVE_HEALTHY'
                             and exists (select from node_leases l
                                         where l.node = projects.node and l.generation = $4)";
                let lease = context.lease.check()?;
                let now = context.clock.now();
                let own = context.settings.node;
                let params: [Param<'_>; 5] =
                    [&self.project.id.0, &self.generation, &now, &lease, &own];
                let update = StatusUpdate {
                    project: self.project.id,
                    sql,
                    params: &params,
                    doing: DOING,
                };
                update.execute(context, Vec::new()).await?;
                context.reconciler.notify();
                Ok(false)
            }
            Status::Inactive => {
                let Some(_hold) = context.reconciler.hold(self.project.id) else {
                    return Ok(false);
                };
                let hand_over = HandOver {
                    project: self.project.id,
                    cluster: &self.cluster,
                    generation: self.generation,
                    is_active: false,
                };
                hand_over.carry_out(context).await
            }
            _ => Ok(false),
        }
    }

    /// Removes the copy of this node, once the other one has restored the cluster.
    async fn clean_up(&self, context: &ControlContext) -> Result<bool, Error> {
        if self.has_copy {
            if !self.is_restored {
                return Ok(false);
            }
            let removed = context.driver.remove(&self.project.reference).await;
            removed.context("removing the cluster of a project that was moved")?;
            context.reconciler.trash_filled();
            let functions = context.home.functions();
            let functions = functions.join(self.project.reference.as_str());
            let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(functions)).await;
            match removed.context(DOING)? {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).context("removing functions of a project that was moved");
                }
                _ => {}
            }
            let sql = "delete from superseded_clusters where project_id = $1 and node = $2";
            let params: [Param<'_>; 2] = [&self.project.id.0, &context.settings.node];
            let forgotten = context.db.query(sql, &params).await;
            forgotten.context(DOING)?;
        }
        let took = (context.clock.now() - self.requested_at).num_milliseconds();
        tracing::info!(project = %self.project.reference, took_ms = took, "project was moved");
        self.proceed(context, MoveStep::Done).await
    }

    /// Records that another step follows. Returns false if the move was cancelled meanwhile.
    async fn proceed(&self, context: &ControlContext, next: MoveStep) -> Result<bool, Error> {
        let now = context.clock.now();
        let finished_at = next.is_end().then_some(now);
        let sql =
            "update project_moves set step = $3, updated_at = $4, finished_at = $5, error = null
                   where id = $1 and step = $2 returning id";
        let params: [Param<'_>; 5] = [
            &self.id,
            &self.step.name(),
            &next.name(),
            &now,
            &finished_at,
        ];
        let rows = context.db.query(sql, &params).await;
        Ok(!rows.context(DOING)?.is_empty())
    }

    /// Ends the move. The project stays where it is.
    async fn fail(&self, context: &ControlContext, reason: &str) -> Result<bool, Error> {
        tracing::warn!(project = %self.project.reference, reason, "project was not moved");
        let now = context.clock.now();
        let sql = "update project_moves set step = 'failed', error = $3, updated_at = $4, finished_at = $4
                   where id = $1 and step = $2";
        let params: [Param<'_>; 4] = [&self.id, &self.step.name(), &reason, &now];
        let ended = context.db.query(sql, &params).await;
        ended.context(DOING).map(|_| false)
    }

    /// Records why an attempt failed.
    pub(super) async fn note(&self, context: &ControlContext, problem: &str) {
        let now = context.clock.now();
        let sql = "update project_moves set error = $3, updated_at = $4 where id = $1 and step = $2 and error is distinct from $3";
        let params: [Param<'_>; 4] = [&self.id, &self.step.name(), &problem, &now];
        if let Err(error) = context.db.query(sql, &params).await {
            tracing::warn!(%error, "the problem of a move could not be recorded");
        }
    }
}

/// Returns whether the Storage of a project has files on this node.
fn has_files_of_storage(context: &ControlContext, open: &OpenMove) -> Result<bool, Error> {
    let folder = context.home.storage().join(open.project.reference.as_str());
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("looking for files of Storage"),
    }
}
