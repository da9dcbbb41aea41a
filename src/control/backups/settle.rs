//! Restores of projects, carried out by the reconciler.
//!
//! A restore is a row. Its steps leave folders with its number in their names, so that an
//! interrupted one continues: the recovered cluster in `restored/`, then the earlier one in
//! `replaced/`. A restore that cannot succeed ends with an error, and the project keeps its
//! cluster.

use chrono::TimeDelta;
use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef};
use gantry_node::{
    clusters::{ArchiveWay, ClusterSpec, RecoveredIdentity, RecoveryChecks, superuser},
    error::ClusterError,
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    archive::{self, Continuation},
    archive_row::Fork,
    backup_events,
    error::BackupError,
    manifest::Manifest,
    moment::Moment,
    restore::{self, BuildOptions, Restored},
    state::WatchedProject,
    store::ProjectStore,
    target::moment_in,
    wal::Lsn,
    window::{BackupCatalog, RecoveryPlan},
};
use crate::{
    control::{
        api_keys, context::ControlContext, database_session,
        installation::project_files::restore_sources, projects::upgrades,
    },
    platform::{
        access::Project,
        db::Param,
        error::{Context, Error},
    },
};

/// Replaced clusters of a project that are kept. Earlier ones are restored from the store.
const REPLACED_MAX: i64 = 2;

/// A restore that has not ended.
#[derive(Debug)]
pub(crate) struct OpenRestore {
    id: i64,
    moment: Moment,
    archive: Option<i64>,
    reuse_of: Option<i64>,
    /// Whether the project has no cluster, after a recovery of the installation: such a restore is
    /// tried until it succeeds.
    recovers: bool,
    /// Whether the lost cluster was stopped, and its log is in the store to its end.
    continues: bool,
    /// Verifier of the password, read before the exchange.
    pub(crate) verifier: Option<String>,
    /// Another project, if the restored backups are its own. The project then has no cluster
    /// before, and cannot keep one instead.
    source: Option<Project>,
}

/// Name of the folders of a restore.
pub(crate) fn folder_name(project: &ProjectRef, restore: i64) -> String {
    format!("{project}-{restore}")
}

impl OpenRestore {
    /// Reads the restore of a project that has not ended.
    pub(crate) async fn of(
        context: &ControlContext,
        project: ProjectId,
    ) -> Result<Option<Self>, Error> {
        let sql = "select r.id, r.target_time, r.target_lsn, r.archive_id, r.reuse_of, r.verifier, r.recovers, s.id, s.ref, s.organization_id, r.continues
                   from restores r left join projects s on s.id = r.source_id
                   where r.project_id = $1 and r.finished_at is null";
        let rows = context.db.query(sql, &[&project.0]).await;
        let rows = rows.context("reading a restore")?;
        rows.first().map(Self::read).transpose()
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let mut source = None;
        if let Some(id) = row.get::<_, Option<i64>>(7) {
            let reference = row.get::<_, &str>(8).parse();
            source = Some(Project {
                id: ProjectId(id),
                reference: reference.context("reading a project's ref")?,
                organization: OrganizationId(row.get(9)),
            });
        }
        Ok(Self {
            id: row.get(0),
            moment: moment_in(row.get(1), row.get(2)),
            archive: row.get(3),
            reuse_of: row.get(4),
            verifier: row.get(5),
            recovers: row.get(6),
            continues: row.get(10),
            source,
        })
    }

    /// Whether the restore makes the cluster of a new project.
    pub(crate) fn creates(&self) -> bool {
        self.source.is_some()
    }

    /// Builds the cluster and exchanges it with that of the project, as far as not done yet.
    /// Returns whether the project has the restored cluster.
    ///
    /// Errors: [`Error::Unprocessable`] if the cluster of a new project cannot be made, also not
    /// by another attempt.
    pub(crate) async fn carry_out(
        &mut self,
        context: &ControlContext,
        id: ProjectId,
        cluster: &ClusterSpec,
    ) -> Result<bool, Error> {
        let project = &cluster.project;
        let name = folder_name(project, self.id);
        let driver = &context.driver;
        let is_exchanged = self.continues && archive::is_continued(context, self.id).await?;
        if !is_exchanged && !driver.is_restored(&name) && !driver.is_replaced(&name) {
            if !self.creates() {
                self.keep_password(context, project).await?;
            }
            if let Err(error) = self.build(context, id, cluster, &name).await {
                if error.is_permanent() && self.creates() {
                    self.note_failure(context, &error).await?;
                    return Err(Error::Unprocessable(error.to_string().into()));
                }
                if error.is_permanent() && !self.recovers {
                    tracing::warn!(%project, %error, "restore ended; the project keeps its data");
                    self.finish(context, id, Some(&error.to_string())).await?;
                    return Ok(false);
                }
                return Err(Error::internal("restoring a project", error));
            }
        }
        if driver.is_restored(&name) {
            self.restore_sources(context, (id, project)).await?;
            // The last commits of the earlier cluster are archived, too.
            driver.stop(project).await.context("stopping a cluster")?;
            // Of an interrupted exchange, the earlier cluster is gone already.
            if !self.recovers && !self.creates() && !driver.is_replaced(&name) {
                let is_complete = archive_end(context, id, cluster).await;
                self.note_replaced(context, id, is_complete).await?;
            }
            context.lease.check()?;
            let exchange = driver.exchange(project, &name);
            let exchanged = context.backups.exchange(id, exchange).await;
            exchanged.context("exchanging a cluster")?;
        }
        upgrades::record_version(context, id, driver.engine_of(project)).await?;
        self.continue_archive(context, id).await?;
        Ok(true)
    }

