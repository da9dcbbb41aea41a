//! Restores of single tables of a past moment into a new schema of the running project
//! (decision 0148).
//!
//! A scratch cluster is recovered as for a verification. Its tables are read with the rights of the
//! project's owner, and written as the owner, in one transaction of the project's server. So an
//! interrupted restore leaves nothing in the project, and the scratch cluster is removed at the
//! next start.

mod copy;

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::clusters::{ClusterSpec, RecoveredIdentity, RecoveryChecks, UnfinishedCluster};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_postgres::Row;

use super::{
    archive,
    error::BackupError,
    manifest::Manifest,
    moment::Moment,
    restore::{self, BuildOptions},
    settle,
    target::{RestoreTarget, moment_in},
    window::BackupCatalog,
};
use crate::{
    control::{
        context::ControlContext,
        projects::{self, idle, reconciler},
    },
    platform::{
        access::Project,
        audit::Recorder,
        db::{self, Param},
        error::{Context, Error},
    },
};

/// Maximum number of tables in one restore.
pub const TABLES_MAX: usize = 50;
/// Longest name that PostgreSQL keeps, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Interval of looking for restores that are due.
const LOOK: Duration = Duration::from_secs(10);
/// Attempts after which a restore fails, if the store or the project cannot be reached.
const ATTEMPTS_MAX: i32 = 10;
/// Time limit of copying the tables of one restore. Recovery has its own.
const PATIENCE: Duration = Duration::from_hours(2);
/// Answer to a second restore of tables.
const RUNNING: &str = "Tables of this project are being restored. Try again when that has ended";

/// A table of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredTable {
    /// Its schema at that moment.
    pub schema: String,
    /// Its name, then and in the new schema.
    pub name: String,
    /// Restored rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

/// A recorded restore of tables.
#[derive(Debug)]
pub struct RequestedTables {
    /// Number of the restore.
    pub id: i64,
    /// The new schema.
    pub schema: String,
    /// Time of the request.
    pub requested_at: DateTime<Utc>,
}

/// Records a restore of tables, and wakes the task that carries it out.
///
/// Errors: [`Error::Conflict`] while another one runs.
pub async fn request(
    context: &ControlContext,
    project: &Project,
    target: &RestoreTarget,
    tables: &[RestoredTable],
    audit: &Recorder,
) -> Result<RequestedTables, Error> {
    let doing = "requesting a restore of tables";
    if !context.backups.options.enabled {
        return Err(Error::Unconfigured(super::SWITCHED_OFF));
    }
    // The tables are written to the running server.
    projects::target(context, project).await?;
    let now = context.clock.now();
    let schema = now.format("restored_%Y%m%d_%H%M%S").to_string();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    projects::lock(&transaction, project, doing).await?;
    let (time, position, archive) = target.columns();
    let listed = serde_json::to_value(tables).context(doing)?;
    let sql = "insert into table_restores (project_id, target_time, target_lsn, archive_id, tables, schema, requested_at)
               values ($1, $2, $3, $4, $5, $6, $7) returning id";
    let params: [Param<'_>; 7] = [
        &project.id.0,
        &time,
        &position,
        &archive,
        &listed,
        &schema,
        &now,
    ];
    let row = transaction.query_one(sql, &params).await;
    let row = row.map_err(|error| match db::violated(&error) {
        Some("table_restores_open_key") => Error::Conflict(RUNNING.into()),
        _ => Error::internal(doing, error),
    })?;
    let after =
        json!({"tables": listed, "schema": schema, "restored_to": time, "position": position});
    let change = (None, Some(after));
    let requested = RequestedTables {
        id: row.get(0),
        schema,
        requested_at: now,
    };
    audit.result(&requested);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.backups.table_restores.0.notify_one();
    Ok(requested)
}

/// Carries out restores of tables. Returns at once if backups are switched off.
pub async fn run(context: ControlContext) {
    if !context.backups.options.enabled {
        return;
    }
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = context.backups.table_restores.0.notified() => {}
        }
        if let Err(error) = round(&context).await {
            tracing::warn!(%error, "cannot look for tables to restore");
        }
    }
}

/// A restore that has not ended.
#[derive(Debug)]
struct OpenTableRestore {
    id: i64,
    project: ProjectId,
    cluster: ClusterSpec,
    moment: Moment,
    archive: Option<i64>,
    tables: Vec<RestoredTable>,
    schema: String,
}

impl OpenTableRestore {
    fn read(context: &ControlContext, row: &Row) -> Result<Self, Error> {
        let doing = "reading a restore of tables";
        let reference: ProjectRef = row.get::<_, &str>(2).parse().context(doing)?;
        let id = ProjectId(row.get(1));
        Ok(Self {
            id: row.get(0),
            project: id,
            cluster: ClusterSpec {
                project: reference,
                uid: reconciler::plan::uid(context, row.get(3))?,
                major: 0,
            },
            moment: moment_in(row.get(4), row.get(5)),
            archive: row.get(6),
            tables: serde_json::from_value(row.get(7)).context(doing)?,
            schema: row.get(8),
        })
    }
}

/// Restores of this node that are carried out in one round. Further ones follow in the next.
const BATCH: i64 = 16;