    /// Restores the sources of functions of a project that another node held. Those of a lost node
    /// may be missing; those of a moved project are in the store, and its earlier node deletes
    /// them afterwards.
    async fn restore_sources(
        &self,
        context: &ControlContext,
        project: (ProjectId, &ProjectRef),
    ) -> Result<(), Error> {
        if !self.recovers {
            return Ok(());
        }
        match restore_sources(context, project).await {
            Err(error) if self.continues => Err(Error::internal(
                "restoring functions of a moved project",
                error,
            )),
            Err(error) => {
                let project = project.1;
                tracing::warn!(%project, %error, "sources of functions were not restored; deploy the functions again");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Records the archive of the cluster that is about to be replaced, and whether its log is in
    /// the store to its end.
    async fn note_replaced(
        &self,
        context: &ControlContext,
        id: ProjectId,
        is_complete: bool,
    ) -> Result<(), Error> {
        let sql = "update restores set is_log_complete = $3, replaced_archive_id =
                       (select a.id from archives a where a.project_id = $2 and a.ended_at is null)
                   where id = $1";
        let params: [Param<'_>; 3] = [&self.id, &id.0, &is_complete];
        let noted = context.db.query(sql, &params).await;
        noted.context("recording a restore").map(drop)
    }

    /// Begins the archive of the new cluster before its server starts, if its log continues that of
    /// an archive. Otherwise the next look begins one.
    async fn continue_archive(&self, context: &ControlContext, id: ProjectId) -> Result<(), Error> {
        let sql = "select r.replaced_archive_id, r.is_log_complete, r.fork_archive_id, r.fork_lsn, r.fork_timeline
                   from restores r where r.id = $1 and r.fork_archive_id is not null";
        let rows = context.db.query(sql, &[&self.id]).await;
        let rows = rows.context("reading a restore")?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let continuation = Continuation {
            restore: self.id,
            replaced: row.get(0),
            is_log_complete: row.get(1),
            fork: Fork {
                parent: row.get(2),
                at: Lsn::from_column(row.get(3)),
            },
            timeline: u32::try_from(row.get::<_, i64>(4)).context("reading a restore")?,
        };
        archive::continue_from(context, id, &continuation).await
    }

    /// Records where the log of the new cluster leaves an archive, and its timeline. `None` if it
    /// does not continue one.
    async fn note_fork(
        &self,
        context: &ControlContext,
        fork: Option<(Fork, u32)>,
    ) -> Result<(), Error> {
        let sql = "update restores set fork_archive_id = $2, fork_lsn = $3, fork_timeline = $4 where id = $1";
        let params: [Param<'_>; 4] = [
            &self.id,
            &fork.map(|(fork, _)| fork.parent),
            &fork.map(|(fork, _)| fork.at.to_column()),
            &fork.map(|(_, timeline)| i64::from(timeline)),
        ];
        let noted = context.db.query(sql, &params).await;
        noted.context("recording a restore").map(drop)
    }

    /// Stores the verifier of today's password, which the restored cluster gets.
    async fn keep_password(
        &mut self,
        context: &ControlContext,
        project: &ProjectRef,
    ) -> Result<(), Error> {
        let Ok(session) = context.driver.superuser_session(project).await else {
            // A server that does not run cannot be asked; the password stays that of the backup.
            return Ok(());
        };
        let role: [&(dyn ToSql + Sync); 1] = [&database_session::OWNER];
        let row = session.query_opt(&superuser::ROLE_VERIFIER, &role).await;
        let verifier: Option<String> = match row {
            Ok(Some(row)) => row.try_get(0).unwrap_or(None),
            _ => None,
        };
        self.verifier = verifier;
        context
            .db
            .query(
                "update restores set verifier = $2 where id = $1",
                &[&self.id, &self.verifier],
            )
            .await
            .context("recording a restore")
            .map(drop)
    }

    async fn build(
        &self,
        context: &ControlContext,
        id: ProjectId,
        cluster: &ClusterSpec,
        name: &str,
    ) -> Result<(), BackupError> {
        let project = &cluster.project;
        if let Some(earlier) = self.reuse_of {
            let kept = folder_name(project, earlier);
            if context.driver.is_replaced(&kept) {
                self.note_return(context, earlier).await?;
                context.driver.reuse_replaced(&kept, name).await?;
                return Ok(());
            }
        }
        let (from, reference) = match &self.source {
            Some(source) => (source.id, &source.reference),
            None => (id, project),
        };
        let catalog = BackupCatalog::read(context, from).await?;
        let plans = catalog.plans(self.archive, self.moment);
        let mut last = BackupError::Refused("no backup reaches that moment".to_owned());
        if plans.is_empty() {
            return Err(last);
        }
        let store = archive::store_of(context, &context.backups, from, reference).await?;
        for plan in plans {
            let base = plan.base;
            let built = self.build_from(context, id, &store, &plan, cluster, name);
            match built.await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_permanent() => {
                    // Another process that took over ends the servers of this one.
                    context.lease.check()?;
                    tracing::warn!(%project, base, %error, "backup cannot be restored; trying an older one");
                    if !matches!(error, BackupError::Cluster(ClusterError::NoEngine(_))) {
                        note_damage(context, base, &error).await?;
                    }
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    async fn build_from(
        &self,
        context: &ControlContext,
        id: ProjectId,
        store: &ProjectStore,
        plan: &RecoveryPlan,
        cluster: &ClusterSpec,
        name: &str,
    ) -> Result<(), BackupError> {
        let base = plan.base;
        let mut manifest = Manifest::get(store, base).await?;
        // Before an upgrade, the project had another version, which it gets again.
        let cluster = &ClusterSpec {
            major: manifest.major,
            ..cluster.clone()
        };
        if self.creates() {
            // Its vault gets a key of its own.
            manifest.vault_key = None;
        }
        // Another project, and an installation that may run elsewhere, get a log of their own.
        let is_other = self.creates() || (self.recovers && !self.continues);
        let identity = if is_other {
            RecoveredIdentity::New
        } else {
            RecoveredIdentity::Kept
        };
        let options = BuildOptions {
            chain: &plan.chain,
            moment: self.moment,
            checks: RecoveryChecks::Quick,
            identity,
        };
        let driver = &context.driver;
        let prepared = context.backups.prepared.take(id, base);
        let unfinished = match prepared {
            Some(unfinished) => unfinished,
            None => restore::prepare(driver, store, &manifest, cluster).await?,
        };
        let built = restore::complete(driver, store, &manifest, unfinished, options).await?;
        if let Some(source) = &self.source {
            self.isolate(context, id, source, &manifest, &built).await?;
        }
        // Another process may continue meanwhile.
        context.lease.check()?;
        let parent = plan.archives.get(built.part).copied();
        let fork = built.checks.fork.zip(parent).map(|(fork, parent)| {
            let at = Lsn(fork.at);
            (Fork { parent, at }, fork.timeline)
        });
        self.note_fork(context, fork).await?;
        context.driver.keep_restored(built.cluster, name).await?;
        let sql = "update restores set base_id = $2 where id = $1";
        let recorded = context.db.query(sql, &[&self.id, &base]).await;
        recorded.context("recording a restore")?;
        tracing::info!(project = %cluster.project, base, end = %built.end, "cluster recovered");
        Ok(())
    }

    /// Records that a replaced cluster comes back. Its log goes on where its archive ended.
    async fn note_return(&self, context: &ControlContext, earlier: i64) -> Result<(), Error> {
        let sql = "select a.id, a.shipped_lsn, a.timeline from restores r
                   join archives a on a.id = r.replaced_archive_id where r.id = $1";
        let rows = context.db.query(sql, &[&earlier]).await;
        let rows = rows.context("reading a restore")?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let fork = Fork {
            parent: row.get(0),
            at: Lsn::from_column(row.get(1)),
        };
        let timeline = u32::try_from(row.get::<_, i64>(2)).context("reading a restore")?;
        self.note_fork(context, Some((fork, timeline))).await
    }

    /// Removes from the cluster of a new project what belongs to the source alone.
    async fn isolate(
        &self,
        context: &ControlContext,
        id: ProjectId,
        source: &Project,
        manifest: &Manifest,
        built: &Restored,
    ) -> Result<(), BackupError> {
        let new = Project {
            id,
            reference: built.cluster.project().clone(),
            organization: source.organization,
        };
        let secrets = api_keys::replacements(context, source, &new).await?;
        let steps = context
            .driver
            .isolate_recovered(&built.cluster, &manifest.settings, &secrets)
            .await?;
        let report = serde_json::to_value(steps).context("writing the report of a restore")?;
        let sql = "update restores set report = $2 where id = $1";
        let recorded = context.db.query(sql, &[&self.id, &report]).await;
        recorded.context("recording a restore")?;
        Ok(())
    }

    /// Records why the cluster of a new project cannot be made. The restore stays open, so that the
    /// project never gets an empty cluster.
    async fn note_failure(
        &self,
        context: &ControlContext,
        error: &BackupError,
    ) -> Result<(), Error> {
        let sql = "update restores set error = $2 where id = $1";
        let recorded = context.db.query(sql, &[&self.id, &error.to_string()]).await;
        recorded.context("recording a restore").map(drop)
    }

    /// Records the end of the restore. After a success, the earlier cluster is kept, and a restore
    /// point leads back to it.
    pub(crate) async fn finish(
        &self,
        context: &ControlContext,
        id: ProjectId,
        error: Option<&str>,
    ) -> Result<(), Error> {
        let doing = "recording a restore";
        let now = context.clock.now();
        let hours = i64::from(context.backups.options.undo_hours);
        let replaced = error.is_none() && !self.creates() && !self.continues;
        let kept_until = replaced.then(|| now + TimeDelta::hours(hours));
        if replaced {
            let sql = "insert into restore_points (project_id, archive_id, name, lsn, restore_id, created_at, completed_on)
                       select $1, a.id, 'restore-' || $2::bigint, a.shipped_lsn, $2, $3, $3
                       from restores r join archives a on a.id = r.replaced_archive_id
                       where r.id = $2
                         and not exists (select from restore_points p where p.restore_id = $2)";
            let params: [Param<'_>; 3] = [&id.0, &self.id, &now];
            context.db.query(sql, &params).await.context(doing)?;
        }
        let sql = "update restores set finished_at = $2, error = $3, kept_until = $4, verifier = null where id = $1";
        let params: [Param<'_>; 4] = [&self.id, &now, &error, &kept_until];
        context.db.query(sql, &params).await.context(doing)?;
        let sql = "update restores set kept_until = $2 where kept_until > $2 and id in
                   (select r.id from restores r where r.project_id = $1 and r.kept_until is not null
                    order by r.id desc offset $3)";
        let params: [Param<'_>; 3] = [&id.0, &now, &REPLACED_MAX];
        context.db.query(sql, &params).await.context(doing)?;
        Ok(())
    }
}

/// Archives the log of a stopped cluster to its end, before another one takes its place. Returns
/// whether it is in the store.
pub(crate) async fn archive_end(
    context: &ControlContext,
    id: ProjectId,
    cluster: &ClusterSpec,
) -> bool {
    let project = &cluster.project;
    let watched = WatchedProject {
        id,
        reference: project.clone(),
        way: way_of(context, cluster.major),
    };
    if !context.backups.options.enabled {
        return false;
    }
    let begun = context.clock.now();
    let is_complete = super::ship_all(context, &watched).await
        && archive::record_end(context, id, begun).await.is_ok();
    if !is_complete {
        tracing::warn!(%project, "the end of the write-ahead log could not be archived");
    }
    is_complete
}

/// Returns the way in which servers of a version hand over their log.
pub(crate) fn way_of(context: &ControlContext, major: u16) -> ArchiveWay {
    let engine = context.driver.engines().of_major(major);
    engine.map_or(ArchiveWay::Status, ArchiveWay::of)
}

/// Records that a backup could not be restored.
pub(super) async fn note_damage(
    context: &ControlContext,
    base: i64,
    error: &BackupError,
) -> Result<(), Error> {
    backup_events::record_damage(context, base, error.to_string()).await
}

/// Ends the open restore of a project that is paused or removed. A paused project without a cluster
/// keeps its restore: its data is only in the store.
pub(crate) async fn cancel(context: &ControlContext, id: ProjectId) -> Result<(), Error> {
    let sql = "update restores set finished_at = $2, error = 'cancelled', verifier = null where project_id = $1 and finished_at is null
               and not (recovers and exists (select from projects p where p.id = project_id and p.desired = 'paused'))";
    context
        .db
        .query(sql, &[&id.0, &context.clock.now()])
        .await
        .context("cancelling a restore")
        .map(drop)
}

impl BackupError {
    /// Whether a repetition cannot succeed.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Missing(_)
            | Self::Damaged { .. }
            | Self::Gap(_)
            | Self::Key(_)
            | Self::Refused(_)
            | Self::Cluster(
                ClusterError::NotStarted { .. }
                | ClusterError::Recovery(_)
                | ClusterError::Isolation(_)
                | ClusterError::NoEngine(_),
            ) => true,
            Self::Store { .. }
            | Self::Files(_)
            | Self::Cluster(_)
            | Self::Platform(_)
            | Self::Unconfigured
            | Self::ShuttingDown => false,
        }
    }
}