/// Carries out the restores of tables in projects of this node, one after the other.
pub async fn round(context: &ControlContext) -> Result<(), Error> {
    if !context.lease.leads() {
        return Ok(());
    }
    let sql = "select r.id, r.project_id, p.ref, coalesce(p.account, p.id), r.target_time, r.target_lsn, r.archive_id, r.tables, r.schema
               from table_restores r join projects p on p.id = r.project_id
               where p.node = $1 and p.desired <> 'removed' and r.finished_at is null order by r.id limit $2";
    let params: [Param<'_>; 2] = [&context.settings.node, &BATCH];
    let rows = context.db.query(sql, &params).await;
    for row in rows.context("reading restores of tables")? {
        let restore = OpenTableRestore::read(context, &row)?;
        let project = &restore.cluster.project;
        match restore.carry_out(context).await {
            Ok(tables) => {
                tracing::info!(%project, schema = restore.schema, "tables restored");
                restore.finish(context, &tables, None).await?;
            }
            Err(error) if error.is_permanent() => {
                tracing::warn!(%project, %error, "restore of tables ended");
                let text = error.to_string();
                restore
                    .finish(context, &restore.tables, Some(&text))
                    .await?;
            }
            Err(error) => {
                tracing::warn!(%project, %error, "tables could not be restored");
                restore.count_attempt(context, &error).await?;
            }
        }
    }
    Ok(())
}

impl OpenTableRestore {
    /// Restores the tables. Returns them with the numbers of their rows.
    async fn carry_out(&self, context: &ControlContext) -> Result<Vec<RestoredTable>, BackupError> {
        if self.moment == Moment::Latest || (self.archive.is_none() && self.is_position()) {
            let text = "the backups that it needs have expired".to_owned();
            return Err(BackupError::Refused(text));
        }
        // Before the scratch cluster is made, which takes longer.
        idle::wake(context, self.project, &self.cluster.project).await?;
        let store = archive::store_of(
            context,
            &context.backups,
            self.project,
            &self.cluster.project,
        )
        .await?;
        let catalog = BackupCatalog::read(context, self.project).await?;
        let mut last = BackupError::Refused("no backup reaches that moment".to_owned());
        for plan in catalog.plans(self.archive, self.moment) {
            let base = plan.base;
            let manifest = Manifest::get(&store, base).await?;
            let cluster = ClusterSpec {
                major: manifest.major,
                ..self.cluster.clone()
            };
            let options = BuildOptions {
                chain: &plan.chain,
                moment: self.moment,
                checks: RecoveryChecks::Quick,
                identity: RecoveredIdentity::New,
            };
            let built = restore::build(&context.driver, &store, &manifest, &cluster, options);
            match built.await {
                Ok(built) => return self.copy(context, &manifest, &built.cluster).await,
                Err(error) if error.is_permanent() => {
                    settle::note_damage(context, base, &error).await?;
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn is_position(&self) -> bool {
        matches!(self.moment, Moment::Position(_))
    }

    async fn copy(
        &self,
        context: &ControlContext,
        manifest: &Manifest,
        scratch: &UnfinishedCluster,
    ) -> Result<Vec<RestoredTable>, BackupError> {
        context.lease.check()?;
        let driver = &context.driver;
        let served = driver.serve_recovered(scratch, &manifest.settings).await?;
        let copied = async {
            let target = idle::wake(context, self.project, &self.cluster.project).await?;
            let marker = format!("Gantry: tables restored from a backup, number {}", self.id);
            let reader = served.reader().await?;
            copy::tables(&reader, &target, &self.schema, &marker, &self.tables).await
        };
        // The server is stopped in any case.
        let copied = timeout(PATIENCE, copied).await.unwrap_or_else(|_| {
            let text = format!(
                "copying took longer than {} hours",
                PATIENCE.as_secs() / 3600
            );
            Err(BackupError::Refused(text))
        });
        let stopped = served.stop().await;
        let copied = copied?;
        if let Err(error) = stopped {
            tracing::warn!(%error, "scratch cluster could not be stopped");
        }
        Ok(copied)
    }

    /// Counts a failed attempt. The last one ends the restore.
    async fn count_attempt(
        &self,
        context: &ControlContext,
        error: &BackupError,
    ) -> Result<(), Error> {
        let sql =
            "update table_restores set attempts = attempts + 1 where id = $1 returning attempts";
        let rows = context.db.query(sql, &[&self.id]).await;
        let rows = rows.context("recording a restore of tables")?;
        let attempts: i32 = rows.first().map_or(ATTEMPTS_MAX, |row| row.get(0));
        if attempts < ATTEMPTS_MAX {
            return Ok(());
        }
        self.finish(context, &self.tables, Some(&error.to_string()))
            .await
    }

    async fn finish(
        &self,
        context: &ControlContext,
        tables: &[RestoredTable],
        error: Option<&str>,
    ) -> Result<(), Error> {
        let doing = "recording a restore of tables";
        let listed = serde_json::to_value(tables).context(doing)?;
        let sql =
            "update table_restores set finished_at = $2, tables = $3, error = $4 where id = $1";
        let params: [Param<'_>; 4] = [&self.id, &context.clock.now(), &listed, &error];
        context
            .db
            .query(sql, &params)
            .await
            .context(doing)
            .map(drop)
    }
}
